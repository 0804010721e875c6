//! Byte-range locks of objects (extent locks): the lock server of a target and the lock cache of a client; file locks;
//! tokens.
//!
//! Owns: which ranges of which objects are granted to which sessions, the fair queue of waiting requests, callbacks and
//! their deadlines, and contention of objects ([`server`]); which of these locks a client holds, uses and returns
//! ([`client`]); the file locks of applications, `flock` and `fcntl` ([`files`]); tokens of names and attributes
//! ([`tokens`]). Does not own: messages, connections, or cached data. `docs/LOCKING.md` has the state machines and why
//! they cannot deadlock.
//!
//! Invariants: no I/O, no clock, no randomness. Time is an argument (`now_ns`, nanoseconds of one monotonic clock).
//! Calls that take input (`enqueue`, `cancel`, `callback`, ...) never block. The caller gets the resulting actions from
//! `poll_action` until that returns `None`. A lock is an entry of these tables, never something that a suspended task
//! holds.
//!
//! The number that drove the design: with 100,000 locks on one object (strided writers of one shared file), each
//! request must cost O(log n). So granted and waiting ranges are in interval trees, and a waiting request watches only
//! one of the locks or requests that block it.
#![forbid(unsafe_code)]

pub mod client;
pub mod files;
pub mod mode;
pub mod server;
pub mod tokens;
mod tree;

#[cfg(test)]
mod tests;

pub use client::{
    CANCEL_BATCH, CacheLimits, CallbackPlan, Granted, HeldLock, Hit, LockAction, LockCache, LockRef, RequestId,
};
pub use files::{
    Asking, DroppedFileLocks, FileLock, FileLockLimits, FileLockRefusal, FileLocks, LockFamily, LockKind, LockOwner,
    Outcome, WaitGranted, WaitId,
};
pub use mode::{GroupId, Growth, LockId, Mode, Owner};
pub use server::{Action, ContentionLimits, Dropped, LockCounts, LockLimits, LockRequest, LockSpace, Overdue, Refusal};
pub use tokens::client::{Ask, OwnChange, TokenCache, TokenCacheLimits};
pub use tokens::server::{
    ChangeId, Changed, HistoryLimits, NoGrant, SessionEnd, TokenAction, TokenLimits, TokenOverdue, TokenSpace,
};
pub use tokens::{Grant, REVOKE_KEYS, Revoke, RevokeId, TokenKey, TokenNumber};
