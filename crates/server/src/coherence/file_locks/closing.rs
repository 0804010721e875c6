//! Questions to mounts whether a file is being closed whose lock was refused to another mount.
//!
//! The kernel reports the last close of an open file to its mount (RELEASE) without waiting for the answer, so `close`
//! may have returned before the mount releases the file's `flock` and OFD locks. Other programs may already have seen
//! that close, and must not find the locks any more. So before a request is refused, the server asks the mounts that
//! hold the conflicting locks, and checks for the conflict once more when they have answered.
//!
//! Owns: the choice of the mounts that are queried. Does not own: how a mount notices closes, and how long it is waited
//! for (`questions`).
//!
//! Bound: at most `HOLDERS_MAX` mounts are asked for one request. A mount answers at once unless a close is under way.
//! So a lock that is not being released costs a refused request one round trip.

use super::{FileLockTable, lock_of};
use crate::coherence::questions::Asked;
use amphi_types::SessionId;
use amphi_wire::FileLockSpec;

/// Most mounts that are queried for one request.
const HOLDERS_MAX: usize = 16;

impl FileLockTable {
    /// Queries to be sent to the mounts that hold locks which conflict with `lock`.
    pub fn ask_holders(&self, now_ns: u64, session: SessionId, lock: &FileLockSpec) -> Asked<'_> {
        let holders = self.inner.borrow().locks.holders(&lock_of(session, lock), HOLDERS_MAX);
        self.closing.ask(now_ns, holders)
    }

    /// Called when the session has released the locks of the descriptors that it closed.
    pub fn closed(&self, session: SessionId, id: u64) {
        self.closing.answered(session, id);
    }
}
