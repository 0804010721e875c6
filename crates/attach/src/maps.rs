//! The memory that mounts share, as this process has mapped it.
//!
//! Owns: the tables of boards and exports, making and replacing mappings. Does not own: requesting the memory
//! (`identify`), reading it (`read`).
//!
//! Invariant: the address and the number of slots of a place never change once it was used. So a reader that was under
//! way when an export was abandoned reads memory that is mapped, even if its place was reused; it finds the word of its
//! descriptor or the state of the export changed. A ring is replaced only while no thread uses it, because a thread
//! stores into it.

use crate::owner::is_own_memory;
use crate::{sys, table};
use amphi_shm::layout::{
    BOARD_BYTES, BOARD_MAGIC, BoardHead, EXPORT_MAGIC, HANDLES, HEAD_BYTES, Head, POST_BYTES, PostSlot, RING_BYTES,
    RING_DATA, RING_MAGIC, RING_SLOTS, RingHead, SLOT_BYTES, SLOTS_MAX, Slot, VERSION, data_offset, export_bytes,
};
use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, SeqCst},
};

/// Exports that are mapped at a time, at most.
const MAPS: usize = 1024;
/// Mounts that a process reads from without the kernel, at most.
const BOARDS: usize = 4;

const FREE: u32 = 0;
const BUSY: u32 = 1;
const READY: u32 = 2;
/// The export was given up, and its memory goes back.
const LEFT: u32 = 3;

struct Place {
    state: AtomicU32,
    base: AtomicUsize,
    slots: AtomicUsize,
    id: AtomicU64,
    board: AtomicUsize,
}

struct BoardPlace {
    state: AtomicU32,
    base: AtomicUsize,
    socket: [AtomicU64; 2],
}

static PLACES: [Place; MAPS] = [const {
    Place {
        state: AtomicU32::new(FREE),
        base: AtomicUsize::new(0),
        slots: AtomicUsize::new(0),
        id: AtomicU64::new(0),
        board: AtomicUsize::new(0),
    }
}; MAPS];

static BOARD_PLACES: [BoardPlace; BOARDS] = [const {
    BoardPlace { state: AtomicU32::new(FREE), base: AtomicUsize::new(0), socket: [const { AtomicU64::new(0) }; 2] }
}; BOARDS];

/// An export that is mapped.
pub(crate) struct Export {
    head: &'static Head,
    slots: &'static [Slot],
    base: usize,
}

impl Export {
    pub(crate) fn head(&self) -> &'static Head {
        self.head
    }

    pub(crate) fn slots(&self) -> &'static [Slot] {
        self.slots
    }

    /// The address of bytes of a slot. Both must be inside: `rules::read` guarantees it.
    #[inline]
    pub(crate) fn bytes(&self, slot: usize, at: usize) -> *const u8 {
        (self.base + data_offset(self.slots.len()) + slot * SLOT_BYTES + at) as *const u8
    }
}

/// The export at a place.
#[inline]
pub(crate) fn export(map: usize) -> Option<Export> {
    let place = PLACES.get(map)?;
    if place.state.load(Acquire) != READY {
        return None;
    }
    let (base, slots) = (place.base.load(Relaxed), place.slots.load(Relaxed));
    // SAFETY: a place that is or was ready has a mapping that is long enough for so many slots, checked when it was
    // made, which stays for the life of the process; all that changes in it are atomics.
    Some(unsafe {
        let slots = core::slice::from_raw_parts((base + HEAD_BYTES) as *const Slot, slots);
        Export { head: &*(base as *const Head), slots, base }
    })
}

/// The head of a mount's board and the generation of a handle.
#[inline]
pub(crate) fn board(board: usize, handle: usize) -> Option<(&'static BoardHead, &'static AtomicU32)> {
    let place = BOARD_PLACES.get(board)?;
    if place.state.load(Acquire) != READY || handle >= HANDLES {
        return None;
    }
    let base = place.base.load(Relaxed);
    // SAFETY: a board that is ready is `BOARD_BYTES` long and stays for the life of the process.
    unsafe { Some((&*(base as *const BoardHead), &*((base + HEAD_BYTES) as *const AtomicU32).add(handle))) }
}

/// The board of the mount whose socket has this name.
pub(crate) fn known_board(socket: [u64; 2]) -> Option<usize> {
    BOARD_PLACES.iter().position(|place| {
        place.state.load(Acquire) == READY
            && place.socket[0].load(Relaxed) == socket[0]
            && place.socket[1].load(Relaxed) == socket[1]
    })
}

/// The place of an export of that mount.
pub(crate) fn known_export(board: usize, id: u64) -> Option<usize> {
    PLACES.iter().position(|place| {
        place.state.load(Acquire) == READY && place.id.load(Relaxed) == id && place.board.load(Relaxed) == board
    })
}

/// Whether a place still has this export of that mount.
pub(crate) fn is_export(map: usize, board: usize, id: u64) -> bool {
    PLACES.get(map).is_some_and(|place| {
        place.state.load(SeqCst) == READY && place.id.load(Relaxed) == id && place.board.load(Relaxed) == board
    })
}

/// Maps a board.
pub(crate) fn add_board(fd: &sys::Owned, socket: [u64; 2]) -> Option<usize> {
    let at = BOARD_PLACES.iter().position(|place| place.state.compare_exchange(FREE, BUSY, SeqCst, Relaxed).is_ok())?;
    let place = &BOARD_PLACES[at];
    if sys::length(fd).is_ok_and(|len| len >= BOARD_BYTES as u64)
        // SAFETY: a new mapping.
        && let Ok(base) = unsafe { sys::map(Some(fd.0), 0, BOARD_BYTES) }
    {
        // SAFETY: the mapping is new and long enough.
        let head = unsafe { &*(base as *const BoardHead) };
        if head.magic == BOARD_MAGIC && head.version == VERSION {
            place.base.store(base, Relaxed);
            place.socket.iter().zip(socket).for_each(|(to, word)| to.store(word, Relaxed));
            place.state.store(READY, SeqCst);
            return Some(at);
        }
        // SAFETY: nobody knows of it yet.
        unsafe { sys::unmap(base, BOARD_BYTES) };
    }
    place.state.store(FREE, SeqCst);
    None
}

/// Maps an export of this many slots.
pub(crate) fn add_export(fd: &sys::Owned, board: usize, id: u64, slots: usize) -> Option<usize> {
    if slots == 0 || slots > SLOTS_MAX {
        return None;
    }
    let bytes = export_bytes(slots);
    if !sys::length(fd).is_ok_and(|len| len >= bytes as u64) {
        return None;
    }
    let left = |place: &Place| {
        place.slots.load(Relaxed) == slots && place.state.compare_exchange(LEFT, BUSY, SeqCst, Relaxed).is_ok()
    };
    let free = |place: &Place| place.state.compare_exchange(FREE, BUSY, SeqCst, Relaxed).is_ok();
    let at = PLACES.iter().position(left).or_else(|| PLACES.iter().position(free))?;
    let place = &PLACES[at];
    let before = place.base.load(Relaxed);
    if before != 0 {
        table::doubt_map(at);
    }
    // SAFETY: in the place of a mapping of this table with the same length, or a new one.
    let Ok(base) = (unsafe { sys::map(Some(fd.0), before, bytes) }) else {
        place.state.store(if before == 0 { FREE } else { LEFT }, SeqCst);
        return None;
    };
    // SAFETY: the mapping is long enough.
    let head = unsafe { &*(base as *const Head) };
    let is_right = head.magic == EXPORT_MAGIC && head.id == id && head.slots == slots as u64;
    place.base.store(base, Relaxed);
    place.slots.store(slots, Relaxed);
    place.id.store(id, Relaxed);
    place.board.store(board, Relaxed);
    place.state.store(if is_right { READY } else { LEFT }, SeqCst);
    is_right.then_some(at)
}

/// The export at a place was given up by the mount: its memory goes back, and the addresses stay.
#[cold]
pub(crate) fn leave(map: usize) {
    let Some(place) = PLACES.get(map) else { return };
    // A child of `vfork` would do that to its parent.
    if !is_own_memory() || place.state.compare_exchange(READY, BUSY, SeqCst, Relaxed).is_err() {
        return;
    }
    table::doubt_map(map);
    let (base, slots) = (place.base.load(Relaxed), place.slots.load(Relaxed));
    // SAFETY: in the place of a mapping of this table. Readers that are on their way read zeros, which no state of an
    // export that they have seen is equal to.
    let _ = unsafe { sys::map(None, base, export_bytes(slots)) };
    place.state.store(LEFT, SeqCst);
}

/// Rings that are mapped at a time, at most.
const RINGS: usize = 64;
/// After this many writes, one after the other, that find a ring full, the mount is asked for another one.
const FULL_MAX: u32 = 8;

struct RingPlace {
    state: AtomicU32,
    /// Threads that use the ring, including those that were stopped for good while they used it.
    users: AtomicU32,
    /// Writes, one after the other, that found the ring full.
    full: AtomicU32,
    base: AtomicUsize,
    id: AtomicU64,
    board: AtomicUsize,
}

static RING_PLACES: [RingPlace; RINGS] = [const {
    RingPlace {
        state: AtomicU32::new(FREE),
        users: AtomicU32::new(0),
        full: AtomicU32::new(0),
        base: AtomicUsize::new(0),
        id: AtomicU64::new(0),
        board: AtomicUsize::new(0),
    }
}; RINGS];

/// A ring that this thread uses.
pub(crate) struct Ring {
    place: &'static RingPlace,
}

impl Drop for Ring {
    #[inline]
    fn drop(&mut self) {
        self.place.users.fetch_sub(1, SeqCst);
    }
}

impl Ring {
    #[inline]
    fn base(&self) -> usize {
        self.place.base.load(Relaxed)
    }

    #[inline]
    pub(crate) fn head(&self) -> &RingHead {
        // SAFETY: a place that is ready has a mapping of `RING_BYTES`, which is not replaced while it is used; what is
        // read of it are atomics.
        unsafe { &*(self.base() as *const RingHead) }
    }

    #[inline]
    pub(crate) fn slots(&self) -> &[PostSlot] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts((self.base() + HEAD_BYTES) as *const PostSlot, RING_SLOTS) }
    }

    /// A write found the ring full, or not. Returns whether that was so several times in turn, although the mount takes
    /// everything before it serves a write: then the ring is stuck.
    #[inline]
    pub(crate) fn note_full(&self, is_full: bool) -> bool {
        if is_full {
            self.place.full.fetch_add(1, Relaxed) + 1 >= FULL_MAX
        } else {
            if self.place.full.load(Relaxed) != 0 {
                self.place.full.store(0, Relaxed);
            }
            false
        }
    }

    /// The address of the bytes of a slot.
    #[inline]
    pub(crate) fn bytes(&self, slot: usize) -> *mut u8 {
        (self.base() + RING_DATA + slot % RING_SLOTS * POST_BYTES) as *mut u8
    }
}

/// The ring at a place.
#[inline]
pub(crate) fn ring(at: usize) -> Option<Ring> {
    let place = RING_PLACES.get(at)?;
    place.users.fetch_add(1, SeqCst);
    let ring = Ring { place };
    (place.state.load(SeqCst) == READY).then_some(ring)
}

/// The place of a ring of that mount.
pub(crate) fn known_ring(board: usize, id: u64) -> Option<usize> {
    RING_PLACES.iter().position(|place| {
        place.state.load(Acquire) == READY && place.id.load(Relaxed) == id && place.board.load(Relaxed) == board
    })
}

/// Whether a place still has this ring of that mount.
pub(crate) fn is_ring(at: usize, board: usize, id: u64) -> bool {
    RING_PLACES.get(at).is_some_and(|place| {
        place.state.load(SeqCst) == READY && place.id.load(Relaxed) == id && place.board.load(Relaxed) == board
    })
}

/// Maps a ring.
pub(crate) fn add_ring(fd: &sys::Owned, board: usize, id: u64) -> Option<usize> {
    if !sys::length(fd).is_ok_and(|len| len >= RING_BYTES as u64) {
        return None;
    }
    let takes = |place: &RingPlace, from: u32| {
        place.state.compare_exchange(from, BUSY, SeqCst, Relaxed).is_ok() && {
            // A thread counts itself first, and then checks the state.
            let is_unused = place.users.load(SeqCst) == 0;
            if !is_unused {
                place.state.store(from, SeqCst);
            }
            is_unused
        }
    };
    let is_stopped = |place: &RingPlace| {
        let base = place.base.load(Relaxed);
        // SAFETY: a place that is ready has a mapping of `RING_BYTES`, which stays; this looks at one atomic of it.
        place.state.load(SeqCst) == READY && unsafe { &*(base as *const RingHead) }.limit.0.load(Relaxed) == 0
    };
    let free = || RING_PLACES.iter().position(|place| takes(place, FREE) || takes(place, LEFT));
    let stopped = || RING_PLACES.iter().position(|place| is_stopped(place) && takes(place, READY));
    let at = free().or_else(stopped)?;
    let place = &RING_PLACES[at];
    table::doubt_ring(at);
    let before = place.base.load(Relaxed);
    // SAFETY: in the place of a mapping of this table with the same length, or a new one.
    let Ok(base) = (unsafe { sys::map_writable(fd.0, before, RING_BYTES) }) else {
        place.state.store(if before == 0 { FREE } else { LEFT }, SeqCst);
        return None;
    };
    // SAFETY: the mapping is long enough.
    let head = unsafe { &*(base as *const RingHead) };
    let is_right = head.magic == RING_MAGIC && head.id == id;
    place.base.store(base, Relaxed);
    place.full.store(0, Relaxed);
    place.id.store(id, Relaxed);
    place.board.store(board, Relaxed);
    place.state.store(if is_right { READY } else { LEFT }, SeqCst);
    is_right.then_some(at)
}
