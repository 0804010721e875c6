//! A batch of small writes of many files, and closes of many files in one message.
//!
//! Owns: the order of spans, plans, disk and log for several objects at once. Does not own: the steps of one write
//! (`data`).
//!
//! Invariants: those of `data`. One span is taken for each object, in ascending order of objects. All requests that
//! hold several spans take them in this order, so there is no deadlock. A part waits for disks and for the spans of
//! requests that wait for nothing else, never for an answer of a mount. If a part would need such an answer, it is
//! refused with `Again`, and the client sends it separately. A failure of one part, such as an inode that cannot be
//! read, concerns only that part, and the others are executed. Parts whose blocks would not be contiguous with others
//! on the disk are accepted into memory first (`accept`), in a record of their own. All other parts of a step are in
//! one record. They are planned one after the other, so that their new blocks are contiguous if there is space, and
//! adjacent blocks are one disk write. The last record of the last step contains the answer. A batch that is
//! interrupted before that is sent again, and writes the same bytes once more, under the locks that the mount still
//! holds.

use super::accept::{Accepted, Accepting};
use crate::counters::add;
use crate::planted::{self, Mistake};
use crate::session::rights::Touch;
use crate::worker::request::RequestCx;
use crate::zone_target::BLOCK_BYTES;
use crate::zone_target::gate::Hold;
use crate::zone_target::shared_blocks::Image;
use crate::zone_target::span_gate::SpanGuard;
use amphi_data::{Freed, Fresh, WritePlan};
use amphi_env::{Buf, Env};
use amphi_object::Piece;
use amphi_types::item::Txn;
use amphi_types::limits::{BLOCK, FILE_MAX};
use amphi_types::{ByteRange, Errno, Ino, Result, Timespec};
use amphi_wire::{Access, BATCH_BYTES_MAX, BATCH_PARTS_MAX, BatchPart, Cover, Reply};
use amphi_zone::{Lsn, Order};
use futures_util::future::join_all;
use std::ops::Range;

/// Most bytes of a record for a part in addition to its blocks: its object, its inode, and pieces of the surrounding
/// extents.
const PART_BYTES: u64 = 512;

/// A part of a step with its bytes.
struct Part<'a> {
    /// The index of the part in the step.
    index: usize,
    part: &'a BatchPart,
    bytes: &'a [u8],
    /// No other part of the step belongs to the same object.
    is_single: bool,
}

/// The parts of a step with their bytes, which follow each other in the payload.
fn cut<'a>(parts: &'a [BatchPart], mut bytes: &'a [u8]) -> Vec<Part<'a>> {
    let of = |index: usize| parts.get(index).map(|p| p.object);
    let with_bytes = parts.iter().enumerate().map(|(index, part)| {
        let (own, behind) = bytes.split_at(part.len as usize);
        bytes = behind;
        let before = index.checked_sub(1).and_then(of);
        let is_single = before != Some(part.object) && of(index + 1) != Some(part.object);
        Part { index, part, bytes: own, is_single }
    });
    with_bytes.collect()
}

/// A part with a plan.
struct Planned<'a> {
    /// The index of the part in the step.
    index: usize,
    part: &'a BatchPart,
    bytes: &'a [u8],
    plan: WritePlan,
    edges: Vec<Image>,
}

impl Planned<'_> {
    fn aligned_len(&self) -> usize {
        self.plan.aligned().len() as usize
    }
}

/// Returns whether the parts are in order, within the bounds, and together just as long as the payload.
fn check_shape(parts: &[BatchPart], payload: usize) -> Result<()> {
    let sum: u64 = parts.iter().map(|p| u64::from(p.len)).sum();
    let bounded = !parts.is_empty() && parts.len() <= BATCH_PARTS_MAX && payload <= BATCH_BYTES_MAX;
    let whole = sum == payload as u64 && parts.iter().all(|p| p.len > 0 && p.range().end <= FILE_MAX);
    let follows = |a: &BatchPart, b: &BatchPart| {
        let behind = a.range().align_out(BLOCK).end <= b.offset / BLOCK * BLOCK;
        a.object < b.object || (a.object == b.object && behind)
    };
    let ordered = parts.windows(2).all(|pair| follows(&pair[0], &pair[1]));
    if bounded && whole && ordered { Ok(()) } else { Err(Errno::Inval) }
}

impl<E: Env> RequestCx<E> {
    /// `Request::WriteBatch`.
    pub async fn write_batch(&self, parts: Vec<BatchPart>, payload: Option<Buf>) -> Result<Reply> {
        let payload = payload.unwrap_or_default();
        check_shape(&parts, payload.len())?;
        let cover = parts.iter().map(|p| p.cover).find(|cover| *cover != Cover::None).unwrap_or_default();
        add(&self.worker.counters.batch_parts, parts.len() as u64);
        let mut results = Vec::with_capacity(parts.len());
        self.target.make_way().await;
        self.target.storage.below.mind(&self.target, payload.len() as u64);
        let mut rest: &[u8] = &payload;
        while results.len() < parts.len() {
            let step = self.step_from(&parts, results.len());
            let bytes = parts[step.clone()].iter().map(|p| p.len as usize).sum();
            let (here, behind) = rest.split_at(bytes);
            let last = step.end == parts.len();
            self.batch_step(&parts[step], here, &mut results, last).await?;
            self.top_up(cover);
            rest = behind;
        }
        assert!(rest.is_empty(), "{} bytes of a batch belong to no part", rest.len());
        assert_eq!(results.len(), parts.len(), "each part of a batch has its result");
        Ok(Reply::WrittenBatch(results))
    }

    /// The range of as many parts from `from` on as one record can name. These are all remaining parts, unless the log
    /// is small.
    fn step_from(&self, parts: &[BatchPart], from: usize) -> Range<usize> {
        let room = self.target.record_blocks_max() * BLOCK_BYTES;
        let mut bytes = 0;
        let fits = parts[from..].iter().take_while(|p| {
            bytes += p.range().align_out(BLOCK).len() / BLOCK * BLOCK_BYTES + PART_BYTES;
            bytes <= room
        });
        from..from + fits.count().max(1)
    }

    /// Writes the parts that fit into one record, and adds the result of each part to `results`. The last step is
    /// logged with the answer.
    async fn batch_step(
        &self,
        parts: &[BatchPart],
        bytes: &[u8],
        results: &mut Vec<Result<()>>,
        last: bool,
    ) -> Result<()> {
        let mut outcomes: Vec<Result<()>> = Vec::with_capacity(parts.len());
        for part in parts {
            outcomes.push(match self.check_read(part.object.ino) {
                Ok(()) => self.check_object(part.object, Touch::Change).await,
                unread => unread,
            });
        }
        let spans = self.batch_spans(parts).await;
        let mut rest = cut(parts, bytes);
        rest.retain(|p| outcomes[p.index].is_ok());
        let _changing: Vec<_> = rest.iter().map(|p| self.overwriting(p.part.object.ino, p.part.range())).collect();
        if let Some(lsn) = self.accept_parts(&mut rest, &mut outcomes, last) {
            results.extend(outcomes);
            drop(spans);
            return if planted::is(Mistake::EarlyAnswer) { Ok(()) } else { self.kept(lsn).await };
        }
        let mut planned = Vec::with_capacity(rest.len());
        for Part { index, part, bytes, .. } in rest {
            match self.plan_part(part).await {
                Ok(plan) => planned.push(Planned { index, part, bytes, plan, edges: Vec::new() }),
                Err(e) => outcomes[index] = Err(e),
            }
        }
        let edges = join_all(planned.iter().map(|p| self.read_edges(&p.plan))).await;
        for (p, edges) in planned.iter_mut().zip(edges) {
            match edges {
                Ok(edges) => p.edges = edges,
                Err(e) => outcomes[p.index] = Err(e),
            }
        }
        let mut planned = self.without_failed(planned, &outcomes);
        let (buf, pieces) = self.assemble(&mut planned);
        // The last check before the disk: a write of an ended session is not executed.
        let landing = match self.land() {
            Ok(landing) => landing,
            Err(e) => {
                planned.into_iter().for_each(|p| self.target.data.borrow_mut().abort_write(p.plan));
                return Err(e);
            }
        };
        add(&self.worker.counters.data_writes, pieces.len() as u64);
        let sizes = &self.worker.counters.histograms.write;
        sizes.note(buf.len() as u64, pieces.iter().map(|p| p.len));
        let since_ns = self.worker.now_ns();
        let written = self.target.storage.disk.write_each(buf, &pieces).await;
        sizes.disk_us.note(self.worker.now_ns().saturating_sub(since_ns) / 1000);
        for (piece, e) in pieces.iter().zip(written).filter_map(|(piece, r)| r.err().map(|e| (piece, e))) {
            let errno = self.target.disk_error("write", &e);
            let mut from = 0;
            for p in &planned {
                let end = from + p.aligned_len();
                if piece.at < end && from < piece.at + piece.len {
                    outcomes[p.index] = Err(errno);
                }
                from = end;
            }
        }
        let planned = self.without_failed(planned, &outcomes);
        results.extend(outcomes);
        let follows = planned.iter().any(|p| self.target.data.borrow().follows_data(&p.plan));
        let order = if follows && !planted::is(Mistake::UnmarkedBatch) { Order::AfterData } else { Order::Plain };
        let lsn = {
            let (mut txn, mut freed, mut bytes) = (Txn::default(), Freed::default(), 0);
            for p in planned {
                bytes += u64::from(p.part.len);
                self.target.counts.unstable.written(p.part.object, u64::from(p.part.len));
                freed.absorb(self.target.data.borrow_mut().commit_write(p.plan, p.part.mtime, &mut txn));
                self.own(p.part.object);
                if p.part.object.stripe == 0 {
                    self.note_write(p.part.object, self.is_for_a_user(), &mut txn);
                }
            }
            add(&self.worker.counters.write_bytes, bytes);
            let lsn = match last {
                true => self.append(txn, order, &Reply::WrittenBatch(results.clone()), None),
                false => self.target.append(txn, order),
            };
            self.target.release_later(lsn, freed);
            lsn
        };
        drop((spans, landing));
        if planted::is(Mistake::EarlyAnswer) {
            return Ok(());
        }
        self.target.zone.kept(lsn).await
    }

    /// Takes a span for each object, over all parts of the object.
    async fn batch_spans(&self, parts: &[BatchPart]) -> Vec<SpanGuard> {
        let now_ns = self.worker.now_ns();
        let mut spans = Vec::with_capacity(parts.len());
        for of_object in parts.chunk_by(|a, b| a.object == b.object) {
            let object = of_object[0].object;
            self.target.coherence.locks.progress(now_ns, self.session, object);
            let end = of_object.iter().map(|p| p.range().end).max().unwrap_or_default();
            spans.push(self.span(object, ByteRange::new(of_object[0].offset, end), Hold::Exclusive).await);
        }
        spans
    }

    /// The last check of a part before it is changed. Returns the generation to use.
    fn check_part(&self, part: &BatchPart) -> Result<u64> {
        if self.is_unopened(part.object) {
            return Err(Errno::Again);
        }
        if !self.check_again(part.object)? {
            // If the part is sent separately, the inode's target is asked again.
            return Err(Errno::Again);
        }
        Ok(self.generation(part.object, part.generation, false))
    }

    async fn plan_part(&self, part: &BatchPart) -> Result<WritePlan> {
        let generation = self.check_part(part)?;
        if self.is_limited(part.object, part.range(), part.cover) {
            // If it is sent separately, it waits until the limit permits it.
            return Err(Errno::Again);
        }
        if self.target.storage.below.is_anyone_alone() {
            return Err(Errno::Again);
        }
        match self.plan_write(part.object, part.range(), generation, self.holder(part.cover)).await {
            // If it is sent alone, it waits for its turn at the blocks that are reserved for overwrites.
            Err(Errno::NoSpace) => Err(Errno::Again),
            plan => plan,
        }
    }

    /// Removes from `parts` the parts that are accepted into memory and those that fail. Appends the record of the
    /// accepted ones, in the same step. Returns the record, which contains the answer if this is the last step and no
    /// part is left.
    fn accept_parts(&self, parts: &mut Vec<Part<'_>>, outcomes: &mut [Result<()>], last: bool) -> Option<Lsn> {
        self.target.exhume();
        let mut accepted = Accepted::default();
        parts.retain(|p| {
            let generation = match self.check_part(p.part) {
                Ok(generation) => generation,
                Err(e) => {
                    outcomes[p.index] = Err(e);
                    return false;
                }
            };
            if !self.admits_write_now(p.part.object, p.part.range(), p.part.cover) {
                return true;
            }
            let write = Accepting {
                object: p.part.object,
                range: p.part.range(),
                generation,
                mtime: p.part.mtime,
                kill_suidgid: self.is_for_a_user(),
                checksums: p.part.checksums,
                cover: p.part.cover,
                is_together: self.is_better_together(p),
            };
            !self.accept_into(&write, p.bytes, &mut accepted)
        });
        add(&self.worker.counters.write_bytes, accepted.bytes);
        let is_all = parts.is_empty() && accepted.bytes > 0;
        if !is_all {
            if accepted.bytes > 0 {
                let early = planted::is(Mistake::HalfAnswer).then(|| Reply::WrittenBatch(outcomes.to_vec()));
                self.append_accepted(accepted, early.as_ref());
            }
            return None;
        }
        let reply = last.then(|| Reply::WrittenBatch(outcomes.to_vec()));
        Some(self.append_accepted(accepted, reply.as_ref()))
    }

    /// Returns whether the blocks of a part that is written together with the others are contiguous: it is overwritten
    /// in place, or it is the whole file.
    fn is_better_together(&self, p: &Part<'_>) -> bool {
        let is_whole = || {
            let end = self.target.data.borrow().object(p.part.object).map_or(0, |o| o.end);
            p.is_single && p.part.offset == 0 && p.part.range().end >= end
        };
        self.fresh() == Fresh::Needed || is_whole()
    }

    /// Gives up the plans of parts that have failed.
    fn without_failed<'a>(&self, planned: Vec<Planned<'a>>, outcomes: &[Result<()>]) -> Vec<Planned<'a>> {
        let (good, failed): (Vec<_>, Vec<_>) = planned.into_iter().partition(|p| outcomes[p.index].is_ok());
        failed.into_iter().for_each(|p| self.target.data.borrow_mut().abort_write(p.plan));
        good
    }

    /// The whole blocks of all parts one after another, and where they go.
    fn assemble(&self, planned: &mut [Planned<'_>]) -> (Buf, Vec<Piece>) {
        let mut buf = Buf::scratch(planned.iter().map(Planned::aligned_len).sum());
        let (mut pieces, mut at) = (Vec::new(), 0);
        for p in planned {
            let len = p.aligned_len();
            assert_eq!(p.bytes.len() as u64, p.plan.range.len(), "the plan of {:?} is for other bytes", p.plan.range);
            let whole = &mut buf[at..at + len];
            let pad = (p.plan.range.start - p.plan.aligned().start) as usize;
            whole[pad..pad + p.bytes.len()].copy_from_slice(p.bytes);
            let blocks: Vec<&[u8]> = p.edges.iter().map(|b| &**b).collect();
            amphi_data::complete_edges(&p.plan, whole, &blocks);
            if let Some(checksums) = self.target.checksums_of(whole, p.part.checksums) {
                p.plan.set_checksums(checksums);
            }
            let from = if planted::is(Mistake::ShiftedPart) { at.saturating_sub(BLOCK as usize) } else { at };
            self.push_segments(&p.plan, from, &mut pieces);
            at += len;
        }
        assert_eq!(at, buf.len(), "the parts of a batch fill its buffer");
        (buf, pieces)
    }

    /// `Request::CloseBatch`.
    pub fn close_batch(&self, closes: Vec<(Ino, Access, Option<Timespec>)>) -> Result<Reply> {
        if closes.len() > BATCH_PARTS_MAX {
            return Err(Errno::Inval);
        }
        self.close_each(&closes)
    }
}
