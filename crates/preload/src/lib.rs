//! `libamphi_preload.so`: functions of libc that read files, in front of libc's own.
//!
//! Owns: the symbols, the real functions behind them, the settings in the environment. Does not own: which descriptors
//! are files of a mount and how they are read (`attach`).
//!
//! A program that is started with `LD_PRELOAD=libamphi_preload.so` (`amphi run`) calls these functions instead of
//! libc's. A read is served from memory that the mount shares, or it is the real call. Functions that change what a
//! descriptor number means are real calls that also make this library forget the number. So the list of functions
//! determines how fast a program is, not what it sees: calls that this library does not intercept reach the mount
//! through the kernel.
//!
//! Rules: the constructor makes no system call. The library starts no thread, sets no signal handler, keeps no
//! descriptor and allocates no memory. It leaves `errno` unchanged unless the real call sets it. What belongs to the
//! kernel (`fork`, `exec`, locks, `mmap`, `lseek`, `stat`, ...) is not touched.

//!
//! With the profile `preload` the library is built without the standard library, and needs nothing but libc. Other
//! profiles unwind, for which the standard library is linked; such a library works, and is larger.

#![cfg_attr(panic = "abort", no_std)]
#![allow(clippy::missing_safety_doc, reason = "the contracts are those of libc's functions of the same names")]

mod hints;
mod process;
mod reads;
mod real;
mod setup;

/// No call leads to it: indices are looked up, and numbers wrap.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: it ends the process.
    unsafe { libc::abort() }
}

// Symbols for unwinding that the tables of the precompiled core library name, which never happens. Hidden, so that it
// comes in the place of no other library's.
#[cfg(panic = "abort")]
core::arch::global_asm!(
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    ".byte 0x0f, 0x0b, 0x0f, 0x0b",
);
