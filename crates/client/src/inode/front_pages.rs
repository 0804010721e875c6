//! `FilePages`: which pages a front end caches of a file, as its inode knows them.
//!
//! Owns: whether there are such pages and in which caching mode they were read, which bytes were read into them and
//! replaced since (`overwrites`), which requests run without a lock while pages are dropped (`taking`). Does not own:
//! these requests (`overwrite`, `without_lock`), how pages get locks (`ops::pages`), dropping pages
//! (`coherence::front_pages`).

mod overwrites;
mod taking;

pub(crate) use taking::Taking;

use super::exported::Exported;
use amphi_types::ByteRange;
use overwrites::Overwrites;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// The pages of one file that a front end caches.
#[derive(Default)]
pub(crate) struct FilePages {
    /// Whether the front end may have pages of the file.
    any: AtomicBool,
    overwrites: Mutex<Overwrites>,
    pub(crate) taking: Mutex<Taking>,
    pub(crate) is_taking: AtomicBool,
    /// Truncates of this mount under way. The front end may be unable to drop pages until they are answered.
    cuts: AtomicUsize,
    /// When a page of a mapping was last read under a lock, monotonic ns.
    pub(crate) read_ns: AtomicU64,
    /// There may be pages that are covered by extent locks: the return of these locks has to find the file.
    locked: AtomicBool,
    /// The number of the caching mode in which all existing pages were read; 0: older pages may exist.
    pub(crate) covered_rule: AtomicU64,
    /// While pages exist, nothing of the file is shared with programs, because a program may have stored into the
    /// pages.
    exported: Exported,
}

/// A truncate that is under way.
pub(crate) struct Cut<'a>(&'a AtomicUsize);

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl FilePages {
    /// No pages, for a file that programs read in `exported`.
    pub(super) fn new(exported: Exported) -> FilePages {
        FilePages { exported, ..FilePages::default() }
    }

    /// The front end has pages, or may have some again.
    pub(crate) fn keep(&self) {
        if !self.any.swap(true, SeqCst) {
            self.exported.all_change();
        }
    }

    /// Called when all pages are being dropped; writes that begin meanwhile assume that some exist
    /// (`Overwrite::begin`).
    pub(crate) fn forget(&self) {
        self.any.store(false, SeqCst);
        self.locked.store(false, SeqCst);
        self.overwrites.lock().forget();
    }

    /// Bytes are about to be read into pages through an open file. If the front end dropped its pages when that file
    /// was opened, under `emptied_rule`, all existing pages were read since then: no program reads through a file that
    /// is still being opened.
    pub(crate) fn note_of(&self, emptied_rule: u64, range: ByteRange, rule: u64) {
        if emptied_rule == rule && self.covered_rule.load(SeqCst) != rule {
            self.covered_rule.store(rule, SeqCst);
        }
        self.note(range);
        if rule & 1 == 0 && !self.locked.load(SeqCst) {
            self.locked.store(true, SeqCst);
        }
    }

    /// Returns whether the file has to stay in the table for its pages, because they are covered by locks or are being
    /// dropped.
    pub(crate) fn keep_known(&self) -> bool {
        self.locked.load(SeqCst) || self.is_taking()
    }

    /// The mount is in sole mode, so its locks have no effect.
    pub(crate) fn unlock(&self) {
        self.locked.store(false, SeqCst);
    }

    pub(crate) fn any(&self) -> bool {
        self.any.load(SeqCst)
    }

    /// A truncate begins; it ends when the returned value is dropped.
    pub(crate) fn begin_cut(&self) -> Cut<'_> {
        self.cuts.fetch_add(1, SeqCst);
        Cut(&self.cuts)
    }

    /// Returns whether a truncate is under way.
    pub(crate) fn is_being_cut(&self) -> bool {
        self.cuts.load(SeqCst) > 0
    }

    /// Returns whether pages are being dropped; then pages may exist that no lock covers.
    pub(crate) fn is_taking(&self) -> bool {
        self.is_taking.load(SeqCst)
    }

    /// Returns whether the front end is dropping pages.
    pub(crate) fn is_being_dropped(&self) -> bool {
        self.is_taking() && self.taking.lock().is_dropping
    }

    /// Bytes of `range` are about to be read into pages. It has to be called before they are read.
    pub(crate) fn note(&self, range: ByteRange) {
        self.overwrites.lock().note(range.align_out(PAGE));
        self.keep();
    }

    /// Returns whether a write of `range` may concern bytes in pages.
    pub(crate) fn touches(&self, range: ByteRange) -> bool {
        self.any() && self.overwrites.lock().touches(range)
    }

    /// Returns whether a write to bytes of `range` that were in pages is under way.
    pub(crate) fn is_overwritten(&self, range: ByteRange) -> bool {
        self.any() && self.overwrites.lock().is_overwritten(range)
    }

    /// The parts of written-back pages in `range` that have to be written, because no write has replaced them since
    /// they were read.
    pub(crate) fn left(&self, range: ByteRange) -> SmallVec<[ByteRange; 2]> {
        self.overwrites.lock().left(range)
    }

    /// Begins a write of `range`, whose pages do not count as read any more.
    pub(super) fn begin_overwrite(&self, range: ByteRange) -> u64 {
        self.overwrites.lock().begin(range)
    }

    /// The bytes of the write up to `end` are where readers find them.
    pub(super) fn overwrite_in_place(&self, id: u64, end: u64) {
        self.overwrites.lock().in_place(id, end);
    }

    /// Called when the pages of the write have been dropped, or it failed.
    pub(super) fn end_overwrite(&self, id: u64) {
        self.overwrites.lock().end(id);
    }
}
