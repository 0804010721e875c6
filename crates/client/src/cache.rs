//! The page cache with this client's inodes as its files.
//!
//! Owns: what an inode is to the cache, and which target has room for its bytes. Does not own: the cache
//! (`amphi_pagecache`), write-back (`writeback`), how much room there is (`tables::writeback::grants`).

use crate::inode::Inode;
use crate::tables::writeback::grants::Grants;
use amphi_pagecache::{CachedBytes, CachedFile, Room};
use amphi_types::{ByteRange, TargetId};

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
        Inode::spoil(self, range);
    }
}

impl Room<Inode> for Grants {
    fn cover(&self, file: &Inode, offset: u64, blocks: u32) -> bool {
        Grants::cover(self, target_at(file, offset), u64::from(blocks))
    }

    fn uncover(&self, file: &Inode, offset: u64, blocks: u32) {
        Grants::uncover(self, target_at(file, offset), u64::from(blocks));
    }
}

/// Where a unit of a file lies: no stripe is smaller.
fn target_at(file: &Inode, offset: u64) -> TargetId {
    let layout = file.layout();
    let object = layout.pieces(file.ino, ByteRange::at(offset, 1)).next();
    object.map_or(file.ino.target(), |(object, _)| layout.target(file.ino, object.stripe))
}

/// End of the bytes of a file that are dirty or on their way to the server; 0 without any.
pub(crate) fn dirty_end(cache: &PageCache, file: &Inode) -> u64 {
    // What comes back from a flight is dirty again before the flight has ended.
    let before = file.flights.lock().last_end();
    let dirty = cache.dirty_end(file);
    // What leaves is entered among the flights before it is no longer dirty.
    let flights = file.flights.lock().last_end();
    dirty.max(flights).max(before)
}
