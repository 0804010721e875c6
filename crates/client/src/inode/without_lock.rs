//! Requests that go without a lock while pages of a front end are taken back, and reads that wait for one.
//!
//! Owns: their begin and end, as the file counts them. Does not own: the counts (`front_pages`), when pages are taken
//! back (`coherence::front_pages`).

use super::Inode;
use super::front_pages::Taking;
use amphi_types::{ByteRange, TargetId};
use std::sync::Arc;

/// A read of pages that waits for locks, whoever has them. The front end keeps these pages to itself until it has been
/// answered, so no lock waits for it: what is taken back is everything else.
pub(crate) struct Waiting {
    file: Arc<Inode>,
    number: u64,
    range: ByteRange,
}

impl Waiting {
    pub(crate) fn begin(file: &Arc<Inode>, range: ByteRange) -> Waiting {
        let number = file.pages.taking.lock().waits(range);
        file.signal.notify();
        Waiting { file: file.clone(), number, range }
    }

    /// It has its locks. What pages are taken back waits for it from here on.
    pub(crate) fn granted(self) -> Option<Free> {
        let mut taking = self.file.pages.taking.lock();
        taking.waiting.remove(&self.number);
        Free::enter(&self.file, &mut taking, self.range)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.file.pages.taking.lock().waiting.remove(&self.number);
        self.file.signal.notify();
    }
}

/// A request that goes without a lock while pages are taken back.
pub(crate) struct Free(Arc<Inode>);

impl Free {
    /// None if no pages are being taken back. Pages of the request are taken after this: once more, if the taking has
    /// begun before.
    pub(crate) fn begin(file: &Arc<Inode>, range: ByteRange) -> Option<Free> {
        if !file.pages.is_taking() {
            return None;
        }
        Free::enter(file, &mut file.pages.taking.lock(), range)
    }

    fn enter(file: &Arc<Inode>, taking: &mut Taking, range: ByteRange) -> Option<Free> {
        if !file.pages.is_taking() {
            return None;
        }
        if taking.is_dropping {
            taking.again.push(range);
        }
        taking.free += 1;
        Some(Free(file.clone()))
    }

    /// How it goes to a target.
    pub(crate) fn way(&self, target: TargetId) -> Way<'_> {
        let mut taking = self.0.pages.taking.lock();
        if let Some(note) = taking.left(target) {
            return Way::Left(note);
        }
        *taking.protected.entry(target).or_default() += 1;
        Way::Protected(Protected(self, target))
    }
}

impl Drop for Free {
    fn drop(&mut self) {
        self.0.pages.taking.lock().free -= 1;
        self.0.signal.notify();
    }
}

/// How a request without a lock goes to a target.
pub(crate) enum Way<'a> {
    /// Before a lock that keeps others away has gone, until this is dropped.
    Protected(Protected<'a>),
    /// By the note of the target.
    Left(u64),
}

/// Keeps the locks of a target from going.
pub(crate) struct Protected<'a>(&'a Free, TargetId);

impl Drop for Protected<'_> {
    fn drop(&mut self) {
        let file = &self.0.0;
        let mut taking = file.pages.taking.lock();
        if let Some(count) = taking.protected.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                taking.protected.remove(&self.1);
            }
        }
        drop(taking);
        file.signal.notify();
    }
}
