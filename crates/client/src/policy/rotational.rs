//! `Rotational`: the targets on rotating storage, as their servers reported.
//!
//! Owns: that set. Does not own: how a server detects it, and the consequences (`decision`).
//!
//! A server reports it with each connection, so the kind of its storage is unknown before the first request to it.
//! Bound: the targets of the cluster.

use amphi_types::{Ino, Layout, TargetId};
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The set of these targets.
#[derive(Default)]
pub(crate) struct Rotational {
    targets: RwLock<BTreeSet<TargetId>>,
    any: AtomicBool,
}

impl Rotational {
    /// Called when a server with the targets `own` reports which of them are rotating.
    pub(crate) fn learn(&self, own: &[TargetId], rotating: &[TargetId]) {
        let mut targets = self.targets.write();
        targets.retain(|t| !own.contains(t));
        targets.extend(rotating);
        self.any.store(!targets.is_empty(), Relaxed);
    }

    /// Returns whether there are any rotating targets. Callers check this first, because the layout of a file is behind
    /// a lock.
    pub(crate) fn are_there(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Returns whether any target that holds the first `bytes` of a file is in the set.
    pub(crate) fn hold(&self, ino: Ino, layout: &Layout, bytes: u64) -> bool {
        let targets = self.targets.read();
        let stripes = layout.stripes_below(bytes).min(u32::from(layout.pool));
        (0..stripes).any(|stripe| targets.contains(&layout.target(ino, stripe)))
    }

    pub(crate) fn len(&self) -> u64 {
        self.targets.read().len() as u64
    }
}
