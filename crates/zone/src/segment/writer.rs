//! `SegmentWriter`: streams changes into a new segment and writes the index behind them.
//!
//! Owns: the page that is being filled. Does not own: which slots are free (`SlotMap`), or when the segment is named
//! (`checkpoint`).

use super::index::IndexBuilder;
use super::run::Segment;
use crate::layout::{
    Geometry, NO_SLOT, PAGE_HEADER, PAGE_MAGIC, PAGE_PARITY, PAGE_PAYLOAD, PAGE_PAYLOAD_BARE, PageHeader, SLOT_BYTES,
    block_crc, blocks_for,
};
use crate::parity;
use crate::planted::{self, Mistake};
use amphi_env::{Buf, Disk};
use amphi_types::item::Change;
use amphi_types::limits::BLOCK;
use std::rc::Rc;
use zerocopy::IntoBytes;

/// Streams changes into a new segment. The slots it took are in `slots()` also after an error.
pub struct SegmentWriter<'a, D: Disk> {
    disk: &'a D,
    geometry: Geometry,
    zone_id: u64,
    segment: Segment,
    page: Buf,
    /// Payload bytes in `page`.
    fill: usize,
    /// Most payload bytes of a page.
    payload_max: usize,
    index: IndexBuilder,
}

/// The reason why a segment was not written.
pub enum WriteError {
    /// No free slot.
    Full,
    /// The disk failed.
    Io(std::io::Error),
}

impl<'a, D: Disk> SegmentWriter<'a, D> {
    pub fn new(disk: &'a D, geometry: Geometry, zone_id: u64, id: u64) -> SegmentWriter<'a, D> {
        let segment =
            Segment { id, bytes: 0, items: 0, slots: Vec::new(), index: Rc::default(), index_bytes: 0, index_page: 0 };
        let payload_max = if planted::is(Mistake::Version3) { PAGE_PAYLOAD_BARE } else { PAGE_PAYLOAD };
        let page = Buf::zeroed(SLOT_BYTES as usize);
        SegmentWriter { disk, geometry, zone_id, segment, page, fill: 0, payload_max, index: IndexBuilder::default() }
    }

    /// Slots taken so far.
    pub fn slots(&self) -> &[u32] {
        &self.segment.slots
    }

    /// Adds a change; keys must ascend. `take_slot` gives free slots.
    pub async fn put(
        &mut self,
        change: Change<'_>,
        take_slot: &mut impl FnMut() -> Option<u32>,
    ) -> Result<(), WriteError> {
        self.segment.items += 1;
        self.segment.bytes += change.encoded().len() as u64;
        self.make_room(take_slot).await?;
        self.index.add(self.segment.slots.len() - 1, self.fill, change.key());
        self.push(change.encoded(), take_slot).await
    }

    /// Makes sure that the page has room for a byte.
    async fn make_room(&mut self, take_slot: &mut impl FnMut() -> Option<u32>) -> Result<(), WriteError> {
        if self.segment.slots.is_empty() {
            self.segment.slots.push(take_slot().ok_or(WriteError::Full)?);
        }
        if self.fill == self.payload_max {
            let next = take_slot().ok_or(WriteError::Full)?;
            self.segment.slots.push(next);
            let index = self.segment.slots.len() - 2;
            self.write_page(index, next).await?;
        }
        Ok(())
    }

    async fn push(&mut self, mut part: &[u8], take_slot: &mut impl FnMut() -> Option<u32>) -> Result<(), WriteError> {
        while !part.is_empty() {
            self.make_room(take_slot).await?;
            let n = part.len().min(self.payload_max - self.fill);
            self.page[PAGE_HEADER + self.fill..][..n].copy_from_slice(&part[..n]);
            self.fill += n;
            part = &part[n..];
        }
        Ok(())
    }

    async fn write_page(&mut self, index: usize, next_slot: u32) -> Result<(), WriteError> {
        assert!(self.fill <= self.payload_max, "a page of {} bytes, at most {}", self.fill, self.payload_max);
        let end = blocks_for(PAGE_HEADER + self.fill) as usize * BLOCK as usize;
        self.page[PAGE_HEADER + self.fill..end].fill(0);
        let header = PageHeader {
            magic: PAGE_MAGIC.into(),
            crc: 0.into(),
            segment: self.segment.id.into(),
            index: (index as u32).into(),
            next_slot: next_slot.into(),
            payload_bytes: (self.fill as u32).into(),
            flags: if self.payload_max == PAGE_PAYLOAD { PAGE_PARITY } else { 0 }.into(),
        };
        self.page[..PAGE_HEADER].copy_from_slice(header.as_bytes());
        let crc = block_crc(self.zone_id, &self.page[..end]);
        self.page[4..8].copy_from_slice(&crc.to_le_bytes());
        let mut written = end;
        if header.flags.get() & PAGE_PARITY != 0 {
            written += BLOCK as usize;
            parity::seal(&mut self.page[..written]);
        }
        assert!(written as u64 <= SLOT_BYTES, "a page of {written} bytes in a slot of {SLOT_BYTES}");
        self.fill = 0;
        let mut page = std::mem::take(&mut self.page);
        page.set_window(0..written);
        let at = self.geometry.slot_offset(self.segment.slots[index]);
        let (result, mut page) = self.disk.write(at, page).await;
        page.set_window(0..SLOT_BYTES as usize);
        self.page = page;
        result.map_err(WriteError::Io)
    }

    /// Writes the index and the last page. Returns `None` if nothing was put.
    pub async fn finish(&mut self, take_slot: &mut impl FnMut() -> Option<u32>) -> Result<Option<Segment>, WriteError> {
        if self.segment.slots.is_empty() {
            return Ok(None);
        }
        let index = std::mem::take(&mut self.index).finish();
        if !planted::is(Mistake::Version3) && !planted::is(Mistake::Version5) {
            let mut bytes = Vec::new();
            index.encode(&self.segment.slots, &mut bytes);
            self.make_room(take_slot).await?;
            self.segment.index_page = self.segment.slots.len() - 1;
            self.segment.index_bytes = bytes.len() as u32;
            self.push(&bytes, take_slot).await?;
        }
        self.segment.index = Rc::new(index);
        self.write_page(self.segment.slots.len() - 1, NO_SLOT).await?;
        Ok(Some(self.segment.clone()))
    }
}
