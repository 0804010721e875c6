//! The arena: memory of buffers in a file without a name, which other processes of the machine can be given.
//!
//! Owns: the file, where it is mapped, which of its ranges are in use. Does not own: buffers (`memory`), passing the
//! file to others (`real`), and the decision when (`transport`).
//!
//! There is at most one in a process. A process that expects servers on its machine creates it before buffers are
//! allocated (`pass_memory`); without it, buffers are private memory. The reserved address space is larger than the
//! machine's memory. Parts that were never touched, or were returned, use no memory.
//!
//! Invariants: its size is sealed, so no process that has mapped it can find its end. The arena is mapped once and
//! never unmapped. A range has one owner, and a returned range reads as zeros. A child of `fork` does not have the
//! mapping: it cannot change the buffers of its parent.

use super::{ALIGN, RUN_BYTES, lock};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock};

/// Ranges begin at multiples of this and are as long, bytes.
const GRAIN: usize = RUN_BYTES;
/// Bytes of an arena at most.
pub(crate) const ARENA_BYTES_MAX: u64 = 2 << 40;

static ARENA: OnceLock<Option<Arena>> = OnceLock::new();

struct Arena {
    fd: OwnedFd,
    /// A page whose first byte is 1, and 0 in a child of `fork`, which does not have the mapping.
    here: usize,
    /// The address at which the arena is mapped.
    base: usize,
    bytes: usize,
    /// The kernel gives it pages of 4 KiB, and huge ones to private memory.
    has_small_pages: bool,
    ranges: Mutex<Ranges>,
}

/// The free ranges.
struct Ranges {
    /// The part that was never used begins here, counted from the start.
    fresh: usize,
    /// The returned ranges, by length.
    back: BTreeMap<usize, Vec<usize>>,
}

impl Ranges {
    const fn new() -> Ranges {
        Ranges { fresh: 0, back: BTreeMap::new() }
    }

    /// Takes a range of this many bytes from an arena of `all` bytes.
    fn take(&mut self, bytes: usize, all: usize) -> Option<usize> {
        let bytes = bytes.checked_next_multiple_of(GRAIN)?;
        if let Some(at) = self.back.get_mut(&bytes).and_then(Vec::pop) {
            return Some(at);
        }
        let end = self.fresh.checked_add(bytes).filter(|end| *end <= all)?;
        Some(std::mem::replace(&mut self.fresh, end))
    }

    fn put(&mut self, at: usize, bytes: usize) {
        self.back.entry(bytes.next_multiple_of(GRAIN)).or_default().push(at);
    }
}

impl Arena {
    fn make(has_small_pages: bool) -> Option<Arena> {
        Self::try_make(has_small_pages)
            .inspect_err(|e| tracing::debug!("buffers cannot be passed to other processes: {e}"))
            .ok()
    }

    fn try_make(has_small_pages: bool) -> Result<Arena, Errno> {
        // If the size of files is limited, the kernel ends a process that makes a larger one.
        if getrlimit(Resource::Fsize).current.is_some() {
            return Err(Errno::FBIG);
        }
        let system = rustix::system::sysinfo();
        let memory = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit).max(1));
        let bytes = memory.saturating_mul(2).clamp(1 << 30, ARENA_BYTES_MAX) as usize / GRAIN * GRAIN;
        let fd = memfd_create("amphi-buffers", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, bytes as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the system's choice touches no memory in use.
        let room = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes + GRAIN, ProtFlags::empty(), flags) }?;
        let base = (room as usize).next_multiple_of(GRAIN);
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: it lies within the room that was just mapped for it, which nobody else knows of.
        unsafe { mmap(base as *mut c_void, bytes, ProtFlags::READ | ProtFlags::WRITE, flags, &fd, 0) }?;
        // SAFETY: advice on a mapping that is ours; the second one only makes it faster.
        unsafe {
            madvise(base as *mut c_void, bytes, Advice::LinuxDontFork)?;
            let _ = madvise(base as *mut c_void, bytes, Advice::LinuxHugepage);
        }
        // SAFETY: a new mapping at an address of the system's choice, of which this is the only user.
        let here = unsafe {
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            let page = mmap_anonymous(std::ptr::null_mut(), ALIGN, protection, flags)?;
            madvise(page, ALIGN, Advice::LinuxWipeOnFork)?;
            page.cast::<u8>().write_volatile(1);
            page as usize
        };
        Ok(Arena { fd, here, base, bytes, has_small_pages, ranges: Mutex::new(Ranges::new()) })
    }

    #[inline]
    fn is_here(&self) -> bool {
        // SAFETY: the page is mapped for good, and only changes when the process is forked.
        unsafe { (self.here as *const u8).read_volatile() == 1 }
    }
}

#[inline]
fn arena() -> Option<&'static Arena> {
    ARENA.get()?.as_ref().filter(|arena| arena.is_here())
}

/// From now on buffers of 64 KiB and more come from memory that can be passed to other processes. False where there is
/// no such memory: without memfd or seals, or with a bound on the size of files or of the address space.
///
/// If the kernel gives no huge pages to such memory, but gives them to private memory, caches stay in private memory:
/// copies from and to pages of 4 KiB take twice as long, and cached bytes are copied again and again.
pub fn pass_memory() -> bool {
    ARENA.get_or_init(|| Arena::make(private_is_huge() && !shared_is_huge())).is_some() && arena().is_some()
}

/// `pass_memory` for a simulation, which must not depend on the machine.
pub(crate) fn pass_memory_everywhere() -> bool {
    ARENA.get_or_init(|| Arena::make(false)).is_some() && arena().is_some()
}

/// There is an arena, and private memory has larger pages.
pub(super) fn has_small_pages() -> bool {
    arena().is_some_and(|arena| arena.has_small_pages)
}

/// Memory of an arena that `has_small_pages`, also in a child of `fork`, which does not have it any more.
pub(super) fn is_of_small_pages(address: usize) -> bool {
    let arena = ARENA.get().and_then(Option::as_ref).filter(|arena| arena.has_small_pages);
    arena.is_some_and(|arena| address.checked_sub(arena.base).is_some_and(|at| at < arena.bytes))
}

/// The kernel gives memory of memfds huge pages, if they are requested.
fn shared_is_huge() -> bool {
    chosen("shmem_enabled").is_some_and(|mode| !matches!(mode.as_str(), "never" | "deny"))
}

/// The kernel gives private memory huge pages, if they are requested.
fn private_is_huge() -> bool {
    chosen("enabled").is_some_and(|mode| mode != "never")
}

/// The present choice in a file of the kernel that lists all choices, with the present one in brackets.
fn chosen(name: &str) -> Option<String> {
    let choices = std::fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{name}")).ok()?;
    bracketed(&choices).map(str::to_owned)
}

fn bracketed(choices: &str) -> Option<&str> {
    Some(choices.split_once('[')?.1.split_once(']')?.0)
}

/// The file of the arena, if there is one.
pub(crate) fn passed() -> Option<BorrowedFd<'static>> {
    Some(arena()?.fd.as_fd())
}

/// Bytes of the arena, 0 if there is none.
pub(crate) fn passed_bytes() -> u64 {
    arena().map_or(0, |arena| arena.bytes as u64)
}

/// The position of an address in the arena, in bytes from its start.
#[inline]
pub(crate) fn place(address: usize) -> Option<u64> {
    let arena = arena()?;
    address.checked_sub(arena.base).filter(|at| *at < arena.bytes).map(|at| at as u64)
}

/// The address of a byte of the arena.
pub(crate) fn address(place: u64) -> Option<NonNull<u8>> {
    let arena = arena().filter(|arena| place < arena.bytes as u64)?;
    Some(NonNull::with_exposed_provenance(NonZero::new(arena.base + place as usize)?))
}

/// Copies bytes out of the arena, for simulated processes, all of which share one arena. Panics beyond its end.
pub(crate) fn copy_out(place: u64, into: &mut [u8]) {
    let from = in_bounds(place, into.len());
    // SAFETY: the bytes are in the mapping. The owner of the bytes may change them meanwhile, as between real
    // processes.
    unsafe { std::ptr::copy(from.as_ptr(), into.as_mut_ptr(), into.len()) };
}

/// Works as `copy_out`, to the arena.
pub(crate) fn copy_in(place: u64, from: &[u8]) {
    let to = in_bounds(place, from.len());
    // SAFETY: as in `copy_out`.
    unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), from.len()) };
}

fn in_bounds(place: u64, len: usize) -> NonNull<u8> {
    let is_in = place.checked_add(len as u64).is_some_and(|end| end <= passed_bytes());
    address(place).filter(|_| is_in).expect("bytes of the arena")
}

/// Takes memory of the arena for at least this many bytes, all zero. The memory begins at a multiple of 4 MiB, and so
/// at a huge page. Returns nothing if there is no arena or no space in it. `give_back_passable` returns the memory,
/// with the same length.
pub fn take_passable(bytes: usize) -> Option<NonNull<u8>> {
    let arena = arena()?;
    let at = lock(&arena.ranges).take(bytes, arena.bytes)?;
    address(at as u64)
}

/// Takes back memory that `take_passable` gave for this many bytes and to which no reference is left. Returns false if
/// it is no memory of the arena.
pub fn give_back_passable(memory: NonNull<u8>, bytes: usize) -> bool {
    let Some((arena, at)) = arena().zip(place(memory.addr().get())) else { return false };
    clear(memory, bytes.next_multiple_of(GRAIN));
    lock(&arena.ranges).put(at as usize, bytes);
    true
}

/// Gives pages of the arena back to the system: they read as zeros. `memory` consists of whole pages of the arena, and
/// nobody uses it.
pub(super) fn clear(memory: NonNull<u8>, bytes: usize) {
    // SAFETY: the memory is mapped, starts at a page, and nobody owns or finds it.
    if unsafe { madvise(memory.as_ptr().cast(), bytes, Advice::LinuxRemove) }.is_err() {
        // SAFETY: as above. Locked memory cannot be given back; it must be zero all the same.
        unsafe { memory.write_bytes(0, bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a range has one owner, a returned range is found again for its length, and the end is respected. Method:
    /// an arena of five grains.
    #[test]
    fn ranges_have_one_owner() {
        let (mut ranges, all) = (Ranges::new(), 5 * GRAIN);
        assert_eq!(ranges.take(1, all), Some(0));
        assert_eq!(ranges.take(GRAIN + 1, all), Some(GRAIN));
        assert_eq!(ranges.take(2 * GRAIN, all), Some(3 * GRAIN));
        assert_eq!(ranges.take(1, all), None);
        ranges.put(GRAIN, GRAIN + 1);
        assert_eq!(ranges.take(1, all), None, "of another length");
        assert_eq!(ranges.take(2 * GRAIN, all), Some(GRAIN));
        assert_eq!(ranges.take(usize::MAX, all), None);
    }

    /// Goal: the present choice of a list is found, and a file of another form has none. Method: the kernel's forms.
    #[test]
    fn choices_are_read() {
        assert_eq!(bracketed("always within_size advise [never] deny force\n"), Some("never"));
        assert_eq!(bracketed("[always] madvise never\n"), Some("always"));
        assert_eq!(bracketed("1\n"), None);
    }

    /// Goal: memory of the arena has a position there and is zero when it is taken again, and no other memory has such
    /// a position. Method: memory is taken, written, returned, and taken again.
    #[test]
    fn memory_comes_back_as_zeros() {
        if !pass_memory() {
            return;
        }
        let memory = take_passable(9 << 20).expect("memory");
        assert_eq!(memory.addr().get() % GRAIN, 0);
        let at = place(memory.addr().get()).expect("in the arena");
        assert_eq!(address(at), Some(memory));
        // SAFETY: memory of this test.
        unsafe { memory.write_bytes(7, 9 << 20) };
        assert!(give_back_passable(memory, 9 << 20));
        let again = take_passable(9 << 20).expect("memory");
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(again.as_ptr(), 9 << 20) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert!(give_back_passable(again, 9 << 20));
        let other = 0u8;
        assert_eq!(place(&raw const other as usize), None);
    }
}
