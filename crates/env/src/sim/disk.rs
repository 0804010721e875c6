//! Simulated disks: blocks in memory, with the loss that crashes bring.
//!
//! Owns: the files of a node, operations in flight, what survives which crash. Does not own: when a node crashes.
//!
//! Fault model. A write takes effect when it completes. At a crash of the process, each write in flight is lost,
//! complete, or torn at 512 bytes, each 4 KiB block independently. Completed writes stay. At a loss of power the same
//! happens to every write since the last sync as well. For each such write of a block, the crash drops it, applies it
//! in its order, or applies only some of its sectors. A sync makes stable what had completed when it was called. A
//! discarded block reads as zeros or keeps its old bytes, at random.

use super::rng::Rng;
use super::world::{Core, Event, Kind, World};
use super::{CrashKind, SimEnv};
use crate::{Buf, Disk, DiskMode, IoBuf};
use amphi_types::limits::BLOCK;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Unit of tearing in bytes: what devices write atomically at least.
const SECTOR: usize = 512;

type Block = Rc<[u8; BLOCK as usize]>;

/// Kind of a disk operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOpKind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A sync.
    Sync,
    /// A discard.
    Discard,
}

/// A disk operation that starts, as fault hooks see it.
#[derive(Clone, Debug)]
pub struct DiskOp {
    /// Path of the disk.
    pub path: String,
    /// The kind of the operation.
    pub kind: DiskOpKind,
    /// Offset in bytes.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Disk operations that a node started since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskOps {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// The number of syncs.
    pub syncs: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// One file: its blocks as a process sees them, its blocks as of the last sync, and the changes in between, oldest
/// first. An absent block and a `None` are zeros.
#[derive(Default)]
struct File {
    size: u64,
    seen: BTreeMap<u64, Block>,
    stable: BTreeMap<u64, Block>,
    unsynced: Vec<(u64, Option<Block>)>,
    /// Changes that earlier syncs took out of `unsynced`.
    synced: u64,
    exclusive: bool,
    shared: u32,
    /// Blocks that were given storage without being written.
    reserved: BTreeSet<u64>,
}

impl File {
    fn has_storage(&self, index: u64) -> bool {
        self.seen.contains_key(&index) || self.reserved.contains(&index)
    }

    fn change(&mut self, index: u64, block: Option<Block>) {
        match &block {
            Some(b) => self.seen.insert(index, b.clone()),
            None => self.seen.remove(&index),
        };
        self.unsynced.push((index, block));
    }

    fn settle(&mut self, mark: u64) {
        let n = mark.saturating_sub(self.synced).min(self.unsynced.len() as u64);
        for (index, block) in self.unsynced.drain(..n as usize) {
            match block {
                Some(b) => self.stable.insert(index, b),
                None => self.stable.remove(&index),
            };
        }
        self.synced += n;
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        for (i, part) in out.chunks_mut(BLOCK as usize).enumerate() {
            match self.seen.get(&(at / BLOCK + i as u64)) {
                Some(block) => part.copy_from_slice(&block[..part.len()]),
                None => part.fill(0),
            }
        }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        for (i, part) in bytes.chunks_exact(BLOCK as usize).enumerate() {
            self.change(at / BLOCK + i as u64, Some(block_of(part)));
        }
    }

    /// Applies a write that did not return: each block is lost, whole or torn.
    fn write_some(&mut self, at: u64, bytes: &[u8], rng: &mut Rng) {
        let fate = Fate::random(rng);
        for (i, part) in bytes.chunks_exact(BLOCK as usize).enumerate() {
            let index = at / BLOCK + i as u64;
            if let Some(block) = fate.meet(self.seen.get(&index), &Some(block_of(part)), rng) {
                self.change(index, block);
            }
        }
    }

    fn lose_power(&mut self, rng: &mut Rng) {
        let fate = Fate::random(rng);
        self.synced += self.unsynced.len() as u64;
        for (index, block) in std::mem::take(&mut self.unsynced) {
            if let Some(block) = fate.meet(self.stable.get(&index), &block, rng) {
                match block {
                    Some(b) => self.stable.insert(index, b),
                    None => self.stable.remove(&index),
                };
            }
        }
        self.seen = self.stable.clone();
    }
}

fn block_of(bytes: &[u8]) -> Block {
    let mut block = [0; BLOCK as usize];
    block.copy_from_slice(bytes);
    Rc::new(block)
}

/// The effect of a crash on a set of changes. Extremes are as likely as mixtures, because both reveal bugs. In a
/// mixture, a varying share of the blocks or sectors is lost, down to nearly none.
enum Fate {
    Lost,
    Whole,
    PerBlock(u64),
    PerSector(u64),
}

/// One block or sector in this many is lost.
const LOST_IN: [u64; 3] = [2, 8, 64];

impl Fate {
    fn random(rng: &mut Rng) -> Fate {
        let lost_in = LOST_IN[rng.below(LOST_IN.len() as u64) as usize];
        match rng.below(6) {
            0 => Fate::Lost,
            1 => Fate::Whole,
            2 | 3 => Fate::PerBlock(lost_in),
            _ => Fate::PerSector(lost_in),
        }
    }

    /// The result of the change of a block from `old` to `new`: None if it is lost.
    fn meet(&self, old: Option<&Block>, new: &Option<Block>, rng: &mut Rng) -> Option<Option<Block>> {
        match self {
            Fate::Lost => None,
            Fate::Whole => Some(new.clone()),
            Fate::PerBlock(lost_in) => (rng.below(*lost_in) > 0).then(|| new.clone()),
            Fate::PerSector(lost_in) => {
                let mut mixed = old.map_or([0; BLOCK as usize], |b| **b);
                for (i, sector) in mixed.chunks_exact_mut(SECTOR).enumerate() {
                    if rng.below(*lost_in) > 0 {
                        match new {
                            Some(new) => sector.copy_from_slice(&new[i * SECTOR..(i + 1) * SECTOR]),
                            None => sector.fill(0),
                        }
                    }
                }
                Some(Some(Rc::new(mixed)))
            }
        }
    }
}

/// The file system of a node; it outlives the node's crashes.
pub(super) struct Files {
    files: BTreeMap<String, File>,
    dirs: BTreeSet<String>,
    /// Memory that outlives the process, by name.
    kept: BTreeMap<String, Memory>,
    free_bytes: u64,
    /// The number of blocks without storage for which the file system still has space. `None` means no limit.
    room: Option<u64>,
}

type Memory = Rc<RefCell<Vec<u8>>>;

fn clean(path: &str) -> &str {
    path.trim_end_matches('/')
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

fn not_found(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{path}: not found"))
}

impl Files {
    pub(super) fn new(free_bytes: u64) -> Files {
        Files {
            files: BTreeMap::new(),
            dirs: BTreeSet::from([String::new()]),
            kept: BTreeMap::new(),
            free_bytes,
            room: None,
        }
    }

    pub(super) fn make_dir(&mut self, dir: &str) -> io::Result<()> {
        let mut dir = clean(dir);
        while !dir.is_empty() {
            if self.files.contains_key(dir) {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{dir}: is a file")));
            }
            self.dirs.insert(dir.to_string());
            dir = parent(dir);
        }
        Ok(())
    }

    pub(super) fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let dir = clean(dir);
        if !self.dirs.contains(dir) {
            return Err(not_found(dir));
        }
        let prefix = format!("{dir}/");
        let mut names: Vec<String> = (self.files.keys().chain(self.dirs.iter()))
            .filter_map(|path| path.strip_prefix(&prefix))
            .filter(|name| !name.is_empty() && !name.contains('/'))
            .map(str::to_string)
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    pub(super) fn kept_names(&self) -> Vec<String> {
        self.kept.keys().cloned().collect()
    }

    pub(super) fn kept(&self, name: &str) -> io::Result<Vec<u8>> {
        Ok(self.kept.get(name).ok_or_else(|| not_found(name))?.borrow().clone())
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.kept.remove(name);
    }

    pub(super) fn forget_all(&mut self) {
        self.kept.clear();
    }

    pub(super) fn free(&self, dir: &str) -> io::Result<u64> {
        let free = self.room.map_or(self.free_bytes, |blocks| blocks * BLOCK);
        if self.dirs.contains(clean(dir)) { Ok(free) } else { Err(not_found(dir)) }
    }

    pub(super) fn set_room(&mut self, blocks: Option<u64>) {
        self.room = blocks;
    }

    /// Gives storage to the blocks of a range that have none: all of them, or an error.
    fn provide(&mut self, path: &str, at: u64, len: u64) -> io::Result<Vec<u64>> {
        let Some(room) = self.room else { return Ok(Vec::new()) };
        let file = self.files.get(path).ok_or_else(|| not_found(path))?;
        let wanted: Vec<u64> = (at / BLOCK..(at + len) / BLOCK).filter(|index| !file.has_storage(*index)).collect();
        let left = room.checked_sub(wanted.len() as u64);
        self.room = Some(left.ok_or_else(|| io::Error::from(io::ErrorKind::StorageFull))?);
        Ok(wanted)
    }

    fn reserve(&mut self, path: &str, at: u64, len: u64) -> io::Result<()> {
        let wanted = match self.room {
            Some(_) => self.provide(path, at, len)?,
            None => (at / BLOCK..(at + len) / BLOCK).collect(),
        };
        let file = self.files.get_mut(path).ok_or_else(|| not_found(path))?;
        file.reserved.extend(wanted);
        Ok(())
    }

    fn backed(&self, path: &str) -> io::Result<Vec<(u64, u64)>> {
        let file = self.files.get(path).ok_or_else(|| not_found(path))?;
        Ok(file.seen.keys().map(|index| (index * BLOCK, (index + 1) * BLOCK)).collect())
    }

    fn open(&mut self, path: &str, mode: DiskMode) -> io::Result<u64> {
        if !self.dirs.contains(parent(path)) || path.is_empty() {
            return Err(not_found(path));
        }
        if let DiskMode::Create(size) = mode {
            assert!(size.is_multiple_of(BLOCK), "disk size {size} is not a multiple of {BLOCK}");
            if self.files.contains_key(path) || self.dirs.contains(path) {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{path}: exists")));
            }
            self.files.insert(path.to_string(), File { size, ..File::default() });
        }
        let file = self.files.get_mut(path).ok_or_else(|| not_found(path))?;
        let read_only = mode == DiskMode::ReadOnly;
        if file.exclusive || (file.shared > 0 && !read_only) {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, format!("{path}: in use by another process")));
        }
        if read_only {
            file.shared += 1;
        } else {
            file.exclusive = true;
        }
        Ok(file.size)
    }

    fn close(&mut self, path: &str, read_only: bool) {
        if let Some(file) = self.files.get_mut(path) {
            if read_only {
                file.shared = file.shared.saturating_sub(1);
            } else {
                file.exclusive = false;
            }
        }
    }

    /// Bytes as a process would read them, without an operation.
    pub(super) fn peek(&self, path: &str, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let file = self.files.get(clean(path)).ok_or_else(|| not_found(path))?;
        let end = at.checked_add(len as u64).filter(|end| *end <= file.size).ok_or(io::ErrorKind::UnexpectedEof)?;
        let first = at - at % BLOCK;
        let mut bytes = vec![0; (end.next_multiple_of(BLOCK) - first) as usize];
        file.read(first, &mut bytes);
        Ok(bytes[(at - first) as usize..][..len].to_vec())
    }

    /// Overwrites bytes, stably, without an operation: damage of the medium.
    pub(super) fn poke(&mut self, path: &str, at: u64, bytes: &[u8]) -> io::Result<()> {
        let first = at - at % BLOCK;
        let end = (at + bytes.len() as u64).next_multiple_of(BLOCK);
        let mut blocks = self.peek(path, first, (end - first) as usize)?;
        blocks[(at - first) as usize..][..bytes.len()].copy_from_slice(bytes);
        let file = self.files.get_mut(clean(path)).ok_or_else(|| not_found(path))?;
        file.write(first, &blocks);
        for (i, part) in blocks.chunks_exact(BLOCK as usize).enumerate() {
            file.stable.insert(first / BLOCK + i as u64, block_of(part));
        }
        Ok(())
    }

    /// The files of the node after its crash; `ops` were in flight.
    pub(super) fn crash<'a>(&mut self, kind: CrashKind, ops: impl Iterator<Item = &'a PendingOp>, rng: &mut Rng) {
        for op in ops {
            let Some(file) = self.files.get_mut(&op.path) else { continue };
            let slot = op.slot.borrow();
            if let (DiskOpKind::Write, Some(buf)) = (op.kind, &slot.buf) {
                file.write_some(op.at, buf, rng);
            }
        }
        if kind == CrashKind::Power {
            self.forget_all();
        }
        for file in self.files.values_mut() {
            if kind == CrashKind::Power {
                file.lose_power(rng);
            }
            file.exclusive = false;
            file.shared = 0;
        }
    }
}

/// The place for the result of an operation.
#[derive(Default)]
struct Slot {
    buf: Option<Buf>,
    result: Option<io::Result<()>>,
    waker: Option<Waker>,
}

/// An operation in flight.
pub(super) struct PendingOp {
    path: String,
    kind: DiskOpKind,
    at: u64,
    len: u64,
    /// For a sync: the changes that it covers.
    mark: u64,
    fault: Option<io::ErrorKind>,
    slot: Rc<RefCell<Slot>>,
}

/// The space of a simulated machine for kept memory, bytes: more than any test takes.
const KEPT_ROOM: u64 = 1 << 40;

/// Simulated memory that outlives the process.
pub struct SimKept {
    env: SimEnv,
    name: String,
    memory: Memory,
}

impl SimEnv {
    pub(super) fn make_kept(&self, name: &str) -> io::Result<SimKept> {
        let memory = Memory::default();
        self.files(|files| Ok(files.kept.insert(name.to_string(), memory.clone())))?;
        Ok(SimKept { env: self.clone(), name: name.to_string(), memory })
    }
}

impl crate::Kept for SimKept {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let memory = self.memory.borrow();
        let from = memory.get(at as usize..at as usize + into.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(from);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if !self.env.world.lives(self.env.node, self.env.life) {
            return Err(dead());
        }
        let mut memory = self.memory.borrow_mut();
        let end = at as usize + bytes.len();
        if memory.len() < end {
            memory.resize(end, 0);
        }
        memory[at as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn is_there(&self) -> bool {
        let found = self.env.files(|files| Ok(files.kept.get(&self.name).cloned()));
        found.is_ok_and(|found| found.is_some_and(|memory| Rc::ptr_eq(&memory, &self.memory)))
    }

    fn room(&self) -> io::Result<u64> {
        Ok(KEPT_ROOM)
    }
}

/// A simulated disk.
pub struct SimDisk {
    env: SimEnv,
    path: String,
    size: u64,
    read_only: bool,
}

fn dead() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the simulated process has crashed")
}

impl SimEnv {
    pub(super) async fn open_disk(&self, path: &str, mode: DiskMode) -> io::Result<Rc<SimDisk>> {
        let delay = {
            let mut core = self.world.core.borrow_mut();
            core.latency(&self.world.config.disk_ns)
        };
        self.pause(delay).await;
        if !self.world.lives(self.node, self.life) {
            return Err(dead());
        }
        let path = clean(path).to_string();
        let size = self.world.core.borrow_mut().nodes[self.node].files.open(&path, mode)?;
        Ok(Rc::new(SimDisk { env: self.clone(), path, size, read_only: mode == DiskMode::ReadOnly }))
    }
}

impl SimDisk {
    /// Starts an operation and waits for its result.
    async fn run(&self, kind: DiskOpKind, at: u64, len: u64, buf: Option<Buf>) -> (io::Result<()>, Option<Buf>) {
        let (world, node) = (&self.env.world, self.env.node);
        if !world.lives(node, self.env.life) {
            return (Err(dead()), buf);
        }
        if self.read_only && matches!(kind, DiskOpKind::Write | DiskOpKind::Discard) {
            return (Err(io::ErrorKind::PermissionDenied.into()), buf);
        }
        // The hook is user code: it runs while nothing is borrowed.
        let hook = world.core.borrow_mut().nodes[node].hook.take();
        let mut fault = None;
        if let Some(mut hook) = hook {
            fault = hook(&DiskOp { path: self.path.clone(), kind, at, len });
            world.core.borrow_mut().nodes[node].hook.get_or_insert(hook);
        }
        if kind == DiskOpKind::Write
            && fault.is_none()
            && let Err(e) = world.core.borrow_mut().nodes[node].files.provide(&self.path, at, len)
        {
            fault = Some(e.kind());
        }
        let slot = Rc::new(RefCell::new(Slot { buf, ..Slot::default() }));
        let crash = {
            let mut guard = world.core.borrow_mut();
            let core = &mut *guard;
            let id = core.serial();
            core.note(Kind::DiskStart, id, at ^ ((kind as u64) << 60));
            let delay =
                core.latency(if kind == DiskOpKind::Sync { &world.config.sync_ns } else { &world.config.disk_ns });
            let delay = delay + len / world.config.disk_bytes_per_us.max(1) * 1000;
            core.after(delay, Event::Disk { node, op: id });
            let n = &mut core.nodes[node];
            count(&mut n.counts, kind, len);
            let mark = n.files.files.get(&self.path).map_or(0, |f| f.synced + f.unsynced.len() as u64);
            n.ops.insert(id, PendingOp { path: self.path.clone(), kind, at, len, mark, fault, slot: slot.clone() });
            match &mut n.crash_at {
                // Operations may start between the one that is the crash point and the crash: zero is left then.
                Some((left, how)) if *left > 0 && matches!(kind, DiskOpKind::Write | DiskOpKind::Sync) => {
                    *left -= 1;
                    (*left == 0).then_some(*how)
                }
                _ => None,
            }
        };
        if let Some(how) = crash {
            world.crash_soon(node, how);
        }
        poll_fn(|cx| {
            let mut s = slot.borrow_mut();
            match s.result.take() {
                Some(result) => Poll::Ready((result, s.buf.take())),
                None => {
                    s.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

fn count(counts: &mut DiskOps, kind: DiskOpKind, len: u64) {
    match kind {
        DiskOpKind::Read => (counts.reads, counts.read_bytes) = (counts.reads + 1, counts.read_bytes + len),
        DiskOpKind::Write => (counts.writes, counts.written_bytes) = (counts.writes + 1, counts.written_bytes + len),
        DiskOpKind::Sync => counts.syncs += 1,
        DiskOpKind::Discard => counts.discards += 1,
    }
}

impl World {
    /// Completes an operation, unless its node has crashed since.
    pub(super) fn disk_done(&self, node: usize, id: u64) {
        let mut guard = self.core.borrow_mut();
        let core: &mut Core = &mut guard;
        let n = &mut core.nodes[node];
        let Some(op) = n.ops.remove(&id) else { return };
        let mut result = Ok(());
        let mut slot = op.slot.borrow_mut();
        match (n.files.files.get_mut(&op.path), slot.buf.as_mut()) {
            (None, _) => result = Err(not_found(&op.path)),
            (Some(file), buf) => match (op.kind, buf, op.fault) {
                (DiskOpKind::Write, Some(buf), Some(_)) => file.write_some(op.at, buf, &mut core.rng),
                (_, _, Some(_)) => {}
                (DiskOpKind::Read, Some(buf), None) => file.read(op.at, buf),
                (DiskOpKind::Write, Some(buf), None) => file.write(op.at, buf),
                (DiskOpKind::Sync, ..) if self.config.sync_lies => {}
                (DiskOpKind::Sync, ..) => file.settle(op.mark),
                (DiskOpKind::Discard, ..) => {
                    for index in op.at / BLOCK..(op.at + op.len) / BLOCK {
                        if file.seen.contains_key(&index) && core.rng.coin() {
                            file.change(index, None);
                        }
                    }
                }
                (_, None, None) => {}
            },
        }
        if let Some(kind) = op.fault {
            result = Err(io::Error::new(kind, "injected fault"));
        }
        core.note(Kind::DiskDone, id, 0);
        slot.result = Some(result);
        let waker = slot.waker.take();
        drop(slot);
        drop(guard);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Disk for SimDisk {
    fn size(&self) -> u64 {
        self.size
    }

    fn device(&self) -> u64 {
        self.env.node as u64
    }

    async fn read(&self, at: u64, buf: Buf) -> IoBuf<()> {
        if let Err(e) = crate::api::check_read(self.size, at, &buf) {
            return (Err(e), buf);
        }
        let len = buf.len() as u64;
        let (result, buf) = self.run(DiskOpKind::Read, at, len, Some(buf)).await;
        (result, buf.unwrap_or_default())
    }

    async fn write(&self, at: u64, buf: Buf) -> IoBuf<()> {
        if let Err(e) = crate::api::check_write(self.size, at, &buf) {
            return (Err(e), buf);
        }
        let len = buf.len() as u64;
        let (result, buf) = self.run(DiskOpKind::Write, at, len, Some(buf)).await;
        (result, buf.unwrap_or_default())
    }

    async fn sync(&self) -> io::Result<()> {
        self.run(DiskOpKind::Sync, 0, 0, None).await.0
    }

    async fn reserve(&self, at: u64, len: u64) -> io::Result<()> {
        crate::api::check_discard(self.size, at, len)?;
        if !self.env.world.lives(self.env.node, self.env.life) {
            return Err(dead());
        }
        self.env.files(|files| files.reserve(&self.path, at, len))
    }

    fn backed(&self) -> io::Result<Vec<(u64, u64)>> {
        self.env.files(|files| files.backed(&self.path))
    }

    async fn discard(&self, at: u64, len: u64) -> io::Result<()> {
        crate::api::check_discard(self.size, at, len)?;
        self.run(DiskOpKind::Discard, at, len, None).await.0
    }
}

impl Drop for SimDisk {
    fn drop(&mut self) {
        // The locks of an earlier run ended with it.
        if self.env.world.lives(self.env.node, self.env.life) {
            self.env.world.core.borrow_mut().nodes[self.env.node].files.close(&self.path, self.read_only);
        }
    }
}
