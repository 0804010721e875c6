//! `Unstable`: how many bytes of file data were answered and would not survive a loss of power yet.
//!
//! Owns: for the last records of a target, how many bytes had been written up to each. Does not own: when records
//! become stable (`zone`). Bounds: `SAMPLES_MAX` samples; beyond, two become one, and the count is rather too high than
//! too low.

use amphi_zone::Lsn;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Records with data between two syncs, as a rule.
const SAMPLES_MAX: usize = 4096;

/// See the head.
#[derive(Default)]
pub struct Unstable {
    written: Cell<u64>,
    /// Records and all bytes written up to them, ascending; those of stable records have gone, but for the last of
    /// them.
    samples: RefCell<VecDeque<(Lsn, u64)>>,
}

impl Unstable {
    /// So many bytes of data lie on the disk, and the next record makes them count.
    pub fn written(&self, bytes: u64) {
        self.written.set(self.written.get() + bytes);
    }

    /// A record was appended, when those up to `stable` were stable.
    pub fn appended(&self, lsn: Lsn, stable: Lsn) {
        let mut samples = self.samples.borrow_mut();
        if samples.back().map_or(0, |last| last.1) == self.written.get() {
            return;
        }
        Unstable::forget(&mut samples, stable);
        if samples.len() == SAMPLES_MAX {
            samples.pop_back();
        }
        samples.push_back((lsn, self.written.get()));
    }

    fn forget(samples: &mut VecDeque<(Lsn, u64)>, stable: Lsn) {
        while samples.get(1).is_some_and(|second| second.0 <= stable) {
            samples.pop_front();
        }
    }

    /// How many bytes are not stable, now that the records up to `stable` are.
    pub fn bytes(&self, stable: Lsn) -> u64 {
        let mut samples = self.samples.borrow_mut();
        Unstable::forget(&mut samples, stable);
        let counts = samples.front().filter(|first| first.0 <= stable).map_or(0, |first| first.1);
        self.written.get() - counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: bytes count from their record on until it is stable; records without data change nothing; a crowd of
    /// records is never counted too low. Method: by hand.
    #[test]
    fn bytes_become_stable() {
        let unstable = Unstable::default();
        assert_eq!(unstable.bytes(Lsn(0)), 0);
        for n in 1..=10 {
            unstable.written(100);
            unstable.appended(Lsn(2 * n), Lsn(0));
            unstable.appended(Lsn(2 * n + 1), Lsn(0));
        }
        assert_eq!(unstable.bytes(Lsn(0)), 1000);
        assert_eq!(unstable.bytes(Lsn(1)), 1000);
        assert_eq!(unstable.bytes(Lsn(2)), 900);
        assert_eq!(unstable.bytes(Lsn(9)), 600);
        unstable.written(7);
        unstable.appended(Lsn(30), Lsn(21));
        assert_eq!(unstable.bytes(Lsn(21)), 7);
        assert_eq!(unstable.bytes(Lsn(30)), 0);
        for n in 0..2 * SAMPLES_MAX as u64 {
            unstable.written(1);
            unstable.appended(Lsn(100 + n), Lsn(30));
        }
        assert_eq!(unstable.bytes(Lsn(30)), 2 * SAMPLES_MAX as u64);
        assert!(unstable.bytes(Lsn(100 + SAMPLES_MAX as u64)) >= SAMPLES_MAX as u64 - 1);
        assert_eq!(unstable.bytes(Lsn(1 << 20)), 0);
    }
}
