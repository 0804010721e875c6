//! A compact adaptive radix tree: it contains the names of directories, and a number for each name.
//!
//! Owns: the trees, a table from directory to tree, and their memory. Does not own: what directories and numbers mean.
//!
//! A name is a byte string of 1 to 255 bytes without NUL. Each directory has a tree of its own, so names share their
//! common beginnings. A node has the bytes with which all its names begin (its prefix), and one key for each different
//! byte after it. A name that ends at a key has its value in the node itself. The design follows cART (PeakFS, section
//! III-C); docs/design/metadata_index.md describes nodes, memory and measurements, and where it departs.
//!
//! Invariants:
//!
//! * A tree's form depends only on its names, apart from free bytes in blocks. A node has at least two entries, or it
//!   is a *tail* with one leaf, the last byte of the only name below it.
//! * No call recurses. A walk keeps one frame for each node on its way, and each node takes at least one byte of a
//!   name, so that there are at most 255.
//! * `bytes` is exactly the number of bytes that the allocator gave. Memory of removed names is used for other names,
//!   and an empty slab of 16 KiB is returned.
//! * An address has 32 bits, for 16 GiB of nodes. `has_room` says in time when they end.
//!
//! The number that drove the design: an entry of a hash table with a boxed name costs 59 to 84 bytes. Consecutive names
//! cost 6 here, and names of real files 28 to 33.
#![deny(unsafe_code)]

mod cart;
mod insert;
mod node;
mod remove;
mod roots;
mod search;
mod slab;
mod walk;

#[cfg(test)]
mod tests;

pub use cart::Cart;
pub use node::NAME_MAX;
pub use walk::Walk;
