//! `KeyOrder`: the keys of changes in their order, as long as ranges of them are read.
//!
//! Owns: sorted runs of keys. Does not own: the changes, which are found by key, because a change may have moved in the
//! arena since its key was put into a run. The bytes of a key stay at their place until the arena is compacted; after
//! that the order is built anew.
//!
//! A map that nobody reads by range has no order and costs nothing. After the first read of a range, new keys are
//! noted, and the next read sorts them into a run and joins runs of similar sizes. So a read costs the logarithm of the
//! number of changes, the items that it returns, and a part of the keys that are new since the last read.

use super::sorted::{Place, SORT_BATCH, Sorted, at, by_key, prefix_of};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// Most keys of a run that was made of others: joining the last two takes a millisecond at most.
const RUN_MAX: usize = 1 << 15;

/// The keys in sorted runs, and the keys that were added since.
#[derive(Default)]
pub struct KeyOrder {
    runs: Vec<Rc<Vec<Sorted>>>,
    new: Vec<Place>,
    /// Keys that were sorted or joined, for tests.
    #[cfg(test)]
    pub work: usize,
}

impl KeyOrder {
    /// The order of changes of which none is sorted yet.
    pub fn of_new(new: Vec<Place>) -> KeyOrder {
        KeyOrder { new, ..KeyOrder::default() }
    }

    /// The order of changes that are all sorted.
    pub fn of_sorted(run: Rc<Vec<Sorted>>) -> KeyOrder {
        KeyOrder { runs: vec![run], ..KeyOrder::default() }
    }

    /// Adds a key that was not in the map.
    pub fn add(&mut self, place: Place) {
        self.new.push(place);
    }

    /// Sorts some of the new keys. Returns whether all keys are sorted now.
    pub fn sort_some(&mut self, chunks: &[Vec<u8>]) -> bool {
        let part = self.new.len().saturating_sub(SORT_BATCH);
        if part < self.new.len() {
            let places = self.new.drain(part..);
            let mut run: Vec<Sorted> =
                places.map(|place| Sorted { prefix: prefix_of(at(chunks, place).key()), place }).collect();
            run.sort_unstable_by(|a, b| by_key(chunks, a, b));
            self.push(run, chunks);
        }
        self.new.is_empty()
    }

    /// Takes a run over, joined with the last ones if those are not much longer.
    fn push(&mut self, mut run: Vec<Sorted>, chunks: &[Vec<u8>]) {
        self.note_work(run.len());
        while let Some(last) = self.runs.pop_if(|last| last.len() < 2 * run.len() && last.len() + run.len() <= RUN_MAX)
        {
            run = join(&last, &run, chunks);
            self.note_work(run.len());
        }
        self.runs.push(Rc::new(run));
    }

    #[cfg(test)]
    fn note_work(&mut self, keys: usize) {
        self.work += keys;
    }

    #[cfg(not(test))]
    fn note_work(&mut self, _keys: usize) {}

    /// Passes the sorted keys of `from` and greater to `take`, ascending, until it returns false.
    pub fn visit<'a>(&self, chunks: &'a [Vec<u8>], from: &[u8], mut take: impl FnMut(&'a [u8]) -> bool) {
        let key = |sorted: &Sorted| at(chunks, sorted.place).key();
        let prefix = prefix_of(from);
        let is_less = |sorted: &Sorted| sorted.prefix < prefix || (sorted.prefix == prefix && key(sorted) < from);
        let head = |run: usize, index: usize| self.runs[run].get(index).map(|next| Reverse((key(next), run, index)));
        let starts = self.runs.iter().enumerate();
        let mut heads: BinaryHeap<_> =
            starts.filter_map(|(run, keys)| head(run, keys.partition_point(is_less))).collect();
        while let Some(Reverse((next, run, index))) = heads.pop() {
            if !take(next) {
                return;
            }
            heads.extend(head(run, index + 1));
        }
    }
}

/// Joins two runs into one.
fn join<'a>(mut a: &'a [Sorted], mut b: &'a [Sorted], chunks: &[Vec<u8>]) -> Vec<Sorted> {
    let mut joined = Vec::with_capacity(a.len() + b.len());
    while let (Some(first), Some(second)) = (a.first(), b.first()) {
        let from = if by_key(chunks, first, second).is_lt() { &mut a } else { &mut b };
        let (next, rest) = from.split_first().expect("both have one");
        joined.push(*next);
        *from = rest;
    }
    joined.extend(a.iter().chain(b));
    joined
}
