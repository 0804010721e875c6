//! `Routes`: which targets this server has, which worker has each of them, and how many targets the cluster has.
//!
//! Owns: the table of the places of targets that all workers of a server share. Does not own: which other server has a
//! target (`peers`), the cluster map (`map`).
//!
//! The targets of a server are fixed while it runs, and the number of targets of the cluster grows. Every request uses
//! this table, so a look-up is one load and one index.

use amphi_types::TargetId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// No worker of this server.
const ELSEWHERE: u16 = u16::MAX;

/// Routes as all workers of a server share them.
pub type SharedRoutes = Arc<Routes>;

/// The places of all targets.
pub struct Routes {
    /// The worker that owns each target, by target. Ends with the last target of this server.
    owners: Vec<u16>,
    local: Vec<TargetId>,
    pool: AtomicU16,
    epoch: AtomicU64,
}

impl Routes {
    /// Routes of a server that has the targets `local`, in ascending order, in a cluster with `pool` targets. The
    /// server's targets are assigned to its workers round robin.
    pub fn new(local: Vec<TargetId>, workers: u16, pool: u16) -> Routes {
        debug_assert!(local.is_sorted() && workers < ELSEWHERE, "targets ascend, and each worker has a number");
        debug_assert!(local.len() <= usize::from(pool), "a cluster has the targets of its servers");
        let mut owners = vec![ELSEWHERE; local.last().map_or(0, |t| usize::from(t.0) + 1)];
        for (at, target) in local.iter().enumerate() {
            owners[usize::from(target.0)] = (at % usize::from(workers.max(1))) as u16;
        }
        Routes { owners, local, pool: AtomicU16::new(pool), epoch: AtomicU64::new(0) }
    }

    /// The worker that has a target of this server.
    pub fn owner(&self, target: TargetId) -> Option<usize> {
        self.owners.get(usize::from(target.0)).filter(|w| **w != ELSEWHERE).map(|w| usize::from(*w))
    }

    /// Returns whether the target is this server's.
    pub fn is_local(&self, target: TargetId) -> bool {
        self.owner(target).is_some()
    }

    /// Targets of this server, ascending.
    pub fn local(&self) -> &[TargetId] {
        &self.local
    }

    /// Targets of the cluster.
    pub fn pool(&self) -> u16 {
        self.pool.load(Ordering::Relaxed)
    }

    /// Epoch of the map that these routes follow.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Returns whether other servers have targets.
    pub fn is_shared(&self) -> bool {
        usize::from(self.pool()) > self.local.len()
    }

    /// Follows a newer map. The pool never shrinks.
    pub fn follow(&self, pool: u16, epoch: u64) {
        self.pool.fetch_max(pool, Ordering::Relaxed);
        self.epoch.fetch_max(epoch, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every target of the server has one of its workers, no other target has one, and the pool only grows.
    #[test]
    fn targets_have_one_worker() {
        let local: Vec<TargetId> = [2, 3, 7].map(TargetId).into();
        let routes = Routes::new(local.clone(), 2, 8);
        let owners: Vec<_> = (0..10).map(|t| routes.owner(TargetId(t))).collect();
        assert_eq!(owners, [None, None, Some(0), Some(1), None, None, None, Some(0), None, None]);
        assert!(routes.is_shared() && routes.local() == local);
        routes.follow(12, 4);
        routes.follow(8, 3);
        assert_eq!((routes.pool(), routes.epoch()), (12, 4));
        let alone = Routes::new((0..3).map(TargetId).collect(), 2, 3);
        assert!(!alone.is_shared() && (0..3).all(|t| alone.owner(TargetId(t)) == Some(usize::from(t) % 2)));
    }
}
