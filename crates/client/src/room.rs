//! `Room`: which targets have room for more, as far as their answers to writes tell.
//!
//! A write that finds its target full should be told so itself, not the `fsync` behind it. So a write past the cache returns early only where
//! the target has said with its last answer that it has room, and a write into the cache is written back at once, and waited for, where the
//! last write was refused. Owns: what was said. Does not own: who asks (`pipeline`, `ops::write`). Bounded by the targets of the cluster.

use crate::files::File;
use amphi_types::{ByteRange, Errno, TargetId};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// So much may land in messages whose answers say nothing of room before a target counts as tight: a quarter of what it calls much.
const UNHEARD_MAX_BYTES: u64 = 32 << 20;

/// What a target has said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// There is much room.
    Roomy,
    /// The write went through; there is little room.
    Tight,
    /// The write was refused, for want of room.
    Full,
}

/// The last word of a target, and the bytes that have landed there since in messages whose answers say nothing of room.
struct Told {
    said: Said,
    unheard_bytes: AtomicU64,
}

/// What targets have said.
#[derive(Default)]
pub(crate) struct Room {
    told: RwLock<BTreeMap<TargetId, Told>>,
    any_full: AtomicBool,
}

impl Room {
    /// A write went through; whether the target has much room.
    pub(crate) fn taken(&self, target: TargetId, roomy: bool) {
        self.note(target, if roomy { Said::Roomy } else { Said::Tight });
    }

    /// What became of writes of `bytes` in one message, of which nobody said how much room is left.
    pub(crate) fn ended<'a>(
        &self,
        target: TargetId,
        mut results: impl Iterator<Item = &'a Result<(), Errno>> + Clone,
        bytes: u64,
    ) {
        if results.clone().any(|r| *r == Err(Errno::NoSpace)) {
            self.note(target, Said::Full);
        } else if self.any_full() && results.any(Result::is_ok) || self.is_unheard(target, bytes) {
            self.note(target, Said::Tight);
        }
    }

    /// Whether with these bytes so much has landed since the target said that it has much room that it may have none.
    fn is_unheard(&self, target: TargetId, bytes: u64) -> bool {
        let told = self.told.read();
        let roomy = told.get(&target).filter(|t| t.said == Said::Roomy);
        roomy.is_some_and(|t| t.unheard_bytes.fetch_add(bytes, Relaxed) + bytes > UNHEARD_MAX_BYTES)
    }

    fn note(&self, target: TargetId, said: Said) {
        let same = self.told.read().get(&target).filter(|t| t.said == said).map(|t| t.unheard_bytes.store(0, Relaxed));
        if same.is_none() {
            let mut all = self.told.write();
            all.insert(target, Told { said, unheard_bytes: AtomicU64::new(0) });
            self.any_full.store(all.values().any(|t| t.said == Said::Full), Relaxed);
        }
    }

    /// Whether any target has refused the last write to it.
    #[inline]
    pub(crate) fn any_full(&self) -> bool {
        self.any_full.load(Relaxed)
    }

    /// Whether all targets of `range` have room.
    pub(crate) fn is_ample(&self, file: &File, range: ByteRange) -> bool {
        let told = self.told.read();
        self.targets(file, range).all(|target| told.get(&target).is_some_and(|t| t.said == Said::Roomy))
    }

    /// Whether a target of `range` has refused the last write to it.
    pub(crate) fn is_short(&self, file: &File, range: ByteRange) -> bool {
        let told = self.told.read();
        let is_full = |target| told.get(&target).is_some_and(|t| t.said == Said::Full);
        self.any_full() && self.targets(file, range).any(is_full)
    }

    fn targets(&self, file: &File, range: ByteRange) -> impl Iterator<Item = TargetId> {
        let (layout, ino) = (file.layout(), file.ino);
        layout.pieces(ino, range).map(move |(object, _)| layout.target(ino, object.stripe))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a target that said it has much room counts as tight when much has landed there without a word, until it says so again. Method: batches
    /// up to the bound and beyond, with an answer in between.
    #[test]
    fn what_nobody_speaks_of_counts() {
        let (room, target) = (Room::default(), TargetId(3));
        let said = |room: &Room| room.told.read().get(&target).map(|t| t.said);
        let batch = |room: &Room, bytes| room.ended(target, [Ok(()), Ok(())].iter(), bytes);
        batch(&room, 1 << 30);
        assert_eq!(said(&room), None, "it has said nothing");
        room.taken(target, true);
        for _ in 0..3 {
            batch(&room, UNHEARD_MAX_BYTES);
            assert_eq!(said(&room), Some(Said::Roomy));
            room.taken(target, true);
        }
        batch(&room, UNHEARD_MAX_BYTES);
        batch(&room, 1);
        assert_eq!(said(&room), Some(Said::Tight));
        room.taken(target, true);
        assert_eq!(said(&room), Some(Said::Roomy));
        room.ended(target, [Ok(()), Err(Errno::NoSpace)].iter(), 1);
        assert!(said(&room) == Some(Said::Full) && room.any_full());
        batch(&room, 1);
        assert!(said(&room) == Some(Said::Tight) && !room.any_full());
    }
}
