//! `Room`: whether servers have free blocks for dirty data.
//!
//! Owns: the contract with the owner of the grants, and which blocks of a unit are covered. Does not own: how many free
//! blocks there are.
//!
//! A block of 4 KiB is covered from before its first byte is dirty until none of it is dirty or under way. Dirty bytes
//! that could not be covered are cached all the same, and are sent in requests of their own.

use crate::unit::Unit;
use crate::{CachedFile, PAGE, PageCache};
use amphi_types::ByteRange;

/// Knows how many more blocks may be dirty.
///
/// The methods are called under the lock of a shard, so none of them may call the cache.
pub trait Room<F>: Send + Sync {
    /// Covers this many more blocks of the file's unit that begins at `offset`. Returns false if there is too little
    /// room.
    fn cover(&self, file: &F, offset: u64, blocks: u32) -> bool;
    /// This many of the file's blocks are no longer dirty or under way.
    fn uncover(&self, file: &F, offset: u64, blocks: u32);
}

/// Servers that always have room.
pub(crate) struct Endless;

impl<F> Room<F> for Endless {
    fn cover(&self, _: &F, _: u64, _: u32) -> bool {
        true
    }

    fn uncover(&self, _: &F, _: u64, _: u32) {}
}

/// The treatment of a write for which there are no free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The write is refused: at its first unit, or when all of its bytes are dirty.
    Refuse,
    /// The bytes of the write become dirty without cover.
    Put,
}

/// The blocks of a unit that `part` touches, one bit each.
pub(crate) fn blocks(unit_start: u64, part: ByteRange) -> u16 {
    if part.is_empty() {
        return 0;
    }
    let (from, to) = ((part.start - unit_start) / PAGE, (part.end - unit_start).div_ceil(PAGE));
    (((1u32 << (to - from)) - 1) << from) as u16
}

impl<F: CachedFile> Unit<F> {
    /// The blocks of `part` that are not covered.
    pub(crate) fn uncovered(&self, part: ByteRange) -> u16 {
        blocks(self.range().start, part) & !self.covered
    }

    /// Returns whether the first block of dirty bytes is covered, and how far the following blocks are in the same
    /// state.
    pub(crate) fn alike(&self, run: ByteRange) -> (ByteRange, bool) {
        let start = self.range().start;
        let is_covered = |block: u64| self.covered >> block & 1 == 1;
        let first = (run.start - start) / PAGE;
        let covered = is_covered(first);
        let other = (first + 1..(run.end - start).div_ceil(PAGE)).find(|block| is_covered(*block) != covered);
        (ByteRange::new(run.start, other.map_or(run.end, |block| start + block * PAGE)), covered)
    }

    /// `Some` if all of its blocks are covered, or none of them; `None` if only some are.
    pub(crate) fn cover_of_all(&self) -> Option<bool> {
        match self.covered {
            0 => Some(false),
            u16::MAX => Some(true),
            _ => None,
        }
    }

    /// Ends the cover of blocks that have no byte dirty or under way. Returns their number.
    fn uncover(&mut self) -> u32 {
        let start = self.range().start;
        let busy = self.dirty.iter().chain(self.flight.iter()).fold(0, |busy, r| busy | blocks(start, r));
        let gone = self.covered & !busy;
        self.covered &= busy;
        gone.count_ones()
    }
}

impl<F: CachedFile> PageCache<F> {
    /// Covers the `missing` blocks of a unit. Returns whether there was room.
    pub(crate) fn cover(&self, file: &F, unit_start: u64, missing: u16) -> bool {
        missing == 0 || self.room.cover(file, unit_start, missing.count_ones())
    }

    /// Reduces the cover of a unit when fewer of its bytes are dirty or in flight than before: blocks that are no
    /// longer needed become available to other writes.
    pub(crate) fn uncover(&self, file: &F, unit: &mut Unit<F>) {
        if unit.covered == 0 {
            return;
        }
        let gone = unit.uncover();
        if gone > 0 {
            self.room.uncover(file, unit.range().start, gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TestFile;
    use crate::{Put, Source, UNIT};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    /// Servers with this many free blocks.
    struct Blocks(AtomicU32);

    impl Room<TestFile> for Blocks {
        fn cover(&self, _: &TestFile, _: u64, blocks: u32) -> bool {
            self.0.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(blocks)).is_ok()
        }

        fn uncover(&self, _: &TestFile, _: u64, blocks: u32) {
            self.0.fetch_add(blocks, SeqCst);
        }
    }

    /// Goal: a refused write has put all of its bytes into the cache or none, so readers find no half of it. Method:
    /// writes of two units, for which the servers have room for none, one, or both.
    #[test]
    fn a_refused_write_is_whole_or_absent() {
        let unit = UNIT as usize;
        let bytes = vec![7u8; 2 * unit];
        for (blocks, put_to) in [(15, Some(0)), (16, Some(2 * UNIT)), (32, None)] {
            let cache = PageCache::above(Arc::new(Blocks(AtomicU32::new(blocks))));
            let file = TestFile::new(3);
            let put = cache.write_covered(&file, 0, Source::Copied(&bytes), u64::MAX, || 1, (|| true, || ()));
            match put_to {
                Some(end) => assert_eq!(put, Put::Refused(end), "{blocks} blocks"),
                None => assert!(matches!(put, Put::Done { covered: true, .. })),
            }
            let mut read = vec![0; 2 * unit];
            assert_eq!(cache.read(&file, ByteRange::new(0, 2 * UNIT), &mut read), blocks >= 16, "{blocks} blocks");
            assert!(blocks < 16 || read == bytes);
        }
    }
}
