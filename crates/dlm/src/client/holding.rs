//! Requesting and using locks: ask, granted, pin, unpin.
//!
//! Owns: the life of a lock until it is returned. Does not own: its return (`returning`).

use super::{Asked, Granted, Held, Hit, LockCache, LockRef, RequestId, Stage};
use crate::mode::{GroupId, LockId, Mode};
use crate::tree::Entry;
use amphi_types::{ByteRange, ObjectId, RangeSet, SessionId};

impl LockCache {
    /// Pins a lock that permits `mode` on all of `range`. For an I/O that no single lock covers, request one lock over
    /// all its bytes. An I/O never waits for a lock while it pins another one of the same object
    /// (`docs/locking/extent_locks.md`).
    pub fn pin(&mut self, now_ns: u64, object: ObjectId, mode: Mode, range: ByteRange) -> Hit {
        match self.covers(object, mode, range) {
            Some(id) => {
                self.use_lock(now_ns, id);
                Hit::Hit(LockRef { id })
            }
            None => Hit::Miss,
        }
    }

    /// A usable lock that permits `mode` on all of `range`, without pinning it.
    pub fn covers(&self, object: ObjectId, mode: Mode, range: ByteRange) -> Option<LockId> {
        let locks = self.objects.get(&object)?;
        let write = self.forest.covering(locks.usable[usize::from(Mode::Write.raw())], range);
        match mode {
            Mode::Write => write,
            Mode::Read => write.or_else(|| self.forest.covering(locks.usable[usize::from(Mode::Read.raw())], range)),
        }
    }

    /// The parts of `range` for which no lock of the table permits `mode`. Locks that are being returned count.
    pub fn bare(&self, object: ObjectId, mode: Mode, range: ByteRange) -> Vec<ByteRange> {
        let Some(locks) = self.objects.get(&object) else { return vec![range] };
        let mut covered = RangeSet::new();
        for tree in [locks.usable[0], locks.usable[1], locks.closing] {
            self.forest.visit(tree, range, &mut |entry| {
                if self.locks.get(&entry.id).is_some_and(|held| held.mode.covers(mode)) {
                    covered.insert(entry.range);
                }
            });
        }
        covered.gaps(range).into_vec()
    }

    fn use_lock(&mut self, now_ns: u64, id: LockId) {
        if let Some(held) = self.locks.get_mut(&id) {
            held.users += 1;
            held.last_used_ns = held.last_used_ns.max(now_ns);
        }
    }

    /// The I/O under the lock is done: its data is in the cache or on the target.
    pub fn unpin(&mut self, lock: LockRef) {
        let Some(held) = self.locks.get_mut(&lock.id) else { return };
        debug_assert!(held.users > 0, "unpinned more often than pinned");
        held.users = held.users.saturating_sub(1);
        if held.users == 0 && held.stage == Stage::Closing {
            self.close_unused(lock.id);
        }
    }

    /// Notes that a request for a lock is sent to the server.
    pub fn ask(&mut self, object: ObjectId, mode: Mode, range: ByteRange) -> RequestId {
        self.next_request += 1;
        let request = RequestId(self.next_request);
        self.asked.insert(request, Asked { object, mode, range });
        self.object(object).asked.insert(request);
        request
    }

    /// An unanswered request whose lock will cover this I/O, so that the I/O can wait for that answer and then try
    /// again.
    pub fn asked(&self, object: ObjectId, mode: Mode, range: ByteRange) -> Option<RequestId> {
        self.objects.get(&object)?.asked.iter().copied().find(|request| {
            self.asked.get(request).is_some_and(|asked| asked.mode.covers(mode) && asked.range.contains(&range))
        })
    }

    /// The server granted `id` on `range` for `request`.
    pub fn granted(&mut self, now_ns: u64, request: RequestId, id: LockId, range: ByteRange) -> Granted {
        self.now_ns = self.now_ns.max(now_ns);
        let Some(asked) = self.asked.remove(&request) else {
            if !self.locks.contains_key(&id) {
                self.queue_cancel(id, true);
            }
            return Granted::Unwanted;
        };
        let Asked { object, mode, .. } = asked;
        let locks = self.object(object);
        locks.asked.remove(&request);
        let called = locks.early.remove(&id).is_some();
        let stage = if called { Stage::Closing } else { Stage::Usable };
        let entry = Entry { range, id, session: SessionId(0) };
        let Some(locks) = self.objects.get_mut(&object) else { return Granted::Unwanted };
        let tree = if called { &mut locks.closing } else { &mut locks.usable[usize::from(mode.raw())] };
        self.forest.insert(tree, entry, false);
        self.locks.insert(
            id,
            Held {
                object,
                mode,
                range,
                stage,
                users: 1,
                group: None,
                urgent: called,
                lost: false,
                last_used_ns: now_ns,
                stamp_ns: now_ns,
            },
        );
        if !called {
            self.by_age.insert((now_ns, id));
        }
        self.forget_answered(object);
        self.trim(now_ns);
        Granted::Pinned(LockRef { id })
    }

    /// The server granted a group lock of the object. The lock is held until it is returned ([`LockCache::give_back`]),
    /// does not age, and does not count for the bound. The caller has made sure that no other I/O of this client
    /// requests locks of the object meanwhile.
    pub fn hold_group(&mut self, now_ns: u64, id: LockId, object: ObjectId, group: GroupId) {
        if self.locks.contains_key(&id) {
            return;
        }
        let (range, mode) = (ByteRange::ALL, Mode::Write);
        self.object(object);
        let Some(locks) = self.objects.get_mut(&object) else { return };
        let entry = Entry { range, id, session: SessionId(0) };
        self.forest.insert(&mut locks.usable[usize::from(mode.raw())], entry, false);
        let held = Held {
            object,
            mode,
            range,
            stage: Stage::Usable,
            users: 0,
            group: Some(group),
            urgent: false,
            lost: false,
            last_used_ns: now_ns,
            stamp_ns: now_ns,
        };
        self.locks.insert(id, held);
    }

    /// The range and the group of a lock.
    pub fn extent(&self, id: LockId) -> Option<(ByteRange, Option<GroupId>)> {
        self.locks.get(&id).map(|held| (held.range, held.group))
    }

    /// The locks that would be returned next by age, oldest first, with their objects.
    pub fn oldest(&self) -> Vec<(LockId, ObjectId)> {
        let object = |id: &LockId| self.locks.get(id).map(|held| (*id, held.object));
        self.by_age.iter().take(self.limits.trim_batch).filter_map(|(_, id)| object(id)).collect()
    }

    /// Notes that the lock was used at `at_ns` without being pinned.
    pub fn used(&mut self, id: LockId, at_ns: u64) {
        if let Some(held) = self.locks.get_mut(&id) {
            held.last_used_ns = held.last_used_ns.max(at_ns);
        }
    }

    /// Called when the request was refused, or nobody waits for its answer any more. A lock that is granted for it
    /// later is returned.
    pub fn withdraw(&mut self, request: RequestId) {
        if let Some(asked) = self.asked.remove(&request) {
            if let Some(locks) = self.objects.get_mut(&asked.object) {
                locks.asked.remove(&request);
            }
            self.forget_answered(asked.object);
        }
    }

    /// Forgets early callbacks that cannot belong to any unanswered request.
    fn forget_answered(&mut self, object: ObjectId) {
        if let Some(locks) = self.objects.get_mut(&object) {
            match locks.asked.first() {
                Some(&oldest) => locks.early.retain(|_, newest| *newest >= oldest),
                None => locks.early.clear(),
            }
        }
        self.forget_unused(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{CacheLimits, CallbackPlan, LockAction};
    use amphi_types::Ino;

    /// Goal: ranges that no lock covers are found; a lock that is being returned counts as covering until it has left
    /// the table. Method: one lock that is in use and called back, and an idle one next to it.
    #[test]
    fn bare_ranges() {
        let mut cache = LockCache::new(CacheLimits::default());
        let object = ObjectId { ino: Ino(5), stripe: 0 };
        let all = ByteRange::new(0, 40);
        let bare = |cache: &LockCache| cache.bare(object, Mode::Read, all);
        assert_eq!(bare(&cache), [all]);
        let mut hold = |id, mode, range| {
            let request = cache.ask(object, mode, range);
            match cache.granted(0, request, LockId(id), range) {
                Granted::Pinned(lock) => lock,
                Granted::Unwanted => panic!("it was asked for"),
            }
        };
        let write = hold(1, Mode::Write, ByteRange::new(0, 10));
        let read = hold(2, Mode::Read, ByteRange::new(20, 30));
        cache.unpin(read);
        let none = [ByteRange::new(10, 20), ByteRange::new(30, 40)];
        assert_eq!(bare(&cache), none);
        assert_eq!(cache.bare(object, Mode::Write, all), [ByteRange::new(10, 40)], "a read lock permits no write");
        assert!(matches!(cache.callback(1, write.id, object), CallbackPlan::Started { users: 1, .. }));
        assert_eq!(bare(&cache), none, "it is on its way back");
        cache.unpin(write);
        while let Some(action) = cache.poll_action() {
            if let LockAction::Flush { id, .. } = action {
                assert_eq!(bare(&cache), none, "it is flushed");
                cache.flushed(id);
            }
        }
        assert_eq!(bare(&cache), [ByteRange::new(0, 20), ByteRange::new(30, 40)]);
        assert!(cache.bare(object, Mode::Read, ByteRange::new(20, 30)).is_empty());
    }
}
