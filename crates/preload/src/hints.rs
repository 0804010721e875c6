//! Functions that change what a descriptor number means: the real calls, which also make this library forget it.
//!
//! The library forgets a number before the number is closed, so that no thread that gets the number for another file
//! finds the old data. It forgets the number again after it was opened or replaced. The library never copies what it
//! knows from one number to another. A child of `vfork` has its own descriptors but calls these functions in the memory
//! of its parent, so the copy would be wrong for the parent.
//!
//! `open` takes its mode as a variable argument in C. In both conventions the mode is in the third register (the fourth
//! for `openat`), so these functions declare it; without O_CREAT its value is arbitrary and unused.

use crate::real::{Real, absent, real};
use amphi_attach::{forget, forget_from, turn_off};
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::ptr::null_mut;
use libc::{FILE, mode_t};

/// Defines functions of one shape, each with a place for the address of the real function.
macro_rules! functions {
    ($($place:ident $name:ident($($arg:ident: $type:ty),*) -> $result:ty { $($before:expr)? } { $after:expr } else $other:expr;)*) => {
        $(
            static $place: Real = Real::new(
                match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
            );

            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                $($before;)?
                let result = real!($place, fn($($type),*) -> $result, ($($arg),*), else $other);
                let after: fn($result) = $after;
                after(result);
                result
            }
        )*

        /// The places of all these functions.
        pub(crate) static ALL: &[&Real] = &[$(&$place),*];
    };
}

/// Forgets the descriptor of a stream.
fn forget_stream(stream: *mut FILE) {
    if !stream.is_null() {
        // SAFETY: a stream of the program's, or one that libc has just made.
        forget(unsafe { libc::fileno(stream) });
    }
}

fn closes_range(first: c_uint, last: c_uint, flags: c_int) {
    if flags as c_uint & libc::CLOSE_RANGE_UNSHARE != 0 {
        // From now on a number may mean different files in different threads.
        turn_off();
    }
    forget_from(first, last);
}

functions! {
    OPEN open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {} { forget } else absent();
    OPEN64 open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {} { forget } else absent();
    OPEN_INNER __open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {} { forget } else absent();
    OPEN64_INNER __open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {} { forget } else absent();
    OPEN_2 __open_2(path: *const c_char, flags: c_int) -> c_int {} { forget } else absent();
    OPEN64_2 __open64_2(path: *const c_char, flags: c_int) -> c_int {} { forget } else absent();
    OPENAT openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {} { forget } else absent();
    OPENAT64 openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {} { forget } else absent();
    OPENAT_2 __openat_2(at: c_int, path: *const c_char, flags: c_int) -> c_int {} { forget } else absent();
    OPENAT64_2 __openat64_2(at: c_int, path: *const c_char, flags: c_int) -> c_int {} { forget } else absent();
    CREAT creat(path: *const c_char, mode: mode_t) -> c_int {} { forget } else absent();
    CREAT64 creat64(path: *const c_char, mode: mode_t) -> c_int {} { forget } else absent();
    CLOSE close(fd: c_int) -> c_int { forget(fd) } { |_| {} } else absent();
    CLOSE_INNER __close(fd: c_int) -> c_int { forget(fd) } { |_| {} } else absent();
    CLOSE_RANGE close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int { closes_range(first, last, flags) }
        { |_| {} } else absent();
    CLOSEFROM closefrom(first: c_int) -> () { forget_from(first.max(0) as c_uint, c_uint::MAX) } { |()| {} } else ();
    DUP dup(fd: c_int) -> c_int {} { forget } else absent();
    DUP2 dup2(fd: c_int, to: c_int) -> c_int { forget(to) } { forget } else absent();
    DUP2_INNER __dup2(fd: c_int, to: c_int) -> c_int { forget(to) } { forget } else absent();
    DUP3 dup3(fd: c_int, to: c_int, flags: c_int) -> c_int { forget(to) } { forget } else absent();
    FOPEN fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {} { forget_stream } else null_mut();
    FOPEN64 fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {} { forget_stream } else null_mut();
    FREOPEN freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE { forget_stream(stream) }
        { forget_stream } else null_mut();
    FREOPEN64 freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        forget_stream(stream) } { forget_stream } else null_mut();
    FCLOSE fclose(stream: *mut FILE) -> c_int { forget_stream(stream) } { |_| {} } else absent();
    TMPFILE tmpfile() -> *mut FILE {} { forget_stream } else null_mut();
    TMPFILE64 tmpfile64() -> *mut FILE {} { forget_stream } else null_mut();
    MKSTEMP mkstemp(template: *mut c_char) -> c_int {} { forget } else absent();
    MKSTEMP64 mkstemp64(template: *mut c_char) -> c_int {} { forget } else absent();
}

static FCNTL: Real = Real::new(c"fcntl");
static FCNTL64: Real = Real::new(c"fcntl64");
static FCNTL_INNER: Real = Real::new(c"__fcntl");

/// The functions that are written out.
pub(crate) static OTHERS: &[&Real] = &[&FCNTL, &FCNTL64, &FCNTL_INNER];

/// `fcntl` takes one argument or none, of any type: it is in the third register.
fn control(place: &Real, fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    let result = real!(place, fn(c_int, c_int, *mut c_void) -> c_int, (fd, command, argument), else absent());
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        forget(result);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    control(&FCNTL, fd, command, argument)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // An old libc has the first name alone.
    control(if FCNTL64.address().is_some() { &FCNTL64 } else { &FCNTL }, fd, command, argument)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    control(if FCNTL_INNER.address().is_some() { &FCNTL_INNER } else { &FCNTL }, fd, command, argument)
}
