//! `ClusterLocks`: what a file knows of its locks in the cluster, for requests that look at no table.
//!
//! Owns: which stripes lie under a write lock on all of their object (a write in the cache that checks their bits pins
//! no lock), whether others have wanted the file. Does not own: the locks, and when a bit comes and goes (`locks`).

use super::Inode;
use amphi_types::ByteRange;
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

impl Inode {
    /// Notes a use of cached bytes.
    #[inline]
    pub(crate) fn note_use(&self, coarse_ns: u64) {
        if self.locks.used_ns.load(Relaxed) != coarse_ns {
            self.locks.used_ns.store(coarse_ns, Relaxed);
        }
    }

    /// Whether write locks on whole objects cover these stripes: then writes need no pin, as long as this holds.
    pub(crate) fn covers_stripes(&self, stripes: u64) -> bool {
        stripes != 0 && self.locks.whole.load(SeqCst) & stripes == stripes
    }

    /// The bits of the stripes that hold `range`; 0 if there are stripes without a bit.
    pub(crate) fn stripe_bits(&self, range: ByteRange) -> u64 {
        let layout = self.layout();
        let (first, end) = layout.stripe_at(range.start);
        if end >= range.end {
            return stripe_bit(first);
        }
        let mut bits = 0;
        for (object, _) in layout.pieces(self.ino, range) {
            match stripe_bit(object.stripe) {
                0 => return 0,
                bit => bits |= bit,
            }
        }
        bits
    }

    /// The bits of all stripes that the file can have; 0 if there are some without a bit.
    pub(crate) fn all_stripe_bits(&self) -> u64 {
        match self.layout().stripes() {
            64 => u64::MAX,
            stripes @ 1..64 => (1 << stripes) - 1,
            _ => 0,
        }
    }
}
