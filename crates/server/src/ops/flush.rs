//! Flushing: bytes that were accepted into memory get their blocks.
//!
//! Owns: how a unit is written, which unit is flushed next, and the agent that does this. Does not own: the delayed
//! bytes (`amphi_data::Delayed`), the memory (`write_back`).
//!
//! A unit of 1 MiB that is delayed as a whole is flushed at once. Other bytes are flushed when they are old enough,
//! when the memory is half full, and for callers of `fsync`. All delayed bytes of a unit get their blocks together, in
//! one piece if there is one. They are written with as few disk requests as the blocks permit, and are one record.
//!
//! Invariants: a flush locks its blocks exclusively. A flush overwrites existing blocks in place even while other
//! mounts read them. Until its record is kept, the log refers to the bytes in memory, and a restarted server writes
//! them again before it serves any request. If a disk write fails, it is tried once more on other blocks. If that fails
//! too, the bytes stay in memory and are flushed later. Meanwhile an `fsync` that needs them reports the failure. At
//! most `FLUSHES_MAX` units of a target are in flight for each caller that flushes.

use super::names::plain_view;
use crate::counters::add;
use crate::planted::{self, Mistake};
use crate::zone_target::Target;
use amphi_data::{Checksum, Freed, Fresh, Overlay, UNIT, WritePlan};
use amphi_env::{Buf, Env};
use amphi_meta::{Gathered, Inode, MetaStore};
use amphi_object::Piece;
use amphi_types::item::Txn;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, DataChecksums, Errno, Ino, Kind, ObjectId, Result};
use amphi_wire::InodeView;
use amphi_zone::Order;
use futures_channel::mpsc;
use futures_util::StreamExt;
use futures_util::future::{Either, join_all, select};
use std::pin::pin;
use std::rc::Weak;
use std::time::Duration;

/// Units that are flushed at the same time.
const FLUSHES_MAX: usize = 8;
/// How often the agent checks for bytes that are old enough, at most and at least.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How often it checks whether new memory is available, after the previous one has failed.
const AGAIN: Duration = Duration::from_secs(30);

/// A unit of an object.
type UnitKey = (ObjectId, u64);

/// The old content of a block that delayed bytes cover in part.
struct Gap {
    /// Bytes of the file.
    range: ByteRange,
    /// The place of the block on the disk. `None` means that it has zeros.
    physical: Option<u64>,
}

impl<E: Env> Target<E> {
    /// Flushes the delayed bytes of these units. An error of one does not keep the others from being flushed.
    pub async fn flush_units(&self, units: Vec<UnitKey>) -> Result<()> {
        let mut result = Ok(());
        let mut flushes = futures_util::stream::iter(units)
            .map(|(object, unit)| async move { ((object, unit), self.flush_unit(object, unit).await) })
            .buffer_unordered(FLUSHES_MAX);
        while let Some(((object, unit), flushed)) = flushes.next().await {
            if let Err(e) = flushed {
                add(&self.counts.worker.flush_failures, 1);
                self.tell_writers(object, unit, e);
                self.data.borrow_mut().delayed.try_again(object, unit, self.storage.write_back.now_ns());
                result = Err(e);
            }
        }
        result
    }

    /// A unit cannot be written: the mounts that wrote its file are informed, unless all of it would survive a loss of
    /// power. If only the local file system below is full, no mount is informed, because it will have space again.
    fn tell_writers(&self, object: ObjectId, unit: u64, why: Errno) {
        let range = ByteRange::new(unit * UNIT, (unit + 1) * UNIT);
        if why != Errno::NoSpace && self.data.borrow().delayed.has_unlogged(object, range) {
            let told = self.storage.write_back.writers.tell(object.ino, |session| self.has_session(session));
            add(&self.counts.worker.flush_failures_told, told);
        }
    }

    /// Flushes everything that is delayed when it is called.
    pub async fn flush_all(&self) -> Result<()> {
        let units = self.data.borrow().delayed.all_units(None);
        if units.is_empty() { Ok(()) } else { self.flush_units(units).await }
    }

    /// Flushes the delayed bytes of a file on this target.
    pub async fn flush_file(&self, ino: Ino) -> Result<()> {
        if !self.data.borrow().delayed.has_file(ino) {
            return Ok(());
        }
        let units = self.data.borrow().delayed.all_units(Some(ino));
        self.flush_units(units).await
    }

    async fn flush_unit(&self, object: ObjectId, unit: u64) -> Result<()> {
        let range = ByteRange::new(unit * UNIT, (unit + 1) * UNIT);
        let _span = self.queues.spans.take(object, range, crate::zone_target::gate::Hold::Exclusive).await;
        let flushed = self.flush_held(object, range).await;
        self.let_inodes_go();
        flushed
    }

    /// Flushes what is delayed of a range. The caller has locked its blocks exclusively.
    pub async fn flush_held(&self, object: ObjectId, range: ByteRange) -> Result<()> {
        let runs = self.data.borrow().delayed.runs(object, range);
        if runs.is_empty() {
            return Ok(());
        }
        let _held = self.hold([object.ino]).await?;
        let runs = self.data.borrow().delayed.runs(object, range);
        debug_assert!(runs.iter().all(|run| run.start >= range.start && run.end <= range.end), "what was asked for");
        let plans = self.write_somewhere(object, &runs).await?;
        assert_eq!(plans.len(), runs.len(), "{object:?}: each delayed run has its plan");
        add(&self.counts.worker.flushes, 1);
        add(&self.counts.worker.flush_runs, runs.len() as u64);
        let whole = matches!(runs[..], [run] if run.len() == UNIT);
        add(&self.counts.worker.flushes_whole, u64::from(whole));
        let follows = plans.iter().any(|plan| self.data.borrow().follows_data(plan));
        let follows = follows && !planted::is(Mistake::UnmarkedFlush);
        let order = match follows {
            true => Order::AfterData,
            false => Order::Plain,
        };
        let (mut txn, mut freed) = (Txn::default(), Freed::default());
        for plan in plans {
            let mut data = self.data.borrow_mut();
            let mtime = data.object(object).map(|o| o.mtime).unwrap_or_default();
            freed.absorb(data.commit_write(plan, mtime, &mut txn));
        }
        if object.stripe == 0 {
            self.note_landed(object.ino, &mut txn);
        }
        self.counts.unstable.written(object, runs.iter().map(ByteRange::len).sum());
        let lsn = self.append(txn, order);
        self.release_later(lsn, freed);
        Ok(())
    }

    /// Writes the runs, on other blocks if the disk does not take them where they belong. Returns plans to be
    /// committed.
    async fn write_somewhere(&self, object: ObjectId, runs: &[ByteRange]) -> Result<Vec<WritePlan>> {
        let mut plans = Vec::with_capacity(runs.len());
        let Err(first) = self.write_runs(object, runs, Fresh::Needed, &mut plans).await else { return Ok(plans) };
        let mut failed = std::mem::take(&mut plans);
        let written = if first == Errno::Io {
            // The failed plans keep their blocks until the others have theirs.
            failed.iter_mut().for_each(|plan| self.data.borrow_mut().set_aside(plan));
            self.write_runs(object, runs, Fresh::All, &mut plans).await
        } else {
            Err(first)
        };
        failed.into_iter().for_each(|plan| self.data.borrow_mut().abort_write(plan));
        match written {
            Ok(()) => {
                add(&self.counts.worker.flushes_moved, 1);
                Ok(plans)
            }
            Err(_) => {
                plans.into_iter().for_each(|plan| self.data.borrow_mut().abort_write(plan));
                Err(first)
            }
        }
    }

    /// Plans the runs, collects their bytes and writes them. On an error the caller has to abort the plans.
    async fn write_runs(
        &self,
        object: ObjectId,
        runs: &[ByteRange],
        fresh: Fresh,
        plans: &mut Vec<WritePlan>,
    ) -> Result<()> {
        self.storage.below.mind(self, runs.iter().map(|run| run.align_out(BLOCK).len()).sum());
        for run in runs {
            plans.push(self.plan(|data| data.plan_flush(object, *run, fresh)).await?);
        }
        let mut buf = Buf::scratch(plans.iter().map(|plan| plan.aligned().len() as usize).sum());
        let (mut pieces, mut at) = (Vec::new(), 0);
        for plan in &mut *plans {
            let len = plan.aligned().len() as usize;
            let whole = &mut buf[at..at + len];
            let (damaged, asked) = self.fill(plan, whole).await?;
            if let Some(checksums) = self.checksums_of(whole, asked) {
                plan.set_checksums(checksums);
            }
            damaged.into_iter().for_each(|block| plan.set_checksum(block, Checksum::DAMAGED));
            let from_block = plan.aligned().start / BLOCK;
            for s in &plan.segments {
                let piece = Piece {
                    at: at + ((s.file_block - from_block) * BLOCK) as usize,
                    len: (u64::from(s.blocks) * BLOCK) as usize,
                    disk: self.block_address(s.physical),
                };
                amphi_object::push(&mut pieces, piece);
            }
            at += len;
        }
        assert_eq!(at, buf.len(), "{object:?}: the plans of a flush fill its buffer");
        assert_eq!(pieces.iter().map(|p| p.len).sum::<usize>(), buf.len(), "{object:?}: a flush writes all its bytes");
        let begun_ns = self.storage.write_back.now_ns();
        let sizes = &self.counts.worker.histograms.write;
        add(&self.counts.worker.data_writes, pieces.len() as u64);
        sizes.note_disk(pieces.iter().map(|p| p.len));
        add(&self.counts.worker.flush_bytes, buf.len() as u64);
        // Other mounts may read what several mounts have written; a sole mount caches its own bytes.
        let keeps = self.coherence.tokens.on() && self.storage.disk.cache.borrow().is_open();
        add(&self.counts.worker.cache_flushed_bytes, if keeps { buf.len() as u64 } else { 0 });
        let disk = self.storage.disk.keeping(keeps);
        let written = disk.write_each(buf, &pieces).await;
        let took_ns = self.storage.write_back.now_ns() - begun_ns;
        sizes.disk_us.note(took_ns / 1000);
        self.storage.write_back.note_disk(took_ns);
        written.into_iter().collect::<std::io::Result<()>>().map_err(|e| self.disk_error("write", &e))
    }

    /// Fills whole blocks with the delayed bytes of a plan, and with the other bytes of these blocks. Returns the
    /// blocks that are damaged on the disk. The accepted bytes are written to their places, but these blocks stay
    /// damaged. Also returns whether the file is set to have checksums.
    async fn fill(&self, plan: &WritePlan, aligned: &mut [u8]) -> Result<(Vec<u64>, DataChecksums)> {
        let start = plan.aligned().start;
        assert_eq!(aligned.len() as u64, plan.aligned().len(), "the plan of {:?} is for other blocks", plan.range);
        let parts = self.data.borrow().delayed.within(plan.object, plan.range);
        let gaps = self.gaps(plan, &parts);
        let mut damaged = Vec::new();
        let mut edges: Vec<Buf> = Vec::with_capacity(plan.edges.len());
        for edge in &plan.edges {
            let (block, is_sound) = self.block_beneath(plan.object, edge.file_block, Some(edge.physical)).await?;
            damaged.extend((!is_sound).then_some(edge.file_block));
            edges.push(block);
        }
        let between =
            join_all(gaps.iter().map(|gap| self.block_beneath(plan.object, gap.range.start / BLOCK, gap.physical)));
        for (gap, block) in gaps.iter().zip(between.await) {
            let (from, to) = ((gap.range.start % BLOCK) as usize, (gap.range.start - start) as usize);
            let len = gap.range.len() as usize;
            let (block, is_sound) = block?;
            damaged.extend((!is_sound).then_some(gap.range.start / BLOCK));
            aligned[to..to + len].copy_from_slice(&block[from..from + len]);
        }
        for part in &parts {
            let to = (part.range.start - start) as usize;
            self.storage.write_back.load(part, &mut aligned[to..to + part.range.len() as usize])?;
        }
        let edges: Vec<&[u8]> = edges.iter().map(|block| &**block).collect();
        amphi_data::complete_edges(plan, aligned, &edges);
        let last = parts.iter().rev().find_map(|part| part.memory.checksums);
        let asked = last.or_else(|| self.asked_of(plan.object)).unwrap_or_default();
        Ok((damaged, asked))
    }

    /// The bytes between the delayed parts of a plan. Each gap lies within one block.
    fn gaps(&self, plan: &WritePlan, parts: &[Overlay]) -> Vec<Gap> {
        let data = self.data.borrow();
        let mut gaps = Vec::new();
        for pair in parts.windows(2) {
            let range = ByteRange::new(pair[0].range.end, pair[1].range.start);
            if range.is_empty() {
                continue;
            }
            let block = range.start / BLOCK;
            assert_eq!(block, (range.end - 1) / BLOCK, "{:?}: a gap of {range:?} in what is flushed", plan.object);
            let read = data.plan_disk_read(plan.object, ByteRange::at(block * BLOCK, BLOCK));
            gaps.push(Gap { range, physical: read.segments.first().and_then(|s| s.physical) });
        }
        gaps
    }

    /// Reads the bytes of a block from the disk, and says whether they match the checksum.
    async fn block_beneath(&self, object: ObjectId, block: u64, physical: Option<u64>) -> Result<(Buf, bool)> {
        let Some(physical) = physical else { return Ok((Buf::zeroed(BLOCK as usize), true)) };
        if let Some(image) = self.data.borrow().recent.get(object, block, physical) {
            return Ok((Buf::copy_of(image), true));
        }
        self.old_block(object, block, physical).await
    }

    /// Brings an inode up to what its object here has on the disk.
    pub fn note_landed(&self, ino: Ino, txn: &mut Txn) {
        let mut meta = self.meta.borrow_mut();
        assert!(!meta.is_away(ino), "inode {ino} is to be changed, and is not in memory");
        let Ok((wide, spread)) = meta.inode(ino).map(|i| (i.objects.wide, i.objects.spread)) else { return };
        let noted = if !wide {
            meta.settle(ino, &self.landed(ino), txn)
        } else if !spread {
            meta.mark_spread(ino, txn)
        } else {
            Ok(())
        };
        debug_assert!(noted.is_ok(), "the inode is a file");
    }

    /// Puts the delayed bytes of a read over those from the disk. `aligned` are the whole blocks of the plan.
    pub fn overlay(&self, plan: &amphi_data::ReadPlan, aligned: &mut [u8]) -> Result<()> {
        assert_eq!(aligned.len() as u64, plan.aligned().len(), "the plan of {:?} is for other blocks", plan.range);
        let start = plan.aligned().start;
        for part in &plan.overlays {
            let to = (part.range.start - start) as usize;
            self.storage.write_back.load(part, &mut aligned[to..to + part.range.len() as usize])?;
        }
        Ok(())
    }

    /// The data of a file's objects on this target that is on the disk, and that its inode may already include.
    pub fn landed(&self, ino: Ino) -> Gathered {
        let mut sum = Gathered::default();
        for (_, o) in self.data.borrow().landed_of(ino) {
            sum.join(&Gathered { size: o.end, mtime: o.mtime, blocks: o.blocks * (BLOCK / 512) });
        }
        sum
    }

    /// The view of an inode of this target that is not spread, including accepted bytes that are not on the disk yet.
    pub fn view_of(&self, meta: &MetaStore, ino: Ino, inode: &Inode) -> InodeView {
        let mut view = plain_view(meta, ino, inode);
        if inode.kind == Kind::File && !inode.objects.spread && self.data.borrow().delayed.has_file(ino) {
            view.attr = inode.attr_with(ino, &self.gathered(ino));
        }
        view
    }

    /// Flushes all units that are due. Returns whether all of it could be.
    async fn flush_due(&self) -> Result<()> {
        loop {
            let units = self.due();
            if units.is_empty() {
                return Ok(());
            }
            self.flush_units(units).await?;
            self.exhume();
        }
    }

    /// The next units that are to be flushed.
    fn due(&self) -> Vec<UnitKey> {
        let back = &self.storage.write_back;
        let settings = back.settings();
        let (used, all) = back.usage();
        let every = !settings.on || back.look();
        let until_ns = match every || used * 2 > all {
            true => u64::MAX,
            false => back.now_ns().saturating_sub(settings.age_ns),
        };
        let mut data = self.data.borrow_mut();
        let mut units = Vec::new();
        while units.len() < FLUSHES_MAX
            && let Some(unit) = data.delayed.next_whole().or_else(|| data.delayed.next_old(until_ns))
        {
            if !units.contains(&unit) {
                units.push(unit);
            }
        }
        units
    }

    /// Returns how long the agent may sleep.
    fn flush_pause(&self) -> Option<Duration> {
        let age = Duration::from_nanos(self.storage.write_back.settings().age_ns);
        if !self.data.borrow().delayed.is_empty() {
            return Some((age / 4).clamp(PAUSE.0, PAUSE.1));
        }
        self.storage.write_back.is_missed_for(Duration::ZERO).then_some(AGAIN)
    }
}

/// Flushes units that are due, until the target is dropped.
pub async fn flush_agent<E: Env>(env: E, target: Weak<Target<E>>, mut rung: mpsc::Receiver<()>) {
    let mut told = false;
    loop {
        let Some(pause) = target.upgrade().map(|t| t.flush_pause()) else { return };
        let woken = match pause {
            Some(pause) => match select(rung.next(), pin!(env.sleep(pause))).await {
                Either::Left((woken, _)) => woken,
                Either::Right(_) => Some(()),
            },
            None => rung.next().await,
        };
        let Some(target) = target.upgrade().filter(|_| woken.is_some()) else { return };
        if !target.storage.write_back.has_begun() || target.is_closed() {
            continue;
        }
        match target.flush_due().await {
            Ok(()) => {
                told = false;
                target.storage.write_back.writers.keep_only(|ino| target.data.borrow().delayed.has_file(ino));
                target.give_up_memory(&env).await;
                if target.storage.write_back.is_missed_for(AGAIN) {
                    target.tune_write_back(&env, target.storage.write_back.settings());
                }
            }
            Err(Errno::NoSpace) => {}
            Err(e) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::error!("{}: accepted bytes cannot be written: {e}; they stay in memory", target.id);
                }
            }
        }
    }
}
