//! `ClusterLocks`: what a file knows of its locks in the cluster, for requests that look at no table.
//!
//! Owns: which stripes lie under a write lock on all of their object (a write in the cache that checks their bits pins
//! no lock), whether others have wanted the file. Does not own: the locks, and when a bit comes and goes (`locks`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// The bit of a stripe; 0 for those beyond.
pub(crate) fn stripe_bit(stripe: u32) -> u64 {
    if stripe < 64 { 1 << stripe } else { 0 }
}

/// Locks of a file.
#[derive(Default)]
pub(crate) struct ClusterLocks {
    /// Bit s: a write lock on all of stripe s is held and not on its way back.
    pub(crate) whole: AtomicU64,
    /// The size was asked for under write locks on all of every object; goes before one of them is given to this mount
    /// anew.
    pub(crate) end_kept: AtomicBool,
    /// When it was last asked for ahead of writes (`ops::attr::learn_end`); 0: never.
    pub(crate) end_asked_ns: AtomicU64,
    /// A lock was called back: others use the file. Nanoseconds.
    pub(crate) called_back_ns: AtomicU64,
    /// Until when the file counts as contended, nanoseconds.
    pub(crate) contended_until_ns: AtomicU64,
    /// The last use of cached bytes, as `Mount::coarse_ns` told it: hits pin no lock, and count for its age by this.
    pub(crate) used_ns: AtomicU64,
}

impl ClusterLocks {
    /// Notes a use of cached bytes.
    #[inline]
    pub(crate) fn note_use(&self, coarse_ns: u64) {
        if self.used_ns.load(Relaxed) != coarse_ns {
            self.used_ns.store(coarse_ns, Relaxed);
        }
    }

    /// Whether write locks on whole objects cover these stripes: then writes need no pin, as long as this holds.
    pub(crate) fn cover_stripes(&self, stripes: u64) -> bool {
        stripes != 0 && self.whole.load(SeqCst) & stripes == stripes
    }
}
