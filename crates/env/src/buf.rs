//! `Buf`: an owned, page-aligned block of memory with a window, which can be cut into parts without a copy.
//!
//! Owns: which code may access which bytes on the way from a front end through caches and transports to O_DIRECT disks.
//! Does not own: where memory comes from (`memory`). Readers see the window `start..end`. The memory around it lets a
//! server complete the edge blocks of an unaligned request in place, without a copy.
//!
//! A large request is one allocation. `split_to` cuts a buffer in two, which share the memory and own disjoint parts of
//! it, so that several requests, connections and disk operations can use it at once. `join` makes one of two
//! neighbours. Memory is returned when its last part is dropped.
//!
//! A cache that writes back keeps parts of one memory and has to pass all of them on without a copy. It makes one
//! read-only buffer of adjacent parts that it continues to hold (`shared`). Such a buffer is read only. A change of it
//! is made in a copy, and so is a change of the parts by their holder (`Arc::get_mut`).
//!
//! Invariants: `room.start <= start <= end <= room.end`. The rooms of the parts of one memory do not overlap, so each
//! part is exclusive in its room and `&mut` is really exclusive. Positions count from the memory's aligned start, in
//! every part. All bytes are initialised. Shared bytes do not change.

mod memory;
mod stream;

use memory::{Content, Memory};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use memory::arena;
pub use memory::arena::{give_back_passable, pass_memory, take_passable};
pub use memory::{ALIGN, decay, in_use_bytes, keep_bytes, populate, waiting_bytes};
pub use stream::copy_streaming;

/// The byte with which `scratch` memory is filled in a simulation.
const PLANTED: u8 = 0xa5;

static PLANT: AtomicBool = AtomicBool::new(false);

/// From now on `scratch` memory has the same content each time. A simulation must not differ from run to run, and bytes
/// that were never written must be distinguishable from zeros.
pub(crate) fn plant_scratch() {
    // Simulated processes share the arena, and all their buffers lie in it, so that this does not depend on earlier
    // runs.
    arena::pass_memory_everywhere();
    PLANT.store(true, Ordering::Relaxed);
}

/// The number of bytes of buffers so far whose memory came new from the system (`memory::new_bytes`). In a simulation
/// this is 0, because nothing may depend on earlier runs.
pub fn new_bytes() -> u64 {
    if PLANT.load(Ordering::Relaxed) { 0 } else { memory::new_bytes() }
}

/// The cost of a page of 4 KiB that was never touched before, ns, as last measured; `None` in a simulation.
pub fn new_page_ns() -> Option<u64> {
    if PLANT.load(Ordering::Relaxed) { None } else { memory::new_page_ns() }
}

/// Boxed, because parts are few and buffers travel in messages.
enum Owner {
    Sole(Memory),
    Part(Box<Part>),
}

struct Part {
    of: Whole,
    room: Range<usize>,
}

/// The memory of which a buffer is a part.
#[derive(Clone)]
enum Whole {
    /// Memory whose parts have different owners.
    Cut(Arc<Memory>),
    /// Adjacent parts that other owners hold too: nobody can change them while they are held here.
    Shared(Arc<[Arc<Buf>]>),
    /// Memory of another owner, who does not change it while this is held.
    Lent(Arc<dyn Send + Sync>),
}

impl Whole {
    fn is(&self, other: &Whole) -> bool {
        match (self, other) {
            (Whole::Cut(a), Whole::Cut(b)) => Arc::ptr_eq(a, b),
            (Whole::Shared(a), Whole::Shared(b)) => Arc::ptr_eq(a, b),
            (Whole::Lent(a), Whole::Lent(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// Owned aligned memory with a window; `Deref`s to the window.
pub struct Buf {
    owner: Owner,
    /// Start of the memory, also of a part.
    base: NonNull<u8>,
    start: usize,
    end: usize,
}

// SAFETY: a Buf is the only owner of its room, like Box<[u8]>.
unsafe impl Send for Buf {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buf {}

impl Buf {
    fn new(len: usize, content: Content) -> Buf {
        let memory = Memory::new(len, content);
        Buf { base: memory.ptr(), owner: Owner::Sole(memory), start: 0, end: len }
    }

    /// `len` bytes of arbitrary content (never uninitialised), for memory that is filled before it is read. This is
    /// cheap if large buffers are allocated and freed often. The content of the room around the window is arbitrary
    /// too.
    pub fn scratch(len: usize) -> Buf {
        let mut b = Self::new(len, Content::Any);
        if PLANT.load(Ordering::Relaxed) {
            b.end = b.room().end;
            b.fill(PLANTED);
            b.end = len;
        }
        b
    }

    /// `len` bytes of arbitrary content, as in `scratch`, with the alignment that `padded` gives.
    pub fn scratch_padded(pad: usize, len: usize) -> Buf {
        assert!(pad < ALIGN);
        let mut b = Self::scratch(pad + len);
        b.start = pad;
        b
    }

    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Buf {
        Self::new(len, Content::Zero)
    }

    /// `len` zero bytes whose first byte is `pad` bytes after an aligned address, with memory up to the next aligned
    /// address after them. `pad < 4096`. For a payload of file offset `o`, `pad = o % 4096` makes the block-aligned
    /// middle of the payload aligned memory.
    pub fn padded(pad: usize, len: usize) -> Buf {
        assert!(pad < ALIGN);
        let mut b = Self::zeroed(pad + len);
        b.start = pad;
        b
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        let mut b = Self::scratch(bytes.len());
        b.copy_from_slice(bytes);
        b
    }

    /// One buffer of the windows of `parts`, which must be adjacent in one memory (or be a single buffer); `None` if
    /// they are not. As long as it lives, its bytes are those of the parts: the holder of a part cannot change it
    /// meanwhile, and a change of the new buffer is made in a copy. The buffer has no room around its window.
    pub fn shared(parts: impl IntoIterator<Item = Arc<Buf>>) -> Option<Buf> {
        let held: Arc<[Arc<Buf>]> = parts.into_iter().collect();
        let follows = |a: &Buf, b: &Buf| match (&a.owner, &b.owner) {
            (Owner::Part(x), Owner::Part(y)) => x.of.is(&y.of) && a.end == b.start,
            _ => false,
        };
        if !held.windows(2).all(|pair| follows(&pair[0], &pair[1])) {
            return None;
        }
        let (base, start, end) = (held.first()?.base, held.first()?.start, held.last()?.end);
        let part = Part { of: Whole::Shared(held), room: start..end };
        Some(Buf { owner: Owner::Part(Box::new(part)), base, start, end })
    }

    /// `len` bytes from `from` on that belong to another owner, who gets them back when `held` is dropped with the last
    /// part of them. The buffer never changes these bytes: a change goes to a copy, as with `shared`.
    ///
    /// # Safety
    /// The bytes are initialised, and stay mapped and unchanged until `held` is dropped.
    pub unsafe fn lent(from: NonNull<u8>, len: usize, held: Arc<dyn Send + Sync>) -> Buf {
        let start = from.as_ptr() as usize % ALIGN;
        // SAFETY: the address is only a place to count from; what lies before `from` is outside the room.
        let base = unsafe { NonNull::new_unchecked(from.as_ptr().wrapping_sub(start)) };
        let part = Part { of: Whole::Lent(held), room: start..start + len };
        Buf { owner: Owner::Part(Box::new(part)), base, start, end: start + len }
    }

    /// Returns whether it is all of its memory, which goes back when it is dropped.
    pub fn is_whole(&self) -> bool {
        matches!(self.owner, Owner::Sole(_))
    }

    /// Bytes of memory owned, window or not.
    pub fn capacity(&self) -> usize {
        self.room().len()
    }

    /// Bytes of memory that the buffer costs as long as it lives, including the allocator's rounding. For a part, this
    /// is its own share.
    pub fn cost_bytes(&self) -> usize {
        match &self.owner {
            Owner::Sole(memory) => memory.cost_bytes(),
            Owner::Part(part) => part.room.len(),
        }
    }

    /// The range of the memory that the buffer owns: all of it, or its part.
    pub fn room(&self) -> Range<usize> {
        match &self.owner {
            Owner::Sole(memory) => 0..memory.bytes(),
            Owner::Part(part) => part.room.clone(),
        }
    }

    /// The range of the window in the memory.
    pub fn window(&self) -> Range<usize> {
        self.start..self.end
    }

    /// The position of the window in the memory that this process may pass to others (`pass_memory`), in bytes from its
    /// start. Returns `None` if it is elsewhere. The position and the address of the window are equal modulo `ALIGN`.
    #[inline]
    pub fn place(&self) -> Option<u64> {
        if self.is_empty() { None } else { arena::place(self.base.addr().get() + self.start) }
    }

    /// Moves the window. Panics if it does not fit the room.
    pub fn set_window(&mut self, window: Range<usize>) {
        let room = self.room();
        let fits = room.start <= window.start && window.start <= window.end && window.end <= room.end;
        assert!(fits, "window {window:?} in {room:?}");
        self.start = window.start;
        self.end = window.end;
    }

    /// Narrows the window to `range` of the present window.
    pub fn narrow(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len());
        let start = self.start + range.start;
        self.set_window(start..start + range.end - range.start);
    }

    /// Cuts off the first `at` bytes of the window together with the memory before it. The following bytes stay. Both
    /// parts are exclusive (or share what was shared) and may go to other threads. Bytes that are to be written to a
    /// disk should be cut at multiples of 4096 of the memory.
    pub fn split_to(&mut self, at: usize) -> Buf {
        assert!(at <= self.len(), "a cut at {at} of {}", self.len());
        let (cut, room) = (self.start + at, self.room());
        let of = match std::mem::replace(&mut self.owner, Owner::Sole(Memory::new(0, Content::Zero))) {
            Owner::Sole(memory) => Whole::Cut(Arc::new(memory)),
            Owner::Part(part) => part.of,
        };
        let part = |of, room| Owner::Part(Box::new(Part { of, room }));
        let front = Buf { owner: part(of.clone(), room.start..cut), base: self.base, start: self.start, end: cut };
        self.owner = part(of, cut..room.end);
        self.start = cut;
        front
    }

    /// Gives a shared or lent buffer memory of its own; its window keeps its distance from an aligned address.
    fn make_own(&mut self) {
        if let Owner::Part(part) = &self.owner
            && let Whole::Shared(_) | Whole::Lent(_) = part.of
        {
            let mut own = Buf::scratch_padded(self.start % ALIGN, self.len());
            own.copy_from_slice(self);
            *self = own;
        }
    }

    /// Joins two parts that were neighbours when they were cut. Fails, and gives both back, if they were not, or if a
    /// window between them has moved.
    pub fn join(self, next: Buf) -> Result<Buf, (Buf, Buf)> {
        let neighbours = match (&self.owner, &next.owner) {
            (Owner::Part(a), Owner::Part(b)) => a.of.is(&b.of) && a.room.end == b.room.start,
            _ => false,
        };
        if !neighbours || self.end != next.start {
            return Err((self, next));
        }
        let room = self.room().start..next.room().end;
        let (base, start, end) = (self.base, self.start, next.end);
        drop(next);
        let owner = match self.owner {
            Owner::Part(part) => match part.of {
                // All parts are together again, and their rooms are the whole memory, unless some were dropped.
                Whole::Cut(memory) if Arc::strong_count(&memory) == 1 && room == (0..memory.bytes()) => {
                    Arc::into_inner(memory).map_or_else(|| unreachable!("it has one owner"), Owner::Sole)
                }
                of => Owner::Part(Box::new(Part { of, room })),
            },
            sole => sole,
        };
        Ok(Buf { owner, base, start, end })
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the window lies within the room: initialised bytes in memory that lives as long as this Buf, which
        // alone owns them or shares them with holders of `Whole::Shared` who cannot get `&mut` to their parts before
        // this Buf has let go of them, or has them from somebody who leaves them alone as long (`lent`).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(self.start), self.end - self.start) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.make_own();
        // SAFETY: the bytes are not shared any more; as in `deref`; `&mut self` is exclusive, and no other part's room
        // overlaps this one's.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(self.start), self.end - self.start) }
    }
}

impl Default for Buf {
    fn default() -> Buf {
        Buf::zeroed(0)
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({}..{} of {:?})", self.start, self.end, self.room())
    }
}

#[cfg(test)]
mod tests;
