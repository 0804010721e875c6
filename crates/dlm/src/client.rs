//! `LockCache`: the extent locks that a client holds of one target.
//!
//! Owns: which ranges of the target's objects the client holds, who uses them right now, and the return of each lock to
//! the server. Does not own: the cached data (the returned actions say what to flush and what to drop), or messages.
//!
//! Invariants, checked by the model tests:
//!
//! * Data is cached only under a lock that is held. A lock leaves this table after its data was flushed and dropped.
//!   Only after that is its cancel message returned for sending.
//! * A lock that is being returned gets no new users, so a callback waits only for I/O in progress.
//! * A granted lock is pinned for the caller that requested it. So each lock serves at least once, however fast its
//!   callback follows, even if the callback arrives first.
//! * Every callback is answered by exactly one cancel, unless that cancel was already on its way.
//!
//! Numbers: [`LockCache::pin`] is called for each cached read and write, so it is two lookups and one short descent
//! without allocation. For the same reason the order by age is corrected later, not at each use. Unused locks are
//! returned after 600 s, at most 16 for each trim. A lock takes about 300 bytes.

mod holding;
mod near;
mod returning;

use crate::mode::{GroupId, LockId, Mode};
use crate::tree::{Forest, Tree};
use amphi_types::{ByteRange, ObjectId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most ids in one cancel message.
pub const CANCEL_BATCH: usize = 512;

/// Tunables of a lock cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    /// Most locks that are held. If there are more, those that were unused for the longest time are returned.
    pub max_locks: usize,
    /// An unused lock is returned after this time.
    pub max_age_ns: u64,
    /// Locks that one trim checks.
    pub trim_batch: usize,
    /// Cancels for which no mount waits are sent together after this time, unless another message carries them.
    pub cancel_linger_ns: u64,
    /// This many returned locks make a cancel message leave. With 1 each lock is sent in its own message, otherwise up
    /// to [`CANCEL_BATCH`] together. A mount that locks all of an object has to call back each lock whose cancel was
    /// not sent yet.
    pub cancel_batch: usize,
}

impl Default for CacheLimits {
    fn default() -> Self {
        CacheLimits {
            max_locks: 65_536,
            max_age_ns: 600_000_000_000,
            trim_batch: 16,
            cancel_linger_ns: 1_000_000_000,
            cancel_batch: 16,
        }
    }
}

/// A lock in use. A `LockRef` is not a guard: pass it to [`LockCache::unpin`] exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[must_use = "a pinned lock that is never unpinned is never given back"]
pub struct LockRef {
    /// The lock's id, which I/O under the lock names.
    pub id: LockId,
}

/// Whether there is a lock for an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// One lock covers the I/O, and is pinned.
    Hit(LockRef),
    /// No single lock covers it. Request one ([`LockCache::ask`]), or send a direct request.
    Miss,
}

/// Number of a request for a lock, chosen by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// The outcome of an answered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// The lock is held, and pinned for the caller that requested it.
    Pinned(LockRef),
    /// No caller waits for the lock any more. The lock will be returned without further calls.
    Unwanted,
}

/// The state of a lock for which a callback arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackPlan {
    /// The lock gets no new users. When its present users are done, a flush of at most `flush` and a drop of at most
    /// `drop` are requested. Then the lock is returned.
    Started {
        /// Number of I/Os in progress under the lock.
        users: u32,
        /// Bytes that may be dirty and have to be written. The range is empty for a read lock.
        flush: ByteRange,
        /// Bytes whose cached data may have to be dropped.
        drop: ByteRange,
    },
    /// The lock is being returned already.
    Underway,
    /// The callback arrived before the grant, and is remembered.
    BeforeGrant,
    /// The lock was returned already; its cancel message is the answer.
    Gone,
}

/// The next action of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockAction {
    /// Write dirty data of these ranges to the target under this lock, then call [`LockCache::flushed`]. A flush needs
    /// no lock of its own and must not wait for one. It waits only for an earlier flush of the same bytes, which might
    /// otherwise land after it.
    Flush {
        /// The lock.
        id: LockId,
        /// The object of the lock.
        object: ObjectId,
        /// Ranges that no other held write lock covers.
        ranges: Vec<ByteRange>,
    },
    /// Drop cached data of these ranges now, before the next call to the lock cache.
    Drop {
        /// The object of the lock.
        object: ObjectId,
        /// The lock's mode.
        mode: Mode,
        /// Ranges that no other held lock covers.
        ranges: Vec<ByteRange>,
        /// The lock was lost, so dirty data is dropped too.
        discard_dirty: bool,
    },
    /// Report to the server that these locks are returned.
    Cancel {
        /// The locks, at most [`CANCEL_BATCH`].
        ids: Vec<LockId>,
    },
}

/// A lock to present to a server that has restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The lock's id, which does not change.
    pub id: LockId,
    /// The object of the lock.
    pub object: ObjectId,
    /// The mode of the lock.
    pub mode: Mode,
    /// The range of the lock.
    pub range: ByteRange,
    /// The group, if it is a group lock.
    pub group: Option<GroupId>,
}

/// Stages of a lock, in this order; `docs/locking/extent_locks.md` has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The lock is held and usable.
    Usable,
    /// The lock gets no new users, and waits for those in progress.
    Closing,
    /// The lock has no users, and the action to flush it was not returned to the caller yet.
    ToFlush,
    /// The action to flush it was returned to the caller, and a call of `flushed` will follow.
    Flushing,
    /// The lock is flushed, and the action to drop its data was not returned to the caller yet.
    ToDrop,
}

#[cfg_attr(test, derive(Clone))]
struct Held {
    object: ObjectId,
    mode: Mode,
    range: ByteRange,
    stage: Stage,
    users: u32,
    /// Group of a group lock. Such a lock is never called back, so its return is not delayed.
    group: Option<GroupId>,
    /// The server waits for the lock.
    urgent: bool,
    /// The server does not know the lock any more.
    lost: bool,
    last_used_ns: u64,
    /// The key of the lock in `by_age`, a lower bound of the time of its last use.
    stamp_ns: u64,
}

#[derive(Clone, Copy)]
struct Asked {
    object: ObjectId,
    mode: Mode,
    range: ByteRange,
}

#[cfg_attr(test, derive(Clone))]
struct ObjectLocks {
    /// Usable locks by mode.
    usable: [Tree; 2],
    /// Locks that are being returned.
    closing: Tree,
    /// Unanswered requests.
    asked: BTreeSet<RequestId>,
    /// Callbacks for locks that are not known yet, with the newest request at that time. Only requests up to that one
    /// can be answered with the lock, so the entry is removed when they have been answered.
    early: BTreeMap<LockId, RequestId>,
}

impl ObjectLocks {
    fn new() -> ObjectLocks {
        ObjectLocks { usable: [Tree::EMPTY; 2], closing: Tree::EMPTY, asked: BTreeSet::new(), early: BTreeMap::new() }
    }

    fn is_unused(&self) -> bool {
        self.usable.iter().all(|tree| tree.is_empty()) && self.closing.is_empty() && self.asked.is_empty()
    }
}

/// The locks that one client holds of one target: a state machine without I/O.
#[cfg_attr(test, derive(Clone))]
pub struct LockCache {
    limits: CacheLimits,
    forest: Forest,
    objects: BTreeMap<ObjectId, ObjectLocks>,
    locks: BTreeMap<LockId, Held>,
    next_request: u64,
    asked: BTreeMap<RequestId, Asked>,
    /// Usable locks by a lower bound of the time of their last use.
    by_age: BTreeSet<(u64, LockId)>,
    /// Locks in stage `ToFlush` or `ToDrop`, each listed once.
    ready: VecDeque<LockId>,
    /// Returned locks whose cancel was not sent yet.
    cancels: BTreeSet<LockId>,
    /// When these cancels have to be sent. It is `None` while there are no such cancels.
    cancels_due_ns: Option<u64>,
    now_ns: u64,
    /// Locks that were returned by age or by the bound, since the last `take_aged`.
    aged: u64,
}

impl LockCache {
    /// An empty cache.
    pub fn new(limits: CacheLimits) -> LockCache {
        LockCache {
            limits,
            forest: Forest::default(),
            objects: BTreeMap::new(),
            locks: BTreeMap::new(),
            next_request: 0,
            asked: BTreeMap::new(),
            by_age: BTreeSet::new(),
            ready: VecDeque::new(),
            cancels: BTreeSet::new(),
            cancels_due_ns: None,
            now_ns: 0,
            aged: 0,
        }
    }

    /// Sets limits that apply from now on.
    pub fn tune(&mut self, limits: CacheLimits) {
        self.limits = limits;
    }

    /// Number of locks that were returned by age or by the bound since the last call.
    pub fn take_aged(&mut self) -> u64 {
        std::mem::take(&mut self.aged)
    }

    /// Number of locks held, including those that are being returned.
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// Returns whether no lock is held.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Locks that the server waits for and that are still in use or being flushed.
    pub fn awaited(&self) -> Vec<LockId> {
        let busy = |held: &Held| held.urgent && matches!(held.stage, Stage::Closing | Stage::Flushing);
        self.locks.iter().filter(|(_, held)| busy(held)).map(|(id, _)| *id).collect()
    }

    /// Number of users of the lock.
    pub fn users(&self, id: LockId) -> u32 {
        self.locks.get(&id).map_or(0, |held| held.users)
    }

    fn object(&mut self, object: ObjectId) -> &mut ObjectLocks {
        self.objects.entry(object).or_insert_with(ObjectLocks::new)
    }

    fn forget_unused(&mut self, object: ObjectId) {
        if self.objects.get(&object).is_some_and(ObjectLocks::is_unused) {
            self.objects.remove(&object);
        }
    }
}

#[cfg(test)]
pub(crate) mod inspect {
    //! State that the model tests check.
    use super::*;

    /// The state of one lock, for comparison.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub(crate) struct Seen {
        pub id: LockId,
        pub object: ObjectId,
        pub mode: Mode,
        pub range: ByteRange,
        pub group: Option<GroupId>,
        /// 0 is usable.
        pub stage: u8,
        pub users: u32,
        pub urgent: bool,
    }

    impl LockCache {
        /// Locks in the table.
        pub(crate) fn seen(&self) -> Vec<Seen> {
            let seen = |(&id, held): (&LockId, &Held)| Seen {
                id,
                object: held.object,
                mode: held.mode,
                range: held.range,
                group: held.group,
                stage: held.stage as u8,
                users: held.users,
                urgent: held.urgent,
            };
            self.locks.iter().map(seen).collect()
        }

        /// Callbacks remembered before their grant, and cancels not yet sent.
        pub(crate) fn loose_ends(&self) -> (Vec<(LockId, u64)>, Vec<LockId>) {
            let early = self.objects.values().flat_map(|locks| locks.early.iter().map(|(&id, newest)| (id, newest.0)));
            let early = early.collect();
            (early, self.cancels.iter().copied().collect())
        }

        /// The sizes of everything that grows: tree nodes, objects, ages, requests.
        pub(crate) fn footprint(&self) -> [usize; 4] {
            [self.forest.len(), self.objects.len(), self.by_age.len(), self.asked.len()]
        }
    }
}
