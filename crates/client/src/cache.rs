//! The page cache with this client's inodes as its files.
//!
//! Owns: the interface by which the cache uses an inode as a file. Does not own: the cache (`amphi_pagecache`),
//! write-back (`writeback`).

use crate::inode::Inode;
use amphi_pagecache::{CachedBytes, CachedFile};
use amphi_types::ByteRange;

/// The cache of a mount.
pub(crate) type PageCache = amphi_pagecache::PageCache<Inode>;

impl CachedFile for Inode {
    #[inline]
    fn id(&self) -> u64 {
        self.ino.0
    }

    #[inline]
    fn cached(&self) -> &CachedBytes {
        &self.cached
    }

    fn spoil(&self, range: ByteRange) {
        self.fills.spoil(range);
    }

    #[inline]
    fn changes(&self, range: ByteRange) {
        self.exported().bytes_change(range.start, range.end);
    }
}

/// End of the bytes of a file that are dirty or on their way to the server; 0 if there are none.
pub(crate) fn dirty_end(cache: &PageCache, file: &Inode) -> u64 {
    // Bytes that a flight puts back are dirty again before the flight has ended.
    let before = file.flights.lock().last_end();
    let dirty = cache.dirty_end(file);
    // Bytes that are being sent are entered among the flights before they become clean.
    let flights = file.flights.lock().last_end();
    dirty.max(flights).max(before)
}
