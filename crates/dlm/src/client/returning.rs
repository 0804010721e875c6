//! Returning locks: after callbacks, by age, because of the bound, or because they were lost.
//!
//! Owns: the steps of a lock from usable to the cancel message. Does not own: the users of a lock (`holding`).
//!
//! Two locks of one client may overlap. Bytes that another usable write lock covers may stay dirty, so they are not
//! flushed. Bytes that any other lock in the table covers may stay cached, so they are not dropped. A lock leaves the
//! table when the action to drop its data is returned to the caller. So of two overlapping locks that are being
//! returned, the later one drops the bytes that they share.

use super::{CANCEL_BATCH, CallbackPlan, HeldLock, LockAction, LockCache, Stage};
use crate::mode::{LockId, Mode};
use crate::tree::Entry;
use amphi_types::{ByteRange, ObjectId, RangeSet, SessionId};

impl LockCache {
    /// The server calls a lock back.
    pub fn callback(&mut self, now_ns: u64, id: LockId, object: ObjectId) -> CallbackPlan {
        self.now_ns = self.now_ns.max(now_ns);
        if let Some(held) = self.locks.get_mut(&id) {
            held.urgent = true;
            if held.stage != Stage::Usable {
                return CallbackPlan::Underway;
            }
            let (users, drop) = (held.users, held.range);
            let flush = if held.mode == Mode::Write { drop } else { ByteRange::new(drop.start, drop.start) };
            self.close(id);
            return CallbackPlan::Started { users, flush, drop };
        }
        if self.cancels.contains(&id) {
            self.cancels_due_ns = Some(0);
            return CallbackPlan::Underway;
        }
        let newest = self.objects.get(&object).and_then(|locks| locks.asked.last().copied());
        match newest {
            Some(newest) => {
                self.object(object).early.insert(id, newest);
                CallbackPlan::BeforeGrant
            }
            None => CallbackPlan::Gone,
        }
    }

    /// All dirty data that the last [`LockAction::Flush`] of this lock named is on the target, or was lost with an
    /// error that its writers will get.
    pub fn flushed(&mut self, id: LockId) {
        if let Some(held) = self.locks.get_mut(&id)
            && held.stage == Stage::Flushing
        {
            held.stage = Stage::ToDrop;
            self.ready.push_back(id);
        }
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<LockAction> {
        while let Some(id) = self.ready.pop_front() {
            let Some(held) = self.locks.get_mut(&id) else { continue };
            let (object, range) = (held.object, held.range);
            match held.stage {
                Stage::ToFlush => {
                    held.stage = Stage::Flushing;
                    let ranges = self.beyond_other_locks(id, object, range, false);
                    if !ranges.is_empty() {
                        return Some(LockAction::Flush { id, object, ranges });
                    }
                    self.flushed(id);
                }
                Stage::ToDrop => {
                    let (urgent, lost, mode) = (held.urgent, held.lost, held.mode);
                    let ranges = self.beyond_other_locks(id, object, range, true);
                    self.locks.remove(&id);
                    if let Some(locks) = self.objects.get_mut(&object) {
                        self.forest.remove(&mut locks.closing, range.start, id);
                    }
                    self.forget_unused(object);
                    if !lost {
                        self.queue_cancel(id, urgent);
                    }
                    if !ranges.is_empty() {
                        return Some(LockAction::Drop { object, mode, ranges, discard_dirty: lost });
                    }
                }
                Stage::Usable | Stage::Closing | Stage::Flushing => {}
            }
        }
        let due = self.cancels_due_ns.is_some_and(|due_ns| due_ns <= self.now_ns);
        let enough = self.limits.cancel_batch.clamp(1, CANCEL_BATCH);
        if due || self.cancels.len() >= enough {
            let most = if enough == 1 { 1 } else { CANCEL_BATCH };
            return Some(LockAction::Cancel { ids: self.take_cancels(most) });
        }
        None
    }

    /// Takes up to `max` returned locks, which the next message to the target can carry.
    pub fn take_cancels(&mut self, max: usize) -> Vec<LockId> {
        let mut ids = Vec::with_capacity(max.min(self.cancels.len()));
        while ids.len() < max
            && let Some(id) = self.cancels.pop_first()
        {
            ids.push(id);
        }
        if self.cancels.is_empty() {
            self.cancels_due_ns = None;
        }
        ids
    }

    /// Lets time pass: returns aged locks, and sends cancels that were delayed.
    pub fn tick(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.trim(now_ns);
    }

    /// When [`LockCache::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<u64> {
        let aged = self.by_age.first().map(|&(stamp_ns, _)| stamp_ns.saturating_add(self.limits.max_age_ns));
        aged.into_iter().chain(self.cancels_due_ns).min()
    }

    /// Returns a lock without a callback, for instance because its file was removed.
    pub fn give_back(&mut self, id: LockId) {
        if self.locks.get(&id).is_some_and(|held| held.stage == Stage::Usable) {
            self.close(id);
        }
    }

    /// Every lock that is held, to be presented to a restarted server. Cancels that were not sent are forgotten: that
    /// server never knew the locks, or it restored them for an earlier presentation whose answer was lost, and releases
    /// what this one does not name. Unanswered requests are sent again by the caller's message layer.
    pub fn represent(&mut self) -> Vec<HeldLock> {
        self.cancels.clear();
        self.cancels_due_ns = None;
        for locks in self.objects.values_mut() {
            locks.early.clear();
        }
        let lock = |(&id, held): (&LockId, &super::Held)| {
            let (object, mode, range, group) = (held.object, held.mode, held.range, held.group);
            (!held.lost).then_some(HeldLock { id, object, mode, range, group })
        };
        self.locks.iter().filter_map(lock).collect()
    }

    /// Called when the restarted server has restored a lock of [`LockCache::represent`]. If the lock was returned since
    /// then, its cancel reached a server that had not restored it yet, so it is sent again.
    pub fn restored(&mut self, id: LockId) {
        if !self.locks.contains_key(&id) {
            self.queue_cancel(id, true);
        }
    }

    /// The server no longer knows the lock (it refused to restore it). The lock gets no new users, and its data is
    /// dropped without a flush, as soon as it has no users. Returns the lock's object if the lock was held.
    pub fn lose(&mut self, id: LockId) -> Option<ObjectId> {
        let held = self.locks.get_mut(&id)?;
        let object = held.object;
        held.lost = true;
        match held.stage {
            Stage::Usable => self.close(id),
            // The entry of the lock in `ready`, or the coming call of `flushed`, leads to the drop.
            Stage::ToFlush => held.stage = Stage::ToDrop,
            Stage::Closing | Stage::Flushing | Stage::ToDrop => {}
        }
        Some(object)
    }

    /// Returns whether the lock is no longer held, or the server does not know it any more, although it may still have
    /// users.
    pub fn is_lost(&self, id: LockId) -> bool {
        self.locks.get(&id).is_none_or(|held| held.lost)
    }

    /// Called when the server evicted this client, so every lock and request is void.
    pub fn lose_all(&mut self) {
        self.represent();
        let ids: Vec<LockId> = self.locks.keys().copied().collect();
        for id in ids {
            self.lose(id);
        }
        let requests: Vec<_> = self.asked.keys().copied().collect();
        requests.into_iter().for_each(|request| self.withdraw(request));
    }

    pub(super) fn queue_cancel(&mut self, id: LockId, urgent: bool) {
        self.cancels.insert(id);
        let due_ns = if urgent { 0 } else { self.now_ns.saturating_add(self.limits.cancel_linger_ns) };
        self.cancels_due_ns = Some(self.cancels_due_ns.map_or(due_ns, |before_ns| before_ns.min(due_ns)));
    }

    /// Begins to return a lock. From here on the lock gets no new users.
    fn close(&mut self, id: LockId) {
        let Some(held) = self.locks.get_mut(&id) else { return };
        held.stage = Stage::Closing;
        // Other mounts wait for the end of a group without sending a callback.
        held.urgent |= held.group.is_some();
        self.by_age.remove(&(held.stamp_ns, id));
        let (users, object, range, mode) = (held.users, held.object, held.range, held.mode);
        if let Some(locks) = self.objects.get_mut(&object) {
            self.forest.remove(&mut locks.usable[usize::from(mode.raw())], range.start, id);
            self.forest.insert(&mut locks.closing, Entry { range, id, session: SessionId(0) }, false);
        }
        if users == 0 {
            self.close_unused(id);
        }
    }

    /// Called when the last user of a closing lock is done.
    pub(super) fn close_unused(&mut self, id: LockId) {
        if let Some(held) = self.locks.get_mut(&id) {
            held.stage = if held.mode == Mode::Write && !held.lost { Stage::ToFlush } else { Stage::ToDrop };
            self.ready.push_back(id);
        }
    }

    /// Returns aged locks, and the oldest beyond the bound. Locks in use are skipped.
    pub(super) fn trim(&mut self, now_ns: u64) {
        for _ in 0..self.limits.trim_batch {
            let Some(&(stamp_ns, id)) = self.by_age.first() else { return };
            let aged = now_ns.saturating_sub(stamp_ns) >= self.limits.max_age_ns;
            if !aged && self.by_age.len() <= self.limits.max_locks {
                return;
            }
            let Some(held) = self.locks.get_mut(&id) else { return };
            let used_ns = if held.users > 0 { now_ns } else { held.last_used_ns };
            if used_ns > stamp_ns {
                self.by_age.pop_first();
                held.stamp_ns = used_ns;
                self.by_age.insert((used_ns, id));
            } else if held.users == 0 {
                self.aged += 1;
                self.close(id);
            } else {
                return;
            }
        }
    }

    /// The parts of `range` that are covered by no other lock of the table (`any`), or by no other usable write lock.
    fn beyond_other_locks(&self, id: LockId, object: ObjectId, range: ByteRange, any: bool) -> Vec<ByteRange> {
        let Some(locks) = self.objects.get(&object) else { return vec![range] };
        let [read, write] = locks.usable;
        let mut covered = RangeSet::new();
        let mut cover = |entry: &Entry| {
            if entry.id != id {
                covered.insert(entry.range);
            }
        };
        self.forest.visit(write, range, &mut cover);
        if any {
            self.forest.visit(read, range, &mut cover);
            self.forest.visit(locks.closing, range, &mut cover);
        }
        covered.gaps(range).into_vec()
    }
}
