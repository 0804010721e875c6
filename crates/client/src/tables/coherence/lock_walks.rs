//! `Walks`: recognises other mounts that call this mount's locks back one file after the other.
//!
//! Owns: recognising them by the callbacks, and how many further locks should be returned with the next one. Does not
//! own: which locks these are (`locks::neighbours`).
//!
//! Bounds: `WALKS` neighbourhoods of a target at a time, and `MOST` locks for a callback.

use amphi_dlm::CANCEL_BATCH;
use amphi_types::Ino;

/// Files are in one neighbourhood if their inode numbers differ by at most this.
pub(crate) const REACH: u64 = 4096;
/// Callbacks in a neighbourhood before further locks are returned, and for how long they count, ns.
const SURE: u32 = 2;
const LULL_NS: u64 = 5_000_000_000;
/// Number of further locks that are returned with a callback, at first and at most.
const FIRST: usize = 32;
const MOST: usize = CANCEL_BATCH;
/// Most neighbourhoods that are distinguished.
const WALKS: usize = 4;

/// Another mount that calls locks of a neighbourhood back.
struct Walk {
    last: Ino,
    /// Callbacks before the last one.
    steps: u32,
    window: usize,
    at_ns: u64,
}

/// The walks over locks of one target.
#[derive(Default)]
pub(crate) struct Walks(Vec<Walk>);

impl Walks {
    /// Called when a lock of this file was called back. Returns how many locks of nearby files should be returned too.
    pub(crate) fn asked(&mut self, now_ns: u64, ino: Ino) -> usize {
        self.0.retain(|walk| now_ns.saturating_sub(walk.at_ns) < LULL_NS);
        let near = |walk: &&mut Walk| walk.last.0.abs_diff(ino.0) <= REACH;
        let Some(walk) = self.0.iter_mut().filter(near).min_by_key(|walk| walk.last.0.abs_diff(ino.0)) else {
            if self.0.len() >= WALKS
                && let Some(oldest) = (0..self.0.len()).min_by_key(|&at| self.0[at].at_ns)
            {
                self.0.swap_remove(oldest);
            }
            self.0.push(Walk { last: ino, steps: 0, window: 0, at_ns: now_ns });
            return 0;
        };
        if walk.last != ino {
            (walk.last, walk.steps, walk.at_ns) = (ino, walk.steps + 1, now_ns);
        }
        if walk.steps < SURE {
            return 0;
        }
        walk.window = (walk.window * 2).clamp(FIRST, MOST);
        walk.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: callbacks for nearby files count, and those for distant files or from long ago do not, nor does a repeated
    /// callback. The number of returned locks grows up to its bound. Several walks are distinguished. Method: single
    /// callbacks at chosen times.
    #[test]
    fn walks_are_recognised() {
        let mut walks = Walks::default();
        let mut asked = |at_ns, ino| walks.asked(at_ns, Ino(ino));
        assert_eq!([asked(0, 100), asked(1, 100), asked(1, 5100), asked(2, 101), asked(3, 5101)], [0; 5]);
        assert_eq!([asked(4, 99), asked(5, 5200), asked(6, 3000)], [FIRST, FIRST, 2 * FIRST]);
        let last = (0..10).map(|k| asked(7, 110 + k)).last();
        assert_eq!(last, Some(MOST));
        assert_eq!(asked(7 + LULL_NS, 120), 0, "that is another one");
        for far in 1..=WALKS as u64 {
            assert_eq!(asked(8 + LULL_NS, 100_000 * far), 0);
        }
        assert_eq!(asked(9 + LULL_NS, 121), 0, "the oldest made room");
    }
}
