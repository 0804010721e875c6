//! Counters that let cache hits run without the range lock.
//!
//! `idle`: if it is set, no request holds any bytes, so a write within one cache unit needs no lock. `stamp`: if it has
//! not changed, no request held bytes exclusively in between. `unguarded`: if it has not changed, no write without the
//! lock happened in between either, so a read over several units saw one state. Every cached write within a unit
//! increments `unguarded`. So `unguarded` has a cache line of its own, and reads of one unit do not lose the line of
//! the other counters. Tests under `loom` try all interleavings (`cargo test -p amphi-client --features loom --lib
//! marks`).

use super::Hold;
#[cfg(feature = "loom")]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
#[cfg(not(feature = "loom"))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// A counter with a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Apart(AtomicU64);

#[derive(Default)]
pub(super) struct Marks {
    holders: AtomicU32,
    exclusive: AtomicU32,
    stamp: AtomicU64,
    unguarded: Apart,
}

impl Marks {
    /// A request holds bytes from now on.
    pub(super) fn granted(&self, hold: Hold) {
        if hold == Hold::Exclusive {
            self.exclusive.fetch_add(1, SeqCst);
            self.stamp.fetch_add(1, SeqCst);
        }
        self.holders.fetch_add(1, SeqCst);
    }

    /// A request no longer holds bytes.
    pub(super) fn released(&self, hold: Hold) {
        if hold == Hold::Exclusive {
            self.exclusive.fetch_sub(1, SeqCst);
        }
        self.holders.fetch_sub(1, SeqCst);
    }

    /// Returns whether nobody holds anything.
    pub(super) fn idle(&self) -> bool {
        self.holders.load(SeqCst) == 0
    }

    /// A stamp of a moment without an exclusive holder, to be compared with a later stamp.
    pub(super) fn stamp(&self) -> Option<u64> {
        let stamp = self.stamp.load(SeqCst);
        (self.exclusive.load(SeqCst) == 0).then_some(stamp)
    }

    /// A caller writes without the range lock, under the lock of the unit.
    #[inline]
    pub(super) fn wrote_unguarded(&self) {
        self.unguarded.0.fetch_add(1, Relaxed);
    }

    /// Number of writes without the lock so far.
    #[inline]
    pub(super) fn unguarded(&self) -> u64 {
        self.unguarded.0.load(Relaxed)
    }
}

#[cfg(all(test, feature = "loom"))]
mod tests {
    use super::*;
    use loom::sync::{Arc, Mutex};

    /// A file of two cache units, each under a lock of its own.
    #[derive(Default)]
    struct TwoUnits {
        marks: Marks,
        units: [Mutex<u64>; 2],
    }

    impl TwoUnits {
        /// Both units as a read without the lock sees them, or `None` if the read has to take the lock.
        fn read(&self, looks_again: bool) -> Option<[u64; 2]> {
            let (stamp, unguarded) = (self.marks.stamp()?, self.marks.unguarded());
            let found = [0, 1].map(|unit: usize| *self.units[unit].lock().unwrap());
            let same = self.marks.stamp() == Some(stamp) && self.marks.unguarded() == unguarded;
            (same || !looks_again).then_some(found)
        }

        fn write(&self, unit: usize, unguarded: bool) {
            let mut bytes = self.units[unit].lock().unwrap();
            if unguarded {
                self.marks.wrote_unguarded();
            }
            *bytes = 1;
        }
    }

    fn model(write: fn(&TwoUnits), allowed: &'static [[u64; 2]], looks_again: bool) {
        loom::model(move || {
            let file = Arc::<TwoUnits>::default();
            let writer = file.clone();
            let thread = loom::thread::spawn(move || write(&writer));
            let found = file.read(looks_again);
            thread.join().unwrap();
            assert!(found.is_none_or(|f| allowed.contains(&f)), "a read saw half of a write: {found:?}");
        });
    }

    fn guarded(file: &TwoUnits) {
        file.marks.granted(Hold::Exclusive);
        file.write(0, false);
        file.write(1, false);
        file.marks.released(Hold::Exclusive);
    }

    /// Goal: a read over two units without the lock sees all or nothing of a write that holds the lock. Method: every
    /// interleaving.
    #[test]
    fn a_guarded_write_is_seen_whole() {
        model(guarded, &[[0, 0], [1, 1]], true);
    }

    /// Goal: if one thread makes two writes without the lock one after the other, no read sees the second one without
    /// the first. Method: every interleaving.
    #[test]
    fn unguarded_writes_are_seen_in_order() {
        let two = |file: &TwoUnits| {
            file.write(0, true);
            file.write(1, true);
        };
        model(two, &[[0, 0], [1, 0], [1, 1]], true);
    }

    /// Goal: the tests above can fail. Method: a read that does not compare the counters a second time.
    #[test]
    #[should_panic(expected = "half of a write")]
    fn a_read_that_does_not_look_again_is_found() {
        model(guarded, &[[0, 0], [1, 1]], false);
    }
}
