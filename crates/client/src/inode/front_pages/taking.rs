//! `Taking`: pages of a front end that are being taken back, as the file knows it.
//!
//! Owns: who goes without a lock, and which of those a lock that is on its way back waits for; which locks are on that
//! way, and reads that wait for locks meanwhile. Does not own: when pages are taken back and how long a lock waits for
//! that (`coherence::front_pages`).
//!
//! Invariant: whoever goes without a lock has been counted since a moment at which pages were being taken back.

use amphi_dlm::Mode;
use amphi_types::{ByteRange, ObjectId, TargetId};
use std::collections::{BTreeMap, BTreeSet};

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

    /// A read of `range` waits for locks. Its number.
    pub(in crate::inode) fn waits(&mut self, range: ByteRange) -> u64 {
        self.numbered += 1;
        self.waiting.insert(self.numbered, range);
        self.numbered
    }
}
