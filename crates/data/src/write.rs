//! Writes: plan, commit, abort; accepting bytes into memory, and the plans of flushes.
//!
//! Owns: these steps. Does not own: their I/O and the order of records (the server).
//!
//! If a write covers a written block up to the object's end, the block is overwritten in place like one that is covered
//! as a whole. Whichever of its sectors a crash leaves old or new, no byte outside the write changes, and the bytes
//! behind the end are zero before and after. A write may go beyond the bytes that were below the end when the block was
//! mapped (`Object::filled`). Then it takes a new block even if it covers all old bytes, because a crash may bring back
//! the old end, and bytes behind an end must be zero.

use crate::alloc::{Purpose, Run};
use crate::checksums::{Checksum, Checksums};
use crate::delayed::DirtyExtent;
use crate::extent::{Object, dirty_key, dirty_value};
use crate::extents::Extent;
use crate::memory::Memory;
use crate::plan::{Edge, Freed, Fresh, Segment, SegmentKind, WritePlan};
use crate::store::{DataStore, check_range};
use amphi_types::item::Txn;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Errno, ObjectId, Result, SessionId, Timespec};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::rc::Rc;

impl DataStore {
    /// Plans a write of `range`. The server reads the edges, builds the aligned bytes (`complete_edges`), writes the
    /// segments in any order, and then commits or aborts.
    ///
    /// A generation above the object's is accepted and not remembered, because truncates reach an object before the
    /// writes that follow them.
    ///
    /// Blocks that `fresh` selects are not overwritten in place: until the commit all readers get the old bytes, even
    /// after a crash in the middle of the write. The blocks that the write adds come from the grant of `holder`.
    ///
    /// Errors: `Stale` if a truncate was executed after the request was sent; `NoSpace` (nothing was taken);
    /// `FileTooBig`; `Inval` for an empty range.
    pub fn plan_write(
        &mut self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        fresh: Fresh,
        holder: Option<SessionId>,
    ) -> Result<WritePlan> {
        self.check_generation(object, generation)?;
        self.plan_blocks(object, range, fresh, Purpose::Growth, holder)
    }

    /// Works as `plan_write`, for a write that found no space: blocks that replace others may come from the reserve.
    /// Only one caller at a time plans in this way, and the blocks that it freed before have been released. At most
    /// `overwrite_room` blocks at a time find space.
    pub fn plan_overwrite(
        &mut self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        fresh: Fresh,
        holder: Option<SessionId>,
    ) -> Result<WritePlan> {
        self.check_generation(object, generation)?;
        self.plan_blocks(object, range, fresh, Purpose::Overwrite, holder)
    }

    /// Number of blocks that `plan_overwrite` finds at a time.
    pub fn overwrite_room(&self) -> u64 {
        self.alloc.room(Purpose::Overwrite).saturating_sub(self.delayed.promised())
    }

    /// Returns whether there is space for the blocks that a write of `range` adds to its object, including the grant of
    /// `holder`.
    pub fn has_room_to_grow(&self, object: ObjectId, range: ByteRange, holder: Option<SessionId>) -> bool {
        let span = range.align_out(BLOCK);
        let added = self.unmapped(object, span.start / BLOCK, span.end / BLOCK);
        added <= self.growth_room(self.own_part(object, range, holder))
    }

    /// Number of blocks that a write of `range` takes from the grant of `holder`.
    fn own_part(&self, object: ObjectId, range: ByteRange, holder: Option<SessionId>) -> u64 {
        match holder.map_or(0, |session| self.grants.left(session)) {
            0 => 0,
            left => left.min(self.added_by(object, range)),
        }
    }

    /// Plans to write delayed bytes to blocks, and what lies between them in their blocks. `range` is one of
    /// `Delayed::runs`, whose blocks the caller holds exclusively. There is space, because it was reserved when the
    /// bytes were accepted.
    ///
    /// Errors: `NoSpace` if the file system below has no storage for what was reserved.
    pub fn plan_flush(&mut self, object: ObjectId, range: ByteRange, fresh: Fresh) -> Result<WritePlan> {
        let lent = self.delayed.touched(object, range);
        self.delayed.lent += lent;
        match self.plan_blocks(object, range, fresh, Purpose::Shrink, None) {
            Ok(plan) => Ok(WritePlan { lent, ..plan }),
            Err(e) => {
                self.delayed.lent -= lent;
                Err(e)
            }
        }
    }

    /// Returns the promised blocks that the plan of a flush uses, so that the same bytes can be planned again before it
    /// is aborted.
    pub fn set_aside(&mut self, plan: &mut WritePlan) {
        self.delayed.lent -= std::mem::take(&mut plan.lent);
    }

    fn plan_blocks(
        &mut self,
        object: ObjectId,
        range: ByteRange,
        fresh: Fresh,
        purpose: Purpose,
        holder: Option<SessionId>,
    ) -> Result<WritePlan> {
        check_range(range)?;
        let mut plan = WritePlan {
            object,
            range,
            segments: SmallVec::new(),
            edges: SmallVec::new(),
            lent: 0,
            loan: None,
            checksums: Vec::new(),
        };
        let needs = match self.objects.get(object) {
            Some(o) => reuse_blocks(o, &self.checksums, &mut plan, fresh),
            None => {
                let span = plan.aligned();
                vec![(span.start / BLOCK, span.len() / BLOCK)]
            }
        };
        if !needs.is_empty() {
            let mut placed = Vec::new();
            if purpose == Purpose::Overwrite && !self.has_room_to_grow(object, range, holder) {
                return Err(Errno::NoSpace);
            }
            let own = self.own_part(object, range, holder);
            self.take_all(&needs, object, purpose, own, &mut placed)?;
            plan.loan = holder.filter(|_| own > 0).and_then(|session| self.grants.lend(session, own));
            plan.segments.extend(placed.into_iter().map(|(file_block, run)| Segment {
                file_block,
                physical: run.start,
                blocks: run.blocks,
                kind: SegmentKind::Fresh,
            }));
            plan.segments.sort_unstable_by_key(|s| s.file_block);
        }
        Ok(plan)
    }

    /// Returns whether the record of the plan's commit must not outlive the written data (`Order::AfterData` in the
    /// zone): it points to new data, or it removes bytes from the log that a sync has promised, in exchange for those
    /// on the disk. To be asked before the commit.
    pub fn follows_data(&self, plan: &WritePlan) -> bool {
        plan.points_at_new_data() || self.delayed.is_logged(plan.object, plan.range)
    }

    /// Makes a written plan visible and appends its items: the extents that changed, and the object with its end and
    /// `mtime`. See `follows_data`.
    pub fn commit_write(&mut self, plan: WritePlan, mtime: Timespec, txn: &mut Txn) -> Freed {
        let mut freed = Freed::default();
        let mut touched = BTreeSet::new();
        self.recent.forget(plan.object, plan.aligned());
        let (object, span) = (plan.object, plan.aligned());
        let weighed = self.weigh(object, span);
        self.delayed.lent -= plan.lent;
        if let Some(loan) = plan.loan {
            // Another write may have mapped some of the blocks since the plan was made.
            let added = self.added_by(plan.object, plan.range);
            self.grants.spend(loan, added, self.growth_room(0), txn);
        }
        self.delayed.cut(plan.object, plan.range, txn);
        for s in &plan.segments {
            self.alloc.note_backed(Run { start: s.physical, blocks: s.blocks });
            debug_assert!(s.kind != SegmentKind::InPlace || !self.has_checksum(s), "written over a checksum");
            match plan.checksums_of(s) {
                Some(checksums) => self.checksums.put(s.physical, checksums, txn),
                None => self.checksums.clear(s.physical, u64::from(s.blocks), txn),
            }
        }
        let o = self.objects.or_default(plan.object);
        for s in plan.segments.iter().filter(|s| s.kind != SegmentKind::InPlace) {
            let old = o.cut(s.file_block, s.file_block + u64::from(s.blocks), &mut touched);
            if s.kind == SegmentKind::Fresh {
                old.iter().for_each(|(_, e)| freed.add(e.run()));
                self.planned -= u64::from(s.blocks);
            } else {
                debug_assert!(old.len() == 1 && old[0].1.physical == s.physical, "preallocated blocks moved");
            }
            o.put(s.file_block, Extent { physical: s.physical, blocks: s.blocks, written: true }, &mut touched);
        }
        o.log_extents(plan.object, &touched, txn);
        let outgrown = o.end / BLOCK;
        let is_rewritten = plan.segments.iter().any(|s| {
            s.kind != SegmentKind::InPlace && (s.file_block..s.file_block + u64::from(s.blocks)).contains(&outgrown)
        });
        o.grow(plan.range.end, is_rewritten);
        // A write-back carries the time of its write, which may be earlier than the time of a direct write.
        o.set_mtime(o.mtime().max(mtime));
        o.note_item();
        o.log_object(plan.object, txn);
        self.note_freed(&freed);
        self.charge(object, span, weighed);
        freed
    }

    fn has_checksum(&self, s: &Segment) -> bool {
        self.checksums.has_any(s.physical, u64::from(s.blocks))
    }

    /// Removes the checksums of the blocks that a range covers, so that the blocks may be overwritten in place when the
    /// record is stable. Appends nothing if there are no such checksums.
    pub fn forget_checksums(&mut self, object: ObjectId, range: ByteRange, txn: &mut Txn) {
        let Some(o) = self.objects.get(object) else { return };
        let (from, to) = (range.start.div_ceil(BLOCK), range.end / BLOCK);
        let to = if range.end >= o.end { range.end.div_ceil(BLOCK) } else { to };
        for (_, e) in o.mapped(from, to.max(from)).filter(|(_, e)| e.written) {
            self.checksums.clear(e.physical, u64::from(e.blocks), txn);
        }
    }

    /// Appends the deletion of some checksums of blocks that are free.
    pub fn delete_free_checksums(&mut self, txn: &mut Txn) {
        self.checksums.delete_emptied(&self.alloc, txn);
    }

    /// Gives blocks without checksums the checksums of their bytes as they were read, one for each block from
    /// `physical` on. The caller has kept them from being written since it read them, and the record follows their
    /// bytes (`Order::AfterData`). Returns how many blocks had no checksum.
    pub fn adopt_checksums(&mut self, physical: u64, read: &[Checksum], txn: &mut Txn) -> u64 {
        let mut all = self.checksums.of_run(physical, read.len() as u64);
        let mut adopted = 0;
        for (sum, read) in all.iter_mut().zip(read).filter(|(sum, _)| !sum.is_known()) {
            *sum = *read;
            adopted += 1;
        }
        self.checksums.put(physical, &all, txn);
        adopted
    }

    /// Number of blocks that accepting `range` would promise, if there is space for them.
    ///
    /// Errors: `Stale` when a truncate came after the request was sent, `NoSpace`, `FileTooBig`, `Inval` for an empty
    /// range.
    pub fn check_accept(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        holder: Option<SessionId>,
    ) -> Result<u64> {
        check_range(range)?;
        self.check_generation(object, generation)?;
        let span = range.align_out(BLOCK);
        let blocks = span.len() / BLOCK - self.delayed.touched(object, span);
        if blocks > self.growth_room(self.own_part(object, range, holder)) {
            return Err(Errno::NoSpace);
        }
        Ok(blocks)
    }

    /// Takes from the grant of `holder` what accepting `range` needs, and appends that to the record. It has to be
    /// called before `accept`, in the same step.
    pub fn spend_grant(&mut self, object: ObjectId, range: ByteRange, holder: Option<SessionId>, txn: &mut Txn) {
        let own = self.own_part(object, range, holder);
        if let Some(loan) = holder.filter(|_| own > 0).and_then(|session| self.grants.lend(session, own)) {
            // The blocks that the write itself will take are subtracted from the room first.
            let others = range.align_out(BLOCK).len() / BLOCK;
            self.grants.spend(loan, own, self.growth_room(0).saturating_sub(others), txn);
        }
    }

    /// Makes bytes that lie in `memory` visible as the content of `range`, and appends their items. `check_accept` must
    /// have succeeded in the same step.
    pub fn accept(
        &mut self,
        object: ObjectId,
        range: ByteRange,
        mtime: Timespec,
        memory: Rc<Memory>,
        now_ns: u64,
        txn: &mut Txn,
    ) {
        let weighed = self.weigh(object, range);
        self.delayed.cut_extents(object, range, txn);
        let o = self.objects.or_default(object);
        if !o.has_item() {
            // If it has an item, the object is found among the objects of its file.
            o.note_item();
            o.log_object(object, txn);
        }
        let extent = DirtyExtent { end: range.end, mtime, memory: memory.clone(), logged: false };
        txn.put(dirty_key(object, range.start), dirty_value(range.start, &extent));
        self.delayed.put(object, range, mtime, memory, now_ns);
        self.charge(object, range, weighed);
    }

    /// Gives up a plan. Its new blocks are free at once, because nothing durable ever pointed to them. Every write that
    /// the server submitted for the plan must have ended.
    pub fn abort_write(&mut self, plan: WritePlan) {
        self.recent.forget(plan.object, plan.aligned());
        self.delayed.lent -= plan.lent;
        plan.loan.into_iter().for_each(|loan| self.grants.return_loan(loan));
        for s in plan.segments.iter().filter(|s| s.kind == SegmentKind::Fresh) {
            self.untake(Run { start: s.physical, blocks: s.blocks });
        }
    }
}

/// Adds to `plan` the segments that keep their blocks, and the edges. Returns the file blocks that need new blocks, as
/// (file block, count), ascending.
fn reuse_blocks(o: &Object, checksums: &Checksums, plan: &mut WritePlan, fresh: Fresh) -> Vec<(u64, u64)> {
    let span = plan.aligned();
    let (from, to) = (span.start / BLOCK, span.end / BLOCK);
    let mut needs: Vec<(u64, u64)> = Vec::new();
    let mut need = |at: u64, end: u64| {
        if at < end {
            match needs.last_mut() {
                Some(last) if last.0 + last.1 == at => last.1 += end - at,
                _ => needs.push((at, end - at)),
            }
        }
    };
    // Only the first and the last block of the write can have bytes to keep. Only the object's last block, and blocks
    // that its end has outgrown, can have fewer bytes below the end than the write covers.
    let mut special: SmallVec<[u64; 4]> = o.outgrown(from, to).collect();
    special.extend([from, to - 1, o.end / BLOCK]);
    special.sort_unstable();
    special.dedup();
    let shared = if fresh == Fresh::Edges { plan.partial_blocks() } else { SmallVec::new() };
    let mut at = from;
    for (b, e) in o.mapped(from, to) {
        need(at, b);
        let end = b + u64::from(e.blocks);
        let kind = if e.written { SegmentKind::InPlace } else { SegmentKind::Convert };
        let mut keep = |from: u64, to: u64| {
            if from < to {
                let physical = e.physical + (from - b);
                plan.segments.push(Segment { file_block: from, physical, blocks: (to - from) as u32, kind });
            }
        };
        at = b;
        if (e.written && fresh != Fresh::Needed) || fresh == Fresh::All {
            let edges = special.iter().filter(|&&x| e.written && (b..end).contains(&x));
            plan.edges.extend(edges.filter_map(|&x| edge(o, plan.range, x, e.physical + (x - b))));
            need(b, end);
            at = end;
            continue;
        }
        // Preallocated blocks that another write fills at the same time.
        for &x in shared.iter().filter(|x| (b..end).contains(x)) {
            keep(at, x);
            need(x, x + 1);
            at = x + 1;
        }
        // If a block with a checksum were overwritten in place, a crash could leave bytes that look like damage.
        let verified = if e.written { checksums.known(e.physical, u64::from(e.blocks)) } else { Vec::new() };
        let verified = verified.into_iter().map(|physical| b + (physical - e.physical));
        let mut looked: Vec<u64> = special.iter().copied().filter(|&x| e.written && (b..end).contains(&x)).collect();
        looked.extend(verified.clone());
        looked.sort_unstable();
        looked.dedup();
        let mut verified = verified.peekable();
        for x in looked {
            let edge = edge(o, plan.range, x, e.physical + (x - b));
            let fills_to = (plan.range.end - x * BLOCK).min(BLOCK);
            let is_verified = verified.next_if_eq(&x).is_some();
            if is_verified || edge.is_some() || fills_to > o.filled(x) {
                plan.edges.extend(edge);
                keep(at, x);
                need(x, x + 1);
                at = x + 1;
            }
        }
        keep(at, end);
        at = end;
    }
    need(at, to);
    needs
}

/// The edge for a written block, if it has bytes outside `range` to keep.
fn edge(o: &Object, range: ByteRange, file_block: u64, physical: u64) -> Option<Edge> {
    let start = file_block * BLOCK;
    let head = range.start.saturating_sub(start) as usize;
    let tail = if range.end < (start + BLOCK).min(o.end) { (range.end - start) as usize } else { BLOCK as usize };
    let keep = [0..head, if tail < BLOCK as usize { tail..BLOCK as usize } else { 0..0 }];
    (head > 0 || tail < BLOCK as usize).then_some(Edge { file_block, physical, keep })
}
