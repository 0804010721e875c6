//! Memory that the process at the other end of a Unix socket has passed to this process.
//!
//! Owns: which descriptors are taken, mapping what they name, copies. Does not own: receiving descriptors (`net`).
//!
//! The server relies only on properties of the memory that its file cannot lose any more. The memory is a memfd (which
//! `F_GET_SEALS` shows; a file of another file system could make every copy wait for that file system). It has no huge
//! pages, which can run out during a copy. And it is sealed against shrinking, so that no copy reaches beyond the end
//! of the file. If the kernel may refuse pages that it has not reserved (`vm.overcommit_memory=2`), no memory is
//! accepted. So no access raises a signal.
//!
//! The other process may change bytes during a copy. So a copy may contain any mixture, and bytes are only copied,
//! never examined in place.

use crate::PeerMemory;
use crate::buf::{ALIGN, arena::ARENA_BYTES_MAX};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Type of the file system that a memfd of ordinary pages lies on (`TMPFS_MAGIC`).
const TMPFS: i64 = 0x0102_1994;
/// Bytes of address space for such memory, of all connections: a quarter of what a process has.
const MAPPED_BYTES_MAX: u64 = 32 << 40;

static MAPPED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Memory of another process. The last copy of this value unmaps it.
#[derive(Clone)]
pub struct RealMemory(Arc<Mapping>);

struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address range that stays mapped; it is only copied from and to, by any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// The reason why memory is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unfit(String);

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<rustix::io::Errno> for Unfit {
    fn from(e: rustix::io::Errno) -> Unfit {
        Unfit(e.to_string())
    }
}

/// Returns whether the kernel can provide each page of memory that a file has.
fn pages_are_certain() -> bool {
    let strict = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|text| text.trim() == "2");
    !strict && getrlimit(Resource::Fsize).current.is_none()
}

impl RealMemory {
    /// Maps the memory of a descriptor.
    pub(super) fn of(fd: &OwnedFd) -> Result<RealMemory, Unfit> {
        let unfit = |why: &str| Err(Unfit(why.into()));
        let seals = fcntl_get_seals(fd).map_err(|e| Unfit(format!("no memfd: {e}")))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return unfit("its size is not sealed");
        }
        if fstatfs(fd)?.f_type as i64 != TMPFS {
            return unfit("it is not of ordinary pages");
        }
        let bytes = fstat(fd)?.st_size as u64;
        if bytes == 0 || !bytes.is_multiple_of(ALIGN as u64) || bytes > ARENA_BYTES_MAX {
            return unfit("its size is not that of an arena");
        }
        if !pages_are_certain() {
            return unfit("this machine or process has bounds that a copy could meet");
        }
        if MAPPED_BYTES.fetch_add(bytes, Relaxed) + bytes > MAPPED_BYTES_MAX {
            MAPPED_BYTES.fetch_sub(bytes, Relaxed);
            return unfit("this process has mapped enough memory of others");
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the system's choice touches no memory in use.
        let mapped = unsafe { mmap(std::ptr::null_mut(), bytes as usize, protection, flags, fd, 0) };
        if mapped.is_err() {
            MAPPED_BYTES.fetch_sub(bytes, Relaxed);
        }
        let base = mapped?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: advice on a mapping that is ours; without it everything works, slower.
        let _ = unsafe { madvise(base.as_ptr().cast(), bytes as usize, Advice::LinuxHugepage) };
        Ok(RealMemory(Arc::new(Mapping { base, bytes: bytes as usize })))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `of`, and nobody copies from or to it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
        MAPPED_BYTES.fetch_sub(self.bytes as u64, Relaxed);
    }
}

impl PeerMemory for RealMemory {
    fn has(&self, at: u64, len: usize) -> bool {
        at.checked_add(len as u64).is_some_and(|end| end <= self.0.bytes as u64)
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        assert!(self.has(at, into.len()), "bytes beyond the end of the memory");
        // SAFETY: `has` says that the bytes are in the mapping, and sealed memory has all of its pages; `into` is
        // memory of this process, which the mapping does not overlap. No reference to the mapping is made.
        unsafe { std::ptr::copy_nonoverlapping(self.0.base.as_ptr().add(at as usize), into.as_mut_ptr(), into.len()) };
    }

    fn write(&self, at: u64, from: &[u8]) {
        assert!(self.has(at, from.len()), "bytes beyond the end of the memory");
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.0.base.as_ptr().add(at as usize), from.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::os::fd::AsFd;

    fn memfd(flags: MemfdFlags, bytes: u64, seals: SealFlags) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | flags).expect("memfd");
        ftruncate(&fd, bytes).expect("size");
        if !seals.is_empty() {
            fcntl_add_seals(&fd, seals).expect("seals");
        }
        fd
    }

    /// Goal: only memory whose size stays is taken, and copies are checked against its end. Method: descriptors of
    /// other kinds, other seals and other sizes. Memory of the right kind is read and written, also beyond its end.
    #[test]
    fn only_sealed_memory_is_taken() {
        let (sealing, all) = (MemfdFlags::ALLOW_SEALING, SealFlags::SHRINK | SealFlags::GROW);
        let size = 3 * ALIGN as u64;
        let (pipe, _other) = rustix::pipe::pipe().expect("pipe");
        let file = OwnedFd::from(tempfile::tempfile().expect("file"));
        for (what, fd) in [
            ("a pipe", pipe),
            ("a file", file),
            ("memory that cannot be sealed", memfd(MemfdFlags::empty(), size, SealFlags::empty())),
            ("memory that can shrink", memfd(sealing, size, SealFlags::GROW)),
            ("memory that can grow", memfd(sealing, size, SealFlags::SHRINK)),
            ("memory that cannot be written to", memfd(sealing, size, all | SealFlags::WRITE)),
            ("no memory", memfd(sealing, 0, all)),
            ("half a page", memfd(sealing, size + 1, all)),
            ("too much", memfd(sealing, ARENA_BYTES_MAX + ALIGN as u64, all)),
        ] {
            assert!(RealMemory::of(&fd).is_err(), "{what}");
        }
        let fd = memfd(sealing, size, all);
        let memory = RealMemory::of(&fd).expect("memory");
        assert!(rustix::fs::ftruncate(&fd, 0).is_err(), "sealed");
        memory.write(size - 3, b"end");
        let mut found = [1; 4];
        memory.read(size - 4, &mut found);
        assert_eq!(&found, b"\0end");
        let mut told = [0; 3];
        assert_eq!(rustix::io::pread(fd.as_fd(), &mut told, size - 3), Ok(3));
        assert_eq!(&told, b"end");
        for (at, len) in [(size, 1), (size - 1, 2), (u64::MAX, 1), (u64::MAX - 1, usize::MAX)] {
            assert!(!memory.has(at, len), "{at}+{len}");
        }
        assert!(memory.has(0, size as usize) && memory.has(size, 0));
    }
}
