//! News for requests that wait for a group lock.
//!
//! Owns: the count of these messages, and the tasks that wait for the next one. Does not own: group locks
//! (`locks::group_lock`).

use crate::inode::Signal;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// News for requests that wait for a group lock. A news is a push, or the passing of time, because pushes may be lost.
#[derive(Default)]
pub(crate) struct GroupNews {
    pub(crate) count: AtomicU64,
    pub(crate) signal: Signal,
}

impl GroupNews {
    pub(crate) fn ring(&self) {
        self.count.fetch_add(1, SeqCst);
        self.signal.notify();
    }
}
