//! `DataStore`: objects by id, the allocator, reading, preallocating, destroying, loading.
//!
//! Owns: the state of the store. Does not own: the steps of writes (`write`) and truncates (`trim`).

use crate::alloc::{Allocator, Purpose, Run};
use crate::checksums::Checksums;
use crate::delayed::{Delayed, Overlay};
use crate::extent::{
    DataKey, Object, decode_dirty, decode_extent, decode_logged, decode_object, extent_key, extent_value, memory_key,
    object_key,
};
use crate::extents::{EXTENT_BLOCKS_MAX, Extent};
use crate::grants::Grants;
use crate::objects::Objects;
use crate::plan::{Freed, ReadPlan, ReadSegment};
use crate::recent::Recent;
use crate::room::holes;
use amphi_quota::Usage;
use amphi_types::item::{ItemStore, Key, Txn, tag};
use amphi_types::limits::{BLOCK, FILE_MAX};
use amphi_types::{ByteRange, Errno, Ino, ObjectId, Result, Timespec};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::ops::Bound;

/// Most extents that are examined for one answer about data and holes. Adjacent extents are joined.
const EXTENTS_LOOKED_MAX: usize = 65_536;

/// The state of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Highest written byte + 1, or the end that a truncate or preallocation has set.
    pub end: u64,
    /// Time of the last change of content.
    pub mtime: Timespec,
    /// Generation of the last truncate; 0 if there was none.
    pub generation: u64,
    /// Allocated blocks.
    pub blocks: u64,
}

/// Whether a preallocation moves the object's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preallocate {
    /// The end stays (`FALLOC_FL_KEEP_SIZE`).
    KeepEnd,
    /// The end of the object becomes at least the end of the range.
    Extend,
}

/// Result of one step of destroying a file's objects.
#[derive(Debug)]
pub struct Destroyed {
    /// Blocks that this step has freed.
    pub freed: Freed,
    /// Whether nothing is left.
    pub done: bool,
}

/// The data store of one target.
#[derive(Clone, Debug)]
pub struct DataStore {
    pub(crate) objects: Objects,
    pub(crate) alloc: Allocator,
    /// Blocks in `Freed` values that are not released yet.
    pending: u64,
    /// Blocks taken by plans that are neither committed nor aborted.
    pub(crate) planned: u64,
    /// Edge blocks of recent writes.
    pub recent: Recent,
    /// Checksums of the blocks.
    pub checksums: Checksums,
    /// Accepted bytes that have no blocks yet.
    pub delayed: Delayed,
    /// Blocks that are reserved for the caches of sessions.
    pub grants: Grants,
    /// The number of the memory in which delayed extents lie.
    pub(crate) memory: Option<u64>,
    /// Blocks by account, while they are counted.
    pub(crate) usage: Option<Usage>,
}

impl DataStore {
    /// An empty store over `blocks` blocks of 4 KiB.
    pub fn new(blocks: u64) -> DataStore {
        DataStore {
            objects: Objects::default(),
            alloc: Allocator::new(blocks),
            pending: 0,
            planned: 0,
            recent: Recent::default(),
            checksums: Checksums::default(),
            delayed: Delayed::default(),
            grants: Grants::default(),
            memory: None,
            usage: None,
        }
    }

    /// Ends loading: builds the bitmap from the extents.
    ///
    /// Errors: a sentence that names extents which overlap, lie outside the zone, or belong to no object.
    pub fn finish_load(&mut self) -> std::result::Result<(), String> {
        let mut alloc = Allocator::new(self.alloc.blocks());
        for (id, o) in self.objects.iter() {
            if !o.has_item() {
                return Err(format!("object {} of {} has extents but no item of its own", id.stripe, id.ino));
            }
            let mut free_from = 0;
            for (at, e) in o.extents.iter() {
                if at < free_from {
                    return Err(format!("{}: overlaps the extent before it", extent_name(id, at)));
                }
                free_from = at + u64::from(e.blocks);
                if !alloc.is_free(e.run()) {
                    return Err(format!("{}: shares physical blocks with another extent", extent_name(id, at)));
                }
                alloc.mark(e.run());
                if e.written {
                    alloc.note_backed(e.run());
                }
            }
        }
        self.checksums.finish_load(&alloc);
        self.alloc = alloc;
        for object in self.delayed.logged_objects() {
            self.delayed.show_logged(object, ByteRange::ALL);
        }
        if let Some((id, _)) = self.delayed.objects().find(|(id, _)| !self.objects.contains(*id)) {
            return Err(format!("object {} of {} has delayed extents but no item of its own", id.stripe, id.ino));
        }
        self.delayed.check()
    }

    /// The number of the memory that contains delayed extents, if there may be any.
    pub fn memory(&self) -> Option<u64> {
        self.memory
    }

    /// From now on delayed extents lie in memory `number` and nowhere else; `None` means that there are none.
    pub fn set_memory(&mut self, number: Option<u64>, txn: &mut Txn) {
        debug_assert!(self.delayed.is_empty(), "delayed extents lie in the memory before");
        self.memory = number;
        match number {
            Some(n) => txn.put(memory_key(), n.to_le_bytes()),
            None => txn.delete(memory_key()),
        }
    }

    /// Gives up delayed bytes whose memory is gone. Where they hid logged bytes or the disk, these are visible again.
    pub fn drop_delayed(&mut self, object: ObjectId, range: ByteRange, txn: &mut Txn) {
        let weighed = self.weigh(object, range);
        self.delayed.cut_extents(object, range, txn);
        self.delayed.show_logged(object, range);
        self.charge(object, range, weighed);
    }

    /// Highest byte of an object + 1, including delayed bytes.
    pub(crate) fn end_of(&self, object: ObjectId) -> u64 {
        let delayed = self.delayed.end_of(object).map_or(0, |(end, _)| end);
        self.objects.get(object).map_or(0, |o| o.end).max(delayed)
    }

    fn info(&self, id: ObjectId, o: &Object) -> ObjectInfo {
        let mut info = ObjectInfo { end: o.end, mtime: o.mtime(), generation: o.generation, blocks: o.blocks() };
        if let Some((end, mtime)) = self.delayed.end_of(id) {
            info.end = info.end.max(end);
            info.mtime = info.mtime.max(mtime);
            let span = ByteRange::new(0, end);
            let blocks = self.delayed.runs(id, span).into_iter().map(|run| {
                let blocks = run.align_out(BLOCK);
                let (from, to) = (blocks.start / BLOCK, blocks.end / BLOCK);
                to - from - o.mapped(from, to).map(|(_, e)| u64::from(e.blocks)).sum::<u64>()
            });
            info.blocks += blocks.sum::<u64>();
        }
        info
    }

    /// The state of an object; `None` if nothing was ever written or truncated there.
    pub fn object(&self, object: ObjectId) -> Option<ObjectInfo> {
        self.objects.get(object).map(|o| self.info(object, o))
    }

    /// The objects of a file that this target has, by stripe.
    pub fn objects_of(&self, ino: Ino) -> impl Iterator<Item = (ObjectId, ObjectInfo)> + '_ {
        self.objects.of(ino).map(|(id, o)| (id, self.info(id, o)))
    }

    /// Works as `objects_of`, without delayed bytes.
    pub fn landed_of(&self, ino: Ino) -> impl Iterator<Item = (ObjectId, ObjectInfo)> + '_ {
        let info =
            |o: &Object| ObjectInfo { end: o.end, mtime: o.mtime(), generation: o.generation, blocks: o.blocks() };
        self.objects.of(ino).map(move |(id, o)| (id, info(o)))
    }

    /// Extents of an object, ascending by file block.
    pub fn extents(&self, object: ObjectId) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.objects.get(object).into_iter().flat_map(|o| o.extents.iter())
    }

    /// The next run of written blocks at or after a block of an object, or in the objects after it. It consists of
    /// object, first block and number of blocks (at most `blocks_max`). `from` of `None` begins with the first object.
    pub fn next_written(&self, from: Option<(ObjectId, u64)>, blocks_max: u64) -> Option<(ObjectId, u64, u64)> {
        let (first, block) = from.unwrap_or((ObjectId { ino: Ino(0), stripe: 0 }, 0));
        self.objects.range(Bound::Included(first)).find_map(|(id, o)| {
            let from = if id == first { block } else { 0 };
            let (at, e) = o.mapped(from, crate::extent::FILE_BLOCKS).find(|(_, e)| e.written)?;
            Some((id, at, u64::from(e.blocks).min(blocks_max)))
        })
    }

    /// Number of blocks of 4 KiB that the objects of a file have on this target.
    pub fn blocks_of(&self, ino: Ino) -> u64 {
        self.objects.of(ino).map(|(_, o)| o.blocks()).sum()
    }

    /// Blocks of the zone, and blocks that are free or will be once pending frees are released, without the allocator's
    /// reserve.
    pub fn space(&self) -> (u64, u64) {
        (self.alloc.blocks(), (self.alloc.available() + self.pending).saturating_sub(self.delayed.promised()))
    }

    /// Free blocks (including pending frees) that are certain to have storage in the file system below.
    pub fn backed_free_blocks(&self) -> u64 {
        self.alloc.backed_free() + self.pending
    }

    /// Sets whether the file system below has no space for blocks that have no storage there yet. If it has none, only
    /// blocks that already have storage are taken.
    pub fn set_tight(&mut self, tight: bool) {
        self.alloc.set_tight(tight);
    }

    /// Blocks from `start` on have storage in the file system below.
    pub fn note_backed(&mut self, start: u64, blocks: u64) {
        let mut at = start;
        while at < start.saturating_add(blocks) {
            let n = (start + blocks - at).min(u64::from(u32::MAX));
            self.alloc.note_backed(Run { start: at, blocks: n as u32 });
            at += n;
        }
    }

    /// Freed blocks that wait for their release. After `NoSpace`, if there are such blocks, the caller should make the
    /// log stable, release them and try again.
    pub fn pending_blocks(&self) -> u64 {
        self.pending
    }

    /// Blocks of plans that are neither committed nor aborted. The blocks that they replace will be pending.
    pub fn planned_blocks(&self) -> u64 {
        self.planned
    }

    /// Frees blocks for reuse. It has to be called when the record that freed them is stable.
    pub fn release(&mut self, freed: Freed) {
        for run in freed.runs {
            self.alloc.free(run);
            self.checksums.note_free(run, &self.alloc);
            self.pending -= u64::from(run.blocks);
        }
    }

    /// Plans a read. Bytes beyond the object's end are left out. Holes and preallocated blocks read as zeros. Blocks
    /// whose requested bytes are all delayed are not read.
    pub fn plan_read(&self, object: ObjectId, range: ByteRange) -> ReadPlan {
        let mut plan = self.plan_disk_read(object, range);
        plan.overlays = self.delayed.within(object, plan.range);
        if plan.overlays.is_empty() {
            return plan;
        }
        let covered = covered_blocks(&plan.overlays, plan.range, plan.end);
        let mut segments = SmallVec::new();
        for s in &plan.segments {
            let mut at = s.file_block;
            let end = s.file_block + s.blocks;
            let mut push = |from: u64, to: u64, seen: bool| {
                if from < to {
                    let physical = s.physical.filter(|_| seen).map(|p| p + (from - s.file_block));
                    segments.push(ReadSegment { file_block: from, blocks: to - from, physical });
                }
            };
            for &(from, to) in &covered {
                let (from, to) = (from.max(at), to.min(end));
                if from >= to {
                    continue;
                }
                push(at, from, true);
                push(from, to, false);
                at = to;
            }
            push(at, end, true);
        }
        plan.segments = segments;
        plan
    }

    /// Plans a read of what the blocks contain beneath delayed bytes.
    pub fn plan_disk_read(&self, object: ObjectId, range: ByteRange) -> ReadPlan {
        let Some(o) = self.objects.get(object) else {
            return ReadPlan {
                range: ByteRange::new(range.start, range.start),
                end: 0,
                segments: SmallVec::new(),
                overlays: SmallVec::new(),
            };
        };
        let end = self.end_of(object);
        let range = ByteRange::new(range.start, range.end.min(end).max(range.start));
        let mut plan = ReadPlan { range, end, segments: SmallVec::new(), overlays: SmallVec::new() };
        let span = plan.aligned();
        let (from, to) = (span.start / BLOCK, span.end / BLOCK);
        let mut at = from;
        let hole = |from: u64, to: u64| ReadSegment { file_block: from, blocks: to - from, physical: None };
        for (b, e) in o.mapped(from, to).filter(|(_, e)| e.written) {
            if at < b {
                plan.segments.push(hole(at, b));
            }
            let blocks = u64::from(e.blocks);
            plan.segments.push(ReadSegment { file_block: b, blocks, physical: Some(e.physical) });
            at = b + blocks;
        }
        if at < to {
            plan.segments.push(hole(at, to));
        }
        plan
    }

    /// Runs of blocks of an object with written data from `offset` on, at most `runs_max`. The runs are ascending, no
    /// two touch, and none begins behind the block in which the object ends. The second value says up to where the list
    /// of runs is complete. `None` means up to the object's end.
    pub fn data_runs(&self, object: ObjectId, offset: u64, runs_max: usize) -> (Vec<ByteRange>, Option<u64>) {
        let mut runs: Vec<ByteRange> = Vec::new();
        let end = self.end_of(object);
        let Some(o) = self.objects.get(object).filter(|_| offset < end) else { return (runs, None) };
        let mapped = o.mapped(offset / BLOCK, end.div_ceil(BLOCK)).filter(|(_, extent)| extent.written);
        let mut written =
            mapped.map(|(block, extent)| ByteRange::at(block * BLOCK, u64::from(extent.blocks) * BLOCK)).peekable();
        let delayed = self.delayed.runs(object, ByteRange::new(offset, end));
        let mut delayed = delayed.into_iter().map(|run| run.align_out(BLOCK)).peekable();
        for looked in 0.. {
            let is_delayed_next = match (written.peek(), delayed.peek()) {
                (Some(w), Some(d)) => d.start < w.start,
                (None, Some(_)) => true,
                _ => false,
            };
            let Some(run) = (if is_delayed_next { delayed.next() } else { written.next() }) else { break };
            let is_full = runs.len() == runs_max;
            match runs.last_mut() {
                _ if looked == EXTENTS_LOOKED_MAX => return (runs, Some(run.start)),
                Some(last) if last.end >= run.start => last.end = last.end.max(run.end),
                _ if is_full => return (runs, Some(run.start)),
                _ => runs.push(run),
            }
        }
        (runs, None)
    }

    /// Preallocates the holes of a range as unwritten blocks and appends the items to `txn`. Nothing has to be written.
    /// It counts as a change of the file at `mtime`, even if no block was missing.
    ///
    /// Errors: `Stale` for an old generation, `NoSpace` (nothing taken), `FileTooBig`.
    pub fn allocate(
        &mut self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        how: Preallocate,
        mtime: Timespec,
        txn: &mut Txn,
    ) -> Result<()> {
        check_range(range)?;
        self.check_generation(object, generation)?;
        let span = range.align_out(BLOCK);
        let (from, to) = (span.start / BLOCK, span.end / BLOCK);
        let holes = match self.objects.get(object) {
            Some(o) => holes(o, from, to),
            None => vec![(from, to - from)],
        };
        let mut placed = Vec::new();
        self.take_all(&holes, object, Purpose::Growth, 0, &mut placed)?;
        let end = self.end_of(object);
        let weighed = self.weigh(object, range);
        let o = self.objects.or_default(object);
        let mut touched = BTreeSet::new();
        for &(at, run) in &placed {
            self.planned -= u64::from(run.blocks);
            o.put(at, Extent { physical: run.start, blocks: run.blocks, written: false }, &mut touched);
        }
        o.log_extents(object, &touched, txn);
        if how == Preallocate::Extend && range.end > end {
            o.grow(range.end, false);
        }
        o.set_mtime(o.mtime().max(mtime));
        o.note_item();
        o.log_object(object, txn);
        self.charge(object, range, weighed);
        Ok(())
    }

    /// Sets an object's mtime.
    pub fn set_mtime(&mut self, object: ObjectId, mtime: Timespec, txn: &mut Txn) {
        if let Some(o) = self.objects.get_mut(object) {
            o.set_mtime(mtime);
            o.log_object(object, txn);
        }
    }

    /// Removes an object. Appends nothing if the object does not exist.
    pub fn destroy(&mut self, object: ObjectId, txn: &mut Txn) -> Freed {
        let mut freed = Freed::default();
        self.recent.forget(object, ByteRange::ALL);
        let weighed = self.weigh(object, ByteRange::ALL);
        self.delayed.cut(object, ByteRange::ALL, txn);
        if let Some(o) = self.objects.remove(object) {
            for (at, e) in o.extents.iter() {
                txn.delete(extent_key(object, at));
                freed.add(e.run());
            }
            txn.delete(object_key(object));
        }
        self.charge(object, ByteRange::ALL, weighed);
        self.pending += freed.blocks();
        freed
    }

    /// Removes every object of a file on this target.
    pub fn destroy_all(&mut self, ino: Ino, txn: &mut Txn) -> Freed {
        self.destroy_some(ino, usize::MAX, txn).freed
    }

    /// Removes at most `items` extents and objects of a file, last stripes first, so that one record stays within the
    /// log's bound. The call has to be repeated until `done`; crashes in between do no harm.
    pub fn destroy_some(&mut self, ino: Ino, items: usize, txn: &mut Txn) -> Destroyed {
        let mut freed = Freed::default();
        let mut left = items.max(1);
        while left > 0 {
            let Some(id) = self.objects.last_of(ino) else {
                break;
            };
            self.recent.forget(id, ByteRange::ALL);
            let weighed = self.weigh(id, ByteRange::ALL);
            left -= self.delayed.cut_last(id, left, txn);
            let Some(o) = self.objects.get_mut(id) else { break };
            while left > 0
                && let Some((at, e)) = o.extents.pop_last()
            {
                txn.delete(extent_key(id, at));
                freed.add(e.run());
                left -= 1;
            }
            if left > 0 {
                txn.delete(object_key(id));
                self.objects.remove(id);
                left -= 1;
            }
            self.charge(id, ByteRange::ALL, weighed);
        }
        self.pending += freed.blocks();
        Destroyed { freed, done: self.objects.of(ino).next().is_none() }
    }

    /// Generation of the last truncate that has reached the object.
    pub fn generation(&self, object: ObjectId) -> u64 {
        self.objects.get(object).map_or(0, |o| o.generation)
    }

    /// Refuses requests that were sent before a truncate that has reached the object.
    pub(crate) fn check_generation(&self, object: ObjectId, generation: u64) -> Result<()> {
        match self.objects.get(object) {
            Some(o) if generation < o.generation => Err(Errno::Stale),
            _ => Ok(()),
        }
    }

    /// Takes blocks for each of `needs` (file block, count), adds (file block, run) to `placed`, and counts them as
    /// planned. It may use `own` blocks of the caller's grant. On an error nothing is taken.
    pub(crate) fn take_all(
        &mut self,
        needs: &[(u64, u64)],
        object: ObjectId,
        purpose: Purpose,
        own: u64,
        placed: &mut Vec<(u64, Run)>,
    ) -> Result<()> {
        let total: u64 = needs.iter().map(|n| n.1).sum();
        if total > self.room(purpose, own) {
            return Err(Errno::NoSpace);
        }
        let mut runs = Vec::new();
        for &(at, blocks) in needs {
            let before = self.objects.get(object).and_then(|o| o.extents.before(at));
            let goal = match (placed.last(), before) {
                (Some((b, run)), before) if before.is_none_or(|(x, _)| x < *b) => Some(run.end()),
                (_, Some((_, e))) => Some(e.run().end()),
                _ => None,
            };
            runs.clear();
            self.alloc.take(blocks, goal, purpose, EXTENT_BLOCKS_MAX, &mut runs)?;
            let mut file_block = at;
            for &run in &runs {
                placed.push((file_block, run));
                file_block += u64::from(run.blocks);
            }
        }
        self.planned += total;
        Ok(())
    }

    /// Returns blocks that a plan took.
    pub(crate) fn untake(&mut self, run: Run) {
        self.alloc.free(run);
        self.checksums.note_free(run, &self.alloc);
        self.planned -= u64::from(run.blocks);
    }

    /// Counts freed blocks as pending.
    pub(crate) fn note_freed(&mut self, freed: &Freed) {
        self.pending += freed.blocks();
    }

    /// Checks that the bitmap is exactly extents, plans and pending frees; for tests and debug builds.
    pub fn check(&self) -> std::result::Result<(), String> {
        let mut mapped = 0;
        for (id, o) in self.objects.iter() {
            let own: u64 = o.extents.iter().map(|(_, e)| u64::from(e.blocks)).sum();
            if own != o.blocks() {
                return Err(format!("object {id:?} counts {} blocks but has {own}", o.blocks()));
            }
            mapped += own;
        }
        let taken = self.alloc.blocks() - self.alloc.free_blocks();
        if taken != mapped + self.pending + self.planned {
            return Err(format!(
                "{taken} blocks are taken, but {mapped} are mapped, {} pending, {} planned",
                self.pending, self.planned
            ));
        }
        self.delayed.check()?;
        self.check_charges()?;
        let mut fresh = self.clone();
        fresh.finish_load()
    }
}

impl ItemStore for DataStore {
    fn load(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<(), String> {
        match DataKey::decode(key) {
            Some(DataKey::Object(id)) => {
                let mut o = decode_object(value)
                    .ok_or_else(|| format!("object {} of {}: its value does not decode", id.stripe, id.ino))?;
                let had = self.objects.or_default(id);
                o.extents = std::mem::take(&mut had.extents);
                *had = o;
            }
            Some(DataKey::Extent(id, at)) => {
                let e = decode_extent(at, value, self.alloc.blocks())
                    .map_err(|text| format!("{}: {text}", extent_name(id, at)))?;
                self.objects.or_default(id).extents.insert(at, e);
            }
            Some(DataKey::Memory) => {
                let number = value.try_into().map_err(|_| "the number of the memory does not decode")?;
                self.memory = Some(u64::from_le_bytes(number));
            }
            Some(DataKey::Dirty(id, at)) => {
                let e = decode_dirty(at, value).ok_or_else(|| {
                    format!(
                        "delayed extent at byte {at} of object {} of {}: its value does not decode",
                        id.stripe, id.ino
                    )
                })?;
                let range = ByteRange::new(at, e.end);
                if self.delayed.count_in(id, range) > 0 {
                    return Err(format!("delayed extent at byte {at} of object {} of {} overlaps", id.stripe, id.ino));
                }
                self.delayed.put(id, range, e.mtime, e.memory, 0);
            }
            Some(DataKey::Logged(id, at)) => {
                let piece = decode_logged(at, value).ok_or_else(|| {
                    format!("logged bytes at {at} of object {} of {}: their value does not decode", id.stripe, id.ino)
                })?;
                if !self.delayed.load_logged(id, at, piece) {
                    return Err(format!("logged bytes at {at} of object {} of {} overlap others", id.stripe, id.ino));
                }
            }
            Some(DataKey::Grant(session)) => self.grants.load(session, value)?,
            Some(DataKey::Checksums(group)) => self.checksums.load(group, value, self.alloc.blocks())?,
            None => {
                return Err(format!(
                    "a key of {} bytes with tag {:?} is no item of the data store",
                    key.len(),
                    key.first()
                ));
            }
        }
        Ok(())
    }

    fn value_of(&self, key: &[u8]) -> Option<Vec<u8>> {
        match DataKey::decode(key)? {
            DataKey::Object(id) => self.objects.get(id).filter(|o| o.has_item()).map(|o| o.value().to_vec()),
            DataKey::Extent(id, at) => self.objects.get(id)?.extents.get(at).map(|e| extent_value(&e).to_vec()),
            DataKey::Memory => self.memory.map(|n| n.to_le_bytes().to_vec()),
            DataKey::Dirty(id, at) => self.delayed.value(id, at),
            DataKey::Logged(id, at) => self.delayed.logged_value(id, at),
            DataKey::Grant(session) => self.grants.value(session),
            DataKey::Checksums(group) => self.checksums.value(group),
        }
    }

    fn keys_after(&self, after: &[u8], max: usize) -> Vec<Key> {
        let mut keys: Vec<Key> = Vec::new();
        if after.is_empty() || after[0] <= tag::OBJECT {
            let from = match DataKey::decode(after) {
                Some(DataKey::Object(id)) => Bound::Excluded(id),
                _ => Bound::Unbounded,
            };
            keys.extend(self.objects.range(from).take(max).map(|(id, _)| object_key(id).to_vec()));
        }
        let (first, mut from) = match DataKey::decode(after) {
            Some(DataKey::Extent(id, at)) => (Some(id), at + 1),
            _ => (None, 0),
        };
        if after.first().is_none_or(|&t| t <= tag::EXTENT) {
            let lower = first.unwrap_or(ObjectId { ino: Ino(0), stripe: 0 });
            for (id, o) in self.objects.range(Bound::Included(lower)) {
                if keys.len() >= max {
                    break;
                }
                keys.extend(o.extents.range(from).take(max - keys.len()).map(|(at, _)| extent_key(id, at).to_vec()));
                from = 0;
            }
        }
        if after.first().is_none_or(|&t| t <= tag::GRANT) {
            let from = match DataKey::decode(after) {
                Some(DataKey::Grant(session)) => Some(session),
                _ => None,
            };
            keys.extend(self.grants.keys_after(from, max - keys.len().min(max)));
        }
        let left = max - keys.len().min(max);
        if after.first().is_none_or(|&t| t <= tag::CHECKSUM) && left > 0 {
            let from = match DataKey::decode(after) {
                Some(DataKey::Checksums(group)) => Some(group),
                _ => None,
            };
            keys.extend(self.checksums.keys_after(from, left));
        }
        if after.first().is_none_or(|&t| t <= tag::LOGGED) {
            let from = match DataKey::decode(after) {
                Some(DataKey::Logged(id, at)) => Some((id, at)),
                _ => None,
            };
            keys.extend(self.delayed.logged_keys_after(from, max - keys.len().min(max)));
        }
        let left = max - keys.len().min(max);
        if after.first().is_none_or(|&t| t <= tag::DELAYED) && left > 0 {
            let from = match DataKey::decode(after) {
                Some(DataKey::Dirty(id, at)) => Some((id, at)),
                _ => None,
            };
            if self.memory.is_some() && after < &memory_key()[..] {
                keys.push(memory_key().to_vec());
            }
            let left = max - keys.len().min(max);
            keys.extend(self.delayed.keys_after(from, left));
        }
        keys
    }
}

pub(crate) fn extent_name(id: ObjectId, at: u64) -> String {
    format!("extent at file block {at} of object {} of {}", id.stripe, id.ino)
}

pub(crate) fn check_range(range: ByteRange) -> Result<()> {
    if range.is_empty() {
        return Err(Errno::Inval);
    }
    if range.end > FILE_MAX { Err(Errno::FileTooBig) } else { Ok(()) }
}

/// Blocks of which `overlays` have all bytes of `range`, as (first, one past the last), ascending. No block behind
/// `end` is included.
fn covered_blocks(overlays: &[Overlay], range: ByteRange, end: u64) -> Vec<(u64, u64)> {
    let mut runs: Vec<ByteRange> = Vec::new();
    for o in overlays {
        match runs.last_mut() {
            Some(last) if last.end == o.range.start => last.end = o.range.end,
            _ => runs.push(o.range),
        }
    }
    let blocks = |run: &ByteRange| {
        let from = if run.start == range.start { run.start / BLOCK } else { run.start.div_ceil(BLOCK) };
        let to = if run.end >= range.end.min(end) { run.end.div_ceil(BLOCK) } else { run.end / BLOCK };
        (from, to)
    };
    runs.iter().map(blocks).filter(|(from, to)| from < to).collect()
}
