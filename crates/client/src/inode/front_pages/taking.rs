//! `Taking`: the state of a file while the front end drops its pages.
//!
//! Owns: which requests run without a lock, which of those the return of a lock waits for, which locks are being
//! returned, and which reads wait for locks meanwhile. Does not own: when pages are dropped and how long a lock waits
//! for that (`coherence::front_pages`).
//!
//! Invariant: a request that runs without a lock has been counted since a moment at which pages were being dropped.

use amphi_dlm::Mode;
use amphi_types::{ByteRange, ObjectId, TargetId};
use std::collections::{BTreeMap, BTreeSet};

/// The pages of a file that are being dropped.
#[derive(Default)]
pub(crate) struct Taking {
    /// The front end is dropping pages; before that, a turn ends.
    pub(crate) is_dropping: bool,
    /// All pages are dropped that existed when the dropping began, and those that were touched since, except the pages
    /// of requests in `waiting`.
    pub(crate) is_clear: bool,
    /// Ranges that were read or written without a lock in the meantime.
    pub(crate) again: Vec<ByteRange>,
    /// Number of requests under way without a lock.
    pub(crate) free: usize,
    /// For each target, the number of these requests that rely on a lock which is being returned.
    pub(crate) protected: BTreeMap<TargetId, usize>,
    /// The targets that record the changes of other mounts, and the numbers of their notes.
    pub(crate) notes: BTreeMap<TargetId, u64>,
    /// The targets among these whose locks are returned without waiting for pages any longer.
    pub(crate) left: BTreeSet<TargetId>,
    /// Targets that are being asked to begin a note.
    pub(crate) leaving: BTreeSet<TargetId>,
    /// Locks that have left the lock cache and that are not cancelled at their targets yet.
    pub(crate) going: Vec<Going>,
    /// Requests for pages that wait for locks of other mounts, by a number of their own. If the request is for a read,
    /// the front end has none of its pages. If it is for a write, its page has bytes of a program of this mount that
    /// are on their way to the target.
    pub(crate) waiting: BTreeMap<u64, ByteRange>,
    /// How many of these requests are writes.
    pub(crate) writes: usize,
    /// The last number that was given to a lock that is being returned or to a request that waits.
    numbered: u64,
}

/// A lock that is cancelled when the pages that it covers are dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Going {
    pub(crate) number: u64,
    pub(crate) target: TargetId,
    pub(crate) object: ObjectId,
    pub(crate) mode: Mode,
    pub(crate) range: ByteRange,
}

impl Taking {
    /// The number of a target's note, if the locks of the target may be returned before pages are dropped.
    pub(crate) fn left(&self, target: TargetId) -> Option<u64> {
        self.notes.get(&target).copied().filter(|_| self.left.contains(&target))
    }

    /// Locks of a target on these ranges of an object have left the lock cache. Returns the number under which they are
    /// noted.
    pub(crate) fn goes(&mut self, target: TargetId, object: ObjectId, mode: Mode, ranges: &[ByteRange]) -> u64 {
        self.numbered += 1;
        let number = self.numbered;
        self.going.extend(ranges.iter().map(|&range| Going { number, target, object, mode, range }));
        number
    }

    /// Pages of `range` exist that have to be dropped once more.
    pub(in crate::inode) fn touched(&mut self, range: ByteRange) {
        self.again.push(range);
        self.is_clear = false;
    }

    /// Returns whether nothing is left to be dropped but pages of requests that wait.
    pub(crate) fn has_nothing_left(&self) -> bool {
        self.again.is_empty() && self.free == self.writes
    }

    /// A request for the pages of `range` waits for locks. Returns the number under which it is noted.
    pub(in crate::inode) fn waits(&mut self, range: ByteRange) -> u64 {
        self.numbered += 1;
        self.waiting.insert(self.numbered, range);
        self.numbered
    }
}
