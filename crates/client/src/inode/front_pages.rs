//! `FilePages`: what a front end caches of a file, as its inode knows it.
//!
//! Owns: whether there are such pages and under which rule they were read, which bytes were read into them and replaced
//! since (`overwrites`), who goes without a lock while they are taken back (`taking`). Does not own: these requests
//! (`overwrite`, `without_lock`), how pages get locks (`ops::pages`), taking them back (`coherence::front_pages`).

mod overwrites;
mod taking;

pub(crate) use taking::Taking;

use super::exported::Exported;
use amphi_types::ByteRange;
use overwrites::Overwrites;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// Pages of one file in front.
#[derive(Default)]
pub(crate) struct FilePages {
    /// There may be some.
    any: AtomicBool,
    overwrites: Mutex<Overwrites>,
    pub(crate) taking: Mutex<Taking>,
    pub(crate) is_taking: AtomicBool,
    /// When a page of a mapping was read under a lock last, monotonic ns.
    pub(crate) read_ns: AtomicU64,
    /// There may be some that lie under locks of the cluster: whoever returns these has to find the file.
    locked: AtomicBool,
    /// The rule of caching under which all pages that are there were read; 0: older ones may be there.
    pub(crate) covered_rule: AtomicU64,
    /// Nothing is shown to programs while there are pages: they may have been stored to.
    exported: Exported,
}

impl FilePages {
    /// No pages, of a file that programs read in `exported`.
    pub(super) fn new(exported: Exported) -> FilePages {
        FilePages { exported, ..FilePages::default() }
    }

    /// There are pages, or may be again.
    pub(crate) fn keep(&self) {
        if !self.any.swap(true, SeqCst) {
            self.exported.all_change();
        }
    }

    /// All are being taken back; writes meanwhile take it that there are some (`Overwrite::begin`).
    pub(crate) fn forget(&self) {
        self.any.store(false, SeqCst);
        self.locked.store(false, SeqCst);
        self.overwrites.lock().forget();
    }

    /// Bytes are about to be read into pages through an open file. Where the front end has dropped what it had when
    /// that was opened, under `emptied_rule`, all pages that are there now were read since: nobody reads through a file
    /// that is still being opened.
    pub(crate) fn note_of(&self, emptied_rule: u64, range: ByteRange, rule: u64) {
        if emptied_rule == rule && self.covered_rule.load(SeqCst) != rule {
            self.covered_rule.store(rule, SeqCst);
        }
        self.note(range);
        if rule & 1 == 0 && !self.locked.load(SeqCst) {
            self.locked.store(true, SeqCst);
        }
    }

    /// Whether the file has to be known for its pages: they lie under locks, or are being taken back.
    pub(crate) fn keep_known(&self) -> bool {
        self.locked.load(SeqCst) || self.is_taking()
    }

    /// This mount is alone: its locks stand for nothing.
    pub(crate) fn unlock(&self) {
        self.locked.store(false, SeqCst);
    }

    pub(crate) fn any(&self) -> bool {
        self.any.load(SeqCst)
    }

    /// Whether pages are being taken back: there may be some that no lock covers.
    pub(crate) fn is_taking(&self) -> bool {
        self.is_taking.load(SeqCst)
    }

    /// Whether the front end is dropping pages.
    pub(crate) fn is_being_dropped(&self) -> bool {
        self.is_taking() && self.taking.lock().is_dropping
    }

    /// Bytes of `range` go into pages. To be called before they are read.
    pub(crate) fn note(&self, range: ByteRange) {
        self.overwrites.lock().note(range.align_out(PAGE));
        self.keep();
    }

    /// Whether a write of `range` may meet pages.
    pub(crate) fn touches(&self, range: ByteRange) -> bool {
        self.any() && self.overwrites.lock().touches(range)
    }

    /// Whether a write to some of `range` is under way that met pages.
    pub(crate) fn is_overwritten(&self, range: ByteRange) -> bool {
        self.any() && self.overwrites.lock().is_overwritten(range)
    }

    /// The parts of written-back pages of `range` that shall be written: no write has replaced them since they were
    /// read.
    pub(crate) fn left(&self, range: ByteRange) -> SmallVec<[ByteRange; 2]> {
        self.overwrites.lock().left(range)
    }

    /// Begins a write of `range`. Its pages do not count as read any more.
    pub(super) fn begin_overwrite(&self, range: ByteRange) -> u64 {
        self.overwrites.lock().begin(range)
    }

    /// Up to `end` the bytes of the write are where readers find them.
    pub(super) fn overwrite_in_place(&self, id: u64, end: u64) {
        self.overwrites.lock().in_place(id, end);
    }

    /// The pages of the write have been dropped, or it failed.
    pub(super) fn end_overwrite(&self, id: u64) {
        self.overwrites.lock().end(id);
    }
}
