//! `WriteBack`: the bytes of a target that are in memory which outlives the process, and not on its disk yet.
//!
//! Owns: the memory, its pages, finding the bytes of an earlier process, and when pages may be used again. Does not
//! own: which bytes of which object are in it (`amphi_data::Delayed`), which writes are accepted (`ops::accept`), when
//! they are flushed (`ops::flush`).
//!
//! An accepted write is one record of the log, which is kept before the write is answered. Its bytes are in the memory
//! before the record is appended. So a killed process leaves a log that names exactly the bytes that were accepted,
//! truncated and flushed. A start writes these bytes to the disk before any client is served. A loss of power destroys
//! the memory. In this case, and if the memory was removed, its bytes are lost like everything that was not synced
//! (Promises S9, S10, S22).
//!
//! Invariants: pages that the log may name are not written again: those of a cut extent are used again when the record
//! of the cut is kept. There is one memory at a time, and the log names it before it names a byte in it.

use crate::counters::{Counters, add};
use crate::zone_target::writers::Writers;
use amphi_data::{DataStore, Memory, Overlay, PagePool, Slot};
use amphi_env::{Env, Kept};
use amphi_types::item::Txn;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, DataChecksums, Errno, ObjectId, Result};
use amphi_zone::{Lsn, Zone};
use futures_channel::mpsc;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Weight of a new sample in the estimated time of a disk write, as its inverse.
const TIME_SHARE: u64 = 8;

/// Largest share of the space for kept memory that one target takes, as its inverse.
const ROOM_SHARE: u64 = 16;

/// Least pages for which memory that has failed is made again.
const AGAIN_PAGES: u64 = 256;

/// The settings of write-back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether writes are accepted.
    pub on: bool,
    /// Bytes of memory.
    pub bytes: u64,
    /// Writes of at least this many bytes are written through to the disk.
    pub through_bytes: u64,
    /// Bytes that have been in memory for this long are flushed.
    pub age_ns: u64,
}

/// The memory.
struct Area<E: Env> {
    kept: E::Kept,
    pool: PagePool,
    number: u64,
}

/// The state that an earlier process left in memory.
#[derive(Default)]
struct Left {
    bytes: Vec<u8>,
    /// Extents that were in the memory and are lost.
    lost: Vec<LostExtent>,
}

/// A delayed extent whose memory has gone.
pub struct LostExtent {
    /// The object of the extent.
    pub object: ObjectId,
    /// The bytes of the extent.
    pub range: ByteRange,
    /// Whether the log has all bytes of the extent.
    pub is_logged: bool,
}

/// The state of one target.
pub struct WriteBack<E: Env> {
    area: RefCell<Option<Area<E>>>,
    left: RefCell<Option<Left>>,
    /// The state that an earlier process left has been processed.
    begun: Cell<bool>,
    /// The memory has failed, or could not be found.
    failed: Cell<bool>,
    /// The target is being closed.
    stopped: Cell<bool>,
    settings: Cell<Settings>,
    /// Memory of extents that were cut, with the record of the cut.
    buried: RefCell<VecDeque<(Lsn, Vec<Rc<Memory>>)>>,
    /// Wakes the flusher.
    bell: RefCell<mpsc::Sender<()>>,
    clock: Box<dyn Fn() -> u64>,
    /// Estimated time of a disk write of file data, ns.
    pub disk_ns: Cell<u64>,
    /// When memory was last given up, or could not be allocated again.
    missed_ns: Cell<u64>,
    /// The sessions that wrote delayed bytes.
    pub writers: Writers,
}

/// Pages of a memory that may have `bytes`, if this much `room` is left. The log, other targets, and other programs use
/// the same space, and programs are killed when it is full.
fn pages(bytes: u64, room: u64) -> u64 {
    bytes.min(room / ROOM_SHARE) / BLOCK
}

/// The checksum of bytes that are accepted.
pub fn checksum(object: ObjectId, start: u64, bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&object.ino.0.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &object.stripe.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &start.to_le_bytes());
    crc32c::crc32c_append(crc, bytes)
}

/// The part of `bytes` that a write took, if it equals the written bytes.
fn verified<'a>(bytes: &'a [u8], object: ObjectId, memory: &Memory) -> Option<&'a [u8]> {
    let from = usize::try_from(memory.at).ok()?;
    let part = bytes.get(from..from.checked_add(memory.len as usize)?)?;
    (checksum(object, memory.start, part) == memory.crc).then_some(part)
}

impl<E: Env> WriteBack<E> {
    /// Finds the bytes of the delayed extents in `data` that an earlier process left in memory. Changes nothing.
    pub fn find(env: &E, zone: &Zone<E>, data: &DataStore, bell: mpsc::Sender<()>) -> WriteBack<E> {
        let mut left = Left::default();
        if let Some(number) = data.memory().filter(|_| !data.delayed.is_empty()) {
            let name = zone.memory_name(number);
            // Only extents without logged bytes are considered: the bytes of others are in the log.
            let memories = || data.delayed.memories().filter(|(_, _, m)| m.bytes().is_none());
            let most = memories().map(|(_, _, m)| m.at.saturating_add(u64::from(m.len))).max();
            match env.kept(&name, zone.path(), usize::try_from(most.unwrap_or(0)).unwrap_or(usize::MAX)) {
                Ok(bytes) => left.bytes = bytes,
                Err(e) => tracing::warn!(zone = %zone.path(), "kept memory {name}: {e}"),
            }
            let lost = memories().filter(|(object, _, m)| verified(&left.bytes, *object, m).is_none());
            let lost = lost.map(|(object, range, m)| {
                let is_right = |bytes: &[u8]| checksum(object, m.start, bytes) == m.crc;
                LostExtent { object, range, is_logged: data.delayed.has_logged(object, m, is_right) }
            });
            left.lost = lost.collect();
        }
        let own = env.clone();
        WriteBack {
            area: RefCell::default(),
            left: RefCell::new(Some(left)),
            begun: Cell::new(false),
            failed: Cell::new(false),
            stopped: Cell::new(false),
            settings: Cell::default(),
            buried: RefCell::default(),
            bell: RefCell::new(bell),
            clock: Box::new(move || own.now().0),
            disk_ns: Cell::new(0),
            missed_ns: Cell::new(0),
            writers: Writers::default(),
        }
    }

    /// Returns whether something was lost with the memory.
    pub fn has_lost(&self) -> bool {
        self.left.borrow().as_ref().is_some_and(|left| left.lost.iter().any(|lost| !lost.is_logged))
    }

    /// The extents that the memory no longer contains; they are returned once.
    pub fn take_lost(&self) -> Vec<LostExtent> {
        self.left.borrow_mut().as_mut().map(|left| std::mem::take(&mut left.lost)).unwrap_or_default()
    }

    /// The data that an earlier process left is on the disk, so its memory is not needed any more.
    pub fn begin(&self) {
        self.left.take();
        self.begun.set(true);
    }

    /// Returns whether the delayed bytes that an earlier server process left are settled: on the disk, or given up
    /// because their memory was lost. Before that, nothing is accepted into memory.
    pub fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// Monotonic time, ns.
    pub fn now_ns(&self) -> u64 {
        (self.clock)()
    }

    /// The present settings.
    pub fn settings(&self) -> Settings {
        self.settings.get()
    }

    /// Applies new settings. Makes the memory if it is wanted and there is none, with its name in `txn`.
    pub fn tune(&self, env: &E, zone: &Zone<E>, data: &mut DataStore, settings: Settings, txn: &mut Txn) {
        self.settings.set(settings);
        self.ring();
        if !settings.on || !self.begun.get() || self.stopped.get() || self.area.borrow().is_some() {
            return;
        }
        if !data.delayed.is_empty() {
            return;
        }
        let number = env.rand();
        let is_again = self.failed.get();
        self.missed_ns.set(self.now_ns());
        match env.keep(&zone.memory_name(number), zone.path()) {
            Ok(kept) => {
                let pages = pages(settings.bytes, kept.room().unwrap_or(u64::MAX));
                if is_again && pages < AGAIN_PAGES {
                    drop(kept);
                    forget(env, zone, number);
                    return;
                }
                data.set_memory(Some(number), txn);
                self.failed.set(false);
                *self.area.borrow_mut() = Some(Area { kept, pool: PagePool::new(pages), number });
                if is_again {
                    tracing::info!(zone = %zone.path(), "small writes are answered from memory again");
                }
            }
            Err(_) if is_again => {}
            Err(e) => tracing::info!(zone = %zone.path(), "writes go to the disk before they are answered: {e}"),
        }
    }

    /// Accepts nothing any more.
    pub fn stop(&self) {
        self.stopped.set(true);
    }

    /// Returns whether writes may be accepted.
    pub fn is_open(&self) -> bool {
        let wanted = self.settings.get().on && !self.stopped.get() && !self.failed.get();
        wanted && self.area.borrow().is_some()
    }

    /// Pages that are in use, and all pages.
    pub fn usage(&self) -> (u64, u64) {
        self.area.borrow().as_ref().map_or((0, 0), |area| area.pool.usage())
    }

    /// Copies bytes into the memory. Returns `None` if there is no space, or the memory has failed.
    pub fn store(&self, object: ObjectId, start: u64, bytes: &[u8], checksums: DataChecksums) -> Option<Memory> {
        let area = self.area.borrow();
        let area = area.as_ref()?;
        let slot: Slot = area.pool.take(start, bytes.len() as u64)?;
        if let Err(e) = area.kept.write(slot.at(), bytes) {
            self.fail(&e);
            return None;
        }
        Some(Memory::new(start, bytes.len() as u32, checksum(object, start, bytes), slot, checksums))
    }

    fn fail(&self, why: &dyn std::fmt::Display) {
        if !self.failed.replace(true) {
            tracing::warn!("writes go to the disk before they are answered from now on: kept memory fails: {why}");
        }
    }

    /// Fills `into` with a delayed part.
    pub fn load(&self, part: &Overlay, into: &mut [u8]) -> Result<()> {
        assert_eq!(part.range.len(), into.len() as u64, "the delayed part {:?} is loaded whole", part.range);
        if let Some(bytes) = part.memory.bytes() {
            let from = (part.range.start - part.memory.start) as usize;
            into.copy_from_slice(bytes.get(from..from + into.len()).ok_or(Errno::Io)?);
            return Ok(());
        }
        if part.memory.is_left() {
            let left = self.left.borrow();
            let from = part.at() as usize;
            let bytes = left.as_ref().and_then(|left| left.bytes.get(from..from + into.len()));
            into.copy_from_slice(bytes.ok_or(Errno::Io)?);
            return Ok(());
        }
        let area = self.area.borrow();
        let area = area.as_ref().ok_or(Errno::Io)?;
        area.kept.read(part.at(), into).map_err(|e| {
            self.fail(&e);
            Errno::Io
        })
    }

    /// Checks whether the memory can still be found, since it may be removed by others. Returns whether it has failed.
    pub fn look(&self) -> bool {
        if self.area.borrow().as_ref().is_some_and(|area| !area.kept.is_there()) {
            self.fail(&"it was removed");
        }
        self.failed.get()
    }

    /// The memory of extents that `lsn` has cut.
    pub fn bury(&self, lsn: Lsn, dead: Vec<Rc<Memory>>) {
        if !dead.is_empty() {
            let mut buried = self.buried.borrow_mut();
            let last = buried.back().map(|(before, _)| *before);
            assert!(last.is_none_or(|last| last <= lsn), "memory of record {lsn:?} is buried behind that of {last:?}");
            buried.push_back((lsn, dead));
        }
    }

    /// Makes pages available again that are not needed any more by records up to `kept`.
    pub fn exhume(&self, kept: Lsn) {
        let mut buried = self.buried.borrow_mut();
        while buried.front().is_some_and(|(lsn, _)| *lsn <= kept) {
            buried.pop_front();
        }
    }

    /// Wakes the flusher.
    pub fn ring(&self) {
        // A task that was woken and has not checked yet sees this as well.
        drop(self.bell.borrow_mut().try_send(()));
    }

    /// Counts the time that the disk took for a write.
    pub fn note_disk(&self, ns: u64) {
        let before = self.disk_ns.get();
        let now = if before == 0 { ns } else { before - before / TIME_SHARE + ns / TIME_SHARE };
        self.disk_ns.set(now);
    }

    /// Returns whether memory without any bytes should be given up.
    pub fn is_spare(&self, data: &DataStore) -> bool {
        let unwanted = !self.settings.get().on || self.failed.get() || self.stopped.get();
        unwanted && self.area.borrow().is_some() && data.delayed.is_empty()
    }

    /// Returns whether there has been no memory for this long because the previous one has failed. New memory may then
    /// be available.
    pub fn is_missed_for(&self, time: Duration) -> bool {
        let wanted = self.settings.get().on && self.begun.get() && !self.stopped.get();
        let passed_ns = u128::from(self.now_ns().saturating_sub(self.missed_ns.get()));
        wanted && self.failed.get() && self.area.borrow().is_none() && passed_ns >= time.as_nanos()
    }

    /// Gives the memory up, with the change of the log in `txn`. Returns its number. The memory is removed when that
    /// record is kept.
    pub fn give_up(&self, data: &mut DataStore, txn: &mut Txn) -> Option<u64> {
        let area = self.area.take()?;
        self.missed_ns.set(self.now_ns());
        assert!(data.delayed.is_empty(), "memory {} is given up with {} extents", area.number, data.delayed.extents());
        data.set_memory(None, txn);
        Some(area.number)
    }
}

/// Removes memory that the log does not name any more.
pub fn forget<E: Env>(env: &E, zone: &Zone<E>, number: u64) {
    let name = zone.memory_name(number);
    if let Err(e) = env.forget(&name) {
        tracing::warn!("kept memory {name} cannot be removed: {e}");
    }
}

/// Counts a write that was accepted.
pub fn count_accepted(counters: &Counters, bytes: u64) {
    add(&counters.accepted, 1);
    add(&counters.accepted_bytes, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a small place is not filled, a large one does not matter. Method: the `/dev/shm` of a container, and that
    /// of a machine.
    #[test]
    fn a_small_place_is_left_to_others() {
        assert_eq!(pages(64 << 20, 64 << 20), 1024);
        assert_eq!(pages(64 << 20, 12 << 30), 16_384);
        assert_eq!(pages(64 << 20, 0), 0);
    }
}
