//! Half-open byte ranges, and sets of such ranges.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Bytes `start..end` of a file; empty when `start >= end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// The position behind the last byte.
    pub end: u64,
}

impl ByteRange {
    /// The whole file.
    pub const ALL: ByteRange = ByteRange { start: 0, end: u64::MAX };

    /// `start..end`.
    pub fn new(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    /// `len` bytes from `offset`, saturating at the end of the address space.
    pub fn at(offset: u64, len: u64) -> ByteRange {
        ByteRange { start: offset, end: offset.saturating_add(len) }
    }

    /// Number of bytes.
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Returns whether the range contains no byte.
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Returns whether both share a byte.
    pub fn overlaps(&self, other: &ByteRange) -> bool {
        self.start < other.end && other.start < self.end && !self.is_empty() && !other.is_empty()
    }

    /// Returns whether every byte of `other` is in `self`.
    pub fn contains(&self, other: &ByteRange) -> bool {
        other.is_empty() || (self.start <= other.start && other.end <= self.end)
    }

    /// The shared bytes, possibly empty.
    pub fn intersect(&self, other: &ByteRange) -> ByteRange {
        ByteRange { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// The smallest range of whole units of `unit` bytes around `self`; an end in the last unit of the address
    /// space becomes `u64::MAX`. `unit` is a power of two.
    pub fn align_out(&self, unit: u64) -> ByteRange {
        debug_assert!(unit.is_power_of_two());
        let end = self.end.checked_next_multiple_of(unit).unwrap_or(u64::MAX);
        ByteRange { start: self.start & !(unit - 1), end }
    }
}

/// A set of bytes as sorted, disjoint, non-adjacent ranges. Up to two ranges are stored without an allocation, because
/// cached units nearly always have one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: SmallVec<[ByteRange; 2]>,
}

impl RangeSet {
    /// The empty set.
    pub fn new() -> RangeSet {
        RangeSet::default()
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = ByteRange> + '_ {
        self.ranges.iter().copied()
    }

    /// Returns whether no byte is in the set.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes in the set.
    pub fn total(&self) -> u64 {
        self.ranges.iter().map(ByteRange::len).sum()
    }

    /// Index of the first range that ends at or after `at`.
    fn first_touching(&self, at: u64) -> usize {
        self.ranges.partition_point(|r| r.end < at)
    }

    /// Adds `range`, joining it with ranges that it overlaps or touches.
    pub fn insert(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let first = self.first_touching(range.start);
        let mut last = first;
        let mut merged = range;
        while last < self.ranges.len() && self.ranges[last].start <= range.end {
            merged.start = merged.start.min(self.ranges[last].start);
            merged.end = merged.end.max(self.ranges[last].end);
            last += 1;
        }
        if last > first {
            self.ranges[first] = merged;
            self.ranges.drain(first + 1..last);
        } else {
            self.ranges.insert(first, merged);
        }
    }

    /// Takes `range` out of the set.
    pub fn remove(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let mut i = self.ranges.partition_point(|r| r.end <= range.start);
        while i < self.ranges.len() && self.ranges[i].start < range.end {
            let r = self.ranges[i];
            match (r.start < range.start, r.end > range.end) {
                (true, true) => {
                    self.ranges[i].end = range.start;
                    self.ranges.insert(i + 1, ByteRange::new(range.end, r.end));
                    return;
                }
                (true, false) => {
                    self.ranges[i].end = range.start;
                    i += 1;
                }
                (false, true) => {
                    self.ranges[i].start = range.end;
                    return;
                }
                (false, false) => {
                    self.ranges.remove(i);
                }
            }
        }
    }

    /// Returns whether every byte of `range` is in the set.
    pub fn contains(&self, range: ByteRange) -> bool {
        range.is_empty() || {
            let i = self.ranges.partition_point(|r| r.end < range.end);
            i < self.ranges.len() && self.ranges[i].contains(&range)
        }
    }

    /// Returns whether any byte of `range` is in the set.
    pub fn overlaps(&self, range: ByteRange) -> bool {
        let i = self.ranges.partition_point(|r| r.end <= range.start);
        i < self.ranges.len() && self.ranges[i].overlaps(&range)
    }

    /// The parts of `range` that are in the set, ascending.
    pub fn within(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> + '_ {
        let i = self.ranges.partition_point(|r| r.end <= range.start);
        self.ranges[i..].iter().take_while(move |r| r.start < range.end).map(move |r| r.intersect(&range))
    }

    /// The parts of `range` that are not in the set, ascending.
    pub fn gaps(&self, range: ByteRange) -> SmallVec<[ByteRange; 2]> {
        let mut gaps = SmallVec::new();
        let mut at = range.start;
        for r in self.within(range) {
            if at < r.start {
                gaps.push(ByteRange::new(at, r.start));
            }
            at = r.end;
        }
        if at < range.end {
            gaps.push(ByteRange::new(at, range.end));
        }
        gaps
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: aligning outwards never loses a byte. Method: ends around the end of the address space.
    #[test]
    fn align_out_contains_the_range() {
        for r in [ByteRange::ALL, ByteRange::new(5, u64::MAX - 1), ByteRange::new(4096, 8192), ByteRange::new(1, 4097)]
        {
            assert!(r.align_out(4096).contains(&r), "{r:?}");
        }
        assert_eq!(ByteRange::new(1, 4097).align_out(4096), ByteRange::new(0, 8192));
    }

    /// Goal: insert, remove, contains, gaps agree with a set of single bytes. Method: model check over a
    /// small domain with a fixed linear congruential sequence.
    #[test]
    fn range_set_matches_a_byte_set() {
        let mut seed = 7u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        let mut set = RangeSet::new();
        let mut model = [false; 64];
        for _ in 0..20_000 {
            let (a, b) = (next(64), next(65));
            let r = ByteRange::new(a.min(b), a.max(b));
            let span = r.start as usize..r.end as usize;
            match next(3) {
                0 => {
                    set.insert(r);
                    model[span].fill(true);
                }
                1 => {
                    set.remove(r);
                    model[span].fill(false);
                }
                _ => {
                    assert_eq!(set.contains(r), model[span.clone()].iter().all(|&x| x));
                    assert_eq!(set.overlaps(r), model[span.clone()].iter().any(|&x| x));
                    let gaps: u64 = set.gaps(r).iter().map(ByteRange::len).sum();
                    assert_eq!(gaps as usize, model[span.clone()].iter().filter(|&&x| !x).count());
                    let within: u64 = set.within(r).map(|x| x.len()).sum();
                    assert_eq!(within + gaps, r.len());
                }
            }
            assert_eq!(set.total() as usize, model.iter().filter(|&&x| x).count());
            let v: Vec<_> = set.iter().collect();
            assert!(v.windows(2).all(|w| w[0].end < w[1].start), "sorted, disjoint, joined: {v:?}");
        }
    }
}
