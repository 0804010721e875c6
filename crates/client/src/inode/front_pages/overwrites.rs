//! Writes to bytes that a front end has in pages, and the concurrent write-back of such pages.
//!
//! Owns: which bytes were read into pages, which of them a write has replaced since, and which of those were read
//! again. Does not own: how pages are dropped (`KernelPages`).
//!
//! A front end writes a page back whole, including bytes that were only read. If a write replaced such bytes in
//! between, writing the page back would undo the write. So a write to bytes that may be in pages has these pages
//! dropped before it returns. Until then the client leaves the replaced bytes out when such a page is written back,
//! unless the page was read after the write. A page is read as a whole, and the front end reads a page only after its
//! former copy is written out. So after a read, any later write-back of the page is of the new copy.

use super::PAGE;
use amphi_types::{ByteRange, RangeSet};
use smallvec::SmallVec;

/// Most separate ranges of read pages that are remembered. If there are more, the bytes between two ranges count as
/// read too.
const RANGES_MAX: usize = 64;

/// The known state of the pages of a file in the front end.
#[derive(Default)]
pub(super) struct Overwrites {
    last_id: u64,
    /// Ranges that were read into pages and not dropped since: at least what the front end has, except pages that it
    /// kept since before the file was opened.
    read: RangeSet,
    under_way: Vec<Entry>,
}

/// A write whose pages are not dropped yet.
struct Entry {
    id: u64,
    range: ByteRange,
    /// A read that begins now returns the new bytes.
    in_place: bool,
    /// The ranges that were read since the bytes were in place.
    renewed: RangeSet,
}

impl Overwrites {
    /// Called when `pages` are about to be read.
    pub(super) fn note(&mut self, pages: ByteRange) {
        self.remember(pages);
        for entry in self.under_way.iter_mut().filter(|e| e.in_place && e.range.overlaps(&pages)) {
            entry.renewed.insert(pages);
        }
    }

    fn remember(&mut self, pages: ByteRange) {
        self.read.insert(pages);
        if self.read.iter().count() > RANGES_MAX {
            let (first, last) = (self.read.iter().next(), self.read.iter().last());
            let hull = first.zip(last).map(|(first, last)| ByteRange::new(first.start, last.end));
            hull.into_iter().for_each(|all| self.read.insert(all));
        }
    }

    /// Called when all pages are being dropped.
    pub(super) fn forget(&mut self) {
        self.read.clear();
    }

    pub(super) fn is_overwritten(&self, range: ByteRange) -> bool {
        self.under_way.iter().any(|e| e.range.overlaps(&range))
    }

    pub(super) fn touches(&self, range: ByteRange) -> bool {
        self.read.overlaps(range) || self.is_overwritten(range)
    }

    /// Begins a write of `range`, whose pages do not count as read any more.
    pub(super) fn begin(&mut self, range: ByteRange) -> u64 {
        self.last_id += 1;
        self.read.remove(range.align_out(PAGE));
        self.under_way.push(Entry { id: self.last_id, range, in_place: false, renewed: RangeSet::new() });
        self.last_id
    }

    /// The bytes of the write up to `end` are where readers find them.
    pub(super) fn in_place(&mut self, id: u64, end: u64) {
        for entry in self.under_way.iter_mut().filter(|e| e.id == id) {
            entry.in_place = true;
            entry.range.end = end.clamp(entry.range.start, entry.range.end);
        }
    }

    pub(super) fn end(&mut self, id: u64) {
        if let Some(at) = self.under_way.iter().position(|e| e.id == id) {
            let entry = self.under_way.swap_remove(at);
            if !entry.in_place {
                // The write has failed, so its pages stay and count as read. No reader has read them again for that
                // reason.
                self.remember(entry.range.align_out(PAGE));
            }
        }
    }

    /// The parts of written-back pages in `range` that no write has replaced since they were read.
    pub(super) fn left(&self, range: ByteRange) -> SmallVec<[ByteRange; 2]> {
        let mut left = RangeSet::new();
        left.insert(range);
        for entry in self.under_way.iter().filter(|e| e.range.overlaps(&range)) {
            for old in entry.renewed.gaps(entry.range.intersect(&range)) {
                left.remove(old);
            }
        }
        left.iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn r(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    fn left(o: &Overwrites, range: ByteRange) -> Vec<ByteRange> {
        o.left(range).into_vec()
    }

    /// Goal: if a page was read before a write, its write-back leaves the written bytes out; if it was read after the
    /// write, it does not. Method: a write over the end of one page and the start of the next one; the second page is
    /// read again.
    #[test]
    fn old_copies_leave_out_what_was_replaced() {
        let mut o = Overwrites::default();
        o.note(r(0, 12288));
        let id = o.begin(r(4000, 4200));
        o.note(r(8192, 12288));
        assert_eq!(left(&o, r(0, 8192)), [r(0, 4000), r(4200, 8192)], "also before the bytes are in place");
        o.in_place(id, 4200);
        assert_eq!(left(&o, r(0, 4096)), [r(0, 4000)]);
        o.note(r(4096, 8192));
        assert_eq!(left(&o, r(0, 8192)), [r(0, 4000), r(4096, 8192)]);
        assert_eq!(left(&o, r(4000, 4096)), []);
        o.end(id);
        assert_eq!(left(&o, r(0, 8192)), [r(0, 8192)]);
        assert!(
            o.touches(r(4100, 4101)) && !o.touches(r(0, 4096)),
            "what was dropped is not there, what was read anew is"
        );
    }

    /// Goal: if a write fails, completely or in part, the bytes that it did not write stay valid in the pages. Method:
    /// one write that fails at once, and one that stops half-way.
    #[test]
    fn what_failed_replaces_nothing() {
        let mut o = Overwrites::default();
        o.note(r(0, 8192));
        let failed = o.begin(r(0, 4096));
        o.end(failed);
        assert!(o.touches(r(0, 4096)), "its pages are still there");
        let (other, failed) = (o.begin(r(0, 100)), o.begin(r(200, 300)));
        o.in_place(other, 100);
        o.end(failed);
        assert_eq!(left(&o, r(0, 4096)), [r(100, 4096)], "nobody has read the page since the other write");
        o.end(other);
        let half = o.begin(r(0, 8192));
        o.in_place(half, 5000);
        assert_eq!(left(&o, r(0, 8192)), [r(5000, 8192)]);
    }

    /// Goal: the memory for what was read is bounded, and no read range is missed. Method: more separate pages than are
    /// remembered.
    #[test]
    fn much_that_was_read_becomes_one_range() {
        let mut o = Overwrites::default();
        for page in 0..1000 {
            o.note(r(page * 8192, page * 8192 + 4096));
        }
        assert!(o.read.iter().count() <= RANGES_MAX);
        assert!((0..1000).all(|page| o.read.overlaps(r(page * 8192, page * 8192 + 1))));
    }
}
