//! `Cart`: the index, finding a name, and what changes have in common.
//!
//! Owns: the search, and moving a node between blocks. Does not own: changes of trees (`insert`, `remove`).

use crate::node::{Entry, Node, NodeMut, Padded, Shape};
use crate::roots::Roots;
use crate::slab::{Slabs, block_size};
use crate::walk::Walk;

/// The names of any number of directories, each with a value of 64 bits.
#[derive(Clone)]
pub struct Cart {
    pub(crate) slabs: Slabs,
    pub(crate) roots: Roots,
    pub(crate) len: u64,
}

/// The place where the address of a node is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// The address is in the table of directories, at this index.
    Root(usize),
    /// The address is in a node, as the link with this index.
    In { node: u32, link: usize },
}

impl Cart {
    /// An index without names, which takes no memory.
    pub fn new() -> Cart {
        Cart { slabs: Slabs::new(), roots: Roots::new(), len: 0 }
    }

    /// The value of a name.
    pub fn get(&self, dir: u64, name: &[u8]) -> Option<u64> {
        let mut address = self.roots.at(self.roots.find(dir)?).node;
        let name = Padded::new(name)?;
        let mut at = 0;
        loop {
            let node = self.node(address);
            if !node.has_prefix(&name, at) {
                return None;
            }
            at += node.shape.prefix;
            match node.find(name.key(at))? {
                Entry::Leaf(leaf) => return name.ends(at).then(|| node.value(leaf)),
                Entry::Link(link) => address = node.link(link),
            }
            at += 1;
        }
    }

    /// Number of names of a directory.
    pub fn len(&self, dir: u64) -> usize {
        self.roots.find(dir).map_or(0, |place| self.roots.at(place).len as usize)
    }

    /// Number of names of all directories.
    pub fn total(&self) -> u64 {
        self.len
    }

    /// Returns whether there is no name in any directory.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The directories that have names, ascending. The function takes memory and time in proportion to all of them.
    pub fn dirs(&self) -> Vec<u64> {
        let mut dirs: Vec<u64> = self.roots.iter().map(|root| root.dir).collect();
        dirs.sort_unstable();
        dirs
    }

    /// The names of a directory and their values, in the order of their bytes.
    pub fn walk(&self, dir: u64) -> Walk<'_> {
        Walk::new(&self.slabs, self.roots.find(dir).map(|place| self.roots.at(place).node))
    }

    /// Calls `visit` for all names of a directory and their values, in no order. Faster than `walk`.
    pub fn for_each(&self, dir: u64, visit: impl FnMut(&[u8], u64)) {
        self.walk(dir).for_each(visit);
    }

    /// Bytes of memory that the index has taken from the allocator.
    pub fn bytes(&self) -> usize {
        self.slabs.bytes() + self.roots.bytes()
    }

    /// Returns whether any one name can be inserted. This is possible until 16 GiB of nodes are in use.
    pub fn has_room(&self) -> bool {
        self.slabs.has_room()
    }

    pub(crate) fn node(&self, address: u32) -> Node<'_> {
        Node::new(self.slabs.block(address))
    }

    pub(crate) fn edit(&mut self, address: u32) -> NodeMut<'_> {
        NodeMut::new(self.slabs.block_mut(address))
    }

    /// Sets the address of a node in the place that refers to the node.
    pub(crate) fn set_place(&mut self, place: Place, address: u32) {
        match place {
            Place::Root(place) => self.roots.at_mut(place).node = address,
            Place::In { node, link } => self.edit(node).set_link(link, address),
        }
    }

    /// Ensures that a node's block has room for `shape`, and returns the node's address, which may have changed.
    pub(crate) fn make_room(&mut self, place: Place, address: u32, shape: Shape) -> u32 {
        let needed = shape.bytes();
        if needed <= self.slabs.size(address) {
            return address;
        }
        let moved = self.move_node(address, needed);
        self.set_place(place, moved);
        moved
    }

    /// Moves a node that has lost something to a smaller block if that saves enough, and returns its address.
    pub(crate) fn fit(&mut self, address: u32) -> u32 {
        let size = self.slabs.size(address);
        let fitting = block_size(self.node(address).shape.bytes());
        // A node that loses entries one by one moves only each time that it has lost an eighth.
        if fitting + size / 8 >= size {
            return address;
        }
        self.move_node(address, fitting)
    }

    fn move_node(&mut self, address: u32, bytes: usize) -> u32 {
        let moved = self.slabs.allocate(bytes);
        let (from, to) = self.slabs.two(address, moved);
        NodeMut::new(to).copy(from);
        self.slabs.free(address);
        moved
    }
}

impl Default for Cart {
    fn default() -> Cart {
        Cart::new()
    }
}

impl std::fmt::Debug for Cart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cart").field("names", &self.len).field("bytes", &self.bytes()).finish()
    }
}
