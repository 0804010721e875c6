//! `FileGroup`: the group lock of a file, as its inode knows it.
//!
//! Owns: the state of the group, and the requests that wait for its end. Does not own: how the group lock is acquired
//! and returned (`coherence::group_lock`).

use super::{Signal, Use};
use amphi_dlm::LockId;
use amphi_types::TargetId;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The stage of a group on this mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// There is no group.
    #[default]
    None,
    /// The mount has requested the group locks from the servers.
    Taking,
    /// The group holds the file.
    Held,
    /// The last member has left, and the group locks are being returned.
    Leaving,
}

/// The group, its members on this mount and its locks.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) stage: Stage,
    pub(crate) members: u32,
    pub(crate) locks: Vec<(TargetId, LockId)>,
    /// Keeps the file in the table meanwhile.
    pub(crate) _in_use: Option<Use>,
}

/// The group that has a file.
#[derive(Default)]
pub(crate) struct FileGroup {
    /// The number of the group, from the moment when other requests have to wait for it; 0 if there is no group.
    pub(crate) id: AtomicU64,
    pub(crate) state: Mutex<State>,
    /// Requests of this mount that wait for the end of the group.
    pub(crate) strangers: AtomicU64,
    /// Notifies strangers that wait for locks that a group has requested the file.
    pub(crate) asked: Signal,
}

impl FileGroup {
    /// Returns whether requests of a member of this group, or of a file in no group (0), may continue.
    #[inline]
    pub(crate) fn admits(&self, member: u64) -> bool {
        self.id.load(SeqCst) == member
    }

    /// The number of the group that has the file; 0: no group.
    pub(crate) fn id(&self) -> u64 {
        self.id.load(SeqCst)
    }

    /// Returns whether the lock is one of the group's locks.
    pub(crate) fn holds(&self, target: TargetId, id: LockId) -> bool {
        self.id() != 0 && self.state.lock().locks.contains(&(target, id))
    }
}

/// A request that waits for the end of the group, counted as long as it waits.
pub(crate) struct Stranger<'a>(&'a FileGroup);

impl<'a> Stranger<'a> {
    pub(crate) fn new(group: &'a FileGroup) -> Self {
        group.strangers.fetch_add(1, SeqCst);
        Stranger(group)
    }
}

impl Drop for Stranger<'_> {
    fn drop(&mut self) {
        self.0.strangers.fetch_sub(1, SeqCst);
    }
}
