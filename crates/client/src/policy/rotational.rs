//! Targets on rotating storage (FEATURES H12), as their servers said.
//!
//! Owns: that set. Does not own: how a server knows, what follows (`decision`). A server says it with each connection,
//! so nothing is known of one before the first request to it.

use amphi_types::{Ino, Layout, TargetId};
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The set. Bounded by the targets of the cluster.
#[derive(Default)]
pub(crate) struct Rotational {
    targets: RwLock<BTreeSet<TargetId>>,
    any: AtomicBool,
}

impl Rotational {
    /// A server that has the targets `own` says which of them are.
    pub(crate) fn learn(&self, own: &[TargetId], rotating: &[TargetId]) {
        let mut targets = self.targets.write();
        targets.retain(|t| !own.contains(t));
        targets.extend(rotating);
        self.any.store(!targets.is_empty(), Relaxed);
    }

    /// Whether there are any: asked first, since the layout of a file has a lock.
    pub(crate) fn are_there(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Whether one of the targets that hold the first `bytes` of a file is among them.
    pub(crate) fn hold(&self, ino: Ino, layout: &Layout, bytes: u64) -> bool {
        let targets = self.targets.read();
        let stripes = layout.stripes_below(bytes).min(u32::from(layout.pool));
        (0..stripes).any(|stripe| targets.contains(&layout.target(ino, stripe)))
    }

    pub(crate) fn len(&self) -> u64 {
        self.targets.read().len() as u64
    }
}
