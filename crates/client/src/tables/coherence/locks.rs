//! `Locks`: the locks of the cluster that this mount holds.
//!
//! Owns: one lock cache per target (`dlm::LockCache`), locks that were asked back or are being given back, names that
//! restarted servers gave to locks. Does not own: asking for locks and giving them back (`locks`), the rules (`dlm`).

use super::lock_walks::Walks;
use crate::inode::{Inode, Signal};
use crate::telemetry::tunables::{Tunable, Tunables};
use amphi_dlm::{CacheLimits, LockCache, LockId, Mode};
use amphi_types::{ByteRange, ObjectId, TargetId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The limits of today. The default age, 10 minutes, is that of Lustre: hits that pin no lock count by the time that
/// the file notes of them, so only what nobody uses goes. The bound of `locks.max` keeps what is presented to a
/// restarted server, 30 bytes a lock, below one message.
pub(crate) fn limits_of(tunables: &Tunables) -> CacheLimits {
    CacheLimits {
        max_age_ns: tunables.get(Tunable::LocksMaxAgeS) * 1_000_000_000,
        max_locks: tunables.get(Tunable::LocksMax) as usize,
        ..CacheLimits::default()
    }
}

/// All lock caches.
pub(crate) struct Locks {
    pub(crate) caches: Mutex<BTreeMap<TargetId, LockCache>>,
    pub(crate) limits: Mutex<CacheLimits>,
    pub(crate) answered: Signal,
    /// Group locks that are being given back, until the server knows.
    pub(crate) leaving: Mutex<BTreeSet<(TargetId, LockId)>>,
    /// Lock-aheads that were not answered yet.
    pub(crate) ahead: AtomicU64,
    pub(crate) names: Mutex<Names>,
    /// When servers were told last which locks they have to wait for.
    pub(crate) said_kept_ns: AtomicU64,
    /// Locks that were asked back, by the ids of their targets, and when; until the answer is sent.
    pub(crate) asked_back: Mutex<BTreeMap<(TargetId, u64), u64>>,
    /// Files of locks that are about to be returned, of which a front end may have pages, and the numbers by which
    /// these locks go (`Taking::going`).
    pub(crate) pages_due: Mutex<Vec<(TargetId, Arc<Inode>, u64)>>,
    /// Order: before `caches`.
    pub(crate) making: Mutex<Making>,
    /// Who takes locks of a target one after the other. Order: before `caches`.
    pub(crate) walks: Mutex<BTreeMap<TargetId, Walks>>,
    /// Glimpses whose replies are on their way. A server asks again with each new connection and from time to time:
    /// were each question answered, replies would pile up before whatever else it waits for.
    pub(crate) glimpsed: Mutex<BTreeSet<u64>>,
}

/// Files that are being made. Their locks come with the answer, and may be asked back before it: another mount has
/// found the file while its record was on the way to the disk.
#[derive(Default)]
pub(crate) struct Making {
    pub(crate) under_way: usize,
    /// Asked back and not known.
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
            making: Mutex::default(),
            walks: Mutex::default(),
            glimpsed: Mutex::default(),
        }
    }

    pub(crate) fn with<T>(&self, target: TargetId, f: impl FnOnce(&mut LockCache) -> T) -> T {
        f(self.caches.lock().entry(target).or_insert_with(|| LockCache::new(*self.limits.lock())))
    }

    /// The target that gave locks of an object: the file may not be known any more, nor how large the cluster was that
    /// it was made on.
    pub(crate) fn target_of(&self, object: ObjectId) -> Option<TargetId> {
        self.caches.lock().iter().find(|(_, cache)| cache.knows(object)).map(|(target, _)| *target)
    }

    /// Group locks are given back or gone.
    pub(crate) fn left(&self, locks: &[(TargetId, LockId)]) {
        self.leaving.lock().retain(|lock| !locks.contains(lock));
        self.answered.notify();
    }

    /// Locks held, for people.
    pub(crate) fn held(&self) -> u64 {
        self.caches.lock().values().map(|c| c.len() as u64).sum()
    }

    /// Whether usable locks permit reading all of `range`.
    pub(crate) fn permit_reading(&self, file: &Inode, range: ByteRange) -> bool {
        let layout = file.layout();
        let mut caches = self.caches.lock();
        layout.pieces(file.ino, range).all(|(object, piece)| {
            let target = layout.target(file.ino, object.stripe);
            caches.get_mut(&target).is_some_and(|cache| cache.covers(object, Mode::Read, piece).is_some())
        })
    }
}

/// Names that a restarted server gave to locks: the lock cache goes on with the names it knows.
#[derive(Default)]
pub(crate) struct Names {
    servers: BTreeMap<(TargetId, u64), u64>,
    ours: BTreeMap<(TargetId, u64), u64>,
    /// Targets that are being told what is held, with the callbacks that came meanwhile: they may overtake the new
    /// names.
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

    /// The server's name of a lock that is given back.
    pub(crate) fn take(&mut self, target: TargetId, id: LockId) -> u64 {
        match self.servers.remove(&(target, id.0)) {
            Some(new) => {
                self.ours.remove(&(target, new));
                new
            }
            None => id.0,
        }
    }

    /// The server's name of a lock that is kept.
    pub(crate) fn theirs(&self, target: TargetId, id: LockId) -> u64 {
        self.servers.get(&(target, id.0)).copied().unwrap_or(id.0)
    }

    pub(crate) fn ours(&self, target: TargetId, server: u64) -> LockId {
        LockId(self.ours.get(&(target, server)).copied().unwrap_or(server))
    }
}
