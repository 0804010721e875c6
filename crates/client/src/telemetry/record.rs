//! Recordings: the calls of one job, kept until the recording program fetches them.
//!
//! Owns: the recordings and the rights to them, the rings of calls, and the blocks that are made of them
//! (`amphi_trace`). Does not own: which calls belong to a recording and their properties (front ends), and the file,
//! which the recording program writes.
//!
//! Invariants:
//!
//! * Serving a call never waits for a recording. If a ring is full, or in use at the moment, the call goes to the next
//!   ring. A call that finds no ring is counted as lost.
//! * A block can be read again until the next one is requested, so an interrupted reader loses nothing.
//! * If nobody requests blocks of a recording for `PATIENCE_NS`, the recording ends, because the program that started
//!   it was killed.
//!
//! Bounds: `RECORDINGS_MAX` at a time, each with `RINGS` rings of `RING_CALLS` calls.

use crate::policy::decision::Reason;
use amphi_trace::block::{Kind, seal};
use amphi_trace::record::Packer;
use amphi_trace::{Call, Record};
use amphi_types::{Errno, Result};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The variable of a program's environment that names the recording of its calls: a number in hexadecimal.
pub const RECORD_VARIABLE: &str = "AMPHI_RECORD";

/// Recordings at a time.
const RECORDINGS_MAX: usize = 8;
/// Rings of a recording, which threads share by their number.
const RINGS: usize = 8;
/// Number of records in a ring: 4 MiB or so.
const RING_CALLS: usize = 32_768;
/// A recording ends if nobody requests its blocks for this long, ns.
const PATIENCE_NS: u64 = 10_000_000_000;
/// Bytes of a block's content, of which a quarter or so remains after packing. The block fits into an attribute even if
/// nothing of it can be packed.
const BLOCK_BYTES: usize = 40 << 10;

/// The settings of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The number of the recording, which programs have in [`RECORD_VARIABLE`]. It is not 0.
    pub id: u64,
    /// The user whose calls are recorded; `None` means all users.
    pub uid: Option<u32>,
    /// The user to whom the recording belongs.
    pub owner: u32,
    /// Names are replaced by hashes made with this key.
    pub hash: Option<u64>,
}

/// Calls that were removed from the rings.
#[derive(Default)]
struct Taken {
    records: VecDeque<Record>,
    /// Number of the block that was given out last, from 1 on, and the block.
    number: u64,
    block: Vec<u8>,
}

/// One recording.
pub struct Recording {
    wanted: Wanted,
    rings: [Mutex<Vec<Record>>; RINGS],
    lost: AtomicU64,
    ended: AtomicBool,
    asked_ns: AtomicU64,
    taken: Mutex<Taken>,
}

impl Recording {
    fn new(wanted: Wanted, now_ns: u64) -> Recording {
        let reasons = Reason::ALL.iter().map(|reason| reason.name().to_string()).collect();
        let taken = Taken { records: [Record::Reasons(reasons)].into(), ..Taken::default() };
        Recording {
            wanted,
            rings: Default::default(),
            lost: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            asked_ns: AtomicU64::new(now_ns),
            taken: Mutex::new(taken),
        }
    }

    /// The number of the recording.
    pub fn id(&self) -> u64 {
        self.wanted.id
    }

    /// Returns whether calls of this user are recorded.
    pub fn takes(&self, uid: u32) -> bool {
        self.wanted.uid.is_none_or(|own| own == uid) && !self.ended.load(Relaxed)
    }

    /// Adds a call. Never waits. A call that finds no free place is counted as lost. `thread` is any number of the
    /// calling thread.
    pub fn add(&self, thread: usize, mut call: Call) {
        if let Some(key) = self.wanted.hash {
            for name in [&mut call.name, &mut call.new_name] {
                *name = hashed(key, name);
            }
        }
        self.push(thread, Record::Call(call));
    }

    /// Adds what is no call.
    pub fn push(&self, thread: usize, record: Record) {
        for n in 0..RINGS {
            if let Some(mut ring) = self.rings[(thread + n) % RINGS].try_lock()
                && ring.len() < RING_CALLS
            {
                if ring.capacity() == 0 {
                    ring.reserve(1024);
                }
                ring.push(record);
                return;
            }
        }
        self.lost.fetch_add(1, Relaxed);
    }

    /// Block `number`, counted from 1; empty if the block does not exist yet. A request for the next block says that
    /// this one has arrived.
    ///
    /// Errors: `Inval` for a number that is neither that of the last block nor the next one.
    pub fn block(&self, number: u64, now_ns: u64) -> Result<Vec<u8>> {
        self.asked_ns.store(now_ns, Relaxed);
        let mut taken = self.taken.lock();
        if number == taken.number && number > 0 {
            return Ok(taken.block.clone());
        }
        if number != taken.number + 1 {
            return Err(Errno::Inval);
        }
        let lost = self.lost.swap(0, Relaxed);
        if lost > 0 {
            taken.records.push_back(Record::Lost(lost));
        }
        if taken.records.is_empty() {
            for ring in &self.rings {
                let records = std::mem::take(&mut *ring.lock());
                taken.records.extend(records);
            }
        }
        let mut packer = Packer::default();
        while !packer.is_full(BLOCK_BYTES)
            && let Some(record) = taken.records.pop_front()
        {
            packer.add(&record);
        }
        if packer.is_empty() {
            return Ok(Vec::new());
        }
        taken.number = number;
        taken.block = seal(Kind::Records, &packer.take());
        Ok(taken.block.clone())
    }
}

/// The hash that replaces a name: 16 hexadecimal digits. `.`, `..` and the empty name are not replaced.
pub fn hashed(key: u64, name: &[u8]) -> Box<[u8]> {
    if matches!(name, b"" | b"." | b"..") {
        return name.into();
    }
    let sum = key.to_le_bytes().iter().chain(name).fold([0xcbf2_9ce4_8422_2325u64, key], |[a, b], byte| {
        let a = (a ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        [a, (b.rotate_left(23) ^ a).wrapping_mul(0x9e37_79b9_7f4a_7c15)]
    });
    format!("{:016x}", sum[0] ^ sum[1].rotate_left(32)).into_bytes().into()
}

/// The recordings of a mount.
#[derive(Default)]
pub struct Recorder {
    /// The number of recordings. If there is none, a call checks only this number.
    count: AtomicUsize,
    all: Mutex<Vec<Arc<Recording>>>,
}

impl Recorder {
    /// Returns whether anything is recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// A recording by its number.
    pub fn find(&self, id: u64) -> Option<Arc<Recording>> {
        self.all.lock().iter().find(|recording| recording.id() == id).cloned()
    }

    /// Begins a recording.
    ///
    /// Errors: `Exist` if there is one of that number, `Busy` if there are too many.
    pub fn start(&self, wanted: Wanted, now_ns: u64) -> Result<()> {
        let mut all = self.all.lock();
        if wanted.id == 0 || all.iter().any(|recording| recording.id() == wanted.id) {
            return Err(Errno::Exist);
        }
        if all.len() >= RECORDINGS_MAX {
            return Err(Errno::Busy);
        }
        all.push(Arc::new(Recording::new(wanted, now_ns)));
        self.count.store(all.len(), Relaxed);
        Ok(())
    }

    /// Nothing is added to a recording any more. The calls that it contains can still be fetched.
    pub fn end(&self, id: u64) {
        if let Some(recording) = self.find(id) {
            recording.ended.store(true, Relaxed);
        }
    }

    /// Forgets a recording.
    pub fn forget(&self, id: u64) {
        self.retain(|recording| recording.id() != id);
    }

    /// Forgets recordings whose blocks nobody requests.
    pub fn tick(&self, now_ns: u64) {
        if self.is_on() {
            self.retain(|recording| now_ns.saturating_sub(recording.asked_ns.load(Relaxed)) < PATIENCE_NS);
        }
    }

    fn retain(&self, keeps: impl Fn(&Recording) -> bool) {
        let mut all = self.all.lock();
        all.retain(|recording| {
            let kept = keeps(recording);
            if !kept {
                recording.ended.store(true, Relaxed);
            }
            kept
        });
        self.count.store(all.len(), Relaxed);
    }

    /// A recording that `uid` may use. The owner of the mount and root may use all (`all`).
    ///
    /// Errors: `NoData` if there is none, `Perm` if it is somebody else's.
    pub(crate) fn of(&self, id: u64, uid: u32, all: bool) -> Result<Arc<Recording>> {
        let recording = self.find(id).ok_or(Errno::NoData)?;
        if all || recording.wanted.owner == uid { Ok(recording) } else { Err(Errno::Perm) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_trace::Op;
    use amphi_trace::reader::records;

    fn wanted(id: u64, owner: u32) -> Wanted {
        Wanted { id, uid: Some(owner), owner, hash: None }
    }

    fn call(n: u64) -> Call {
        Call { start_ns: n, name: b"secret"[..].into(), ..Call::new(Op::Read) }
    }

    /// All records of a recording, with `number` for the next block.
    fn taken(recording: &Recording, number: &mut u64) -> Vec<Record> {
        let mut all = Vec::new();
        loop {
            let block = recording.block(*number, 0).expect("a block");
            if block.is_empty() {
                return all;
            }
            *number += 1;
            all.extend(records(&block).expect("whole"));
        }
    }

    /// Goal: a recording whose rings are full counts the lost calls and never waits. The recorded calls are returned
    /// completely, and again when they are requested again. Method: more calls than the rings can contain, and a ring
    /// that is in use.
    #[test]
    fn full_rings_count() {
        let recorder = Recorder::default();
        assert!(!recorder.is_on());
        recorder.start(wanted(7, 5), 0).expect("started");
        let recording = recorder.find(7).expect("there");
        assert!(recorder.is_on() && recording.takes(5) && !recording.takes(6));
        let room = RINGS * RING_CALLS;
        (0..room as u64 + 100).for_each(|n| recording.add(n as usize, call(n)));
        let first = recording.block(1, 0).expect("a block");
        assert_eq!(recording.block(1, 0), Ok(first), "again");
        assert_eq!(recording.block(3, 0), Err(Errno::Inval));
        let mut number = 1;
        let all = taken(&recording, &mut number);
        let calls = all.iter().filter(|r| matches!(r, Record::Call(_))).count();
        let lost: u64 = all.iter().map(|r| if let Record::Lost(n) = r { *n } else { 0 }).sum();
        assert_eq!((calls, lost, number > 10), (room, 100, true));
        let held = recording.rings[0].lock();
        recording.add(0, call(1));
        drop(held);
        assert_eq!(taken(&recording, &mut number).len(), 1, "another ring took it");
    }

    /// Goal: recordings are bounded, belong to their owners, and end when nobody fetches them. Method: too many
    /// recordings, requests by other users, and time that passes.
    #[test]
    fn recordings_have_owners_and_ends() {
        let recorder = Recorder::default();
        (1..=RECORDINGS_MAX as u64).for_each(|id| recorder.start(wanted(id, 5), 0).expect("started"));
        assert_eq!(recorder.start(wanted(1, 5), 0), Err(Errno::Exist));
        assert_eq!(recorder.start(wanted(99, 5), 0), Err(Errno::Busy));
        assert_eq!(recorder.of(1, 6, false).err(), Some(Errno::Perm));
        assert_eq!(recorder.of(77, 5, true).err(), Some(Errno::NoData));
        assert!(recorder.of(1, 5, false).is_ok() && recorder.of(1, 6, true).is_ok());
        let asked = recorder.find(2).expect("there");
        asked.block(1, PATIENCE_NS).expect("a block");
        let silent = recorder.find(3).expect("there");
        recorder.tick(PATIENCE_NS + 1);
        assert!(recorder.find(2).is_some() && recorder.find(3).is_none() && !silent.takes(5));
        recorder.forget(2);
        assert!(!recorder.is_on());
    }

    /// Goal: hashed names reveal nothing, and equal names have equal hashes. Method: a recording with a key.
    #[test]
    fn names_are_hashed() {
        let recording = Recording::new(Wanted { hash: Some(3), ..wanted(1, 0) }, 0);
        recording.add(0, call(1));
        let all = taken(&recording, &mut 1);
        let Some(Record::Call(call)) = all.last() else { panic!("{all:?}") };
        assert_eq!((&call.name, call.name.len()), (&hashed(3, b"secret"), 16));
        assert_ne!(hashed(3, b"secret"), hashed(4, b"secret"));
        assert_eq!((&*hashed(3, b".."), &*hashed(3, b"")), (&b".."[..], &b""[..]));
    }
}
