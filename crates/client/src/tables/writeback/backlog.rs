//! `Backlog`: dirty bytes that the bound of write-back under way has left behind, in the order in which they set out.
//!
//! Owns: that order. Does not own: when something is left behind and sets out (`writeback::backlog`).

use crate::inode::Inode;
use amphi_types::ByteRange;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bytes of a file, and who waits until they have set out.
pub(crate) struct Left {
    pub(crate) file: Arc<Inode>,
    pub(crate) range: ByteRange,
    pub(crate) waits: Option<Arc<Ticket>>,
}

/// Of somebody who waits: whether some of the bytes were held up by something else than the bound.
#[derive(Default)]
pub(crate) struct Ticket(pub(crate) AtomicBool);

#[derive(Default)]
pub(crate) struct Lists {
    pub(crate) waited_for: VecDeque<Left>,
    pub(crate) full_chunks: VecDeque<Left>,
}

/// What was left behind.
#[derive(Default)]
pub(crate) struct Backlog(pub(crate) Mutex<Lists>);

impl Backlog {
    /// Whether somebody waits for room.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.0.lock().waited_for.is_empty()
    }

    pub(crate) fn next(&self) -> Option<Left> {
        let mut lists = self.0.lock();
        lists.waited_for.pop_front().or_else(|| lists.full_chunks.pop_front())
    }

    /// Its turn is not over.
    pub(crate) fn put_back(&self, left: Left) {
        let mut lists = self.0.lock();
        let list = if left.waits.is_some() { &mut lists.waited_for } else { &mut lists.full_chunks };
        list.push_front(left);
    }
}
