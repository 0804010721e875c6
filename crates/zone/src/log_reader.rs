//! `LogBlocks`: the log's groups as they lie in the ring, verified, and with one damaged block each rebuilt.
//!
//! Owns: reading ahead, following the chain, rebuilding (`parity`). Does not own: which groups count (`recover`). It
//! writes nothing: the blocks that were rebuilt are in `mended`. Invariants: only the very group that follows the last
//! one is ever rebuilt; blocks that cannot be read count as damaged, and are an error unless they were rebuilt.

use crate::ZoneError;
use crate::layout::{GROUP_BLOCKS_OLD, GROUP_HEADER, GROUP_MAGIC, Geometry, GroupHeader, Superblock, VERSION_NEAR};
use crate::log_point::{Link, LogPoint};
use crate::parity::{self, Mended, MendedBlocks};
use crate::planted::{self, Mistake};
use amphi_env::{Buf, Disk};
use amphi_types::limits::BLOCK;
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// Bytes read at once from the log.
const CHUNK_BLOCKS: u64 = 256;

/// First bytes of a block.
type Head = [u8; GROUP_HEADER];

/// Log blocks by position, read ahead in chunks.
pub struct LogBlocks<'a, D: Disk> {
    disk: &'a D,
    geometry: Geometry,
    zone_id: u64,
    /// Groups up to this one may be of an older version, and large.
    old_seq: u64,
    chunk: Vec<u8>,
    chunk_at: u64,
    /// The first bytes of blocks behind the end of the log, and the place of the first of these blocks: enough of each
    /// for a header, and 128 KiB at most.
    heads: Vec<Head>,
    heads_at: u64,
    /// Blocks that were rebuilt.
    pub mended: MendedBlocks,
    /// Positions that could not be read and have not been rebuilt; a ring of blocks at most.
    unreadable: BTreeMap<u64, ZoneError>,
}

impl<'a, D: Disk> LogBlocks<'a, D> {
    pub fn new(disk: &'a D, root: &Superblock) -> LogBlocks<'a, D> {
        let (mended, unreadable) = (MendedBlocks::new(), BTreeMap::new());
        let (geometry, zone_id) = (root.geometry(), root.zone_id.get());
        // A zone of an older version may still have been written when its root was made.
        let old_seq = if root.version.get() < VERSION_NEAR { u64::MAX } else { root.stable_seq.get() };
        let (chunk, heads) = (Vec::new(), Vec::new());
        LogBlocks { disk, geometry, zone_id, old_seq, chunk, chunk_at: 0, heads, heads_at: 0, mended, unreadable }
    }

    pub async fn get(&mut self, position: u64, blocks: u64) -> Result<&[u8], ZoneError> {
        let have = self.chunk.len() as u64 / BLOCK;
        if position < self.chunk_at || position + blocks > self.chunk_at + have {
            self.read_chunk(position, blocks.max(CHUNK_BLOCKS).min(self.geometry.log_blocks)).await;
        }
        let from = ((position - self.chunk_at) * BLOCK) as usize;
        Ok(&self.chunk[from..from + (blocks * BLOCK) as usize])
    }

    /// Makes `blocks` from `position` on the chunk.
    async fn read_chunk(&mut self, position: u64, blocks: u64) {
        self.chunk.clear();
        self.chunk_at = position;
        let mut at = position;
        while at < position + blocks {
            // A read ends at the edge of the ring.
            let n = (position + blocks - at).min(self.geometry.log_blocks - at % self.geometry.log_blocks);
            self.read(at, n).await;
            at += n;
        }
    }

    /// Reads the first bytes of all blocks that are looked at behind the end of the log. For the first ones, the bytes
    /// of the chunk are used.
    async fn look_ahead(&mut self, position: u64) {
        let blocks = self.geometry.tail_blocks();
        self.heads_at = position;
        self.heads.clear();
        self.heads.resize(blocks as usize, [0; GROUP_HEADER]);
        for chunk in (0..blocks.div_ceil(CHUNK_BLOCKS) as usize).rev() {
            let from = chunk as u64 * CHUNK_BLOCKS;
            self.read_chunk(position + from, CHUNK_BLOCKS.min(blocks - from)).await;
            let (heads, _) = self.chunk.as_chunks::<{ BLOCK as usize }>();
            for (into, block) in self.heads[from as usize..].iter_mut().zip(heads) {
                into.copy_from_slice(&block[..GROUP_HEADER]);
            }
        }
    }

    /// The first bytes of a block.
    pub async fn head(&mut self, position: u64) -> Result<&[u8], ZoneError> {
        match position.checked_sub(self.heads_at).filter(|n| *n < self.heads.len() as u64) {
            Some(index) => Ok(&self.heads[index as usize]),
            None => self.get(position, 1).await.map(|block| &block[..GROUP_HEADER]),
        }
    }

    /// Reads blocks behind those of the chunk: all at once, or one by one if that fails.
    async fn read(&mut self, at: u64, blocks: u64) {
        let (result, buf) = self.disk.read(self.geometry.log_address(at), Buf::zeroed((blocks * BLOCK) as usize)).await;
        if result.is_ok() {
            self.chunk.extend_from_slice(&buf);
            return;
        }
        for position in at..at + blocks {
            let address = self.geometry.log_address(position);
            let (result, buf) = self.disk.read(address, Buf::zeroed(BLOCK as usize)).await;
            match result {
                Ok(()) => self.chunk.extend_from_slice(&buf),
                Err(e) => {
                    self.chunk.resize(self.chunk.len() + BLOCK as usize, 0);
                    self.unreadable.insert(position, ZoneError::io(format!("log at byte {address}"), &e));
                }
            }
        }
    }

    /// Forgets what was read and rebuilt.
    pub fn forget(&mut self) {
        self.chunk.clear();
        self.heads.clear();
        self.mended.clear();
        self.unreadable.clear();
    }

    /// An error if a block could not be read and was not rebuilt: then the end of the log is unknown.
    pub fn check_readable(&self) -> Result<(), ZoneError> {
        self.unreadable.values().next().map_or(Ok(()), |e| Err(e.clone()))
    }

    /// The group at `position` if it verifies, with its blocks but for its parity.
    pub async fn group(&mut self, position: u64) -> Result<Option<(GroupHeader, &[u8])>, ZoneError> {
        let (log_blocks, zone_id) = (self.geometry.log_blocks, self.zone_id);
        let first = self.get(position, 1).await?;
        let Some(header) = header_of(first).filter(|h| h.blocks() <= log_blocks) else {
            return Ok(None);
        };
        let bytes = self.get(position, header.data_blocks()).await?;
        Ok(parity::verifies(zone_id, bytes).then_some((header, bytes)))
    }

    /// Follows the groups from `at` while they verify and name their predecessor. `take` gets each one's header, body
    /// and position; the end is behind the last one that it accepted.
    pub async fn follow(
        &mut self,
        mut at: LogPoint,
        ring_end: u64,
        mut take: impl FnMut(LogPoint, &GroupHeader, &[u8]) -> Result<bool, ZoneError>,
    ) -> Result<LogPoint, ZoneError> {
        while at.position < ring_end {
            let found = self.group(at.position).await?;
            if !found.is_some_and(|(header, _)| follows(&header, at)) {
                // Most likely this is the end of the log: all blocks behind it that are examined are read once.
                self.look_ahead(at.position).await;
                if !self.rebuild(at, ring_end).await? {
                    break;
                }
            }
            let Some((header, bytes)) = self.group(at.position).await? else {
                break;
            };
            let end = at.position + header.blocks();
            let body = &bytes[GROUP_HEADER..GROUP_HEADER + header.body_bytes.get() as usize];
            if !follows(&header, at) || end > ring_end || !take(at, &header, body)? {
                break;
            }
            self.mend(at.position, &header).await?;
            at.position = end;
            at.seq += 1;
            at.lsn += u64::from(header.records.get());
            at.link = Link { opening: header.opening.get(), crc: header.crc.get() };
        }
        Ok(at)
    }

    /// Rebuilds, in memory, the one block without which the group behind `at` does not verify, and returns whether the
    /// group verifies now.
    async fn rebuild(&mut self, at: LogPoint, ring_end: u64) -> Result<bool, ZoneError> {
        let is_next = |header: &GroupHeader| {
            header.has_parity()
                && is_chained(header, at)
                && follows(header, at)
                && at.position + header.blocks() <= ring_end
        };
        let first = self.get(at.position, 1).await?.to_vec();
        if let Some(header) = header_of(&first).filter(is_next)
            && self.mend(at.position, &header).await?
        {
            return Ok(true);
        }
        // The first block, which says how many blocks there are, is the exclusive or of all others.
        let mut sum = [0; GROUP_HEADER];
        let most = if at.seq < self.old_seq { GROUP_BLOCKS_OLD + 1 } else { self.geometry.unsynced_max() };
        for blocks in 1..(ring_end - at.position).min(most) {
            parity::add(&mut sum, self.head(at.position + blocks).await?);
            let Some(header) = header_of(&sum).filter(|h| h.data_blocks() == blocks && is_next(h)) else { continue };
            let others = &self.get(at.position, header.blocks()).await?[BLOCK as usize..];
            let sum = parity::sum(others);
            self.patch(at.position, &sum);
            if self.mend(at.position, &header).await? {
                self.note(at.position, &header, 0);
                return Ok(true);
            }
            self.patch(at.position, &first);
        }
        Ok(false)
    }

    /// Mends the group with this header in memory, if it, or only its parity, is damaged; returns whether it is whole.
    async fn mend(&mut self, position: u64, header: &GroupHeader) -> Result<bool, ZoneError> {
        if !header.has_parity() {
            return Ok(true);
        }
        let zone_id = self.zone_id;
        let bytes = self.get(position, header.blocks()).await?;
        if parity::agrees(bytes) && parity::verifies(zone_id, &bytes[..bytes.len() - BLOCK as usize]) {
            return Ok(true);
        }
        let mut bytes = bytes.to_vec();
        let Ok(mended) = parity::mend(zone_id, &mut bytes) else {
            return Ok(false);
        };
        let Some(block) = mended else {
            return Ok(true);
        };
        let start = block * BLOCK as usize;
        self.patch(position + block as u64, &bytes[start..start + BLOCK as usize]);
        self.note(position, header, block as u64);
        Ok(true)
    }

    /// Copies a rebuilt block to its place in the chunk, which contains that position.
    fn patch(&mut self, position: u64, block: &[u8]) {
        let from = ((position - self.chunk_at) * BLOCK) as usize;
        self.chunk[from..from + BLOCK as usize].copy_from_slice(block);
    }

    /// Notes a block of the chunk that was rebuilt.
    fn note(&mut self, position: u64, header: &GroupHeader, block: u64) {
        let at = position + block;
        let what = if block == header.data_blocks() { ", its parity" } else { "" };
        let place = format!("log group {} at block {}{what}", header.seq, position % self.geometry.log_blocks);
        let from = ((at - self.chunk_at) * BLOCK) as usize;
        let block = self.chunk[from..from + BLOCK as usize].to_vec();
        self.mended.insert(self.geometry.log_address(at), Mended { place, block, torn: false });
        self.unreadable.remove(&at);
    }
}

/// The header of a group, if `block` begins with one.
pub fn header_of(block: &[u8]) -> Option<GroupHeader> {
    let header = GroupHeader::read_from_bytes(&block[..GROUP_HEADER]).ok()?;
    (header.magic.get() == GROUP_MAGIC).then_some(header)
}

fn is_chained(header: &GroupHeader, at: LogPoint) -> bool {
    header.prev_opening.get() == at.link.opening && header.prev_crc.get() == at.link.crc
}

fn follows(header: &GroupHeader, at: LogPoint) -> bool {
    header.seq.get() == at.seq + 1
        && header.first_lsn.get() == at.lsn + 1
        && (is_chained(header, at) || planted::is(Mistake::NoChain))
}
