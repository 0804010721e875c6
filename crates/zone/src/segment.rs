//! Segments: sorted runs of changes in the metadata region, as chains of pages.
//!
//! Owns: the slot map, writing, streaming and verifying segments. Does not own: which segments are named by the
//! root (`checkpoint`). Invariants: keys ascend strictly over a whole segment; a slot is in one segment or free;
//! changes may span pages, so pages but the last are full.

use crate::ZoneError;
use crate::change::{self, Decoded};
use crate::layout::{
    Geometry, NO_SLOT, PAGE_HEADER, PAGE_MAGIC, PAGE_PAYLOAD, PageHeader, SLOT_BYTES, SegmentRef, block_crc, blocks_for,
};
use amphi_env::{Buf, Disk};
use amphi_types::limits::BLOCK;
use zerocopy::{FromBytes, IntoBytes};

/// A segment and where its pages lie.
#[derive(Clone, Debug)]
pub struct Segment {
    pub id: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Changes.
    pub items: u64,
    /// Slots of its pages, in order.
    pub slots: Vec<u32>,
}

impl Segment {
    /// As the root names it.
    pub fn as_ref(&self) -> SegmentRef {
        SegmentRef {
            id: self.id.into(),
            bytes: self.bytes.into(),
            items: self.items.into(),
            first_slot: self.slots.first().copied().unwrap_or(NO_SLOT).into(),
            slots: (self.slots.len() as u32).into(),
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

    /// One past the highest slot that is taken.
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

/// Streams changes into a new segment. The slots it took are in `slots()` also after an error.
pub struct SegmentWriter<'a, D: Disk> {
    disk: &'a D,
    geometry: Geometry,
    zone_id: u64,
    segment: Segment,
    page: Buf,
    /// Payload bytes in `page`.
    fill: usize,
}

/// Why a segment was not written.
pub enum WriteError {
    /// No free slot.
    Full,
    /// The disk failed.
    Io(std::io::Error),
}

impl<'a, D: Disk> SegmentWriter<'a, D> {
    pub fn new(disk: &'a D, geometry: Geometry, zone_id: u64, id: u64) -> SegmentWriter<'a, D> {
        let segment = Segment { id, bytes: 0, items: 0, slots: Vec::new() };
        SegmentWriter { disk, geometry, zone_id, segment, page: Buf::zeroed(SLOT_BYTES as usize), fill: 0 }
    }

    /// Slots taken so far.
    pub fn slots(&self) -> &[u32] {
        &self.segment.slots
    }

    /// Adds a change; keys must ascend. `take_slot` gives free slots.
    pub async fn put(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
        take_slot: &mut impl FnMut() -> Option<u32>,
    ) -> Result<(), WriteError> {
        self.segment.items += 1;
        let header = change::header(key, value);
        for part in [&header[..], key, value.unwrap_or(&[])] {
            let mut part = part;
            while !part.is_empty() {
                if self.segment.slots.is_empty() {
                    self.segment.slots.push(take_slot().ok_or(WriteError::Full)?);
                }
                if self.fill == PAGE_PAYLOAD {
                    let next = take_slot().ok_or(WriteError::Full)?;
                    self.segment.slots.push(next);
                    let index = self.segment.slots.len() - 2;
                    self.write_page(index, next).await?;
                }
                let n = part.len().min(PAGE_PAYLOAD - self.fill);
                self.page[PAGE_HEADER + self.fill..][..n].copy_from_slice(&part[..n]);
                self.fill += n;
                part = &part[n..];
            }
        }
        Ok(())
    }

    async fn write_page(&mut self, index: usize, next_slot: u32) -> Result<(), WriteError> {
        let end = blocks_for(PAGE_HEADER + self.fill) as usize * BLOCK as usize;
        self.page[PAGE_HEADER + self.fill..end].fill(0);
        let header = PageHeader {
            magic: PAGE_MAGIC.into(),
            crc: 0.into(),
            segment: self.segment.id.into(),
            index: (index as u32).into(),
            next_slot: next_slot.into(),
            payload_bytes: (self.fill as u32).into(),
            reserved: 0.into(),
        };
        self.page[..PAGE_HEADER].copy_from_slice(header.as_bytes());
        let crc = block_crc(self.zone_id, &self.page[..end]);
        self.page[4..8].copy_from_slice(&crc.to_le_bytes());
        self.segment.bytes += self.fill as u64;
        self.fill = 0;
        let mut page = std::mem::take(&mut self.page);
        page.set_window(0..end);
        let at = self.geometry.slot_offset(self.segment.slots[index]);
        let (result, mut page) = self.disk.write(at, page).await;
        page.set_window(0..SLOT_BYTES as usize);
        self.page = page;
        result.map_err(WriteError::Io)
    }

    /// Writes the last page. `None` if nothing was put.
    pub async fn finish(&mut self) -> Result<Option<Segment>, WriteError> {
        let Some(last) = self.segment.slots.len().checked_sub(1) else {
            return Ok(None);
        };
        self.write_page(last, NO_SLOT).await?;
        Ok(Some(self.segment.clone()))
    }
}

/// Streams the changes of a segment, verifying every page.
pub struct SegmentReader<'a, D: Disk> {
    disk: &'a D,
    geometry: Geometry,
    zone_id: u64,
    named: SegmentRef,
    /// Slots of the pages read.
    pub slots: Vec<u32>,
    next_slot: u32,
    page: Buf,
    /// Payload not yet decoded.
    carry: Vec<u8>,
    at: usize,
    bytes: u64,
    items: u64,
    last_key: Option<Vec<u8>>,
}

impl<'a, D: Disk> SegmentReader<'a, D> {
    pub fn new(disk: &'a D, geometry: Geometry, zone_id: u64, named: SegmentRef) -> SegmentReader<'a, D> {
        SegmentReader {
            disk,
            geometry,
            zone_id,
            named,
            slots: Vec::new(),
            next_slot: named.first_slot.get(),
            page: Buf::zeroed(SLOT_BYTES as usize),
            carry: Vec::new(),
            at: 0,
            bytes: 0,
            items: 0,
            last_key: None,
        }
    }

    fn place(&self, what: &str) -> String {
        format!("segment {}, {what}", self.named.id)
    }

    /// The next change, `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Decoded>, ZoneError> {
        loop {
            let mut rest = &self.carry[self.at..];
            if let Some((key, value)) = change::take(&mut rest) {
                self.at = self.carry.len() - rest.len();
                if self.last_key.as_ref().is_some_and(|last| *last >= key) {
                    return Err(ZoneError::corrupt(self.place("keys"), "they do not ascend"));
                }
                self.items += 1;
                self.last_key = Some(key.clone());
                return Ok(Some((key, value)));
            }
            if self.next_slot == NO_SLOT {
                return self.check_end().map(|()| None);
            }
            self.read_page().await?;
        }
    }

    fn check_end(&self) -> Result<(), ZoneError> {
        let as_named = self.at == self.carry.len()
            && self.bytes == self.named.bytes.get()
            && self.items == self.named.items.get()
            && self.slots.len() == self.named.slots.get() as usize;
        if as_named {
            return Ok(());
        }
        Err(ZoneError::corrupt(self.place("end"), "its length is not what the superblock says"))
    }

    async fn read_page(&mut self) -> Result<(), ZoneError> {
        let index = self.slots.len();
        let slot = self.next_slot;
        let place = self.place(&format!("page {index} in slot {slot}"));
        if u64::from(slot) >= self.geometry.meta_slots || index >= self.named.slots.get() as usize {
            return Err(ZoneError::corrupt(place, "its chain of pages leads nowhere"));
        }
        let (result, page) = self.disk.read(self.geometry.slot_offset(slot), std::mem::take(&mut self.page)).await;
        self.page = page;
        result.map_err(|e| ZoneError::io(&place, &e))?;
        let header = PageHeader::read_from_bytes(&self.page[..PAGE_HEADER]);
        let header = header.map_err(|_| ZoneError::corrupt(&place, "it is cut short"))?;
        let fill = header.payload_bytes.get() as usize;
        if header.magic.get() != PAGE_MAGIC || fill > PAGE_PAYLOAD {
            return Err(ZoneError::corrupt(place, "its header is wrong"));
        }
        let end = blocks_for(PAGE_HEADER + fill) as usize * BLOCK as usize;
        if block_crc(self.zone_id, &self.page[..end]) != header.crc.get() {
            return Err(ZoneError::corrupt(place, "its checksum is wrong"));
        }
        if header.segment != self.named.id || header.index.get() as usize != index {
            return Err(ZoneError::corrupt(place, "it belongs to another segment or place"));
        }
        self.carry.drain(..self.at);
        self.at = 0;
        self.carry.extend_from_slice(&self.page[PAGE_HEADER..PAGE_HEADER + fill]);
        self.bytes += fill as u64;
        self.slots.push(slot);
        self.next_slot = header.next_slot.get();
        Ok(())
    }
}
