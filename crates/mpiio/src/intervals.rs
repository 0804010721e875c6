//! Sorted lists of byte ranges of one page, in memory of a fixed size.
//!
//! Owns the arithmetic of the *valid* and *dirty* lists: insertion with merging, containment, the holes of a range.
//! Does not own the memory: the lists lie in shared memory and are seen through slices while the page is locked.
//!
//! Invariants: ranges are half-open, not empty, ascending, and neither overlap nor touch. If a list has no space for
//! one more range, it refuses the range and does not change. The caller then writes the dirty bytes out and begins with
//! an empty list.

/// A half-open range of bytes of a page.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// The offset behind the last byte.
    pub end: u32,
}

/// A list of ranges: `spans[..*count]` is in use.
#[derive(Debug)]
pub struct Intervals<'a> {
    count: &'a mut u32,
    spans: &'a mut [Span],
}

impl<'a> Intervals<'a> {
    /// Treats `spans[..*count]` as a list; a count from memory that another process wrote is limited to the length of
    /// the slice.
    pub fn new(count: &'a mut u32, spans: &'a mut [Span]) -> Self {
        *count = (*count).min(spans.len() as u32);
        Intervals { count, spans }
    }

    /// The ranges, ascending.
    pub fn as_slice(&self) -> &[Span] {
        &self.spans[..*self.count as usize]
    }

    /// Forgets all ranges.
    pub fn clear(&mut self) {
        *self.count = 0;
    }

    /// Adds a range. Returns false, and changes nothing, if the list has no space for it.
    pub fn insert(&mut self, start: u32, end: u32) -> bool {
        if start >= end {
            return true;
        }
        let n = *self.count as usize;
        let used = &self.spans[..n];
        // Ranges [first, last) overlap or touch the new one.
        let first = used.partition_point(|s| s.end < start);
        let last = first + used[first..].partition_point(|s| s.start <= end);
        if first == last {
            if n == self.spans.len() {
                return false;
            }
            self.spans.copy_within(first..n, first + 1);
            self.spans[first] = Span { start, end };
            *self.count += 1;
            return true;
        }
        let merged = Span { start: start.min(used[first].start), end: end.max(used[last - 1].end) };
        self.spans[first] = merged;
        self.spans.copy_within(last..n, first + 1);
        *self.count -= (last - first - 1) as u32;
        true
    }

    /// Adds ascending ranges in one pass. Returns false, and changes nothing, if the list has no space for all of them.
    /// If ranges that fill gaps of a long list were inserted one by one, each would move the rest of the list.
    pub fn insert_all(&mut self, ranges: &[Span]) -> bool {
        let (mut old, mut new) = (self.as_slice(), ranges);
        let mut merged: Vec<Span> = Vec::with_capacity(old.len() + new.len());
        loop {
            let from = match (old.first(), new.first()) {
                (Some(a), Some(b)) if b.start < a.start => &mut new,
                (None, Some(_)) => &mut new,
                (Some(_), _) => &mut old,
                (None, None) => break,
            };
            let [next, rest @ ..] = *from else { break };
            *from = rest;
            match merged.last_mut() {
                Some(last) if next.start <= last.end => last.end = last.end.max(next.end),
                _ if next.start < next.end => merged.push(*next),
                _ => {}
            }
        }
        if merged.len() > self.spans.len() {
            return false;
        }
        self.spans[..merged.len()].copy_from_slice(&merged);
        *self.count = merged.len() as u32;
        true
    }

    /// Returns whether `insert` would take the range.
    pub fn has_room_for(&self, start: u32, end: u32) -> bool {
        let used = self.as_slice();
        let near = used.partition_point(|s| s.end < start);
        start >= end || used.len() < self.spans.len() || used.get(near).is_some_and(|s| s.start <= end)
    }

    /// Returns whether every byte of the range is in the list.
    pub fn contains(&self, start: u32, end: u32) -> bool {
        contains(self.as_slice(), start, end)
    }
}

/// Returns whether every byte of the range is in an ascending list.
pub fn contains(spans: &[Span], start: u32, end: u32) -> bool {
    if start >= end {
        return true;
    }
    let at = spans.partition_point(|s| s.end <= start);
    spans.get(at).is_some_and(|s| s.start <= start && end <= s.end)
}

/// The parts of `start..end` that an ascending list lacks.
pub fn holes(spans: &[Span], start: u32, end: u32) -> Vec<Span> {
    let mut found = Vec::new();
    let mut at = start;
    for s in spans {
        if s.end <= at {
            continue;
        }
        if s.start >= end {
            break;
        }
        if s.start > at {
            found.push(Span { start: at, end: s.start });
        }
        at = s.end;
    }
    if at < end {
        found.push(Span { start: at, end });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: insertion, containment and holes agree with a map of single bytes, full lists included.
    /// Method: random ranges of a page of 64 bytes in lists of 1 to 12 ranges, compared after each step.
    #[test]
    fn agrees_with_a_map_of_bytes() {
        let mut seed = 7u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let (mut refused, mut taken) = (0, 0);
        for room in 1..=12usize {
            for _ in 0..200 {
                let (mut count, mut spans, mut map) = (0u32, vec![Span::default(); room], [false; 64]);
                for _ in 0..24 {
                    let start = next(64) as u32;
                    let end = start + next(u64::from(65 - start).min(9)) as u32;
                    let mut list = Intervals::new(&mut count, &mut spans);
                    let fits = list.has_room_for(start, end);
                    let inserted = list.insert(start, end);
                    assert_eq!(fits, inserted);
                    if inserted {
                        map[start as usize..end as usize].fill(true);
                        taken += 1;
                    } else {
                        refused += 1;
                        assert_eq!(list.as_slice().len(), room);
                    }
                    let mut shown = [false; 64];
                    for (i, s) in list.as_slice().iter().enumerate() {
                        assert!(s.start < s.end && (i == 0 || list.as_slice()[i - 1].end < s.start));
                        shown[s.start as usize..s.end as usize].fill(true);
                    }
                    assert_eq!(shown, map);
                    let (a, b) = (next(64) as u32, next(64) as u32);
                    let (a, b) = (a.min(b), a.max(b));
                    assert_eq!(list.contains(a, b), map[a as usize..b as usize].iter().all(|x| *x));
                    let mut lacking = [false; 64];
                    for h in holes(list.as_slice(), a, b) {
                        lacking[h.start as usize..h.end as usize].fill(true);
                    }
                    for i in 0..64 {
                        assert_eq!(lacking[i], !map[i] && (a as usize..b as usize).contains(&i));
                    }
                }
            }
        }
        assert!(refused > 1000 && taken > 10_000, "{refused} refused, {taken} taken");
    }

    /// Goal: adding many ranges in one pass makes the same list as adding them one by one. A list without space for all
    /// of them is not changed. Method: random ascending ranges, some empty or touching, compared with a list that has
    /// space for everything.
    #[test]
    fn one_pass_does_as_one_by_one() {
        let mut seed = 11u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let (mut refused, mut taken) = (0, 0);
        for round in 0..3000 {
            let room = 1 + round % 12;
            let (mut count, mut spans) = (0u32, vec![Span::default(); room]);
            let (mut other_count, mut others) = (0u32, vec![Span::default(); 200]);
            for _ in 0..6 {
                let mut at = 0;
                let mut ranges = Vec::new();
                while at < 64 && ranges.len() < 6 {
                    let start = at + next(12) as u32;
                    at = start + next(7) as u32;
                    ranges.push(Span { start, end: at });
                }
                let mut list = Intervals::new(&mut count, &mut spans);
                let mut other = Intervals::new(&mut other_count, &mut others);
                let before = list.as_slice().to_vec();
                assert!(ranges.iter().all(|s| other.insert(s.start, s.end)));
                if list.insert_all(&ranges) {
                    assert_eq!(list.as_slice(), other.as_slice());
                    taken += 1;
                } else {
                    assert!(other.as_slice().len() > room);
                    assert_eq!(list.as_slice(), before);
                    refused += 1;
                    break;
                }
            }
        }
        assert!(refused > 500 && taken > 2000, "{refused} refused, {taken} taken");
    }
}
