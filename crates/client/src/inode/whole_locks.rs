//! Stripes of a file that lie under a write lock on all of their object: a write in the cache that checks their bits
//! pins no lock.
//!
//! Owns: what stands for which stripe. Does not own: when a bit comes and goes (`locks`).

use super::Inode;
use amphi_types::ByteRange;
use std::sync::atomic::Ordering::SeqCst;

/// The bit of a stripe; 0 for those beyond.
pub(crate) fn stripe_bit(stripe: u32) -> u64 {
    if stripe < 64 { 1 << stripe } else { 0 }
}

impl Inode {
    /// Whether write locks on whole objects cover these stripes: then writes need no pin, as long as this holds.
    pub(crate) fn covers_stripes(&self, stripes: u64) -> bool {
        stripes != 0 && self.whole_locks.load(SeqCst) & stripes == stripes
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
