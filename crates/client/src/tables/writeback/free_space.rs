//! `FreeSpace`: which targets have room for more, as far as their answers to writes tell.
//!
//! A write that finds its target full should be told so itself, not the `fsync` behind it. So a write past the cache
//! returns early only where the target has said with its last answer that it has room, and a write into the cache is
//! written back at once, and waited for, where a write was refused and not as much has gone through since: the small
//! ones that still fit must not hide that the next large one will not. Owns: what was said. Does not own: who asks
//! (`pipeline`, `ops::write`). Bounded by the targets of the cluster.

use crate::inode::Inode;
use amphi_types::{ByteRange, Errno, TargetId};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// So much may land in messages whose answers say nothing of room before a target counts as tight: a quarter of what it
/// calls much.
const UNHEARD_MAX_BYTES: u64 = 32 << 20;

/// What a target has said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// There is much room.
    Roomy,
    /// Writes go through; there is little room.
    Tight,
    /// A write of so many bytes was refused, for want of room.
    Full(u64),
}

/// The last word of a target, and the bytes that have landed there since: under `Roomy` in messages whose answers say
/// nothing of room.
struct Told {
    said: Said,
    landed_bytes: AtomicU64,
}

impl Told {
    fn is_full(&self) -> bool {
        matches!(self.said, Said::Full(_))
    }
}

/// What targets have said.
#[derive(Default)]
pub(crate) struct FreeSpace {
    told: RwLock<BTreeMap<TargetId, Told>>,
    any_full: AtomicBool,
}

impl FreeSpace {
    /// Writes of `bytes` went through; whether the target has much room.
    pub(crate) fn taken(&self, target: TargetId, bytes: u64, roomy: bool) {
        if roomy {
            self.note(target, Said::Roomy);
        } else if self.is_still_full(target, bytes) != Some(true) {
            self.note(target, Said::Tight);
        }
    }

    /// Writes of `bytes` were refused, or some of them, for want of room.
    pub(crate) fn refused(&self, target: TargetId, bytes: u64) {
        self.note(target, Said::Full(bytes));
    }

    /// What became of writes of `bytes` in one message, of which nobody said how much room is left.
    pub(crate) fn ended<'a>(
        &self,
        target: TargetId,
        mut results: impl Iterator<Item = &'a Result<(), Errno>> + Clone,
        bytes: u64,
    ) {
        if results.clone().any(|r| *r == Err(Errno::NoSpace)) {
            self.refused(target, bytes);
        } else if results.any(Result::is_ok)
            && (self.is_still_full(target, bytes) == Some(false) || self.is_unheard(target, bytes))
        {
            self.note(target, Said::Tight);
        }
    }

    /// Whether less has landed on a full target, with these bytes, than it has refused; nothing if it is not full.
    fn is_still_full(&self, target: TargetId, bytes: u64) -> Option<bool> {
        if !self.any_full() {
            return None;
        }
        let told = self.told.read();
        let told = told.get(&target)?;
        let Said::Full(refused) = told.said else { return None };
        Some(told.landed_bytes.fetch_add(bytes, Relaxed) + bytes < refused)
    }

    /// Whether with these bytes so much has landed since the target said that it has much room that it may have none.
    fn is_unheard(&self, target: TargetId, bytes: u64) -> bool {
        let told = self.told.read();
        let roomy = told.get(&target).filter(|t| t.said == Said::Roomy);
        roomy.is_some_and(|t| t.landed_bytes.fetch_add(bytes, Relaxed) + bytes > UNHEARD_MAX_BYTES)
    }

    fn note(&self, target: TargetId, said: Said) {
        let same = self.told.read().get(&target).filter(|t| t.said == said).map(|t| t.landed_bytes.store(0, Relaxed));
        if same.is_none() {
            let mut all = self.told.write();
            all.insert(target, Told { said, landed_bytes: AtomicU64::new(0) });
            self.any_full.store(all.values().any(Told::is_full), Relaxed);
        }
    }

    /// Whether any target is full.
    #[inline]
    pub(crate) fn any_full(&self) -> bool {
        self.any_full.load(Relaxed)
    }

    /// Whether all targets of `range` have room.
    pub(crate) fn is_ample(&self, file: &Inode, range: ByteRange) -> bool {
        let told = self.told.read();
        self.targets(file, range).all(|target| told.get(&target).is_some_and(|t| t.said == Said::Roomy))
    }

    /// Whether a target of `range` is full.
    pub(crate) fn is_short(&self, file: &Inode, range: ByteRange) -> bool {
        self.any_full() && {
            let told = self.told.read();
            self.targets(file, range).any(|target| told.get(&target).is_some_and(Told::is_full))
        }
    }

    fn targets(&self, file: &Inode, range: ByteRange) -> impl Iterator<Item = TargetId> {
        let (layout, ino) = (file.layout(), file.ino);
        layout.pieces(ino, range).map(move |(object, _)| layout.target(ino, object.stripe))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(room: &FreeSpace, target: TargetId) -> Option<Said> {
        room.told.read().get(&target).map(|t| t.said)
    }

    /// Goal: a target that said it has much room counts as tight when much has landed there without a word, until it
    /// says so again. Method: batches up to the bound and beyond, with an answer in between.
    #[test]
    fn what_nobody_speaks_of_counts() {
        let (room, target) = (FreeSpace::default(), TargetId(3));
        let batch = |room: &FreeSpace, bytes| room.ended(target, [Ok(()), Ok(())].iter(), bytes);
        batch(&room, 1 << 30);
        assert_eq!(said(&room, target), None, "it has said nothing");
        room.taken(target, 1, true);
        for _ in 0..3 {
            batch(&room, UNHEARD_MAX_BYTES);
            assert_eq!(said(&room, target), Some(Said::Roomy));
            room.taken(target, 1, true);
        }
        batch(&room, UNHEARD_MAX_BYTES);
        batch(&room, 1);
        assert_eq!(said(&room, target), Some(Said::Tight));
        room.taken(target, 1, true);
        assert_eq!(said(&room, target), Some(Said::Roomy));
    }

    /// Goal: a target that refused a write is full until as much has gone through, or it says that it has much room.
    /// Method: small writes in requests and in batches below what was refused, up to it; other targets meanwhile.
    #[test]
    fn small_writes_do_not_hide_a_full_target() {
        let (room, target, other) = (FreeSpace::default(), TargetId(0), TargetId(1));
        let batch = |bytes| room.ended(target, [Ok(()), Err(Errno::Stale)].iter(), bytes);
        room.refused(target, 1000);
        room.taken(target, 600, false);
        room.taken(other, 5000, false);
        batch(399);
        assert!(said(&room, target) == Some(Said::Full(1000)) && room.any_full());
        batch(1);
        assert!(said(&room, target) == Some(Said::Tight) && !room.any_full());
        room.refused(target, 1000);
        room.taken(target, 999, false);
        room.ended(target, [Ok(()), Err(Errno::NoSpace)].iter(), 300);
        room.taken(target, 299, false);
        assert_eq!(said(&room, target), Some(Said::Full(300)), "each refusal counts anew");
        room.taken(target, 1, true);
        assert!(said(&room, target) == Some(Said::Roomy) && !room.any_full());
        assert_eq!(said(&room, other), Some(Said::Tight));
    }
}
