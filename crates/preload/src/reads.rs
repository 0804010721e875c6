//! Functions that read.
//!
//! A read that the kernel serves is a jump to the real function, without a stack frame of this library. So reads of
//! other programs' files cost as little as possible, and a thread that is cancelled there has no state of ours.

use crate::real::{Real, absent, real};
use amphi_attach::{
    Failure, IoWay, Piece, direct_at, direct_next, is_direct_on, is_known_foreign, is_off, may_go_direct, read_at,
    read_next, real_read,
};
use core::ffi::{c_int, c_void};
use libc::{iovec, off64_t, size_t, ssize_t};

/// The most buffers of one call that are served here: stdio and databases use no more; calls with more are passed to
/// the kernel.
const PIECES_MAX: usize = 16;

pub(crate) static READ: Real = Real::new(c"read");
pub(crate) static READ_CHK: Real = Real::new(c"__read_chk");
pub(crate) static PREAD: Real = Real::new(c"pread64");
pub(crate) static PREAD_CHK: Real = Real::new(c"__pread64_chk");
pub(crate) static READV: Real = Real::new(c"readv");
pub(crate) static PREADV: Real = Real::new(c"preadv64");
pub(crate) static PREADV2: Real = Real::new(c"preadv64v2");

/// A result of a system call as libc returns it.
pub(crate) fn returned(result: Result<usize, Failure>) -> ssize_t {
    match result {
        Ok(n) => n as ssize_t,
        Err(Failure(errno)) => {
            // SAFETY: the place of this thread's errno.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}

unsafe extern "C" {
    fn pthread_testcancel();
}

/// Functions that read and write are points where a thread may be cancelled. Nothing of this library is under way here.
pub(crate) fn cancellation_point() {
    // SAFETY: no value of this library waits for its end on the stack.
    unsafe { pthread_testcancel() };
}

#[inline]
fn is_served(fd: c_int) -> bool {
    !is_known_foreign(fd) && !is_off()
}

/// The real `read`.
#[inline]
unsafe fn plain_read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    #[cold]
    unsafe fn by_call(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
        // SAFETY: the program vouches for its buffer.
        returned(unsafe { real_read(fd, into, len) })
    }
    // SAFETY: as above.
    real!(READ, fn(c_int, *mut c_void, size_t) -> ssize_t, (fd, into, len), else unsafe { by_call(fd, into, len) })
}

/// A large `read`, which goes direct or is the real one.
#[inline(never)]
unsafe extern "C" fn large_read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    cancellation_point();
    // SAFETY: the program vouches for its buffer.
    match unsafe { direct_next(fd, IoWay::Read, &[Piece { base: into, len }]) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { plain_read(fd, into, len) },
    }
}

/// What is not served from or by shared memory.
#[inline]
unsafe fn really_read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the program vouches for its buffer.
    unsafe { if may_go_direct(len) { large_read(fd, into, len) } else { plain_read(fd, into, len) } }
}

#[inline(never)]
unsafe extern "C" fn served_read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the program vouches for its buffer.
    match unsafe { read_next(fd, &[Piece { base: into, len }]) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { really_read(fd, into, len) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the program vouches for its buffer.
    unsafe { if is_served(fd) { served_read(fd, into, len) } else { really_read(fd, into, len) } }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the same function.
    unsafe { read(fd, into, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __read_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    if len <= room {
        // SAFETY: the same function, once the length was checked.
        return unsafe { read(fd, into, len) };
    }
    // The real function ends the program.
    real!(READ_CHK, fn(c_int, *mut c_void, size_t, size_t) -> ssize_t, (fd, into, len, room), else absent() as ssize_t)
}

/// The real `pread64`.
#[inline]
unsafe fn plain_pread(fd: c_int, into: *mut c_void, len: size_t, offset: off64_t) -> ssize_t {
    real!(PREAD, fn(c_int, *mut c_void, size_t, off64_t) -> ssize_t, (fd, into, len, offset), else absent() as ssize_t)
}

/// A large `pread`, which goes direct or is the real one.
#[inline(never)]
unsafe extern "C" fn large_pread(fd: c_int, into: *mut c_void, len: size_t, offset: off64_t) -> ssize_t {
    cancellation_point();
    // SAFETY: the program vouches for its buffer.
    match unsafe { direct_at(fd, IoWay::Read, &[Piece { base: into, len }], offset) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { plain_pread(fd, into, len, offset) },
    }
}

/// What is not served from or by shared memory.
#[inline]
unsafe fn really_pread(fd: c_int, into: *mut c_void, len: size_t, offset: off64_t) -> ssize_t {
    // SAFETY: the program vouches for its buffer.
    unsafe { if may_go_direct(len) { large_pread(fd, into, len, offset) } else { plain_pread(fd, into, len, offset) } }
}

#[inline(never)]
unsafe extern "C" fn served_pread(fd: c_int, into: *mut c_void, len: size_t, offset: off64_t) -> ssize_t {
    // SAFETY: the program vouches for its buffer.
    match unsafe { read_at(fd, &[Piece { base: into, len }], offset) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { really_pread(fd, into, len, offset) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(fd: c_int, into: *mut c_void, len: size_t, offset: off64_t) -> ssize_t {
    // SAFETY: the program vouches for its buffer.
    unsafe { if is_served(fd) { served_pread(fd, into, len, offset) } else { really_pread(fd, into, len, offset) } }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pread(fd: c_int, into: *mut c_void, len: size_t, offset: off64_t) -> ssize_t {
    // SAFETY: the same function where offsets have 64 bits.
    unsafe { pread64(fd, into, len, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __pread64(fd: c_int, into: *mut c_void, len: size_t, offset: off64_t) -> ssize_t {
    // SAFETY: the same function.
    unsafe { pread64(fd, into, len, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __pread64_chk(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    offset: off64_t,
    room: size_t,
) -> ssize_t {
    if len <= room {
        // SAFETY: the same function, once the length was checked.
        return unsafe { pread64(fd, into, len, offset) };
    }
    // The real function ends the program.
    real!(
        PREAD_CHK,
        fn(c_int, *mut c_void, size_t, off64_t, size_t) -> ssize_t,
        (fd, into, len, offset, room),
        else absent() as ssize_t
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __pread_chk(fd: c_int, into: *mut c_void, len: size_t, offset: off64_t, room: size_t) -> ssize_t {
    // SAFETY: the same function where offsets have 64 bits.
    unsafe { __pread64_chk(fd, into, len, offset, room) }
}

/// The buffers of a call, if there are few.
pub(crate) unsafe fn pieces<'a>(vector: *const iovec, count: c_int) -> Option<&'a [Piece]> {
    let count = usize::try_from(count).ok().filter(|count| (1..=PIECES_MAX).contains(count))?;
    // SAFETY: the program vouches for an array of so many; a `Piece` is laid out as an `iovec`.
    Some(unsafe { core::slice::from_raw_parts(vector.cast::<Piece>(), count) })
}

/// The real `readv`.
#[inline]
unsafe fn plain_readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    real!(READV, fn(c_int, *const iovec, c_int) -> ssize_t, (fd, vector, count), else absent() as ssize_t)
}

/// A `readv` that goes direct or is the real one.
#[inline(never)]
unsafe extern "C" fn large_readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    cancellation_point();
    // SAFETY: the program vouches for its buffers.
    match unsafe { pieces(vector, count).and_then(|pieces| direct_next(fd, IoWay::Read, pieces)) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { plain_readv(fd, vector, count) },
    }
}

/// What is not served from or by shared memory.
#[inline]
unsafe fn really_readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program vouches for its buffers.
    unsafe { if is_direct_on() { large_readv(fd, vector, count) } else { plain_readv(fd, vector, count) } }
}

#[inline(never)]
unsafe extern "C" fn served_readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program vouches for its buffers.
    match unsafe { pieces(vector, count).and_then(|pieces| read_next(fd, pieces)) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { really_readv(fd, vector, count) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program vouches for its buffers.
    unsafe { if is_served(fd) { served_readv(fd, vector, count) } else { really_readv(fd, vector, count) } }
}

/// The real `preadv64`.
#[inline]
unsafe fn plain_preadv(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    real!(
        PREADV,
        fn(c_int, *const iovec, c_int, off64_t) -> ssize_t,
        (fd, vector, count, offset),
        else absent() as ssize_t
    )
}

/// A `preadv` that goes direct or is the real one.
#[inline(never)]
unsafe extern "C" fn large_preadv(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    cancellation_point();
    // SAFETY: the program vouches for its buffers.
    match unsafe { pieces(vector, count).and_then(|pieces| direct_at(fd, IoWay::Read, pieces, offset)) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { plain_preadv(fd, vector, count, offset) },
    }
}

/// What is not served from or by shared memory.
#[inline]
unsafe fn really_preadv(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    // SAFETY: the program vouches for its buffers.
    unsafe {
        if is_direct_on() { large_preadv(fd, vector, count, offset) } else { plain_preadv(fd, vector, count, offset) }
    }
}

#[inline(never)]
unsafe extern "C" fn served_preadv(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    // SAFETY: the program vouches for its buffers.
    match unsafe { pieces(vector, count).and_then(|pieces| read_at(fd, pieces, offset)) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { really_preadv(fd, vector, count, offset) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv64(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    // SAFETY: the program vouches for its buffers.
    unsafe {
        if is_served(fd) { served_preadv(fd, vector, count, offset) } else { really_preadv(fd, vector, count, offset) }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    // SAFETY: the same function where offsets have 64 bits.
    unsafe { preadv64(fd, vector, count, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv64v2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off64_t,
    flags: c_int,
) -> ssize_t {
    if flags == 0 && offset >= 0 && (is_served(fd) || is_direct_on()) {
        // SAFETY: the same function without flags.
        return unsafe { preadv64(fd, vector, count, offset) };
    }
    real!(
        PREADV2,
        fn(c_int, *const iovec, c_int, off64_t, c_int) -> ssize_t,
        (fd, vector, count, offset, flags),
        else absent() as ssize_t
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv2(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
    // SAFETY: the same function where offsets have 64 bits.
    unsafe { preadv64v2(fd, vector, count, offset, flags) }
}
