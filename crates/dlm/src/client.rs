//! The lock cache of a client: one for each target it talks to.
//!
//! Owns: which ranges of the target's objects the client holds, who uses them right now, and the way of each lock back
//! to the server. Does not own: the cached data (it is told what to flush and what to drop) or messages.
//!
//! Invariants, checked by the model tests:
//! * data is cached only below a lock that is held: a lock leaves this table after its data was flushed and dropped,
//!   and its cancel message is handed out after that;
//! * a lock that is on its way back gets no new users, so a callback waits for I/O in progress only;
//! * an answer to a request is pinned for who asked, so each granted lock serves at least once however fast its
//!   callback follows, even if the callback arrives first;
//! * every callback is answered by exactly one cancel, unless that cancel was already on its way.
//!
//! Numbers: [`LockCache::pin`] is called for each cached read and write, so it is two lookups and one short descent,
//! without allocation; the age order is corrected lazily, not at each use. Unused locks are given back after 600 s,
//! in batches of 16 for each trim. About 300 bytes a lock.

mod holding;
mod near;
mod returning;

use crate::mode::{GroupId, LockId, Mode};
use crate::tree::{Forest, Tree};
use amphi_types::{ByteRange, ObjectId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Ids in one cancel message at most.
pub const CANCEL_BATCH: usize = 512;

/// Tunables of a lock cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    /// Locks held; beyond, those unused for longest are given back.
    pub max_locks: usize,
    /// An unused lock is given back after this time.
    pub max_age_ns: u64,
    /// Locks looked at by one trim.
    pub trim_batch: usize,
    /// Cancels that nobody waits for are sent together after this time, unless another message takes them along.
    pub cancel_linger_ns: u64,
    /// Locks given back that make a cancel message leave; 1: each leaves alone, otherwise up to [`CANCEL_BATCH`]
    /// together. Who locks all of an object asks back each that has not left yet.
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

/// A lock in use. Not a guard: give it to [`LockCache::unpin`] exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[must_use = "a pinned lock that is never unpinned is never given back"]
pub struct LockRef {
    /// The lock, to be named in I/O sent under it.
    pub id: LockId,
}

/// Whether a lock for an I/O is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// One lock covers the I/O; it is pinned.
    Hit(LockRef),
    /// None does: ask the server ([`LockCache::ask`]), or go direct.
    Miss,
}

/// Name of a request for a lock, chosen by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What became of an answered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// The lock is held and pinned for the one who asked.
    Pinned(LockRef),
    /// Nobody waits for it any more; it is given back by itself.
    Unwanted,
}

/// What a callback meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackPlan {
    /// The lock gets no new users. When the `users` of now are done, `flush` and then `drop` are asked for, at most;
    /// then it is given back.
    Started {
        /// I/Os in progress under the lock.
        users: u32,
        /// Bytes in which dirty data may have to be written; empty for a read lock.
        flush: ByteRange,
        /// Bytes whose cached data may have to go.
        drop: ByteRange,
    },
    /// It is on its way back already.
    Underway,
    /// The callback arrived before the grant; remembered.
    BeforeGrant,
    /// Already given back; the cancel message answers it.
    Gone,
}

/// What the client has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockAction {
    /// Write dirty data of these ranges to the target under this lock, then call [`LockCache::flushed`]. Flushes need
    /// no lock of their own and must not wait for one; they wait only for an earlier flush of the same bytes, which
    /// could land after them otherwise.
    Flush {
        /// The lock.
        id: LockId,
        /// Its object.
        object: ObjectId,
        /// Ranges that no other held write lock covers.
        ranges: Vec<ByteRange>,
    },
    /// Forget cached data of these ranges now, before the next call of the lock cache.
    Drop {
        /// Its object.
        object: ObjectId,
        /// The lock's mode.
        mode: Mode,
        /// Ranges that no other held lock covers.
        ranges: Vec<ByteRange>,
        /// The lock was lost, so dirty data goes too.
        discard_dirty: bool,
    },
    /// Tell the server that these locks are given back.
    Cancel {
        /// The locks, at most [`CANCEL_BATCH`].
        ids: Vec<LockId>,
    },
}

/// A lock to present to a server that has restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// Its id, which it keeps.
    pub id: LockId,
    /// Its object.
    pub object: ObjectId,
    /// Its mode.
    pub mode: Mode,
    /// Its range.
    pub range: ByteRange,
    /// Its group, if it is a group lock.
    pub group: Option<GroupId>,
}

/// Stages on the way of a lock, in this order; `docs/locking/extent_locks.md` has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Held, usable.
    Usable,
    /// No new users; waits for those in progress.
    Closing,
    /// No users; a flush is to be asked for.
    ToFlush,
    /// Waits for `flushed`.
    Flushing,
    /// Flushed; a drop is to be asked for.
    ToDrop,
}

#[cfg_attr(test, derive(Clone))]
struct Held {
    object: ObjectId,
    mode: Mode,
    range: ByteRange,
    stage: Stage,
    users: u32,
    /// A lock of a group: never called back, so it goes without delay when it goes.
    group: Option<GroupId>,
    /// The server waits for it.
    urgent: bool,
    /// The server no longer knows it.
    lost: bool,
    last_used_ns: u64,
    /// Its key in `by_age`.
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
    /// Locks on their way back.
    closing: Tree,
    /// Unanswered requests.
    asked: BTreeSet<RequestId>,
    /// Callbacks of locks not known yet, with the newest request at that time: only requests up to it can be answered
    /// by that lock, so the entry goes when they are.
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

/// Locks that one client holds of one target: a state machine without I/O.
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
    /// Locks in stage `ToFlush` or `ToDrop`, once each.
    ready: VecDeque<LockId>,
    /// Given back, not yet told to the server.
    cancels: BTreeSet<LockId>,
    /// When the cancels have to go; `None` while there are none.
    cancels_due_ns: Option<u64>,
    now_ns: u64,
    /// Locks given back by age or bound since they were counted last.
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

    /// Other limits from now on.
    pub fn tune(&mut self, limits: CacheLimits) {
        self.limits = limits;
    }

    /// Locks given back by age or bound since the last call.
    pub fn take_aged(&mut self) -> u64 {
        std::mem::take(&mut self.aged)
    }

    /// Number of locks held, those on their way back included.
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// Whether no lock is held.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Whether a lock of the object is held, asked for or on its way back.
    pub fn knows(&self, object: ObjectId) -> bool {
        self.objects.contains_key(&object)
    }

    /// Locks that the server waits for and that are still in use or being flushed.
    pub fn awaited(&self) -> Vec<LockId> {
        let busy = |held: &Held| held.urgent && matches!(held.stage, Stage::Closing | Stage::Flushing);
        self.locks.iter().filter(|(_, held)| busy(held)).map(|(id, _)| *id).collect()
    }

    /// Whether anybody uses the lock.
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
    //! What the model tests look at.
    use super::*;

    /// One lock, for comparison.
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

        /// Everything that grows: tree nodes, objects, ages, requests.
        pub(crate) fn footprint(&self) -> [usize; 4] {
            [self.forest.len(), self.objects.len(), self.by_age.len(), self.asked.len()]
        }
    }
}
