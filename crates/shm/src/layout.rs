//! The layout of shared memory.
//!
//! Owns: sizes, offsets, magic numbers, and the atomics of heads and slots. Does not own: in which order they are read
//! and written (`rules`).
//!
//! | board | bytes | | export | bytes |
//! |---|---|---|---|---|
//! | magic, version | 0..16 | | magic, id, number of slots | 0..24 |
//! | lease | 64..72 | | state, epoch, blocks, due, size, its end | 64..112 |
//! | generations, 4 bytes for each handle | 4096.. | | slots, 64 bytes each | 4096.. |
//! | | | | bytes of the slots, 64 KiB each, from a multiple of 64 KiB on | |
//!
//! | ring | bytes |
//! |---|---|
//! | magic, id | 0..16 |
//! | limit; tail | 64..72; 128..136 |
//! | slots, 64 bytes each | 4096.. |
//! | bytes of the slots, 64 KiB each | 65536.. |

#[cfg(not(feature = "loom"))]
use core::sync::atomic::AtomicU64;
#[cfg(feature = "loom")]
use loom::sync::atomic::AtomicU64;

/// Bytes of a slot: those of a unit of the page cache.
pub const SLOT_BYTES: usize = 64 << 10;
/// Bytes of a head.
pub const HEAD_BYTES: usize = 4096;
/// Open files that have a generation; those with higher handles are read through the kernel.
pub const HANDLES: usize = 1 << 16;
/// Bytes of a board.
pub const BOARD_BYTES: usize = HEAD_BYTES + 4 * HANDLES;
/// Most slots of an export: 256 MiB of a file are shared at a time.
pub const SLOTS_MAX: usize = 4096;
/// Marks a board.
pub const BOARD_MAGIC: u64 = u64::from_le_bytes(*b"amphibrd");
/// Marks an export.
pub const EXPORT_MAGIC: u64 = u64::from_le_bytes(*b"amphiexp");
/// The version of everything that programs and mounts share. A program reads through the kernel if the versions differ.
pub const VERSION: u64 = 2;
/// Marks a ring.
pub const RING_MAGIC: u64 = u64::from_le_bytes(*b"amphirng");
/// Slots of a ring: this many writes are posted before a call of the kernel makes the mount take them.
pub const RING_SLOTS: usize = 64;
/// Longest write that is posted. Longer ones cost less through the kernel than two copies.
pub const POST_BYTES: usize = 64 << 10;
/// The start of the bytes of a ring's slots.
pub const RING_DATA: usize = 64 << 10;
/// Bytes of a ring.
pub const RING_BYTES: usize = RING_DATA + RING_SLOTS * POST_BYTES;

/// Bytes of an export with this many slots.
pub const fn export_bytes(slots: usize) -> usize {
    data_offset(slots) + slots * SLOT_BYTES
}

/// The start of the bytes of the slots.
pub const fn data_offset(slots: usize) -> usize {
    (HEAD_BYTES + slots * size_of::<Slot>()).next_multiple_of(SLOT_BYTES)
}

/// The head of a board.
#[repr(C, align(64))]
#[derive(Default)]
pub struct BoardHead {
    /// `BOARD_MAGIC`.
    pub magic: u64,
    /// `VERSION`.
    pub version: u64,
    /// The end of the lease of everything that the mount shares, `CLOCK_BOOTTIME` in nanoseconds.
    pub lease: Line,
}

/// A word with a cache line to itself.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Line(pub AtomicU64);

/// The part of the head of an export that changes.
#[repr(C, align(64))]
#[derive(Default)]
pub struct State {
    /// A count of events, and the bits `CERTAIN` and `DEAD`.
    pub state: AtomicU64,
    /// Slots with another epoch show nothing.
    pub epoch: AtomicU64,
    /// How many calls hold the file against readers.
    pub blocks: AtomicU64,
    /// Not 0 if the next read has to be known to the mount, because it renews the access time.
    pub due: AtomicU64,
    /// The end of the file, if the state has `CERTAIN`.
    pub size: AtomicU64,
    /// The time until which that is certain, `CLOCK_BOOTTIME` in nanoseconds.
    pub size_until: AtomicU64,
}

/// The head of an export.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Head {
    /// `EXPORT_MAGIC`.
    pub magic: u64,
    /// The number of the export; no other one of the mount has it.
    pub id: u64,
    /// Number of slots.
    pub slots: u64,
    /// What changes.
    pub state: State,
}

/// A slot: which unit it shows and which bytes of it.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Slot {
    /// Odd while the slot shows nothing; grows with each change.
    pub sequence: AtomicU64,
    /// The epoch in which the slot was filled.
    pub epoch: AtomicU64,
    /// The number of the unit.
    pub unit: AtomicU64,
    /// The bytes of the unit that are there: the first in the high half, the end in the low half.
    pub span: AtomicU64,
}

/// The head of a ring.
#[repr(C, align(64))]
#[derive(Default)]
pub struct RingHead {
    /// `RING_MAGIC`.
    pub magic: u64,
    /// The number of the ring; no other one of the mount has it.
    pub id: u64,
    /// Posted writes may end here at the latest; 0 while nothing may be posted.
    pub limit: Line,
    /// Number of positions that programs have claimed.
    pub tail: Line,
}

/// A slot of a ring: the state, and the write that it holds. Slot `n` serves the positions `n`, `n + slots`, ...
#[repr(C, align(64))]
#[derive(Default)]
pub struct PostSlot {
    /// A position and a state of it (`posts`).
    pub state: AtomicU64,
    /// Where in the file the bytes go.
    pub offset: AtomicU64,
    /// The number of bytes in the high half, the handle of the open file in the low half.
    pub what: AtomicU64,
}

#[cfg(not(feature = "loom"))]
const _: () = {
    assert!(size_of::<PostSlot>() == 64 && HEAD_BYTES + RING_SLOTS * size_of::<PostSlot>() <= RING_DATA);
    assert!(core::mem::offset_of!(RingHead, limit) == 64 && core::mem::offset_of!(RingHead, tail) == 128);
    assert!(size_of::<Slot>() == 64 && size_of::<BoardHead>() <= HEAD_BYTES && size_of::<Head>() <= HEAD_BYTES);
    assert!(core::mem::offset_of!(Head, state) == 64 && core::mem::offset_of!(BoardHead, lease) == 64);
};
