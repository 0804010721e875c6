//! Tests of the file locks of applications.
//!
//! `model` is a plain reference of bytes and lists, which is compared after every call. `explore` tests all states of
//! small worlds with it, and `random` long programs of many owners. `rules` has the cases of fcntl(2) and flock(2).
//! `scale` bounds the work.

mod explore;
mod model;
mod random;
mod rules;
mod scale;

use super::*;

/// A mistake put in on purpose: the checkers have to find each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlantedBug {
    /// Every third time no conflict is seen.
    MissConflict,
    /// Every third change wakes no waiter.
    LoseWake,
    /// Requests look at held locks only.
    JumpQueue,
    /// No search for deadlocks.
    NoCycles,
}

pub(super) fn owner(session: u64, family: LockFamily, id: u64) -> LockOwner {
    LockOwner { session: SessionId(session), family, id }
}

pub(super) fn lock(owner: LockOwner, kind: LockKind, start: u64, end: u64) -> FileLock {
    FileLock { owner, pid: owner.id as u32, ino: Ino(7), kind, range: ByteRange::new(start, end) }
}
