//! Collective calls of small pieces over more of the file than memory holds, cut into rounds.
//!
//! Owns when such a call is cut, and where. Does not own how the ranks meet between rounds (`meeting`), or what each of
//! them does in a round (`shim/access.c`). The ranks of a node share their frames. If the ranks ran independently, the
//! first of them would evict pages before the others have put their pieces there, so these pages would be written as
//! many small writes. In rounds all ranks work on the same window of the file and meet at its end. So a page is evicted
//! only when all of them have finished with it.
//!
//! Invariants: all ranks compute the same rounds from the values on which they agreed. A window has at most half of the
//! frames of one rank, so the pages of two windows fit, whichever rank uses all of them first. If a window is at least
//! one run long, it consists of whole runs, so no eviction reaches into a window that is still being written.

use std::ops::Range;

/// Most rounds of one call: this many meetings cost less than a second. A call that would need more rounds gets larger
/// windows; that happens only with terabytes.
const MOST_ROUNDS: u64 = 1 << 14;

/// The rounds of a call, and the values on which they depend.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounds {
    /// The range from the first to the last byte that collective calls of small pieces have touched so far.
    touched_start: u64,
    touched_end: u64,
    /// First byte of the first window.
    pub first: u64,
    /// Bytes of a window.
    pub window_bytes: u64,
    /// Number of rounds. 0 means that the memory holds everything that such calls have touched, so the ranks run
    /// independently.
    pub count: u64,
}

impl Rounds {
    /// Cuts a call that touches these bytes; `frames` of each rank.
    pub fn cut(&mut self, wanted: Range<u64>, page_bytes: u64, run_bytes: u64, frames: u32) {
        self.count = 0;
        if wanted.is_empty() {
            return;
        }
        let fresh = self.touched_start == self.touched_end;
        self.touched_start = if fresh { wanted.start } else { self.touched_start.min(wanted.start) };
        self.touched_end = self.touched_end.max(wanted.end);
        let pages = self.touched_end.div_ceil(page_bytes) - self.touched_start / page_bytes;
        if pages <= u64::from(frames) {
            return;
        }
        let half = u64::from(frames / 2).max(1) * page_bytes;
        let unit = if half >= run_bytes { run_bytes } else { page_bytes };
        self.first = wanted.start / unit * unit;
        let units = (wanted.end - self.first).div_ceil(unit);
        let most = (half / unit).max(units.div_ceil(MOST_ROUNDS));
        self.window_bytes = most.saturating_mul(unit);
        self.count = units.div_ceil(most);
    }

    /// The bytes of a window.
    pub fn window(&self, round: u64) -> Range<u64> {
        let start = self.first.saturating_add(round.saturating_mul(self.window_bytes));
        start..start.saturating_add(self.window_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a call that fits into a rank's frames is not divided, even if its bytes are touched again. If a call does
    /// not fit, together with the bytes that were touched before, it is divided into windows of whole runs that cover
    /// it without a gap. Method: calls one after the other, with pages of 10 bytes, runs of 40 bytes and 16 frames.
    #[test]
    fn calls_are_cut_when_memory_is_too_small() {
        let mut rounds = Rounds::default();
        for wanted in [0..0, 100..160, 5..95, 100..160, 7..8] {
            rounds.cut(wanted.clone(), 10, 40, 16);
            assert_eq!(rounds.count, 0, "{wanted:?}");
        }
        rounds.cut(150..161, 10, 40, 16);
        assert_eq!((rounds.first, rounds.window_bytes, rounds.count), (120, 80, 1));
        rounds.cut(39..401, 10, 40, 16);
        assert_eq!((rounds.first, rounds.window_bytes, rounds.count), (0, 80, 6));
        assert_eq!((rounds.window(0), rounds.window(5)), (0..80, 400..480));
        rounds.cut(0..0, 10, 40, 16);
        assert_eq!(rounds.count, 0, "nobody has anything");
    }

    /// Goal: windows exist with a single frame, with runs longer than half of the memory, and at the end of the largest
    /// file, where they become few and large. Method: extreme sizes.
    #[test]
    fn windows_have_bounds() {
        let mut rounds = Rounds::default();
        rounds.cut(25..57, 10, 40, 1);
        assert_eq!((rounds.first, rounds.window_bytes, rounds.count), (20, 10, 4));
        rounds.cut(0..100, 10, 40, 7);
        assert_eq!((rounds.first, rounds.window_bytes, rounds.count), (0, 30, 4));
        let end = i64::MAX as u64;
        rounds.cut(0..end, 1 << 20, 4 << 20, 64);
        assert!(rounds.count <= MOST_ROUNDS && rounds.window(rounds.count - 1).contains(&(end - 1)));
    }
}
