//! The number of blocks that may still be taken, and for which purposes.
//!
//! Owns: the number of free blocks after those that are reserved, promised to delayed bytes, or granted to sessions.
//! Does not own: each of these numbers (`alloc`, `delayed`, `grants`), taking blocks (`store`).

use crate::alloc::Purpose;
use crate::extent::Object;
use crate::store::DataStore;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, ObjectId};

impl DataStore {
    /// The number of file blocks in `from..to` for which the object has no blocks.
    pub(crate) fn unmapped(&self, object: ObjectId, from: u64, to: u64) -> u64 {
        let Some(o) = self.objects.get(object) else { return to - from };
        holes(o, from, to).iter().map(|(_, blocks)| blocks).sum()
    }

    /// Blocks that growth may still take: those that are not reserved, and `own` blocks of the caller's grant.
    pub(crate) fn growth_room(&self, own: u64) -> u64 {
        self.room(Purpose::Growth, own)
    }

    /// Blocks that can be taken apart from those promised to delayed bytes and, for growth, to other sessions.
    pub(crate) fn room(&self, purpose: Purpose, own: u64) -> u64 {
        let granted = if purpose == Purpose::Growth { self.grants.total().saturating_sub(own) } else { 0 };
        self.alloc.room(purpose).saturating_sub(self.delayed.promised()).saturating_sub(granted)
    }

    /// Blocks that growth may take and that no session has been granted.
    pub fn ungranted_blocks(&self) -> u64 {
        self.growth_room(0)
    }

    /// Counts, among the blocks around `range`, those that a write adds to the zone and that are not promised to
    /// delayed bytes either.
    pub(crate) fn added_by(&self, object: ObjectId, range: ByteRange) -> u64 {
        let span = range.align_out(BLOCK);
        let (from, to) = (span.start / BLOCK, span.end / BLOCK);
        let gaps = self.objects.get(object).map_or_else(|| vec![(from, to - from)], |o| holes(o, from, to));
        let is_new =
            |(at, blocks): (u64, u64)| blocks - self.delayed.touched(object, ByteRange::at(at * BLOCK, blocks * BLOCK));
        gaps.into_iter().map(is_new).sum()
    }
}

/// Unmapped parts of the file blocks `from..to` as (file block, count).
pub(crate) fn holes(o: &Object, from: u64, to: u64) -> Vec<(u64, u64)> {
    let mut holes = Vec::new();
    let mut at = from;
    for (b, e) in o.mapped(from, to) {
        if at < b {
            holes.push((at, b - at));
        }
        at = b + u64::from(e.blocks);
    }
    if at < to {
        holes.push((at, to - at));
    }
    holes
}
