//! `Fills`: requests under way that read bytes of a file from the targets, into the cache or for one reader.
//!
//! Owns: which bytes they read, and which of these have changed since the request was sent, so that no outdated bytes
//! enter the cache. Does not own: the requests (`ops::read`, `prefetch`), the bytes (`cache`).

use amphi_types::{ByteRange, RangeSet};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// A fill under way.
struct Fill {
    id: u64,
    range: ByteRange,
    /// The bytes are kept for one reader and do not enter the cache, so no other read waits for them.
    held: bool,
    /// The ranges changed since the request was sent; the answer may be older than these changes.
    spoiled: RangeSet,
}

#[derive(Default)]
struct List {
    next: u64,
    list: Vec<Fill>,
}

impl List {
    /// The fills whose bytes enter the cache.
    fn cached(&self) -> impl Iterator<Item = &Fill> {
        self.list.iter().filter(|f| !f.held)
    }
}

/// Fills under way.
#[derive(Default)]
pub(crate) struct Fills {
    list: Mutex<List>,
    /// Number of fills under way whose bytes enter the cache.
    pub(crate) under_way: AtomicU32,
    /// It has to be called under the lock of the cache's shard.
    pub(super) entered: AtomicU32,
}

impl Fills {
    /// Adds a fill. From now on changes of its bytes make its result unusable.
    pub(crate) fn begin(&self, range: ByteRange) -> u64 {
        self.enter(range, false)
    }

    /// Works as `begin`, for bytes that are kept for one reader until `end` instead of entering the cache.
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

    /// Returns whether the bytes that fill `id` brings for `range` are still right. It has to be called under the lock
    /// of the cache's shard.
    pub(crate) fn is_true(&self, id: u64, range: ByteRange) -> bool {
        self.list.lock().list.iter().any(|f| f.id == id && !f.spoiled.overlaps(range))
    }

    /// Ends a fill.
    pub(super) fn end(&self, id: u64) {
        let mut fills = self.list.lock();
        fills.list.retain(|f| f.id != id);
        self.count(&fills);
    }

    /// The server's bytes in `range`, or the right to cache them, have changed now: bytes of earlier fills are not used
    /// there.
    pub(crate) fn spoil(&self, range: ByteRange) {
        if self.entered.load(SeqCst) > 0 {
            for fill in self.list.lock().list.iter_mut().filter(|f| f.range.overlaps(&range)) {
                fill.spoiled.insert(range.intersect(&fill.range));
            }
        }
    }

    /// The parts of `range` that no fill under way reads.
    pub(crate) fn gaps(&self, range: ByteRange) -> Vec<ByteRange> {
        let mut covered = RangeSet::new();
        self.list.lock().cached().for_each(|f| covered.insert(f.range));
        covered.gaps(range).into_vec()
    }

    /// Returns whether a fill under way reads bytes of `range`.
    pub(crate) fn overlap(&self, range: ByteRange) -> bool {
        self.under_way.load(SeqCst) > 0 && self.list.lock().cached().any(|f| f.range.overlaps(&range))
    }
}
