//! `Fills`: requests under way that bring bytes of a file into the cache, or for one reader.
//!
//! Owns: which bytes they bring, and what has changed since they were asked for, so that nothing old comes in. Does not
//! own: the requests (`ops::read`, `prefetch`), the bytes (`cache`).

use super::Inode;
use amphi_types::{ByteRange, RangeSet};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// A fill under way.
struct Fill {
    id: u64,
    range: ByteRange,
    /// Its bytes are kept for one reader and do not go into the cache, so nobody waits for it.
    held: bool,
    /// What changed since it was asked for: the answer may be older than that.
    spoiled: RangeSet,
}

#[derive(Default)]
struct List {
    next: u64,
    list: Vec<Fill>,
}

impl List {
    /// Those that go into the cache.
    fn cached(&self) -> impl Iterator<Item = &Fill> {
        self.list.iter().filter(|f| !f.held)
    }
}

/// Fills under way.
#[derive(Default)]
pub(crate) struct Fills {
    list: Mutex<List>,
    /// Those that go into the cache.
    pub(crate) under_way: AtomicU32,
    /// All of them.
    pub(super) entered: AtomicU32,
}

impl Inode {
    /// Enters a fill. From now on changes of its bytes spoil it.
    pub(crate) fn fill_begins(&self, range: ByteRange) -> u64 {
        self.enter_fill(range, false)
    }

    /// As `fill_begins`, of bytes that are kept for one reader until `fill_ends` instead of going into the cache.
    pub(crate) fn held_fill_begins(&self, range: ByteRange) -> u64 {
        self.enter_fill(range, true)
    }

    fn enter_fill(&self, range: ByteRange, held: bool) -> u64 {
        let mut fills = self.fills.list.lock();
        fills.next += 1;
        let id = fills.next;
        fills.list.push(Fill { id, range, held, spoiled: RangeSet::new() });
        self.count_fills(&fills);
        id
    }

    fn count_fills(&self, fills: &List) {
        self.fills.entered.store(fills.list.len() as u32, SeqCst);
        self.fills.under_way.store(fills.cached().count() as u32, SeqCst);
    }

    /// Whether what fill `id` brings for `range` is still true. To be asked under the lock of the cache's shard.
    pub(crate) fn fill_is_true(&self, id: u64, range: ByteRange) -> bool {
        self.fills.list.lock().list.iter().any(|f| f.id == id && !f.spoiled.overlaps(range))
    }

    /// Ends a fill.
    pub(crate) fn fill_ends(&self, id: u64) {
        let mut fills = self.fills.list.lock();
        fills.list.retain(|f| f.id != id);
        self.count_fills(&fills);
        drop(fills);
        self.signal.notify();
    }

    /// What the server has of `range`, or the right to cache it, changed now: fills that were asked for before do not
    /// count there.
    pub(crate) fn spoil(&self, range: ByteRange) {
        if self.fills.entered.load(SeqCst) > 0 {
            for fill in self.fills.list.lock().list.iter_mut().filter(|f| f.range.overlaps(&range)) {
                fill.spoiled.insert(range.intersect(&fill.range));
            }
        }
    }

    /// The parts of `range` that no fill under way brings.
    pub(crate) fn not_being_filled(&self, range: ByteRange) -> Vec<ByteRange> {
        let mut covered = RangeSet::new();
        self.fills.list.lock().cached().for_each(|f| covered.insert(f.range));
        covered.gaps(range).into_vec()
    }

    /// Whether a fill under way brings bytes of `range`.
    pub(crate) fn is_being_filled(&self, range: ByteRange) -> bool {
        self.fills.under_way.load(SeqCst) > 0 && self.fills.list.lock().cached().any(|f| f.range.overlaps(&range))
    }
}
