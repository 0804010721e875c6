//! `Backlog`: dirty bytes whose write-back was held up by the bound on write-back under way, in their order.
//!
//! Owns: that order. Does not own: when bytes are held up and when they are sent (`writeback::backlog`).

use crate::inode::Inode;
use amphi_types::ByteRange;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bytes of a file, and the tasks that wait until they are sent.
pub(crate) struct Left {
    pub(crate) file: Arc<Inode>,
    pub(crate) range: ByteRange,
    pub(crate) waits: Option<Arc<Ticket>>,
}

/// For a waiting task: whether something other than the bound delayed some of the bytes.
#[derive(Default)]
pub(crate) struct Ticket(pub(crate) AtomicBool);

#[derive(Default)]
pub(crate) struct Lists {
    pub(crate) waited_for: VecDeque<Left>,
    pub(crate) full_chunks: VecDeque<Left>,
    /// Bytes whose turn has come while too much waited for targets that cannot be reached.
    set_aside: VecDeque<Left>,
}

/// Bytes whose write-back had to wait.
#[derive(Default)]
pub(crate) struct Backlog(pub(crate) Mutex<Lists>);

impl Backlog {
    /// Returns whether any task waits for its bytes to be sent.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.0.lock().waited_for.is_empty()
    }

    pub(crate) fn next(&self) -> Option<Left> {
        let mut lists = self.0.lock();
        lists.waited_for.pop_front().or_else(|| lists.full_chunks.pop_front())
    }

    /// Their targets cannot be reached: it is the turn of other bytes, until `readmit`.
    pub(crate) fn set_aside(&self, left: Left) {
        self.0.lock().set_aside.push_back(left);
    }

    /// Gives all bytes that were set aside their turn again.
    pub(crate) fn readmit(&self) {
        let mut lists = self.0.lock();
        while let Some(left) = lists.set_aside.pop_back() {
            let list = if left.waits.is_some() { &mut lists.waited_for } else { &mut lists.full_chunks };
            list.push_front(left);
        }
    }

    /// Puts bytes back at the front, because their turn is not over.
    pub(crate) fn put_back(&self, left: Left) {
        let mut lists = self.0.lock();
        let list = if left.waits.is_some() { &mut lists.waited_for } else { &mut lists.full_chunks };
        list.push_front(left);
    }
}
