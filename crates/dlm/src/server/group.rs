//! Group locks: the members, and the consequences for waiting requests when a group begins or loses a member.
//!
//! Owns: the table of members, and which direct requests are those of members. Does not own: which locks conflict
//! (`mode`), queues (`queue`).
//!
//! A group is in force on an object while one of its locks is granted there. While a group is in force, nothing else is
//! granted but direct requests of its members. A request to join a group in force, and members' direct requests, pass
//! all other waiting requests. The waiting requests wait for the end of the group, and that end may wait for the
//! requests that pass them. So a group that always has a member keeps others out, which is its purpose.

use super::{GROUP, LockSpace, Object, State, class, conflicting};
use crate::mode::{GroupId, LockId, Mode, Owner};
use crate::tree::{Entry, Search};
use amphi_types::{ByteRange, ObjectId, SessionId};
use std::collections::BTreeSet;

impl LockSpace {
    /// The group in force on an object.
    pub(super) fn in_force(&self, view: &Object) -> Option<GroupId> {
        self.forest.highest(view.granted[GROUP], None).map(|entry| GroupId(entry.session.0))
    }

    /// Returns whether a lock of another group is held or requested.
    pub fn has_other_group(&self, object: ObjectId, group: GroupId) -> bool {
        let others = Search::overlap(ByteRange::ALL, Some(SessionId(group.0)));
        let Some(view) = self.objects.get(&object) else { return false };
        [view.granted[GROUP], view.waiting[GROUP]].iter().any(|tree| self.forest.find(*tree, &others).is_some())
    }

    /// Returns whether a request waits for the end of the group in force on an object. Members' own requests wait for
    /// each other and do not count.
    pub fn group_wanted(&self, object: ObjectId) -> bool {
        let Some(view) = self.objects.get(&object) else { return false };
        self.in_force(view).is_some() && view.waiting[..=GROUP].iter().any(|tree| !tree.is_empty())
    }

    /// Returns whether the session's request for that group lock was granted (`true`) or waits (`false`). `None`: there
    /// is no such request.
    pub fn group_request(&self, session: SessionId, id: LockId, object: ObjectId, group: GroupId) -> Option<bool> {
        let lock = self.locks.get(&id)?;
        let same = lock.owner == Owner::Group(session, group) && lock.object == object;
        same.then_some(lock.state == State::Granted)
    }

    /// Sessions that hold group locks of an object.
    pub fn members(&self, object: ObjectId) -> impl Iterator<Item = (LockId, SessionId)> {
        let mut found = Vec::new();
        if let Some(view) = self.objects.get(&object) {
            self.forest.visit(view.granted[GROUP], ByteRange::ALL, &mut |entry| found.push(entry.id));
        }
        found.into_iter().filter_map(|id| self.locks.get(&id).map(|lock| (id, lock.owner.session())))
    }

    /// The owner of a direct request: `Member` if the session is a member of the group in force.
    pub(super) fn as_member(&self, object: ObjectId, owner: Owner) -> Owner {
        match owner {
            Owner::Direct(session) | Owner::Holder(session) | Owner::Member(session, _) => {
                match (self.members.get(&(object, session)), owner) {
                    (Some((group, _)), _) => Owner::Member(session, *group),
                    (None, Owner::Holder(_)) => owner,
                    (None, _) => Owner::Direct(session),
                }
            }
            Owner::Cached(_) | Owner::Group(..) => owner,
        }
    }

    /// An earlier request of a member that conflicts with this one.
    pub(super) fn waiting_member(
        &self,
        view: &Object,
        owner: Owner,
        mode: Mode,
        range: ByteRange,
        before: LockId,
    ) -> Option<LockId> {
        conflicting(owner, mode)
            .filter(|&(class, _)| class > GROUP)
            .find_map(|(class, exempt)| self.forest.find(view.waiting[class], &Search { range, exempt, before }))
    }

    pub(super) fn note_member(&mut self, object: ObjectId, session: SessionId, group: GroupId) {
        self.members.entry((object, session)).or_insert((group, 0)).1 += 1;
    }

    /// Called when a group lock was granted. Other waiting requests of the group are granted as well, and the members'
    /// direct requests continue.
    pub(super) fn joined(&mut self, now_ns: u64, object: ObjectId, session: SessionId, group: GroupId) {
        self.note_member(object, session, group);
        let mut waiting = Vec::new();
        if let Some(view) = self.objects.get(&object) {
            let mut found = |entry: &Entry| {
                if entry.session == SessionId(group.0) {
                    waiting.push(entry.id);
                }
            };
            self.forest.visit(view.waiting[GROUP], ByteRange::ALL, &mut found);
        }
        let mut sessions = BTreeSet::from([(object, session)]);
        for id in waiting {
            let Some(session) = self.locks.get(&id).map(|lock| lock.owner.session()) else { continue };
            self.leave_queue(id);
            self.grant_one(now_ns, id);
            self.note_member(object, session, group);
            sessions.insert((object, session));
        }
        self.reclass(now_ns, &sessions);
    }

    /// Called when a group lock is gone. Returns whether its session is no longer a member.
    pub(super) fn leave(&mut self, object: ObjectId, owner: Owner) -> bool {
        let key = (object, owner.session());
        let Some((_, locks)) = self.members.get_mut(&key) else { return false };
        *locks -= 1;
        let gone = *locks == 0;
        if gone {
            self.members.remove(&key);
        }
        gone
    }

    /// Waiting direct requests of these sessions belong to the group from now on, or no longer do. These requests, and
    /// the requests that wait for them, are checked again.
    pub(super) fn reclass(&mut self, now_ns: u64, sessions: &BTreeSet<(ObjectId, SessionId)>) {
        let mut again = BTreeSet::new();
        for &(object, session) in sessions {
            let of_session = self.sessions.range((session, LockId(0))..=(session, LockId(u64::MAX)));
            let changes = |id: &LockId| {
                self.locks.get(id).is_some_and(|lock| {
                    lock.object == object
                        && lock.state == State::Waiting
                        && self.as_member(object, lock.owner) != lock.owner
                })
            };
            let ids: Vec<LockId> = of_session.map(|(_, id)| *id).filter(changes).collect();
            for id in ids {
                let entry = self.entry(id);
                let owner = self.as_member(object, self.locks[&id].owner);
                let Some(lock) = self.locks.get_mut(&id) else { continue };
                let (from, to) = (class(lock.owner, lock.mode), class(owner, lock.mode));
                lock.owner = owner;
                again.extend(std::mem::take(&mut lock.watchers));
                again.insert(id);
                if let Some(tables) = self.objects.get_mut(&object) {
                    self.forest.remove(&mut tables.waiting[from], entry.range.start, id);
                    self.forest.insert(&mut tables.waiting[to], entry, false);
                }
            }
        }
        for id in again {
            self.look_again(now_ns, id);
        }
    }
}
