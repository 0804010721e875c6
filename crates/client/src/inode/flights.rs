//! Bytes of a file that are under way to the server.
//!
//! Owns: which bytes these are. Does not own: when they are sent and when their request has ended (`writeback`,
//! `pipeline`).
//!
//! Invariants: looking up a range costs the logarithm of the number of flights, because scattered writes make thousands
//! of small ones. Flights are ordered by their start, and none is longer than `longest`, so flights that begin farther
//! away need not be checked. Flights may overlap, but only while it is being determined how much of one is dirty.

use amphi_types::ByteRange;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// Identifies a flight of a file, by the range with which it was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlightId {
    start: u64,
    number: u64,
}

/// The flights of one file.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    /// The ends of the flights, by start and number.
    ends: BTreeMap<(u64, u64), u64>,
    /// No flight is longer than this, in bytes.
    longest: u64,
    last_number: u64,
    /// Numbers of flights whose bytes were never in the cache (`pipeline`).
    piped: BTreeSet<u64>,
    /// How many flights ended with bytes that became dirty again.
    came_back: u64,
    /// No request may be sent for bytes from the lowest of these offsets on: truncates are under way, or the file has
    /// lost its last name.
    frozen: SmallVec<[u64; 2]>,
}

impl Flights {
    /// Nothing may be sent from offset `from` on until `thaw` was called as often as `freeze`.
    pub(crate) fn freeze(&mut self, from: u64) {
        self.frozen.push(from);
    }

    /// Ends one `freeze` of `from`.
    pub(crate) fn thaw(&mut self, from: u64) {
        if let Some(at) = self.frozen.iter().position(|f| *f == from) {
            self.frozen.swap_remove(at);
        }
    }

    /// The offset from which on nothing may be sent.
    pub(crate) fn frozen_from(&self) -> Option<u64> {
        self.frozen.iter().min().copied()
    }

    /// The number of the latest flight; no flight under way has a greater number.
    pub(crate) fn last(&self) -> u64 {
        self.last_number
    }

    /// Returns how many flights ended with bytes that became dirty again.
    pub(crate) fn came_back(&self) -> u64 {
        self.came_back
    }

    /// Called when the bytes of a flight that is about to end are dirty again.
    pub(crate) fn comes_back(&mut self) {
        self.came_back += 1;
    }

    /// Works as `begin`, for bytes that were never in the cache.
    pub(crate) fn begin_piped(&mut self, range: ByteRange) -> FlightId {
        let id = self.begin(range);
        self.piped.insert(id.number);
        id
    }

    /// Returns whether any pipelined write with a number up to `upto` is under way.
    pub(crate) fn piped_upto(&self, upto: u64) -> bool {
        self.piped.first().is_some_and(|number| *number <= upto)
    }

    /// Enters a flight.
    pub(crate) fn begin(&mut self, range: ByteRange) -> FlightId {
        assert!(!range.is_empty(), "a flight without bytes: {range:?}");
        self.last_number += 1;
        let id = FlightId { start: range.start, number: self.last_number };
        self.put(id, range)
    }

    /// The flight now has only these bytes; returns its new id.
    pub(crate) fn narrow(&mut self, id: FlightId, range: ByteRange) -> FlightId {
        match self.ends.remove(&(id.start, id.number)) {
            Some(end) => {
                let whole = ByteRange::new(id.start, end);
                assert!(!range.is_empty() && whole.contains(&range), "{range:?} is no part of the flight {whole:?}");
                self.put(id, range)
            }
            None => id,
        }
    }

    fn put(&mut self, id: FlightId, range: ByteRange) -> FlightId {
        let id = FlightId { start: range.start, ..id };
        let before = self.ends.insert((id.start, id.number), range.end);
        assert!(before.is_none(), "two flights have the number {}", id.number);
        self.longest = self.longest.max(range.len());
        id
    }

    /// Called when the flight has ended, with or without success.
    pub(crate) fn end(&mut self, id: FlightId) {
        let ended = self.ends.remove(&(id.start, id.number));
        assert!(ended.is_some(), "a flight ends that is not under way: {id:?}");
        self.piped.remove(&id.number);
        if self.ends.is_empty() {
            self.longest = 0;
        }
    }

    /// Returns whether any flight has bytes of `range`.
    pub(crate) fn overlap(&self, range: ByteRange) -> bool {
        self.overlap_upto(range, u64::MAX)
    }

    /// Returns whether any flight with a number up to `upto` has bytes of `range`.
    pub(crate) fn overlap_upto(&self, range: ByteRange, upto: u64) -> bool {
        !range.is_empty()
            && self
                .ends
                .range(..(range.end, 0))
                .rev()
                .take_while(|((start, _), _)| start.saturating_add(self.longest) > range.start)
                .any(|((_, number), end)| *end > range.start && *number <= upto)
    }

    /// The end of the last flight; 0 without any.
    pub(crate) fn last_end(&self) -> u64 {
        self.ends.values().copied().max().unwrap_or(0)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: if two calls have frozen a file, it stays frozen until both have thawed it, from the lower offset on.
    /// Method: calls of `freeze` and `thaw` in different orders.
    #[test]
    fn each_thaws_its_own() {
        let mut flights = Flights::default();
        assert_eq!(flights.frozen_from(), None);
        flights.freeze(9000);
        flights.freeze(0);
        assert_eq!(flights.frozen_from(), Some(0));
        flights.thaw(0);
        assert_eq!(flights.frozen_from(), Some(9000));
        flights.thaw(9000);
        assert_eq!(flights.frozen_from(), None);
    }

    /// Goal: `overlap` and `last_end` are right whatever flights begin, are narrowed and end. Method: random steps
    /// compared with a list, with short and long flights, many at the same offset.
    #[test]
    fn as_a_list() {
        let mut x = 7u64;
        let mut random = |below: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 33) % below
        };
        let (mut flights, mut list) = (Flights::default(), Vec::<(FlightId, ByteRange)>::new());
        for step in 0..20_000 {
            let len = if random(20) == 0 { 1 + random(400) } else { 1 + random(8) };
            let range = ByteRange::at(random(500), len);
            match random(5) {
                0 | 1 if list.len() < 40 => list.push((flights.begin(range), range)),
                2 if !list.is_empty() => {
                    let at = random(list.len() as u64) as usize;
                    let (id, old) = list[at];
                    let start = old.start + random(old.len());
                    let new = ByteRange::new(start, start + 1 + random(old.end - start));
                    list[at] = (flights.narrow(id, new), new);
                }
                3 if !list.is_empty() => {
                    let (id, _) = list.swap_remove(random(list.len() as u64) as usize);
                    flights.end(id);
                }
                _ if random(300) == 0 => list.drain(..).for_each(|(id, _)| flights.end(id)),
                _ => {}
            }
            let expected = |upto| list.iter().any(|(id, r)| id.number <= upto && r.overlaps(&range));
            assert_eq!(flights.overlap(range), expected(u64::MAX), "step {step}: {range:?} of {list:?}");
            let upto = flights.last().saturating_sub(random(40));
            assert_eq!(flights.overlap_upto(range, upto), expected(upto), "step {step}: {range:?} of {list:?}");
            assert!(!flights.overlap(ByteRange::new(range.start, range.start)));
            assert_eq!(flights.last_end(), list.iter().map(|(_, r)| r.end).max().unwrap_or(0));
            assert_eq!(flights.is_empty(), list.is_empty());
        }
    }

    /// Goal: a caller that waits for earlier pipelined writes waits neither for later ones nor for write-back. Method:
    /// flights of both kinds with known numbers.
    #[test]
    fn what_came_later_is_told_apart() {
        let mut flights = Flights::default();
        let range = ByteRange::new(0, 10);
        flights.begin(range);
        assert!(!flights.piped_upto(flights.last()));
        let first = flights.begin_piped(range);
        let upto = flights.last();
        let second = flights.begin_piped(range);
        assert!(flights.piped_upto(upto));
        flights.end(first);
        assert!(!flights.piped_upto(upto) && flights.piped_upto(flights.last()));
        flights.end(second);
        assert!(!flights.piped_upto(flights.last()) && flights.overlap(range));
    }
}
