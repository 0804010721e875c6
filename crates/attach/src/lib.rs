//! The thin side of access without the kernel: reads of descriptors on a mount from memory that the mount shares, and
//! writes that are posted into such memory.
//!
//! Owns: which descriptors of this process are open files of a mount (`table`), finding that out (`identify`), which
//! processes may learn it (`owner`), the memory (`maps`), the reads (`read`) and the writes (`post`) themselves; large
//! requests of files on other file systems (`direct`). Does not own: the symbols that programs call (`preload`), the
//! layout and the rules of the memory (`shm`).
//!
//! The kernel is the authority for all properties of a descriptor: number, dup, fork, exec, position, flags, rights.
//! The state kept here are hints that the mount can invalidate. So a function answers `None` whenever it is in doubt,
//! and the caller then makes the real call on the real descriptor.
//!
//! Invariants: no thread outside a direct transfer, no descriptor that stays, no allocation, no lock that a thread
//! could wait for, no panic, no system call before the eighth read of a descriptor. Everything works in signal handlers
//! and after `fork`.
//! docs/design/preload.md states the protocol.

#![cfg_attr(not(test), no_std)]

mod direct;
mod identify;
mod maps;
mod owner;
mod post;
mod read;
mod report;
mod sys;
mod table;
#[cfg(test)]
mod tests;

pub use amphi_policy::decision::Way as IoWay;
pub use direct::{
    direct_at, direct_counts, direct_next, is_direct_on, may_go_direct, note_mapping, put, put_number, turn_direct_on,
};
pub use owner::VFORKS;
pub use post::{write_at, write_next};
pub use read::{Piece, read_at, read_next, set_strict};
pub use report::{Way, count, counts, is_counting, set_counting};
pub use sys::{Failure, ask_size, begin_mapping, mmap as real_mmap, read as real_read, write as real_write, write_all};
pub use table::{
    are_posts_off, forget, forget_from, is_known_foreign, is_known_foreign_writer, is_off, turn_off, turn_posts_off,
};
