//! Inserting a name.
//!
//! Owns: how a tree grows. Does not own: the layout of a node (`node`).
//!
//! The search for the name ends in one of three ways. The name leaves a node's prefix: the node is split. If a new name
//! has no entry at its key, it gets one. If there is a leaf of a shorter name at its key, a node for both names takes
//! the leaf's place.

use crate::Cart;
use crate::cart::Place;
use crate::node::{Entry, NAME_MAX, Node, NodeMut, Padded, Shape, width_of};
use crate::roots::Root;

/// The key of a name in a node, and the bytes behind the key. A name that ends has the key 0.
fn split_key(rest: &[u8]) -> (u8, &[u8]) {
    match rest.split_first() {
        Some((key, behind)) => (*key, behind),
        None => (0, rest),
    }
}

/// A name that is not in the tree, as seen from the node where the search for it has ended.
struct New<'a> {
    /// The rest of the name, behind the bytes that the nodes above contain.
    rest: &'a [u8],
    value: u64,
}

impl Cart {
    /// Sets the value of a name, and returns the value that the name had.
    ///
    /// Panics if the name is empty, longer than 255 bytes or contains NUL, or without `has_room`.
    pub fn insert(&mut self, dir: u64, name: &[u8], value: u64) -> Option<u64> {
        assert!(!name.contains(&0), "a name contains no NUL");
        let Some(padded) = Padded::new(name) else { panic!("a name has 1 to {NAME_MAX} bytes, not {}", name.len()) };
        let Some(root) = self.roots.find(dir) else {
            let node = self.tail(name, value);
            self.roots.insert(Root { dir, node, len: 1 });
            self.len += 1;
            return None;
        };
        let (mut address, mut place, mut at) = (self.roots.at(root).node, Place::Root(root), 0);
        loop {
            let node = self.node(address);
            if !node.has_prefix(&padded, at) {
                self.split(place, address, New { rest: &name[at..], value });
                break;
            }
            at += node.shape.prefix;
            match node.find(padded.key(at)) {
                None => {
                    self.add(place, address, New { rest: &name[at..], value });
                    break;
                }
                Some(Entry::Leaf(leaf)) if padded.ends(at) => return Some(self.replace(place, address, leaf, value)),
                Some(Entry::Leaf(leaf)) => {
                    self.extend_leaf(place, address, leaf, New { rest: &name[at..], value });
                    break;
                }
                Some(Entry::Link(link)) => {
                    place = Place::In { node: address, link };
                    address = node.link(link);
                    at += 1;
                }
            }
        }
        self.len += 1;
        self.roots.at_mut(root).len += 1;
        None
    }

    /// Sets the value of a leaf, and returns the old one.
    fn replace(&mut self, place: Place, address: u32, leaf: usize, value: u64) -> u64 {
        let node = self.node(address);
        let old = node.value(leaf);
        let shape = Shape { width: node.shape.width.max(width_of(value)), ..node.shape };
        let address = self.make_room(place, address, shape);
        let mut node = self.edit(address);
        node.widen(shape.width);
        node.set_value(leaf, value);
        old
    }

    /// A node for the only name that continues with `rest`, of at least one byte.
    fn tail(&mut self, rest: &[u8], value: u64) -> u32 {
        let (prefix, key) = rest.split_at(rest.len() - 1);
        let shape = Shape { leaves: 1, links: 0, prefix: prefix.len(), width: width_of(value) };
        let address = self.slabs.allocate(shape.bytes());
        let mut node = self.edit(address);
        node.make(prefix, shape.width);
        node.add_leaf(key[0], value);
        address
    }

    /// The form of `shape` with one more name.
    fn with(shape: Shape, new: &New<'_>) -> Shape {
        if new.rest.len() > 1 {
            Shape { links: shape.links + 1, ..shape }
        } else {
            Shape { leaves: shape.leaves + 1, width: shape.width.max(width_of(new.value)), ..shape }
        }
    }

    /// Adds an entry for a name to a node that has room for it.
    fn put(&mut self, address: u32, new: &New<'_>) {
        let (key, behind) = split_key(new.rest);
        if behind.is_empty() {
            let mut node = self.edit(address);
            node.widen(width_of(new.value));
            node.add_leaf(key, new.value);
        } else {
            let tail = self.tail(behind, new.value);
            self.edit(address).add_link(key, tail);
        }
    }

    /// The name has no entry at its key.
    fn add(&mut self, place: Place, address: u32, new: New<'_>) {
        let shape = Self::with(self.node(address).shape, &new);
        let address = self.make_room(place, address, shape);
        self.put(address, &new);
    }

    /// The name shares only the first bytes of a node's prefix: a new node with these takes its place and links to it.
    fn split(&mut self, place: Place, address: u32, new: New<'_>) {
        let prefix = self.node(address).prefix();
        let common = prefix.iter().zip(new.rest).take_while(|(a, b)| a == b).count();
        let key = prefix[common];
        let new = New { rest: &new.rest[common..], ..new };
        let shape = Self::with(Shape { leaves: 0, links: 1, prefix: common, width: 1 }, &new);
        let above = self.slabs.allocate(shape.bytes());
        let (old, block) = self.slabs.two(address, above);
        NodeMut::new(block).make(&Node::new(old).prefix()[..common], shape.width);
        self.edit(address).shorten_prefix(common + 1);
        let address = self.fit(address);
        self.edit(above).add_link(key, address);
        self.put(above, &new);
        self.set_place(place, above);
    }

    /// The name continues behind the key of a leaf: a new node with both names takes the leaf's place.
    fn extend_leaf(&mut self, place: Place, address: u32, leaf: usize, new: New<'_>) {
        let (key, behind) = split_key(new.rest);
        let new = New { rest: behind, ..new };
        let node = self.node(address);
        let shorter = node.value(leaf);
        if node.shape.entries() == 1 {
            // The node is a tail (its only entry is this leaf): the leaf's byte moves to the end of its prefix, which
            // is then the whole rest of the shorter name.
            let shape = Self::with(Shape { prefix: node.shape.prefix + 1, ..node.shape }, &new);
            let address = self.make_room(place, address, shape);
            let mut node = self.edit(address);
            node.remove_leaf(leaf);
            node.push_prefix(key);
            node.add_leaf(0, shorter);
            self.put(address, &new);
            return;
        }
        let below = Shape { leaves: 1, links: 0, prefix: 0, width: width_of(shorter) };
        let shape = Shape { leaves: node.shape.leaves - 1, links: node.shape.links + 1, ..node.shape };
        let both = self.slabs.allocate(Self::with(below, &new).bytes());
        let mut node = self.edit(both);
        node.make(&[], below.width);
        node.add_leaf(0, shorter);
        self.put(both, &new);
        let address = self.make_room(place, address, shape);
        let mut node = self.edit(address);
        node.remove_leaf(leaf);
        node.add_link(key, both);
    }
}
