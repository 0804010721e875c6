//! `SegmentReader`: streams the changes of a segment, verifying every page.
//!
//! Owns: the limits of changes within the pages, and the index that lies behind the pages. Does not own: reading one
//! page (`page`).

use super::index::{Index, IndexBuilder};
use super::page::PageReader;
use super::run::Segment;
use crate::ZoneError;
use crate::layout::{Geometry, NO_SLOT, NamedSegment, PAGE_PAYLOAD};
use crate::parity::MendedBlocks;
use amphi_env::{Buf, Disk};
use amphi_types::item::Change;
use std::rc::Rc;

/// The treatment of the index of a segment that is read from its beginning to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexUse {
    /// Nothing.
    Skip,
    /// The index is read from the disk, or made if the segment has none there.
    Load,
    /// The index is made, and the one on the disk has to be the same.
    Check,
}

/// Streams the changes of a segment.
pub struct SegmentReader<'a, D: Disk> {
    pages: PageReader<'a, D>,
    named: NamedSegment,
    /// Slots of the pages read, if the segment is read from its beginning.
    slots: Vec<u32>,
    /// The page that is read next, and its slot.
    next_page: usize,
    next_slot: u32,
    /// Whether the reader began behind the first page: then it ends with the last change, and the counts are not
    /// checked.
    is_part: bool,
    /// The payload from the present change on.
    carry: Vec<u8>,
    /// The beginning and end of the present change in `carry`; empty before the first change.
    at: usize,
    end: usize,
    /// The offset at which the payload of the last page begins in `carry`.
    page_at: usize,
    /// Page and offset where the next change begins, if it is in an earlier page than the last one read.
    begun: Option<(usize, usize)>,
    /// Bytes of changes in the pages read, and changes passed.
    bytes: u64,
    items: u64,
    index: IndexReader,
}

/// The index of a segment that is being read.
struct IndexReader {
    purpose: IndexUse,
    /// Bytes of the index on the disk.
    bytes: Vec<u8>,
    builder: IndexBuilder,
}

impl<'a, D: Disk> SegmentReader<'a, D> {
    /// Reads a whole segment. `items` must be called until the end, then `finish`.
    pub fn new(
        disk: &'a D,
        geometry: Geometry,
        zone_id: u64,
        named: NamedSegment,
        purpose: IndexUse,
    ) -> SegmentReader<'a, D> {
        let purpose = match purpose {
            IndexUse::Load if named.index.bytes.get() == 0 => IndexUse::Check,
            purpose => purpose,
        };
        SegmentReader {
            pages: PageReader::new(disk, geometry, zone_id, named.run.id.get(), None),
            named,
            slots: Vec::new(),
            next_page: 0,
            next_slot: named.run.first_slot.get(),
            is_part: false,
            carry: Vec::new(),
            at: 0,
            end: 0,
            page_at: 0,
            begun: None,
            bytes: 0,
            items: 0,
            index: IndexReader { purpose, bytes: Vec::new(), builder: IndexBuilder::default() },
        }
    }

    /// Reads from a change on, which begins in page `page`, `at` bytes behind the beginning of its payload. `memory`:
    /// that of a page, if there is some already.
    pub async fn from(
        disk: &'a D,
        geometry: Geometry,
        zone_id: u64,
        segment: &Segment,
        (page, at): (usize, usize),
        memory: Option<Buf>,
    ) -> Result<SegmentReader<'a, D>, ZoneError> {
        let mut reader = SegmentReader::new(disk, geometry, zone_id, segment.named(), IndexUse::Skip);
        reader.pages = PageReader::new(disk, geometry, zone_id, segment.id, memory);
        reader.is_part = true;
        reader.next_page = page;
        reader.next_slot = segment.slots.get(page).copied().unwrap_or(NO_SLOT);
        // Pages in front of the last one with changes are full.
        reader.bytes = (page * PAGE_PAYLOAD) as u64;
        reader.read_page().await?;
        let at = at.min(reader.carry.len());
        (reader.at, reader.end) = (at, at);
        Ok(reader)
    }

    /// The memory of a page, for another reader.
    pub fn into_memory(self) -> Buf {
        self.pages.into_memory()
    }

    /// Blocks that were damaged.
    pub fn mended(&mut self) -> &mut MendedBlocks {
        &mut self.pages.mended
    }

    /// Continues to the next change: that, `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Change<'_>>, ZoneError> {
        let next = loop {
            let mut rest = &self.carry[self.end..];
            if let Some(change) = Change::take(&mut rest) {
                if self.present().is_some_and(|last| last.key() >= change.key()) {
                    return Err(ZoneError::corrupt(self.pages.place("keys"), "they do not ascend"));
                }
                break self.carry.len() - rest.len();
            }
            if self.is_at_end() {
                self.check_end()?;
                self.at = self.end;
                return Ok(None);
            }
            self.read_page().await?;
        };
        (self.at, self.end) = (self.end, next);
        self.items += 1;
        let begun = self.begun.take().unwrap_or_else(|| (self.next_page - 1, self.at - self.page_at));
        if self.index.purpose == IndexUse::Check
            && let Some(change) = Change::take(&mut &self.carry[self.at..])
        {
            self.index.builder.add(begun.0, begun.1, change.key());
        }
        Ok(self.present())
    }

    /// The change to which `next` continued, if there was one.
    pub fn present(&self) -> Option<Change<'_>> {
        Change::take(&mut &self.carry[self.at..self.end])
    }

    fn is_at_end(&self) -> bool {
        let all_changes = self.named.index.bytes.get() > 0 && self.bytes >= self.named.run.bytes.get();
        self.next_slot == NO_SLOT || (self.is_part && all_changes)
    }

    fn check_end(&self) -> Result<(), ZoneError> {
        let NamedSegment { run, index } = &self.named;
        let as_named = self.end == self.carry.len()
            && self.bytes == run.bytes.get()
            && self.items == run.items.get()
            && self.index.bytes.len() == index.bytes.get() as usize
            && self.slots.len() == run.slots.get() as usize;
        if as_named || (self.is_part && self.end == self.carry.len()) {
            return Ok(());
        }
        Err(ZoneError::corrupt(self.pages.place("end"), "its length is not what the superblock says"))
    }

    async fn read_page(&mut self) -> Result<(), ZoneError> {
        if self.next_page >= self.named.run.slots.get() as usize {
            let place = self.pages.place(&format!("page {}", self.next_page));
            return Err(ZoneError::corrupt(place, "its chain of pages leads nowhere"));
        }
        if self.begun.is_none() && self.end < self.carry.len() {
            self.begun = Some((self.next_page - 1, self.end - self.page_at));
        }
        let (next_slot, payload) = self.pages.read(self.next_page, self.next_slot).await?;
        let mut changes = payload;
        if self.named.index.bytes.get() > 0 {
            let left = self.named.run.bytes.get().saturating_sub(self.bytes);
            let (front, behind) = payload.split_at(payload.len().min(left as usize));
            self.index.bytes.extend_from_slice(behind);
            changes = front;
        }
        self.carry.drain(..self.at);
        (self.at, self.end) = (0, self.end - self.at);
        self.page_at = self.carry.len();
        self.carry.extend_from_slice(changes);
        self.bytes += changes.len() as u64;
        self.slots.push(self.next_slot);
        self.next_page += 1;
        self.next_slot = next_slot;
        Ok(())
    }

    /// The segment, which was read to its end.
    ///
    /// Errors: `Corrupt` if its index is not right.
    pub fn finish(&mut self) -> Result<Segment, ZoneError> {
        let NamedSegment { run, index } = &self.named;
        let wrong = |text| Err(ZoneError::corrupt(self.pages.place("index"), text));
        let index_page = self.slots.iter().position(|slot| *slot == index.slot.get()).unwrap_or(usize::MAX);
        let stored = if index.bytes.get() == 0 {
            None
        } else {
            let Some((stored, slots)) = Index::decode(&self.index.bytes) else {
                return wrong("it does not decode");
            };
            let is_there = index_page as u64 == run.bytes.get() / PAGE_PAYLOAD as u64;
            if !is_there || !self.slots.starts_with(&slots) {
                return wrong("it names other pages than those that the segment has");
            }
            Some(stored)
        };
        let made = std::mem::take(&mut self.index.builder).finish();
        let index = match stored {
            Some(stored) if self.index.purpose == IndexUse::Check && stored != made => {
                return wrong("it is not that of the segment's changes");
            }
            Some(stored) => stored,
            None => made,
        };
        Ok(Segment {
            id: run.id.get(),
            bytes: run.bytes.get(),
            items: run.items.get(),
            slots: std::mem::take(&mut self.slots),
            index: Rc::new(index),
            index_bytes: self.named.index.bytes.get(),
            index_page,
        })
    }
}
