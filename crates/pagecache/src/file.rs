//! `CachedFile`: what the cache has to know of a file, and what it counts of it.
//!
//! Owns: the contract with whoever has the files; how much of a file is in the cache, how much of that is dirty and
//! where, how well the bytes were used. Does not own: the bytes (the crate's root), when dirty bytes are written back.

use crate::locality::Locality;
use amphi_types::ByteRange;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A file whose bytes a cache may have. Each of its units holds the file, so it lives as long as a unit does.
///
/// The methods are called under the lock of a shard: none of them may call the cache.
pub trait CachedFile: Send + Sync {
    /// The number by which the cache finds the file's bytes: no other file of this cache has it.
    fn id(&self) -> u64;

    /// What the cache counts of the file. Nobody else changes it, but for `CachedBytes::dirty_bytes`.
    fn cached(&self) -> &CachedBytes;

    /// What the cache has of `range` is going: answers to questions for these bytes that are under way do not count.
    fn spoil(&self, range: ByteRange);
}

/// Which units are dirty.
#[derive(Default)]
pub struct DirtyIndex {
    /// Unit index -> since when, nanoseconds.
    pub units: BTreeMap<u64, u64>,
}

/// Cached bytes of a file.
pub struct CachedBytes {
    /// Bytes of cache memory.
    pub bytes: AtomicU64,
    /// End of the bytes that were ever cached.
    pub end: AtomicU64,
    /// Dirty units.
    pub dirty: Mutex<DirtyIndex>,
    /// Dirty bytes, those under way included; and what is written past the cache and counts as dirty meanwhile.
    pub dirty_bytes: AtomicU64,
    /// Whether bytes are used again.
    pub locality: Locality,
}

impl CachedBytes {
    /// None yet, of a file of a cache with this locality.
    pub fn new(cache: &Arc<Locality>) -> CachedBytes {
        CachedBytes {
            bytes: AtomicU64::new(0),
            end: AtomicU64::new(0),
            dirty: Mutex::default(),
            dirty_bytes: AtomicU64::new(0),
            locality: Locality::of_file(cache),
        }
    }
}
