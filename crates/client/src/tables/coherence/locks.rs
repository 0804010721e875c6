//! `Locks`: the extent locks that this mount holds.
//!
//! Owns: one lock cache for each target (`dlm::LockCache`), locks that were called back or are being returned, and the
//! ids that restarted servers gave to locks. Does not own: requesting and returning locks (`locks`), the rules (`dlm`).

use super::lock_walks::Walks;
use crate::inode::{Inode, Signal};
use crate::telemetry::tunables::{Tunable, Tunables};
use amphi_dlm::{CacheLimits, LockCache, LockId, Mode};
use amphi_types::{ByteRange, Ino, ObjectId, TargetId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The limits that the tunables set now. The default age of 10 minutes is that of Lustre. A hit in the cache pins no
/// lock. The time of the hit is noted in the file and counts as a use of the lock, so only unused locks are returned by
/// age. `locks.max` bounds what is presented to a restarted server, at 30 bytes a lock, to one message.
pub(crate) fn limits_of(tunables: &Tunables) -> CacheLimits {
    CacheLimits {
        max_age_ns: tunables.get(Tunable::LocksMaxAgeS) * 1_000_000_000,
        max_locks: tunables.get(Tunable::LocksMax) as usize,
        ..CacheLimits::default()
    }
}

/// All lock caches of a mount.
pub(crate) struct Locks {
    pub(crate) caches: Mutex<BTreeMap<TargetId, LockCache>>,
    pub(crate) limits: Mutex<CacheLimits>,
    pub(crate) answered: Signal,
    /// Group locks that are being returned, until the server has confirmed it.
    pub(crate) leaving: Mutex<BTreeSet<(TargetId, LockId)>>,
    /// Lock-aheads that were not answered yet.
    pub(crate) ahead: AtomicU64,
    pub(crate) names: Mutex<Names>,
    /// When servers were last sent `LockKept` for locks that they wait for.
    pub(crate) said_kept_ns: AtomicU64,
    /// Locks that were called back, by target and the target's id, with the time of the callback. An entry stays until
    /// the answer is sent.
    pub(crate) asked_back: Mutex<BTreeMap<(TargetId, u64), u64>>,
    /// Files of locks that are about to be returned and of which a front end may have pages, with the numbers by which
    /// these locks are returned (`Taking::going`).
    pub(crate) pages_due: Mutex<Vec<(TargetId, Arc<Inode>, u64)>>,
    /// Removed files and the targets of their locks, which are returned with the next tick.
    pub(crate) nameless: Mutex<Vec<(TargetId, Ino)>>,
    /// Requests under way that make files. Lock order: before `caches`.
    pub(crate) making: Mutex<Making>,
    /// Other mounts that call back locks of a target one after the other. Lock order: before `caches`.
    pub(crate) walks: Mutex<BTreeMap<TargetId, Walks>>,
    /// Glimpses whose answers are on their way. A server sends a glimpse again with each new connection and from time
    /// to time. If each copy were answered, the answers would pile up in front of other messages that the server waits
    /// for.
    pub(crate) glimpsed: Mutex<BTreeSet<u64>>,
}

/// Requests under way that make files. The locks of these files come with the answers, and may be called back before
/// that: another mount may have found the file while its record was on the way to the disk.
#[derive(Default)]
pub(crate) struct Making {
    pub(crate) under_way: usize,
    /// Callbacks for locks that are not known yet.
    pub(crate) early: Vec<(ObjectId, u64)>,
}

impl Locks {
    pub(crate) fn new(tunables: &Tunables) -> Locks {
        Locks {
            caches: Mutex::default(),
            limits: Mutex::new(limits_of(tunables)),
            leaving: Mutex::default(),
            ahead: AtomicU64::new(0),
            answered: Signal::default(),
            names: Mutex::default(),
            said_kept_ns: AtomicU64::new(0),
            asked_back: Mutex::default(),
            pages_due: Mutex::default(),
            nameless: Mutex::default(),
            making: Mutex::default(),
            walks: Mutex::default(),
            glimpsed: Mutex::default(),
        }
    }

    pub(crate) fn with<T>(&self, target: TargetId, f: impl FnOnce(&mut LockCache) -> T) -> T {
        f(self.caches.lock().entry(target).or_insert_with(|| LockCache::new(*self.limits.lock())))
    }

    /// Called when these group locks were returned or lost.
    pub(crate) fn left(&self, locks: &[(TargetId, LockId)]) {
        self.leaving.lock().retain(|lock| !locks.contains(lock));
        self.answered.notify();
    }

    /// Number of locks held, for statistics.
    pub(crate) fn held(&self) -> u64 {
        self.caches.lock().values().map(|c| c.len() as u64).sum()
    }

    /// Returns whether usable locks permit writing all bytes that the file can have.
    pub(crate) fn permit_writing_all(&self, file: &Inode) -> bool {
        let layout = file.layout();
        let mut caches = self.caches.lock();
        (0..layout.stripes()).all(|stripe| {
            let (object, target) = (ObjectId { ino: file.ino, stripe }, layout.target(file.ino, stripe));
            let cache = caches.get_mut(&target);
            cache.is_some_and(|cache| cache.covers(object, Mode::Write, ByteRange::ALL).is_some())
        })
    }

    /// Returns whether usable locks permit reading all of `range`.
    pub(crate) fn permit_reading(&self, file: &Inode, range: ByteRange) -> bool {
        let layout = file.layout();
        let mut caches = self.caches.lock();
        layout.pieces(file.ino, range).all(|(object, piece)| {
            let target = layout.target(file.ino, object.stripe);
            caches.get_mut(&target).is_some_and(|cache| cache.covers(object, Mode::Read, piece).is_some())
        })
    }
}

/// Ids that a restarted server gave to locks. The lock cache keeps using the ids that it knows.
#[derive(Default)]
pub(crate) struct Names {
    servers: BTreeMap<(TargetId, u64), u64>,
    ours: BTreeMap<(TargetId, u64), u64>,
    /// Targets to which this mount is presenting its locks, with the callbacks that arrived meanwhile. Such callbacks
    /// may arrive before the answers with the new ids.
    pub(crate) restoring: BTreeMap<TargetId, Vec<(ObjectId, u64)>>,
}

impl Names {
    pub(crate) fn set(&mut self, target: TargetId, id: LockId, new: u64) {
        if id.0 != new {
            self.servers.insert((target, id.0), new);
            self.ours.insert((target, new), id.0);
        }
    }

    pub(crate) fn forget(&mut self, target: TargetId) {
        self.servers.retain(|(t, _), _| *t != target);
        self.ours.retain(|(t, _), _| *t != target);
    }

    /// The server's id of a lock that is being returned. The entry is removed from this table.
    pub(crate) fn take(&mut self, target: TargetId, id: LockId) -> u64 {
        match self.servers.remove(&(target, id.0)) {
            Some(new) => {
                self.ours.remove(&(target, new));
                new
            }
            None => id.0,
        }
    }

    /// The server's id of a lock that is kept.
    pub(crate) fn theirs(&self, target: TargetId, id: LockId) -> u64 {
        self.servers.get(&(target, id.0)).copied().unwrap_or(id.0)
    }

    pub(crate) fn ours(&self, target: TargetId, server: u64) -> LockId {
        LockId(self.ours.get(&(target, server)).copied().unwrap_or(server))
    }
}
