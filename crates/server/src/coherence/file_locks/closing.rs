//! Questions to mounts whether a file that somebody could not lock is being closed.
//!
//! The kernel tells a mount of the last close of an open file (RELEASE) without waiting for it, so `close` may have
//! returned before the mount gives up the file's `flock` and OFD locks. A program that was told of that close must not
//! find them any more. Therefore a request that would be refused asks the mounts whose locks are in its way, and looks
//! once more when they have answered.
//!
//! Owns: who is asked. Does not own: how a mount knows of closes, how long it is waited for (`questions`).
//!
//! Bound: `HOLDERS_MAX` mounts are asked for one request. A mount that is asked answers at once unless a close is under
//! way, so a lock that stays costs a refused request one message there and back.

use super::{FileLockTable, lock_of};
use crate::coherence::questions::Asked;
use amphi_types::SessionId;
use amphi_wire::FileLockSpec;

/// Most mounts that one request asks.
const HOLDERS_MAX: usize = 16;

impl FileLockTable {
    /// Questions to the mounts with a lock in the way of `lock`, to be sent.
    pub fn ask_holders(&self, now_ns: u64, session: SessionId, lock: &FileLockSpec) -> Asked<'_> {
        let holders = self.inner.borrow().locks.holders(&lock_of(session, lock), HOLDERS_MAX);
        self.closing.ask(now_ns, holders)
    }

    /// The session has given up what it closed.
    pub fn closed(&self, session: SessionId, id: u64) {
        self.closing.answered(session, id);
    }
}
