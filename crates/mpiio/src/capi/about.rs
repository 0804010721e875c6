//! The data about a path that the shims request before they open it: page size, stripe, identity of the file,
//! properties of its file system.
//!
//! Owns the choice of the page size and the kinds of file systems. Nothing here keeps a file open.

use crate::backend::posix::{Direct, PosixFile};
use crate::error::Error;
use crate::spare_memory;
use std::ffi::{CStr, c_char, c_int};

/// The smallest page: smaller pages would need too much metadata, and a page is the unit in which files are read.
const PAGE_BYTES: u64 = 1 << 20;

/// The largest preferred unit of a file system that is taken as the size of a page.
const LARGEST_UNIT: u64 = 64 << 20;

/// File systems whose clients may cache data that others have changed since (`f_type`): NFS, SMB, CIFS, SMB2, 9P, AFS.
const LAZY: [u32; 6] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x5346_414f];

/// The page size for a file if no hint gives one, or 0 if the file cannot be queried.
///
/// # Safety
/// `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_page_bytes(path: *const c_char, readable: c_int) -> u64 {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    let unit = PosixFile::open(path, readable != 0, readable == 0, Direct::Off).and_then(|file| file.preferred_bytes());
    match unit {
        Ok(unit) if unit <= LARGEST_UNIT => PAGE_BYTES.next_multiple_of(unit),
        Ok(_) => PAGE_BYTES,
        Err(_) => 0,
    }
}

/// Returns how many bytes are on one target before the next one follows, or 0 if that is not known.
///
/// # Safety
/// `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_stripe_bytes(path: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    let open = |readable| PosixFile::open(path, readable, !readable, Direct::Off);
    open(true).or_else(|_| open(false)).ok().and_then(|file| file.stripe_bytes()).unwrap_or(0)
}

/// `f_type` of all file systems over FUSE, AmphiFS included.
const FUSE: u32 = 0x6573_5546;

/// Tells which file a path names: device and inode. Mounts of one file system by FUSE have different devices, so the
/// device is 0 for them.
///
/// # Safety
/// `path` ends with a zero byte; `identity` has room for two numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_identity(path: *const c_char, identity: *mut u64) -> c_int {
    let mut about = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the caller's promise; the structure is as large as expected, and all-zero bytes are valid.
    unsafe {
        if libc::stat(path, about.as_mut_ptr()) != 0 {
            return Error::last_os("stat").errno();
        }
        let about = about.assume_init();
        let device = if file_system_of(path) == Some(FUSE) { 0 } else { about.st_dev };
        std::ptr::copy_nonoverlapping([device, about.st_ino].as_ptr(), identity, 2);
    }
    0
}

/// The kind of file system on which a path lies.
///
/// # Safety
/// `path` ends with a zero byte.
unsafe fn file_system_of(path: *const c_char) -> Option<u32> {
    let mut about = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the caller's promise; the structure is as large as expected, and all-zero bytes are valid.
    unsafe { (libc::statfs(path, about.as_mut_ptr()) == 0).then(|| about.assume_init().f_type as u32) }
}

/// Nodes may read and write the same ranges in turn, each after the other has written out its data. The result says
/// whether they see each other's bytes. They do not on file systems whose clients revalidate only at an open.
///
/// # Safety
/// `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mpiio_is_coherent(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let kind = unsafe { file_system_of(path) };
    c_int::from(kind.is_some_and(|kind| !LAZY.contains(&kind)))
}

/// The memory that each of the ranks of a node may use: `limit_bytes`, or less where the node has less to spare.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_mpiio_limit(limit_bytes: u64, ranks: u32) -> u64 {
    spare_memory::limit(limit_bytes, ranks)
}
