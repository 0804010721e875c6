//! Functions that write.
//!
//! As for the reading functions, a write that the kernel serves is a jump to the real function, without a stack frame
//! of this library.

use crate::reads::{cancellation_point, pieces, returned};
use crate::real::{Real, absent, real};
use amphi_attach::{
    IoWay, Piece, are_posts_off, direct_at, direct_next, is_direct_on, is_known_foreign_writer, may_go_direct,
    real_write, write_at, write_next,
};
use core::ffi::{c_int, c_void};
use libc::{iovec, off64_t, size_t, ssize_t};

pub(crate) static WRITE: Real = Real::new(c"write");
pub(crate) static PWRITE: Real = Real::new(c"pwrite64");
pub(crate) static WRITEV: Real = Real::new(c"writev");
pub(crate) static PWRITEV: Real = Real::new(c"pwritev64");
pub(crate) static PWRITEV2: Real = Real::new(c"pwritev64v2");

#[inline]
fn is_served(fd: c_int) -> bool {
    !is_known_foreign_writer(fd) && !are_posts_off()
}

/// The real `write`.
#[inline]
unsafe fn plain_write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    #[cold]
    unsafe fn by_call(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
        // SAFETY: the program vouches for its buffer.
        returned(unsafe { real_write(fd, from, len) })
    }
    // SAFETY: as above.
    real!(WRITE, fn(c_int, *const c_void, size_t) -> ssize_t, (fd, from, len), else unsafe { by_call(fd, from, len) })
}

/// A large `write`, which goes direct or is the real one.
#[inline(never)]
unsafe extern "C" fn large_write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    cancellation_point();
    // SAFETY: the program vouches for its buffer.
    match unsafe { direct_next(fd, IoWay::Write, &[Piece { base: from.cast_mut(), len }]) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { plain_write(fd, from, len) },
    }
}

/// What is not served from or by shared memory.
#[inline]
unsafe fn really_write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the program vouches for its buffer.
    unsafe { if may_go_direct(len) { large_write(fd, from, len) } else { plain_write(fd, from, len) } }
}

#[inline(never)]
unsafe extern "C" fn served_write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the program vouches for its buffer.
    match unsafe { write_next(fd, &[Piece { base: from.cast_mut(), len }]) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { really_write(fd, from, len) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the program vouches for its buffer.
    unsafe { if is_served(fd) { served_write(fd, from, len) } else { really_write(fd, from, len) } }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the same function.
    unsafe { write(fd, from, len) }
}

/// The real `pwrite64`.
#[inline]
unsafe fn plain_pwrite(fd: c_int, from: *const c_void, len: size_t, offset: off64_t) -> ssize_t {
    real!(
        PWRITE,
        fn(c_int, *const c_void, size_t, off64_t) -> ssize_t,
        (fd, from, len, offset),
        else absent() as ssize_t
    )
}

/// A large `pwrite`, which goes direct or is the real one.
#[inline(never)]
unsafe extern "C" fn large_pwrite(fd: c_int, from: *const c_void, len: size_t, offset: off64_t) -> ssize_t {
    cancellation_point();
    // SAFETY: the program vouches for its buffer.
    match unsafe { direct_at(fd, IoWay::Write, &[Piece { base: from.cast_mut(), len }], offset) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { plain_pwrite(fd, from, len, offset) },
    }
}

/// What is not served from or by shared memory.
#[inline]
unsafe fn really_pwrite(fd: c_int, from: *const c_void, len: size_t, offset: off64_t) -> ssize_t {
    // SAFETY: the program vouches for its buffer.
    unsafe {
        if may_go_direct(len) { large_pwrite(fd, from, len, offset) } else { plain_pwrite(fd, from, len, offset) }
    }
}

#[inline(never)]
unsafe extern "C" fn served_pwrite(fd: c_int, from: *const c_void, len: size_t, offset: off64_t) -> ssize_t {
    // SAFETY: the program vouches for its buffer.
    match unsafe { write_at(fd, &[Piece { base: from.cast_mut(), len }], offset) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { really_pwrite(fd, from, len, offset) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: c_int, from: *const c_void, len: size_t, offset: off64_t) -> ssize_t {
    // SAFETY: the program vouches for its buffer.
    unsafe { if is_served(fd) { served_pwrite(fd, from, len, offset) } else { really_pwrite(fd, from, len, offset) } }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(fd: c_int, from: *const c_void, len: size_t, offset: off64_t) -> ssize_t {
    // SAFETY: the same function where offsets have 64 bits.
    unsafe { pwrite64(fd, from, len, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __pwrite64(fd: c_int, from: *const c_void, len: size_t, offset: off64_t) -> ssize_t {
    // SAFETY: the same function.
    unsafe { pwrite64(fd, from, len, offset) }
}

/// The real `writev`.
#[inline]
unsafe fn plain_writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    real!(WRITEV, fn(c_int, *const iovec, c_int) -> ssize_t, (fd, vector, count), else absent() as ssize_t)
}

/// A `writev` that goes direct or is the real one.
#[inline(never)]
unsafe extern "C" fn large_writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    cancellation_point();
    // SAFETY: the program vouches for its buffers.
    match unsafe { pieces(vector, count).and_then(|pieces| direct_next(fd, IoWay::Write, pieces)) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { plain_writev(fd, vector, count) },
    }
}

/// What is not served from or by shared memory.
#[inline]
unsafe fn really_writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program vouches for its buffers.
    unsafe { if is_direct_on() { large_writev(fd, vector, count) } else { plain_writev(fd, vector, count) } }
}

#[inline(never)]
unsafe extern "C" fn served_writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program vouches for its buffers.
    match unsafe { pieces(vector, count).and_then(|pieces| write_next(fd, pieces)) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { really_writev(fd, vector, count) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program vouches for its buffers.
    unsafe { if is_served(fd) { served_writev(fd, vector, count) } else { really_writev(fd, vector, count) } }
}

/// The real `pwritev64`.
#[inline]
unsafe fn plain_pwritev(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    real!(
        PWRITEV,
        fn(c_int, *const iovec, c_int, off64_t) -> ssize_t,
        (fd, vector, count, offset),
        else absent() as ssize_t
    )
}

/// A `pwritev` that goes direct or is the real one.
#[inline(never)]
unsafe extern "C" fn large_pwritev(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    cancellation_point();
    // SAFETY: the program vouches for its buffers.
    match unsafe { pieces(vector, count).and_then(|pieces| direct_at(fd, IoWay::Write, pieces, offset)) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { plain_pwritev(fd, vector, count, offset) },
    }
}

/// What is not served from or by shared memory.
#[inline]
unsafe fn really_pwritev(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    // SAFETY: the program vouches for its buffers.
    unsafe {
        if is_direct_on() { large_pwritev(fd, vector, count, offset) } else { plain_pwritev(fd, vector, count, offset) }
    }
}

#[inline(never)]
unsafe extern "C" fn served_pwritev(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    // SAFETY: the program vouches for its buffers.
    match unsafe { pieces(vector, count).and_then(|pieces| write_at(fd, pieces, offset)) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { really_pwritev(fd, vector, count, offset) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev64(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    // SAFETY: the program vouches for its buffers.
    unsafe {
        if is_served(fd) {
            served_pwritev(fd, vector, count, offset)
        } else {
            really_pwritev(fd, vector, count, offset)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    // SAFETY: the same function where offsets have 64 bits.
    unsafe { pwritev64(fd, vector, count, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev64v2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off64_t,
    flags: c_int,
) -> ssize_t {
    if flags == 0 && offset >= 0 && (is_served(fd) || is_direct_on()) {
        // SAFETY: the same function without flags.
        return unsafe { pwritev64(fd, vector, count, offset) };
    }
    real!(
        PWRITEV2,
        fn(c_int, *const iovec, c_int, off64_t, c_int) -> ssize_t,
        (fd, vector, count, offset, flags),
        else absent() as ssize_t
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev2(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
    // SAFETY: the same function where offsets have 64 bits.
    unsafe { pwritev64v2(fd, vector, count, offset, flags) }
}
