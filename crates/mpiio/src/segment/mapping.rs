//! The place of the shared memory in this process, and its huge pages.
//!
//! Owns the addresses: they agree with the offsets in the memory modulo a huge page, so that huge pages can be mapped.
//! A new page of 4 KiB costs 1.2 us when it is first touched, and 0.5 us in each further rank that maps it. For 48 MiB
//! that amounted to 57 ms and 23 ms; with huge pages it is 10 and 0.3 ms, clearing included. Memory files get huge
//! pages automatically only if the administrator enables that, but a process can request them one by one.

use crate::error::{Error, Outcome};
use std::os::fd::{AsRawFd, OwnedFd};

/// The size of a huge page.
pub const HUGE_BYTES: u64 = 2 << 20;
/// The size of a usual page.
const SMALL_BYTES: usize = 4096;
/// `MADV_COLLAPSE`, of Linux 6.1.
const COLLAPSE: libc::c_int = 25;

/// Shared memory in the address space of this process.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    length: usize,
}

// SAFETY: the mapping belongs to the value until it is dropped; its contents are accessed through atomics or, for
// frames, through `&mut` views of which the page locks prevent two at a time.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps this many bytes of the file.
    pub fn new(fd: &OwnedFd, length: usize) -> Outcome<Mapping> {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
        let huge = HUGE_BYTES as usize;
        // SAFETY: the structure is as large as expected. A mapping at an address of the kernel's choice touches nothing
        // of ours, nor does one in the place of a part of it, the rest of which goes. The file is at least as long as
        // the mapping, so that no access faults.
        unsafe {
            if libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) != 0 {
                return Err(Error::last_os("fstat"));
            }
            if (stat.assume_init().st_size as usize) < length {
                return Err(Error::Refused("the shared memory of rank 0 is too short"));
            }
            let nothing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let room = libc::mmap(std::ptr::null_mut(), length + huge, libc::PROT_NONE, nothing, -1, 0);
            if room == libc::MAP_FAILED {
                return Err(Error::last_os("mmap"));
            }
            let before = room.addr().next_multiple_of(huge) - room.addr();
            let base = room.byte_add(before);
            let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
            if libc::mmap(base, length, libc::PROT_READ | libc::PROT_WRITE, flags, fd.as_raw_fd(), 0) != base {
                let error = Error::last_os("mmap");
                libc::munmap(room, length + huge);
                return Err(error);
            }
            // If these calls fail, addresses stay reserved.
            if before > 0 {
                libc::munmap(room, before);
            }
            libc::munmap(base.byte_add(length.next_multiple_of(SMALL_BYTES)), huge - before);
            Ok(Mapping { base: base.cast(), length })
        }
    }

    /// The address at which the mapping begins.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Makes one huge page at an offset, with the present contents and zeros; returns false if the system has no free
    /// one. `fresh` is a place in it to which no rank writes at present.
    pub fn make_huge(&self, offset: u64, fresh: u64) -> bool {
        let end = offset + HUGE_BYTES;
        assert!(offset.is_multiple_of(HUGE_BYTES) && end <= self.length as u64, "a huge page at {offset}");
        assert!((offset..end).contains(&fresh), "{fresh} in a huge page at {offset}");
        // SAFETY: both places lie in the mapping. A byte is read so that a page exists there: the kernel makes no huge
        // page where there is none. The advice changes no byte.
        unsafe {
            self.base.add(fresh as usize).read_volatile();
            libc::madvise(self.base.add(offset as usize).cast(), HUGE_BYTES as usize, COLLAPSE) == 0
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no view of it outlives the value.
        unsafe {
            libc::munmap(self.base.cast(), self.length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    /// Goal: addresses agree with offsets modulo a huge page, and making huge pages changes no byte, whether the system
    /// has some or not. Method: a memory of 5 MiB, mapped twice, with a byte written in each 64 KiB.
    #[test]
    fn huge_pages_change_no_byte() {
        let length = 5usize << 20;
        // SAFETY: the name ends with a zero byte, the descriptor is ours, the length is that of the mappings.
        let fd = unsafe {
            let fd = OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC));
            assert_eq!(libc::ftruncate(fd.as_raw_fd(), length as libc::off_t), 0);
            fd
        };
        let (one, other) = (Mapping::new(&fd, length).unwrap(), Mapping::new(&fd, length).unwrap());
        assert!(one.base().addr().is_multiple_of(HUGE_BYTES as usize));
        let written = |at: usize| if at % (1 << 16) == 77 { (at >> 16) as u8 + 1 } else { 0 };
        for at in (77..length).step_by(1 << 16) {
            // SAFETY: the place lies in the mapping and nobody else uses it now.
            unsafe { one.base().add(at).write(written(at)) };
        }
        for huge in [0, HUGE_BYTES] {
            one.make_huge(huge, huge + 100);
        }
        // SAFETY: the mapping has this length and nobody writes.
        let seen = unsafe { std::slice::from_raw_parts(other.base(), length) };
        assert!(seen.iter().enumerate().all(|(at, byte)| *byte == written(at)));
    }
}
