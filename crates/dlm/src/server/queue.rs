//! The fair queue of lock requests: enqueue, cancel, and which request can be granted next.
//!
//! Owns: the states of a request: enqueued, waiting, granted, and removed. Does not own: how far a grant grows
//! (`grant`).
//!
//! A request waits for every conflicting granted lock and every earlier conflicting request. The request watches only
//! one of these. When that lock or request is gone, the request is checked again, and either watches another one or is
//! granted. So the return of a lock costs time for the requests that it wakes, not for the length of the queue. A
//! watched request that is granted stays watched, because it still conflicts.

use super::{Action, Dropped, GROUP, Lock, LockRequest, LockSpace, Object, Refusal, State, class, conflicting, party};
use crate::mode::{Growth, LockId, Mode, Owner};
use crate::tree::{Entry, Search};
use amphi_types::{ByteRange, ObjectId, RangeSet, SessionId};
use std::collections::BTreeSet;

impl LockSpace {
    /// Requests a lock. It is granted at once or later, always through [`LockSpace::poll_action`]. Conflicting requests
    /// are granted in the order of their arrival.
    pub fn enqueue(&mut self, now_ns: u64, request: LockRequest) -> Result<LockId, Refusal> {
        self.enter(now_ns, request, true)
    }

    /// Lock-ahead: granted at once exactly as requested, or refused with [`Refusal::WouldBlock`], which counts as one
    /// conflict. No callback is sent for it.
    pub fn enqueue_ahead(&mut self, now_ns: u64, request: LockRequest) -> Result<LockId, Refusal> {
        self.enter(now_ns, LockRequest { growth: Growth::Exact, ..request }, false)
    }

    fn enter(&mut self, now_ns: u64, request: LockRequest, waits: bool) -> Result<LockId, Refusal> {
        let LockRequest { owner, object, mode, range, growth } = request;
        if range.is_empty() {
            return Err(Refusal::EmptyRange);
        }
        if self.is_full_for(owner) {
            return Err(Refusal::Full);
        }
        let owner = self.as_member(object, self.as_holder(object, owner, range));
        let (mode, range) = match owner.group() {
            Some(_) => (Mode::Write, ByteRange::ALL),
            None => (mode, widen(range, self.limits.granularity_bytes)),
        };
        self.counts.requests += 1;
        let blindly = !waits && self.planted_grant_ahead();
        if !waits && !blindly && self.is_blocked(owner, object, mode, range) {
            self.contention.conflicts(now_ns, object, 1);
            return Err(Refusal::WouldBlock);
        }
        self.sequence += 1;
        let id = LockId::new(self.generation, self.sequence);
        self.locks.insert(id, Lock::new(owner, object, mode, range, growth, State::Waiting));
        self.count_in(owner);
        self.sessions.insert((owner.session(), id));

        let view = *self.objects.entry(object).or_insert(Object::NEW);
        if waits {
            self.note_asking(now_ns, object, owner);
        }
        self.note_conflicts(now_ns, &view, &LockRequest { owner, object, mode, range, growth });

        match self.blocker(&view, id).filter(|_| !blindly) {
            None => self.grant(now_ns, id),
            Some(blocker) => {
                self.watch(blocker, id);
                let entry = self.entry(id);
                let Some(tables) = self.objects.get_mut(&object) else { unreachable!("the object was entered above") };
                self.forest.insert(&mut tables.waiting[class(owner, mode)], entry, false);
                self.call_back_conflicting(now_ns, object, owner, mode, range);
            }
        }
        Ok(id)
    }

    /// The client returns locks, or withdraws requests. Ids that do not belong to the session, or are already gone, are
    /// ignored. They are the normal result of a race between a cancel and an eviction. Returns the number of locks and
    /// requests that were removed.
    pub fn cancel(&mut self, now_ns: u64, session: SessionId, ids: &[LockId]) -> usize {
        let of_session = |lock: &Lock| !lock.owner.is_direct() && lock.owner.session() == session;
        let own = |id: &LockId| self.locks.get(id).is_some_and(of_session);
        let ids: BTreeSet<LockId> = ids.iter().copied().filter(own).collect();
        self.remove(now_ns, &ids);
        ids.len()
    }

    /// Called when a direct request is done, or was given up while it waited.
    pub fn release(&mut self, now_ns: u64, id: LockId) {
        if self.locks.get(&id).is_some_and(|lock| lock.owner.is_direct()) {
            self.remove(now_ns, &BTreeSet::from([id]));
        }
    }

    /// Called when the session is over: its cached locks and all its waiting requests are dropped. Its granted direct
    /// requests remain until they are released, because their I/O may be on its way to the disk. For the same reason
    /// the caller first waits for writes that the session sent under cached locks and that were already submitted.
    pub fn drop_session(&mut self, now_ns: u64, session: SessionId) -> Dropped {
        let mut dropped = Dropped::default();
        let mut ids = BTreeSet::new();
        for &(_, id) in self.sessions.range((session, LockId(0))..=(session, LockId(u64::MAX))) {
            let lock = &self.locks[&id];
            if self.planted_leave(lock) {
                continue;
            }
            match (lock.state, lock.owner) {
                (State::Waiting, _) => dropped.requests.push(id),
                (State::Granted, Owner::Cached(_) | Owner::Group(..)) => dropped.locks += 1,
                (State::Granted, Owner::Direct(_) | Owner::Holder(_) | Owner::Member(..)) => continue,
            }
            ids.insert(id);
        }
        self.remove(now_ns, &ids);
        dropped
    }

    /// Restores a cached or group lock that a client held before the lock server restarted, under its old id. It has to
    /// be called before new requests are accepted.
    pub fn restore(
        &mut self,
        owner: Owner,
        id: LockId,
        object: ObjectId,
        mode: Mode,
        range: ByteRange,
    ) -> Result<(), Refusal> {
        if range.is_empty() {
            return Err(Refusal::EmptyRange);
        }
        let same = |lock: &Lock| {
            (lock.owner, lock.state, lock.object) == (owner, State::Granted, object)
                && lock.mode.covers(mode)
                && lock.range.contains(&range)
        };
        if self.locks.get(&id).is_some_and(same) {
            return Ok(());
        }
        if id.generation() >= self.generation
            || self.locks.contains_key(&id)
            || self.is_excluded(owner, object, mode, range)
        {
            return Err(Refusal::Conflict);
        }
        if self.is_full_for(owner) {
            return Err(Refusal::Full);
        }
        self.insert_granted(id, owner, object, mode, range);
        Ok(())
    }

    /// As [`LockSpace::restore`], but under a new id, with which the client continues. It has to be called before new
    /// requests are accepted.
    pub fn take_in(&mut self, owner: Owner, object: ObjectId, mode: Mode, range: ByteRange) -> Result<LockId, Refusal> {
        if range.is_empty() {
            return Err(Refusal::EmptyRange);
        }
        if self.is_excluded(owner, object, mode, range) {
            return Err(Refusal::Conflict);
        }
        if self.is_full_for(owner) {
            return Err(Refusal::Full);
        }
        self.sequence += 1;
        let id = LockId::new(self.generation, self.sequence);
        self.insert_granted(id, owner, object, mode, range);
        Ok(id)
    }

    fn insert_granted(&mut self, id: LockId, owner: Owner, object: ObjectId, mode: Mode, range: ByteRange) {
        self.locks.insert(id, Lock::new(owner, object, mode, range, Growth::Exact, State::Granted));
        self.count_in(owner);
        self.sessions.insert((owner.session(), id));
        let tables = self.objects.entry(object).or_insert(Object::NEW);
        self.forest.insert(&mut tables.granted[class(owner, mode)], Entry { range, id, session: party(owner) }, false);
        if let Owner::Group(session, group) = owner {
            self.note_member(object, session, group);
        }
    }

    /// Returns whether the table has no room for one more lock or request of this owner.
    fn is_full_for(&self, owner: Owner) -> bool {
        if owner.is_direct() {
            return self.direct_count >= self.limits.max_direct;
        }
        let own = self.cached.get(&owner.session()).copied().unwrap_or(0);
        self.locks.len() - self.direct_count >= self.limits.max_locks || own >= self.limits.max_locks_per_session
    }

    fn count_in(&mut self, owner: Owner) {
        match owner.is_direct() {
            true => self.direct_count += 1,
            false => *self.cached.entry(owner.session()).or_default() += 1,
        }
    }

    fn count_out(&mut self, owner: Owner) {
        if owner.is_direct() {
            self.direct_count -= 1;
            return;
        }
        let Some(own) = self.cached.get_mut(&owner.session()) else { unreachable!("its lock was counted") };
        *own -= 1;
        if *own == 0 {
            self.cached.remove(&owner.session());
        }
    }

    /// Returns whether a lock or request of another owner conflicts with this lock.
    fn is_excluded(&self, owner: Owner, object: ObjectId, mode: Mode, range: ByteRange) -> bool {
        let view = self.objects.get(&object).copied().unwrap_or(Object::NEW);
        self.waiting_conflict(&view, owner, mode, range, LockId(u64::MAX)).is_some()
            || self.granted_conflict(&view, owner, mode, range).is_some()
    }

    /// Returns whether a new request would have to wait.
    fn is_blocked(&self, owner: Owner, object: ObjectId, mode: Mode, range: ByteRange) -> bool {
        let view = self.objects.get(&object).copied().unwrap_or(Object::NEW);
        self.blocker_of(&view, owner, mode, range, LockId(u64::MAX)).is_some()
    }

    /// Counts the conflicts of a new request.
    fn note_conflicts(&mut self, now_ns: u64, view: &Object, request: &LockRequest) {
        let cap = self.contention.cap();
        let LockRequest { owner, object, mode, range, .. } = *request;
        // Requests that wait for a group would gain nothing by going direct.
        if cap > 0 && matches!(owner, Owner::Cached(_) | Owner::Direct(_)) {
            let conflicts = self.count_conflicts(view, owner, mode, range, cap);
            self.contention.conflicts(now_ns, object, conflicts);
        }
    }

    /// Notes that a session requests bytes of the object, perhaps again.
    fn note_asking(&mut self, now_ns: u64, object: ObjectId, owner: Owner) {
        if let Owner::Cached(session) | Owner::Direct(session) = owner {
            self.contention.asked(now_ns, object, session);
        }
    }

    /// Number of conflicting granted locks and waiting requests, up to `cap`. Granted locks count with their grown
    /// range, because false sharing is contention too. Locks and requests of the same session do not count, because
    /// contention means that other sessions want the object. (If locks cover whole pages, the direct requests of a
    /// session may share a page.)
    fn count_conflicts(&self, view: &Object, owner: Owner, mode: Mode, range: ByteRange, cap: usize) -> usize {
        let mut count = 0;
        for (class, exempt) in conflicting(owner, mode).filter(|&(class, _)| class < GROUP) {
            for tree in [view.granted[class], view.waiting[class]] {
                count += self.forest.count(tree, &Search::overlap(range, exempt.or(Some(party(owner)))), cap - count);
            }
        }
        count
    }

    /// One of the locks or requests for which the request has to wait. If there are several such requests, it is the
    /// latest, so that many requests behind one lock form a chain in which each release wakes one of them.
    fn blocker(&self, view: &Object, id: LockId) -> Option<LockId> {
        let lock = &self.locks[&id];
        self.blocker_of(view, lock.owner, lock.mode, lock.range, id)
    }

    /// Works as `blocker`, for a request that takes the place in the queue that it would have if it had been made at
    /// `id`.
    fn blocker_of(&self, view: &Object, owner: Owner, mode: Mode, range: ByteRange, id: LockId) -> Option<LockId> {
        #[cfg(test)]
        if self.planted_bug == Some(crate::tests::PlantedBug::JumpQueue) {
            return self.granted_conflict(view, owner, mode, range);
        }
        let waiting = match owner {
            Owner::Group(_, group) if self.in_force(view) == Some(group) => return None,
            // All others wait for the end of the group, which waits for its members.
            Owner::Member(..) => self.waiting_member(view, owner, mode, range, id),
            Owner::Holder(_) => None,
            _ => self.waiting_conflict(view, owner, mode, range, id),
        };
        waiting.or_else(|| self.granted_conflict(view, owner, mode, range)).filter(|_| !self.planted_miss())
    }

    /// The owner of a `Holder` request: `Direct` if the session does not hold cached locks on all of the bytes.
    fn as_holder(&self, object: ObjectId, owner: Owner, range: ByteRange) -> Owner {
        let Owner::Holder(session) = owner else { return owner };
        let mut covered = RangeSet::new();
        if let Some(view) = self.objects.get(&object) {
            for tree in &view.granted[..2] {
                self.forest.visit(*tree, range, &mut |entry| {
                    if entry.session == session {
                        covered.insert(entry.range);
                    }
                });
            }
        }
        if covered.gaps(range).is_empty() { owner } else { Owner::Direct(session) }
    }

    #[cfg(test)]
    fn planted(&self, bug: crate::tests::PlantedBug) -> bool {
        self.planted_bug == Some(bug)
    }

    #[cfg(test)]
    fn planted_miss(&self) -> bool {
        self.planted(crate::tests::PlantedBug::MissConflict) && self.sequence.is_multiple_of(3)
    }

    #[cfg(test)]
    fn planted_grant_ahead(&self) -> bool {
        self.planted(crate::tests::PlantedBug::GrantAhead)
    }

    #[cfg(test)]
    fn planted_leave(&self, lock: &Lock) -> bool {
        let written = lock.state == State::Granted && lock.mode == Mode::Write;
        self.planted(crate::tests::PlantedBug::LeaveLocks) && written
    }

    #[cfg(not(test))]
    fn planted_miss(&self) -> bool {
        false
    }

    #[cfg(not(test))]
    fn planted_grant_ahead(&self) -> bool {
        false
    }

    #[cfg(not(test))]
    fn planted_leave(&self, _lock: &Lock) -> bool {
        false
    }

    pub(super) fn unwatch(&mut self, id: LockId) {
        let watched = self.locks.get_mut(&id).and_then(|lock| lock.watching.take());
        if let Some(lock) = watched.and_then(|watched| self.locks.get_mut(&watched)) {
            lock.watchers.remove(&id);
        }
    }

    fn watch(&mut self, blocker: LockId, id: LockId) {
        self.unwatch(id);
        if let Some(lock) = self.locks.get_mut(&blocker) {
            lock.watchers.insert(id);
        }
        if let Some(lock) = self.locks.get_mut(&id) {
            lock.watching = Some(blocker);
        }
    }

    /// Calls back every granted cached lock that conflicts with a waiting request.
    fn call_back_conflicting(&mut self, now_ns: u64, object: ObjectId, owner: Owner, mode: Mode, range: ByteRange) {
        let view = self.objects[&object];
        let mut found = Vec::new();
        for (class, exempt) in conflicting(owner, mode).filter(|&(class, _)| class < 2) {
            self.forest.call_back(view.granted[class], &Search::overlap(range, exempt), &mut found);
        }
        for id in found {
            self.send_callback(now_ns, id, owner, mode, range);
        }
    }

    /// Calls a lock back for a request of `asker`.
    pub(super) fn send_callback(
        &mut self,
        now_ns: u64,
        id: LockId,
        asker: Owner,
        wanted_mode: Mode,
        wanted_range: ByteRange,
    ) {
        let deadline_ns = now_ns.saturating_add(self.limits.callback_deadline_ns);
        let Some(lock) = self.locks.get_mut(&id) else { return };
        lock.deadline_ns = Some(deadline_ns);
        let (session, object) = (lock.owner.session(), lock.object);
        self.deadlines.insert((deadline_ns, id));
        // Requests that wait for a group would gain nothing by going direct.
        if asker.group().is_none() {
            self.contention.called_back(now_ns, object, session);
        }
        let contended = self.contended(now_ns, object);
        #[cfg(test)]
        if self.planted_bug == Some(crate::tests::PlantedBug::LoseCallback) {
            return;
        }
        self.actions.push_back(Action::Callback { id, session, object, wanted_mode, wanted_range, contended });
    }

    /// Removes locks and requests, and then checks the requests that watched them, in the order of their arrival.
    fn remove(&mut self, now_ns: u64, ids: &BTreeSet<LockId>) {
        let mut woken = BTreeSet::new();
        let mut left = BTreeSet::new();
        for id in ids {
            let Some(lock) = self.locks.remove(id) else { continue };
            self.count_out(lock.owner);
            self.sessions.remove(&(lock.owner.session(), *id));
            if let Some(watched) = lock.watching.and_then(|watched| self.locks.get_mut(&watched)) {
                watched.watchers.remove(id);
            }
            if let Some(deadline_ns) = lock.deadline_ns {
                self.deadlines.remove(&(deadline_ns, *id));
                self.contention.free(now_ns, lock.object, lock.owner.session());
            }
            let Some(tables) = self.objects.get_mut(&lock.object) else { continue };
            let trees = if lock.state == State::Granted { &mut tables.granted } else { &mut tables.waiting };
            let found = self.forest.remove(&mut trees[class(lock.owner, lock.mode)], lock.range.start, *id);
            debug_assert!(found, "every lock is in its tree");
            if tables.is_unused() {
                self.objects.remove(&lock.object);
            }
            woken.extend(lock.watchers);
            if lock.state == State::Granted && lock.owner.group().is_some() && self.leave(lock.object, lock.owner) {
                left.insert((lock.object, lock.owner.session()));
            }
        }
        self.reclass(now_ns, &left);
        for id in woken {
            self.look_again(now_ns, id);
        }
    }

    pub(super) fn look_again(&mut self, now_ns: u64, id: LockId) {
        let Some(lock) = self.locks.get(&id).filter(|lock| lock.state == State::Waiting) else { return };
        let view = self.objects[&lock.object];
        match self.blocker(&view, id) {
            Some(blocker) => self.watch(blocker, id),
            None => {
                self.leave_queue(id);
                self.grant(now_ns, id);
            }
        }
    }

    /// Removes a request that is about to be granted from the waiting ones.
    pub(super) fn leave_queue(&mut self, id: LockId) {
        let Some(lock) = self.locks.get(&id) else { return };
        let Some(tables) = self.objects.get_mut(&lock.object) else { return };
        self.forest.remove(&mut tables.waiting[class(lock.owner, lock.mode)], lock.range.start, id);
        self.counts.waited += 1;
    }
}

/// The smallest range of whole units around `range`. The end of the address space is not widened.
fn widen(range: ByteRange, unit_bytes: u64) -> ByteRange {
    let mask = unit_bytes - 1;
    let end = range.end.checked_add(mask).map_or(u64::MAX, |end| end & !mask);
    ByteRange::new(range.start & !mask, end)
}
