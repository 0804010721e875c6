//! Removing a name.
//!
//! Owns: how a tree shrinks so that its shape depends only on its names. Does not own: the layout of a node (`node`).

use crate::Cart;
use crate::cart::Place;
use crate::node::{Entry, NAME_MAX, NodeMut, Padded, Shape, width_of};

/// The path to a node: where its address is stored, and the same for the two nodes above it. A removal changes no more.
#[derive(Clone, Copy)]
struct Way {
    place: Place,
    above: Place,
    above_that: Place,
}

impl Way {
    fn to_root(root: Place) -> Way {
        Way { place: root, above: root, above_that: root }
    }

    fn down(self, place: Place) -> Way {
        Way { place, above: self.place, above_that: self.above }
    }

    fn up(self) -> Way {
        Way { place: self.above, above: self.above_that, ..self }
    }
}

impl Cart {
    /// Removes a name, and returns its value.
    pub fn remove(&mut self, dir: u64, name: &[u8]) -> Option<u64> {
        let root = self.roots.find(dir)?;
        let name = Padded::new(name)?;
        let (mut address, mut way, mut at) = (self.roots.at(root).node, Way::to_root(Place::Root(root)), 0);
        let (leaf, value) = loop {
            let node = self.node(address);
            if !node.has_prefix(&name, at) {
                return None;
            }
            at += node.shape.prefix;
            match node.find(name.key(at))? {
                Entry::Leaf(leaf) if name.ends(at) => break (leaf, node.value(leaf)),
                Entry::Leaf(_) => return None,
                Entry::Link(link) => {
                    way = way.down(Place::In { node: address, link });
                    address = node.link(link);
                    at += 1;
                }
            }
        };
        self.len -= 1;
        self.roots.at_mut(root).len -= 1;
        if self.node(address).shape.entries() > 1 {
            self.edit(address).remove_leaf(leaf);
            self.settle(way, address);
            return Some(value);
        }
        // A tail is removed together with its name, and the node above loses its link to the tail.
        self.slabs.free(address);
        match way.place {
            Place::Root(root) => self.roots.remove(root),
            Place::In { node, link } => {
                self.edit(node).remove_link(link);
                self.settle(way.up(), node);
            }
        }
        Some(value)
    }

    /// Gives a node that has lost an entry the form that its names need.
    fn settle(&mut self, way: Way, address: u32) {
        let node = self.node(address);
        if node.shape.entries() == 1 {
            match (node.entry(0), node.keys()[0]) {
                (Entry::Leaf(_), 0) if node.shape.prefix == 0 => return self.lift_leaf(way, address),
                (Entry::Leaf(_), 0) => {
                    // The name ends with the prefix, so its last byte becomes the key.
                    let value = node.value(0);
                    let mut node = self.edit(address);
                    let key = node.pop_prefix();
                    node.remove_leaf(0);
                    node.add_leaf(key, value);
                }
                (Entry::Leaf(_), _) => {}
                (Entry::Link(_), _) => return self.join(way.place, address),
            }
        }
        let fitting = self.fit(address);
        if fitting != address {
            self.set_place(way.place, fitting);
        }
    }

    /// A node without a prefix has only the name that ends there: its value goes into the node above.
    fn lift_leaf(&mut self, way: Way, address: u32) {
        let value = self.node(address).value(0);
        let Place::In { node: above, link } = way.place else {
            unreachable!("a root without a prefix and with the empty name alone, which is no name")
        };
        let node = self.node(above);
        let key = node.keys()[node.shape.leaves + link];
        let width = node.shape.width.max(width_of(value));
        let shape = Shape { leaves: node.shape.leaves + 1, links: node.shape.links - 1, width, ..node.shape };
        self.slabs.free(address);
        let above = self.make_room(way.above, above, shape);
        let mut node = self.edit(above);
        node.remove_link(link);
        node.widen(width);
        node.add_leaf(key, value);
    }

    /// Called when a node has only one node below it. Both become one node, whose prefix consists of both prefixes and
    /// the key between them.
    fn join(&mut self, place: Place, address: u32) {
        let node = self.node(address);
        let (key, below) = (node.keys()[0], node.link(0));
        let len = node.shape.prefix;
        let mut above = [0; NAME_MAX];
        above[..len].copy_from_slice(node.prefix());
        let node = self.node(below);
        let needed = Shape { prefix: node.shape.prefix + len + 1, ..node.shape }.bytes();
        let joined = if needed <= self.slabs.size(below) {
            self.edit(below).lengthen_prefix(&above[..len], key);
            below
        } else {
            let joined = self.slabs.allocate(needed);
            let (from, to) = self.slabs.two(below, joined);
            let mut node = NodeMut::new(to);
            node.copy(from);
            node.lengthen_prefix(&above[..len], key);
            self.slabs.free(below);
            joined
        };
        self.slabs.free(address);
        self.set_place(place, joined);
    }
}
