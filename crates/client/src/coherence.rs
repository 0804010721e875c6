//! Coherence: what this mount may keep, for how long, and what it gives back when another mount wants it.
//!
//! Owns: cached locks of the cluster, range locks among this mount's own requests, tokens for names and attributes,
//! the lease, group locks, locks of applications, and the rule for a mount that is alone. Does not own: the lock
//! protocol (`dlm`), the cached bytes (`cache`) and inodes (`inode`).

pub(crate) mod bare;
pub(crate) mod directories;
pub(crate) mod file_locks;
pub(crate) mod group_lock;
pub(crate) mod lease;
pub(crate) mod lent;
pub(crate) mod locks;
pub(crate) mod range_lock;
pub(crate) mod sharing;
pub(crate) mod tokens;
pub(crate) mod walks;
