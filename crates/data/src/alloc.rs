//! `Allocator`: a bitmap allocator of runs of 4 KiB blocks.
//!
//! Owns: which blocks are taken. Does not own: the assignment of blocks (extents, plans, pending frees: `store`).
//!
//! Invariants: `free` and the group counts equal the zero bits. Taking a taken block or freeing a free one panics, also
//! in release, because it is a programming error.
//!
//! There is one bit for each block. A search begins behind the run that the previous search took, or at the lowest
//! block that was freed since. Blocks that were written before are used before blocks that never were, because a write
//! into a hole of a zone file makes its file system allocate. That takes 1.1 to 1.4 times as long as a write over
//! existing blocks, and twice as long if the disk below has to allocate as well. So a large write leaves the
//! neighbourhood of its object if that was never written and if there are long free runs that were written before.
//! Small writes stay there, because a file in small pieces is read slowly.
//!
//! Groups of 4096 blocks (16 MiB) have a count of free blocks and an upper bound of the longest free run that begins in
//! them. So in a nearly full zone only groups are searched: 1280 for 20 GiB instead of 82,000 words.
//!
//! A second bit says which blocks are certain to have storage in the file system below. While that memory is full
//! (`set_tight`), only these blocks are used, whatever that costs: their runs are searched word by word.

use amphi_types::{Errno, Result};

/// Blocks of a group.
const GROUP_BLOCKS: u64 = 4096;
const WORD: u64 = 64;
/// Shortest run, in blocks, for which a write leaves its neighbourhood: 256 KiB.
const AGAIN_MIN: u64 = 64;
/// Shortest runs, in blocks, into which a larger write is cut for that: 1 MiB.
const AGAIN_PIECE: u64 = 256;
/// The part of the reserve that is left to requests that shrink a file: one block in this many.
const SHRINK_SHARE: u64 = 4;
/// The bound of a group that was not searched since blocks in it were freed.
const UNKNOWN: u64 = u64::MAX;

/// Consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// First block.
    pub start: u64,
    /// Number of blocks.
    pub blocks: u32,
}

impl Run {
    /// The block after the last one.
    pub fn end(&self) -> u64 {
        self.start + u64::from(self.blocks)
    }
}

/// The use of blocks. A full zone must still be able to shrink, so edge blocks of truncates and punches may use the
/// last blocks. Overwrites may use most of them, because they free as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A change that needs more blocks.
    Growth,
    /// A change that replaces blocks and frees as many.
    Overwrite,
    /// A change that frees blocks afterwards.
    Shrink,
}

#[derive(Clone, Debug)]
struct Group {
    free: u64,
    longest: u64,
}

/// The bitmap of a data region.
#[derive(Clone, Debug)]
pub struct Allocator {
    words: Vec<u64>,
    groups: Vec<Group>,
    blocks: u64,
    free: u64,
    cursor: u64,
    /// The block after the highest one that was ever taken. Blocks behind it were never written.
    used_end: u64,
    /// There is no free run of this many blocks that were written before. Reset by each free.
    none_again: u64,
    /// Blocks that have storage in the file system below.
    backed: Vec<u64>,
    /// Number of these blocks that are free.
    backed_free: u64,
    /// Whether only blocks that have storage below are taken.
    tight: bool,
    reserve: u64,
}

impl Allocator {
    /// Most blocks that are kept back for `Purpose::Shrink` and `Purpose::Overwrite`.
    pub const RESERVE_MAX: u64 = 64;

    /// An allocator of `blocks` free blocks.
    pub fn new(blocks: u64) -> Allocator {
        let mut words = vec![0u64; blocks.div_ceil(WORD) as usize];
        if !blocks.is_multiple_of(WORD)
            && let Some(last) = words.last_mut()
        {
            *last = !0 << (blocks % WORD);
        }
        let groups = (0..blocks.div_ceil(GROUP_BLOCKS))
            .map(|g| Group { free: GROUP_BLOCKS.min(blocks - g * GROUP_BLOCKS), longest: UNKNOWN })
            .collect();
        let reserve = (blocks / 64).min(Self::RESERVE_MAX);
        let backed = vec![0; words.len()];
        Allocator {
            words,
            groups,
            blocks,
            free: blocks,
            cursor: 0,
            used_end: 0,
            none_again: UNKNOWN,
            backed,
            backed_free: 0,
            tight: false,
            reserve,
        }
    }

    /// Sets whether the file system below has no space for blocks that have no storage there yet.
    pub fn set_tight(&mut self, tight: bool) {
        self.tight = tight;
    }

    /// Free blocks that have storage in the file system below.
    pub fn backed_free(&self) -> u64 {
        self.backed_free
    }

    /// Blocks that can be taken.
    pub fn room(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Growth if self.tight => self.available().min(self.backed_free),
            Purpose::Growth => self.available(),
            Purpose::Overwrite => self.free.saturating_sub(self.reserve / SHRINK_SHARE),
            // Such blocks are few, and the file system below has some space left for them.
            Purpose::Shrink => self.free,
        }
    }

    /// The blocks of `run` have storage in the file system below: they were written, or are known to have been. Blocks
    /// outside of the region are ignored.
    pub fn note_backed(&mut self, run: Run) {
        let end = run.end().min(self.blocks);
        let mut at = run.start;
        while at < end {
            let n = (WORD - at % WORD).min(end - at);
            let word = (at / WORD) as usize;
            let news = (!0 >> (WORD - n)) << (at % WORD) & !self.backed[word];
            self.backed[word] |= news;
            self.backed_free += u64::from((news & !self.words[word]).count_ones());
            at += n;
        }
    }

    /// Works as `take`, but takes only blocks that have storage below, of which there are enough.
    fn take_backed(&mut self, blocks: u64, run_max: u32, out: &mut Vec<Run>) {
        let (mut left, mut at) = (blocks, 0);
        while left > 0 {
            let Some(start) = self.next_backed(at) else { break };
            let most = left.min(u64::from(run_max)).min(self.blocks - start);
            let n = (1..most).find(|n| !self.is_backed_free(start + n)).unwrap_or(most);
            let run = Run { start, blocks: n as u32 };
            self.mark(run);
            out.push(run);
            (left, at) = (left - n, run.end());
        }
        assert!(left == 0, "the count of backed blocks says {left} more but none is found");
    }

    fn is_backed_free(&self, at: u64) -> bool {
        (self.backed[(at / WORD) as usize] & !self.words[(at / WORD) as usize]) >> (at % WORD) & 1 == 1
    }

    /// The first free block from `at` on that has storage below.
    fn next_backed(&self, at: u64) -> Option<u64> {
        let mut mask = !0 << (at % WORD);
        for word in (at / WORD) as usize..self.words.len() {
            let found = self.backed[word] & !self.words[word] & mask;
            if found != 0 {
                return Some(word as u64 * WORD + u64::from(found.trailing_zeros()));
            }
            mask = !0;
        }
        None
    }

    fn backed_of(&self, run: Run) -> u64 {
        let (mut at, mut count) = (run.start, 0);
        while at < run.end() {
            let n = (WORD - at % WORD).min(run.end() - at);
            let mask = (!0 >> (WORD - n)) << (at % WORD);
            count += u64::from((self.backed[(at / WORD) as usize] & mask).count_ones());
            at += n;
        }
        count
    }

    /// Number of all blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Number of free blocks, including the reserve.
    pub fn free_blocks(&self) -> u64 {
        self.free
    }

    /// Number of blocks that growth may still take.
    pub fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserve)
    }

    /// Returns whether all blocks of `run` are free. `run` lies in the region.
    pub fn is_free(&self, run: Run) -> bool {
        self.run_length(run.start, u64::from(run.blocks)) == u64::from(run.blocks)
    }

    /// Takes `blocks` blocks and adds their runs to `out`: at `goal` if the whole run is free there, otherwise one run
    /// elsewhere, otherwise several. Each run has at most `run_max` blocks. Blocks that were written before are
    /// preferred to a goal that was not.
    ///
    /// Errors: `NoSpace`, and then nothing is taken.
    pub fn take(
        &mut self,
        blocks: u64,
        goal: Option<u64>,
        purpose: Purpose,
        run_max: u32,
        out: &mut Vec<Run>,
    ) -> Result<()> {
        if blocks > self.room(purpose) {
            return Err(Errno::NoSpace);
        }
        if self.tight && blocks <= self.backed_free {
            self.take_backed(blocks, run_max, out);
            return Ok(());
        }
        let mut left = blocks;
        let mut want = u64::MAX;
        let mut goal = goal;
        while left > 0 {
            want = want.min(left).min(u64::from(run_max));
            let at_goal = goal.filter(|&g| g < self.blocks && self.run_length(g, want) == want);
            let found = match at_goal {
                Some(start) if start + want <= self.used_end => Some((start, want, false)),
                _ => match self.find_again(want) {
                    Some((start, n)) => Some((start, n, true)),
                    None => at_goal
                        .map(|start| (start, want, false))
                        .or_else(|| self.find_run(want, goal.unwrap_or(self.cursor)).map(|start| (start, want, true))),
                },
            };
            match found {
                Some((start, n, searched)) => {
                    let run = Run { start, blocks: n as u32 };
                    self.mark(run);
                    out.push(run);
                    left -= n;
                    goal = Some(run.end());
                    if searched || start == self.cursor {
                        self.cursor = run.end();
                    }
                }
                None => want /= 2,
            }
            assert!(want > 0 || left == 0, "the free count says {left} more blocks but none is found");
        }
        Ok(())
    }

    /// Start and length of a free run that was written before, searched from the cursor on: `blocks` long, or at least
    /// `AGAIN_PIECE`. Returns `None` for fewer blocks than `AGAIN_MIN`.
    fn find_again(&mut self, blocks: u64) -> Option<(u64, u64)> {
        let written = self.used_end - (self.blocks - self.free);
        let mut want = blocks;
        while want >= AGAIN_MIN {
            if want <= written && want < self.none_again {
                if let Some(start) = self.find_before(want, self.cursor, self.used_end) {
                    return Some((start, want));
                }
                self.none_again = want;
            }
            if want <= AGAIN_PIECE {
                return None;
            }
            want = (want / 2).max(AGAIN_PIECE);
        }
        None
    }

    /// Takes exactly `run`. Panics if a block of it is taken.
    pub fn mark(&mut self, run: Run) {
        self.for_words(run, |word, mask| {
            assert_eq!(*word & mask, 0, "block of {run:?} is taken twice");
            *word |= mask;
        });
        self.free -= u64::from(run.blocks);
        self.backed_free -= self.backed_of(run);
        self.used_end = self.used_end.max(run.end());
        self.count_groups(run, |group, n| group.free -= n);
    }

    /// Frees `run`. Panics if a block of it is free.
    pub fn free(&mut self, run: Run) {
        self.for_words(run, |word, mask| {
            assert_eq!(*word & mask, mask, "block of {run:?} is freed twice");
            *word &= !mask;
        });
        self.free += u64::from(run.blocks);
        self.backed_free += self.backed_of(run);
        self.cursor = self.cursor.min(run.start);
        self.none_again = UNKNOWN;
        self.count_groups(run, |group, n| {
            group.free += n;
            group.longest = UNKNOWN;
        });
        // A run that begins in an earlier group may be longer now.
        let mut g = (run.start / GROUP_BLOCKS) as usize;
        while g > 0 {
            g -= 1;
            self.groups[g].longest = UNKNOWN;
            if self.groups[g].free < GROUP_BLOCKS {
                break;
            }
        }
    }

    fn for_words(&mut self, run: Run, mut f: impl FnMut(&mut u64, u64)) {
        assert!(run.blocks > 0 && run.end() <= self.blocks, "{run:?} outside of {} blocks", self.blocks);
        let mut at = run.start;
        while at < run.end() {
            let n = (WORD - at % WORD).min(run.end() - at);
            f(&mut self.words[(at / WORD) as usize], (!0 >> (WORD - n)) << (at % WORD));
            at += n;
        }
    }

    fn count_groups(&mut self, run: Run, mut f: impl FnMut(&mut Group, u64)) {
        let mut at = run.start;
        while at < run.end() {
            let n = (GROUP_BLOCKS - at % GROUP_BLOCKS).min(run.end() - at);
            f(&mut self.groups[(at / GROUP_BLOCKS) as usize], n);
            at += n;
        }
    }

    /// The first free block in `at..end`.
    fn next_free(&self, mut at: u64, end: u64) -> Option<u64> {
        while at < end {
            let zeros = !self.words[(at / WORD) as usize] & (!0 << (at % WORD));
            if zeros != 0 {
                let found = at / WORD * WORD + u64::from(zeros.trailing_zeros());
                return (found < end).then_some(found);
            }
            at = (at / WORD + 1) * WORD;
        }
        None
    }

    /// Number of free blocks from `at` on without a gap, at most `max`.
    fn run_length(&self, at: u64, max: u64) -> u64 {
        let end = at.saturating_add(max).min(self.blocks);
        let mut next = at;
        while next < end {
            let taken = self.words[(next / WORD) as usize] & (!0 << (next % WORD));
            if taken != 0 {
                let found = next / WORD * WORD + u64::from(taken.trailing_zeros());
                return found.min(end) - at;
            }
            next = (next / WORD + 1) * WORD;
        }
        end.saturating_sub(at)
    }

    /// Start of a free run of `blocks`, searched from `from` to the end and then from the beginning.
    fn find_run(&mut self, blocks: u64, from: u64) -> Option<u64> {
        self.find_before(blocks, from, self.blocks)
    }

    /// Works as `find_run`, but only among the blocks before `end`.
    fn find_before(&mut self, blocks: u64, from: u64, end: u64) -> Option<u64> {
        let from = if from < end { from } else { 0 };
        self.search(blocks, from, end).or_else(|| self.search(blocks, 0, (from + blocks).min(end)))
    }

    /// Start of the first free run of `blocks` in `from..end`.
    fn search(&mut self, blocks: u64, from: u64, end: u64) -> Option<u64> {
        let first = from / GROUP_BLOCKS;
        for g in first..end.div_ceil(GROUP_BLOCKS) {
            let group = &self.groups[g as usize];
            if group.free == 0 || group.longest < blocks {
                continue;
            }
            let group_start = g * GROUP_BLOCKS;
            let group_end = (group_start + GROUP_BLOCKS).min(self.blocks);
            let start = if g == first { from } else { group_start };
            let mut longest = 0;
            let mut at = start;
            while let Some(begin) = self.next_free(at, group_end) {
                let n = self.run_length(begin, blocks);
                if n == blocks {
                    return (begin + n <= end).then_some(begin);
                }
                longest = longest.max(n);
                at = begin + n;
            }
            if start == group_start {
                self.groups[g as usize].longest = longest;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Goal: the allocator returns free blocks only, the requested number, and its counts are right. Method: random
        /// takes and frees on 10,000 blocks against a vector of flags.
        #[test]
        fn matches_a_vector_of_flags(
            ops in proptest::collection::vec((0u8..7, 1u64..3000, 0u64..10_000), 1..120),
            blocks in 9000u64..10_000,
        ) {
            let mut a = Allocator::new(blocks);
            let (mut backed, mut tight) = (vec![false; blocks as usize], false);
            let mut taken = vec![false; blocks as usize];
            let mut held: Vec<Run> = Vec::new();
            for (op, n, goal) in ops {
                let free = taken.iter().filter(|&&t| !t).count() as u64;
                prop_assert_eq!(a.free_blocks(), free);
                let backed_free = taken.iter().zip(&backed).filter(|(t, b)| !**t && **b).count() as u64;
                prop_assert_eq!(a.backed_free(), backed_free);
                if op == 4 {
                    a.note_backed(Run { start: goal.min(blocks - 1), blocks: n as u32 });
                    let from = goal.min(blocks - 1);
                    backed[from as usize..(from + n).min(blocks) as usize].fill(true);
                } else if op == 5 {
                    tight = !tight;
                    a.set_tight(tight);
                } else if op < 3 || op == 6 {
                    let mut out = Vec::new();
                    let (purpose, room) = match op {
                        0 => (Purpose::Shrink, free),
                        6 => (Purpose::Overwrite, free.saturating_sub(16)),
                        _ => (Purpose::Growth, free.saturating_sub(64)),
                    };
                    let fits = n <= if tight && purpose == Purpose::Growth { room.min(backed_free) } else { room };
                    let only_backed = tight && n <= backed_free;
                    let r = a.take(n, (op == 1).then_some(goal), purpose, 1000, &mut out);
                    prop_assert_eq!(r.is_ok(), fits);
                    prop_assert_eq!(out.iter().map(|r| u64::from(r.blocks)).sum::<u64>(), if fits { n } else { 0 });
                    for run in &out {
                        prop_assert!(run.blocks <= 1000);
                        for b in run.start..run.end() {
                            prop_assert!(!taken[b as usize] && (!only_backed || backed[b as usize]));
                            taken[b as usize] = true;
                        }
                    }
                    held.extend(out);
                } else if !held.is_empty() {
                    let run = held.swap_remove((goal % held.len() as u64) as usize);
                    a.free(run);
                    taken[run.start as usize..run.end() as usize].fill(false);
                }
            }
        }
    }

    /// Goal: one run is preferred wherever it lies, also across group borders and after frees that join runs. Method:
    /// all blocks are in use except pieces that together form one run of 5000.
    #[test]
    fn finds_the_one_long_run() {
        let mut a = Allocator::new(40_000);
        let mut out = Vec::new();
        a.take(40_000, None, Purpose::Shrink, 40_000, &mut out).unwrap();
        for piece in [4u32, 0, 3, 1, 2] {
            a.free(Run { start: 15_000 + u64::from(piece) * 1000, blocks: 1000 });
            let mut none = Vec::new();
            assert_eq!(a.take(5001, None, Purpose::Growth, 9999, &mut none), Err(Errno::NoSpace));
        }
        a.free(Run { start: 100, blocks: 900 });
        out.clear();
        a.take(5000, Some(7), Purpose::Growth, 9999, &mut out).unwrap();
        assert_eq!(out, [Run { start: 15_000, blocks: 5000 }]);
    }

    /// Goal: large writes use blocks that were written before, in pieces of 1 MiB if necessary, and small writes stay
    /// near their object. Method: an object grows at the end of the blocks that were ever used, after other blocks
    /// before it were freed.
    #[test]
    fn what_was_written_comes_first() {
        let mut a = Allocator::new(40_000);
        let take = |a: &mut Allocator, blocks, goal| {
            let mut out = Vec::new();
            a.take(blocks, goal, Purpose::Growth, 9999, &mut out).unwrap();
            out
        };
        assert_eq!(take(&mut a, 3000, None), [Run { start: 0, blocks: 3000 }]);
        a.free(Run { start: 100, blocks: 300 });
        a.free(Run { start: 1000, blocks: 1024 });
        assert_eq!(take(&mut a, 20, Some(3000)), [Run { start: 3000, blocks: 20 }], "small: next to its object");
        assert_eq!(take(&mut a, 1024, Some(3020)), [Run { start: 1000, blocks: 1024 }], "large: where it was written");
        a.free(Run { start: 1000, blocks: 1024 });
        a.free(Run { start: 2500, blocks: 40 });
        let cut =
            [Run { start: 1000, blocks: 1000 }, Run { start: 100, blocks: 256 }, Run { start: 3020, blocks: 744 }];
        assert_eq!(take(&mut a, 2000, Some(3020)), cut, "in pieces, and what is left there is too short for the rest");
        assert_eq!(take(&mut a, 64, Some(3764)), [Run { start: 3764, blocks: 64 }]);
        a.free(Run { start: 2600, blocks: 40 });
        assert_eq!(take(&mut a, 20, None), [Run { start: 2600, blocks: 20 }]);
    }
}
