//! Parts of the header that other modules use: the meeting of the ranks, and a node's data about its job.
//!
//! Owns only their layout. All of it is made of atomics, and zeros are valid.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// The state of the meetings of all ranks (`meeting`).
#[repr(C)]
pub struct MeetingCell {
    /// Number of the present round; the ranks sleep on it.
    pub round: AtomicU32,
    /// The number of ranks that have arrived at it.
    pub arrived: AtomicU32,
    /// The largest values of the present and the previous round, in alternate places.
    pub largest: [AtomicI32; 2],
    /// The range of the file that the ranks want to touch, of the present round and the one before alternately: the
    /// largest of `u64::MAX` - first byte, and the largest end.
    pub wanted: [[AtomicU64; 2]; 2],
    /// A number that one rank has set for all ranks.
    pub said: AtomicU64,
    /// Rank + 1 of one that will never arrive: all further meetings fail.
    pub broken: AtomicU32,
}

/// The knowledge of the ranks about the nodes of their job; all zeros if there is one node.
#[repr(C)]
pub struct JobNodes {
    /// Our node.
    pub node: AtomicU32,
    /// Number of nodes.
    pub nodes: AtomicU32,
    /// A page moves to another node after this many references in a row by that node; with 0 no page moves.
    pub references: AtomicU32,
    /// No page moves while this is not 0, and none is copied.
    pub still: AtomicU32,
    /// 1: nodes keep copies of pages of other nodes that they read again.
    pub copies: AtomicU32,
    /// How much busier than another node a node has to be before it gives pages to that node (`file/balance.rs`); with
    /// 0 it gives none.
    pub balance: AtomicU32,
    /// The recent work of this node for others: the second of the last of it in the upper half, and its count below.
    pub served: AtomicU64,
}
