//! `Objects`: the objects of a target, by their id.
//!
//! Owns: where they lie in memory. Does not own: what an object is (`extent`).
//!
//! Objects lie in leaves, which are sorted vectors, and a B-tree has a lower bound of the ids of each leaf. A full leaf
//! is split where the new object belongs, but not in its first half. So leaves that are filled in the order of their
//! ids, or almost so, stay full. Invariants: the ids of a leaf are at least its bound and below that of the next leaf.
//! No leaf is empty. A leaf has memory for at most `SPARE_MAX` more objects than it contains.
//!
//! The number that drove the design: an object of 64 bytes with its id of 16 bytes costs 154 bytes in a B-tree that is
//! filled in order, because its nodes stay half empty. Here it costs 81 to 88 bytes.

use crate::extent::Object;
use amphi_types::{Ino, ObjectId};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Most objects of a leaf: an insertion moves at most 5 KiB.
const LEAF_MAX: usize = 64;
/// Number of objects for which a full vector gets additional room.
const GROWTH: usize = 8;
/// Unused capacity of a leaf, in objects, above which the leaf is shrunk.
const SPARE_MAX: usize = 2 * GROWTH;

type Leaf = Vec<(ObjectId, Object)>;

/// Objects by id.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    leaves: BTreeMap<ObjectId, Leaf>,
}

impl Objects {
    fn leaf(&self, id: ObjectId) -> Option<&Leaf> {
        self.leaves.range(..=id).next_back().map(|(_, leaf)| leaf)
    }

    fn leaf_mut(&mut self, id: ObjectId) -> Option<(ObjectId, &mut Leaf)> {
        self.leaves.range_mut(..=id).next_back().map(|(&bound, leaf)| (bound, leaf))
    }

    pub fn get(&self, id: ObjectId) -> Option<&Object> {
        let leaf = self.leaf(id)?;
        leaf.binary_search_by_key(&id, |o| o.0).ok().map(|i| &leaf[i].1)
    }

    pub fn get_mut(&mut self, id: ObjectId) -> Option<&mut Object> {
        let (_, leaf) = self.leaf_mut(id)?;
        leaf.binary_search_by_key(&id, |o| o.0).ok().map(|i| &mut leaf[i].1)
    }

    pub fn contains(&self, id: ObjectId) -> bool {
        self.get(id).is_some()
    }

    /// An object, which is made if it does not exist.
    pub fn or_default(&mut self, id: ObjectId) -> &mut Object {
        if self.leaves.range(..=id).next_back().is_none() {
            // The first leaf gets a lower bound.
            let leaf = self.leaves.pop_first().map_or_else(Leaf::new, |(_, leaf)| leaf);
            self.leaves.insert(id, leaf);
        }
        let (mut bound, leaf) = self.leaf_mut(id).expect("there is one at or below it");
        let mut at = match leaf.binary_search_by_key(&id, |o| o.0) {
            Ok(at) => return &mut self.leaves.get_mut(&bound).expect("it has just been found")[at].1,
            Err(at) => at,
        };
        if leaf.len() == LEAF_MAX {
            let cut = at.max(LEAF_MAX / 2);
            let behind = leaf.split_off(cut);
            leaf.shrink_to(cut + GROWTH);
            let first = behind.first().filter(|_| at < cut).map_or(id, |o| o.0);
            if at == cut {
                (bound, at) = (id, 0);
            }
            self.put_behind(first, behind);
        }
        let leaf = self.leaves.get_mut(&bound).expect("it has been found or made");
        if leaf.len() == leaf.capacity() {
            leaf.reserve_exact(GROWTH);
        }
        leaf.insert(at, (id, Object::default()));
        &mut leaf[at].1
    }

    /// Puts objects that were cut off a leaf into one that begins with `bound`. They are joined with the next leaf if
    /// both fit into it with space for one more.
    fn put_behind(&mut self, bound: ObjectId, mut objects: Leaf) {
        let next = self.leaves.range(bound..).next().filter(|(_, next)| objects.len() + next.len() < LEAF_MAX);
        if let Some(next) = next.map(|(&next, _)| next)
            && let Some(moved) = self.leaves.remove(&next)
        {
            objects.reserve_exact(moved.len() + 1);
            objects.extend(moved);
        }
        self.leaves.insert(bound, objects);
    }

    pub fn remove(&mut self, id: ObjectId) -> Option<Object> {
        let (bound, leaf) = self.leaf_mut(id)?;
        let at = leaf.binary_search_by_key(&id, |o| o.0).ok()?;
        let (_, object) = leaf.remove(at);
        if leaf.capacity() - leaf.len() > SPARE_MAX {
            leaf.shrink_to(leaf.len() + GROWTH);
        }
        if leaf.is_empty() {
            self.leaves.remove(&bound);
        } else if leaf.len() < LEAF_MAX / 4 {
            self.join(bound);
        }
        Some(object)
    }

    /// Joins a leaf that has few objects with the next or the previous leaf, if both together fill at most half of a
    /// leaf.
    fn join(&mut self, bound: ObjectId) {
        let next = self.leaves.range((Bound::Excluded(bound), Bound::Unbounded)).next().map(|(&next, _)| (bound, next));
        let last = self.leaves.range(..bound).next_back().map(|(&last, _)| (last, bound));
        let len = |bound| self.leaves.get(&bound).map_or(0, Vec::len);
        let fits = |(a, b): &(ObjectId, ObjectId)| len(*a) + len(*b) <= LEAF_MAX / 2;
        if let Some((into, from)) = next.filter(fits).or(last.filter(fits))
            && let Some(moved) = self.leaves.remove(&from)
            && let Some(leaf) = self.leaves.get_mut(&into)
        {
            leaf.reserve_exact(moved.len());
            leaf.extend(moved);
        }
    }

    /// All objects from `from` on, ascending.
    pub fn range(&self, from: Bound<ObjectId>) -> impl Iterator<Item = (ObjectId, &Object)> {
        let is_before = move |id: ObjectId| match from {
            Bound::Included(first) => id < first,
            Bound::Excluded(last) => id <= last,
            Bound::Unbounded => false,
        };
        let first = match from {
            Bound::Included(id) | Bound::Excluded(id) => self.leaves.range(..=id).next_back().map(|(&bound, _)| bound),
            Bound::Unbounded => None,
        };
        let leaves = self.leaves.range((first.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded));
        leaves.flat_map(move |(_, leaf)| {
            let skipped = leaf.partition_point(|(id, _)| is_before(*id));
            leaf[skipped..].iter().map(|(id, o)| (*id, o))
        })
    }

    /// All objects, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (ObjectId, &Object)> {
        self.range(Bound::Unbounded)
    }

    /// All objects, ascending.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Object> {
        self.leaves.values_mut().flat_map(|leaf| leaf.iter_mut().map(|(_, o)| o))
    }

    /// The objects of a file, by stripe.
    pub fn of(&self, ino: Ino) -> impl Iterator<Item = (ObjectId, &Object)> {
        self.range(Bound::Included(ObjectId { ino, stripe: 0 })).take_while(move |(id, _)| id.ino == ino)
    }

    /// The last object of a file.
    pub fn last_of(&self, ino: Ino) -> Option<ObjectId> {
        let last = ObjectId { ino, stripe: u32::MAX };
        let mut leaves = self.leaves.range(..=last).rev();
        let id = leaves.find_map(|(_, leaf)| {
            let end = leaf.partition_point(|(id, _)| *id <= last);
            leaf[..end].last().map(|(id, _)| *id)
        })?;
        (id.ino == ino).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(n: u64) -> ObjectId {
        ObjectId { ino: Ino(n / 3), stripe: (n % 3) as u32 }
    }

    impl Objects {
        /// Bytes of memory of its vectors, and number of leaves.
        fn memory(&self) -> (usize, usize) {
            let bytes = self.leaves.values().map(|leaf| leaf.capacity() * size_of::<(ObjectId, Object)>()).sum();
            (bytes, self.leaves.len())
        }

        fn check(&self) {
            let mut last = None;
            for (&bound, leaf) in &self.leaves {
                assert!(!leaf.is_empty() && leaf.len() <= LEAF_MAX && leaf[0].0 >= bound && last < Some(bound));
                assert!(leaf.is_sorted_by(|a, b| a.0 < b.0) && leaf.capacity() - leaf.len() <= SPARE_MAX);
                last = leaf.last().map(|(id, _)| *id);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        /// Goal: objects are found, walked and removed as in a map. Method: random calls beside a map, first mostly
        /// insertions, then mostly removals.
        #[test]
        fn they_are_a_map(calls in proptest::collection::vec((0..900u64, 0..100u32), 0..2000)) {
            let (mut objects, mut model) = (Objects::default(), BTreeMap::new());
            let half = calls.len() / 2;
            for (n, (at, dice)) in calls.into_iter().enumerate() {
                if (n < half) == (dice < 80) {
                    objects.or_default(id(at)).end = n as u64;
                    model.entry(id(at)).or_insert_with(Object::default).end = n as u64;
                } else {
                    prop_assert_eq!(objects.remove(id(at)), model.remove(&id(at)));
                }
                let near = id(at + u64::from(dice % 3));
                prop_assert_eq!(objects.get(near), model.get(&near));
                prop_assert_eq!(objects.get_mut(near).is_some(), objects.contains(near));
                let stripes = ObjectId { ino: near.ino, stripe: 0 }..=ObjectId { ino: near.ino, stripe: u32::MAX };
                prop_assert!(objects.of(near.ino).eq(model.range(stripes.clone()).map(|(&id, o)| (id, o))));
                prop_assert_eq!(objects.last_of(near.ino), model.range(stripes).next_back().map(|(&id, _)| id));
                let behind = (Bound::Excluded(near), Bound::Unbounded);
                prop_assert!(objects.range(behind.0).take(5).eq(model.range(behind).take(5).map(|(&id, o)| (id, o))));
            }
            objects.check();
            prop_assert!(objects.iter().eq(model.iter().map(|(&id, o)| (id, o))));
        }
    }

    /// Goal: objects take the memory that the head of the module names, whatever the order in which they are made, and
    /// leaves that are emptied are joined. Method: ascending, descending, by several writers at once, and scattered.
    /// Then all but one of each hundred are removed.
    #[test]
    fn they_are_dense() {
        let count = 30_000u64;
        for order in ["ascending", "descending", "side by side", "scattered"] {
            let place = |n: u64| match order {
                "ascending" => n,
                "descending" => 40_000 - n,
                "side by side" => n ^ 15,
                _ => n * 7919 % 30_011,
            };
            let mut objects = Objects::default();
            (0..count).for_each(|n| drop(objects.or_default(id(place(n))).clone()));
            objects.check();
            let (bytes, leaves) = objects.memory();
            let each = (bytes as u64 + leaves as u64 * 80) / count;
            assert!((80..=95).contains(&each), "{order}: {each} bytes, {leaves} leaves");
            (0..count).filter(|n| n % 100 > 0).for_each(|n| drop(objects.remove(id(place(n)))));
            objects.check();
            assert!(objects.memory().1 <= count as usize / 100 / 8, "{order}: {:?}", objects.memory());
        }
    }
}
