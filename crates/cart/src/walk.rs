//! The names of a directory: one after the other in their order (`Walk`), or all of them in no order (`for_each`).
//!
//! Owns: the way through the tree. Does not own: the nodes.

use crate::node::{Entry, NAME_MAX, Node};
use crate::slab::Slabs;

/// A node on the way to the present name.
#[derive(Debug)]
struct Frame {
    node: u32,
    /// Bytes of the name in front of the node's key.
    len: usize,
    /// The key of the entry that was visited last.
    key: Option<u8>,
}

/// The names of a directory and their values, in the order of their bytes. The iterator lends each name, so it cannot
/// be an `Iterator`.
#[derive(Debug)]
pub struct Walk<'a> {
    slabs: &'a Slabs,
    frames: Vec<Frame>,
    name: Vec<u8>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(slabs: &'a Slabs, root: Option<u32>) -> Walk<'a> {
        let mut walk = Walk { slabs, frames: Vec::new(), name: Vec::with_capacity(NAME_MAX) };
        if let Some(root) = root {
            walk.enter(root);
        }
        walk
    }

    /// Calls `visit` for all names, in the order in which nodes have their entries.
    pub(crate) fn for_each(mut self, mut visit: impl FnMut(&[u8], u64)) {
        // The work that remains for a node: its links from this one on. Leaves are visited when the node is entered.
        let mut links = Vec::with_capacity(self.frames.len());
        if let Some(frame) = self.frames.last() {
            Self::leaves(self.slabs, frame, &mut self.name, &mut visit);
            links.push(0);
        }
        while let (Some(frame), Some(link)) = (self.frames.last(), links.last_mut()) {
            let node = Node::new(self.slabs.block(frame.node));
            if *link == node.shape.links {
                self.frames.pop();
                links.pop();
                continue;
            }
            self.name.truncate(frame.len);
            self.name.push(node.keys()[node.shape.leaves + *link]);
            let below = node.link(*link);
            *link += 1;
            self.enter(below);
            if let Some(frame) = self.frames.last() {
                Self::leaves(self.slabs, frame, &mut self.name, &mut visit);
            }
            links.push(0);
        }
    }

    fn leaves(slabs: &Slabs, frame: &Frame, name: &mut Vec<u8>, visit: &mut impl FnMut(&[u8], u64)) {
        let node = Node::new(slabs.block(frame.node));
        for (leaf, key) in node.keys()[..node.shape.leaves].iter().enumerate() {
            name.truncate(frame.len);
            name.extend((*key != 0).then_some(*key));
            visit(name, node.value(leaf));
        }
    }

    fn enter(&mut self, address: u32) {
        let node = Node::new(self.slabs.block(address));
        self.name.extend_from_slice(node.prefix());
        self.frames.push(Frame { node: address, len: self.name.len(), key: None });
    }

    /// The next name and its value; `None` at the end.
    #[expect(clippy::should_implement_trait, reason = "the name is lent, which no Iterator can do")]
    pub fn next(&mut self) -> Option<(&[u8], u64)> {
        loop {
            let frame = self.frames.last_mut()?;
            let node = Node::new(self.slabs.block(frame.node));
            self.name.truncate(frame.len);
            let Some((key, entry)) = node.next(frame.key) else {
                self.frames.pop();
                continue;
            };
            frame.key = Some(key);
            if key != 0 {
                self.name.push(key);
            }
            match entry {
                Entry::Leaf(leaf) => return Some((&self.name, node.value(leaf))),
                Entry::Link(link) => {
                    let below = node.link(link);
                    self.enter(below);
                }
            }
        }
    }
}
