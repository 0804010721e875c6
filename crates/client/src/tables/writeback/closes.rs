//! `Closes`: closes on their way to the servers.
//!
//! Owns: what waits for the message of its target that is under way, and what waits for company. Does not own: when a
//! close is due, sending it (`coherence::closes`).

use crate::inode::Inode;
use amphi_types::{TargetId, Timespec};
use amphi_wire::Access;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A close that nothing holds up.
pub(crate) struct Due {
    pub(crate) file: Arc<Inode>,
    pub(crate) access: Access,
    /// Time of the last read, if the server is to hear of it.
    pub(crate) atime: Option<Timespec>,
}

#[derive(Default)]
pub(crate) struct Queues {
    /// What waits for the message of its target that is under way; a target without one has no entry.
    pub(crate) under_way: BTreeMap<TargetId, VecDeque<Due>>,
    /// What waits for company.
    pub(crate) lingering: BTreeMap<TargetId, Vec<Due>>,
}

/// What waits to leave.
#[derive(Default)]
pub(crate) struct Closes {
    pub(crate) queues: Mutex<Queues>,
    /// Whether anything waits for company.
    pub(crate) lingers: AtomicBool,
}
