//! Segments: sorted runs of changes in the metadata region, as chains of pages.
//!
//! Owns: the slot map, writing, streaming, searching and verifying segments. Does not own: which segments are named by
//! the root (`checkpoint`). Invariants: keys ascend strictly over a whole segment; a slot is in one segment or free;
//! changes may span pages, so pages but the last are full. A page of which one block is damaged is served (`parity`).
//! A segment never changes, and a page says to which segment it belongs, so what was read of a segment is right even
//! if the segment has been replaced meanwhile; what cannot be read of a replaced one may have been overwritten.

mod index;
mod page;
mod reader;
mod writer;

pub use index::Index;
pub use reader::{IndexUse, SegmentReader};
pub use writer::{SegmentWriter, WriteError};

use crate::layout::{IndexRef, NO_SLOT, NamedSegment, SegmentRef};
use std::rc::Rc;

/// A segment and where its pages lie.
#[derive(Clone, Debug)]
pub struct Segment {
    pub id: u64,
    /// Bytes of its changes.
    pub bytes: u64,
    /// Changes.
    pub items: u64,
    /// Slots of its pages, in order, those of the index behind the others.
    pub slots: Vec<u32>,
    /// What says which page has a key.
    pub index: Rc<Index>,
    /// Bytes of the index on the disk; 0 for a segment of an older version, which has none there.
    pub index_bytes: u32,
    /// The page in which the index begins.
    pub index_page: usize,
}

impl Segment {
    /// As the root names it.
    pub fn named(&self) -> NamedSegment {
        let slot = self.slots.get(self.index_page).filter(|_| self.index_bytes > 0);
        NamedSegment {
            run: SegmentRef {
                id: self.id.into(),
                bytes: self.bytes.into(),
                items: self.items.into(),
                first_slot: self.slots.first().copied().unwrap_or(NO_SLOT).into(),
                slots: (self.slots.len() as u32).into(),
            },
            index: IndexRef { slot: slot.copied().unwrap_or(0).into(), bytes: self.index_bytes.into() },
        }
    }
}

/// Which slots are taken.
#[derive(Clone, Debug)]
pub struct SlotMap {
    taken: Vec<bool>,
    free: usize,
    cursor: usize,
    /// Slots from here on have no storage of the file system below yet.
    backed: usize,
}

impl SlotMap {
    pub fn new(slots: u64) -> SlotMap {
        SlotMap { taken: vec![false; slots as usize], free: slots as usize, cursor: 0, backed: slots as usize }
    }

    /// Slots below this number are taken, and no others.
    pub fn set_backed(&mut self, slots: u64) {
        self.backed = (slots as usize).min(self.taken.len());
    }

    /// Slots that may be taken.
    pub fn backed(&self) -> u64 {
        self.backed as u64
    }

    /// One past the highest slot that is used.
    pub fn end(&self) -> u64 {
        self.taken.iter().rposition(|taken| *taken).map_or(0, |last| last as u64 + 1)
    }

    /// Takes a free slot, preferably behind the last one taken.
    pub fn take(&mut self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let n = self.backed.max(1);
        let slot = (0..n).map(|i| (self.cursor + i) % n).find(|&i| !self.taken[i])?;
        self.mark(slot as u32);
        self.cursor = slot + 1;
        Some(slot as u32)
    }

    /// Takes a given slot; whether it was free and exists.
    pub fn mark(&mut self, slot: u32) -> bool {
        match self.taken.get_mut(slot as usize) {
            Some(taken) if !*taken => {
                *taken = true;
                self.free -= 1;
                true
            }
            _ => false,
        }
    }

    pub fn release(&mut self, slots: &[u32]) {
        for &slot in slots {
            assert!(std::mem::replace(&mut self.taken[slot as usize], false), "slot {slot} is freed twice");
            self.free += 1;
        }
    }
}
