//! `Image`: a zone as it was found on its disk.
//!
//! Owns: the result of reading a zone, and which blocks of it were damaged. Does not own: the reading (`recover`), or
//! how the result is used to open the zone (`zone`).

use crate::change::Changes;
use crate::layout::{Geometry, Superblock};
use crate::log_point::LogPoint;
use crate::parity::MendedBlocks;
use crate::segment::{Segment, SlotMap};

/// The state of the two copies of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// Both copies are valid and equal.
    Equal,
    /// Both copies are valid, but they differ.
    Differ,
    /// Only one of the two copies is valid.
    OneDamaged,
}

/// Damaged structures of a zone that could be rebuilt.
pub struct Damage {
    /// The state of the two copies of the superblock.
    pub copies: Copies,
    /// The right contents of blocks of segments and log.
    pub mended: MendedBlocks,
}

/// Records behind the log's that a killed process has left in memory.
pub struct KeptRecords {
    /// Records behind the log's, which are in memory only.
    pub records: Vec<Vec<u8>>,
    /// The memory that has the last records of a killed process is gone, or of no use.
    pub gone: bool,
    /// There is such memory, and its records are later than the end of the log: it may belong to the zone of which this
    /// one is a copy.
    pub of_another: bool,
}

/// A zone as it was found.
pub struct Image {
    pub root: Superblock,
    /// Damaged structures that could be rebuilt.
    pub damage: Damage,
    pub geometry: Geometry,
    /// The segments that the root names, once their items were read.
    pub segments: Vec<Segment>,
    pub slots: SlotMap,
    /// The changes of the log over the segments.
    pub dirty: Changes,
    /// The point behind the last group that is replayed.
    pub end: LogPoint,
    pub replayed: u64,
    /// Records that a killed process has left in memory.
    pub left: KeptRecords,
    /// Whether a sync has failed in this life of the machine.
    pub doubted: bool,
    /// Positions of the first block of a whole group that is not replayed and must never be, and of its parity.
    pub cut: Vec<u64>,
    pub notes: Vec<String>,
}

impl Image {
    /// Damaged blocks that were rebuilt. A block that a crash may have torn does not count.
    pub fn rebuilt_blocks(&self) -> u64 {
        let damaged = self.damage.mended.values().filter(|m| !m.torn).count() as u64;
        damaged + u64::from(self.damage.copies == Copies::OneDamaged)
    }
}
