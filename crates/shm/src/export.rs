//! `Export`: the writer's side of the memory that shows a file.
//!
//! Owns: the memory, and that one fill is under way at a time. Does not own: when a change happens (the client, which
//! calls these methods before others can see the change), the receivers of the memory (`fuse`).

use crate::layout::{SLOT_BYTES, SLOTS_MAX};
use crate::memory::ExportMemory;
use crate::rules::{self, Ticket};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use parking_lot::Mutex;
use rustix::io::Result;
use std::os::fd::BorrowedFd;

const UNIT: u64 = SLOT_BYTES as u64;

/// The memory that shows a file to programs.
pub struct Export {
    memory: ExportMemory,
    filling: Mutex<Filling>,
    used_bytes: AtomicU64,
}

/// State that only fills use.
struct Filling {
    /// Which unit missed last in each slot, plus one.
    missed: Vec<u32>,
    /// Which slots have had memory.
    touched: Vec<bool>,
}

impl Export {
    /// An export of a file that has `size` bytes now. A longer one is shown through as many slots.
    ///
    /// Errors: no memory or no descriptor is left.
    pub fn new(id: u64, size: u64) -> Result<Export> {
        let slots = (size.div_ceil(UNIT).max(1) as usize).min(SLOTS_MAX);
        let memory = ExportMemory::new(id, slots)?;
        rules::begin(&memory.head().state, memory.slots(), id);
        let filling = Mutex::new(Filling { missed: vec![0; slots], touched: vec![false; slots] });
        Ok(Export { memory, filling, used_bytes: AtomicU64::new(0) })
    }

    /// The number of the export.
    pub fn id(&self) -> u64 {
        self.memory.head().id
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.memory.slots().len()
    }

    /// Whether the export is in use, and shows as much of a file of `size` bytes as any export can.
    pub fn fits(&self, size: u64) -> bool {
        let is_long_enough = self.slots() == SLOTS_MAX || size.div_ceil(UNIT) <= self.slots() as u64;
        is_long_enough && !self.is_given_up()
    }

    /// Whether nothing will be shown any more.
    pub fn is_given_up(&self) -> bool {
        rules::is_given_up(&self.memory.head().state)
    }

    /// Bytes of memory that the export has taken.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    /// The memory, for programs.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// The start of a fill; to be taken before it reads anything.
    pub fn ticket(&self) -> Ticket {
        rules::ticket(&self.memory.head().state)
    }

    /// Shows `bytes` from byte `from` of a unit on. To be called under the lock of the page cache that keeps the unit
    /// as it is.
    pub fn fill(&self, ticket: Ticket, unit: u64, from: usize, bytes: &[u8]) {
        let mut filling = self.filling.lock();
        let span = (unit, from, from + bytes.len());
        rules::fill(&self.memory.head().state, self.memory.slots(), ticket, span, |slot| {
            if !std::mem::replace(&mut filling.touched[slot], true) {
                self.used_bytes.fetch_add(UNIT, Relaxed);
            }
            self.memory.put(slot, from, bytes);
        });
    }

    /// Notes that a read of the unit came through the kernel. Returns whether one did before, and no other unit of the
    /// slot since.
    pub fn note_miss(&self, unit: u64) -> bool {
        let mut filling = self.filling.lock();
        let slot = (unit % filling.missed.len() as u64) as usize;
        let mark = unit as u32 ^ (unit >> 32) as u32 | 1 << 31;
        std::mem::replace(&mut filling.missed[slot], mark) == mark
    }

    /// Shows the size that was looked at since the ticket was taken; certain until `until_ns`.
    pub fn show_size(&self, ticket: Ticket, size: u64, until_ns: u64) {
        let _filling = self.filling.lock();
        rules::show_size(&self.memory.head().state, ticket, size, until_ns);
    }

    /// Whether a size is shown.
    pub fn shows_size(&self) -> bool {
        rules::shows_size(&self.memory.head().state)
    }

    /// Bytes from `start` to `end` change or go. To be called under the lock under which they are filled.
    pub fn bytes_change(&self, start: u64, end: u64) {
        let (first, behind) = (start / UNIT, end.div_ceil(UNIT));
        if behind.saturating_sub(first) >= self.slots() as u64 {
            return self.all_change();
        }
        (first..behind).for_each(|unit| rules::unit_changes(&self.memory.head().state, self.memory.slots(), unit));
    }

    /// The size changes, or is no longer certain.
    pub fn size_changes(&self) {
        rules::size_changes(&self.memory.head().state);
    }

    /// Everything shown becomes invalid.
    pub fn all_change(&self) {
        rules::all_change(&self.memory.head().state);
    }

    /// Whether the next read has to be known to the mount.
    pub fn set_due(&self, due: bool) {
        let word = &self.memory.head().state.due;
        if word.load(Relaxed) != u64::from(due) {
            word.store(u64::from(due), SeqCst);
        }
    }

    /// A call takes the file against readers.
    pub fn block(&self) {
        rules::block(&self.memory.head().state);
    }

    /// The call that took the file against readers has ended.
    pub fn unblock(&self) {
        rules::unblock(&self.memory.head().state);
    }

    /// Nothing is shown any more, permanently.
    pub fn give_up(&self) {
        rules::give_up(&self.memory.head().state);
    }

    /// Reads as a program does, from bytes that the caller finds in the memory. For tests.
    pub fn try_read(&self, offset: u64, len: u64, now_ns: u64) -> std::result::Result<Vec<u8>, rules::Miss> {
        let mut found = Vec::new();
        let copy = |slot: usize, at: usize, len: usize| {
            let start = crate::layout::data_offset(self.slots()) + slot * SLOT_BYTES + at;
            let mut part = vec![0; len];
            let read = rustix::io::pread(self.fd(), &mut part, start as u64);
            assert_eq!(read, Ok(len));
            found.extend(part);
        };
        let state = &self.memory.head().state;
        rules::read(state, self.memory.slots(), (offset, len), || now_ns, copy).map(|_| ())?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Slot, State};
    use crate::rules::Miss;
    use proptest::prelude::*;

    /// Goal: shown bytes are found until they change, sizes limit reads only while they are certain, and an abandoned
    /// export shows nothing. Method: a sequence of steps.
    #[test]
    fn what_is_shown_is_found() {
        let export = Export::new(7, 3 * UNIT).unwrap();
        assert_eq!(export.try_read(0, 10, 0), Err(Miss::Absent));
        let ticket = export.ticket();
        export.fill(ticket, 0, 0, &[1; SLOT_BYTES]);
        export.fill(ticket, 1, 100, &[2; 50]);
        assert_eq!(export.try_read(65530, 6, 0).unwrap(), [1; 6]);
        assert_eq!(export.try_read(UNIT + 100, 50, 0).unwrap(), [2; 50]);
        assert_eq!(export.try_read(UNIT + 100, 51, 0), Err(Miss::Absent));
        assert_eq!(export.try_read(UNIT + 99, 2, 0), Err(Miss::Absent));
        export.show_size(ticket, UNIT + 150, 1000);
        assert_eq!(export.try_read(UNIT + 100, 500, 999).unwrap(), [2; 50]);
        assert_eq!(export.try_read(UNIT + 100, 500, 1000), Err(Miss::End));
        assert_eq!(export.try_read(9 * UNIT, 500, 999).unwrap(), [0; 0]);
        export.bytes_change(5, 6);
        assert_eq!(export.try_read(0, 1, 0), Err(Miss::Absent));
        assert_eq!(export.try_read(UNIT + 100, 500, 999).unwrap(), [2; 50]);
        export.block();
        assert_eq!(export.try_read(UNIT + 100, 50, 0), Err(Miss::Busy));
        export.unblock();
        export.set_due(true);
        assert_eq!(export.try_read(UNIT + 100, 50, 0), Err(Miss::Due));
        export.set_due(false);
        export.size_changes();
        assert_eq!(export.try_read(UNIT + 100, 500, 999), Err(Miss::Absent));
        export.all_change();
        assert_eq!(export.try_read(UNIT + 100, 50, 0), Err(Miss::Absent));
        export.fill(ticket, 1, 100, &[3; 50]);
        assert_eq!(export.try_read(UNIT + 100, 50, 0), Err(Miss::Absent), "the ticket is from before");
        export.give_up();
        assert_eq!(export.try_read(0, 1, 0), Err(Miss::Dead));
    }

    /// Goal: a process that gets the descriptor can neither write to the memory nor make it shorter. Method: tries.
    #[test]
    fn the_memory_is_sealed() {
        let export = Export::new(1, 1).unwrap();
        assert!(rustix::io::pwrite(export.fd(), &[1], 0).is_err());
        assert!(rustix::fs::ftruncate(export.fd(), 0).is_err());
        let writable = rustix::mm::ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let mapped = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), 4096, writable, rustix::mm::MapFlags::SHARED, export.fd(), 0)
        };
        assert!(mapped.is_err());
    }

    proptest! {
        /// Goal: whatever is in the memory, a read copies from inside the slots only, in order, and not more than was
        /// requested. Method: heads and slots of arbitrary words.
        #[test]
        fn forged_memory_is_read_inside(
            words in proptest::collection::vec(any::<u64>(), 6),
            slots in proptest::collection::vec((any::<u64>(), 0u64..3, 0u64..4, any::<u64>()), 0..4),
            offset in prop_oneof![any::<u64>(), 0u64..300_000],
            len in prop_oneof![any::<u64>(), 0u64..300_000],
            plain in any::<bool>(),
        ) {
            let state = State::default();
            let words: Vec<u64> = if plain { vec![4, 1, 0, 0, words[4], words[5]] } else { words };
            let all = [&state.state, &state.epoch, &state.blocks, &state.due, &state.size, &state.size_until];
            for (to, word) in all.iter().zip(&words) {
                to.store(*word, Relaxed);
            }
            let slots: Vec<Slot> = slots.into_iter().map(|(sequence, epoch, unit, span)| {
                let slot = Slot::default();
                slot.sequence.store(sequence, Relaxed);
                slot.epoch.store(epoch, Relaxed);
                slot.unit.store(unit, Relaxed);
                slot.span.store(span, Relaxed);
                slot
            }).collect();
            let mut copied = 0u64;
            let read = rules::read(&state, &slots, (offset, len), || 5, |slot, at, part| {
                assert!(slot < slots.len() && at + part <= SLOT_BYTES);
                copied += part as u64;
                assert!(copied <= len);
            });
            prop_assert!(read.is_err() || read == Ok(copied));
        }
    }
}
