//! `libamphi_preload.so`: functions of libc that read and write files, in front of libc's own.
//!
//! Owns: the symbols, the real functions behind them, the settings in the environment. Does not own: which descriptors
//! are files of a mount and how they are read and written (`attach`).
//!
//! A program that is started with `LD_PRELOAD=libamphi_preload.so` (`amphi run`) calls these functions instead of
//! libc's. A read is served from memory that the mount shares, a write is posted into such memory, or it is the real
//! call. Functions that change what a descriptor number means are real calls that also make this library forget the
//! number. So the list of functions decides how fast a program is, not what it sees: calls that are not caught reach
//! the mount through the kernel.
//!
//! Rules: the constructor makes no system call; no thread that stays, no signal handler, no descriptor that stays, no
//! allocation; `errno` is left alone unless the real call sets it. What belongs to the kernel (`fork`, `exec`, locks,
//! `lseek`, `stat`, ...) is not touched. Before calls that use the size which the kernel has cached (`mmap`, ...), the
//! library makes the kernel ask for the size.

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
mod sizes;
mod writes;

/// No call leads to it: indices are looked up, and numbers wrap.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: it ends the process.
    unsafe { libc::abort() }
}

// Symbols for unwinding that the tables of the precompiled core library name, which never happens. It is hidden, so
// that it does not replace a function of another library.
#[cfg(panic = "abort")]
core::arch::global_asm!(
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    ".byte 0x0f, 0x0b, 0x0f, 0x0b",
);
