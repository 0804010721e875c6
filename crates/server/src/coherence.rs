//! Coherence: what each mount may cache of a target, in the form in which requests of the target use it.
//!
//! Owns: the lock server of a target as tasks use it, tokens of names and attributes, glimpses of unwritten sizes,
//! locks of applications, pages that a mount could not drop in time, and short queries to mounts. Does not own: the
//! rules of locks (`dlm`).

pub(crate) mod file_locks;
pub(crate) mod glimpse;
pub(crate) mod left_pages;
pub(crate) mod locks;
pub(crate) mod questions;
pub(crate) mod tokens;

use crate::coherence::file_locks::FileLockTable;
use crate::coherence::glimpse::Glimpses;
use crate::coherence::left_pages::LeftPages;
use crate::coherence::locks::Locks;
use crate::coherence::questions::Questions;
use crate::coherence::tokens::Tokens;
use amphi_dlm::LockLimits;
use amphi_env::Env;
use amphi_types::{SessionId, TargetId};
use std::cell::RefCell;

/// The rights of clients to cache from one target, and their return.
pub struct Coherence {
    /// The locks of the target.
    pub locks: Locks,
    /// Tokens for the names and attributes of the target.
    pub tokens: Tokens,
    /// Queries to the writers of the target's objects.
    pub glimpses: Glimpses,
    /// Locks of applications on the target's files.
    pub file_locks: FileLockTable,
    /// Mounts that have to look up directories that were moved or removed, until they have answered.
    pub changed_directories: Questions,
    /// The changes below kernel pages that mounts could not drop in time.
    pub left_pages: RefCell<LeftPages>,
}

impl Coherence {
    /// The state before anything is granted. `start` is a number of this start of the target, so that ids which clients
    /// know from an earlier start are not reused; `earlier` are sessions that may use tokens of an earlier start.
    pub fn new<E: Env>(
        id: TargetId,
        start: u16,
        limits: LockLimits,
        env: &E,
        earlier: impl Iterator<Item = SessionId>,
    ) -> Coherence {
        let clock = env.clone();
        Coherence {
            tokens: Tokens::new(id, limits.callback_deadline_ns, start, env.now().0, earlier),
            locks: Locks::new(id, limits, start, move || clock.now().0),
            glimpses: Glimpses::new(id, start),
            file_locks: FileLockTable::new(),
            changed_directories: Questions::default(),
            left_pages: RefCell::new(LeftPages::new(u64::from(start))),
        }
    }
}
