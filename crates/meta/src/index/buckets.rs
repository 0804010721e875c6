//! `Buckets`: which buckets of hashes have names, without the names.
//!
//! Owns: this filter. Does not own: the contents of a bucket, which only a walk over the directory finds.
//!
//! It is rare that two names of a directory have the same hash, but then the new name needs another cookie. The trees
//! of names cannot be searched by hash, so the filter keeps 40 bits for each name: of a hash over directory and bucket.
//! If it does not have these bits, the bucket is empty. If it has them, the directory has to be walked. With n names on
//! a target, the walk is unnecessary for one new name in 2^40 / n. 8 of the 40 bits choose one of 256 tables, so that
//! no single step has to grow all of them.
//!
//! 8 of the 40 bits choose one of 256 tables, so that no step is as long as growing all. The other bits are the number
//! that the table stores, and its place there. Tables have open addresses and grow by a quarter; a name needs 5 to 6
//! bytes.

/// Tables.
const TABLES: usize = 256;
/// Most names of a table: 13 of 16 places.
const FULL: (usize, usize) = (13, 16);
/// Fewest names, before the table shrinks.
const EMPTY: (usize, usize) = (8, 16);
/// Places of the smallest table.
const PLACES_MIN: usize = 8;

/// Numbers, each of which may occur several times; 0 is a free place.
#[derive(Clone, Debug, Default)]
struct Table {
    places: Vec<u32>,
    len: usize,
}

impl Table {
    fn home(&self, number: u32) -> usize {
        ((u64::from(number) * self.places.len() as u64) >> 32) as usize
    }

    fn after(&self, place: usize) -> usize {
        if place + 1 == self.places.len() { 0 } else { place + 1 }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.places.len() - from }
    }

    /// The place of a number.
    fn find(&self, number: u32) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let mut at = self.home(number);
        while self.places[at] != 0 {
            if self.places[at] == number {
                return Some(at);
            }
            at = self.after(at);
        }
        None
    }

    fn put(&mut self, number: u32) {
        let mut at = self.home(number);
        while self.places[at] != 0 {
            at = self.after(at);
        }
        self.places[at] = number;
    }

    fn add(&mut self, number: u32) {
        if (self.len + 1) * FULL.1 > self.places.len() * FULL.0 {
            self.resize(self.places.len() + self.places.len() / 4);
        }
        assert!(self.len + 1 < self.places.len(), "{} numbers in {} places", self.len + 1, self.places.len());
        self.put(number);
        self.len += 1;
    }

    fn remove(&mut self, number: u32) {
        let Some(mut free) = self.find(number) else { return };
        let mut at = self.after(free);
        while self.places[at] != 0 {
            // A number moves back if its home is not between the free place and its own, around the end.
            if self.distance(self.home(self.places[at]), at) >= self.distance(free, at) {
                self.places[free] = self.places[at];
                free = at;
            }
            at = self.after(at);
        }
        self.places[free] = 0;
        self.len -= 1;
        if self.len == 0 {
            *self = Table::default();
        } else if self.places.len() > PLACES_MIN && self.len * EMPTY.1 < self.places.len() * EMPTY.0 {
            self.resize(self.places.len() - self.places.len() / 4);
        }
    }

    fn resize(&mut self, places: usize) {
        let resized = vec![0; places.max(PLACES_MIN)];
        let old = std::mem::replace(&mut self.places, resized);
        old.into_iter().filter(|number| *number != 0).for_each(|number| self.put(number));
    }
}

/// For each name, 40 bits of its directory and bucket.
#[derive(Clone, Debug, Default)]
pub(super) struct Buckets {
    /// Empty until the first name is added.
    tables: Vec<Table>,
}

/// The table and the number of a bucket.
fn place(dir: u64, bucket: u64) -> (usize, u32) {
    // Bits of the bucket are those of a keyed hash. The directory's are spread over all by two multiplications.
    let mut bits = bucket ^ dir.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    bits = (bits ^ bits >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    ((bits >> 56) as usize, ((bits >> 24) as u32).max(1))
}

impl Buckets {
    /// Returns whether a bucket of a directory may have a name. If it has, the answer is yes.
    pub(super) fn may_have(&self, dir: u64, bucket: u64) -> bool {
        let (table, number) = place(dir, bucket);
        self.tables.get(table).is_some_and(|table| table.find(number).is_some())
    }

    /// Called when a bucket gets a name.
    pub(super) fn add(&mut self, dir: u64, bucket: u64) {
        if self.tables.is_empty() {
            self.tables.resize(TABLES, Table::default());
        }
        let (table, number) = place(dir, bucket);
        self.tables[table].add(number);
    }

    /// A bucket loses a name.
    pub(super) fn remove(&mut self, dir: u64, bucket: u64) {
        let (table, number) = place(dir, bucket);
        if let Some(table) = self.tables.get_mut(table) {
            table.remove(number);
        }
    }

    /// Bytes of memory from the allocator.
    pub(super) fn bytes(&self) -> usize {
        let tables = self.tables.capacity() * size_of::<Table>();
        tables + self.tables.iter().map(|table| table.places.capacity() * size_of::<u32>()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Goal: the filter never denies a bucket that has names, forgets those that have none, and gives memory back.
    /// Method: names come and go in many buckets and in a few, against counts.
    #[test]
    fn buckets_that_have_names_are_known() {
        let (mut buckets, mut counts) = (Buckets::default(), BTreeMap::new());
        let mut state = 1u64;
        for step in 0..200_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = (state >> 60, state >> 40 & if step % 2 == 0 { 0x3fff } else { 3 });
            let count: &mut u32 = counts.entry(key).or_default();
            assert!(*count == 0 || buckets.may_have(key.0, key.1));
            let grows = (step / 50_000) % 2 == 0;
            if (state >> 33 & 7 > 1) == grows {
                buckets.add(key.0, key.1);
                *count += 1;
            } else if *count > 0 {
                buckets.remove(key.0, key.1);
                *count -= 1;
            }
        }
        let wrong = counts.iter().filter(|(key, count)| **count == 0 && buckets.may_have(key.0, key.1)).count();
        assert!(wrong <= 2, "{wrong} buckets are empty and not known as such");
        for ((dir, bucket), count) in counts {
            (0..count).for_each(|_| buckets.remove(dir, bucket));
        }
        assert_eq!(buckets.bytes(), buckets.tables.capacity() * size_of::<Table>());
    }
}
