//! `Freeing`: blocks that become free when the record that freed them is stable.
//!
//! Owns: the blocks that wait for each record, and the rule at how many waiting blocks these records are made stable.
//! The next writes should reuse these blocks rather than blocks that were never written (`amphi_data::alloc`). Does not
//! own: the operations that free blocks, and making them available (`release`).
//!
//! Invariant: records are in the order of the log, so blocks become free from the front.

use amphi_data::Freed;
use amphi_zone::Lsn;
use futures_channel::mpsc;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Blocks of one target that become free.
pub struct Freeing {
    blocks: RefCell<VecDeque<(Lsn, Freed)>>,
    /// Wakes the releaser.
    bell: mpsc::UnboundedSender<()>,
    /// Bytes of such blocks at which their records are made stable.
    reuse_bytes: Cell<u64>,
}

impl Freeing {
    /// No blocks wait yet. The receiver is rung when some do.
    pub fn new() -> (Freeing, mpsc::UnboundedReceiver<()>) {
        let (bell, rung) = mpsc::unbounded();
        (Freeing { blocks: RefCell::default(), bell, reuse_bytes: Cell::new(u64::MAX) }, rung)
    }

    /// Blocks that `lsn` freed.
    pub fn push(&self, lsn: Lsn, freed: Freed) {
        if !freed.is_empty() {
            let mut blocks = self.blocks.borrow_mut();
            let last = blocks.back().map(|(last, _)| *last);
            assert!(last.is_none_or(|last| last <= lsn), "blocks freed by {lsn:?} wait behind those of {last:?}");
            blocks.push_back((lsn, freed));
            drop(blocks);
            // The receiver is gone only when the target is being dropped.
            drop(self.bell.unbounded_send(()));
        }
    }

    /// The next blocks whose record is one of those up to `stable`.
    pub fn pop_stable(&self, stable: Lsn) -> Option<Freed> {
        let mut blocks = self.blocks.borrow_mut();
        let is_stable = blocks.front().is_some_and(|(lsn, _)| *lsn <= stable);
        if is_stable { blocks.pop_front().map(|(_, freed)| freed) } else { None }
    }

    /// The last record for which blocks wait.
    pub fn last(&self) -> Option<Lsn> {
        self.blocks.borrow().back().map(|(lsn, _)| *lsn)
    }

    /// Returns whether `bytes` that wait are enough to make their records stable.
    pub fn is_much(&self, bytes: u64) -> bool {
        bytes >= self.reuse_bytes.get()
    }

    /// Sets from how many waiting bytes on records are made stable.
    pub fn tune(&self, reuse_bytes: u64) {
        self.reuse_bytes.set(reuse_bytes);
    }
}
