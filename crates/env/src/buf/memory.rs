//! The memory of buffers: how it is allocated, and what happens to it when it is freed.
//!
//! Owns: the store of used memory. Does not own: windows and access to bytes (`buf`).
//!
//! Buffers below `POOLED_MIN_BYTES` come from the allocator. Buffers from there up to 1 MiB are chunks of runs. There
//! is one class of chunks for each power of two, with an additional page, so that a payload that begins anywhere within
//! a page fits its class. Larger buffers are mappings of their own. Runs and mappings request huge pages and lie on
//! their boundaries: direct I/O from huge pages moves 3.2 GB/s where 4 KiB pages give 2.4, at times 1.3 (a 1 MiB
//! request of small pages has more segments than a request of the block layer takes), and memory that comes back used
//! costs no page faults (0.3 us for each 4 KiB).
//!
//! Invariants: memory is in the store, or in one `Memory`, or being returned. Chunks are never unmapped; their number
//! is bounded by how many were in use at once. Memory in the store beyond the bounds below is returned to the system:
//! it then reads as zeros.

pub(crate) mod arena;
mod mappings;
mod store;

use mappings::Mappings;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::time::{ClockId, clock_gettime};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::{GiveBack, Store};

/// Alignment of every buffer, bytes.
pub const ALIGN: usize = 4096;
/// Buffers from this size on do not come from the allocator, bytes.
const POOLED_MIN_BYTES: usize = 64 << 10;
/// Classes of chunks: 64 KiB, used by caches; 1 MiB, used to fill them; and 64 KiB to 1 MiB with an additional page.
const CLASSES: usize = 7;
/// Buffers with more bytes than this are separate mappings.
const CHUNK_MAX_BYTES: usize = (1 << 20) + ALIGN;
/// Size of a run in bytes. A run is the unit in which memory is cut into chunks and returned to the system. A run is
/// small, so that all of its chunks soon become unused.
const RUN_BYTES: usize = 4 << 20;
/// A huge page, bytes.
const HUGE_BYTES: usize = 2 << 20;
/// Sizes of mappings are rounded up to this, a page aside, so that they match when they are reused, bytes.
const MAPPED_STEP_BYTES: usize = 1 << 20;
/// Used chunks kept for good, bytes together: pieces of two requests of 16 MiB and some more.
const CHUNKS_KEPT_BYTES: usize = 48 << 20;
/// Used mappings kept for good, bytes together: three requests of 16 MiB with their heads.
const MAPPINGS_KEPT_BYTES: usize = 52 << 20;

/// Memory that nobody owns.
struct Unowned(NonNull<u8>);

// SAFETY: an address; the thread that takes it out of the store is its only owner.
unsafe impl Send for Unowned {}

/// Chunks of private memory and of an arena of huge pages; and chunks of an arena of small pages, which caches must not
/// get (`pass_memory`).
static CHUNKS: LazyLock<[Mutex<Store>; 2]> = LazyLock::new(|| [Store::new(), Store::new()].map(Mutex::new));
static MAPPINGS: Mutex<Mappings> = Mutex::new(Mappings::new());

/// Bytes that were taken new from the system.
static NEW_BYTES: AtomicU64 = AtomicU64::new(0);

/// The cost of a new page, ns of processor time; 0 before any was touched.
static NEW_PAGE_NS: AtomicU64 = AtomicU64::new(0);

/// The required content of new memory.
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

/// The class of the chunks with which caches are filled.
const FILL: usize = CLASSES - 2;

const fn chunk_bytes(class: usize) -> usize {
    match class {
        0 => POOLED_MIN_BYTES,
        FILL => 1 << 20,
        _ if class > FILL => CHUNK_MAX_BYTES,
        _ => (POOLED_MIN_BYTES << (class - 1)) + ALIGN,
    }
}

/// Caches have these chunks; the others are used once, by a request.
const fn is_of_caches(class: usize) -> bool {
    matches!(class, 0 | FILL)
}

/// The store from which a class gets its chunks.
fn store_of(class: usize) -> &'static Mutex<Store> {
    &CHUNKS[usize::from(arena::has_small_pages() && !is_of_caches(class))]
}

/// The store that has the run of a chunk.
fn store_at(at: usize) -> &'static Mutex<Store> {
    &CHUNKS[usize::from(arena::is_of_small_pages(at))]
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An owned block of memory, aligned to `ALIGN`, its size a multiple of it, all of it initialised. It gives out no
/// references: its holders ensure that no thread writes bytes that another one reads.
pub(super) struct Memory {
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: owned memory, like Box<[u8]>.
unsafe impl Send for Memory {}
// SAFETY: shared access reveals an address and a size and touches nothing.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory of at least `len` bytes.
    pub(super) fn new(len: usize, content: Content) -> Memory {
        let bytes = len.next_multiple_of(ALIGN);
        let ptr = match source(bytes) {
            Source::Nothing => NonNull::dangling(),
            Source::Heap => heap(bytes),
            Source::Chunk(class) => chunk(class, bytes, content),
            Source::Mapping(size) => match content {
                Content::Any => used_mapping(size).unwrap_or_else(|| new_mapping(size)),
                Content::Zero => new_mapping(size),
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

    /// The block's share of the process's memory.
    pub(super) fn cost_bytes(&self) -> usize {
        match source(self.bytes) {
            Source::Nothing => 0,
            // The allocator's own words come before the first byte, so that the next block begins an alignment later:
            // two blocks of 8 KiB are 12 KiB apart.
            Source::Heap => self.bytes + ALIGN,
            Source::Chunk(class) => chunk_bytes(class),
            Source::Mapping(size) => size,
        }
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
    let zero = content == Content::Zero;
    let take = |run: Option<usize>| {
        let mut chunks = lock(store_of(class));
        run.into_iter().for_each(|run| chunks.add(class, run));
        let taken = chunks.take(class, zero)?;
        Some((taken, chunks.excess(taken.at)))
    };
    let taken = take(None).or_else(|| take(Some(map_run(class).expose_provenance().get())));
    let (taken, excess) = taken.expect("a new run has chunks");
    give_back_all(taken.at, excess);
    let ptr = pointer(taken.at);
    if taken.is_zero {
        NEW_BYTES.fetch_add(bytes as u64, Relaxed);
        if taken.at.is_multiple_of(HUGE_BYTES) {
            touch(ptr, HUGE_BYTES);
        }
    }
    if zero && !taken.is_zero {
        // SAFETY: a chunk has at least `bytes` bytes, and this is its only owner. Clearing costs less than page faults.
        unsafe { ptr.write_bytes(0, bytes) };
    }
    ptr
}

fn pointer(at: usize) -> NonNull<u8> {
    NonNull::with_exposed_provenance(NonZero::new(at).expect("nothing is mapped at 0"))
}

fn keep_chunk(class: usize, ptr: NonNull<u8>) {
    let at = ptr.expose_provenance().get();
    let mut chunks = lock(store_at(at));
    chunks.keep(class, at);
    let excess = chunks.excess(at);
    drop(chunks);
    give_back_all(at, excess);
}

/// Returns excess memory to the system now that the chunk at `wanted` was taken or returned.
fn give_back_all(wanted: usize, mut excess: Option<GiveBack>) {
    while let Some(back) = excess {
        give_back(back);
        excess = lock(store_at(wanted)).excess(wanted);
    }
}

/// Sets how many bytes of used memory may be kept for reuse. It is at least 48 MiB, whatever is in use. It is more as
/// long as kept and used chunks together have at most `held` bytes, so that a cache that was emptied can be filled
/// again from its former memory. New memory is expensive: on a machine that itself gets it from a host, 0.4 GB/s. A
/// caller that raises this has to call `decay` from time to time.
pub fn keep_bytes(max: usize, held: usize) {
    lock(store_of(FILL)).keep_bytes(max, held);
    lock(&MAPPINGS).keep_bytes(max);
}

/// Returns to the system a part of the used memory that is kept beyond 48 MiB and was not needed lately, or all of it
/// with `all`.
pub fn decay(all: bool) {
    for chunks in CHUNKS.iter() {
        let back = lock(chunks).decay(all);
        back.into_iter().for_each(give_back);
    }
    let unmapped = lock(&MAPPINGS).decay(all);
    unmapped.into_iter().for_each(|(ptr, size)| unmap(ptr.0, size));
}

/// Bytes of used memory that wait for their next use.
pub fn waiting_bytes() -> usize {
    CHUNKS.iter().map(|chunks| lock(chunks).kept()).sum()
}

/// The cost of a page of 4 KiB in the memory that was touched last, ns of processor time; `None` before the first.
pub(super) fn new_page_ns() -> Option<u64> {
    Some(NEW_PAGE_NS.load(Relaxed)).filter(|ns| *ns > 0)
}

/// Touches memory that was never touched or was returned to the system, and records the cost. Pages that exist already
/// stay as they are. Pages that exist already are not changed.
fn touch(at: NonNull<u8>, bytes: usize) -> bool {
    let begun = processor_time();
    // SAFETY: the memory is mapped, starts at a page, and no byte of it changes.
    let touched = unsafe { madvise(at.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) }.is_ok();
    if touched {
        note_touched(processor_time().saturating_sub(begun), bytes);
    }
    touched
}

fn note_touched(took: Duration, bytes: usize) {
    let ns = (took.as_nanos() as u64 / (bytes / ALIGN) as u64).max(1);
    let before = NEW_PAGE_NS.load(Relaxed);
    // Some pages may have come from memory that the host had not taken back.
    let mean = if before == 0 { ns } else { (7 * before + ns) / 8 };
    NEW_PAGE_NS.store(mean, Relaxed);
}

/// Processor time that this thread has used.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Bytes of pooled buffers in use.
pub fn in_use_bytes() -> usize {
    CHUNKS.iter().map(|chunks| lock(chunks).in_use()).sum()
}

/// Touches memory ahead of its use until `goal` bytes of memory are kept for reuse, one run of 4 MiB in each call.
/// Touching costs 0.3 us for each 4 KiB, and up to 10 us on a machine that gets its own memory from a host. This takes
/// long, and nothing waits for it meanwhile. Returns whether there is more to touch.
pub fn populate(goal: usize) -> bool {
    let mut chunks = lock(store_of(FILL));
    if !chunks.wants_touched(goal) {
        return false;
    }
    let bare = chunks.take_bare();
    drop(chunks);
    let at = bare.unwrap_or_else(|| map_run(FILL).expose_provenance().get());
    if !touch(pointer(at), RUN_BYTES) {
        lock(store_at(at)).gave_back(GiveBack::run(at));
        return false;
    }
    let mut chunks = lock(store_of(FILL));
    chunks.add_touched(at);
    chunks.wants_touched(goal)
}

/// Returns memory without a holder to the system.
fn give_back(back: GiveBack) {
    let ptr = pointer(back.at);
    if arena::place(back.at).is_some() {
        arena::clear(ptr, back.bytes);
        lock(store_at(back.at)).gave_back(back);
        return;
    }
    // SAFETY: the memory is mapped, starts at a page, and nobody owns or finds it.
    let given = unsafe { madvise(ptr.as_ptr().cast(), back.bytes, Advice::LinuxDontNeed) };
    if given.is_err() {
        // SAFETY: as above. Locked memory cannot be returned; it must be zero all the same.
        unsafe { ptr.write_bytes(0, back.bytes) };
    }
    lock(store_at(back.at)).gave_back(back);
}

/// The number of bytes of buffers so far whose memory was new from the system, for the first time or after it had been
/// returned. Measurements of their use include page faults, of up to 10 us for each 4 KiB on a machine that gets its
/// own memory from a host.
pub(super) fn new_bytes() -> u64 {
    NEW_BYTES.load(Relaxed)
}

fn new_mapping(size: usize) -> NonNull<u8> {
    NEW_BYTES.fetch_add(size as u64, Relaxed);
    map_huge(size, HUGE_BYTES)
}

fn used_mapping(size: usize) -> Option<NonNull<u8>> {
    lock(&MAPPINGS).take(size).map(|unowned| unowned.0)
}

fn keep_mapping(size: usize, ptr: NonNull<u8>) {
    let too_much = lock(&MAPPINGS).keep((Unowned(ptr), size));
    if let Some((ptr, size)) = too_much {
        unmap(ptr.0, size);
    }
}

/// A new run for chunks of a class.
fn map_run(class: usize) -> NonNull<u8> {
    if is_of_caches(class) && arena::has_small_pages() {
        return map_private(RUN_BYTES, RUN_BYTES);
    }
    map_huge(RUN_BYTES, RUN_BYTES)
}

/// A new mapping of zeros that starts at a multiple of `align`: huge pages, or several. The mapping comes from the
/// arena, if there is one with enough free memory.
fn map_huge(size: usize, align: usize) -> NonNull<u8> {
    debug_assert!(RUN_BYTES.is_multiple_of(align), "ranges of the arena are aligned to runs");
    arena::take_passable(size).unwrap_or_else(|| map_private(size, align))
}

/// Works as `map_huge`, in memory that is private to this process.
fn map_private(size: usize, align: usize) -> NonNull<u8> {
    let all = size.next_multiple_of(align) + align;
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address of the system's choice touches no memory in use.
    let raw = unsafe { mmap_anonymous(std::ptr::null_mut(), all, protection, flags) };
    let start = raw.ok().and_then(|p| NonNull::new(p.cast::<u8>())).unwrap_or_else(|| handle_alloc_error(layout(size)));
    let head = start.as_ptr().align_offset(align);
    // SAFETY: `head` is below `align`, so `size` bytes from there on lie in the mapping.
    let (ptr, behind) = unsafe { (start.add(head), start.add(head + size)) };
    if head > 0 {
        unmap(start, head);
    }
    unmap(behind, all - head - size);
    // Without huge pages everything works, but slower. SAFETY: advice on a mapping that is ours.
    let _ = unsafe { madvise(ptr.as_ptr().cast(), size, Advice::LinuxHugepage) };
    ptr
}

fn unmap(ptr: NonNull<u8>, size: usize) {
    if arena::give_back_passable(ptr, size) {
        return;
    }
    // SAFETY: mapped in `map_huge`, whole pages, and no reference to them is left.
    let unmapped = unsafe { munmap(ptr.as_ptr().cast(), size) };
    debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
}
