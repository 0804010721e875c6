//! Segments: sorted runs of changes in the metadata region, as chains of pages.
//!
//! Owns: the slot map, writing, streaming and verifying segments. Does not own: which segments are named by the
//! root (`checkpoint`). Invariants: keys ascend strictly over a whole segment; a slot is in one segment or free;
//! changes may span pages, so pages but the last are full. A page of which one block is damaged is served (`parity`).

use crate::ZoneError;
use crate::layout::{
    Geometry, NO_SLOT, PAGE_HEADER, PAGE_MAGIC, PAGE_PARITY, PAGE_PAYLOAD, PAGE_PAYLOAD_BARE, PageHeader, SLOT_BYTES,
    SegmentRef, block_crc, blocks_for,
};
use crate::parity::{self, Mended, MendedBlocks};
use crate::planted::{self, Mistake};
use amphi_env::{Buf, Disk};
use amphi_types::item::Change;
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

/// Streams changes into a new segment. The slots it took are in `slots()` also after an error.
pub struct SegmentWriter<'a, D: Disk> {
    disk: &'a D,
    geometry: Geometry,
    zone_id: u64,
    segment: Segment,
    page: Buf,
    /// Payload bytes in `page`.
    fill: usize,
    /// Most of them.
    payload_max: usize,
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
        let payload_max = if planted::is(Mistake::Version3) { PAGE_PAYLOAD_BARE } else { PAGE_PAYLOAD };
        SegmentWriter { disk, geometry, zone_id, segment, page: Buf::zeroed(SLOT_BYTES as usize), fill: 0, payload_max }
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
        if self.segment.slots.is_empty() {
            self.segment.slots.push(take_slot().ok_or(WriteError::Full)?);
        }
        let mut part = change.encoded();
        while !part.is_empty() {
            if self.fill == self.payload_max {
                let next = take_slot().ok_or(WriteError::Full)?;
                self.segment.slots.push(next);
                let index = self.segment.slots.len() - 2;
                self.write_page(index, next).await?;
            }
            let n = part.len().min(self.payload_max - self.fill);
            self.page[PAGE_HEADER + self.fill..][..n].copy_from_slice(&part[..n]);
            self.fill += n;
            part = &part[n..];
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
        self.segment.bytes += self.fill as u64;
        self.fill = 0;
        let mut page = std::mem::take(&mut self.page);
        page.set_window(0..written);
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
    /// Payload from the present change on.
    carry: Vec<u8>,
    /// The begin and end of the present change in the page; empty before the first one.
    at: usize,
    end: usize,
    bytes: u64,
    items: u64,
    /// Blocks that were damaged.
    pub mended: MendedBlocks,
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
            end: 0,
            bytes: 0,
            items: 0,
            mended: MendedBlocks::new(),
        }
    }

    fn place(&self, what: &str) -> String {
        format!("segment {}, {what}", self.named.id)
    }

    /// Goes on to the next change: that, `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Change<'_>>, ZoneError> {
        let next = loop {
            let mut rest = &self.carry[self.end..];
            if let Some(change) = Change::take(&mut rest) {
                if self.present().is_some_and(|last| last.key() >= change.key()) {
                    return Err(ZoneError::corrupt(self.place("keys"), "they do not ascend"));
                }
                break self.carry.len() - rest.len();
            }
            if self.next_slot == NO_SLOT {
                self.check_end()?;
                self.at = self.end;
                return Ok(None);
            }
            self.read_page().await?;
        };
        (self.at, self.end) = (self.end, next);
        self.items += 1;
        Ok(self.present())
    }

    /// The change that `next` continued to, if it has not come to the end.
    pub fn present(&self) -> Option<Change<'_>> {
        Change::take(&mut &self.carry[self.at..self.end])
    }

    fn check_end(&self) -> Result<(), ZoneError> {
        let as_named = self.end == self.carry.len()
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
        let at = self.geometry.slot_offset(slot);
        let (result, page) = self.disk.read(at, std::mem::take(&mut self.page)).await;
        self.page = page;
        let read = result.map_err(|e| ZoneError::io(&place, &e)).and_then(|()| self.judge(index, &place));
        let header = match read {
            Ok(header) => header,
            Err(e) => self.read_damaged(index, at, &place).await?.ok_or(e)?,
        };
        self.mend_parity(&header, at, &place);
        let fill = header.payload_bytes.get() as usize;
        self.carry.drain(..self.at);
        (self.at, self.end) = (0, self.end - self.at);
        self.carry.extend_from_slice(&self.page[PAGE_HEADER..PAGE_HEADER + fill]);
        self.bytes += fill as u64;
        self.slots.push(slot);
        self.next_slot = header.next_slot.get();
        Ok(())
    }

    /// Verifies the page in memory.
    fn judge(&self, index: usize, place: &str) -> Result<PageHeader, ZoneError> {
        let header = PageHeader::read_from_bytes(&self.page[..PAGE_HEADER]);
        let header = header.map_err(|_| ZoneError::corrupt(place, "it is cut short"))?;
        let Some(blocks) = page_blocks(&header) else {
            return Err(ZoneError::corrupt(place, "its header is wrong"));
        };
        if !parity::verifies(self.zone_id, &self.page[..blocks * BLOCK as usize]) {
            return Err(ZoneError::corrupt(place, "its checksum is wrong"));
        }
        if header.segment != self.named.id || header.index.get() as usize != index {
            return Err(ZoneError::corrupt(place, "it belongs to another segment or place"));
        }
        Ok(header)
    }

    /// Reads a page once more, block by block, and rebuilds one that cannot be read or has other bytes. `None` if the
    /// page does not verify whatever is done, `Io` if several blocks cannot be read.
    async fn read_damaged(&mut self, index: usize, at: u64, place: &str) -> Result<Option<PageHeader>, ZoneError> {
        let mut unreadable = None;
        for start in (0..SLOT_BYTES as usize).step_by(BLOCK as usize) {
            let (result, block) = self.disk.read(at + start as u64, Buf::zeroed(BLOCK as usize)).await;
            let into = &mut self.page[start..start + BLOCK as usize];
            match result {
                Ok(()) => into.copy_from_slice(&block),
                Err(e) => {
                    into.fill(0);
                    unreadable = Some(e);
                }
            }
        }
        if let Ok(header) = self.judge(index, place) {
            return Ok(Some(header));
        }
        let Some(block) = self.rebuild(index, place) else {
            return unreadable.map_or(Ok(None), |e| Err(ZoneError::io(place, &e)));
        };
        self.note_mended(block, at, place);
        self.judge(index, place).map(Some)
    }

    /// Rebuilds the one block with which the page verifies; its number.
    fn rebuild(&mut self, index: usize, place: &str) -> Option<usize> {
        let damaged = self.page.to_vec();
        let header = |block: &[u8]| {
            let header = PageHeader::read_from_bytes(&block[..PAGE_HEADER]).ok()?;
            let is_this = header.segment == self.named.id && header.index.get() as usize == index;
            (is_this && header.flags.get() & PAGE_PARITY != 0).then(|| page_blocks(&header)).flatten()
        };
        let mut tries = Vec::new();
        if let Some(blocks) = header(&damaged) {
            tries.push((blocks, damaged[..BLOCK as usize].to_vec()));
        }
        // The first block, which says how many blocks there are, is the exclusive or of all others.
        let mut first = vec![0; BLOCK as usize];
        for (n, block) in damaged.chunks_exact(BLOCK as usize).enumerate().skip(1) {
            parity::add(&mut first, block);
            if header(&first) == Some(n) {
                tries.push((n, first.clone()));
            }
        }
        for (blocks, first) in tries {
            self.page.copy_from_slice(&damaged);
            self.page[..BLOCK as usize].copy_from_slice(&first);
            let is_first = first[..] != damaged[..BLOCK as usize];
            let mended = parity::mend(self.zone_id, &mut self.page[..(blocks + 1) * BLOCK as usize]);
            if let Ok(mended) = mended
                && self.judge(index, place).is_ok()
            {
                return Some(if is_first { 0 } else { mended.unwrap_or(0) });
            }
        }
        None
    }

    /// Corrects the parity of a page that verifies.
    fn mend_parity(&mut self, header: &PageHeader, at: u64, place: &str) {
        let Some(blocks) = page_blocks(header).filter(|_| header.flags.get() & PAGE_PARITY != 0) else { return };
        let all = &mut self.page[..(blocks + 1) * BLOCK as usize];
        if !parity::agrees(all) {
            parity::seal(all);
            self.note_mended(blocks, at, &format!("{place}, its parity"));
        }
    }

    fn note_mended(&mut self, block: usize, at: u64, place: &str) {
        let start = block * BLOCK as usize;
        let bytes = self.page[start..start + BLOCK as usize].to_vec();
        self.mended.insert(at + start as u64, Mended { place: place.to_string(), block: bytes, torn: false });
    }
}

/// Blocks of a page without its parity; `None` if it cannot be one.
fn page_blocks(header: &PageHeader) -> Option<usize> {
    let fill = header.payload_bytes.get() as usize;
    let most = if header.flags.get() & PAGE_PARITY != 0 { PAGE_PAYLOAD } else { PAGE_PAYLOAD_BARE };
    (header.magic.get() == PAGE_MAGIC && fill <= most).then(|| blocks_for(PAGE_HEADER + fill) as usize)
}
