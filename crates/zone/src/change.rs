//! `Changes`: what the log changes over the segments, in memory, by key.
//!
//! Owns: the memory of changes until a checkpoint has put them into a segment, and their order for it. Does not own:
//! their byte form (`types::item`), or when a change counts (`state`, `recover`).
//!
//! Changes are stored encoded in an arena, and a hash table says where in it the change of a key is. Their order
//! matters only for a checkpoint, which takes all of them at once and sorts them then, and for reads of ranges; the
//! order is kept from the first such read on (`order`). Invariants: the table has one change for each key, the latest;
//! earlier ones take less memory than the latest ones and `DEAD_BYTES_MAX`.
//!
//! The number that drove the design: an ordered map took 22 % of a server's CPU for creates, 64 at a time, more than
//! half of it to compare keys that were in no cache. A hash finds the place of a change with one miss: to append, write
//! and absorb a record of four changes takes 0.9 us of CPU instead of 1.6, and its part of a checkpoint 0.6 instead of
//! 0.7, of one that merges 0.9 instead of 1.5 (`examples/log_cost`).

mod order;
mod sorted;

use crate::event::turn;
use amphi_types::item::Change;
use hashbrown::HashTable;
use order::KeyOrder;
use sorted::{Place, SORT_BATCH, Sorted, at, by_key, prefix_of};
use std::cell::RefCell;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::rc::Rc;

/// Bytes of the first chunk of the arena; each further one is as large as all before it together, up to the most.
const CHUNK_BYTES_FIRST: usize = 512;
/// Most bytes of a chunk, unless a single change is larger.
const CHUNK_BYTES_MAX: usize = 256 << 10;
/// The arena is written anew when it has more unused bytes than used ones and this number together.
const DEAD_BYTES_MAX: usize = 64 << 10;
/// The most bytes that a change takes in addition to its encoding: 16 for its entry, in a table that is half empty, and
/// 32 for its place in the order while a checkpoint writes it.
const OVERHEAD_BYTES: u64 = 64;

/// The size of a change in memory and, at most, in a segment.
pub fn cost(change: Change<'_>) -> u64 {
    change.encoded().len() as u64 + OVERHEAD_BYTES
}

/// The entry of a key in the table.
#[derive(Clone, Copy)]
struct Entry {
    /// Hash of the key.
    hash: u32,
    place: Place,
    /// The number of bytes at this place, which is the length of the longest change that was put there.
    room: u32,
}

/// Changes by key; only the last change of each key is kept.
#[derive(Default)]
pub struct Changes {
    chunks: Vec<Vec<u8>>,
    table: HashTable<Entry>,
    /// Capacity of all chunks.
    capacity: usize,
    /// Bytes of the arena in use, and of those out of use.
    live: usize,
    dead: usize,
    /// The cost of all changes (`cost`).
    cost: u64,
    /// The order of the keys, if a range of them was read.
    order: RefCell<Option<KeyOrder>>,
}

impl Changes {
    /// Number of changes.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// The size of all changes in memory and, at most, in a segment.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Takes a change over, in place of an earlier one of its key.
    pub fn insert(&mut self, change: Change<'_>) {
        self.insert_hashed(hash_of(change.key()), change);
    }

    /// Works as `insert`, if the hash of the key is known.
    pub fn insert_hashed(&mut self, hash: u32, change: Change<'_>) {
        self.cost += cost(change);
        let chunks = &self.chunks;
        let found = self.table.find_mut(spread(hash), |e| e.hash == hash && at(chunks, e.place).key() == change.key());
        let Some(entry) = found else {
            let place = self.put(change);
            let entry = Entry { hash, place, room: change.encoded().len() as u32 };
            self.table.insert_unique(spread(hash), entry, |e| spread(e.hash));
            if let Some(order) = self.order.get_mut() {
                order.add(place);
            }
            return;
        };
        let old = at(chunks, entry.place);
        let (old_cost, old_bytes) = (cost(old), entry.room as usize);
        self.cost -= old_cost;
        if change.encoded().len() <= old_bytes {
            let Place { chunk, at } = entry.place;
            self.chunks[chunk as usize][at as usize..][..change.encoded().len()].copy_from_slice(change.encoded());
            return;
        }
        self.live -= old_bytes;
        self.dead += old_bytes;
        let place = self.put(change);
        let chunks = &self.chunks;
        let found = self.table.find_mut(spread(hash), |e| e.hash == hash && at(chunks, e.place).key() == change.key());
        let entry = found.expect("it was there just now");
        (entry.place, entry.room) = (place, change.encoded().len() as u32);
        if self.dead > self.live + DEAD_BYTES_MAX {
            self.compact();
        }
    }

    /// Takes over what `newer` has, in place of earlier changes of its keys.
    pub fn extend(&mut self, newer: &Changes) {
        newer.iter().for_each(|change| self.insert(change));
    }

    /// The change of a key.
    pub fn get(&self, key: &[u8]) -> Option<Change<'_>> {
        let hash = hash_of(key);
        let found = self.table.find(spread(hash), |e| e.hash == hash && at(&self.chunks, e.place).key() == key);
        found.map(|e| at(&self.chunks, e.place))
    }

    /// Sorts some of the keys for reads of ranges. Returns whether all keys are in order now.
    pub fn put_in_order(&self) -> bool {
        let mut order = self.order.borrow_mut();
        let all = || KeyOrder::of_new(self.table.iter().map(|e| e.place).collect());
        order.get_or_insert_with(all).sort_some(&self.chunks)
    }

    /// Passes the changes with keys of `from` and greater to `take`, by key, until it returns false. All keys must be
    /// in order (`put_in_order`).
    pub fn visit_from<'a>(&'a self, from: &[u8], mut take: impl FnMut(Change<'a>) -> bool) {
        let order = self.order.borrow();
        let order = order.as_ref().expect("the keys are in order");
        order.visit(&self.chunks, from, |key| self.get(key).is_none_or(&mut take));
    }

    /// A checkpoint has sorted these changes: reads of ranges use its order.
    pub fn know_order(&self, order: &Order<'_>) {
        assert!(std::ptr::eq(order.changes, self) && order.sorted.len() == self.len(), "the order of other changes");
        self.order.replace(Some(KeyOrder::of_sorted(order.sorted.clone())));
    }

    /// All changes, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Change<'_>> {
        self.table.iter().map(|e| at(&self.chunks, e.place))
    }

    /// Appends a change to the arena; where it lies.
    fn put(&mut self, change: Change<'_>) -> Place {
        let bytes = change.encoded();
        let fits = self.chunks.last().is_some_and(|c| c.capacity() - c.len() >= bytes.len());
        if !fits {
            let chunk = Vec::with_capacity(self.capacity.clamp(CHUNK_BYTES_FIRST, CHUNK_BYTES_MAX).max(bytes.len()));
            self.capacity += chunk.capacity();
            self.chunks.push(chunk);
        }
        let index = self.chunks.len() - 1;
        let chunk = &mut self.chunks[index];
        let place = Place { chunk: index as u32, at: chunk.len() as u32 };
        chunk.extend_from_slice(bytes);
        self.live += bytes.len();
        place
    }

    /// Writes the arena anew without the bytes that are no longer used.
    fn compact(&mut self) {
        let old = std::mem::take(&mut self.chunks);
        let mut table = std::mem::take(&mut self.table);
        (self.capacity, self.live, self.dead) = (0, 0, 0);
        *self.order.get_mut() = None;
        for entry in table.iter_mut() {
            let change = at(&old, entry.place);
            entry.room = change.encoded().len() as u32;
            entry.place = self.put(change);
        }
        self.table = table;
    }

    /// The changes by key, ascending. Sorting many of them gives other tasks turns.
    pub async fn sorted(&self) -> Order<'_> {
        let mut sorted: Vec<Sorted> = Vec::with_capacity(self.len());
        sorted.extend(
            self.table.iter().map(|e| Sorted { prefix: prefix_of(at(&self.chunks, e.place).key()), place: e.place }),
        );
        let compare = |a: &Sorted, b: &Sorted| by_key(&self.chunks, a, b);
        let is_long = sorted.len() > SORT_BATCH;
        for part in sorted.chunks_mut(SORT_BATCH) {
            part.sort_unstable_by(compare);
            if is_long {
                turn().await;
            }
        }
        let mut run = SORT_BATCH;
        while run < sorted.len() {
            let mut merged = Vec::with_capacity(sorted.len());
            for pair in sorted.chunks(2 * run) {
                let (mut a, mut b) = pair.split_at(run.min(pair.len()));
                while let (Some(first), Some(second)) = (a.first(), b.first()) {
                    let from = if compare(first, second).is_lt() { &mut a } else { &mut b };
                    let (next, rest) = from.split_first().expect("both have one");
                    merged.push(*next);
                    *from = rest;
                    if merged.len().is_multiple_of(SORT_BATCH) {
                        turn().await;
                    }
                }
                merged.extend(a.iter().chain(b));
            }
            sorted = merged;
            run *= 2;
        }
        Order { changes: self, sorted: Rc::new(sorted), next: 0 }
    }

    /// Frees the memory of many changes in steps.
    pub async fn forget(mut self) {
        for _chunk in self.chunks.drain(..) {
            turn().await;
        }
    }
}

/// The changes of a map, by key.
pub struct Order<'a> {
    changes: &'a Changes,
    sorted: Rc<Vec<Sorted>>,
    next: usize,
}

impl<'a> Iterator for Order<'a> {
    type Item = Change<'a>;

    fn next(&mut self) -> Option<Change<'a>> {
        let next = self.sorted.get(self.next)?;
        self.next += 1;
        Some(at(&self.changes.chunks, next.place))
    }
}

/// The hash of a key.
pub fn hash_of(key: &[u8]) -> u32 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish() as u32
}

/// A hash over all of the bits that the table uses.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Lcg;
    use amphi_types::item::{Key, Txn};
    use std::collections::BTreeMap;

    /// Goal: the map has the last change of each key, in the order of keys, and knows their sizes; memory of outdated
    /// changes is bounded. Method: random changes of few and of many keys, one the prefix of another, beside an ordered
    /// map.
    #[test]
    fn it_is_an_ordered_map() {
        for (seed, keys, rounds) in [(1, 3, 2000), (2, 300, 5000), (3, 30_000, 20_000)] {
            let mut rng = Lcg(seed);
            let (mut changes, mut model) = (Changes::default(), BTreeMap::<Key, Option<Vec<u8>>>::new());
            for _ in 0..rounds {
                let n = rng.below(keys);
                let mut key = vec![b'I'; (n % 23) as usize];
                key.extend_from_slice(&n.to_be_bytes()[6..]);
                let mut txn = Txn::default();
                if rng.below(4) == 0 {
                    txn.delete(&key);
                    model.insert(key, None);
                } else {
                    let value = vec![n as u8; rng.below(200) as usize];
                    txn.put(&key, &value);
                    model.insert(key, Some(value));
                }
                txn.changes().for_each(|change| changes.insert(change));
                assert!(changes.dead <= changes.live + DEAD_BYTES_MAX);
            }
            let found: Vec<_> = futures_util::FutureExt::now_or_never(changes.sorted())
                .map(|order| order.map(|c| (c.key().to_vec(), c.value().map(<[u8]>::to_vec))).collect())
                .unwrap_or_else(|| sorted_in_turns(&changes));
            assert!(found.iter().map(|(k, v)| (k, v)).eq(&model), "seed {seed}");
            assert_eq!((changes.len(), changes.iter().map(cost).sum()), (model.len(), changes.cost()));
            let mut both = Changes::default();
            let mut txn = Txn::default();
            model.keys().take(2).for_each(|key| txn.put(key, b"older"));
            txn.changes().for_each(|change| both.insert(change));
            both.extend(&changes);
            assert_eq!((both.len(), both.cost()), (changes.len(), changes.cost()));
        }
    }

    /// Goal: reads of ranges find the same as an ordered map, whatever changes between them, and their cost depends on
    /// the items that they return and on the new keys, not on the number of changes. Method: as in the test above, with
    /// reads of ranges in between, compared with an ordered map; then ranges of a large map, where the test counts the
    /// keys that were sorted for them.
    #[test]
    fn ranges_are_read_in_order() {
        let range = |changes: &Changes, from: &[u8], max: usize| {
            while !changes.put_in_order() {}
            let mut found = Vec::new();
            changes.visit_from(from, |change| {
                found.push((change.key().to_vec(), change.value().map(<[u8]>::to_vec)));
                found.len() < max
            });
            found
        };
        for (seed, keys, rounds) in [(1, 3, 2000), (2, 300, 5000), (3, 30_000, 20_000)] {
            let mut rng = Lcg(seed);
            let (mut changes, mut model) = (Changes::default(), BTreeMap::<Key, Option<Vec<u8>>>::new());
            for round in 0..rounds {
                let key = format!("I{:04}{}", rng.below(keys), "x".repeat(rng.below(20) as usize)).into_bytes();
                let value = (rng.below(4) > 0).then(|| vec![round as u8; rng.below(200) as usize]);
                let mut txn = Txn::default();
                match &value {
                    Some(value) => txn.put(&key, value),
                    None => txn.delete(&key),
                }
                txn.changes().for_each(|change| changes.insert(change));
                model.insert(key, value);
                if rng.below(100) < 3 {
                    let (from, max) = (format!("I{:04}", rng.below(keys)).into_bytes(), 1 + rng.below(50) as usize);
                    let found = range(&changes, &from, max);
                    let wanted = model.range(from..).take(max);
                    assert!(found.iter().map(|(k, v)| (k, v)).eq(wanted), "seed {seed}, round {round}");
                }
            }
            assert!(range(&changes, b"", usize::MAX).iter().map(|(k, v)| (k, v)).eq(&model), "seed {seed}");
        }
        let mut changes = Changes::default();
        let put = |changes: &mut Changes, n: u32| {
            let mut txn = Txn::default();
            txn.put(n.wrapping_mul(0x9e37_79b9).to_be_bytes(), b"value");
            txn.changes().for_each(|change| changes.insert(change));
        };
        (0..100_000).for_each(|n| put(&mut changes, n));
        assert_eq!(range(&changes, &[0x80], 10).len(), 10);
        let work = |changes: &Changes| changes.order.borrow().as_ref().map_or(0, |order| order.work);
        let first = work(&changes);
        for n in 100_000..101_000 {
            put(&mut changes, n);
            assert_eq!(range(&changes, &[0x40], 10).len(), 10);
        }
        let later = work(&changes) - first;
        assert!(first < 1_000_000 && later < 20_000, "{first} keys sorted at first, then {later} for 1,000 reads");
    }

    /// The same of a map that is sorted in several turns.
    fn sorted_in_turns(changes: &Changes) -> Vec<(Key, Option<Vec<u8>>)> {
        let sim = crate::tests::sim(1);
        let order = sim.block_on(changes.sorted()).expect("no deadlock");
        order.map(|c| (c.key().to_vec(), c.value().map(<[u8]>::to_vec))).collect()
    }
}
