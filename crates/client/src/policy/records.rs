//! `Records`: lock-ahead for a writer of records at equal distances.
//!
//! When a process writes every n-th record of a shared file, its writes have one length and one distance. The locks of
//! the next records are requested before the writer needs them.
//!
//! Owns: recognising the pattern, and how far ahead locks are requested. Does not own: the requests (`ahead`),
//! returning the locks after use (`Pin`).
//!
//! Invariants: at most `count` records are requested beyond the last write, and none before the same distance occurred
//! three times. A write that does not continue the pattern starts anew.

use amphi_types::{ByteRange, limits};
use smallvec::SmallVec;

/// Equal distances that are required before locks are requested.
const SURE: u32 = 3;

/// The last direct writes of one open file.
#[derive(Debug)]
pub(crate) struct Records {
    last: ByteRange,
    /// Distance from the start of one write to the next.
    distance: u64,
    matches: u32,
    /// Start of the next record whose lock was not requested.
    next: u64,
}

impl Default for Records {
    fn default() -> Records {
        Records { last: ByteRange::new(0, 0), distance: 0, matches: 0, next: 0 }
    }
}

impl Records {
    /// Notes a write. Returns the records to request, so that `count` records are requested ahead. Records are
    /// requested several at a time, when half of those ahead are used.
    pub(crate) fn note(&mut self, range: ByteRange, count: u64) -> SmallVec<[ByteRange; 8]> {
        let distance = range.start.wrapping_sub(self.last.start);
        let follows = range.start > self.last.start && range.len() == self.last.len();
        if follows && distance == self.distance {
            self.matches += 1;
        } else {
            self.matches = u32::from(follows);
            self.distance = if follows { distance } else { 0 };
            self.next = 0;
        }
        self.last = range;
        if self.matches < SURE || count == 0 {
            return SmallVec::new();
        }
        assert!(self.distance > 0, "{} records follow each other without a distance", self.matches);
        self.next = self.next.max(range.start.saturating_add(self.distance));
        let ahead = (self.next - range.start) / self.distance - 1;
        if ahead > count / 2 {
            return SmallVec::new();
        }
        let first = self.next;
        self.next = range.start.saturating_add(self.distance.saturating_mul(count + 1));
        let records = (0..count - ahead).map(|n| first.saturating_add(self.distance.saturating_mul(n)));
        let within = |start: &u64| start.saturating_add(range.len()) <= limits::FILE_MAX;
        records.take_while(within).map(|start| ByteRange::at(start, range.len())).collect()
    }

    /// The lock of the last record was requested but not granted, so another mount wants these bytes too.
    pub(crate) fn missed(&mut self) {
        (self.matches, self.next) = (0, 0);
    }

    /// Returns whether the lock of `range` was requested.
    pub(crate) fn is_ahead(&self, range: ByteRange) -> bool {
        range.end <= self.next && range.start > self.last.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(records: &mut Records, start: u64, len: u64, count: u64) -> Vec<u64> {
        records.note(ByteRange::at(start, len), count).iter().map(|r| r.start).collect()
    }

    /// Goal: every n-th record is recognised, and each record is requested once, before its write and not more than
    /// `count` ahead. Method: 100 records of the proportions of ior-hard.
    #[test]
    fn records_at_a_distance() {
        let (len, distance, count) = (47_008, 4 * 47_008, 8);
        let mut records = Records::default();
        let mut asked = Vec::new();
        for n in 0..100u64 {
            let at = 47_008 + n * distance;
            let now = starts(&mut records, at, len, count);
            assert!(n > 2 || now.is_empty(), "not sure yet at {n}");
            assert!(now.iter().all(|start| *start > at && *start <= at + count * distance));
            assert!(n < 4 || asked.contains(&at), "record {n} was asked for before its write");
            asked.extend(now);
        }
        let mut once = asked.clone();
        once.dedup();
        assert!(asked.is_sorted() && once == asked);
        assert!(asked.iter().all(|start| (start - 47_008) % distance == 0));
    }

    /// Goal: what follows no pattern requests nothing, and a pattern that ends is forgotten. Method: random places,
    /// other lengths, a jump, and a lock that was lost.
    #[test]
    fn other_writes() {
        let mut records = Records::default();
        for start in [10, 500, 3, 777, 12, 4000] {
            assert!(starts(&mut records, start, 5, 8).is_empty());
        }
        for (n, len) in [7, 8, 7, 9, 7].into_iter().enumerate() {
            assert!(starts(&mut records, 10_000 + 100 * n as u64, len, 8).is_empty());
        }
        let mut records = Records::default();
        let sure = (0..5u64).map(|n| starts(&mut records, 100 * n, 10, 8).len()).max();
        assert_eq!(sure, Some(8));
        assert!(records.is_ahead(ByteRange::at(500, 10)) && !records.is_ahead(ByteRange::at(1300, 10)));
        records.missed();
        assert!(!records.is_ahead(ByteRange::at(500, 10)));
        assert!(starts(&mut records, 500, 10, 8).is_empty());
        assert!(starts(&mut records, 90_000, 10, 8).is_empty());
        assert!((0..9u64).all(|n| starts(&mut records, 100_000 + 100 * n, 10, 0).is_empty()), "switched off");
    }

    /// Goal: no overflow at the largest files. Method: records up to the largest offset of a file.
    #[test]
    fn at_the_end() {
        let mut records = Records::default();
        let end = limits::FILE_MAX;
        for n in (1..=8u64).rev() {
            let asked = records.note(ByteRange::at(end - n * 100, 100), 8);
            assert!(asked.iter().all(|r| r.end <= end));
        }
    }
}
