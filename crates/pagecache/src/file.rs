//! `CachedFile`: the properties of a file that the cache uses, and its counters for the file.
//!
//! Owns: the contract with the owner of the files; how much of a file is cached, how much of that is dirty and where,
//! how well the bytes were used. Does not own: the bytes (the root of the crate), when dirty bytes are written back.

use crate::locality::Locality;
use amphi_types::ByteRange;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A file whose bytes can be cached. Each of its units holds a reference to it, so it lives as long as any unit.
///
/// The methods are called under the lock of a shard, so none of them may call the cache.
pub trait CachedFile: Send + Sync {
    /// The number by which the cache finds the file's bytes. No other file of this cache has this number.
    fn id(&self) -> u64;

    /// The cache's counters for the file. Only the cache changes it, except for `CachedBytes::dirty_bytes`.
    fn cached(&self) -> &CachedBytes;

    /// Cached bytes of `range` are being dropped, so answers to requests under way for these bytes must not be cached.
    fn spoil(&self, range: ByteRange);

    /// Valid bytes of `range` are about to be replaced, or to be dropped because they may not be right any more. (An
    /// eviction drops bytes that are right.) It is called before any reader of the cache can see the change.
    fn changes(&self, _range: ByteRange) {}
}

/// The dirty units of a file.
#[derive(Default)]
pub struct DirtyIndex {
    /// For each dirty unit, by its index, the time since when it is dirty, in nanoseconds.
    pub units: BTreeMap<u64, u64>,
}

/// The counts of a file's cached bytes.
pub struct CachedBytes {
    /// Bytes of cache memory.
    pub bytes: AtomicU64,
    /// The end of all bytes that were ever cached.
    pub end: AtomicU64,
    /// Dirty units.
    pub dirty: Mutex<DirtyIndex>,
    /// Dirty bytes, including those under way, and direct writes under way, which count as dirty.
    pub dirty_bytes: AtomicU64,
    /// Whether bytes of the file are used again.
    pub locality: Locality,
}

impl CachedBytes {
    /// Counts of a file without cached bytes, in a cache with this locality.
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
