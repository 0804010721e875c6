//! Waiting requests for file locks: when each is checked again, and in which order they are granted.
//!
//! Owns: the queue, the watches, the regular checks. Does not own: whether a wait is a deadlock.
//!
//! Invariant: a waiting request watches one thing that keeps it from being granted: a held lock or an earlier request.
//! The request is checked again when that lock or request changes, when its owner gets a lock on the file, and each
//! `yield_ns`. Requests that may be granted because of one step are checked in the order of their arrival.

use super::{File, FileLock, FileLocks, Party, Table, Wait, WaitGranted, WaitId};
use crate::mode::LockId;
use crate::tree::Entry;
use amphi_types::{ByteRange, Ino, SessionId};
use std::collections::BTreeSet;

impl FileLocks {
    /// Ends the wait of a request whose caller was interrupted. Returns `false` if it does not wait: it was granted,
    /// which is not undone, or its session was dropped.
    pub fn cancel(&mut self, id: WaitId) -> bool {
        let mut woken = BTreeSet::new();
        let Some(wait) = self.take_wait(id, &mut woken) else { return false };
        self.settle(woken);
        self.forget(wait.party, wait.ino, wait.table);
        true
    }

    /// When [`FileLocks::handle_timeout`] has something to do next.
    pub fn next_deadline(&self) -> Option<u64> {
        self.due.first().map(|&(due_ns, _)| due_ns)
    }

    /// Lets requests that are due pass earlier waiting requests, if only those keep them from being granted.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        while let Some(&(due_ns, id)) = self.due.first()
            && due_ns <= now_ns
        {
            let next_ns = now_ns.saturating_add(self.limits.yield_ns);
            self.due.remove(&(due_ns, id));
            let Some(wait) = self.waits.get_mut(&id) else { continue };
            // At the end of the clock's range there is no later check.
            if next_ns > now_ns {
                wait.due_ns = next_ns;
                self.due.insert((next_ns, id));
            }
            let wait = *wait;
            let file = self.files[&(wait.ino, wait.table)];
            if self.held_conflict(&file, Some(wait.party), wait.kind, wait.range).is_none() {
                let mut woken = BTreeSet::new();
                self.grant(id, &mut woken);
                self.settle(woken);
            }
        }
    }

    /// Returns whether requests of the owner wait behind earlier requests. An owner that already has a lock on the file
    /// does not, because an earlier request may be waiting for that lock.
    pub(super) fn yields(&self, party: Option<Party>, ino: Ino) -> bool {
        #[cfg(test)]
        if self.planted == Some(super::tests::PlantedBug::JumpQueue) {
            return false;
        }
        !party.is_some_and(|party| self.holds_any(party, ino))
    }

    pub(super) fn enqueue(
        &mut self,
        now_ns: u64,
        lock: &FileLock,
        table: Table,
        range: ByteRange,
        blocker: LockId,
    ) -> WaitId {
        let (party, id) = (self.party(lock.owner), WaitId(self.next_id()));
        let due_ns = now_ns.saturating_add(self.limits.yield_ns);
        let (ino, kind, pid) = (lock.ino, lock.kind, lock.pid);
        self.waits.insert(id, Wait { party, ino, table, kind, range, pid, due_ns, watching: None });
        self.waits_of.insert((party, id));
        self.due.insert((due_ns, id));
        if let Some(state) = self.parties.get_mut(&party) {
            state.waits += 1;
        }
        self.count(lock.owner.session, 2, 0);
        let file = self.files.entry((ino, table)).or_insert(File::NEW);
        file.waits += 1;
        let entry = Entry { range, id: LockId(id.0), session: SessionId(party.0) };
        self.forest.insert(&mut file.waiting[kind as usize], entry, false);
        self.watch(blocker, id);
        id
    }

    /// Removes a request from the queue. Requests that watched it have to be checked again.
    pub(super) fn take_wait(&mut self, id: WaitId, woken: &mut BTreeSet<WaitId>) -> Option<Wait> {
        self.unwatch(id);
        let wait = self.waits.remove(&id)?;
        self.waits_of.remove(&(wait.party, id));
        self.due.remove(&(wait.due_ns, id));
        let session = self.parties.get_mut(&wait.party).map(|state| {
            state.waits -= 1;
            state.owner.session
        });
        session.into_iter().for_each(|session| self.count(session, 0, 2));
        if let Some(file) = self.files.get_mut(&(wait.ino, wait.table)) {
            file.waits -= 1;
            let tree = &mut file.waiting[wait.kind as usize];
            let found = self.forest.remove(tree, wait.range.start, LockId(id.0));
            debug_assert!(found, "every request is in its tree");
        }
        self.wake_watchers(LockId(id.0), woken);
        Some(wait)
    }

    pub(super) fn wake_watchers(&mut self, of: LockId, woken: &mut BTreeSet<WaitId>) {
        #[cfg(test)]
        if self.planted == Some(super::tests::PlantedBug::LoseWake) && of.0.is_multiple_of(3) {
            return;
        }
        woken.extend(self.watchers.range((of, WaitId(0))..=(of, WaitId(u64::MAX))).map(|&(_, id)| id));
    }

    /// Checks requests until none can be granted. Each grant ends a wait, so this ends.
    pub(super) fn settle(&mut self, mut woken: BTreeSet<WaitId>) {
        while let Some(id) = woken.pop_first() {
            self.look_again(id, &mut woken);
        }
    }

    fn look_again(&mut self, id: WaitId, woken: &mut BTreeSet<WaitId>) {
        let Some(&wait) = self.waits.get(&id) else { return };
        self.unwatch(id);
        let file = self.files[&(wait.ino, wait.table)];
        let party = Some(wait.party);
        let earlier = if self.yields(party, wait.ino) {
            self.waiting_conflict(&file, party, wait.kind, wait.range, Some(id))
        } else {
            None
        };
        match earlier.or_else(|| self.held_conflict(&file, party, wait.kind, wait.range)) {
            Some(blocker) => self.watch(blocker, id),
            None => self.grant(id, woken),
        }
    }

    fn grant(&mut self, id: WaitId, woken: &mut BTreeSet<WaitId>) {
        let Some(wait) = self.take_wait(id, woken) else { return };
        let plan = self.plan(Some(wait.party), wait.ino, wait.range, Some((wait.kind, wait.pid)));
        self.carry_out(wait.party, wait.ino, wait.table, plan, woken);
        if let Some(state) = self.parties.get(&wait.party) {
            self.granted.push_back(WaitGranted { id, owner: state.owner });
        }
    }

    fn watch(&mut self, blocker: LockId, id: WaitId) {
        if let Some(wait) = self.waits.get_mut(&id) {
            wait.watching = Some(blocker);
            self.watchers.insert((blocker, id));
        }
    }

    fn unwatch(&mut self, id: WaitId) {
        if let Some(blocker) = self.waits.get_mut(&id).and_then(|wait| wait.watching.take()) {
            self.watchers.remove(&(blocker, id));
        }
    }
}
