//! `CachedBytes`: how much of a file the cache has, and how much of it is dirty.
//!
//! Owns: these numbers, the index of dirty units, when and how well the bytes were used. Does not own: the bytes
//! (`cache`), write-back (`writeback`).

use super::Inode;
use crate::policy::locality::Locality;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Which units are dirty.
#[derive(Default)]
pub(crate) struct DirtyIndex {
    /// Unit index -> since when, nanoseconds.
    pub(crate) units: BTreeMap<u64, u64>,
}

/// Cached bytes of a file.
pub(crate) struct CachedBytes {
    /// Bytes of cache memory.
    pub(crate) bytes: AtomicU64,
    /// End of the bytes that were ever cached.
    pub(crate) end: AtomicU64,
    pub(crate) dirty: Mutex<DirtyIndex>,
    /// Dirty bytes, those under way included.
    pub(crate) dirty_bytes: AtomicU64,
    /// Memory of writes past the cache that have returned and not landed (`write_behind`).
    pub(crate) piped_bytes: AtomicU64,
    /// The last use of cached bytes, as `Mount::coarse_ns` told it: hits pin no lock, and count for its age by this.
    pub(crate) used_ns: AtomicU64,
    pub(crate) locality: Locality,
}

impl CachedBytes {
    /// None yet, of a file of a mount with this locality.
    pub(super) fn new(mount: &Arc<Locality>) -> CachedBytes {
        CachedBytes {
            bytes: AtomicU64::new(0),
            end: AtomicU64::new(0),
            dirty: Mutex::default(),
            dirty_bytes: AtomicU64::new(0),
            piped_bytes: AtomicU64::new(0),
            used_ns: AtomicU64::new(0),
            locality: Locality::of_file(mount),
        }
    }
}

impl Inode {
    /// Notes a use of cached bytes.
    #[inline]
    pub(crate) fn note_use(&self, coarse_ns: u64) {
        if self.cached.used_ns.load(Relaxed) != coarse_ns {
            self.cached.used_ns.store(coarse_ns, Relaxed);
        }
    }
}
