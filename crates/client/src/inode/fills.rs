//! `Fills`: requests under way that bring bytes of a file into the cache, or for one reader.
//!
//! Owns: which bytes they bring, and what has changed since they were asked for, so that nothing old comes in. Does not
//! own: the requests (`ops::read`, `prefetch`), the bytes (`cache`).

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

impl Fills {
    /// Enters a fill. From now on changes of its bytes spoil it.
    pub(crate) fn begin(&self, range: ByteRange) -> u64 {
        self.enter(range, false)
    }

    /// As `begin`, of bytes that are kept for one reader until `end` instead of going into the cache.
    pub(crate) fn begin_held(&self, range: ByteRange) -> u64 {
        self.enter(range, true)
    }

    fn enter(&self, range: ByteRange, held: bool) -> u64 {
        let mut fills = self.list.lock();
        fills.next += 1;
        let id = fills.next;
        fills.list.push(Fill { id, range, held, spoiled: RangeSet::new() });
        self.count(&fills);
        id
    }

    fn count(&self, fills: &List) {
        self.entered.store(fills.list.len() as u32, SeqCst);
        self.under_way.store(fills.cached().count() as u32, SeqCst);
    }

    /// Whether what fill `id` brings for `range` is still true. To be asked under the lock of the cache's shard.
    pub(crate) fn is_true(&self, id: u64, range: ByteRange) -> bool {
        self.list.lock().list.iter().any(|f| f.id == id && !f.spoiled.overlaps(range))
    }

    /// Ends a fill.
    pub(super) fn end(&self, id: u64) {
        let mut fills = self.list.lock();
        fills.list.retain(|f| f.id != id);
        self.count(&fills);
    }

    /// What the server has of `range`, or the right to cache it, changed now: fills that were asked for before do not
    /// count there.
    pub(crate) fn spoil(&self, range: ByteRange) {
        if self.entered.load(SeqCst) > 0 {
            for fill in self.list.lock().list.iter_mut().filter(|f| f.range.overlaps(&range)) {
                fill.spoiled.insert(range.intersect(&fill.range));
            }
        }
    }

    /// The parts of `range` that no fill under way brings.
    pub(crate) fn gaps(&self, range: ByteRange) -> Vec<ByteRange> {
        let mut covered = RangeSet::new();
        self.list.lock().cached().for_each(|f| covered.insert(f.range));
        covered.gaps(range).into_vec()
    }

    /// Whether a fill under way brings bytes of `range`.
    pub(crate) fn overlap(&self, range: ByteRange) -> bool {
        self.under_way.load(SeqCst) > 0 && self.list.lock().cached().any(|f| f.range.overlaps(&range))
    }
}
