//! Coherence: who may cache what of a target, as its requests use it.
//!
//! Owns: the lock server of a target as tasks use it, tokens of names and attributes, glimpses of unwritten sizes,
//! locks of applications, pages that a mount could not take back in time. Does not own: the rules of locks (`dlm`).

pub(crate) mod file_locks;
pub(crate) mod glimpse;
pub(crate) mod left_pages;
pub(crate) mod locks;
pub(crate) mod tokens;

/// Callbacks and revocations of one target that are sent again at a time.
pub const AGAIN_MAX: usize = 256;
