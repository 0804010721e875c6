//! Model check of the data store: random operations against byte vectors, through a disk in memory that executes
//! the plans, with crashes of the machine in between.
//!
//! The disk starts full of garbage, so every zero that a read returns was put there by a plan. Records become stable
//! only sometimes. A crash forgets all other changes, and loses or tears a write that was under way.
//!
//! Blocks get checksums in some stretches of the operations. If a block has a checksum, its content matches the
//! checksum in every state after a crash.
//!
//! Writes are also accepted into memory and flushed later. Records are kept only sometimes. A kill of the process loses
//! those that are not kept, and does not change the memory. A crash of the machine destroys the memory.

use amphi_data::{
    Checksum, DataStore, Freed, Fresh, Memory, Overlay, PagePool, Preallocate, ReadPlan, Resize, complete_edges,
    fsck_items,
};
use amphi_types::item::{ItemStore, Key, Txn};
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, DataChecksums, Errno, Ino, ObjectId, Owner, Timespec};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const DISK_BLOCKS: u64 = 160;
const PAGES: u64 = 48;
const OBJECTS: u8 = 3;
const B: usize = BLOCK as usize;

/// Mistakes that the check must find.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Planted {
    Nothing,
    ReleaseBeforeStable,
    NoZeroFill,
    ForgetToFreeOnAbort,
    PagesTooEarly,
    GapsNotKept,
    StableUnflushed,
    HalfLogged,
    ChecksumOfOldBytes,
    ChecksumKeptInPlace,
}

#[derive(Clone, Debug)]
enum Op {
    Write { object: u8, start: u64, len: u64 },
    AbortedWrite { object: u8, start: u64, len: u64 },
    CrashedWrite { object: u8, start: u64, len: u64, sectors: u64 },
    Truncate { object: u8, size: u64, set: bool },
    Punch { object: u8, start: u64, len: u64 },
    Allocate { object: u8, start: u64, len: u64, extend: bool },
    Destroy { object: u8, items: usize },
    Accept { object: u8, start: u64, len: u64 },
    KilledAccept { object: u8, start: u64, len: u64 },
    Flush { object: u8, start: u64, len: u64 },
    TornFlush { object: u8, sectors: u64 },
    Kept,
    Kill,
    Stable,
    StableLogged,
    Crash,
    OldRequest { object: u8 },
    Checksums { on: bool },
    Adopt { object: u8 },
    Forget { object: u8, start: u64, len: u64, sectors: u64 },
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    bytes: Vec<u8>,
    generation: u64,
}

type Items = BTreeMap<Key, Vec<u8>>;

struct Bench {
    planted: Planted,
    disk: Vec<u8>,
    store: DataStore,
    model: BTreeMap<ObjectId, Model>,
    items: Items,
    /// The state after a crash of the machine.
    stable_items: Items,
    stable_model: BTreeMap<ObjectId, Model>,
    /// Bytes written since the last stable point: after a crash they may be the old or the new ones.
    written: BTreeMap<ObjectId, Vec<bool>>,
    freed: Vec<Freed>,
    clock: u64,
    txns: Vec<Txn>,
    /// The state after a kill of the process, in the same form as the state of the machine; and the bytes written
    /// since.
    kept_items: Items,
    kept_model: BTreeMap<ObjectId, Model>,
    unkept: BTreeMap<ObjectId, Vec<bool>>,
    memory: Vec<u8>,
    pool: PagePool,
    dead: Vec<Rc<Memory>>,
    checksums: bool,
}

fn id(object: u8) -> ObjectId {
    ObjectId { ino: Ino(7 + u64::from(object) / 2), stripe: u32::from(object) % 2 }
}

/// A checksum that is good enough here.
fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(7, |sum, &b| (sum ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

fn apply(items: &mut Items, txn: &Txn) {
    for c in txn.changes() {
        match c.value() {
            Some(v) => items.insert(c.key().to_vec(), v.to_vec()),
            None => items.remove(c.key()),
        };
    }
}

fn loaded(items: &Items) -> Result<DataStore, String> {
    let mut store = DataStore::new(DISK_BLOCKS);
    for (k, v) in items {
        store.load(k, v)?;
    }
    store.finish_load()?;
    Ok(store)
}

macro_rules! ensure {
    ($ok:expr, $($text:tt)*) => { if !$ok { return Err(format!($($text)*)); } };
}

impl Bench {
    fn new(planted: Planted) -> Bench {
        Bench {
            planted,
            disk: vec![0xAA; DISK_BLOCKS as usize * B],
            store: DataStore::new(DISK_BLOCKS),
            model: BTreeMap::new(),
            items: Items::new(),
            stable_items: Items::new(),
            stable_model: BTreeMap::new(),
            written: BTreeMap::new(),
            freed: Vec::new(),
            clock: 0,
            txns: Vec::new(),
            kept_items: Items::new(),
            kept_model: BTreeMap::new(),
            unkept: BTreeMap::new(),
            memory: vec![0xCC; PAGES as usize * B],
            pool: PagePool::new(PAGES),
            dead: Vec::new(),
            checksums: false,
        }
    }

    fn mtime(&self) -> Timespec {
        Timespec::from_ns(self.clock)
    }

    fn block(&self, physical: u64) -> Vec<u8> {
        self.disk[physical as usize * B..][..B].to_vec()
    }

    fn read(&self, store: &DataStore, object: ObjectId, range: ByteRange) -> (ReadPlan, Vec<u8>) {
        let plan = store.plan_read(object, range);
        let mut bytes = Vec::new();
        for s in &plan.segments {
            match s.physical {
                Some(p) => bytes.extend_from_slice(&self.disk[p as usize * B..][..s.blocks as usize * B]),
                None => bytes.resize(bytes.len() + s.blocks as usize * B, 0),
            }
        }
        assert_eq!(bytes.len() as u64, plan.aligned().len());
        for o in &plan.overlays {
            let to = (o.range.start - plan.aligned().start) as usize;
            let len = o.range.len() as usize;
            bytes[to..to + len].copy_from_slice(&self.overlay(o));
        }
        let skip = (plan.range.start - plan.aligned().start) as usize;
        let bytes = bytes[skip..skip + plan.range.len() as usize].to_vec();
        (plan, bytes)
    }

    fn overlay(&self, o: &Overlay) -> Vec<u8> {
        let len = o.range.len() as usize;
        match o.memory.bytes() {
            Some(bytes) => bytes[(o.range.start - o.memory.start) as usize..][..len].to_vec(),
            None => self.memory[o.at() as usize..][..len].to_vec(),
        }
    }

    fn committed(&mut self, mut txn: Txn, freed: Freed) {
        self.store.delete_free_checksums(&mut txn);
        apply(&mut self.items, &txn);
        self.txns.push(txn);
        let dead = self.store.delayed.take_dead();
        if self.planted != Planted::PagesTooEarly {
            self.dead.extend(dead);
        }
        if self.planted == Planted::ReleaseBeforeStable {
            self.store.release(freed);
        } else {
            self.freed.push(freed);
        }
    }

    /// The steps of the server for a write plan, up to but without the commit. `sectors`: which 512-byte sectors reach
    /// the disk.
    fn write(
        &mut self,
        object: ObjectId,
        range: ByteRange,
        sectors: u64,
    ) -> Result<Option<amphi_data::WritePlan>, String> {
        let generation = self.model.get(&object).map_or(0, |m| m.generation);
        let before = self.store.space();
        let fresh = [Fresh::Needed, Fresh::Written, Fresh::Edges, Fresh::All][sectors as usize % 4];
        let mut plan = match self.store.plan_write(object, range, generation, fresh, None) {
            Ok(plan) => plan,
            Err(Errno::NoSpace) => {
                ensure!(self.store.space() == before, "a refused write took space");
                match self.overwrite(object, range, generation, fresh)? {
                    Some(plan) => plan,
                    None => return Ok(None),
                }
            }
            Err(e) => return Err(format!("write refused: {e}")),
        };
        let span = plan.aligned();
        let mut at = span.start / BLOCK;
        for s in &plan.segments {
            ensure!(s.file_block == at, "segments do not cover the write: {plan:?}");
            at += u64::from(s.blocks);
        }
        ensure!(at == span.end / BLOCK, "segments do not cover the write: {plan:?}");
        let mut aligned = vec![0xBB; span.len() as usize];
        let payload = self.payload(range.len());
        aligned[(range.start - span.start) as usize..][..payload.len()].copy_from_slice(&payload);
        if self.planted != Planted::NoZeroFill {
            let old: Vec<Vec<u8>> = plan.edges.iter().map(|e| self.block(e.physical)).collect();
            complete_edges(&plan, &mut aligned, &old.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
        if self.checksums {
            plan.set_checksums(self.sums(&aligned));
        }
        self.put(&plan, &aligned, sectors);
        self.note_written(object, range);
        if sectors == u64::MAX {
            let m = self.model.entry(object).or_default();
            m.bytes.resize(m.bytes.len().max(range.end as usize), 0);
            m.bytes[range.start as usize..range.end as usize].copy_from_slice(&payload);
        }
        Ok(Some(plan))
    }

    /// A write that found no space, with the reserve for overwrites. It is refused if it grows the object where nothing
    /// may grow, or if it has more blocks than the reserve, and for no other reason.
    fn overwrite(
        &mut self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        fresh: Fresh,
    ) -> Result<Option<amphi_data::WritePlan>, String> {
        let (before, room) = (self.store.space(), self.store.overwrite_room());
        let fits = self.store.has_room_to_grow(object, range, None) && range.align_out(BLOCK).len() / BLOCK <= room;
        match self.store.plan_overwrite(object, range, generation, fresh, None) {
            Ok(plan) => Ok(Some(plan)),
            Err(e) => {
                ensure!(e == Errno::NoSpace && !fits, "an overwrite was refused: {e}, {room} blocks of room");
                ensure!(self.store.space() == before, "a refused overwrite took space");
                Ok(None)
            }
        }
    }

    fn sums(&self, aligned: &[u8]) -> Vec<Checksum> {
        let mut sums = Checksum::of_each(aligned);
        if self.planted == Planted::ChecksumOfOldBytes && self.clock.is_multiple_of(3) {
            sums[0] = Checksum::of(&[0; B]);
        }
        sums
    }

    /// Every block that is mapped and has a checksum reads as it says.
    fn verify(&self) -> Result<(), String> {
        for object in (0..OBJECTS).map(id) {
            for (at, e) in self.store.extents(object).filter(|(_, e)| e.written) {
                for (physical, sum) in (e.physical..).zip(self.store.checksums.of_run(e.physical, e.blocks.into())) {
                    let is_right = !sum.is_known() || sum == Checksum::of(&self.block(physical));
                    ensure!(is_right, "block {} of {object:?} is not as its checksum says", at + physical - e.physical);
                }
            }
        }
        Ok(())
    }

    fn payload(&self, len: u64) -> Vec<u8> {
        (0..len as usize).map(|i| (self.clock as usize * 31 + i * 7 + i / 512) as u8 | 1).collect()
    }

    /// Writes those sectors of a plan that reach the disk.
    fn put(&mut self, plan: &amphi_data::WritePlan, aligned: &[u8], sectors: u64) {
        for s in &plan.segments {
            let from = ((s.file_block * BLOCK) - plan.aligned().start) as usize;
            for sector in 0..s.blocks as usize * 8 {
                if sectors >> ((from / 512 + sector) % 64) & 1 == 1 {
                    let bytes = &aligned[from + sector * 512..][..512];
                    self.disk[s.physical as usize * B + sector * 512..][..512].copy_from_slice(bytes);
                }
            }
        }
    }

    /// After a crash or a kill these bytes may be the old or the new ones.
    fn note_written(&mut self, object: ObjectId, range: ByteRange) {
        for written in [&mut self.written, &mut self.unkept] {
            let seen = written.entry(object).or_default();
            seen.resize(seen.len().max(range.end as usize), false);
            seen[range.start as usize..range.end as usize].fill(true);
        }
    }

    /// Accepts a write into memory; `killed`: the process ends in front of the record. Returns whether there was room.
    fn accept(&mut self, object: ObjectId, range: ByteRange, killed: bool) -> Result<bool, String> {
        let generation = self.model.get(&object).map_or(0, |m| m.generation);
        match self.store.check_accept(object, range, generation, None) {
            Ok(_) => {}
            Err(Errno::NoSpace) => return Ok(false),
            Err(e) => return Err(format!("not accepted: {e}")),
        }
        let Some(slot) = self.pool.take(range.start, range.len()) else { return Ok(false) };
        let payload = self.payload(range.len());
        self.memory[slot.at() as usize..][..payload.len()].copy_from_slice(&payload);
        if killed {
            return Ok(true);
        }
        let mut txn = Txn::default();
        let memory = Memory::new(range.start, payload.len() as u32, sum(&payload), slot, DataChecksums::Auto);
        self.store.accept(object, range, self.mtime(), Rc::new(memory), self.clock, &mut txn);
        self.committed(txn, Freed::default());
        self.note_written(object, range);
        let m = self.model.entry(object).or_default();
        m.bytes.resize(m.bytes.len().max(range.end as usize), 0);
        m.bytes[range.start as usize..range.end as usize].copy_from_slice(&payload);
        Ok(true)
    }

    /// Flushes the delayed bytes of a range, rounded out. With `sectors` the process ends in the middle.
    fn flush(&mut self, object: ObjectId, range: ByteRange, sectors: Option<u64>) -> Result<(), String> {
        for run in self.store.delayed.runs(object, range.align_out(BLOCK)) {
            let needed = |store: &mut DataStore| {
                store.plan_flush(object, run, Fresh::Needed).map_err(|e| format!("flush refused: {e}"))
            };
            let mut plan = needed(&mut self.store)?;
            if (run.start / BLOCK).is_multiple_of(3) {
                // The disk does not take it there.
                self.store.set_aside(&mut plan);
                let moved = self.store.plan_flush(object, run, Fresh::All);
                self.store.abort_write(plan);
                plan = match moved {
                    Ok(plan) => plan,
                    Err(_) => needed(&mut self.store)?,
                };
            }
            let mut aligned = vec![0xBB; plan.aligned().len() as usize];
            let pad = (run.start - plan.aligned().start) as usize;
            let (_, bytes) = self.read(&self.store, object, run);
            aligned[pad..pad + bytes.len()].copy_from_slice(&bytes);
            if self.planted == Planted::GapsNotKept {
                aligned[pad..pad + bytes.len()].fill(0);
                for o in self.store.delayed.within(object, run) {
                    let to = pad + (o.range.start - run.start) as usize;
                    let len = o.range.len() as usize;
                    aligned[to..to + len].copy_from_slice(&self.overlay(&o));
                }
            }
            let old: Vec<Vec<u8>> = plan.edges.iter().map(|e| self.block(e.physical)).collect();
            complete_edges(&plan, &mut aligned, &old.iter().map(Vec::as_slice).collect::<Vec<_>>());
            if self.checksums {
                plan.set_checksums(self.sums(&aligned));
            }
            self.put(&plan, &aligned, sectors.unwrap_or(u64::MAX));
            if sectors.is_some() {
                return Ok(());
            }
            let mut txn = Txn::default();
            let freed = self.store.commit_write(plan, self.mtime(), &mut txn);
            self.committed(txn, freed);
        }
        Ok(())
    }

    fn flush_all(&mut self) -> Result<(), String> {
        (0..OBJECTS).try_for_each(|object| self.flush(id(object), ByteRange::ALL, None))?;
        ensure!(self.store.delayed.is_empty(), "something is left");
        Ok(())
    }

    /// The effect of a sync of few bytes: they are logged and not flushed.
    fn log_all(&mut self) {
        let of = |file| self.store.delayed.unlogged(file, usize::MAX).unwrap_or_default();
        let mut parts = of(None);
        let files: BTreeSet<Ino> = (0..OBJECTS).map(|object| id(object).ino).collect();
        assert_eq!(parts, files.into_iter().flat_map(|ino| of(Some(ino))).collect::<Vec<_>>(), "file by file");
        if self.planted == Planted::HalfLogged {
            parts.truncate(parts.len() / 2);
        }
        let loaded: Vec<_> = parts.iter().map(|(id, part)| (*id, part.range, self.overlay(part))).collect();
        let mut txn = Txn::default();
        self.store.delayed.log(loaded.iter().map(|(id, range, bytes)| (*id, *range, &bytes[..])), &mut txn);
        self.committed(txn, Freed::default());
    }

    fn keep(&mut self) {
        self.kept_items = self.items.clone();
        self.kept_model = self.model.clone();
        self.unkept.clear();
        self.dead.clear();
    }

    fn stable(&mut self) {
        self.keep();
        self.stable_items = self.items.clone();
        self.stable_model = self.model.clone();
        self.written.clear();
        for f in self.freed.drain(..) {
            self.store.release(f);
        }
    }

    /// The process is killed: kept records, the disk and the memory are there.
    fn kill(&mut self) -> Result<(), String> {
        self.items = self.kept_items.clone();
        self.store = loaded(&self.items)?;
        for (object, range, memory) in self.store.delayed.memories() {
            if memory.bytes().is_some() {
                continue;
            }
            let bytes = &self.memory[memory.at as usize..][..memory.len as usize];
            ensure!(sum(bytes) == memory.crc, "the memory of {range:?} of {object:?} was used again");
        }
        self.freed.clear();
        self.txns.clear();
        self.dead.clear();
        self.pool = PagePool::new(0);
        let (mut model, unkept) = (self.kept_model.clone(), self.unkept.clone());
        self.settle(&mut model, &unkept, "a kill")?;
        self.model = model;
        self.flush_all()?;
        self.pool = PagePool::new(PAGES);
        // A start makes what it has found and flushed stable.
        self.stable();
        Ok(())
    }

    /// After a crash: all bytes are as in `model` except excused ones, for which the model adopts the present bytes.
    fn settle(
        &self,
        model: &mut BTreeMap<ObjectId, Model>,
        excused: &BTreeMap<ObjectId, Vec<bool>>,
        what: &str,
    ) -> Result<(), String> {
        self.verify()?;
        for (object, m) in model {
            let (plan, bytes) = self.read(&self.store, *object, ByteRange::ALL);
            ensure!(plan.end as usize == m.bytes.len(), "{object:?} has the wrong end after {what}");
            for (i, (now, then)) in bytes.iter().zip(&m.bytes).enumerate() {
                let excused = excused.get(object).is_some_and(|w| w.get(i) == Some(&true));
                ensure!(now == then || excused, "byte {i} of {object:?} changed by {what}: {then} became {now}");
            }
            m.bytes = bytes;
        }
        Ok(())
    }

    /// Gives an owner to objects that have none, and sometimes another one to an object that has.
    fn own(&mut self) {
        self.store.set_counting(!self.clock.is_multiple_of(29));
        let owner = |n: u64| Owner { uid: (n % 3) as u32, gid: 7, project: (n % 2) as u32 };
        for object in self.store.objects_of_nobody(None, usize::MAX) {
            self.store.set_owner(object, owner(object.ino.0));
        }
        if self.clock.is_multiple_of(5) {
            self.store.set_owner(id((self.clock / 5) as u8 % OBJECTS), owner(self.clock));
        }
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        self.clock += 1;
        self.own();
        let mut txn = Txn::default();
        match *op {
            Op::Write { object, start, len } => {
                if let Some(plan) = self.write(id(object), ByteRange::at(start, len), u64::MAX)? {
                    let freed = self.store.commit_write(plan, self.mtime(), &mut txn);
                    self.committed(txn, freed);
                }
            }
            Op::AbortedWrite { object, start, len } => {
                let (free, model) = (self.store.space(), self.model.clone());
                let generation = self.model.get(&id(object)).map_or(0, |m| m.generation);
                if let Ok(plan) =
                    self.store.plan_write(id(object), ByteRange::at(start, len), generation, Fresh::Needed, None)
                {
                    if self.planted == Planted::ForgetToFreeOnAbort && !plan.edges.is_empty() {
                        std::mem::forget(plan);
                    } else {
                        self.store.abort_write(plan);
                    }
                }
                ensure!(self.store.space() == free, "an aborted write kept space");
                self.model = model;
            }
            Op::CrashedWrite { object, start, len, sectors } => {
                self.write(id(object), ByteRange::at(start, len), sectors & !1)?;
                self.crash()?;
            }
            Op::Truncate { object, size, set } => {
                let object = id(object);
                let generation = self.model.get(&object).map_or(0, |m| m.generation) + 1;
                let how = if set { Resize::Set } else { Resize::Cut };
                let Ok(mut plan) = self.store.plan_truncate(object, size, generation, how) else {
                    return Ok(());
                };
                self.zero_edges(&mut plan);
                let freed = self.store.commit_trim(plan, self.mtime(), &mut txn);
                let m = self.model.entry(object).or_default();
                m.generation = generation;
                let keep = if set { size as usize } else { m.bytes.len().min(size as usize) };
                m.bytes.resize(keep, 0);
                self.committed(txn, freed);
                let again = self.store.plan_truncate(object, 0, generation, how).map_err(|e| e.to_string())?;
                ensure!(again.is_noop(), "a resent truncate was applied again");
            }
            Op::Punch { object, start, len } => {
                let object = id(object);
                let generation = self.model.get(&object).map_or(0, |m| m.generation);
                let Ok(mut plan) = self.store.plan_punch(object, ByteRange::at(start, len), generation) else {
                    return Ok(());
                };
                self.zero_edges(&mut plan);
                let freed = self.store.commit_trim(plan, self.mtime(), &mut txn);
                if let Some(m) = self.model.get_mut(&object) {
                    let end = m.bytes.len();
                    m.bytes[(start as usize).min(end)..((start + len) as usize).min(end)].fill(0);
                }
                self.committed(txn, freed);
            }
            Op::Allocate { object, start, len, extend } => {
                let object = id(object);
                let generation = self.model.get(&object).map_or(0, |m| m.generation);
                let how = if extend { Preallocate::Extend } else { Preallocate::KeepEnd };
                let free = self.store.space();
                match self.store.allocate(object, ByteRange::at(start, len), generation, how, self.mtime(), &mut txn) {
                    Ok(()) => {
                        let m = self.model.entry(object).or_default();
                        if extend {
                            m.bytes.resize(m.bytes.len().max((start + len) as usize), 0);
                        }
                        self.committed(txn, Freed::default());
                    }
                    Err(e) => {
                        ensure!(e == Errno::NoSpace && txn.is_empty(), "allocate failed with {e}");
                        ensure!(self.store.space() == free, "a refused preallocation took space");
                    }
                }
            }
            Op::Destroy { object, items } => {
                let ino = id(object).ino;
                loop {
                    let mut txn = Txn::default();
                    let d = self.store.destroy_some(ino, items, &mut txn);
                    ensure!(txn.len() <= items.max(1), "a step of destroy is too large");
                    self.committed(txn, d.freed);
                    if d.done {
                        break;
                    }
                }
                self.model.retain(|o, _| o.ino != ino);
                // The truncate generations of these objects are lost, and so are the bytes that were written to them.
                self.written.retain(|o, _| o.ino != ino || self.stable_model.contains_key(o));
                self.unkept.retain(|o, _| o.ino != ino || self.kept_model.contains_key(o));
            }
            Op::Accept { object, start, len } => {
                let space = self.store.space();
                if !self.accept(id(object), ByteRange::at(start, len), false)? {
                    ensure!(self.store.space() == space, "a refused write took space");
                }
            }
            Op::KilledAccept { object, start, len } => {
                if self.accept(id(object), ByteRange::at(start, len), true)? {
                    self.kill()?;
                }
            }
            Op::Flush { object, start, len } => self.flush(id(object), ByteRange::at(start, len), None)?,
            Op::TornFlush { object, sectors } => {
                self.flush(id(object), ByteRange::ALL, Some(sectors))?;
                self.kill()?;
            }
            Op::Kept => self.keep(),
            Op::Kill => self.kill()?,
            Op::Stable => {
                if self.planted != Planted::StableUnflushed {
                    self.flush_all()?;
                }
                self.stable();
                ensure!(self.planted != Planted::Nothing || self.store.pending_blocks() == 0, "pending after release");
            }
            Op::StableLogged => {
                self.log_all();
                self.stable();
            }
            Op::Crash => self.crash()?,
            Op::OldRequest { object } => {
                if let Some(m) = self.model.get(&id(object)).filter(|m| m.generation > 0) {
                    let range = ByteRange::at(0, 10);
                    let r = self.store.plan_write(id(object), range, m.generation - 1, Fresh::Needed, None);
                    ensure!(r == Err(Errno::Stale), "a write older than a truncate was accepted");
                    let r = self.store.plan_punch(id(object), range, m.generation - 1);
                    ensure!(r == Err(Errno::Stale), "a punch older than a truncate was accepted");
                }
            }
            Op::Checksums { on } => self.checksums = on,
            Op::Adopt { object } => {
                for (_, e) in self.store.extents(id(object)).filter(|(_, e)| e.written).collect::<Vec<_>>() {
                    let read = &self.disk[e.physical as usize * B..][..e.blocks as usize * B];
                    self.store.adopt_checksums(e.physical, &Checksum::of_each(read), &mut txn);
                }
                self.committed(txn, Freed::default());
            }
            Op::Forget { object, start, len, sectors } => {
                let range = ByteRange::at(start, len);
                self.store.forget_checksums(id(object), range, &mut txn);
                self.committed(txn, Freed::default());
                if self.planted != Planted::ChecksumKeptInPlace {
                    self.flush_all()?;
                    self.stable();
                }
                self.write(id(object), range, sectors / 6 * 6)?;
                self.crash()?;
            }
        }
        self.compare()
    }

    fn zero_edges(&mut self, plan: &mut amphi_data::TrimPlan) {
        for e in &mut plan.edges {
            let mut block = self.block(e.old);
            block[e.zero.clone()].fill(0);
            self.disk[e.fresh as usize * B..][..B].copy_from_slice(&block);
            if self.checksums {
                e.checksum = Checksum::of(&block);
            }
        }
    }

    /// The machine stops: only stable records are left.
    fn crash(&mut self) -> Result<(), String> {
        self.items = self.stable_items.clone();
        self.store = loaded(&self.items)?;
        self.freed.clear();
        self.txns.clear();
        self.dead.clear();
        // The memory has gone, with its contents.
        self.memory.fill(0xDD);
        let mut txn = Txn::default();
        for (object, range) in self.store.delayed.objects().collect::<Vec<_>>() {
            self.store.drop_delayed(object, range, &mut txn);
        }
        drop(self.store.delayed.take_dead());
        apply(&mut self.items, &txn);
        self.stable_items = self.items.clone();
        self.pool = PagePool::new(PAGES);
        let (mut model, written) = (self.stable_model.clone(), self.written.clone());
        self.settle(&mut model, &written, "a crash")?;
        self.model = model;
        self.stable_model = self.model.clone();
        self.written.clear();
        self.keep();
        // A start writes the contents of the log to the disk, and may be interrupted before these are stable.
        if self.clock.is_multiple_of(2) {
            self.flush_all()?;
            self.stable();
        }
        Ok(())
    }

    fn compare(&self) -> Result<(), String> {
        self.store.check()?;
        self.verify()?;
        for object in 0..OBJECTS {
            let object = id(object);
            let empty = Model::default();
            let m = self.model.get(&object).unwrap_or(&empty);
            let (plan, bytes) = self.read(&self.store, object, ByteRange::ALL);
            ensure!(plan.end as usize == m.bytes.len(), "{object:?} ends at {}, not {}", plan.end, m.bytes.len());
            if bytes != m.bytes {
                let i = bytes.iter().zip(&m.bytes).position(|(a, b)| a != b);
                return Err(format!("{object:?} differs at byte {i:?}"));
            }
            let part = ByteRange::new(self.clock * 777 % 50_000, self.clock * 777 % 50_000 + self.clock * 97 % 9000);
            let (plan, bytes) = self.read(&self.store, object, part);
            let (a, b) = (plan.range.start as usize, plan.range.end as usize);
            ensure!(bytes == m.bytes.get(a..b).unwrap_or(&[]), "{object:?}: a part differs");
            self.compare_seek(object, &m.bytes)?;
        }
        let mut keys: Vec<Key> = Vec::new();
        loop {
            let more = self.store.keys_after(keys.last().map_or(&[], Vec::as_slice), 3);
            if more.is_empty() {
                break;
            }
            keys.extend(more);
        }
        let held: Items = keys.into_iter().map(|k| (k.clone(), self.store.value_of(&k).unwrap_or_default())).collect();
        ensure!(held == self.items, "the items of the store are not what its records say");
        // Replaying any suffix of the records over the image they made changes nothing.
        let mut again = self.items.clone();
        let suffix = self.clock as usize * 7 % (self.txns.len() + 1);
        self.txns[suffix..].iter().for_each(|t| apply(&mut again, t));
        ensure!(again == self.items, "replaying records from {suffix} on is not idempotent");
        let report = fsck_items(self.items.iter().map(|(k, v)| (k.as_slice(), v.as_slice())), DISK_BLOCKS);
        ensure!(report.problems.is_empty(), "fsck: {:?}", report.problems);
        Ok(())
    }

    /// Every byte of a hole is zero, runs of data ascend without touching, and requests for parts return the same runs
    /// as one request for all.
    fn compare_seek(&self, object: ObjectId, bytes: &[u8]) -> Result<(), String> {
        let (all, known_to) = self.store.data_runs(object, 0, usize::MAX);
        ensure!(known_to.is_none(), "not all of {object:?}");
        let (mut behind, len) = (0, bytes.len() as u64);
        for run in &all {
            ensure!(run.start < run.end && (behind == 0 || run.start > behind), "runs of {object:?}: {all:?}");
            let hole = &bytes[behind as usize..run.start.min(len) as usize];
            ensure!(hole.iter().all(|&b| b == 0), "a hole of {object:?} has bytes");
            ensure!(run.start < len, "data behind the end");
            behind = run.end.min(len);
        }
        ensure!(bytes[behind as usize..].iter().all(|&b| b == 0), "the last hole of {object:?} has bytes");
        let (mut parts, mut from) = (Vec::new(), 0);
        loop {
            let (some, known_to) = self.store.data_runs(object, from, 2);
            ensure!(some.len() <= 2, "{} runs", some.len());
            parts.extend(some);
            match known_to {
                Some(next) if next > from => from = next,
                Some(_) => return Err(format!("no way on in {object:?}")),
                None => break,
            }
        }
        ensure!(parts == all, "in parts {parts:?}, at once {all:?}");
        let later = self.store.data_runs(object, len, 2).0;
        ensure!(later.is_empty(), "data behind the end");
        Ok(())
    }
}

fn op() -> impl Strategy<Value = Op> {
    let object = 0..OBJECTS;
    let block = 0u64..24;
    // Offsets at block borders, near them and anywhere.
    let at =
        (block, prop_oneof![3 => Just(0u64), 1 => 1u64..4096, 1 => Just(4095u64)]).prop_map(|(b, o)| b * BLOCK + o);
    let len = prop_oneof![1u64..600, 1u64..40_000, (1u64..12).prop_map(|b| b * BLOCK)];
    let place = (object.clone(), at.clone(), len);
    prop_oneof![
        8 => place.clone().prop_map(|(object, start, len)| Op::Write { object, start, len }),
        1 => place.clone().prop_map(|(object, start, len)| Op::AbortedWrite { object, start, len }),
        1 => (place.clone(), any::<u64>()).prop_map(|((object, start, len), sectors)| Op::CrashedWrite { object, start, len, sectors }),
        2 => (object.clone(), at, any::<bool>()).prop_map(|(object, size, set)| Op::Truncate { object, size, set }),
        2 => place.clone().prop_map(|(object, start, len)| Op::Punch { object, start, len }),
        1 => (place.clone(), any::<bool>()).prop_map(|((object, start, len), extend)| Op::Allocate { object, start, len, extend }),
        1 => (object.clone(), 1usize..5).prop_map(|(object, items)| Op::Destroy { object, items }),
        8 => place.clone().prop_map(|(object, start, len)| Op::Accept { object, start, len }),
        1 => place.clone().prop_map(|(object, start, len)| Op::KilledAccept { object, start, len }),
        2 => place.clone().prop_map(|(object, start, len)| Op::Flush { object, start, len }),
        1 => (object.clone(), any::<u64>()).prop_map(|(object, sectors)| Op::TornFlush { object, sectors }),
        2 => Just(Op::Kept),
        1 => Just(Op::Kill),
        2 => Just(Op::Stable),
        3 => Just(Op::StableLogged),
        1 => Just(Op::Crash),
        1 => object.clone().prop_map(|object| Op::OldRequest { object }),
        2 => any::<bool>().prop_map(|on| Op::Checksums { on }),
        1 => object.prop_map(|object| Op::Adopt { object }),
        1 => (place, any::<u64>()).prop_map(|((object, start, len), sectors)| Op::Forget { object, start, len, sectors }),
    ]
}

fn run(ops: &[Op], planted: Planted) -> Result<(), String> {
    let mut bench = Bench::new(planted);
    for op in ops {
        bench.step(op).map_err(|e| format!("{op:?}: {e}"))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: contents, ends, holes, generations, items, counts of space and states after a crash are right. Method: as
    /// in the head.
    #[test]
    fn operations_match_byte_vectors(ops in proptest::collection::vec(op(), 1..80)) {
        if let Err(e) = run(&ops, Planted::Nothing) {
            prop_assert!(false, "{}", e);
        }
    }
}

/// Goal: the check above can fail. Method: planted mistakes, each must be found within 300 random runs.
#[test]
fn planted_mistakes_are_found() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    for planted in [
        Planted::ReleaseBeforeStable,
        Planted::NoZeroFill,
        Planted::ForgetToFreeOnAbort,
        Planted::PagesTooEarly,
        Planted::GapsNotKept,
        Planted::StableUnflushed,
        Planted::HalfLogged,
        Planted::ChecksumOfOldBytes,
        Planted::ChecksumKeptInPlace,
    ] {
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let found = (0..300).any(|_| {
            let ops = proptest::collection::vec(op(), 40..80).new_tree(&mut runner).unwrap().current();
            run(&ops, planted).is_err()
        });
        assert!(found, "{planted:?} was not noticed");
    }
}

fn txn_of(store: &mut DataStore, object: ObjectId, range: ByteRange) -> (Txn, Freed) {
    let mut txn = Txn::default();
    let plan = store.plan_write(object, range, 0, Fresh::Needed, None).unwrap();
    let freed = store.commit_write(plan, Timespec::default(), &mut txn);
    (txn, freed)
}

/// Goal: appends make one extent, not one per write. Method: 1000 writes of a block.
#[test]
fn appends_merge_into_one_extent() {
    let mut store = DataStore::new(2000);
    for b in 0..1000 {
        let (txn, freed) = txn_of(&mut store, id(0), ByteRange::at(b * BLOCK, BLOCK));
        assert!(freed.is_empty());
        assert!(txn.len() <= 3, "one extent, perhaps the deletion of what joined it, one object");
    }
    assert_eq!(store.extents(id(0)).count(), 1);
    assert_eq!(store.blocks_of(id(0).ino), 1000);
}

/// Goal: a hole and a preallocation set the modification time, even if no block is added or removed, but never to an
/// earlier time. To store the time, a hole creates object 0, but no other object. Method: each at an earlier and a
/// later time, on an object with a block and on ones that do not exist.
#[test]
fn changes_of_no_block_have_a_time() {
    let mut store = DataStore::new(2000);
    let at = |sec| Timespec { sec, nsec: 0 };
    let (block, mut txn) = (ByteRange::at(0, BLOCK), Txn::default());
    let punch = |store: &mut DataStore, object, sec, txn: &mut Txn| {
        let plan = store.plan_punch(object, ByteRange::at(40 * BLOCK, BLOCK), 0).unwrap();
        assert!(store.commit_trim(plan, at(sec), txn).is_empty());
        store.object(object).map(|o| (o.mtime, o.end))
    };
    let allocate = |store: &mut DataStore, object, sec, txn: &mut Txn| {
        store.allocate(object, block, 0, Preallocate::KeepEnd, at(sec), txn).unwrap();
        store.object(object).map(|o| (o.mtime, o.end))
    };
    let plan = store.plan_write(id(0), block, 0, Fresh::Needed, None).unwrap();
    assert!(store.commit_write(plan, at(5), &mut txn).is_empty());
    for change in [&punch as &dyn Fn(&mut DataStore, _, _, &mut Txn) -> _, &allocate] {
        let before = store.object(id(0)).unwrap().mtime;
        assert_eq!(change(&mut store, id(0), 4, &mut txn), Some((before, BLOCK)), "an earlier time");
        let mut txn = Txn::default();
        let later = before.sec + 1;
        assert_eq!(change(&mut store, id(0), later, &mut txn), Some((at(later), BLOCK)));
        assert!(!txn.is_empty(), "it outlives the store");
    }
    let absent = |stripe| ObjectId { ino: Ino(77), stripe };
    assert_eq!(punch(&mut store, absent(0), 9, &mut txn), Some((at(9), 0)));
    assert_eq!(punch(&mut store, absent(1), 9, &mut txn), None);
    assert_eq!(allocate(&mut store, absent(1), 9, &mut txn), Some((at(9), 0)));
}

/// Goal: a full zone refuses growth cleanly, lets everything else shrink, and takes writes again afterwards.
/// Method: fill, truncate into the middle of a block (needs a block from the reserve), release, write again.
#[test]
fn a_full_zone_can_shrink() {
    let mut store = DataStore::new(640);
    let (_, free) = store.space();
    let _ = txn_of(&mut store, id(0), ByteRange::at(0, free * BLOCK));
    assert_eq!(store.plan_write(id(1), ByteRange::at(0, 1), 0, Fresh::Needed, None), Err(Errno::NoSpace));
    // Overwrites of whole blocks in place need no space; an edge block does.
    let plan = store.plan_write(id(0), ByteRange::at(0, 10 * BLOCK), 0, Fresh::Needed, None).unwrap();
    assert!(!plan.points_at_new_data());
    store.abort_write(plan);
    assert_eq!(store.plan_write(id(0), ByteRange::at(5, 10), 0, Fresh::Needed, None), Err(Errno::NoSpace));
    // Overwrites can use the blocks that are kept back, except those that are left to truncates; writes that grow an
    // object cannot.
    let (room, end) = (store.overwrite_room(), free * BLOCK);
    let most = store.plan_overwrite(id(0), ByteRange::at(0, room * BLOCK), 0, Fresh::Written, None).unwrap();
    assert_eq!((most.segments.iter().map(|s| u64::from(s.blocks)).sum::<u64>(), room), (8, 8));
    assert_eq!(store.plan_overwrite(id(0), ByteRange::at(end - 100, 50), 0, Fresh::Written, None), Err(Errno::NoSpace));
    let freed = store.commit_write(most, Timespec::default(), &mut Txn::default());
    store.release(freed);
    for at in [end - 50, end, end + BLOCK] {
        assert_eq!(store.plan_overwrite(id(0), ByteRange::at(at, 100), 0, Fresh::Written, None), Err(Errno::NoSpace));
    }
    let plan = store.plan_overwrite(id(0), ByteRange::at(5, 10), 0, Fresh::Needed, None).unwrap();
    store.abort_write(plan);
    let plan = store.plan_truncate(id(0), 100 * BLOCK + 5, 1, Resize::Set).unwrap();
    assert_eq!(plan.edges.len(), 1);
    let mut txn = Txn::default();
    let freed = store.commit_trim(plan, Timespec::default(), &mut txn);
    assert_eq!(
        store.plan_write(id(1), ByteRange::at(0, BLOCK * 20), 0, Fresh::Needed, None),
        Err(Errno::NoSpace),
        "not released yet"
    );
    store.release(freed);
    let _ = txn_of(&mut store, id(1), ByteRange::at(0, BLOCK * 20));
    store.check().unwrap();
}

/// Goal: loading reports what cannot be. Method: items that overlap, leave the zone, lack their object, are cut
/// short.
#[test]
fn bad_items_are_named() {
    let mut store = DataStore::new(DISK_BLOCKS);
    let (a, _) = txn_of(&mut store, id(0), ByteRange::at(0, 4 * BLOCK));
    let (b, _) = txn_of(&mut store, id(1), ByteRange::at(0, 4 * BLOCK));
    let mut items = Items::new();
    apply(&mut items, &a);
    apply(&mut items, &b);
    let problems = |items: &Items| {
        let report = fsck_items(items.iter().map(|(k, v)| (k.as_slice(), v.as_slice())), DISK_BLOCKS);
        (loaded(items).err(), report.problems)
    };
    assert_eq!(problems(&items), (None, vec![]));
    let extent = items.keys().rfind(|k| k[0] == b'E').unwrap().clone();
    let object = items.keys().rfind(|k| k[0] == b'B').unwrap().clone();
    let edit = |key: &Key, change: &dyn Fn(&mut Vec<u8>), word: &str| {
        let mut bad = items.clone();
        change(bad.get_mut(key).unwrap());
        let (load, fsck) = problems(&bad);
        assert!(load.as_ref().is_some_and(|t| t.contains(word)), "{word}: {load:?}");
        assert!(!fsck.is_empty(), "{word}");
    };
    edit(&extent, &|v| v[0] = 2, "shares physical blocks");
    edit(&extent, &|v| v[7] = 1, "outside");
    edit(&extent, &|v| v[11] = 1, "out of bounds");
    edit(&extent, &|v| v[8..12].fill(0), "out of bounds");
    edit(&extent, &|v| v.truncate(5), "does not decode");
    edit(&object, &|v| v.truncate(5), "does not decode");
    let mut orphan = items.clone();
    orphan.remove(&object);
    assert!(problems(&orphan).0.unwrap().contains("no item of its own"));
    assert_eq!(problems(&orphan).1.len(), 1);
    assert!(store.load(b"Zzz", b"").is_err());
}
