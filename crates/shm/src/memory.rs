//! Shared memory as the mount has it: sealed, and, except for rings, writable here alone.
//!
//! Owns: the mapping and the descriptor. Does not own: what is in it (`layout`).
//!
//! Invariant: the memory never shrinks or grows (seals), so no process that maps it gets SIGBUS; only this mapping can
//! ever write to it (`F_SEAL_FUTURE_WRITE`). Rings lack that seal, so nothing that is read from one is trusted.

use crate::layout::{
    BOARD_BYTES, BOARD_MAGIC, BoardHead, EXPORT_MAGIC, HANDLES, HEAD_BYTES, Head, POST_BYTES, PostSlot, RING_BYTES,
    RING_DATA, RING_MAGIC, RING_SLOTS, RingHead, SLOT_BYTES, Slot, VERSION, data_offset, export_bytes,
};
use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Result;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

struct Memory {
    at: NonNull<u8>,
    bytes: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping belongs to this value alone until it is dropped, and is reached through atomics and raw copies.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(name: &str, bytes: usize, seals: SealFlags) -> Result<Memory> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, bytes as u64)?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { mmap(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)? };
        let at = NonNull::new(at.cast()).expect("a mapping is not at 0");
        let memory = Memory { at, bytes, fd };
        fcntl_add_seals(&memory.fd, seals | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody can refer to any more.
        let unmapped = unsafe { munmap(self.at.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The board of a mount.
pub struct Board(Memory);

impl Board {
    /// A board whose lease is over.
    pub fn new() -> Result<Board> {
        let memory = Memory::new("amphi-board", BOARD_BYTES, SealFlags::FUTURE_WRITE)?;
        let head = BoardHead { magic: BOARD_MAGIC, version: VERSION, ..BoardHead::default() };
        // SAFETY: the memory is new, long enough and aligned to a page, and nobody else has it yet.
        unsafe { memory.at.cast::<BoardHead>().write(head) };
        Ok(Board(memory))
    }

    /// Sets until when what the mount shares may be used.
    pub fn set_lease(&self, until_ns: u64) {
        // SAFETY: `new` has put a head there, which is changed through atomics alone.
        unsafe { self.0.at.cast::<BoardHead>().as_ref() }.lease.0.store(until_ns, SeqCst);
    }

    fn generations(&self) -> &[AtomicU32] {
        // SAFETY: the board is `BOARD_BYTES` long; the words are reached as atomics alone.
        unsafe { std::slice::from_raw_parts(self.0.at.add(HEAD_BYTES).cast::<AtomicU32>().as_ptr(), HANDLES) }
    }

    /// The generation of a handle, unless it is too high to have one.
    pub fn generation(&self, handle: u64) -> Option<u32> {
        Some(self.generations().get(usize::try_from(handle).ok()?)?.load(SeqCst))
    }

    /// A descriptor of the handle is being closed, or the handle gets another meaning.
    pub fn raise(&self, handle: u64) {
        if let Some(word) = usize::try_from(handle).ok().and_then(|at| self.generations().get(at)) {
            word.fetch_add(1, SeqCst);
        }
    }

    /// The memory, for programs.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// The memory of an export.
pub(crate) struct ExportMemory {
    memory: Memory,
    slots: usize,
}

impl ExportMemory {
    /// Memory with a head that shows nothing.
    pub(crate) fn new(id: u64, slots: usize) -> Result<ExportMemory> {
        let memory = Memory::new("amphi-export", export_bytes(slots), SealFlags::FUTURE_WRITE)?;
        let head = Head { magic: EXPORT_MAGIC, id, slots: slots as u64, ..Head::default() };
        // SAFETY: as in `Board::new`. The slots behind it are zeros, which are valid atomics.
        unsafe { memory.at.cast::<Head>().write(head) };
        Ok(ExportMemory { memory, slots })
    }

    pub(crate) fn head(&self) -> &Head {
        // SAFETY: `new` has put a head there; what changes in it are atomics.
        unsafe { self.memory.at.cast::<Head>().as_ref() }
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        // SAFETY: the memory has so many slots behind the head, which are atomics.
        unsafe { std::slice::from_raw_parts(self.memory.at.add(HEAD_BYTES).cast::<Slot>().as_ptr(), self.slots) }
    }

    /// Copies bytes into a slot. The caller makes no second one at the same time (`rules::fill`).
    pub(crate) fn put(&self, slot: usize, at: usize, bytes: &[u8]) {
        assert!(slot < self.slots && at + bytes.len() <= SLOT_BYTES);
        let offset = data_offset(self.slots) + slot * SLOT_BYTES + at;
        // SAFETY: inside the mapping, by the assertion. Programs may read these bytes meanwhile; they find the sequence
        // of the slot changed and do not use what they read.
        unsafe { self.memory.at.add(offset).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd.as_fd()
    }
}

/// The memory of a ring, which programs write to as well.
pub(crate) struct RingMemory(Memory);

impl RingMemory {
    /// Memory with a head under which nothing may be posted.
    pub(crate) fn new(id: u64) -> Result<RingMemory> {
        let memory = Memory::new("amphi-ring", RING_BYTES, SealFlags::empty())?;
        let head = RingHead { magic: RING_MAGIC, id, ..RingHead::default() };
        // SAFETY: as in `Board::new`. The slots behind it are zeros, which are valid atomics.
        unsafe { memory.at.cast::<RingHead>().write(head) };
        Ok(RingMemory(memory))
    }

    pub(crate) fn head(&self) -> &RingHead {
        // SAFETY: `new` has put a head there. Programs may change all of it, but only its atomics are read here.
        unsafe { self.0.at.cast::<RingHead>().as_ref() }
    }

    pub(crate) fn slots(&self) -> &[PostSlot] {
        // SAFETY: the memory has so many slots behind the head, which are atomics.
        unsafe { std::slice::from_raw_parts(self.0.at.add(HEAD_BYTES).cast::<PostSlot>().as_ptr(), RING_SLOTS) }
    }

    /// Copies the first bytes of a slot. Programs may change them meanwhile, and then get what they deserve.
    pub(crate) fn get(&self, slot: usize, into: &mut [u8]) {
        assert!(slot < RING_SLOTS && into.len() <= POST_BYTES);
        // SAFETY: inside the mapping, by the assertion; the other side is memory of this process alone.
        unsafe {
            let from = self.0.at.add(RING_DATA + slot * POST_BYTES);
            into.as_mut_ptr().copy_from_nonoverlapping(from.as_ptr(), into.len());
        }
    }

    /// Copies like `get`, in the other direction. For tests.
    pub(crate) fn put(&self, slot: usize, bytes: &[u8]) {
        assert!(slot < RING_SLOTS && bytes.len() <= POST_BYTES);
        // SAFETY: as in `get`.
        unsafe {
            let into = self.0.at.add(RING_DATA + slot * POST_BYTES);
            into.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }

    /// Gives the memory back to the system, also where others have mapped it: they find zeros.
    pub(crate) fn empty(&self) {
        // Memory that cannot be given back is freed with the last mapping.
        let _ = fallocate(&self.0.fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, RING_BYTES as u64);
    }
}
