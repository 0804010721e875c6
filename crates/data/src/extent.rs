//! An object, its extents and its items.
//!
//! Owns: splitting, joining and encoding extents. Does not own: which blocks they get (`alloc`), or how they lie in
//! memory (`extents`, `objects`).
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

use crate::delayed::DirtyExtent;
use crate::extents::{EXTENT_BLOCKS_MAX, Extent, Extents};
use crate::grants::session_of;
use crate::logged::Piece;
use crate::memory::Memory;
use amphi_quota::OwnerIndex;
use amphi_types::item::{Txn, tag};
use amphi_types::limits::BLOCK;
use amphi_types::{Ino, ObjectId, SessionId, Timespec};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Written blocks that lie below an object's end now, though the last growth did not rewrite them, with the number of
/// their bytes that were below the earlier end. See `Object::filled`. Few objects have such blocks.
type Outgrown = BTreeMap<u64, u64>;

/// An object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Object {
    pub end: u64,
    pub generation: u64,
    /// Extents by their first file block.
    pub extents: Extents,
    outgrown: Option<Box<Outgrown>>,
    mtime_sec: i64,
    mtime_nsec: u32,
    /// The number of the object's owner, and the highest bit if the object has an item.
    owner: u32,
}

/// A bit of `owner`: the object's own item was loaded or written.
const ITEM: u32 = OwnerIndex::END;

const _: () = assert!(size_of::<Object>() == 64);

impl Object {
    /// Time of the last change of content.
    pub fn mtime(&self) -> Timespec {
        Timespec { sec: self.mtime_sec, nsec: self.mtime_nsec }
    }

    pub fn set_mtime(&mut self, mtime: Timespec) {
        (self.mtime_sec, self.mtime_nsec) = (mtime.sec, mtime.nsec);
    }

    /// Returns whether the object's own item was loaded or written. Returns false only during loading.
    pub fn has_item(&self) -> bool {
        self.owner & ITEM != 0
    }

    pub fn note_item(&mut self) {
        self.owner |= ITEM;
    }

    /// The owner to whom the object is charged.
    pub fn owner(&self) -> OwnerIndex {
        OwnerIndex(self.owner & !ITEM)
    }

    pub fn set_owner(&mut self, owner: OwnerIndex) {
        self.owner = self.owner & ITEM | owner.0;
    }

    /// Blocks of all extents.
    pub fn blocks(&self) -> u64 {
        self.extents.blocks()
    }

    /// The extents that may have a block of `from..to`.
    fn near(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, Extent)> {
        let first = self.extents.before(from + 1).map_or(from, |(b, _)| b);
        self.extents.range(first).take_while(move |(b, _)| *b < to)
    }

    /// Parts of the file blocks `from..to` that are mapped, ascending.
    pub fn mapped(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, Extent)> {
        self.near(from, to).filter_map(move |(b, e)| clip(b, e, from, to))
    }

    /// Removes the file blocks `from..to` from the map. Returns the parts that were mapped, ascending. First blocks of
    /// changed extents are added to `touched`.
    pub fn cut(&mut self, from: u64, to: u64, touched: &mut BTreeSet<u64>) -> Vec<(u64, Extent)> {
        let removed: Vec<_> = self.mapped(from, to).collect();
        let near: SmallVec<[(u64, Extent); 4]> = self.near(from, to).collect();
        for (start, whole) in near {
            let end = start + u64::from(whole.blocks);
            if end <= from {
                continue;
            }
            touched.insert(start);
            self.extents.remove(start);
            if let Some((b, e)) = clip(start, whole, start, from) {
                self.extents.insert(b, e);
            }
            if let Some((b, e)) = clip(start, whole, to, end.max(to)) {
                touched.insert(b);
                self.extents.insert(b, e);
            }
        }
        if let Some(outgrown) = &mut self.outgrown {
            outgrown.retain(|&b, _| b < from || b >= to);
            self.outgrown.take_if(|outgrown| outgrown.is_empty());
        }
        removed
    }

    /// Number of bytes of a written block that lie below the object's end in every state that a crash can leave in
    /// which the block is mapped as now. The bytes behind them must stay zero, also on the disk. A crash may bring back
    /// an earlier end, and a later growth of the object would then show the bytes that were written there in place.
    pub fn filled(&self, file_block: u64) -> u64 {
        match self.outgrown.as_ref().and_then(|outgrown| outgrown.get(&file_block)) {
            Some(&bytes) => bytes,
            None => self.end.saturating_sub(file_block * BLOCK).min(BLOCK),
        }
    }

    /// The blocks of `from..to` in which the object once ended before it grew beyond them.
    pub fn outgrown(&self, from: u64, to: u64) -> impl Iterator<Item = u64> {
        self.outgrown.iter().flat_map(move |outgrown| outgrown.range(from..to).map(|(&block, _)| block))
    }

    /// Raises the end to at least `end`. `last_rewritten`: the same record maps the block of the old end to a new
    /// place.
    pub fn grow(&mut self, end: u64, last_rewritten: bool) {
        let last = self.end / BLOCK;
        if end <= self.end {
            return;
        }
        if !self.end.is_multiple_of(BLOCK) && !last_rewritten && self.mapped(last, last + 1).any(|(_, e)| e.written) {
            self.outgrown.get_or_insert_default().entry(last).or_insert(self.end % BLOCK);
        }
        self.end = end;
    }

    /// Adds an extent where nothing is mapped, and joins it to its neighbours.
    pub fn put(&mut self, at: u64, extent: Extent, touched: &mut BTreeSet<u64>) {
        let (mut at, mut extent) = (at, extent);
        if let Some((left_at, left)) = self.extents.before(at)
            && let Some(joined) = join(left_at, left, at, extent)
        {
            touched.insert(at);
            (at, extent) = (left_at, joined);
        }
        let right_at = at + u64::from(extent.blocks);
        if let Some(right) = self.extents.get(right_at)
            && let Some(joined) = join(at, extent, right_at, right)
        {
            touched.insert(right_at);
            self.extents.remove(right_at);
            extent = joined;
        }
        touched.insert(at);
        self.extents.insert(at, extent);
    }

    /// Appends the items of the extents in `touched` to `txn`.
    pub fn log_extents(&self, id: ObjectId, touched: &BTreeSet<u64>, txn: &mut Txn) {
        for &at in touched {
            match self.extents.get(at) {
                Some(e) => txn.put(extent_key(id, at), extent_value(&e)),
                None => txn.delete(extent_key(id, at)),
            }
        }
    }

    /// Appends the object's own item to `txn`.
    pub fn log_object(&self, id: ObjectId, txn: &mut Txn) {
        txn.put(object_key(id), self.value());
    }

    pub fn value(&self) -> [u8; 28] {
        let mut v = [0; 28];
        v[..8].copy_from_slice(&self.end.to_le_bytes());
        v[8..16].copy_from_slice(&self.mtime_sec.to_le_bytes());
        v[16..20].copy_from_slice(&self.mtime_nsec.to_le_bytes());
        v[20..].copy_from_slice(&self.generation.to_le_bytes());
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

pub(crate) fn object_key(id: ObjectId) -> [u8; 13] {
    let mut k = [tag::OBJECT; 13];
    k[1..9].copy_from_slice(&id.ino.0.to_be_bytes());
    k[9..].copy_from_slice(&id.stripe.to_be_bytes());
    k
}

/// A key of something at a place of an object.
fn place_key(kind: u8, id: ObjectId, at: u64) -> [u8; 21] {
    let mut k = [kind; 21];
    k[1..9].copy_from_slice(&id.ino.0.to_be_bytes());
    k[9..13].copy_from_slice(&id.stripe.to_be_bytes());
    k[13..].copy_from_slice(&at.to_be_bytes());
    k
}

pub(crate) fn extent_key(id: ObjectId, at: u64) -> [u8; 21] {
    place_key(tag::EXTENT, id, at)
}

pub(crate) fn extent_value(e: &Extent) -> [u8; 13] {
    let mut v = [u8::from(e.written); 13];
    v[..8].copy_from_slice(&e.physical.to_le_bytes());
    v[8..12].copy_from_slice(&e.blocks.to_le_bytes());
    v
}

/// Key of the item that names the memory of all delayed extents.
pub(crate) fn memory_key() -> [u8; 1] {
    [tag::DELAYED]
}

pub(crate) fn dirty_key(id: ObjectId, start: u64) -> [u8; 21] {
    place_key(tag::DELAYED, id, start)
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

pub(crate) fn logged_key(id: ObjectId, start: u64) -> [u8; 21] {
    place_key(tag::LOGGED, id, start)
}

/// The value of the item of a piece of logged bytes: the mtime of their write, then the bytes.
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
        mtime_sec: mtime.sec,
        mtime_nsec: mtime.nsec,
        generation: u64::from_le_bytes(generation),
        owner: ITEM,
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

/// The block after the last one that a file can have.
pub(crate) const FILE_BLOCKS: u64 = amphi_types::limits::FILE_MAX / amphi_types::limits::BLOCK + 1;
