//! `PageReader`: reads, verifies and, if need be, rebuilds one page of a segment after the other.
//!
//! Owns: the memory of a page, and which blocks were damaged. Does not own: the meaning of the payload (`reader`).

use crate::ZoneError;
use crate::layout::{
    Geometry, PAGE_HEADER, PAGE_MAGIC, PAGE_PARITY, PAGE_PAYLOAD, PAGE_PAYLOAD_BARE, PageHeader, SLOT_BYTES, blocks_for,
};
use crate::parity::{self, Mended, MendedBlocks};
use amphi_env::{Buf, Disk};
use amphi_types::limits::BLOCK;
use zerocopy::FromBytes;

/// Reads pages of one segment.
pub struct PageReader<'a, D: Disk> {
    disk: &'a D,
    geometry: Geometry,
    zone_id: u64,
    /// The id of the segment.
    segment: u64,
    page: Buf,
    /// Blocks that were damaged.
    pub mended: MendedBlocks,
}

impl<'a, D: Disk> PageReader<'a, D> {
    /// `page`: memory for a page, if there is some already.
    pub fn new(disk: &'a D, geometry: Geometry, zone_id: u64, segment: u64, page: Option<Buf>) -> PageReader<'a, D> {
        let page = page.unwrap_or_else(|| Buf::zeroed(SLOT_BYTES as usize));
        PageReader { disk, geometry, zone_id, segment, page, mended: MendedBlocks::new() }
    }

    /// The memory, for another reader.
    pub fn into_memory(self) -> Buf {
        self.page
    }

    /// Names a part of the segment in errors.
    pub fn place(&self, what: &str) -> String {
        format!("segment {}, {what}", self.segment)
    }

    /// Reads page `index`, which lies in `slot`. Returns the slot of the next page, and the payload.
    pub async fn read(&mut self, index: usize, slot: u32) -> Result<(u32, &[u8]), ZoneError> {
        let place = self.place(&format!("page {index} in slot {slot}"));
        if u64::from(slot) >= self.geometry.meta_slots {
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
        Ok((header.next_slot.get(), &self.page[PAGE_HEADER..PAGE_HEADER + fill]))
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
        if header.segment != self.segment || header.index.get() as usize != index {
            return Err(ZoneError::corrupt(place, "it belongs to another segment or place"));
        }
        Ok(header)
    }

    /// Reads a page once more, block by block, and rebuilds one that cannot be read or has other bytes. Returns `None`
    /// if the page does not verify whatever is done, `Io` if several blocks cannot be read.
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

    /// Rebuilds the only block whose rebuilding makes the page verify. Returns the number of the block.
    fn rebuild(&mut self, index: usize, place: &str) -> Option<usize> {
        let damaged = self.page.to_vec();
        let header = |block: &[u8]| {
            let header = PageHeader::read_from_bytes(&block[..PAGE_HEADER]).ok()?;
            let is_this = header.segment == self.segment && header.index.get() as usize == index;
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
