//! Locks of applications on files, as messages describe them.

use crate::message::LockMode;
use amphi_types::{ByteRange, Ino};
use serde::{Deserialize, Serialize};

/// Which call of an application made a lock on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FileLockFamily {
    /// `fcntl(F_SETLK)`, or `F_OFD_SETLK` of a front end that cannot tell: conflicts with the first two, deadlocks are
    /// found.
    Posix,
    /// The lock was taken with `fcntl(F_OFD_SETLK)`; it behaves as the first kind, but deadlocks are not searched for.
    OpenFile,
    /// `flock`: locks whole files, and conflicts only with other locks of `flock`.
    Flock,
}

/// The owner of locks on a file within a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileLockOwner {
    /// Family of the locks.
    pub family: FileLockFamily,
    /// Number of the owner within session and family.
    pub id: u64,
}

/// A lock of an application on a file: requested, held, or presented after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLockSpec {
    /// The file.
    pub ino: Ino,
    /// The owner of the lock.
    pub owner: FileLockOwner,
    /// Process that asked, for `FileLockTest`.
    pub pid: u32,
    /// Shared or exclusive.
    pub mode: LockMode,
    /// Bytes; an end of 2^63 - 1 or more continues to the end of every file. For `flock` the range is the whole file.
    pub range: ByteRange,
}
