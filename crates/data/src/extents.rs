//! An extent, and `Extents`: the extents of one object, by file block.
//!
//! Owns: where they lie in memory. Does not own: that they do not overlap and are joined (`extent`).
//!
//! Most objects have one extent, which lies in the object. Up to `FEW_MAX` extents are a sorted vector, in which an
//! insertion moves at most 1.5 KiB. More are a B-tree, so that an insertion into a large fragmented object takes
//! logarithmic time. They become a vector again only when half as many are left, so that no sequence of changes
//! converts them each time.
//!
//! The number that drove the design: in a B-tree one extent costs a node of 280 bytes, more than everything else of an
//! object.

use crate::alloc::Run;
use std::collections::{BTreeMap, btree_map};

/// Most blocks of one extent: 128 MiB.
pub const EXTENT_BLOCKS_MAX: u32 = 32_768;

/// Consecutive file blocks that lie in consecutive physical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First physical block.
    pub physical: u64,
    /// Length in blocks.
    pub blocks: u32,
    /// Whether the extent contains bytes. If not, it is preallocated and reads as zeros.
    pub written: bool,
}

impl Extent {
    /// The physical blocks.
    pub fn run(&self) -> Run {
        Run { start: self.physical, blocks: self.blocks }
    }
}

/// Most extents in a vector.
const FEW_MAX: usize = 64;

/// An extent with its first file block.
type Placed = (u64, Extent);

/// The extents of an object, ascending.
#[derive(Clone, Debug, Default)]
pub(crate) enum Extents {
    #[default]
    None,
    One([Placed; 1]),
    Many(Box<Many>),
}

const _: () = assert!(size_of::<Extents>() == 24);

/// Two or more extents.
#[derive(Clone, Debug)]
pub(crate) struct Many {
    list: List,
    /// Number of blocks of all extents.
    blocks: u64,
}

#[derive(Clone, Debug)]
enum List {
    Few(Vec<Placed>),
    Tree(BTreeMap<u64, Extent>),
}

impl Extents {
    /// The extents, unless they are a tree.
    fn slice(&self) -> Result<&[Placed], &BTreeMap<u64, Extent>> {
        match self {
            Extents::None => Ok(&[]),
            Extents::One(one) => Ok(one),
            Extents::Many(many) => match &many.list {
                List::Few(few) => Ok(few),
                List::Tree(tree) => Err(tree),
            },
        }
    }

    /// Blocks of all extents.
    pub fn blocks(&self) -> u64 {
        match self {
            Extents::None => 0,
            Extents::One([(_, e)]) => u64::from(e.blocks),
            Extents::Many(many) => many.blocks,
        }
    }

    /// The extent that begins at a file block.
    pub fn get(&self, at: u64) -> Option<Extent> {
        match self.slice() {
            Ok(slice) => slice.binary_search_by_key(&at, |e| e.0).ok().map(|i| slice[i].1),
            Err(tree) => tree.get(&at).copied(),
        }
    }

    /// The last extent that begins in front of a file block.
    pub fn before(&self, at: u64) -> Option<Placed> {
        match self.slice() {
            Ok(slice) => slice[..slice.partition_point(|e| e.0 < at)].last().copied(),
            Err(tree) => tree.range(..at).next_back().map(|(&at, &e)| (at, e)),
        }
    }

    /// The extents that begin at or behind a file block.
    pub fn range(&self, from: u64) -> Iter<'_> {
        match self.slice() {
            Ok(slice) => Iter::Slice(slice[slice.partition_point(|e| e.0 < from)..].iter()),
            Err(tree) => Iter::Tree(tree.range(from..)),
        }
    }

    /// All extents.
    pub fn iter(&self) -> Iter<'_> {
        self.range(0)
    }

    /// Puts an extent, and returns the one that began at the same block.
    pub fn insert(&mut self, at: u64, extent: Extent) -> Option<Extent> {
        match self {
            Extents::None => {
                *self = Extents::One([(at, extent)]);
                None
            }
            Extents::One([(had, old)]) if *had == at => Some(std::mem::replace(old, extent)),
            Extents::One(one) => {
                let mut few = one.to_vec();
                few.insert(usize::from(one[0].0 < at), (at, extent));
                let blocks = few.iter().map(|(_, e)| u64::from(e.blocks)).sum();
                *self = Extents::Many(Box::new(Many { list: List::Few(few), blocks }));
                None
            }
            Extents::Many(many) => many.insert(at, extent),
        }
    }

    /// Removes the extent that begins at a file block.
    pub fn remove(&mut self, at: u64) -> Option<Extent> {
        match self {
            Extents::None => None,
            Extents::One([(had, extent)]) => {
                let removed = (*had == at).then_some(*extent)?;
                *self = Extents::None;
                Some(removed)
            }
            Extents::Many(many) => {
                let removed = many.remove(at)?;
                if let List::Few(few) = &many.list
                    && let &[last] = &few[..]
                {
                    *self = Extents::One([last]);
                }
                Some(removed)
            }
        }
    }

    /// Removes the last extent.
    pub fn pop_last(&mut self) -> Option<Placed> {
        let (at, _) = self.before(u64::MAX)?;
        self.remove(at).map(|extent| (at, extent))
    }
}

impl Many {
    fn insert(&mut self, at: u64, extent: Extent) -> Option<Extent> {
        self.blocks += u64::from(extent.blocks);
        let old = match &mut self.list {
            List::Few(few) => match few.binary_search_by_key(&at, |e| e.0) {
                Ok(i) => Some(std::mem::replace(&mut few[i].1, extent)),
                Err(i) => {
                    few.insert(i, (at, extent));
                    if few.len() > FEW_MAX {
                        self.list = List::Tree(few.drain(..).collect());
                    }
                    None
                }
            },
            List::Tree(tree) => tree.insert(at, extent),
        };
        self.blocks -= old.map_or(0, |e| u64::from(e.blocks));
        old
    }

    fn remove(&mut self, at: u64) -> Option<Extent> {
        let removed = match &mut self.list {
            List::Few(few) => few.binary_search_by_key(&at, |e| e.0).ok().map(|i| few.remove(i).1),
            List::Tree(tree) => {
                let removed = tree.remove(&at);
                if tree.len() <= FEW_MAX / 2 {
                    self.list = List::Few(std::mem::take(tree).into_iter().collect());
                }
                removed
            }
        }?;
        self.blocks -= u64::from(removed.blocks);
        Some(removed)
    }
}

impl PartialEq for Extents {
    fn eq(&self, other: &Extents) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Extents {}

/// Some extents of an object, in ascending order.
pub(crate) enum Iter<'a> {
    Slice(std::slice::Iter<'a, Placed>),
    Tree(btree_map::Range<'a, u64, Extent>),
}

impl Iterator for Iter<'_> {
    type Item = Placed;

    fn next(&mut self) -> Option<Placed> {
        match self {
            Iter::Slice(slice) => slice.next().copied(),
            Iter::Tree(tree) => tree.next().map(|(&at, &e)| (at, e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        /// Goal: extents are found, replaced and removed as in a map, whether they are one, few or many. Method: random
        /// calls beside a map, first mostly insertions, then mostly removals.
        #[test]
        fn they_are_a_map(calls in proptest::collection::vec((0..200u64, 1..9u32, 0..100u32), 0..600)) {
            let (mut extents, mut model) = (Extents::default(), BTreeMap::new());
            let half = calls.len() / 2;
            for (n, (at, blocks, dice)) in calls.into_iter().enumerate() {
                if (n < half) == (dice < 80) {
                    let extent = Extent { physical: at * 10, blocks, written: dice % 2 == 0 };
                    prop_assert_eq!(extents.insert(at, extent), model.insert(at, extent));
                } else if dice % 7 == 0 {
                    prop_assert_eq!(extents.pop_last(), model.pop_last());
                } else {
                    prop_assert_eq!(extents.remove(at), model.remove(&at));
                }
                prop_assert_eq!(extents.get(at), model.get(&at).copied());
                prop_assert_eq!(extents.before(at), model.range(..at).next_back().map(|(&at, &e)| (at, e)));
                prop_assert!(extents.range(at).eq(model.range(at..).map(|(&at, &e)| (at, e))));
                prop_assert_eq!(extents.blocks(), model.values().map(|e| u64::from(e.blocks)).sum::<u64>());
                prop_assert_eq!(matches!(extents, Extents::None), model.is_empty());
                prop_assert_eq!(matches!(extents, Extents::One(_)), model.len() == 1);
            }
            prop_assert!(extents.iter().eq(model.into_iter()));
        }
    }
}
