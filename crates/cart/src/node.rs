//! The bytes of a node: how a block of memory is read and edited.
//!
//! Owns: the layout of a node. Does not own: the memory (`slab`), and which node a tree needs where (`insert`,
//! `remove`).
//!
//! | bytes | content |
//! |--:|---|
//! | 1 | number of leaves, l |
//! | 1 | number of links, k |
//! | 1 | length of the prefix, p |
//! | 1 | bytes of each value, w: 1 to 8 |
//! | p | prefix: bytes that all names of the node have at this place |
//! | l | keys of the leaves, in no order |
//! | k | keys of the links, in no order |
//! | l w | values of the leaves, little-endian |
//! | 4 k | links: addresses of nodes |
//! | | free bytes |
//!
//! The parts of a node that a search reads, the prefix and the keys, are in front and mostly in one line of the
//! processor's cache. The keys of leaves and links are one array, which one search covers. The prefix becomes shorter
//! or longer within the block, and the following parts are moved.
//!
//! All edits are in place: the callers have made room before.

use crate::search;

/// Bytes of the numbers at the beginning.
const HEAD: usize = 4;
const LEAVES: usize = 0;
const LINKS: usize = 1;
const PREFIX: usize = 2;
const WIDTH: usize = 3;
/// Bytes of a link.
const LINK: usize = 4;
/// Bytes of a word.
const WORD: usize = 8;
/// Longest name, in bytes.
pub const NAME_MAX: usize = 255;

/// The counts of a node's parts: enough to compute its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) leaves: usize,
    pub(crate) links: usize,
    pub(crate) prefix: usize,
    /// Bytes of each value.
    pub(crate) width: usize,
}

impl Shape {
    /// Bytes that a node of this shape needs.
    #[inline]
    pub(crate) fn bytes(self) -> usize {
        self.links_at() + LINK * self.links
    }

    #[inline]
    pub(crate) fn entries(self) -> usize {
        self.leaves + self.links
    }

    #[inline]
    fn keys_at(self) -> usize {
        HEAD + self.prefix
    }

    #[inline]
    fn values_at(self) -> usize {
        self.keys_at() + self.leaves + self.links
    }

    #[inline]
    fn links_at(self) -> usize {
        self.values_at() + self.leaves * self.width
    }

    #[inline]
    fn of(bytes: &[u8]) -> Shape {
        let [leaves, links, prefix, width] = *bytes.first_chunk::<HEAD>().expect("a block is longer than its head");
        Shape { leaves: leaves.into(), links: links.into(), prefix: prefix.into(), width: width.into() }
    }
}

/// Bytes that a value needs.
#[inline]
pub(crate) fn width_of(value: u64) -> usize {
    ((71 - (value | 1).leading_zeros()) / 8) as usize
}

/// Eight bytes at a place, the first one lowest.
#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("a word behind any byte is readable"))
}

/// A name with bytes behind it, so that it can be read in words. The first one is NUL, which no name contains.
pub(crate) struct Padded {
    bytes: [u8; NAME_MAX + 1 + WORD],
    len: usize,
}

impl Padded {
    /// Returns `None` if the bytes are no name.
    #[inline]
    pub(crate) fn new(name: &[u8]) -> Option<Padded> {
        if name.is_empty() || name.len() > NAME_MAX {
            return None;
        }
        let mut bytes = [0; NAME_MAX + 1 + WORD];
        bytes[..name.len()].copy_from_slice(name);
        Some(Padded { bytes, len: name.len() })
    }

    /// The byte at a place, or 0 at the end.
    #[inline]
    pub(crate) fn key(&self, at: usize) -> u8 {
        self.bytes[at]
    }

    /// Returns whether the name ends with the key at a place, or in front of it if the key is 0.
    #[inline]
    pub(crate) fn ends(&self, at: usize) -> bool {
        at == self.len || at + 1 == self.len && self.bytes[at] != 0
    }

    /// The bytes of the name behind a position.
    #[inline]
    pub(crate) fn rest(&self, at: usize) -> &[u8] {
        &self.bytes[at..self.len]
    }
}

/// The meaning of a key of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A name ends behind this key, or before it if the key is 0; the leaf with this index has the name.
    Leaf(usize),
    /// The names with this key continue in another node, to which the link with this index leads.
    Link(usize),
}

/// A node to be read.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    /// The block and more bytes, so that values and keys can be read in vectors.
    bytes: &'a [u8],
    pub(crate) shape: Shape,
}

impl<'a> Node<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Node<'a> {
        Node { bytes, shape: Shape::of(bytes) }
    }

    #[inline]
    pub(crate) fn prefix(&self) -> &'a [u8] {
        &self.bytes[HEAD..self.shape.keys_at()]
    }

    /// Returns whether a name continues with the prefix at a position.
    #[inline(always)]
    pub(crate) fn has_prefix(&self, name: &Padded, at: usize) -> bool {
        let len = self.shape.prefix;
        if len > WORD {
            return self.has_long_prefix(name, at);
        }
        // Both names are compared as words, of which only the first `len` bytes count. A name has NUL bytes behind its
        // end, and a prefix has none.
        let differ = word(self.bytes, HEAD) ^ word(&name.bytes, at);
        len == 0 || differ << (64 - 8 * len) == 0
    }

    #[inline(never)]
    fn has_long_prefix(&self, name: &Padded, at: usize) -> bool {
        name.rest(at).starts_with(self.prefix())
    }

    pub(crate) fn keys(&self) -> &'a [u8] {
        &self.bytes[self.shape.keys_at()..self.shape.values_at()]
    }

    #[inline]
    pub(crate) fn find(&self, key: u8) -> Option<Entry> {
        let place = search::position(&self.bytes[self.shape.keys_at()..], self.shape.entries(), key)?;
        Some(self.entry(place))
    }

    /// The entry of the key at a place of the array of keys.
    #[inline]
    pub(crate) fn entry(&self, place: usize) -> Entry {
        match place.checked_sub(self.shape.leaves) {
            None => Entry::Leaf(place),
            Some(link) => Entry::Link(link),
        }
    }

    /// The entry with the smallest key greater than `after`.
    pub(crate) fn next(&self, after: Option<u8>) -> Option<(u8, Entry)> {
        search::next(self.keys(), after).map(|(place, key)| (key, self.entry(place)))
    }

    #[inline]
    pub(crate) fn value(&self, leaf: usize) -> u64 {
        let width = self.shape.width;
        let at = self.shape.values_at() + leaf * width;
        word(self.bytes, at) & (u64::MAX >> (64 - 8 * width))
    }

    #[inline]
    pub(crate) fn link(&self, link: usize) -> u32 {
        let at = self.shape.links_at() + link * LINK;
        u32::from_le_bytes(*self.bytes[at..].first_chunk().expect("a link is in the block"))
    }
}

/// A node to be edited. The slice is the block and nothing more.
pub(crate) struct NodeMut<'a> {
    bytes: &'a mut [u8],
}

impl<'a> NodeMut<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> NodeMut<'a> {
        NodeMut { bytes }
    }

    fn shape(&self) -> Shape {
        Shape::of(self.bytes)
    }

    fn keep(&mut self, shape: Shape) {
        debug_assert!(shape.bytes() <= self.bytes.len());
        self.bytes[LEAVES] = shape.leaves as u8;
        self.bytes[LINKS] = shape.links as u8;
        self.bytes[PREFIX] = shape.prefix as u8;
        self.bytes[WIDTH] = shape.width as u8;
    }

    /// Makes the block a node without entries.
    pub(crate) fn make(&mut self, prefix: &[u8], width: usize) {
        self.keep(Shape { leaves: 0, links: 0, prefix: prefix.len(), width });
        self.bytes[HEAD..HEAD + prefix.len()].copy_from_slice(prefix);
    }

    /// Makes the block a copy of another block.
    pub(crate) fn copy(&mut self, other: &[u8]) {
        let len = Shape::of(other).bytes();
        self.bytes[..len].copy_from_slice(&other[..len]);
    }

    /// Drops the first `count` bytes of the prefix.
    pub(crate) fn shorten_prefix(&mut self, count: usize) {
        let shape = self.shape();
        self.bytes.copy_within(HEAD + count..shape.bytes(), HEAD);
        self.keep(Shape { prefix: shape.prefix - count, ..shape });
    }

    /// Puts a prefix and a key in front of the prefix.
    pub(crate) fn lengthen_prefix(&mut self, above: &[u8], key: u8) {
        let shape = self.shape();
        let len = above.len() + 1;
        self.bytes.copy_within(HEAD..shape.bytes(), HEAD + len);
        self.bytes[HEAD..HEAD + above.len()].copy_from_slice(above);
        self.bytes[HEAD + above.len()] = key;
        self.keep(Shape { prefix: shape.prefix + len, ..shape });
    }

    /// Puts a byte behind the prefix.
    pub(crate) fn push_prefix(&mut self, last: u8) {
        let shape = self.shape();
        self.bytes.copy_within(shape.keys_at()..shape.bytes(), shape.keys_at() + 1);
        self.bytes[shape.keys_at()] = last;
        self.keep(Shape { prefix: shape.prefix + 1, ..shape });
    }

    /// Takes the last byte of the prefix away.
    pub(crate) fn pop_prefix(&mut self) -> u8 {
        let shape = self.shape();
        let last = self.bytes[shape.keys_at() - 1];
        self.bytes.copy_within(shape.keys_at()..shape.bytes(), shape.keys_at() - 1);
        self.keep(Shape { prefix: shape.prefix - 1, ..shape });
        last
    }

    /// Gives every value at least `width` bytes.
    pub(crate) fn widen(&mut self, width: usize) {
        let from = self.shape();
        let to = Shape { width, ..from };
        if width <= from.width {
            return;
        }
        let links = from.links_at()..from.bytes();
        self.bytes.copy_within(links, to.links_at());
        for leaf in (0..from.leaves).rev() {
            let mut value = [0; 8];
            let at = from.values_at() + leaf * from.width;
            value[..from.width].copy_from_slice(&self.bytes[at..at + from.width]);
            let at = to.values_at() + leaf * width;
            self.bytes[at..at + width].copy_from_slice(&value[..width]);
        }
        self.keep(to);
    }

    /// Adds a name that ends at `key`. The key is new, and values are wide enough.
    pub(crate) fn add_leaf(&mut self, key: u8, value: u64) {
        let from = self.shape();
        let to = Shape { leaves: from.leaves + 1, ..from };
        self.bytes.copy_within(from.links_at()..from.bytes(), to.links_at());
        self.bytes.copy_within(from.values_at()..from.links_at(), to.values_at());
        let end = from.keys_at() + from.leaves;
        self.bytes.copy_within(end..from.values_at(), end + 1);
        self.bytes[end] = key;
        self.keep(to);
        self.set_value(from.leaves, value);
    }

    /// Adds a node for the names that continue behind `key`. The key is new.
    pub(crate) fn add_link(&mut self, key: u8, address: u32) {
        let from = self.shape();
        let to = Shape { links: from.links + 1, ..from };
        self.bytes.copy_within(from.values_at()..from.bytes(), to.values_at());
        self.bytes[from.values_at()] = key;
        self.keep(to);
        self.set_link(from.links, address);
    }

    pub(crate) fn set_value(&mut self, leaf: usize, value: u64) {
        let shape = self.shape();
        let at = shape.values_at() + leaf * shape.width;
        self.bytes[at..at + shape.width].copy_from_slice(&value.to_le_bytes()[..shape.width]);
    }

    pub(crate) fn set_link(&mut self, link: usize, address: u32) {
        let at = self.shape().links_at() + link * LINK;
        self.bytes[at..at + LINK].copy_from_slice(&address.to_le_bytes());
    }

    /// Removes a leaf. The last leaf takes its place.
    pub(crate) fn remove_leaf(&mut self, leaf: usize) {
        let from = self.shape();
        let to = Shape { leaves: from.leaves - 1, ..from };
        let end = from.keys_at() + to.leaves;
        self.bytes[from.keys_at() + leaf] = self.bytes[end];
        let last = from.values_at() + to.leaves * from.width;
        self.bytes.copy_within(last..last + from.width, from.values_at() + leaf * from.width);
        self.bytes.copy_within(end + 1..from.values_at(), end);
        self.bytes.copy_within(from.values_at()..last, to.values_at());
        self.bytes.copy_within(from.links_at()..from.bytes(), to.links_at());
        self.keep(to);
    }

    /// Removes a link. The last link takes its place.
    pub(crate) fn remove_link(&mut self, link: usize) {
        let from = self.shape();
        let to = Shape { links: from.links - 1, ..from };
        let keys = from.keys_at() + from.leaves;
        self.bytes[keys + link] = self.bytes[keys + to.links];
        let last = from.bytes() - LINK;
        self.bytes.copy_within(last..last + LINK, from.links_at() + link * LINK);
        self.bytes.copy_within(from.values_at()..last, to.values_at());
        self.keep(to);
    }
}
