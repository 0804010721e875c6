//! One unit of the cache: memory and what its bytes are.
//!
//! Owns: the byte ranges of a unit in file offsets: valid; dirty (newer than the server); flight (being written back,
//! copied out already); failed (write-back failed, kept until somebody was told). Invariant: the latter three are
//! subsets of valid.

use crate::cache::UNIT;
use crate::files::File;
use amphi_env::Buf;
use amphi_types::{ByteRange, RangeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Smallest memory of a unit, bytes.
const SMALLEST: usize = 4096;

pub(crate) struct Unit {
    pub(crate) file: Arc<File>,
    start: u64,
    buf: Buf,
    pub(crate) valid: RangeSet,
    pub(crate) dirty: RangeSet,
    pub(crate) flight: RangeSet,
    pub(crate) failed: RangeSet,
    touched: AtomicBool,
    /// Came by read-ahead and was not read yet.
    ahead: AtomicBool,
    /// Bytes copied out or in since it came, saturating.
    moved: AtomicU32,
}

impl Unit {
    pub(crate) fn new(file: Arc<File>, index: u64) -> Unit {
        Unit {
            file,
            start: index * UNIT,
            buf: Buf::default(),
            valid: RangeSet::new(),
            dirty: RangeSet::new(),
            flight: RangeSet::new(),
            failed: RangeSet::new(),
            touched: AtomicBool::new(true),
            ahead: AtomicBool::new(false),
            moved: AtomicU32::new(0),
        }
    }

    pub(crate) fn range(&self) -> ByteRange {
        ByteRange::at(self.start, UNIT)
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.buf.capacity() as u64
    }

    /// Valid bytes.
    pub(crate) fn len(&self) -> u64 {
        self.valid.total()
    }

    /// Makes room for bytes up to file offset `end`; returns by how much the memory grew.
    pub(crate) fn grow(&mut self, end: u64) -> u64 {
        let need = (end - self.start) as usize;
        if need <= self.buf.len() {
            return 0;
        }
        let mut bigger = Buf::zeroed(need.next_power_of_two().max(SMALLEST));
        bigger[..self.buf.len()].copy_from_slice(&self.buf);
        let grown = bigger.capacity() - self.buf.capacity();
        self.buf = bigger;
        grown as u64
    }

    fn span(&self, part: ByteRange) -> std::ops::Range<usize> {
        (part.start - self.start) as usize..(part.end - self.start) as usize
    }

    /// Copies `part` out if it is valid.
    pub(crate) fn read(&self, part: ByteRange, into: &mut [u8]) -> bool {
        if !self.valid.contains(part) {
            return false;
        }
        into.copy_from_slice(&self.buf[self.span(part)]);
        // Load first: a store to a line that other threads read would make hits fight for it.
        if !self.touched.load(Relaxed) {
            self.touched.store(true, Relaxed);
        }
        let moved = self.moved.load(Relaxed);
        if u64::from(moved) <= 2 * UNIT {
            self.moved.store(moved + part.len() as u32, Relaxed);
        }
        true
    }

    /// Puts bytes in, dirty. The memory must have been grown.
    pub(crate) fn write(&mut self, part: ByteRange, bytes: &[u8]) {
        let span = self.span(part);
        self.buf[span].copy_from_slice(bytes);
        self.valid.insert(part);
        self.dirty.insert(part);
        self.failed.remove(part);
        *self.touched.get_mut() = true;
    }

    /// Puts bytes in where none are valid. `ahead` = they came before anybody asked.
    pub(crate) fn fill(&mut self, part: ByteRange, bytes: &[u8], ahead: bool) {
        for gap in self.valid.gaps(part) {
            let at = (gap.start - part.start) as usize;
            let span = self.span(gap);
            self.buf[span].copy_from_slice(&bytes[at..at + gap.len() as usize]);
            self.valid.insert(gap);
        }
        if ahead {
            *self.ahead.get_mut() = true;
        }
    }

    /// Copies bytes out whatever is known of them; the caller knows that they are valid.
    pub(crate) fn copy_out(&self, part: ByteRange, into: &mut [u8]) {
        into.copy_from_slice(&self.buf[self.span(part)]);
    }

    /// Forgets `part`, dirty or not.
    pub(crate) fn forget(&mut self, part: ByteRange) {
        for set in [&mut self.valid, &mut self.dirty, &mut self.flight, &mut self.failed] {
            set.remove(part);
        }
    }

    pub(crate) fn is_dirty_throughout(&self) -> bool {
        self.dirty.contains(self.range())
    }

    /// Whether it must not be evicted.
    pub(crate) fn is_pinned(&self) -> bool {
        !self.dirty.is_empty() || !self.flight.is_empty() || !self.failed.is_empty()
    }

    pub(crate) fn take_touched(&self) -> bool {
        self.touched.swap(false, Relaxed)
    }

    pub(crate) fn take_ahead(&self) -> bool {
        self.ahead.load(Relaxed) && self.ahead.swap(false, Relaxed)
    }

    /// Whether its bytes were used more than once on average.
    pub(crate) fn was_reused(&self) -> bool {
        u64::from(self.moved.load(Relaxed)) > self.len()
    }
}
