//! `FileGroup`: the group of open files that a file belongs to, as its inode knows it.
//!
//! Owns: the state, and who waits for its end. Does not own: how it comes and goes (`coherence::group_lock`).

use super::{Signal, Use};
use amphi_dlm::LockId;
use amphi_types::TargetId;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// How far this mount is with a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// There is none.
    #[default]
    None,
    /// The servers are being asked.
    Taking,
    /// It has the file.
    Held,
    /// The last member has left.
    Leaving,
}

/// The group, its members here and its locks.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) stage: Stage,
    pub(crate) members: u32,
    pub(crate) locks: Vec<(TargetId, LockId)>,
    /// Nobody forgets the file meanwhile.
    pub(crate) _in_use: Option<Use>,
}

/// The group that has a file.
#[derive(Default)]
pub(crate) struct FileGroup {
    /// Its number, from the moment on from which others have to wait; 0: none.
    pub(crate) id: AtomicU64,
    pub(crate) state: Mutex<State>,
    /// Requests of this mount that wait for the end of the group.
    pub(crate) strangers: AtomicU64,
    /// News for strangers that wait for locks: a group has asked for the file.
    pub(crate) asked: Signal,
}

impl FileGroup {
    /// Whether requests of a member of this group, or of no group (0), may go on.
    #[inline]
    pub(crate) fn admits(&self, member: u64) -> bool {
        self.id.load(SeqCst) == member
    }

    /// The group that has the file; 0: none.
    pub(crate) fn id(&self) -> u64 {
        self.id.load(SeqCst)
    }

    /// Whether the lock is one of the group's.
    pub(crate) fn holds(&self, target: TargetId, id: LockId) -> bool {
        self.id() != 0 && self.state.lock().locks.contains(&(target, id))
    }
}

/// One that waits for the end of the group, counted as long as it does.
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
