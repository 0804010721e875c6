//! `libamphi`: the file system as a C library, `amphi.h`.
//!
//! Owns: the functions that C sees and their checks (`calls`), their types (`abi`), numbers for open objects
//! (`registry`, `process`), errors as numbers and texts (`failure`), the two ways to the files (`cluster`: a client of
//! this process; `node`: the kernel's descriptors on a mount), queues (`queue`), memory for direct I/O (`memory`). Does
//! not own: the effect of an operation (`client`), the memory that a mount shares (`attach`).
//!
//! Invariants: no panic leaves a function; programs get numbers and no pointers of the library, so a wrong number is an
//! error; every failure is a negative errno, with a text for the thread. In a child of `fork` all numbers of the parent
//! are refused, without a lock. docs/CAPI.md states what the functions promise. The number that drove the design: a
//! cached read of 4 KiB costs the client 0.1 us, so looking up the object of a number may cost only a few ns.
#![allow(clippy::missing_safety_doc, reason = "the contracts of pointers are those that docs/CAPI.md states once")]

mod abi;
mod calls;
mod cluster;
mod failure;
mod lookup;
mod memory;
mod node;
mod object;
mod process;
mod queue;
mod registry;
mod walk;
mod ways;

pub use abi::*;
pub use calls::*;
