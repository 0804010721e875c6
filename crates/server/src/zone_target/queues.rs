//! `TargetQueues`: which tasks of a target wait for each other, and on which objects they work.
//!
//! Owns: the queues on names, inodes, bytes and blocks at the edges of writes, changes that are on their way, and
//! inodes that are being removed. Does not own: the order in which an operation takes them (docs/LOCKING.md, Order).

use crate::session::in_flight::InFlights;
use crate::zone_target::gate::{Gate, Hold};
use crate::zone_target::grant_calls::GrantCalls;
use crate::zone_target::residency::Residency;
use crate::zone_target::shared_blocks::SharedBlocks;
use crate::zone_target::span_gate::SpanGate;
use amphi_types::{Ino, Name};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// The key of a queue of operations: an inode, or a name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameKey {
    /// An inode of this target.
    Inode(Ino),
    /// An entry of a directory of this target.
    Entry(Ino, Name),
    /// The shards that a directory is getting and that are not reported to clients yet.
    Shards(Ino),
}

/// The queues of one target.
#[derive(Default)]
pub struct TargetQueues {
    /// Changes of data between the last check of their session and their end.
    pub in_flight: InFlights,
    /// Names and inodes.
    pub names: Gate<NameKey>,
    /// Bytes of objects.
    pub spans: SpanGate,
    /// Writes that share blocks at their edges.
    pub shared_blocks: SharedBlocks,
    /// Inodes that a task is removing.
    pub destroying: RefCell<BTreeSet<Ino>>,
    /// Inodes that tasks hold in memory.
    pub inodes: Residency,
    /// Which sessions got a request to return grants.
    pub grant_calls: GrantCalls,
}

impl TargetQueues {
    /// Waits until no operation over several targets is changing any of `keys`.
    pub async fn settle(&self, keys: Vec<NameKey>) {
        if !self.names.is_empty() {
            drop(self.names.take(keys.into_iter().map(|k| (k, Hold::Shared)).collect()).await);
        }
    }
}
