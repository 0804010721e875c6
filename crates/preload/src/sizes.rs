//! Functions for which the kernel uses its cached size of a file.
//!
//! A posted write makes a file longer without the kernel. A mapping, `sendfile`, `splice` and `copy_file_range` end at
//! the size that the kernel has cached, without a request. So the kernel is made to ask for the size first, which costs
//! a request to the mount. Which process has posted does not matter, nor whether this one may still post. The size of a
//! mapping matters as long as it exists, so the mount also learns of it.

use crate::reads::returned;
use crate::real::{Real, absent, real};
use amphi_attach::{ask_size, begin_mapping, is_direct_on, note_mapping, real_mmap};
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use libc::{off64_t, size_t, ssize_t};

pub(crate) static MMAP: Real = Real::new(c"mmap64");
pub(crate) static SENDFILE: Real = Real::new(c"sendfile64");
pub(crate) static SPLICE: Real = Real::new(c"splice");
pub(crate) static COPY_FILE_RANGE: Real = Real::new(c"copy_file_range");

/// Descriptors whose sizes are asked for before the library becomes silent.
const LAST_ASKED: c_int = 1023;

/// The library makes no calls of its own any more.
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// From now on the library makes no calls of its own.
pub(crate) fn be_silent() {
    IS_SILENT.store(true, Relaxed);
}

/// To be called before the program is restricted to some system calls: the kernel is made to ask for all sizes now.
pub(crate) fn ask_for_the_last_time() {
    if !IS_SILENT.load(Relaxed) {
        (0..=LAST_ASKED).for_each(ask_size);
        be_silent();
    }
}

fn asks(fd: c_int) {
    if fd >= 0 && !IS_SILENT.load(Relaxed) {
        ask_size(fd);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off64_t,
) -> *mut c_void {
    #[cold]
    unsafe fn by_call(args: [usize; 6]) -> *mut c_void {
        // SAFETY: the program vouches for its arguments.
        returned(unsafe { real_mmap(args) }) as *mut c_void
    }
    if flags & libc::MAP_ANONYMOUS == 0 {
        if fd >= 0 && !IS_SILENT.load(Relaxed) {
            begin_mapping(fd);
        }
        // MAP_SHARED_VALIDATE contains this flag.
        if flags & libc::MAP_SHARED != 0 && is_direct_on() && !IS_SILENT.load(Relaxed) {
            note_mapping(fd);
        }
    }
    let args = [at as usize, len, protection as usize, flags as usize, fd as usize, offset as usize];
    real!(
        MMAP,
        fn(*mut c_void, size_t, c_int, c_int, c_int, off64_t) -> *mut c_void,
        (at, len, protection, flags, fd, offset),
        // SAFETY: as above.
        else unsafe { by_call(args) }
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off64_t,
) -> *mut c_void {
    // SAFETY: the same function where offsets have 64 bits.
    unsafe { mmap64(at, len, protection, flags, fd, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(to: c_int, from: c_int, offset: *mut off64_t, len: size_t) -> ssize_t {
    asks(from);
    real!(
        SENDFILE,
        fn(c_int, c_int, *mut off64_t, size_t) -> ssize_t,
        (to, from, offset, len),
        else absent() as ssize_t
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut off64_t, len: size_t) -> ssize_t {
    // SAFETY: the same function where offsets have 64 bits.
    unsafe { sendfile64(to, from, offset, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn splice(
    from: c_int,
    at: *mut off64_t,
    to: c_int,
    into: *mut off64_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    asks(from);
    real!(
        SPLICE,
        fn(c_int, *mut off64_t, c_int, *mut off64_t, size_t, c_uint) -> ssize_t,
        (from, at, to, into, len, flags),
        else absent() as ssize_t
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn copy_file_range(
    from: c_int,
    at: *mut off64_t,
    to: c_int,
    into: *mut off64_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    asks(from);
    real!(
        COPY_FILE_RANGE,
        fn(c_int, *mut off64_t, c_int, *mut off64_t, size_t, c_uint) -> ssize_t,
        (from, at, to, into, len, flags),
        else absent() as ssize_t
    )
}
