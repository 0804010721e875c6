//! `Cluster`: what servers have reported about the cluster to which a mount belongs.
//!
//! Owns: number of targets, identity, map of servers, how long tokens hold. Does not own: connections (`links`).

use amphi_types::Ino;
use amphi_wire::{ClusterMap, Welcome};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The cluster as this mount knows it; all zero before the first connection.
#[derive(Default)]
pub(crate) struct Cluster {
    /// Number of targets, from `Welcome`; 0 before the first answer.
    pub(crate) pool: AtomicU16,
    /// How long a front end may cache names and attributes while the mount is the only one, in ms.
    token_ms: AtomicU32,
    pub(crate) id: AtomicU64,
    /// The root of the mount; 0 before the first connection. The root does not change, whatever a server says later.
    root: AtomicU64,
    /// Which server has which targets; no servers before the first connection.
    pub(crate) map: Mutex<ClusterMap>,
}

impl Cluster {
    /// Targets; one before the first connection.
    pub(crate) fn pool(&self) -> u16 {
        self.pool.load(Relaxed).max(1)
    }

    /// Returns how long a front end may cache names and attributes while the mount is the only one.
    pub(crate) fn token_life(&self) -> Duration {
        Duration::from_millis(u64::from(self.token_ms.load(Relaxed)))
    }

    /// The root of the mount; that of the file system before the first connection.
    pub(crate) fn root(&self) -> Ino {
        match self.root.load(Relaxed) {
            0 => Ino::ROOT,
            root => Ino(root),
        }
    }

    /// Applies what the server reports about itself.
    pub(crate) fn learn(&self, welcome: &Welcome) {
        self.pool.store(welcome.pool, Relaxed);
        self.id.store(welcome.cluster, Relaxed);
        self.token_ms.store(welcome.token_ms, Relaxed);
        let _ = self.root.compare_exchange(0, welcome.root.0, Relaxed, Relaxed);
    }
}
