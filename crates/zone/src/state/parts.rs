//! The parts of the state of a zone.
//!
//! Owns: the parts, each of which has the fields that belong together. Does not own: the relations between them, and
//! the code that changes them (`state`).

use crate::ZoneError;
use crate::change::Changes;
use crate::event::Event;
use crate::group::Group;
use crate::keep::Keep;
use crate::layout::Superblock;
use crate::log_point::LogPoint;
use crate::segment::{Segment, SlotMap};
use amphi_env::{Buf, Env};
use amphi_types::TargetId;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// A written group with a record that points at data, while nothing on the medium proves that both were synced.
#[derive(Clone, Copy, Debug)]
pub struct Fresh {
    /// Number of the group.
    pub seq: u64,
    /// Last record before the group.
    pub before: u64,
}

/// Records that were appended and wait to be written.
pub struct Queue {
    pub groups: VecDeque<Group>,
    pub spare: Vec<Group>,
    pub bytes: u64,
    pub appended_lsn: u64,
    /// Tasks wait for the records up to this one. The other records need not be written at once.
    pub wanted_lsn: u64,
    /// Area of the group that is being written.
    pub writing_area: Option<usize>,
    /// Hashes of the keys that this group changes, in the order of its changes.
    pub writing_hashes: Vec<u32>,
}

/// How far records have got: `stable <= synced <= written <= kept`.
pub struct Reached {
    pub written_lsn: u64,
    /// Records up to this one survive the process: they are kept or written.
    pub kept_lsn: u64,
    /// Records up to this one are replayed after power loss: they are synced, and no fresh group in front of or with
    /// them lacks its proof.
    pub stable_lsn: u64,
    /// Records and groups that a sync has covered.
    pub synced_lsn: u64,
    pub synced_seq: u64,
    /// The end of the synced part of the log.
    pub synced_position: u64,
    /// Highest mark that is itself synced: in the root, or in a group.
    pub proven_seq: u64,
}

/// The fresh groups, and the marks that prove them.
pub struct Marks {
    /// Fresh groups that are not proven, oldest first. There are at most as many as fit into the log.
    pub fresh: VecDeque<Fresh>,
    /// Mark of the last written group.
    pub written: u64,
    /// A mark up to this group has to be written, with a group of its own if there is nothing else to write.
    pub wanted: u64,
}

/// The beginning and the end of the log.
pub struct LogBounds {
    /// The point behind the last written group.
    pub head: LogPoint,
    /// Oldest position that the root still needs.
    pub start_position: u64,
    /// A group or a reservation waits for log space.
    pub is_full: bool,
}

/// The changes of the log over the segments: the work of the next checkpoint.
pub struct Unmerged {
    pub dirty: Changes,
    /// The changes that a running checkpoint has taken: older than the others, newer than the segments.
    pub frozen: Option<Rc<Changes>>,
    /// Deletions since the last full merge: the most that the next full merge could remove.
    pub deletions: u64,
}

impl Unmerged {
    /// Bytes of changes that a running checkpoint has taken.
    pub fn frozen_bytes(&self) -> u64 {
        self.frozen.as_ref().map_or(0, |frozen| frozen.cost())
    }
}

/// The contents of the medium in addition to the log.
pub struct Medium {
    /// The record of a loss in the next root.
    pub lost: bool,
    pub root: Superblock,
    /// The segments, oldest first. Each checkpoint makes another list.
    pub segments: Rc<Vec<Rc<Segment>>>,
    pub slots: SlotMap,
}

/// Syncs: those begun, those done, and those requested, counted from the opening.
pub struct Syncs {
    pub started: u64,
    /// The last record that the sync which was started last will make stable.
    pub lsn: u64,
    pub done: u64,
    pub wanted: u64,
    /// The log waits for one, wanted or not.
    pub hurried: bool,
}

/// Checkpoints: those begun, those done, and those requested, counted from the opening.
pub struct Checkpoints {
    pub started: u64,
    pub done: u64,
    pub wanted: u64,
    pub merge_wanted: bool,
    /// How the last checkpoint ended.
    pub error: Option<ZoneError>,
}

/// Whether the zone is running, and which agents still work for it.
pub struct Life {
    pub closing: bool,
    pub committing: bool,
    pub checkpointing: bool,
    pub agents: u32,
    pub failed: Option<String>,
}

/// The identity of a zone, and of its present opening.
pub struct Identity {
    pub zone: u64,
    pub cluster: u64,
    pub target: TargetId,
    /// Random number of this opening, which groups contain.
    pub opening: u64,
}

/// Sizes and intervals that bound the work of the agents.
pub struct Bounds {
    pub record_bytes_max: usize,
    pub group_bytes_max: usize,
    /// Blocks of the log that may be written and not synced.
    pub unsynced_max: u64,
    pub dirty_max: Cell<u64>,
    pub sync_interval: Cell<Duration>,
    pub auto_checkpoint: bool,
}

/// Memory that outlives the process, if there is any, and whether it is used.
pub struct KeptMemory<E: Env> {
    /// Memory that outlives the process, if there is any, and whether it is used.
    pub areas: RefCell<Option<Keep<E>>>,
    pub used: Cell<bool>,
}

/// The state that reads of items share.
#[derive(Default)]
pub struct Reads {
    /// Memory of a page, for the next read.
    pub spare_page: Cell<Option<Buf>>,
    /// Addresses of damaged blocks that reads have met and reported.
    pub damaged: RefCell<BTreeSet<u64>>,
}

/// Events for which agents and callers wait.
pub struct Events {
    /// An event that says that the commit agent has work.
    pub queued: Event,
    /// An event that says that the sync agent has work.
    pub sync_asked: Event,
    /// An event that says that the checkpoint agent has work.
    pub checkpoint_asked: Event,
    /// Groups were written.
    pub written: Event,
    /// A sync ended.
    pub synced: Event,
    /// Log or metadata space was returned, a checkpoint ended.
    pub room: Event,
    /// An agent ended.
    pub done: Event,
}
