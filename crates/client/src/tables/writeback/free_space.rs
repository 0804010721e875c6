//! `FreeSpace`: which targets have free space for more writes, as far as their answers say.
//!
//! If a write finds its target full, the write itself should fail, not the `fsync` after it. So a direct write returns
//! early only if its target has reported much free space with its last answer. A report of much free space is no
//! promise: the blocks of such a write are also counted against a grant, like those of a write into the cache
//! (`grants`).
//!
//! Owns: the targets' last reports. Does not own: who uses them (`pipeline`).
//!
//! Bound: the targets of the cluster.

use crate::inode::Inode;
use amphi_types::{ByteRange, Errno, TargetId};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// If this many bytes were written in messages whose answers report no free space, the target counts as nearly full.
/// That is a quarter of the free space at which a target reports that it has much.
const UNHEARD_MAX_BYTES: u64 = 32 << 20;

/// The last report of a target: whether it has much free space, and the bytes that were written there since in messages
/// whose answers contain no report.
struct Told {
    roomy: bool,
    landed_bytes: AtomicU64,
}

/// The reports of all targets.
#[derive(Default)]
pub(crate) struct FreeSpace {
    told: RwLock<BTreeMap<TargetId, Told>>,
}

impl FreeSpace {
    /// Called when a write was answered, and the target reported whether it has much free space. A refused write counts
    /// as a report of little free space.
    pub(crate) fn said(&self, target: TargetId, roomy: bool) {
        let told = self.told.read();
        if let Some(told) = told.get(&target).filter(|told| told.roomy == roomy) {
            told.landed_bytes.store(0, Relaxed);
            return;
        }
        drop(told);
        self.told.write().insert(target, Told { roomy, landed_bytes: AtomicU64::new(0) });
    }

    /// Writes of `bytes` in one message were answered without a report of the free space.
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

    /// Returns whether this many bytes, including the present ones, were written since the last report, so that the
    /// target may be full.
    fn is_unheard(&self, target: TargetId, bytes: u64) -> bool {
        let told = self.told.read();
        let roomy = told.get(&target).filter(|t| t.roomy);
        roomy.is_some_and(|t| t.landed_bytes.fetch_add(bytes, Relaxed) + bytes > UNHEARD_MAX_BYTES)
    }

    /// Returns whether all targets of `range` have free space.
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

    /// Goal: a target that reported much free space counts as nearly full when many bytes were written there without a
    /// report, or a part was refused. This ends when the target reports much free space again. Method: batches up to
    /// the bound and beyond, with an answer in between.
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
