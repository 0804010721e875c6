//! Read, write, seek, punch, allocate and sync of one object.
//!
//! Owns: the order of lock, span, plan, disk and log for file data. Does not own: where blocks lie (`amphi_data`),
//! who may cache what (`amphi_dlm`).
//!
//! Invariants: the client's lock (or the target's own for a direct request) comes first, then log space (a flush does not
//! wait for it: what it frees may be what others wait for), then the span, then the plan; the session is looked at right before the disk is asked; a plan is committed or aborted before the
//! span is let go; a record that points at fresh blocks is appended when they are written, and says so
//! (`Order::AfterData`). The payload is written from where it
//! lies: only what belongs to a smaller segment, or lies at a foreign alignment, is copied.

use super::payload::{self, Piece};
use crate::counters::add;
use crate::cx::Cx;
use crate::gate::Hold;
use crate::landing::Landing;
use crate::locks::DirectLock;
use crate::span_gate::SpanGuard;
use crate::target::EXTENTS_A_RECORD;
use amphi_data::{DataStore, Preallocate, TrimPlan, WritePlan};
use amphi_dlm::Mode;
use amphi_env::{Buf, Disk, Env};
use amphi_types::item::Txn;
use amphi_types::limits::{BLOCK, FILE_MAX, PAYLOAD_MAX};
use amphi_types::{ByteRange, Errno, ObjectId, Result, SetAttr, Timespec};
use amphi_wire::Reply;
use amphi_zone::{Lsn, Order};
use futures_util::future::join_all;

/// Bytes of items that a write of `len` bytes may add: the object, and an extent for each run of blocks.
fn write_growth(len: u64) -> u64 {
    256 + len / BLOCK * 8
}

impl<E: Env> Cx<E> {
    pub(super) fn check_object(&self, object: ObjectId) -> Result<()> {
        // Stripe 0 lives with the inode; where other stripes live depends on the layout, which their owner knows.
        if object.stripe == 0 && object.ino.target() != self.target.id {
            return Err(Errno::Inval);
        }
        Ok(())
    }

    async fn lock(&self, object: ObjectId, mode: Mode, range: ByteRange, wanted: bool) -> Result<Option<DirectLock>> {
        if !wanted {
            return Ok(None);
        }
        self.target.recovered().await;
        self.alive()?;
        let now_ns = self.worker.now_ns();
        let sent = || self.worker.send_callbacks(&self.target);
        self.target.locks.direct(now_ns, self.session, object, mode, range, sent).await.map(Some)
    }

    /// The generation to go by. Locks order a request and a truncate by somebody else, so the request came wholly before or comes
    /// wholly after it, whatever its client knows of it. A mount that is alone truncates without locks: what it wrote back
    /// before with an older generation is refused.
    pub(super) fn generation(&self, object: ObjectId, known: u64, server_lock: bool) -> u64 {
        let ordered = server_lock || self.target.tokens.on();
        if ordered { known.max(self.target.data.borrow().generation(object)) } else { known }
    }

    pub(super) async fn span(&self, object: ObjectId, range: ByteRange, hold: Hold) -> SpanGuard {
        self.target.spans.take(object, range.align_out(BLOCK), hold).await
    }

    /// Plans with `plan`; if the zone is full but freed blocks wait, makes these usable and tries once more.
    pub(super) async fn plan<T>(&self, mut plan: impl FnMut(&mut DataStore) -> Result<T>) -> Result<T> {
        let first = plan(&mut self.target.data.borrow_mut());
        if !matches!(first, Err(Errno::NoSpace)) || self.target.data.borrow().pending_blocks() == 0 {
            return first;
        }
        self.target.release_now().await?;
        plan(&mut self.target.data.borrow_mut())
    }

    /// `Request::Read`.
    pub async fn read(&self, object: ObjectId, range: ByteRange, server_lock: bool) -> Result<(Reply, Option<Buf>)> {
        self.check_object(object)?;
        if range.len() > PAYLOAD_MAX as u64 || range.is_empty() || range.end > FILE_MAX {
            return Err(Errno::Inval);
        }
        let _lock = self.lock(object, Mode::Read, range, server_lock).await?;
        let _span = self.span(object, range, Hold::Shared).await;
        let plan = self.target.data.borrow().plan_read(object, range);
        if plan.is_hole() {
            return Ok((Reply::Data, None));
        }
        let aligned = plan.aligned();
        let from_block = aligned.start / BLOCK;
        let pad = (plan.range.start % BLOCK) as usize;
        let buf = Buf::scratch(aligned.len() as usize);
        let mut pieces: Vec<Piece> = Vec::with_capacity(plan.segments.len());
        for s in &plan.segments {
            let Some(physical) = s.physical else { continue };
            let at = ((s.file_block - from_block) * BLOCK) as usize;
            let len = (s.blocks * BLOCK) as usize;
            payload::push(&mut pieces, Piece { at, len, disk: self.target.block_address(physical) });
        }
        add(&self.worker.counters.data_reads, pieces.len() as u64);
        let (result, mut buf) = payload::read_pieces(&*self.target.disk, buf, &pieces).await;
        result.map_err(|e| self.target.disk_error("read", &e))?;
        buf.set_window(pad..pad + plan.range.len() as usize);
        add(&self.worker.counters.read_bytes, plan.range.len());
        Ok((Reply::Data, Some(buf)))
    }

    /// `Request::Write`.
    #[expect(clippy::too_many_arguments, reason = "the fields of the request")]
    pub async fn write(
        &self,
        object: ObjectId,
        offset: u64,
        generation: u64,
        mtime: Timespec,
        server_lock: bool,
        kill_suidgid: bool,
        payload: Option<Buf>,
    ) -> Result<Reply> {
        self.check_object(object)?;
        let mut payload = payload.filter(|p| !p.is_empty()).ok_or(Errno::Inval)?;
        let range = ByteRange::at(offset, payload.len() as u64);
        if range.end > FILE_MAX {
            return Err(Errno::FileTooBig);
        }
        let _lock = self.lock(object, Mode::Write, range, server_lock).await?;
        if server_lock {
            self.reserve(write_growth(range.len())).await?;
        } else {
            self.target.locks.progress(self.worker.now_ns(), self.session, object);
        }
        let _changing = self.change_unopened(object).await;
        let step = self.target.record_blocks_max() * BLOCK;
        if range.align_out(BLOCK).len() <= step {
            return self.write_step(object, range, generation, server_lock, mtime, kill_suidgid, payload, true).await;
        }
        // One record of a small log could not name all the blocks.
        let mut at = range.start;
        loop {
            let end = range.end.min(at / step * step + step);
            let part = payload.split_to((end - at) as usize);
            let last = end == range.end;
            let one = ByteRange::new(at, end);
            let reply = self.write_step(object, one, generation, server_lock, mtime, kill_suidgid, part, last).await?;
            if last {
                return Ok(reply);
            }
            at = end;
        }
    }

    /// Writes what fits one record; the last step of a request is logged with its answer.
    #[expect(clippy::too_many_arguments, reason = "the fields of the request")]
    async fn write_step(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        server_lock: bool,
        mtime: Timespec,
        kill_suidgid: bool,
        payload: Buf,
        last: bool,
    ) -> Result<Reply> {
        let span = self.span(object, range, Hold::Exclusive).await;
        if object.stripe == 0 {
            self.target.check_file(object.ino)?;
        }
        let generation = self.generation(object, generation, server_lock);
        // Another mount may read before this request is sent again after a crash: it must not find half of it.
        let all_fresh = self.target.tokens.on();
        let plan = self.plan(|data| data.plan_write(object, range, generation, all_fresh)).await?;
        let landing = match self.write_plan(&plan, payload).await {
            Ok(landing) => landing,
            Err(e) => {
                self.target.data.borrow_mut().abort_write(plan);
                return Err(e);
            }
        };
        let order = if plan.points_at_new_data() { Order::AfterData } else { Order::Plain };
        let reply = Reply::Written;
        let lsn = {
            let mut txn = Txn::default();
            let freed = self.target.data.borrow_mut().commit_write(plan, mtime, &mut txn);
            if object.stripe == 0 {
                self.note_write(object, kill_suidgid, &mut txn);
            }
            let lsn = match last {
                true => self.append(txn, order, &reply, None),
                false => self.target.append(txn, order),
            };
            self.target.release_later(lsn, freed);
            lsn
        };
        drop((span, landing));
        self.target.zone.written(lsn).await?;
        add(&self.worker.counters.write_bytes, range.len());
        Ok(reply)
    }

    /// The old blocks that the plan wants to keep bytes of.
    pub(super) async fn read_edges(&self, plan: &WritePlan) -> Result<Vec<Buf>> {
        let disk = &*self.target.disk;
        let edges = join_all(plan.edges.iter().map(|edge| {
            let at = self.target.block_address(edge.physical);
            async move {
                let (result, block) = disk.read(at, Buf::zeroed(BLOCK as usize)).await;
                result.map(|()| block)
            }
        }))
        .await;
        let edges: Vec<Buf> =
            edges.into_iter().collect::<std::io::Result<_>>().map_err(|e| self.target.disk_error("read", &e))?;
        add(&self.worker.counters.edge_reads, edges.len() as u64);
        Ok(edges)
    }

    /// Adds where the plan's whole blocks go, which begin `base` bytes into a buffer.
    pub(super) fn push_segments(&self, plan: &WritePlan, base: usize, pieces: &mut Vec<Piece>) {
        let from_block = plan.aligned().start / BLOCK;
        for s in &plan.segments {
            let at = base + ((s.file_block - from_block) * BLOCK) as usize;
            let len = (u64::from(s.blocks) * BLOCK) as usize;
            payload::push(pieces, Piece { at, len, disk: self.target.block_address(s.physical) });
        }
    }

    async fn write_plan(&self, plan: &WritePlan, payload: Buf) -> Result<Landing> {
        let edges = self.read_edges(plan).await?;
        let aligned = plan.aligned();
        let (mut buf, copied) = payload::widen(payload, (plan.range.start - aligned.start) as usize, aligned.len());
        if copied {
            add(&self.worker.counters.write_copied, plan.range.len());
        }
        let blocks: Vec<&[u8]> = edges.iter().map(|b| &**b).collect();
        amphi_data::complete_edges(plan, &mut buf, &blocks);
        let mut pieces: Vec<Piece> = Vec::with_capacity(plan.segments.len());
        self.push_segments(plan, 0, &mut pieces);
        // The last look before the disk: what an ended session sent is not written.
        let landing = self.land()?;
        add(&self.worker.counters.data_writes, pieces.len() as u64);
        payload::write_pieces(&*self.target.disk, buf, &pieces)
            .await
            .map_err(|e| self.target.disk_error("write", &e))?;
        Ok(landing)
    }

    /// Brings the inode up to a change of stripe 0, which lies beside it.
    pub(super) fn note_write(&self, object: ObjectId, kill_suidgid: bool, txn: &mut Txn) {
        let ino = object.ino;
        let mut meta = self.target.meta.borrow_mut();
        let Ok((wide, spread)) = meta.inode(ino).map(|i| (i.wide, i.spread)) else { return };
        // The inode was looked at when the span was taken, and an inode whose object is busy is not removed.
        let noted = if !wide {
            meta.settle(ino, &self.target.gathered(ino), txn)
        } else if !spread {
            meta.mark_spread(ino, txn)
        } else {
            Ok(())
        };
        debug_assert!(noted.is_ok(), "the inode is a file");
        if kill_suidgid {
            let set = SetAttr { kill_suidgid: true, ..SetAttr::default() };
            // Dropping privileges needs none.
            let _ = meta.setattr(&self.cred, ino, &set, self.now, txn);
        }
    }

    /// `Request::Punch`.
    pub async fn punch(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        mtime: Timespec,
        server_lock: bool,
    ) -> Result<Reply> {
        self.check_object(object)?;
        let _lock = self.lock(object, Mode::Write, range, server_lock).await?;
        self.reserve(0).await?;
        let _changing = self.change_unopened(object).await;
        let _span = self.span(object, range, Hold::Exclusive).await;
        if object.stripe == 0 {
            self.target.check_file(object.ino)?;
        }
        let _landing = self.land()?;
        let generation = self.generation(object, generation, true);
        let mut at = range.start;
        while let Some(end) = self.target.extents_end(object, at, EXTENTS_A_RECORD).filter(|&e| e < range.end) {
            let (lsn, _) = self.target.punch_part(object, ByteRange::new(at, end), generation, mtime).await?;
            self.target.zone.written(lsn).await?;
            at = end;
        }
        let rest = ByteRange::new(at, range.end);
        let plan = self.plan(|data| data.plan_punch(object, rest, generation)).await?;
        let plan = self.rewrite_edges(plan).await?;
        let order = if plan.points_at_new_data() { Order::AfterData } else { Order::Plain };
        let lsn = {
            let mut txn = Txn::default();
            let freed = self.target.data.borrow_mut().commit_trim(plan, mtime, &mut txn);
            if object.stripe == 0 {
                self.note_write(object, false, &mut txn);
            }
            let lsn = self.append(txn, order, &Reply::Done, None);
            self.target.release_later(lsn, freed);
            lsn
        };
        self.target.zone.written(lsn).await?;
        Ok(Reply::Done)
    }

    async fn rewrite_edges(&self, plan: TrimPlan) -> Result<TrimPlan> {
        self.target.rewrite_edges(plan).await
    }

    /// `Request::Allocate`.
    pub async fn allocate(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        server_lock: bool,
    ) -> Result<Reply> {
        self.check_object(object)?;
        if range.end > FILE_MAX || range.is_empty() {
            return Err(Errno::FileTooBig);
        }
        let _lock = self.lock(object, Mode::Write, range, server_lock).await?;
        let _changing = self.change_unopened(object).await;
        let _span = self.span(object, range, Hold::Exclusive).await;
        if object.stripe == 0 {
            self.target.check_file(object.ino)?;
        }
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
            self.plan(|data| data.allocate(object, part, generation, Preallocate::KeepEnd, &mut txn)).await?;
            if object.stripe == 0 {
                self.note_write(object, false, &mut txn);
            }
            last = if end == range.end {
                self.append(txn, Order::Plain, &Reply::Done, None)
            } else {
                self.target.append(txn, Order::Plain)
            };
            at = end;
        }
        self.target.zone.written(last).await?;
        Ok(Reply::Done)
    }

    /// `Request::Seek`.
    pub async fn seek(&self, object: ObjectId, offset: u64, hole: bool) -> Result<Reply> {
        self.check_object(object)?;
        Ok(Reply::Offset(self.target.data.borrow().seek(object, offset, hole)))
    }

    /// `Request::Sync`.
    pub async fn sync(&self) -> Result<Reply> {
        self.target.zone.sync().await?;
        Ok(Reply::Done)
    }
}
