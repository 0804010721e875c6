//! `Ghosts`: units that were evicted and are requested again, which show how much more memory would have helped.
//!
//! Owns: a table of the units that were evicted last. Does not own: the requests (`fill`), the consequences (the owner
//! of the cache, which knows the cost of memory).
//!
//! A unit has one place by its hash, and another evicted unit may take that place over. 65,536 places remember 4 GiB of
//! whole units in 256 KiB. (N. Megiddo, D. Modha: ARC, FAST 2003, which keeps such a list for each of its two halves.)

use super::{Key, UNIT};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Number of places, a power of two.
const PLACES: usize = 1 << 16;

/// The evicted units that are remembered; see the head of the module.
pub(super) struct Ghosts {
    places: Box<[AtomicU32]>,
    returned_bytes: AtomicU64,
}

impl Default for Ghosts {
    fn default() -> Ghosts {
        let places = (0..PLACES).map(|_| AtomicU32::new(0)).collect();
        Ghosts { places, returned_bytes: AtomicU64::new(0) }
    }
}

impl Ghosts {
    /// The place of a unit, and the value that identifies it there, which is never 0.
    fn place(&self, (file, unit): Key) -> (&AtomicU32, u32) {
        let hash = (file.rotate_left(32) ^ unit).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (&self.places[hash as usize >> 16 & (PLACES - 1)], (hash >> 32) as u32 | 1)
    }

    /// Notes that a unit was evicted.
    pub(super) fn left(&self, key: Key) {
        let (place, tag) = self.place(key);
        place.store(tag, Relaxed);
    }

    /// Notes that a unit is made for bytes that a program requested.
    pub(super) fn asked(&self, key: Key) {
        let (place, tag) = self.place(key);
        if place.load(Relaxed) == tag && place.swap(0, Relaxed) == tag {
            self.returned_bytes.fetch_add(UNIT, Relaxed);
        }
    }

    /// Bytes of units that were requested again after their eviction.
    pub(super) fn returned_bytes(&self) -> u64 {
        self.returned_bytes.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a unit that left the cache and is loaded again counts once; one that never left it does not count. Method:
    /// the test makes the calls itself; a thousand units, some of which may share an entry.
    #[test]
    fn what_comes_back_counts_once() {
        let ghosts = Ghosts::default();
        ghosts.asked((1, 1));
        assert_eq!(ghosts.returned_bytes(), 0);
        ghosts.left((1, 1));
        ghosts.asked((1, 2));
        assert_eq!(ghosts.returned_bytes(), 0);
        ghosts.asked((1, 1));
        ghosts.asked((1, 1));
        assert_eq!(ghosts.returned_bytes(), UNIT);
        (0..1000).for_each(|unit| ghosts.left((7, unit)));
        (0..1000).for_each(|unit| ghosts.asked((7, unit)));
        let found = ghosts.returned_bytes() / UNIT - 1;
        assert!(found > 950, "{found} of 1000");
    }
}
