//! Memory that a mount shares with the programs that run on its machine.
//!
//! Owns: the layout of the shared memory (`layout`), the rules by which programs read it without a system call while
//! the mount changes it (`rules`), those by which programs post writes and the mount takes them (`posts`), and, with
//! the feature `owner`, the memory itself (`memory`) and its users in the mount (`export`, `ring`). Does not own: which
//! bytes may be shared and when they stop being right (the client), how a program gets the memory (`attach`, `fuse`).
//!
//! Three kinds of memory. There is one *board* for each mount: it has the time until which programs may use what is
//! shared (the lease), and a generation for each open file. An *export* is one for each file: a head and slots of 64
//! KiB, each of which shows a unit of the mount's page cache. A *ring* is one for each file that programs write to by
//! posts; it is the only memory that programs can write to. docs/design/preload.md states the protocol.
//!
//! Invariant: whatever the memory contains, a reader reads nothing outside it; in any doubt it gets an error of type
//! `Miss`, and the caller then makes the call.

#![cfg_attr(not(any(test, feature = "owner", feature = "loom")), no_std)]

#[cfg(all(feature = "owner", not(feature = "loom")))]
pub mod export;
pub mod layout;
#[cfg(all(feature = "owner", not(feature = "loom")))]
pub mod memory;
pub mod posts;
#[cfg(all(feature = "owner", not(feature = "loom")))]
pub mod ring;
pub mod rules;
pub mod talk;
