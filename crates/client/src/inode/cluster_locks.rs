//! `ClusterLocks`: a summary of a file's extent locks, for requests that do not look into the table of locks.
//!
//! Owns: for which stripes the mount holds a write lock on the whole object, and whether other mounts have requested
//! the file. A write into the cache checks the bits of these stripes and pins no lock. Does not own: the locks, and
//! when a bit is set and cleared (`locks`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// The bit of a stripe; 0 for stripes that have no bit.
pub(crate) fn stripe_bit(stripe: u32) -> u64 {
    if stripe < 64 { 1 << stripe } else { 0 }
}

/// Locks of a file.
#[derive(Default)]
pub(crate) struct ClusterLocks {
    /// Bit s: the mount holds a write lock on all of stripe s, and is not returning it.
    pub(crate) whole: AtomicU64,
    /// The size was requested under write locks on the whole of every object; the mark is cleared before one of these
    /// locks is granted to this mount again.
    pub(crate) end_kept: AtomicBool,
    /// When the size was last requested ahead of writes (`ops::attr::learn_end`); 0: never.
    pub(crate) end_asked_ns: AtomicU64,
    /// Programs may post writes under locks that the mount pins for that (`ops::posts`).
    posted_to: AtomicBool,
    /// When a lock of the file was last called back, because another mount uses the file. Nanoseconds.
    pub(crate) called_back_ns: AtomicU64,
    /// The time until which the file counts as contended, nanoseconds.
    pub(crate) contended_until_ns: AtomicU64,
    /// The last use of cached bytes, by `Mount::coarse_ns`: hits pin no lock, but count as uses of their lock by this
    /// time.
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

    /// From now on, programs may post writes under locks that the mount pins, or not any more.
    pub(crate) fn set_posted_to(&self, is_posted_to: bool) {
        self.posted_to.store(is_posted_to, SeqCst);
    }

    /// Returns whether programs may post writes under locks that the mount pins.
    pub(crate) fn are_posted_to(&self) -> bool {
        self.posted_to.load(SeqCst)
    }

    /// Returns whether write locks on whole objects cover these stripes; as long as this holds, writes need no pin.
    pub(crate) fn cover_stripes(&self, stripes: u64) -> bool {
        stripes != 0 && self.whole.load(SeqCst) & stripes == stripes
    }
}
