//! Decisions about requests, as pure functions of what is known about them.
//!
//! Owns: whether a request goes through a cache or directly to the storage, and why (`decision`). Does not own: how
//! the inputs are measured, and carrying a decision out (`client` for files of a mount, `attach` for files of other
//! file systems).
//!
//! Invariants: no state, no clock, no memory is allocated, and no library is needed, so that a preloaded library can
//! decide by the same rules as a mount.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod decision;
