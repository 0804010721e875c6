//! Taking pages of a front end back, as the file knows it, and requests that go without a lock meanwhile.
//!
//! Owns: who goes without a lock, and which of those a lock that is on its way back waits for; which locks are on that
//! way, and reads that wait for locks meanwhile. Does not own: when pages are taken back and how long a lock waits for
//! that (`coherence::front_pages`).
//!
//! Invariant: whoever goes without a lock has been counted since a moment at which pages were being taken back.

use super::FilePages;
use crate::inode::Inode;
use amphi_dlm::Mode;
use amphi_types::{ByteRange, ObjectId, TargetId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Pages that are being taken back.
#[derive(Default)]
pub(crate) struct Taking {
    /// The front end drops pages; before that, a turn ends.
    pub(crate) is_dropping: bool,
    /// Read or written meanwhile without a lock.
    pub(crate) again: Vec<ByteRange>,
    /// Requests under way without a lock.
    pub(crate) free: usize,
    /// Those of them that lie under a lock which is on its way back, by target.
    pub(crate) protected: BTreeMap<TargetId, usize>,
    /// Targets that note what others change, and the names of their notes.
    pub(crate) notes: BTreeMap<TargetId, u64>,
    /// Those of them whose locks go without waiting for pages any longer.
    pub(crate) left: BTreeSet<TargetId>,
    /// Targets that are being asked to.
    pub(crate) leaving: BTreeSet<TargetId>,
    /// Locks that have left the lock cache, and that their targets have not been given back yet.
    pub(crate) going: Vec<Going>,
    /// Reads of pages that wait for locks of others, by numbers of their own. The front end has none of these pages.
    pub(crate) waiting: BTreeMap<u64, ByteRange>,
    /// Numbers that were given to locks that go and to reads that wait.
    numbered: u64,
}

/// A lock that goes when the pages beneath it have gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Going {
    pub(crate) number: u64,
    pub(crate) target: TargetId,
    pub(crate) object: ObjectId,
    pub(crate) mode: Mode,
    pub(crate) range: ByteRange,
}

impl Taking {
    /// The name of a target's note, if its locks may go before pages.
    pub(crate) fn left(&self, target: TargetId) -> Option<u64> {
        self.notes.get(&target).copied().filter(|_| self.left.contains(&target))
    }

    /// Locks of a target on these ranges of an object have left the lock cache. The number by which they go.
    pub(crate) fn goes(&mut self, target: TargetId, object: ObjectId, mode: Mode, ranges: &[ByteRange]) -> u64 {
        self.numbered += 1;
        let number = self.numbered;
        self.going.extend(ranges.iter().map(|&range| Going { number, target, object, mode, range }));
        number
    }
}

impl FilePages {
    /// Whether the front end is dropping pages.
    pub(crate) fn is_being_dropped(&self) -> bool {
        self.is_taking() && self.taking.lock().is_dropping
    }
}

/// A read of pages that waits for locks, whoever has them. The front end keeps these pages to itself until it has been
/// answered, so no lock waits for it: what is taken back is everything else.
pub(crate) struct Waiting {
    file: Arc<Inode>,
    number: u64,
    range: ByteRange,
}

impl Waiting {
    pub(crate) fn begin(file: &Arc<Inode>, range: ByteRange) -> Waiting {
        let number = {
            let mut taking = file.pages.taking.lock();
            taking.numbered += 1;
            let number = taking.numbered;
            taking.waiting.insert(number, range);
            number
        };
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
