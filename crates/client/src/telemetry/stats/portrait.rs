//! A summary of the requests of a file: how large, how aligned, in which order, and how often they were synced.
//!
//! Owns: counting it, and its JSON. Does not own: the conclusions from it (`amphi explain`).
//!
//! The summary covers requests for which a decision was made, not reads that the cache serves; and the kernel splits
//! programs' calls into pieces of at most its largest request. The order is that of the requests of one open file.

use super::Way;
use amphi_types::ByteRange;
use amphi_types::limits::BLOCK;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Sizes by power of two: below 1 KiB first, from 8 MiB on last.
const SIZES: usize = 15;
/// Requests below this size, as a power of two, are in the first.
const SMALLEST: u32 = 10;

/// Requests of one direction: reads or writes.
#[derive(Default)]
struct Side {
    sizes: [AtomicU64; SIZES],
    /// Requests that begin where the previous one ended.
    follows: AtomicU64,
    /// Requests that begin before the end of the previous one.
    goes_back: AtomicU64,
    /// Begin or end is inside a block.
    unaligned: AtomicU64,
    /// The offset at which the last request ended.
    end: AtomicU64,
}

impl Side {
    fn note(&self, range: ByteRange) {
        let power = u64::BITS - range.len().leading_zeros();
        self.sizes[(power.saturating_sub(SMALLEST) as usize).min(SIZES - 1)].fetch_add(1, Relaxed);
        let end = self.end.load(Relaxed);
        self.end.store(range.end, Relaxed);
        if range.start == end {
            self.follows.fetch_add(1, Relaxed);
        } else if range.start < end {
            self.goes_back.fetch_add(1, Relaxed);
        }
        if !(range.start | range.end).is_multiple_of(BLOCK) {
            self.unaligned.fetch_add(1, Relaxed);
        }
    }

    fn move_to(&self, to: &Side) {
        let own = self.sizes.iter().chain([&self.follows, &self.goes_back, &self.unaligned]);
        let theirs = to.sizes.iter().chain([&to.follows, &to.goes_back, &to.unaligned]);
        for (own, theirs) in own.zip(theirs).filter(|(own, _)| own.load(Relaxed) > 0) {
            theirs.fetch_add(own.swap(0, Relaxed), Relaxed);
        }
    }

    fn requests(&self) -> u64 {
        self.sizes.iter().map(|n| n.load(Relaxed)).sum()
    }

    /// `"sizes":[[BELOW,REQUESTS],..]`: for each size class with requests, the power of two that bounds it. The last
    /// class has no bound.
    fn json(&self) -> String {
        let counted = self.sizes.iter().enumerate().map(|(at, n)| (1u64 << (SMALLEST as usize + at), n.load(Relaxed)));
        let sizes: Vec<String> = counted.filter(|(_, n)| *n > 0).map(|(below, n)| format!("[{below},{n}]")).collect();
        let [follows, back, unaligned] = [&self.follows, &self.goes_back, &self.unaligned].map(|n| n.load(Relaxed));
        let requests = self.requests();
        format!(
            "{{\"requests\":{requests},\"sizes\":[{}],\"follows\":{follows},\"goes_back\":{back},\"unaligned\":{unaligned}}}",
            sizes.join(",")
        )
    }
}

/// Requests of a file, or of an open file that has not booked them yet.
#[derive(Default)]
pub(crate) struct Portrait {
    sides: [Side; 2],
    fsyncs: AtomicU64,
}

impl Portrait {
    /// A request that was decided.
    pub(crate) fn note(&self, way: Way, range: ByteRange) {
        self.sides[way as usize].note(range);
    }

    /// An `fsync` or `fdatasync`.
    pub(crate) fn note_fsync(&self) {
        self.fsyncs.fetch_add(1, Relaxed);
    }

    /// Moves everything but places to `to`.
    pub(super) fn move_to(&self, to: &Portrait) {
        self.sides.iter().zip(&to.sides).for_each(|(own, theirs)| own.move_to(theirs));
        let fsyncs = self.fsyncs.swap(0, Relaxed);
        if fsyncs > 0 {
            to.fsyncs.fetch_add(fsyncs, Relaxed);
        }
    }

    /// Fields of a JSON object.
    pub(super) fn json(&self) -> String {
        let mut out = String::new();
        let [reads, writes] = &self.sides;
        let (reads, writes, fsyncs) = (reads.json(), writes.json(), self.fsyncs.load(Relaxed));
        let _ = write!(out, "\"reads\":{reads},\"writes\":{writes},\"fsyncs\":{fsyncs}");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: requests are distinguished by size, alignment and order, and none is lost when they are booked. Method: a
    /// few of each kind, booked in two parts.
    #[test]
    fn a_portrait() {
        let (open, file) = (Portrait::default(), Portrait::default());
        open.note(Way::Write, ByteRange::at(0, 4096));
        open.note(Way::Write, ByteRange::at(4096, 4096));
        open.note(Way::Write, ByteRange::at(1 << 20, 100));
        open.move_to(&file);
        open.note(Way::Write, ByteRange::at(0, 64 << 20));
        open.note(Way::Read, ByteRange::at(8192, 1023));
        open.note_fsync();
        open.move_to(&file);
        open.move_to(&file);
        let reads = "{\"requests\":1,\"sizes\":[[1024,1]],\"follows\":0,\"goes_back\":0,\"unaligned\":1}";
        let sizes = "[[1024,1],[8192,2],[16777216,1]]";
        let writes = format!("{{\"requests\":4,\"sizes\":{sizes},\"follows\":2,\"goes_back\":1,\"unaligned\":1}}");
        assert_eq!(file.json(), format!("\"reads\":{reads},\"writes\":{writes},\"fsyncs\":1"));
    }
}
