//! The memory of buffers: where it comes from and where it goes.
//!
//! Owns: the store of used memory. Does not own: windows, who may touch what (`buf`).
//!
//! Below `POOLED_MIN_BYTES` the allocator serves. From there to 1 MiB a buffer is a chunk of a slab, one class of chunks for
//! each power of two with a page of room on top, so that a payload that begins anywhere within a page fits its class. Beyond,
//! a buffer is a mapping of its own. Slabs and mappings ask for huge pages and lie on their boundaries: direct I/O from
//! huge pages moves 3.2 GB/s where 4 KiB pages give 2.4 (a 1 MiB request of small pages has more segments than a request of the
//! block layer takes), and memory that comes back used costs no page faults (0.3 us for each 4 KiB).
//!
//! Invariants: memory is in the store, or in one `Memory`. Chunks are never unmapped; their number is bounded by how many were in use
//! at once. Memory in the store beyond the bounds below is given back to the system: a chunk then reads as zeros.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Alignment of every buffer, bytes.
pub const ALIGN: usize = 4096;
/// Buffers from this size on do not come from the allocator, bytes.
const POOLED_MIN_BYTES: usize = 64 << 10;
/// Classes of chunks: 64 KiB, which is what caches are made of, and 64 KiB to 1 MiB with a page more.
const CLASSES: usize = 6;
/// Buffers beyond this are mappings of their own, bytes.
const CHUNK_MAX_BYTES: usize = (1 << 20) + ALIGN;
/// What a slab is cut from, bytes.
const SLAB_BYTES: usize = 16 << 20;
/// A huge page, bytes.
const HUGE_BYTES: usize = 2 << 20;
/// Sizes of mappings are rounded up to this, a page aside, so that they match when they are reused, bytes.
const MAPPED_STEP_BYTES: usize = 1 << 20;
/// Used chunks kept for good, bytes together: pieces of two requests of 16 MiB and some more.
const CHUNKS_KEPT_BYTES: usize = 48 << 20;
/// Each `decay` gives back this part of what is kept beyond and was not wanted.
const DECAY: usize = 8;
/// Calls of `decay` in a stretch: what was wanted in this one or the one before stays. Memory that comes anew costs many times what its use
/// costs, and comes in small pages where only a part of a huge page was given back.
const STRETCH: usize = 12;
/// Used mappings kept, bytes together: three requests of 16 MiB with their heads.
const MAPPINGS_KEPT_BYTES: usize = 52 << 20;

/// Memory that nobody owns.
struct Unowned(NonNull<u8>);

// SAFETY: an address; whoever takes it out of the store is its only owner.
unsafe impl Send for Unowned {}

/// Chunks of one size.
struct Class {
    /// Used last at the back: that is taken first, since it may still be in a cache of the processor.
    used: VecDeque<Unowned>,
    /// The fewest there were in `used` in this stretch of `decay`s and in the one before: so many were not wanted.
    least: [usize; 2],
    zero: Vec<Unowned>,
    /// What is left of the newest slab.
    slab: Option<(Unowned, usize)>,
}

static CHUNKS: [Mutex<Class>; CLASSES] =
    [const { Mutex::new(Class { used: VecDeque::new(), least: [0; 2], zero: Vec::new(), slab: None }) }; CLASSES];
static DECAYS: AtomicUsize = AtomicUsize::new(0);
static CHUNKS_KEPT: AtomicUsize = AtomicUsize::new(0);
static CHUNKS_KEPT_MAX: AtomicUsize = AtomicUsize::new(CHUNKS_KEPT_BYTES);
static MAPPINGS: Mutex<Vec<(Unowned, usize)>> = Mutex::new(Vec::new());

/// What the content of new memory has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Zeros.
    Zero,
    /// Initialised, but arbitrary.
    Any,
}

enum Source {
    Nothing,
    Heap,
    Chunk(usize),
    Mapping(usize),
}

fn source(bytes: usize) -> Source {
    match bytes {
        0 => Source::Nothing,
        _ if bytes < POOLED_MIN_BYTES => Source::Heap,
        _ if bytes <= CHUNK_MAX_BYTES => {
            let class = (0..CLASSES).find(|&c| bytes <= chunk_bytes(c));
            Source::Chunk(class.expect("the last class has the largest chunk"))
        }
        _ => Source::Mapping((bytes - ALIGN).next_multiple_of(MAPPED_STEP_BYTES) + ALIGN),
    }
}

const fn chunk_bytes(class: usize) -> usize {
    match class {
        0 => POOLED_MIN_BYTES,
        _ => (POOLED_MIN_BYTES << (class - 1)) + ALIGN,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An owned block of memory, aligned to `ALIGN`, its size a multiple of it, all of it initialised. Gives no references: whoever
/// holds it or a share of it sees to it that nobody writes what another reads.
pub(super) struct Memory {
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: owned memory, like Box<[u8]>.
unsafe impl Send for Memory {}
// SAFETY: shared access reveals an address and a size and touches nothing.
unsafe impl Sync for Memory {}

impl Memory {
    /// At least `len` bytes.
    pub(super) fn new(len: usize, content: Content) -> Memory {
        let bytes = len.next_multiple_of(ALIGN);
        let ptr = match source(bytes) {
            Source::Nothing => NonNull::dangling(),
            Source::Heap => heap(bytes),
            Source::Chunk(class) => chunk(class, bytes, content),
            Source::Mapping(size) => match content {
                Content::Any => used_mapping(size).unwrap_or_else(|| map_huge(size)),
                Content::Zero => map_huge(size),
            },
        };
        Memory { ptr, bytes }
    }

    pub(super) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match source(self.bytes) {
            Source::Nothing => {}
            // SAFETY: allocated in `heap` with the same layout; this was its only owner.
            Source::Heap => unsafe { dealloc(self.ptr.as_ptr(), layout(self.bytes)) },
            Source::Chunk(class) => keep_chunk(class, self.ptr),
            Source::Mapping(size) => keep_mapping(size, self.ptr),
        }
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, ALIGN).expect("buffer size fits isize")
}

fn heap(bytes: usize) -> NonNull<u8> {
    // SAFETY: the size is not zero. Zeroed, because uninitialised memory must never be readable.
    let raw = unsafe { alloc_zeroed(layout(bytes)) };
    NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout(bytes)))
}

fn chunk(class: usize, bytes: usize, content: Content) -> NonNull<u8> {
    let size = chunk_bytes(class);
    let mut chunks = lock(&CHUNKS[class]);
    // Zeros are taken from memory that has them, arbitrary content from memory whose pages are there.
    if (content == Content::Any || chunks.zero.is_empty())
        && let Some(Unowned(ptr)) = chunks.used.pop_back()
    {
        chunks.note_taken();
        drop(chunks);
        CHUNKS_KEPT.fetch_sub(size, Ordering::Relaxed);
        if content == Content::Zero {
            // SAFETY: a chunk has at least `bytes` bytes, and this is its only owner. Clearing costs less than page faults.
            unsafe { ptr.write_bytes(0, bytes) };
        }
        return ptr;
    }
    if let Some(Unowned(ptr)) = chunks.zero.pop() {
        return ptr;
    }
    let (Unowned(first), left) = match chunks.slab.take() {
        Some(slab) if slab.1 >= size => slab,
        _ => (Unowned(map_huge(SLAB_BYTES)), SLAB_BYTES),
    };
    // SAFETY: `left` bytes of the slab follow `first`, and they are at least `size`.
    let rest = unsafe { first.add(size) };
    chunks.slab = Some((Unowned(rest), left - size));
    first
}

fn keep_chunk(class: usize, ptr: NonNull<u8>) {
    let size = chunk_bytes(class);
    if CHUNKS_KEPT.fetch_add(size, Ordering::Relaxed) + size <= CHUNKS_KEPT_MAX.load(Ordering::Relaxed) {
        lock(&CHUNKS[class]).used.push_back(Unowned(ptr));
        return;
    }
    give_back(class, ptr);
}

impl Class {
    fn note_taken(&mut self) {
        self.least = self.least.map(|least| least.min(self.used.len()));
    }

    /// The chunk that was not used for longest, of those that were not wanted.
    fn take_unwanted(&mut self) -> Option<Unowned> {
        let unwanted = self.least[0].min(self.least[1]) > 0;
        let oldest = if unwanted { self.used.pop_front() } else { None };
        self.least = self.least.map(|least| least.saturating_sub(usize::from(unwanted)));
        oldest
    }
}

/// How many bytes of used memory may wait for their next use; at least 48 MiB do. New memory is dear: where the machine itself
/// gets it from a host, 0.6 GB/s. Whoever raises this calls `decay` from time to time.
pub fn keep_bytes(max: usize) {
    CHUNKS_KEPT_MAX.store(max.max(CHUNKS_KEPT_BYTES), Ordering::Relaxed);
}

/// Gives a part of the used memory that waits beyond 48 MiB, and that nobody wanted lately, back to the system, or `all` beyond.
pub fn decay(all: bool) {
    let calls = DECAYS.fetch_add(1, Ordering::Relaxed);
    let beyond = CHUNKS_KEPT.load(Ordering::Relaxed).saturating_sub(CHUNKS_KEPT_BYTES);
    let mut left = if all { beyond } else { beyond.div_ceil(DECAY) };
    // Small ones first: the large ones serve direct requests, which a huge page makes faster.
    for (class, chunks) in CHUNKS.iter().enumerate() {
        while left > 0 {
            let mut chunks = lock(chunks);
            let oldest = if all { chunks.used.pop_front() } else { chunks.take_unwanted() };
            chunks.note_taken();
            drop(chunks);
            let Some(Unowned(ptr)) = oldest else { break };
            left = left.saturating_sub(chunk_bytes(class));
            give_back(class, ptr);
        }
        if calls % STRETCH == STRETCH - 1 {
            let mut chunks = lock(chunks);
            chunks.least = [chunks.used.len(), chunks.least[0]];
        }
    }
}

/// Gives a chunk that is counted as kept back to the system.
fn give_back(class: usize, ptr: NonNull<u8>) {
    let size = chunk_bytes(class);
    CHUNKS_KEPT.fetch_sub(size, Ordering::Relaxed);
    // SAFETY: the chunk is mapped, starts at a page, and nobody owns it any more.
    let given = unsafe { madvise(ptr.as_ptr().cast(), size, Advice::LinuxDontNeed) };
    if given.is_err() {
        // SAFETY: as above. Locked memory cannot be given back; it must be zero all the same.
        unsafe { ptr.write_bytes(0, size) };
    }
    lock(&CHUNKS[class]).zero.push(Unowned(ptr));
}

fn used_mapping(size: usize) -> Option<NonNull<u8>> {
    let mut mappings = lock(&MAPPINGS);
    let at = mappings.iter().rposition(|(_, s)| *s == size)?;
    Some(mappings.swap_remove(at).0.0)
}

fn keep_mapping(size: usize, ptr: NonNull<u8>) {
    let mut mappings = lock(&MAPPINGS);
    if mappings.iter().map(|(_, s)| s).sum::<usize>() + size <= MAPPINGS_KEPT_BYTES {
        mappings.push((Unowned(ptr), size));
        return;
    }
    drop(mappings);
    unmap(ptr, size);
}

/// A new mapping of zeros that starts at a huge page.
fn map_huge(size: usize) -> NonNull<u8> {
    let all = size.next_multiple_of(HUGE_BYTES) + HUGE_BYTES;
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address of the system's choice touches no memory in use.
    let raw = unsafe { mmap_anonymous(std::ptr::null_mut(), all, protection, flags) };
    let start = raw.ok().and_then(|p| NonNull::new(p.cast::<u8>())).unwrap_or_else(|| handle_alloc_error(layout(size)));
    let head = start.as_ptr().align_offset(HUGE_BYTES);
    // SAFETY: `head` is below HUGE_BYTES, so `size` bytes from there on lie in the mapping.
    let (ptr, behind) = unsafe { (start.add(head), start.add(head + size)) };
    if head > 0 {
        unmap(start, head);
    }
    unmap(behind, all - head - size);
    // Without huge pages everything works, slower.
    // SAFETY: advice on a mapping that is ours.
    let _ = unsafe { madvise(ptr.as_ptr().cast(), size, Advice::LinuxHugepage) };
    ptr
}

fn unmap(ptr: NonNull<u8>, size: usize) {
    // SAFETY: mapped in `map_huge`, whole pages, and no reference to them is left.
    let unmapped = unsafe { munmap(ptr.as_ptr().cast(), size) };
    debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
}
