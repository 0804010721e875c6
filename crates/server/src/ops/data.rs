//! Read, write and sync of one object.
//!
//! Owns: the order of lock, span, plan, disk and log for file data. Does not own: the choice of blocks (`amphi_data`),
//! which mount may cache what (`amphi_dlm`), holes and preallocated blocks (`allocate`).
//!
//! Invariants: the order is: the client's lock (or the target's own for a direct request), log space, the span, the
//! plan. A flush does not wait for log space, because others may wait for the space that it frees. The session is
//! checked right before the disk operation. A plan is committed or aborted before the span is released. A record that
//! points at fresh blocks is appended after these are written, and is marked so (`Order::AfterData`). The payload is
//! written from the buffer in which it arrived: only bytes of a smaller segment, or with another alignment, are copied.

use super::accept::Accepting;
use crate::coherence::locks::DirectLock;
use crate::counters::add;
use crate::planted::{self, Mistake};
use crate::session::in_flight::InFlight;
use crate::session::rights::Touch;
use crate::tunables::Tunable;
use crate::worker::request::RequestCx;
use crate::zone_target::gate::Hold;
use crate::zone_target::shared_blocks::{Edge, Image};
use crate::zone_target::span_gate::SpanGuard;
use amphi_data::{Checksum, DataStore, Fresh, WritePlan};
use amphi_dlm::Mode;
use amphi_env::{Buf, Env};
use amphi_object::Piece;
use amphi_types::item::Txn;
use amphi_types::limits::{BLOCK, FILE_MAX, PAYLOAD_MAX};
use amphi_types::{ByteRange, DataChecksums, Errno, Ino, ObjectId, Result, SessionId, SetAttr, Timespec};
use amphi_wire::{Cover, ReadAdvice, Reply};
use amphi_zone::Order;
use futures_util::future::join_all;
use smallvec::SmallVec;
use std::cell::Cell;

/// The new contents of the blocks at the edges of a write.
type Images = SmallVec<[Image; 2]>;

/// A plan that has been written.
struct Written {
    landing: InFlight,
    images: Images,
    /// The contents on which the new edge blocks are based.
    bases: SmallVec<[Option<Image>; 2]>,
}

/// The result of one step of a write.
pub(super) enum Step {
    /// The step is done.
    Done(Reply),
    /// There is no space for the step. Nothing has changed; these are the bytes of the step.
    Full(Buf),
}

/// The blocks that a step may use as new ones.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// Only free blocks.
    Free,
    /// Reserved blocks too, for overwrites only.
    Kept,
}

/// How a write is carried out, as its request says.
#[derive(Clone, Copy)]
pub(super) struct WriteKind {
    /// The target locks for the write.
    pub server_lock: bool,
    /// The time of the write.
    pub mtime: Timespec,
    /// Setuid and setgid are cleared.
    pub kill_suidgid: bool,
    /// Whether the blocks get checksums.
    pub checksums: DataChecksums,
    /// Whether the session of the write was granted the blocks.
    pub cover: Cover,
}

/// Bytes of items that a write of `len` bytes may add: the object, an extent for each run of blocks, checksums.
pub(super) fn write_growth(len: u64) -> u64 {
    600 + len / BLOCK * 13
}

impl<E: Env> RequestCx<E> {
    pub(super) async fn lock(
        &self,
        object: ObjectId,
        mode: Mode,
        range: ByteRange,
        wanted: bool,
    ) -> Result<Option<DirectLock>> {
        if !wanted {
            return Ok(None);
        }
        self.target.recovered().await;
        self.alive()?;
        let now_ns = self.worker.now_ns();
        let sent = || self.worker.send_callbacks(&self.target);
        self.target.coherence.locks.direct(now_ns, self.session, object, mode, range, sent).await.map(Some)
    }

    /// The truncate generation that applies to a request. Locks order a request and a truncate by another client. So
    /// the request is entirely before or entirely after the truncate, whatever generation its client knows. A mount in
    /// sole mode truncates without locks: a write-back from before the truncate, with an older generation, is refused.
    pub(super) fn generation(&self, object: ObjectId, known: u64, server_lock: bool) -> u64 {
        let ordered = server_lock || self.target.coherence.tokens.on();
        if ordered { known.max(self.target.data.borrow().generation(object)) } else { known }
    }

    pub(super) async fn span(&self, object: ObjectId, range: ByteRange, hold: Hold) -> SpanGuard {
        self.target.queues.spans.take(object, range.align_out(BLOCK), hold).await
    }

    /// See `Target::plan`.
    pub(super) async fn plan<T>(&self, plan: impl FnMut(&mut DataStore) -> Result<T>) -> Result<T> {
        self.target.plan(plan).await
    }

    /// `Request::Read`.
    pub async fn read(
        &self,
        object: ObjectId,
        range: ByteRange,
        server_lock: bool,
        advice: ReadAdvice,
    ) -> Result<(Reply, Option<Buf>)> {
        self.check_object(object, Touch::Look).await?;
        if range.len() > PAYLOAD_MAX as u64 || range.is_empty() || range.end > FILE_MAX {
            return Err(Errno::Inval);
        }
        let _lock = self.lock(object, Mode::Read, range, server_lock).await?;
        let _span = self.span(object, range, Hold::Shared).await;
        let plan = self.target.data.borrow().plan_read(object, range);
        add(&self.worker.counters.read_delayed_bytes, plan.overlays.iter().map(|o| o.range.len()).sum());
        if plan.is_hole() {
            return Ok((Reply::Data, None));
        }
        let pad = (plan.range.start % BLOCK) as usize;
        let mut buf = self.read_blocks(object, &plan, advice).await?;
        self.target.overlay(&plan, &mut buf)?;
        buf.set_window(pad..pad + plan.range.len() as usize);
        add(&self.worker.counters.read_bytes, plan.range.len());
        Ok((Reply::Data, Some(buf)))
    }

    /// `Request::Write`.
    pub(super) async fn write(
        &self,
        object: ObjectId,
        offset: u64,
        generation: u64,
        kind: WriteKind,
        payload: Option<Buf>,
    ) -> Result<Reply> {
        self.check_object(object, Touch::Change).await?;
        let kind = WriteKind { kill_suidgid: kind.kill_suidgid || self.is_for_a_user(), ..kind };
        let payload = payload.filter(|p| !p.is_empty()).ok_or(Errno::Inval)?;
        let range = ByteRange::at(offset, payload.len() as u64);
        if range.end > FILE_MAX {
            return Err(Errno::FileTooBig);
        }
        let mut since_ns = self.worker.now_ns();
        self.target.make_way().await;
        let _lock = self.lock(object, Mode::Write, range, kind.server_lock).await?;
        if kind.server_lock {
            self.reserve(write_growth(range.len())).await?;
        } else {
            self.target.coherence.locks.progress(self.worker.now_ns(), self.session, object);
        }
        let _changing = self.change_unopened(object).await;
        self.lap(&mut since_ns, &self.worker.counters.write_wait_ns);
        let _changed = self.overwriting(object.ino, range);
        self.write_steps(object, range, generation, kind, payload, true).await
    }

    /// Writes in as many steps as necessary. `last`: nothing else of the request follows.
    pub(super) async fn write_steps(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        kind: WriteKind,
        mut payload: Buf,
        last: bool,
    ) -> Result<Reply> {
        assert_eq!(payload.len() as u64, range.len(), "{object:?}: a write of {range:?} comes with its bytes");
        let step = self.target.record_blocks_max() * BLOCK;
        if range.align_out(BLOCK).len() <= step {
            return self.write_record(object, range, generation, kind, payload, last).await;
        }
        // One record of a small log could not name all the blocks.
        let mut at = range.start;
        loop {
            let end = range.end.min(at / step * step + step);
            let part = payload.split_to((end - at) as usize);
            let is_end = end == range.end;
            let (one, ends) = (ByteRange::new(at, end), is_end && last);
            let reply = self.write_record(object, one, generation, kind, part, ends).await?;
            if is_end {
                return Ok(reply);
            }
            at = end;
        }
    }

    /// Writes the part that fits into one record.
    async fn write_record(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        kind: WriteKind,
        payload: Buf,
        last: bool,
    ) -> Result<Reply> {
        match self.write_step(object, range, generation, kind, payload, last, Room::Free).await? {
            Step::Done(reply) => Ok(reply),
            Step::Full(payload) => Box::pin(self.write_full(object, range, generation, kind, payload, last)).await,
        }
    }

    /// Writes the part that fits into one record. The last step of a request is logged with its answer.
    #[expect(clippy::too_many_arguments, reason = "the parts of a request, and where it stands")]
    pub(super) async fn write_step(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        kind: WriteKind,
        payload: Buf,
        last: bool,
        room: Room,
    ) -> Result<Step> {
        let mut since_ns = self.worker.now_ns();
        let WriteKind { mtime, kill_suidgid, checksums, cover, .. } = kind;
        let (span, admitted) = loop {
            let span = self.target.queues.spans.take_bytes(object, range).await;
            if self.check_again(object)? {
                let admitted = self.admit_write(object, range, cover).await?;
                if self.check_again(object)? {
                    break (span, admitted);
                }
            }
            drop(span);
            self.check_object(object, Touch::Change).await?;
        };
        let generation = self.generation(object, generation, kind.server_lock);
        if room == Room::Free && self.target.storage.below.is_anyone_alone() {
            return Ok(Step::Full(payload));
        }
        let write = Accepting { object, range, generation, mtime, kill_suidgid, checksums, cover, is_together: false };
        if let Some((lsn, reply)) = self.accept(&write, &payload, last) {
            drop((span, admitted));
            self.kept(lsn).await?;
            self.lap(&mut since_ns, &self.worker.counters.write_log_ns);
            add(&self.worker.counters.write_bytes, range.len());
            return Ok(Step::Done(reply));
        }
        let edges = self.target.queues.shared_blocks.enter(object, range);
        self.target.storage.below.mind(&self.target, range.len());
        let mut plan = match self.plan_behind(object, range, generation, &edges, room, self.holder(cover)).await {
            Ok(plan) => plan,
            Err(Errno::NoSpace) => return Ok(Step::Full(payload)),
            Err(e) => return Err(e),
        };
        self.lap(&mut since_ns, &self.worker.counters.write_wait_ns);
        let written = match self.write_plan(&mut plan, payload, checksums, &edges, &mut since_ns).await {
            Ok(written) => self.in_turn(&mut plan, &edges, written).await,
            Err(e) => Err(e),
        };
        let (landing, images) = match written {
            Ok(written) => written,
            Err(e) => {
                self.target.data.borrow_mut().abort_write(plan);
                return Err(e);
            }
        };
        assert_eq!(images.len(), edges.len(), "{object:?}: each shared block of {range:?} has its copy");
        let disk_ns = self.lap(&mut since_ns, &self.worker.counters.write_disk_ns);
        self.worker.counters.histograms.write.disk_us.note(disk_ns / 1000);
        let follows = self.target.data.borrow().follows_data(&plan) && !planted::is(Mistake::UnorderedWrite);
        let order = if follows { Order::AfterData } else { Order::Plain };
        let reply = Reply::Written { roomy: self.is_roomy() };
        let lsn = {
            let mut txn = Txn::default();
            self.target.counts.unstable.written(object, range.len());
            let places: SmallVec<[_; 2]> = edges.iter().map(|e| plan.physical(e.block())).collect();
            let freed = {
                let mut data = self.target.data.borrow_mut();
                let freed = data.commit_write(plan, mtime, &mut txn);
                drop(admitted);
                for ((edge, image), physical) in edges.iter().zip(images).zip(places) {
                    physical.into_iter().for_each(|p| data.recent.put(object, edge.block(), p, image.clone()));
                }
                freed
            };
            edges.into_iter().for_each(Edge::finish);
            self.own(object);
            if object.stripe == 0 {
                self.note_write(object, kill_suidgid, &mut txn);
            }
            let lsn = match last {
                true => self.append(txn, order, &reply, None),
                false => self.target.append(txn, order),
            };
            self.target.release_later(lsn, freed);
            self.top_up(cover);
            lsn
        };
        drop((span, landing));
        self.target.zone.kept(lsn).await?;
        self.lap(&mut since_ns, &self.worker.counters.write_log_ns);
        add(&self.worker.counters.write_bytes, range.len());
        Ok(Step::Done(reply))
    }

    /// Returns whether free space is so ample that mounts may let writes return before they are answered.
    pub(super) fn is_roomy(&self) -> bool {
        let mounts = self.target.sessions.count() as u64;
        let wanted = self.worker.tunables.get(Tunable::RoomyBytes).saturating_mul(mounts + 1);
        let granted = self.target.data.borrow().grants.total();
        self.target.free_blocks(false).saturating_sub(granted) * BLOCK >= wanted
    }

    /// How writes are planned. Another mount may read after a crash, before the request is sent again, and must not
    /// find half of the write.
    pub(super) fn fresh(&self) -> Fresh {
        if self.target.coherence.tokens.on() { Fresh::Written } else { Fresh::Needed }
    }

    /// Adds the time since `since_ns` to one part of the time of a write, and returns it in ns. The next part begins
    /// now.
    fn lap(&self, since_ns: &mut u64, part: &Cell<u64>) -> u64 {
        let now_ns = self.worker.now_ns();
        let passed = now_ns.saturating_sub(*since_ns);
        add(part, passed);
        add(&self.worker.counters.write_ns, passed);
        *since_ns = now_ns;
        passed
    }

    /// Plans a write that may have other writes before it in the blocks at its edges.
    async fn plan_behind(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        edges: &[Edge],
        room: Room,
        holder: Option<SessionId>,
    ) -> Result<WritePlan> {
        if edges.iter().any(Edge::follows) {
            let plan = self.plan(|data| data.plan_write(object, range, generation, Fresh::Edges, holder)).await;
            if !matches!(plan, Err(Errno::NoSpace)) {
                return plan;
            }
            // Reserved blocks can be filled where they are as soon as the others have filled theirs.
            for edge in edges {
                edge.turn().await;
            }
        }
        match room {
            Room::Free => self.plan_write(object, range, generation, holder).await,
            Room::Kept => self.plan_overwrite(object, range, generation, holder).await,
        }
    }

    /// Plans a write of bytes that the caller holds.
    pub(super) async fn plan_write(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        holder: Option<SessionId>,
    ) -> Result<WritePlan> {
        let fresh = self.fresh();
        self.plan(|data| data.plan_write(object, range, generation, fresh, holder)).await
    }

    /// Reads the old blocks of which the plan keeps some bytes: from the images of recent writes, or from the disk.
    pub(super) async fn read_edges(&self, plan: &WritePlan) -> Result<Vec<Image>> {
        let recent = |edge: &amphi_data::Edge| {
            self.target.data.borrow().recent.get(plan.object, edge.file_block, edge.physical).cloned()
        };
        let edges = join_all(plan.edges.iter().map(|edge| {
            let recent = recent(edge);
            async move {
                if let Some(image) = recent {
                    return Ok(image);
                }
                let block = self.target.sound_block(plan.object, edge.file_block, edge.physical).await?;
                Ok(Image::from(&*block))
            }
        }))
        .await;
        edges.into_iter().collect()
    }

    /// Adds the places of the plan's whole blocks, which begin `base` bytes into a buffer.
    pub(super) fn push_segments(&self, plan: &WritePlan, base: usize, pieces: &mut Vec<Piece>) {
        let from_block = plan.aligned().start / BLOCK;
        for s in &plan.segments {
            let at = base + ((s.file_block - from_block) * BLOCK) as usize;
            let len = (u64::from(s.blocks) * BLOCK) as usize;
            amphi_object::push(pieces, Piece { at, len, disk: self.target.block_address(s.physical) });
        }
    }

    /// Waits until a written plan may be committed. If a block at the edge contains bytes of another write that has
    /// failed since, it is written once more without them. Returns the final content of the blocks at the edges.
    async fn in_turn(&self, plan: &mut WritePlan, edges: &[Edge], written: Written) -> Result<(InFlight, Images)> {
        for edge in edges.iter().filter(|_| !planted::is(Mistake::CommitOutOfTurn)) {
            edge.turn().await;
        }
        let Written { landing, mut images, bases } = written;
        for ((edge, image), base) in edges.iter().zip(&mut images).zip(bases) {
            if planted::is(Mistake::ForgottenNeighbour) || !edge.is_outdated(base.as_ref()) {
                continue;
            }
            let (block, start) = (edge.block(), edge.block() * BLOCK);
            let mut whole = self.committed_block(plan.object, block).await?;
            let own = plan.range.start.max(start) - start..plan.range.end.min(start + BLOCK) - start;
            let own = own.start as usize..own.end as usize;
            whole[own.clone()].copy_from_slice(&image[own]);
            *image = Image::from(&*whole);
            edge.publish(image.clone());
            // If the block is based on another write, it gets a new place.
            let Some(physical) = plan.physical(block) else { continue };
            plan.set_checksum(block, Checksum::of(&whole));
            let result = self.target.storage.disk.write_block(physical, whole).await;
            result.map_err(|e| self.target.disk_error("write", &e))?;
        }
        Ok((landing, images))
    }

    /// The present content of a block of an object.
    async fn committed_block(&self, object: ObjectId, block: u64) -> Result<Buf> {
        let plan = self.target.data.borrow().plan_disk_read(object, ByteRange::at(block * BLOCK, BLOCK));
        let mut whole = Buf::zeroed(BLOCK as usize);
        if let Some(physical) = plan.segments.first().and_then(|s| s.physical) {
            whole = self.target.sound_block(object, block, physical).await?;
            whole[plan.range.len() as usize..].fill(0);
        }
        Ok(whole)
    }

    /// Writes what was planned.
    async fn write_plan(
        &self,
        plan: &mut WritePlan,
        payload: Buf,
        checksums: DataChecksums,
        edges: &[Edge],
        since_ns: &mut u64,
    ) -> Result<Written> {
        assert_eq!(payload.len() as u64, plan.range.len(), "the plan of {:?} is for other bytes", plan.range);
        let mut blocks = self.read_edges(plan).await?;
        let mut bases = SmallVec::new();
        for edge in edges.iter().filter(|_| !planted::is(Mistake::ForgottenNeighbour)) {
            let base = edge.base().await;
            bases.push(base.clone());
            if let Some(base) = base {
                blocks =
                    plan.edges.iter().zip(blocks).filter(|(e, _)| e.file_block != edge.block()).map(|p| p.1).collect();
                plan.build_on(edge.block());
                blocks.push(base);
            }
        }
        let aligned = plan.aligned();
        let (mut buf, copied) =
            amphi_object::widen(payload, (plan.range.start - aligned.start) as usize, aligned.len());
        assert_eq!(buf.len() as u64, aligned.len(), "a write of {:?} was not widened to whole blocks", plan.range);
        if copied {
            add(&self.worker.counters.write_copied, plan.range.len());
        }
        let blocks: SmallVec<[&[u8]; 2]> = blocks.iter().map(|b| &**b).collect();
        // Whole blocks may be shared with a client in this process, and need no copy.
        if plan.range != aligned {
            amphi_data::complete_edges(plan, &mut buf, &blocks);
        }
        let mut pieces: Vec<Piece> = Vec::with_capacity(plan.segments.len());
        self.push_segments(plan, 0, &mut pieces);
        // The last check before the disk, and before other writes are based on this one: a write of an ended session is
        // not executed.
        let landing = self.land()?;
        let mut images = Images::new();
        for edge in edges {
            let at = (edge.block() * BLOCK - aligned.start) as usize;
            let image = Image::from(&buf[at..at + BLOCK as usize]);
            edge.publish(image.clone());
            images.push(image);
        }
        self.lap(since_ns, &self.worker.counters.write_edges_ns);
        add(&self.worker.counters.data_writes, pieces.len() as u64);
        self.worker.counters.histograms.write.note(plan.range.len(), pieces.iter().map(|p| p.len));
        let look = |bytes: &[u8]| self.target.checksums_of(bytes, checksums);
        let written = self.target.storage.disk.write_pieces_aside(buf, &pieces, look).await;
        if let Some(checksums) = written.map_err(|e| self.target.disk_error("write", &e))? {
            plan.set_checksums(checksums);
        }
        Ok(Written { landing, images, bases })
    }

    /// Returns whether the request comes from a client that acts for one user only, so that every write clears setuid
    /// and setgid bits. Mounts that act for all users name root here, and clear the bits themselves.
    pub(super) fn is_for_a_user(&self) -> bool {
        self.cred.uid != 0
    }

    /// Updates the inode after a change of stripe 0, which is on the same target.
    pub(super) fn note_write(&self, object: ObjectId, kill_suidgid: bool, txn: &mut Txn) {
        let ino = object.ino;
        // The inode was checked when the span was taken, and an inode whose object is in use is not removed.
        self.target.note_landed(ino, txn);
        if kill_suidgid {
            let mut meta = self.target.meta.borrow_mut();
            let set = SetAttr { kill_suidgid: true, open_for_write: true, ..SetAttr::default() };
            let _ = meta.setattr(&self.cred, ino, &set, self.now, txn);
        }
    }

    /// `Request::Sync`.
    pub async fn sync(&self, file: Option<Ino>) -> Result<Reply> {
        if file.is_some_and(|file| self.target.meta.borrow().is_sharded(file)) {
            // The names of the directory are elsewhere.
            return Err(Errno::Remote);
        }
        if !planted::is(Mistake::UnflushedSync) {
            self.target.secure_delayed(file).await?;
        }
        self.target.zone.sync().await?;
        Ok(Reply::Done)
    }
}
