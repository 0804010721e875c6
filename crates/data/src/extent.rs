//! Extents of one object: the map from file blocks to physical blocks, and its items.
//!
//! Owns: splitting, joining and encoding extents. Does not own: which blocks they get (`alloc`).
//!
//! Invariants: extents do not overlap. Two adjacent extents that could be one are one, up to `EXTENT_BLOCKS_MAX`.
//!
//! Items (keys are big-endian so that they keep their order; values are little-endian):
//!
//! | item | key | value |
//! |---|---|---|
//! | object | `B`, ino u64, stripe u32 | end u64, mtime sec i64, mtime nsec u32, generation u64 (28 bytes) |
//! | extent | `E`, ino u64, stripe u32, file block u64 | physical block u64, blocks u32, state u8 (13 bytes) |
//! | delayed extent | `W`, ino u64, stripe u32, file byte u64 | length u32; of the write that it is a part of: first byte u64, length u32, place in memory u64, CRC-32C u32; mtime sec i64, mtime nsec u32 (40 bytes) |
//! | logged bytes | `L`, ino u64, stripe u32, file byte u64 | mtime sec i64, mtime nsec u32, the bytes (1 to 4096, all of one block) |
//! | checksums | `K`, physical block / 32 u64 | CRC-32C u32 of each of 32 blocks; 0: none, 1: damaged (128 bytes) |
//! | memory | `W` | number that names the memory of all delayed extents, u64 |
//!
//! State is 1 for written, 0 for preallocated (reads as zeros).

use crate::alloc::Run;
use crate::delayed::DirtyExtent;
use crate::grants::session_of;
use crate::logged::Piece;
use crate::memory::Memory;
use amphi_types::item::{Key, Txn, tag};
use amphi_types::limits::BLOCK;
use amphi_types::{Ino, ObjectId, SessionId, Timespec};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Most blocks of one extent: 128 MiB.
pub const EXTENT_BLOCKS_MAX: u32 = 32_768;

/// Consecutive file blocks that lie in consecutive physical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First physical block.
    pub physical: u64,
    /// Length in blocks.
    pub blocks: u32,
    /// Whether the extent contains bytes. If not, it is preallocated and reads as zeros.
    pub written: bool,
}

impl Extent {
    /// The physical blocks.
    pub fn run(&self) -> Run {
        Run { start: self.physical, blocks: self.blocks }
    }
}

/// An object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Object {
    pub end: u64,
    pub mtime: Timespec,
    pub generation: u64,
    /// Extents by their first file block.
    pub extents: BTreeMap<u64, Extent>,
    /// Blocks of all extents.
    pub blocks: u64,
    /// Whether the object's own item was loaded or written. False only during loading.
    pub has_item: bool,
    /// Written blocks that lie below the end now, though the last growth did not rewrite them, with the number of their
    /// bytes that were below the earlier end. See `filled`.
    pub outgrown: BTreeMap<u64, u64>,
}

impl Object {
    /// Parts of the file blocks `from..to` that are mapped, ascending.
    pub fn mapped(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, Extent)> + '_ {
        let first = self.extents.range(..=from).next_back().map_or(from, |(&b, _)| b);
        self.extents.range(first..to.max(first)).filter_map(move |(&b, e)| clip(b, *e, from, to))
    }

    /// Removes the file blocks `from..to` from the map. Returns the parts that were mapped, ascending. First blocks of
    /// changed extents are added to `touched`.
    pub fn cut(&mut self, from: u64, to: u64, touched: &mut BTreeSet<u64>) -> Vec<(u64, Extent)> {
        let removed: Vec<_> = self.mapped(from, to).collect();
        let first = self.extents.range(..=from).next_back().map_or(from, |(&b, _)| b);
        let starts: Vec<u64> = self.extents.range(first..to.max(first)).map(|(&b, _)| b).collect();
        for start in starts {
            let whole = self.extents[&start];
            let end = start + u64::from(whole.blocks);
            if end <= from {
                continue;
            }
            touched.insert(start);
            self.extents.remove(&start);
            if let Some((b, e)) = clip(start, whole, start, from) {
                self.extents.insert(b, e);
            }
            if let Some((b, e)) = clip(start, whole, to, end.max(to)) {
                touched.insert(b);
                self.extents.insert(b, e);
            }
        }
        self.blocks -= removed.iter().map(|(_, e)| u64::from(e.blocks)).sum::<u64>();
        if !self.outgrown.is_empty() {
            self.outgrown.retain(|&b, _| b < from || b >= to);
        }
        removed
    }

    /// Number of bytes of a written block that lie below the object's end in every state that a crash can leave in
    /// which the block is mapped as now. The bytes behind them must stay zero, also on the disk. A crash may bring back
    /// an earlier end, and a later growth would then show what was written there in place.
    pub fn filled(&self, file_block: u64) -> u64 {
        match self.outgrown.get(&file_block) {
            Some(&bytes) => bytes,
            None => self.end.saturating_sub(file_block * BLOCK).min(BLOCK),
        }
    }

    /// Raises the end to at least `end`. `last_rewritten`: the same record maps the block of the old end to a new
    /// place.
    pub fn grow(&mut self, end: u64, last_rewritten: bool) {
        let last = self.end / BLOCK;
        if end <= self.end {
            return;
        }
        if !self.end.is_multiple_of(BLOCK) && !last_rewritten && self.mapped(last, last + 1).any(|(_, e)| e.written) {
            self.outgrown.entry(last).or_insert(self.end % BLOCK);
        }
        self.end = end;
    }

    /// Adds an extent where nothing is mapped, and joins it to its neighbours.
    pub fn put(&mut self, at: u64, extent: Extent, touched: &mut BTreeSet<u64>) {
        self.blocks += u64::from(extent.blocks);
        let (mut at, mut extent) = (at, extent);
        if let Some((&left_at, left)) = self.extents.range(..at).next_back()
            && let Some(joined) = join(left_at, *left, at, extent)
        {
            touched.insert(at);
            (at, extent) = (left_at, joined);
        }
        let right_at = at + u64::from(extent.blocks);
        if let Some(right) = self.extents.get(&right_at)
            && let Some(joined) = join(at, extent, right_at, *right)
        {
            touched.insert(right_at);
            self.extents.remove(&right_at);
            extent = joined;
        }
        touched.insert(at);
        self.extents.insert(at, extent);
    }

    /// Appends the items of the extents in `touched` to `txn`.
    pub fn log_extents(&self, id: ObjectId, touched: &BTreeSet<u64>, txn: &mut Txn) {
        for &at in touched {
            match self.extents.get(&at) {
                Some(e) => txn.put(extent_key(id, at), extent_value(e)),
                None => txn.delete(extent_key(id, at)),
            }
        }
    }

    /// Appends the object's own item to `txn`.
    pub fn log_object(&self, id: ObjectId, txn: &mut Txn) {
        txn.put(object_key(id), self.value());
    }

    pub fn value(&self) -> Vec<u8> {
        let mut v = Vec::with_capacity(28);
        v.extend_from_slice(&self.end.to_le_bytes());
        v.extend_from_slice(&self.mtime.sec.to_le_bytes());
        v.extend_from_slice(&self.mtime.nsec.to_le_bytes());
        v.extend_from_slice(&self.generation.to_le_bytes());
        v
    }
}

fn clip(at: u64, e: Extent, from: u64, to: u64) -> Option<(u64, Extent)> {
    let start = at.max(from);
    let end = (at + u64::from(e.blocks)).min(to);
    (start < end).then(|| {
        (start, Extent { physical: e.physical + (start - at), blocks: (end - start) as u32, written: e.written })
    })
}

fn join(left_at: u64, left: Extent, right_at: u64, right: Extent) -> Option<Extent> {
    let adjacent = left_at + u64::from(left.blocks) == right_at && left.run().end() == right.physical;
    let blocks = left.blocks + right.blocks;
    (adjacent && left.written == right.written && blocks <= EXTENT_BLOCKS_MAX).then_some(Extent { blocks, ..left })
}

pub(crate) fn object_key(id: ObjectId) -> Key {
    let mut k = Vec::with_capacity(13);
    k.push(tag::OBJECT);
    k.extend_from_slice(&id.ino.0.to_be_bytes());
    k.extend_from_slice(&id.stripe.to_be_bytes());
    k
}

pub(crate) fn extent_key(id: ObjectId, at: u64) -> Key {
    let mut k = Vec::with_capacity(21);
    k.push(tag::EXTENT);
    k.extend_from_slice(&id.ino.0.to_be_bytes());
    k.extend_from_slice(&id.stripe.to_be_bytes());
    k.extend_from_slice(&at.to_be_bytes());
    k
}

pub(crate) fn extent_value(e: &Extent) -> Vec<u8> {
    let mut v = Vec::with_capacity(13);
    v.extend_from_slice(&e.physical.to_le_bytes());
    v.extend_from_slice(&e.blocks.to_le_bytes());
    v.push(u8::from(e.written));
    v
}

/// Key of the item that names the memory of all delayed extents.
pub(crate) fn memory_key() -> Key {
    vec![tag::DELAYED]
}

pub(crate) fn dirty_key(id: ObjectId, start: u64) -> Key {
    let mut k = extent_key(id, start);
    k[0] = tag::DELAYED;
    k
}

/// Value of the delayed extent at file byte `start`: its length, then the write that it belongs to (start, length,
/// place in the memory, checksum) and its time.
pub(crate) fn dirty_value(start: u64, e: &DirtyExtent) -> Vec<u8> {
    let mut v = Vec::with_capacity(DIRTY_VALUE);
    v.extend_from_slice(&((e.end - start) as u32).to_le_bytes());
    v.extend_from_slice(&e.memory.start.to_le_bytes());
    v.extend_from_slice(&e.memory.len.to_le_bytes());
    v.extend_from_slice(&e.memory.at.to_le_bytes());
    v.extend_from_slice(&e.memory.crc.to_le_bytes());
    v.extend_from_slice(&e.mtime.sec.to_le_bytes());
    v.extend_from_slice(&e.mtime.nsec.to_le_bytes());
    v
}

const DIRTY_VALUE: usize = 40;

/// Decodes the value of the delayed extent at file byte `start`.
pub(crate) fn decode_dirty(start: u64, value: &[u8]) -> Option<DirtyExtent> {
    let (len, rest) = value.split_first_chunk::<4>()?;
    let (first, rest) = rest.split_first_chunk::<8>()?;
    let (all, rest) = rest.split_first_chunk::<4>()?;
    let (at, rest) = rest.split_first_chunk::<8>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let (sec, rest) = rest.split_first_chunk::<8>()?;
    let nsec = u32::from_le_bytes(rest.try_into().ok()?);
    let (len, all) = (u64::from(u32::from_le_bytes(*len)), u32::from_le_bytes(*all));
    let (first, at) = (u64::from_le_bytes(*first), u64::from_le_bytes(*at));
    let end = start.checked_add(len).filter(|end| *end <= amphi_types::limits::FILE_MAX)?;
    let whole = first.checked_add(u64::from(all))?;
    at.checked_add(u64::from(all))?;
    let fits = len > 0 && first <= start && end <= whole && nsec < 1_000_000_000;
    let memory = Memory::left(first, all, at, u32::from_le_bytes(*crc));
    let mtime = Timespec { sec: i64::from_le_bytes(*sec), nsec };
    fits.then(|| DirtyExtent { end, mtime, memory: Rc::new(memory), logged: false })
}

pub(crate) fn logged_key(id: ObjectId, start: u64) -> Key {
    let mut k = extent_key(id, start);
    k[0] = tag::LOGGED;
    k
}

/// Value of the logged bytes at a file byte: their time, and the bytes.
pub(crate) fn logged_value(piece: &Piece) -> Vec<u8> {
    let mut v = Vec::with_capacity(12 + piece.bytes.len());
    v.extend_from_slice(&piece.mtime.sec.to_le_bytes());
    v.extend_from_slice(&piece.mtime.nsec.to_le_bytes());
    v.extend_from_slice(&piece.bytes);
    v
}

/// Decodes the value of the logged bytes at file byte `start`.
pub(crate) fn decode_logged(start: u64, value: &[u8]) -> Option<Piece> {
    let (sec, rest) = value.split_first_chunk::<8>()?;
    let (nsec, bytes) = rest.split_first_chunk::<4>()?;
    let mtime = Timespec { sec: i64::from_le_bytes(*sec), nsec: u32::from_le_bytes(*nsec) };
    let end = start.checked_add(bytes.len() as u64).filter(|end| *end <= amphi_types::limits::FILE_MAX)?;
    let fits = !bytes.is_empty() && start / BLOCK == (end - 1) / BLOCK && mtime.nsec < 1_000_000_000;
    fits.then(|| Piece { mtime, bytes: bytes.into() })
}

/// A decoded key of this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DataKey {
    Object(ObjectId),
    Extent(ObjectId, u64),
    Memory,
    Dirty(ObjectId, u64),
    Logged(ObjectId, u64),
    Checksums(u64),
    Grant(SessionId),
}

impl DataKey {
    pub fn decode(key: &[u8]) -> Option<DataKey> {
        let (&kind, rest) = key.split_first()?;
        if kind == tag::DELAYED && rest.is_empty() {
            return Some(DataKey::Memory);
        }
        if kind == tag::GRANT {
            return session_of(key).map(DataKey::Grant);
        }
        if kind == tag::CHECKSUM {
            return Some(DataKey::Checksums(u64::from_be_bytes(rest.try_into().ok()?)));
        }
        let (ino, rest) = rest.split_first_chunk::<8>()?;
        let (stripe, rest) = rest.split_first_chunk::<4>()?;
        let id = ObjectId { ino: Ino(u64::from_be_bytes(*ino)), stripe: u32::from_be_bytes(*stripe) };
        match (kind, rest) {
            (tag::OBJECT, []) => Some(DataKey::Object(id)),
            (tag::EXTENT, at) => Some(DataKey::Extent(id, u64::from_be_bytes(at.try_into().ok()?))),
            (tag::DELAYED, at) => Some(DataKey::Dirty(id, u64::from_be_bytes(at.try_into().ok()?))),
            (tag::LOGGED, at) => Some(DataKey::Logged(id, u64::from_be_bytes(at.try_into().ok()?))),
            _ => None,
        }
    }
}

/// Decodes an object's value.
pub(crate) fn decode_object(value: &[u8]) -> Option<Object> {
    let (end, rest) = value.split_first_chunk::<8>()?;
    let (sec, rest) = rest.split_first_chunk::<8>()?;
    let (nsec, rest) = rest.split_first_chunk::<4>()?;
    let generation: [u8; 8] = rest.try_into().ok()?;
    let mtime = Timespec { sec: i64::from_le_bytes(*sec), nsec: u32::from_le_bytes(*nsec) };
    let end = u64::from_le_bytes(*end);
    (mtime.nsec < 1_000_000_000 && end <= amphi_types::limits::FILE_MAX).then_some(Object {
        end,
        mtime,
        generation: u64::from_le_bytes(generation),
        has_item: true,
        ..Object::default()
    })
}

/// Decodes an extent's value, and checks its place among `physical_blocks` blocks.
pub(crate) fn decode_extent(at: u64, value: &[u8], physical_blocks: u64) -> Result<Extent, String> {
    let parts = value.split_first_chunk::<8>().and_then(|(p, rest)| {
        let (blocks, state) = rest.split_first_chunk::<4>()?;
        let written = match state {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        Some(Extent { physical: u64::from_le_bytes(*p), blocks: u32::from_le_bytes(*blocks), written })
    });
    let e = parts.ok_or("its value does not decode")?;
    if e.blocks == 0 || e.blocks > EXTENT_BLOCKS_MAX {
        return Err(format!("its length of {} blocks is out of bounds", e.blocks));
    }
    if e.physical.checked_add(u64::from(e.blocks)).is_none_or(|end| end > physical_blocks) {
        return Err(format!("physical block {} is outside of the {physical_blocks} of the zone", e.physical));
    }
    if at.checked_add(u64::from(e.blocks)).is_none_or(|end| end > FILE_BLOCKS) {
        return Err(format!("file block {at} is beyond the largest file"));
    }
    Ok(e)
}

/// One past the last block that a file can have.
pub(crate) const FILE_BLOCKS: u64 = amphi_types::limits::FILE_MAX / amphi_types::limits::BLOCK + 1;
