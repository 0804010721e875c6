//! `Roots`: the table from a directory to the root of its tree and the number of its names.
//!
//! Owns: this hash table. Does not own: the trees.
//!
//! The table uses open addressing with linear probing, and a removal moves later entries back, so that no marks of
//! removed entries are needed. The table grows and shrinks by a quarter, since a table that doubles is half empty on
//! the average after it has grown. Numbers of directories are given out by the server, not chosen by users, so the hash
//! is one multiplication.

use crate::slab::NONE;

/// Most entries: 13 of 16 places.
const FULL: (usize, usize) = (13, 16);
/// Fewest entries, before the table shrinks: 8 of 16 places.
const EMPTY: (usize, usize) = (8, 16);
/// The number of places of the smallest table.
const PLACES_MIN: usize = 8;

/// A directory that has names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub(crate) dir: u64,
    /// The tree's first node, and `NONE` if the place is free.
    pub(crate) node: u32,
    /// Number of names.
    pub(crate) len: u32,
}

const FREE: Root = Root { dir: 0, node: NONE, len: 0 };

#[derive(Clone, Debug)]
pub(crate) struct Roots {
    places: Vec<Root>,
    len: usize,
}

impl Roots {
    pub(crate) fn new() -> Roots {
        Roots { places: Vec::new(), len: 0 }
    }

    /// Bytes of memory from the allocator.
    pub(crate) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Root>()
    }

    /// All directories, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Root> {
        self.places.iter().filter(|root| root.node != NONE)
    }

    #[inline]
    fn home(&self, dir: u64) -> usize {
        let mixed = (dir ^ dir >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The upper half of the product is spread evenly over the places, whatever their number.
        ((u128::from(mixed) * self.places.len() as u128) >> 64) as usize
    }

    #[inline]
    fn after(&self, place: usize) -> usize {
        if place + 1 == self.places.len() { 0 } else { place + 1 }
    }

    /// The place of a directory, or the free one where it would be. The table has places.
    #[inline]
    fn place(&self, dir: u64) -> usize {
        let mut at = self.home(dir);
        while self.places[at].node != NONE && self.places[at].dir != dir {
            at = self.after(at);
        }
        at
    }

    /// The place of a directory that has names. The result is valid until the table is changed.
    #[inline]
    pub(crate) fn find(&self, dir: u64) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        Some(self.place(dir)).filter(|place| self.places[*place].node != NONE)
    }

    #[inline]
    pub(crate) fn at(&self, place: usize) -> &Root {
        &self.places[place]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, place: usize) -> &mut Root {
        &mut self.places[place]
    }

    /// Adds a directory that is not in the table.
    pub(crate) fn insert(&mut self, root: Root) {
        if (self.len + 1) * FULL.1 > self.places.len() * FULL.0 {
            self.resize(self.places.len() + self.places.len() / 4);
        }
        let place = self.place(root.dir);
        debug_assert!(self.places[place].node == NONE);
        self.places[place] = root;
        self.len += 1;
    }

    /// Removes the directory at a place.
    pub(crate) fn remove(&mut self, place: usize) {
        let mut free = place;
        let mut at = free;
        loop {
            at = self.after(at);
            if self.places[at].node == NONE {
                break;
            }
            // An entry moves back if its home is not between the free place and its own, around the end.
            let from_home = self.distance(self.home(self.places[at].dir), at);
            if from_home >= self.distance(free, at) {
                self.places[free] = self.places[at];
                free = at;
            }
        }
        self.places[free] = FREE;
        self.len -= 1;
        if self.len == 0 {
            *self = Roots::new();
        } else if self.places.len() > PLACES_MIN && self.len * EMPTY.1 < self.places.len() * EMPTY.0 {
            self.resize(self.places.len() - self.places.len() / 4);
        }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.places.len() - from }
    }

    fn resize(&mut self, places: usize) {
        let mut grown = Vec::new();
        grown.reserve_exact(places.max(PLACES_MIN));
        grown.resize(places.max(PLACES_MIN), FREE);
        let old = std::mem::replace(&mut self.places, grown);
        for root in old.into_iter().filter(|root| root.node != NONE) {
            let place = self.place(root.dir);
            self.places[place] = root;
        }
    }
}
