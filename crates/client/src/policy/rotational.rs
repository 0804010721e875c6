//! Targets on rotating storage (FEATURES H12), as their servers said.
//!
//! Owns: that set. Does not own: how a server knows, what follows (`decision`). A server says it with each connection,
//! so nothing is known of one before the first request to it.

use crate::inode::File;
use amphi_types::TargetId;
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The set. Bounded by the targets of the cluster.
#[derive(Default)]
pub(crate) struct Rotating {
    targets: RwLock<BTreeSet<TargetId>>,
    any: AtomicBool,
}

impl Rotating {
    /// A server that has the targets `own` says which of them are.
    pub(crate) fn learn(&self, own: &[TargetId], rotating: &[TargetId]) {
        let mut targets = self.targets.write();
        targets.retain(|t| !own.contains(t));
        targets.extend(rotating);
        self.any.store(!targets.is_empty(), Relaxed);
    }

    /// Whether one of the targets that hold a file, or will with `more_bytes` behind its end, is among them.
    pub(crate) fn holds(&self, file: &File, more_bytes: u64) -> bool {
        if !self.any.load(Relaxed) {
            return false;
        }
        let (layout, targets) = (file.layout(), self.targets.read());
        let stripes = layout.stripes_below(file.size().saturating_add(more_bytes)).min(u32::from(layout.pool));
        (0..stripes).any(|stripe| targets.contains(&layout.target(file.ino, stripe)))
    }

    pub(crate) fn len(&self) -> u64 {
        self.targets.read().len() as u64
    }
}
