//! A block: the records of up to 64 inodes.
//!
//! Owns: where a record is, and the memory of the records. Does not own: the contents of a record (`record`).
//!
//! The records follow each other without gaps. The place of a record is the sum of the lengths before it, which the
//! processor computes from one cache line. So an inode pays one byte for its place, and a change within the block moves
//! only bytes.
//!
//! Invariants: a length of 0 means that there is no inode of this number, because every record has at least one byte.
//! The usual values are chosen when the block is made and stay unchanged, because all records of the block depend on
//! them.

use super::record::Usual;
use std::cell::Cell;

/// Inodes of a block.
pub(super) const SLOTS: usize = 64;
/// Memory beyond a quarter of the records that a block may keep when they shrink, and the least by which it grows,
/// bytes.
const STEP: usize = 32;

/// Records of inodes with neighbouring numbers.
#[derive(Clone)]
pub(super) struct Block {
    lens: [u8; SLOTS],
    usual: Usual,
    records: Vec<u8>,
    /// Whether one of its inodes was used since the block was last considered for removal from memory.
    used: Cell<bool>,
}

impl Block {
    /// A block without records.
    pub(super) fn new(usual: Usual) -> Block {
        Block { lens: [0; SLOTS], usual, records: Vec::new(), used: Cell::new(true) }
    }

    /// One of the inodes is being used.
    pub(super) fn note_use(&self) {
        self.used.set(true);
    }

    /// Whether one of the inodes was used since the last call.
    pub(super) fn take_use(&self) -> bool {
        self.used.take()
    }

    /// The values that the block's records omit.
    pub(super) fn usual(&self) -> &Usual {
        &self.usual
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Block>() + self.records.capacity()
    }

    /// The record at a place.
    pub(super) fn record(&self, slot: usize) -> Option<&[u8]> {
        let len = usize::from(self.lens[slot]);
        let start = self.start(slot);
        (len > 0).then(|| &self.records[start..start + len])
    }

    /// The records from a place on, each with its place.
    pub(super) fn records(&self, from: usize) -> impl Iterator<Item = (usize, &[u8])> {
        let mut rest = &self.records[self.start(from)..];
        let used = (from..SLOTS).filter(|&slot| self.lens[slot] > 0);
        used.map(move |slot| {
            let record;
            (record, rest) = rest.split_at(usize::from(self.lens[slot]));
            (slot, record)
        })
    }

    /// Puts a record of 1 to 255 bytes at a place. Returns whether there was a record before.
    pub(super) fn put(&mut self, slot: usize, record: &[u8]) -> bool {
        assert!(!record.is_empty() && record.len() <= usize::from(u8::MAX), "a record of {} bytes", record.len());
        self.replace(slot, record)
    }

    /// Removes the record at a place. Returns whether there was a record.
    pub(super) fn remove(&mut self, slot: usize) -> bool {
        self.replace(slot, &[])
    }

    fn start(&self, slot: usize) -> usize {
        self.lens[..slot].iter().map(|&len| u32::from(len)).sum::<u32>() as usize
    }

    /// Makes this the record at a place; no bytes mean that there is none. Returns whether there was a record before.
    fn replace(&mut self, slot: usize, record: &[u8]) -> bool {
        let (start, old, all) = (self.start(slot), usize::from(self.lens[slot]), self.records.len());
        let (old_end, end) = (start + old, start + record.len());
        assert!(old_end <= all, "the record at {slot} ends at {old_end} of {all} bytes");
        let needed = all - old + record.len();
        if needed > all {
            self.make_room(needed);
            self.records.resize(needed, 0);
        }
        self.records.copy_within(old_end..all, end);
        self.records[start..end].copy_from_slice(record);
        self.records.truncate(needed);
        self.lens[slot] = record.len() as u8;
        if self.records.capacity() > needed + needed / 4 + STEP {
            self.records.shrink_to(needed);
        }
        old > 0
    }

    /// Grows by an eighth, so that a block that is being filled moves a few times, and keeps little that it never uses.
    fn make_room(&mut self, needed: usize) {
        if needed > self.records.capacity() {
            let room = (needed / 8).max(STEP);
            self.records.reserve_exact(needed + room - self.records.len());
        }
    }
}
