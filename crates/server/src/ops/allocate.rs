//! Punch, allocate, and where an object has data.
//!
//! Owns: the order of lock, span, plan and log for holes and for blocks without bytes. Does not own: the choice of
//! blocks (`amphi_data`), bytes (`data`, whose invariants hold here too).

use super::data::write_growth;
use crate::session::rights::Touch;
use crate::worker::request::RequestCx;
use crate::zone_target::EXTENTS_A_RECORD;
use crate::zone_target::gate::Hold;
use crate::zone_target::span_gate::SpanGuard;
use amphi_data::{Extent, Preallocate};
use amphi_dlm::Mode;
use amphi_env::Env;
use amphi_types::item::Txn;
use amphi_types::limits::{BLOCK, FILE_MAX};
use amphi_types::{ByteRange, Errno, ObjectId, Result, Timespec};
use amphi_wire::{Cover, DATA_RUNS_MAX, EXTENTS_MAX, ExtentView, Reply};
use amphi_zone::{Lsn, Order};

impl<E: Env> RequestCx<E> {
    /// `Request::Punch`.
    pub async fn punch(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        mtime: Timespec,
        server_lock: bool,
    ) -> Result<Reply> {
        self.check_object(object, Touch::Change).await?;
        let _lock = self.lock(object, Mode::Write, range, server_lock).await?;
        self.reserve(if self.splits(object, range) { 256 } else { 0 }).await?;
        let _changing = self.change_unopened(object).await;
        let _span = loop {
            let span = self.span_flushed(object, range).await?;
            if self.check_again(object)? {
                break span;
            }
            drop(span);
            self.check_object(object, Touch::Change).await?;
        };
        let _landing = self.land()?;
        let _changed = self.overwriting(object.ino, range);
        let generation = self.generation(object, generation, true);
        let mut at = range.start;
        while let Some(end) = self.target.extents_end(object, at, EXTENTS_A_RECORD).filter(|&e| e < range.end) {
            let (lsn, _) = self.target.punch_part(object, ByteRange::new(at, end), generation, mtime).await?;
            self.target.zone.kept(lsn).await?;
            at = end;
        }
        let rest = ByteRange::new(at, range.end);
        let plan = self.plan(|data| data.plan_punch(object, rest, generation)).await?;
        let plan = self.target.rewrite_edges(plan).await?;
        let order = if plan.points_at_new_data() { Order::AfterData } else { Order::Plain };
        let lsn = {
            let mut txn = Txn::default();
            let freed = self.target.data.borrow_mut().commit_trim(plan, mtime, &mut txn);
            if object.stripe == 0 {
                self.note_write(object, self.is_for_a_user(), &mut txn);
            }
            let lsn = self.append(txn, order, &Reply::Done, None);
            self.target.release_later(lsn, freed);
            lsn
        };
        self.target.zone.kept(lsn).await?;
        Ok(Reply::Done)
    }

    /// A span for a change of `range`, taken so that the object has no delayed bytes beyond it. A hole does not move
    /// the object's end, so this end has to be on the disk.
    async fn span_flushed(&self, object: ObjectId, range: ByteRange) -> Result<SpanGuard> {
        loop {
            let has = self.target.data.borrow().delayed.has(object);
            let span = self.span(object, if has { ByteRange::ALL } else { range }, Hold::Exclusive).await;
            if has {
                self.target.flush_held(object, ByteRange::ALL).await?;
                return Ok(span);
            }
            if !self.target.data.borrow().delayed.has(object) {
                return Ok(span);
            }
        }
    }

    /// Returns whether a hole leaves an extent on both of its sides.
    fn splits(&self, object: ObjectId, hole: ByteRange) -> bool {
        let data = self.target.data.borrow();
        data.extents(object).any(|(b, e)| b * BLOCK < hole.start && hole.end < (b + u64::from(e.blocks)) * BLOCK)
    }

    /// `Request::Allocate`.
    pub async fn allocate(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        mtime: Timespec,
        server_lock: bool,
    ) -> Result<Reply> {
        self.check_object(object, Touch::Change).await?;
        if range.end > FILE_MAX || range.is_empty() {
            return Err(Errno::FileTooBig);
        }
        let _lock = self.lock(object, Mode::Write, range, server_lock).await?;
        let _changing = self.change_unopened(object).await;
        let _span = loop {
            let span = self.span(object, range, Hold::Exclusive).await;
            if self.check_again(object)? {
                break span;
            }
            drop(span);
            self.check_object(object, Touch::Change).await?;
        };
        let _landing = self.land()?;
        let generation = self.generation(object, generation, true);
        let step = self.target.record_blocks_max() * BLOCK;
        let mut at = range.start;
        let mut last = Lsn(0);
        while at < range.end {
            let end = range.end.min(at / step * step + step);
            self.reserve(write_growth(end - at) / 16).await?;
            let part = ByteRange::new(at, end);
            let mut txn = Txn::default();
            self.target.storage.below.mind(&self.target, part.len());
            let how = Preallocate::KeepEnd;
            let _admitted = self.admit_write(object, part, Cover::None).await?;
            self.plan_growth(|data| data.allocate(object, part, generation, how, mtime, &mut txn)).await?;
            self.own(object);
            if object.stripe == 0 {
                self.note_write(object, self.is_for_a_user(), &mut txn);
            }
            last = if end == range.end {
                self.append(txn, Order::Plain, &Reply::Done, None)
            } else {
                self.target.append(txn, Order::Plain)
            };
            at = end;
        }
        self.target.zone.kept(last).await?;
        Ok(Reply::Done)
    }

    /// `Request::DataMap`.
    pub async fn data_map(&self, object: ObjectId, offset: u64, runs_max: u32) -> Result<Reply> {
        self.check_object(object, Touch::Look).await?;
        let runs_max = runs_max.clamp(1, DATA_RUNS_MAX) as usize;
        let (runs, known_to) = self.target.data.borrow().data_runs(object, offset, runs_max);
        Ok(Reply::DataMap { runs, known_to })
    }

    /// `Request::Extents`.
    pub async fn extents(&self, object: ObjectId, offset: u64, extents_max: u32) -> Result<Reply> {
        self.check_object(object, Touch::Look).await?;
        let most = extents_max.min(EXTENTS_MAX) as usize;
        let data = self.target.data.borrow();
        let view = |(block, extent): (u64, Extent)| ExtentView {
            offset: block * BLOCK,
            len: u64::from(extent.blocks) * BLOCK,
            address: self.target.block_address(extent.physical),
            written: extent.written,
        };
        let mut found = data.extents(object).map(view).filter(|e| e.offset + e.len > offset);
        let extents: Vec<ExtentView> = found.by_ref().take(most).collect();
        let more = found.next().is_some();
        let (total, bytes) = data.extents(object).fold((0, 0), |(n, sum), e| (n + 1, sum + view(e).len));
        let accepted = data.delayed.unlogged_bytes_of(object);
        let unsynced = self.target.counts.unstable.bytes_of(object, self.target.zone.stable_lsn());
        Ok(Reply::Extents { total, bytes, extents, more, accepted, unsynced })
    }
}
