//! `Segment`: one segment, and where its pages lie.
//!
//! Owns: its description in memory and in the root. Does not own: its pages (`reader`, `writer`).

use super::index::Index;
use crate::layout::{IndexRef, NO_SLOT, NamedSegment, SegmentRef};
use std::rc::Rc;

/// A segment and where its pages lie.
#[derive(Clone, Debug)]
pub struct Segment {
    pub id: u64,
    /// Bytes of the segment's changes.
    pub bytes: u64,
    /// Changes.
    pub items: u64,
    /// The slots of the segment's pages, in order; the pages of the index follow them.
    pub slots: Vec<u32>,
    /// The index, which says which page has a key.
    pub index: Rc<Index>,
    /// Bytes of the index on the disk; 0 for a segment of an older version, which has none there.
    pub index_bytes: u32,
    /// The page in which the index begins.
    pub index_page: usize,
}

impl Segment {
    /// Returns the reference to the segment that the root contains.
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
