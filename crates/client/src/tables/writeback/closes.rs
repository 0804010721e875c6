//! `Closes`: closes on their way to the servers.
//!
//! Owns: closes that wait for their target's message under way, and closes that are delayed to be sent together. Does
//! not own: when a close is due, sending it (`coherence::closes`).

use crate::inode::Inode;
use amphi_types::{TargetId, Timespec};
use amphi_wire::Access;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A close that nothing delays any more.
pub(crate) struct Due {
    pub(crate) file: Arc<Inode>,
    pub(crate) access: Access,
    /// Time of the last read, if the server has to learn it.
    pub(crate) atime: Option<Timespec>,
}

#[derive(Default)]
pub(crate) struct Queues {
    /// Closes that wait for their target's message under way. A target without such a message has no entry.
    pub(crate) under_way: BTreeMap<TargetId, VecDeque<Due>>,
    /// Closes that are delayed, to be sent together.
    pub(crate) lingering: BTreeMap<TargetId, Vec<Due>>,
}

/// Closes that wait to be sent.
#[derive(Default)]
pub(crate) struct Closes {
    pub(crate) queues: Mutex<Queues>,
    /// Whether any close is delayed.
    pub(crate) lingers: AtomicBool,
}
