//! `PagePool`: pages of memory that outlives the process, and which of them are in use.
//!
//! Owns: which pages contain accepted bytes, and when they may be used again. Does not own: the bytes themselves (the
//! server copies them there), or which bytes of a file they are (`delayed`).
//!
//! Invariant: a page belongs to one write at a time, and is free again when the last handle on it is dropped. The
//! caller that cuts the last extent of these pages keeps a handle until the record of the cut survives a kill of the
//! process (`DataStore::take_dead`).
//!
//! The number behind the order: a page of a tmpfs costs 6 to 19 us when it is touched for the first time, and next to
//! nothing afterwards. So the lowest free pages are taken first.

use amphi_types::DataChecksums;
use amphi_types::limits::BLOCK;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

#[derive(Default)]
struct Pool {
    /// Free runs by first page; no two runs touch.
    free: BTreeMap<u64, u64>,
    used: u64,
    pages: u64,
}

impl Pool {
    fn give(&mut self, first: u64, count: u64) {
        self.used -= count;
        let (mut first, mut count) = (first, count);
        if let Some((&at, &n)) = self.free.range(..first).next_back()
            && at + n == first
        {
            self.free.remove(&at);
            (first, count) = (at, n + count);
        }
        if let Some(n) = self.free.remove(&(first + count)) {
            count += n;
        }
        self.free.insert(first, count);
    }
}

/// Pages of 4 KiB, numbered from 0. The value is a cheap handle for one thread.
#[derive(Clone, Default)]
pub struct PagePool {
    pool: Rc<RefCell<Pool>>,
}

impl PagePool {
    /// A pool of `pages` free pages.
    pub fn new(pages: u64) -> PagePool {
        let free = if pages > 0 { BTreeMap::from([(0, pages)]) } else { BTreeMap::new() };
        PagePool { pool: Rc::new(RefCell::new(Pool { free, used: 0, pages })) }
    }

    /// Takes `count` consecutive pages for the `len` bytes at file byte `start`. The bytes begin `start % BLOCK` bytes
    /// into the first page. Returns `None` if there are no such pages.
    pub fn take(&self, start: u64, len: u64) -> Option<Slot> {
        let count = (start % BLOCK + len).div_ceil(BLOCK);
        let mut pool = self.pool.borrow_mut();
        let (first, n) = pool.free.iter().find(|(_, n)| **n >= count).map(|(&first, &n)| (first, n))?;
        pool.free.remove(&first);
        if n > count {
            pool.free.insert(first + count, n - count);
        }
        pool.used += count;
        Some(Slot { first, count, pool: self.pool.clone(), at: first * BLOCK + start % BLOCK })
    }

    /// Number of pages in use, and of all pages.
    pub fn usage(&self) -> (u64, u64) {
        let pool = self.pool.borrow();
        (pool.used, pool.pages)
    }
}

/// Pages that were taken. Dropping the value returns the pages.
pub struct Slot {
    first: u64,
    count: u64,
    pool: Rc<RefCell<Pool>>,
    at: u64,
}

impl Slot {
    /// Offset in the memory at which the bytes go.
    pub fn at(&self) -> u64 {
        self.at
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pool.borrow_mut().give(self.first, self.count);
    }
}

/// The bytes of one accepted write in memory. Several extents share it after a cut.
pub struct Memory {
    /// First byte in the file.
    pub start: u64,
    /// Number of bytes.
    pub len: u32,
    /// Offset in the memory at which the bytes begin.
    pub at: u64,
    /// Checksum of all bytes, as the server computed it.
    pub crc: u32,
    /// The file's setting for checksums when the bytes were written; `None` if it is not known here.
    pub checksums: Option<DataChecksums>,
    /// It is `None` for memory of an earlier process, which has no pool.
    slot: Option<Slot>,
    /// The bytes themselves, if they came from the log and no memory has them.
    bytes: Option<Rc<[u8]>>,
}

impl Memory {
    /// The bytes that were copied to `slot`.
    pub fn new(start: u64, len: u32, crc: u32, slot: Slot, checksums: DataChecksums) -> Memory {
        Memory { start, len, at: slot.at, crc, checksums: Some(checksums), slot: Some(slot), bytes: None }
    }

    /// Memory that an earlier process left.
    pub(crate) fn left(start: u64, len: u32, at: u64, crc: u32) -> Memory {
        Memory { start, len, at, crc, checksums: None, slot: None, bytes: None }
    }

    /// Bytes that came from the log.
    pub(crate) fn logged(start: u64, bytes: Rc<[u8]>) -> Memory {
        Memory { start, len: bytes.len() as u32, at: 0, crc: 0, checksums: None, slot: None, bytes: Some(bytes) }
    }

    /// Returns whether an earlier process left this memory.
    pub fn is_left(&self) -> bool {
        self.slot.is_none() && self.bytes.is_none()
    }

    /// The bytes, if they came from the log and no memory has them.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_deref()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{} at {}", self.start, self.len, self.at)
    }
}

impl PartialEq for Memory {
    fn eq(&self, other: &Memory) -> bool {
        (self.start, self.len, self.at, self.crc) == (other.start, other.len, other.at, other.crc)
    }
}

impl Eq for Memory {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: pages are used by one at a time, the lowest first, and join when they come back. Method: single calls in a
    /// fixed order.
    #[test]
    fn pages_are_used_again() {
        let pool = PagePool::new(10);
        let a = pool.take(100, 5000).expect("two pages");
        let b = pool.take(BLOCK, 3 * BLOCK).expect("three pages");
        assert_eq!((a.at(), b.at(), pool.usage()), (100, 2 * BLOCK, (5, 10)));
        assert!(pool.take(0, 6 * BLOCK).is_none());
        drop(a);
        let c = pool.take(7, 1).expect("one page");
        assert_eq!(c.at(), 7);
        drop((b, c));
        assert_eq!(pool.usage(), (0, 10));
        assert_eq!(pool.take(0, 10 * BLOCK).map(|s| s.at()), Some(0), "all in one piece again");
    }
}
