//! `FreeSpace`: which targets have room for more, as far as their answers to writes tell.
//!
//! A write that finds its target full should be told so itself, not the `fsync` behind it. So a write past the cache
//! returns early only where the target has said with its last answer that it has much room. (A write into the cache has
//! room of its own: `grants`.) Owns: what was said. Does not own: who asks (`pipeline`). Bounded by the targets of the
//! cluster.

use crate::inode::Inode;
use amphi_types::{ByteRange, Errno, TargetId};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// So much may land in messages whose answers say nothing of room before a target counts as tight: a quarter of what it
/// calls much.
const UNHEARD_MAX_BYTES: u64 = 32 << 20;

/// The last word of a target: whether it has much room, and the bytes that have landed there since in messages whose
/// answers say nothing of room.
struct Told {
    roomy: bool,
    landed_bytes: AtomicU64,
}

/// What targets have said.
#[derive(Default)]
pub(crate) struct FreeSpace {
    told: RwLock<BTreeMap<TargetId, Told>>,
}

impl FreeSpace {
    /// A write went through, and the target said whether it has much room; one that it refused says that it has not.
    pub(crate) fn said(&self, target: TargetId, roomy: bool) {
        let told = self.told.read();
        if let Some(told) = told.get(&target).filter(|told| told.roomy == roomy) {
            told.landed_bytes.store(0, Relaxed);
            return;
        }
        drop(told);
        self.told.write().insert(target, Told { roomy, landed_bytes: AtomicU64::new(0) });
    }

    /// What became of writes of `bytes` in one message, of which nobody said how much room is left.
    pub(crate) fn ended<'a>(
        &self,
        target: TargetId,
        mut results: impl Iterator<Item = &'a Result<(), Errno>> + Clone,
        bytes: u64,
    ) {
        let is_refused = results.clone().any(|r| *r == Err(Errno::NoSpace));
        if is_refused || (results.any(Result::is_ok) && self.is_unheard(target, bytes)) {
            self.said(target, false);
        }
    }

    /// Whether with these bytes so much has landed since the target said that it has much room that it may have none.
    fn is_unheard(&self, target: TargetId, bytes: u64) -> bool {
        let told = self.told.read();
        let roomy = told.get(&target).filter(|t| t.roomy);
        roomy.is_some_and(|t| t.landed_bytes.fetch_add(bytes, Relaxed) + bytes > UNHEARD_MAX_BYTES)
    }

    /// Whether all targets of `range` have room.
    pub(crate) fn is_ample(&self, file: &Inode, range: ByteRange) -> bool {
        let told = self.told.read();
        let (layout, ino) = (file.layout(), file.ino);
        let mut targets = layout.pieces(ino, range).map(move |(object, _)| layout.target(ino, object.stripe));
        targets.all(|target| told.get(&target).is_some_and(|t| t.roomy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(room: &FreeSpace, target: TargetId) -> Option<bool> {
        room.told.read().get(&target).map(|t| t.roomy)
    }

    /// Goal: a target that said it has much room counts as tight when much has landed there without a word, or a part
    /// was refused, until it says so again. Method: batches up to the bound and beyond, with an answer in between.
    #[test]
    fn what_nobody_speaks_of_counts() {
        let (room, target) = (FreeSpace::default(), TargetId(3));
        let batch = |room: &FreeSpace, bytes| room.ended(target, [Ok(()), Ok(())].iter(), bytes);
        batch(&room, 1 << 30);
        assert_eq!(said(&room, target), None, "it has said nothing");
        room.said(target, true);
        for _ in 0..3 {
            batch(&room, UNHEARD_MAX_BYTES);
            assert_eq!(said(&room, target), Some(true));
            room.said(target, true);
        }
        batch(&room, UNHEARD_MAX_BYTES);
        batch(&room, 1);
        assert_eq!(said(&room, target), Some(false));
        room.said(target, true);
        assert_eq!(said(&room, target), Some(true));
        room.ended(target, [Ok(()), Err(Errno::NoSpace)].iter(), 1);
        assert_eq!(said(&room, target), Some(false));
    }
}
