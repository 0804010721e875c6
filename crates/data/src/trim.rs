//! Truncates and punches: plan, commit, abort.
//!
//! Owns: these steps. Does not own: their I/O (the server).
//!
//! Whole blocks are freed. Edge blocks with bytes to zero are copied to new blocks. A truncate has a generation that
//! the object remembers. So a resent truncate does nothing, and writes that were sent before the truncate are refused.

use crate::alloc::{Purpose, Run};
use crate::checksums::Checksum;
use crate::extent::{FILE_BLOCKS, Object};
use crate::extents::Extent;
use crate::plan::{Freed, Resize, TrimChange, TrimEdge, TrimPlan};
use crate::store::{DataStore, check_range};
use amphi_types::item::Txn;
use amphi_types::limits::{BLOCK, FILE_MAX};
use amphi_types::{ByteRange, Errno, ObjectId, Result, Timespec};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::ops::Range;

impl DataStore {
    /// Plans a truncate to `size`. If the generation is not above the object's, it does nothing (a resend). Generations
    /// of truncates start at 1. If the object does not exist it is made, so that it remembers the generation.
    ///
    /// Errors: `NoSpace` for the edge block (the allocator keeps some blocks back for it), `FileTooBig`.
    pub fn plan_truncate(&mut self, object: ObjectId, size: u64, generation: u64, how: Resize) -> Result<TrimPlan> {
        if size > FILE_MAX {
            return Err(Errno::FileTooBig);
        }
        let had = self.objects.get(object);
        if had.map_or(0, |o| o.generation) >= generation {
            let change = TrimChange::Nothing;
            let bytes = ByteRange::new(0, 0);
            return Ok(TrimPlan { object, edges: SmallVec::new(), cut: 0..0, bytes, change });
        }
        let old_end = self.end_of(object);
        let end = if how == Resize::Set { size } else { old_end.min(size) };
        let mut zero = Vec::new();
        if !size.is_multiple_of(BLOCK) && size < old_end {
            zero.push((size / BLOCK, (size % BLOCK) as usize..BLOCK as usize));
        }
        let cut = size.div_ceil(BLOCK)..FILE_BLOCKS;
        let bytes = ByteRange::new(size, u64::MAX);
        self.trim(object, cut, bytes, zero, TrimChange::Truncate { end, generation })
    }

    /// Plans to make `range` a hole. The end stays.
    ///
    /// Errors: `Stale` for an old generation, `NoSpace` for the edge blocks, `Inval` for an empty range.
    pub fn plan_punch(&mut self, object: ObjectId, range: ByteRange, generation: u64) -> Result<TrimPlan> {
        check_range(ByteRange::new(range.start, range.end.min(FILE_MAX)))?;
        self.check_generation(object, generation)?;
        let end = self.objects.get(object).map_or(0, |o| o.end);
        // Everything behind the end is zero, so a punch that reaches the end frees the last block as a whole.
        let range_end = if range.end >= end { range.end.min(FILE_MAX).next_multiple_of(BLOCK) } else { range.end };
        let (first, last) = (range.start / BLOCK, range_end / BLOCK);
        let (head, tail) = ((range.start % BLOCK) as usize, (range_end % BLOCK) as usize);
        let mut zero = Vec::new();
        let cut = if first == last {
            zero.push((first, head..tail));
            0..0
        } else {
            if head > 0 {
                zero.push((first, head..BLOCK as usize));
            }
            if tail > 0 {
                zero.push((last, 0..tail));
            }
            range.start.div_ceil(BLOCK)..last
        };
        self.trim(object, cut, range, zero, TrimChange::Punch)
    }

    fn trim(
        &mut self,
        object: ObjectId,
        cut: Range<u64>,
        bytes: ByteRange,
        zero: Vec<(u64, Range<usize>)>,
        change: TrimChange,
    ) -> Result<TrimPlan> {
        let mut edges: SmallVec<[TrimEdge; 2]> = SmallVec::new();
        if let Some(o) = self.objects.get(object) {
            for (file_block, zero) in zero {
                if let Some(old) =
                    written_block(o, file_block).filter(|_| file_block * BLOCK + (zero.start as u64) < o.end)
                {
                    edges.push(TrimEdge { file_block, old, fresh: 0, zero, checksum: Checksum::NONE });
                }
            }
        }
        let needs: SmallVec<[(u64, u64); 2]> = edges.iter().map(|e| (e.file_block, 1)).collect();
        let mut placed = Vec::new();
        self.take_all(&needs, object, Purpose::Shrink, 0, &mut placed)?;
        for (edge, (_, run)) in edges.iter_mut().zip(placed) {
            edge.fresh = run.start;
        }
        Ok(TrimPlan { object, edges, cut, bytes, change })
    }

    /// Makes a truncate or punch visible and appends its items. The edge blocks must have been written before.
    pub fn commit_trim(&mut self, plan: TrimPlan, mtime: Timespec, txn: &mut Txn) -> Freed {
        let mut freed = Freed::default();
        // Object 0 records the time of a change even if nothing was written to it yet, so it is made if it does not
        // exist.
        let is_absent = plan.object.stripe > 0 && !self.objects.contains(plan.object);
        if plan.is_noop() || (plan.change == TrimChange::Punch && is_absent) {
            return freed;
        }
        let mut touched = BTreeSet::new();
        self.recent.forget(plan.object, ByteRange::ALL);
        let (object, bytes) = (plan.object, plan.bytes);
        let weighed = self.weigh(object, bytes);
        // A hole does not move the end, not even a hole in delayed bytes behind the last block.
        let end = if plan.change == TrimChange::Punch { self.end_of(plan.object) } else { 0 };
        self.delayed.cut(plan.object, plan.bytes, txn);
        let o = self.objects.or_default(plan.object);
        if !plan.cut.is_empty() {
            let removed = o.cut(plan.cut.start, plan.cut.end, &mut touched);
            removed.iter().for_each(|(_, e)| freed.add(e.run()));
        }
        for edge in &plan.edges {
            self.alloc.note_backed(Run { start: edge.fresh, blocks: 1 });
            let old = o.cut(edge.file_block, edge.file_block + 1, &mut touched);
            debug_assert!(old.len() == 1 && old[0].1.physical == edge.old, "edge block moved");
            old.iter().for_each(|(_, e)| freed.add(e.run()));
            o.put(edge.file_block, Extent { physical: edge.fresh, blocks: 1, written: true }, &mut touched);
            self.checksums.put(edge.fresh, &[edge.checksum], txn);
            self.planned -= 1;
        }
        o.log_extents(plan.object, &touched, txn);
        if let TrimChange::Truncate { end, generation } = plan.change {
            if end > o.end {
                o.grow(end, false);
            } else {
                o.end = end;
            }
            o.generation = generation;
        }
        o.grow(end, false);
        // Other writes elsewhere in the object may be later than the time that this punch has taken.
        o.set_mtime(if plan.change == TrimChange::Punch { o.mtime().max(mtime) } else { mtime });
        o.note_item();
        o.log_object(plan.object, txn);
        self.note_freed(&freed);
        self.charge(object, bytes, weighed);
        freed
    }

    /// Gives up a truncate or punch.
    pub fn abort_trim(&mut self, plan: TrimPlan) {
        for edge in &plan.edges {
            self.untake(Run { start: edge.fresh, blocks: 1 });
        }
    }
}

fn written_block(o: &Object, file_block: u64) -> Option<u64> {
    o.mapped(file_block, file_block + 1).find(|(_, e)| e.written).map(|(_, e)| e.physical)
}
