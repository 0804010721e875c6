//! Plans: the reads and writes of a server for an operation, and the blocks that a commit frees.
//!
//! Owns: the form of plans. Does not own: how they are made and committed (`write`, `trim`, `store`).
//!
//! Physical blocks count from 0 at the start of the zone's data region. If a plan is neither committed nor aborted, its
//! new blocks stay taken until the target is opened again.

use crate::alloc::Run;
use crate::checksums::Checksum;
use crate::delayed::Overlay;
use crate::grants::Loan;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, ObjectId};
use smallvec::SmallVec;
use std::ops::Range;

/// How the blocks of a segment relate to durable bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// Whole written blocks are overwritten in place, and no extent changes.
    InPlace,
    /// Preallocated blocks are filled, and become written at commit.
    Convert,
    /// Newly taken blocks, which are added to the extents at commit.
    Fresh,
}

/// Consecutive file blocks that are written to consecutive physical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First file block.
    pub file_block: u64,
    /// First physical block.
    pub physical: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// The change of the extents at commit.
    pub kind: SegmentKind,
}

/// A block at the edge of a write that has old bytes to keep. The block is read, joined with the new bytes, and written
/// as a part of a fresh segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// File block.
    pub file_block: u64,
    /// Physical block that holds the old bytes.
    pub physical: u64,
    /// Bytes of the block that are kept: those before the write, and those behind it. An empty part is `0..0`.
    pub keep: [Range<usize>; 2],
}

/// Which blocks of a write get new places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fresh {
    /// Blocks that the write covers in part.
    Needed,
    /// All blocks that have been written before.
    Written,
    /// As `Written`, and also preallocated blocks that the write covers in part, because another write that is not
    /// committed yet covers them too.
    Edges,
    /// All blocks, including preallocated ones.
    All,
}

/// A planned write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a plan must be committed or aborted"]
pub struct WritePlan {
    /// Object.
    pub object: ObjectId,
    /// Bytes written.
    pub range: ByteRange,
    /// The pieces to write and their places: ascending, and together exactly `aligned()`.
    pub segments: SmallVec<[Segment; 4]>,
    /// Blocks to read first, at most two.
    pub edges: SmallVec<[Edge; 2]>,
    /// Number of reserved blocks that the plan of a flush uses.
    pub(crate) lent: u64,
    /// Blocks that the plan has taken from a grant.
    pub(crate) loan: Option<Loan>,
    /// Checksums, one for each block of `aligned()`. If the list is empty, the blocks get no checksums.
    pub(crate) checksums: Vec<Checksum>,
}

impl WritePlan {
    /// The range of whole blocks that is written.
    pub fn aligned(&self) -> ByteRange {
        self.range.align_out(BLOCK)
    }

    /// The blocks that the write covers in part, ascending.
    pub fn partial_blocks(&self) -> SmallVec<[u64; 2]> {
        let (first, last) = (self.range.start / BLOCK, self.range.end / BLOCK);
        let head = (!self.range.start.is_multiple_of(BLOCK)).then_some(first);
        let tail = (!self.range.end.is_multiple_of(BLOCK)).then_some(last).filter(|t| head != Some(*t));
        head.into_iter().chain(tail).collect()
    }

    /// Sets the checksums of the written bytes, one for each block of `aligned()`. Checksums are stored with the
    /// commit, so the blocks must have been written when its record is appended (`points_at_new_data`).
    pub fn set_checksums(&mut self, checksums: Vec<Checksum>) {
        assert_eq!(checksums.len() as u64, self.aligned().len() / BLOCK);
        self.checksums = checksums;
    }

    /// Changes the checksum of a block, because its content has changed or must not be read any more.
    pub fn set_checksum(&mut self, file_block: u64, checksum: Checksum) {
        if self.checksums.is_empty() && checksum != Checksum::DAMAGED {
            return;
        }
        let span = self.aligned();
        self.checksums.resize((span.len() / BLOCK) as usize, Checksum::NONE);
        self.checksums[(file_block - span.start / BLOCK) as usize] = checksum;
    }

    /// The checksums of a segment's blocks.
    pub(crate) fn checksums_of(&self, s: &Segment) -> Option<&[Checksum]> {
        let from = (s.file_block - self.aligned().start / BLOCK) as usize;
        self.checksums.get(from..from + s.blocks as usize)
    }

    /// The physical place of a file block of the write.
    pub fn physical(&self, file_block: u64) -> Option<u64> {
        let of = |s: &&Segment| (s.file_block..s.file_block + u64::from(s.blocks)).contains(&file_block);
        self.segments.iter().find(of).map(|s| s.physical + (file_block - s.file_block))
    }

    /// Of a block that the write covers in part, all other bytes are taken from an earlier write that is not committed
    /// yet.
    pub fn build_on(&mut self, file_block: u64) {
        self.edges.retain(|e| e.file_block != file_block);
        let start = file_block * BLOCK;
        let head = self.range.start.saturating_sub(start) as usize;
        let tail = (self.range.end - start).min(BLOCK) as usize;
        self.edges.push(Edge { file_block, physical: u64::MAX, keep: [0..head, tail..BLOCK as usize] });
    }

    /// Returns whether the log record of the commit points to blocks that contain no durable bytes yet
    /// (`Order::AfterData` in the zone), or sets checksums of blocks.
    pub fn points_at_new_data(&self) -> bool {
        !self.checksums.is_empty() || self.segments.iter().any(|s| s.kind != SegmentKind::InPlace)
    }
}

/// Completes the block-aligned bytes of a write. `aligned` contains `plan.aligned()` with the payload in its place, and
/// `edge_blocks` are the 4096 old bytes of each of `plan.edges`, in order. Everything around the payload becomes the
/// kept old bytes or zeros.
pub fn complete_edges(plan: &WritePlan, aligned: &mut [u8], edge_blocks: &[&[u8]]) {
    let span = plan.aligned();
    assert_eq!(aligned.len() as u64, span.len());
    assert_eq!(edge_blocks.len(), plan.edges.len());
    aligned[..(plan.range.start - span.start) as usize].fill(0);
    aligned[(plan.range.end - span.start) as usize..].fill(0);
    for (edge, old) in plan.edges.iter().zip(edge_blocks) {
        let at = (edge.file_block * BLOCK - span.start) as usize;
        for keep in &edge.keep {
            aligned[at + keep.start..at + keep.end].copy_from_slice(&old[keep.clone()]);
        }
    }
}

/// A part of a read, in whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSegment {
    /// First file block.
    pub file_block: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// First physical block; `None` means that the part reads as zeros.
    pub physical: Option<u64>,
}

/// A planned read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPlan {
    /// Bytes that exist: the requested range cut off at the object's end. It may be empty.
    pub range: ByteRange,
    /// End of the object.
    pub end: u64,
    /// Parts of the read: ascending, and together exactly `aligned()`.
    pub segments: SmallVec<[ReadSegment; 4]>,
    /// Parts of `range` that lie in memory and hide what the blocks contain, ascending.
    pub overlays: SmallVec<[Overlay; 2]>,
}

impl ReadPlan {
    /// The range of whole blocks that is read; empty if `range` is.
    pub fn aligned(&self) -> ByteRange {
        if self.range.is_empty() { self.range } else { self.range.align_out(BLOCK) }
    }

    /// Returns whether all of it is zeros.
    pub fn is_hole(&self) -> bool {
        self.overlays.is_empty() && self.segments.iter().all(|s| s.physical.is_none())
    }
}

/// The effect of a truncate on the object's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// The end is lowered to the size if it lies beyond. For objects that do not contain the file's last byte.
    Cut,
    /// The end of the object becomes exactly the size, even if it grows.
    Set,
}

/// An edge block of a truncate or punch: read `old`, zero the bytes `zero` in it, and write it to `fresh`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrimEdge {
    /// File block.
    pub file_block: u64,
    /// Physical block of the old bytes.
    pub old: u64,
    /// Physical block for the new bytes.
    pub fresh: u64,
    /// Bytes of the block that become zero.
    pub zero: Range<usize>,
    /// Checksum of the new bytes, if the block gets one.
    pub checksum: Checksum,
}

/// A planned truncate or punch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a plan must be committed or aborted"]
pub struct TrimPlan {
    /// Object.
    pub object: ObjectId,
    /// Blocks to rewrite before the commit, at most two. If there are any, the record points to new data.
    pub edges: SmallVec<[TrimEdge; 2]>,
    pub(crate) cut: Range<u64>,
    /// Bytes that are removed.
    pub(crate) bytes: ByteRange,
    pub(crate) change: TrimChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrimChange {
    /// The truncate was applied before, so the commit does nothing.
    Nothing,
    Punch,
    Truncate {
        end: u64,
        generation: u64,
    },
}

impl TrimPlan {
    /// Returns whether the truncate was applied before (a resend), so that nothing has to be done or logged.
    pub fn is_noop(&self) -> bool {
        self.change == TrimChange::Nothing
    }

    /// Returns whether the commit's record needs `Order::AfterData`.
    pub fn points_at_new_data(&self) -> bool {
        !self.edges.is_empty()
    }
}

/// Blocks that a commit freed. They may be used again only when the record of the commit is stable. When the record is
/// stable, this value is passed to `DataStore::release`.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "freed blocks must be released when their record is stable"]
pub struct Freed {
    pub(crate) runs: SmallVec<[Run; 2]>,
}

impl Freed {
    /// Returns whether nothing was freed.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.runs.iter().map(|r| u64::from(r.blocks)).sum()
    }

    /// The runs, for returning the storage to the medium after the release.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Joins what two commits freed. The record of both commits must be stable at the release.
    pub fn absorb(&mut self, other: Freed) {
        self.runs.extend(other.runs);
    }

    pub(crate) fn add(&mut self, run: Run) {
        match self.runs.last_mut() {
            Some(last) if last.end() == run.start && last.blocks.checked_add(run.blocks).is_some() => {
                last.blocks += run.blocks;
            }
            _ => self.runs.push(run),
        }
    }
}
