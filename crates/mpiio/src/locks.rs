//! Page locks: shared and exclusive, first come first served, in shared memory.
//!
//! Owns the mutex of a stripe of metadata, the lock state and queue of each page, and the detection that a rank which
//! others wait for has ended. Does not own the order in which a call takes its locks (`file`).
//!
//! Invariants: a page has one writer or any number of readers. A rank that arrives while others wait joins the queue,
//! so a waiting writer stops new readers. A rank waits for at most one page (its calls come one at a time), so the
//! queue is linked through one cell for each rank. Calls lock pages in ascending order and release none before they
//! have all, so there is no cycle of waiting ranks. An eviction, which locks out of that order, only tries.

use crate::error::{Error, Outcome};
use crate::pace::Pace;
use crate::segment::{PageMeta, Segment};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

/// How a page is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The page is shared with other readers.
    Shared,
    /// Alone.
    Exclusive,
}

/// Set in the word of a mutex when a rank may sleep on it.
const CONTENDED: u32 = 1 << 31;

/// The locks of one open file as one rank sees them.
pub struct Locks {
    /// The memory in which they lie.
    pub segment: Segment,
    /// How this rank waits.
    pub pace: Arc<dyn Pace>,
}

impl Locks {
    /// Fails when a rank is known to have ended, because the locks that it held are never released.
    pub fn check_ended(&self) -> Outcome {
        match self.segment.header().ended.load(SeqCst) {
            0 => Ok(()),
            rank => Err(Error::RankEnded(rank - 1)),
        }
    }

    /// Called after a wait that was given up: fails when a rank has ended.
    fn look_around(&self) -> Outcome {
        match self.segment.find_ended() {
            Some(rank) => Err(Error::RankEnded(rank)),
            None => Ok(()),
        }
    }

    fn lock_stripe(&self, word: &AtomicU32) -> Outcome {
        let me = self.segment.rank() + 1;
        self.pace.point();
        let mut mine = me;
        loop {
            let seen = match word.compare_exchange(0, mine, SeqCst, SeqCst) {
                Ok(_) => return Ok(()),
                Err(seen) => seen,
            };
            // A rank that has slept may not be the last sleeper, so its unlock has to wake another one.
            mine = me | CONTENDED;
            let waiting = seen | CONTENDED;
            if seen & CONTENDED == 0 && word.compare_exchange(seen, waiting, SeqCst, SeqCst).is_err() {
                continue;
            }
            if !self.pace.wait(word, waiting) {
                self.look_around()?;
            }
        }
    }

    fn unlock_stripe(&self, word: &AtomicU32) {
        if word.swap(0, SeqCst) & CONTENDED != 0 {
            self.pace.wake(word, 1);
        }
    }

    /// Takes the lock of a page, after all ranks that came before. Returns whether it had to wait.
    pub fn lock(&self, page: u64, mode: Mode) -> Outcome<bool> {
        let meta = self.segment.meta(page)?;
        let word = self.segment.stripe_word(page);
        let me = self.segment.rank() + 1;
        self.lock_stripe(word)?;
        if meta.head.load(Relaxed) == 0 && take(meta, mode, me) {
            self.unlock_stripe(word);
            return Ok(false);
        }
        let cell = self.segment.rank_cell(me - 1);
        cell.granted.store(0, SeqCst);
        cell.exclusive.store(u32::from(mode == Mode::Exclusive), Relaxed);
        cell.next.store(0, Relaxed);
        match meta.tail.load(Relaxed) {
            0 => meta.head.store(me, Relaxed),
            last => self.segment.rank_cell(last - 1).next.store(me, Relaxed),
        }
        meta.tail.store(me, Relaxed);
        self.unlock_stripe(word);
        while cell.granted.load(SeqCst) == 0 {
            if !self.pace.wait(&cell.granted, 0) {
                self.look_around()?;
            }
        }
        Ok(true)
    }

    /// Takes the lock of a page exclusively if that needs no waiting.
    pub fn try_lock(&self, page: u64) -> Outcome<bool> {
        let meta = self.segment.meta(page)?;
        let word = self.segment.stripe_word(page);
        self.lock_stripe(word)?;
        let taken = meta.head.load(Relaxed) == 0 && take(meta, Mode::Exclusive, self.segment.rank() + 1);
        self.unlock_stripe(word);
        Ok(taken)
    }

    /// Gives the lock of a page back and grants it to those who wait.
    pub fn unlock(&self, page: u64, mode: Mode) -> Outcome {
        let meta = self.segment.meta(page)?;
        let word = self.segment.stripe_word(page);
        self.lock_stripe(word)?;
        match mode {
            Mode::Exclusive => {
                assert_eq!(meta.writer.load(Relaxed), self.segment.rank() + 1, "page {page} is not ours");
                meta.writer.store(0, Relaxed);
            }
            Mode::Shared => {
                let readers = meta.readers.load(Relaxed);
                assert!(readers > 0, "page {page} has no readers");
                meta.readers.store(readers - 1, Relaxed);
            }
        }
        self.grant(meta);
        self.unlock_stripe(word);
        Ok(())
    }

    /// Turns an exclusive lock into a shared one, without a moment in which it is free.
    pub fn downgrade(&self, page: u64) -> Outcome {
        let meta = self.segment.meta(page)?;
        let word = self.segment.stripe_word(page);
        self.lock_stripe(word)?;
        assert_eq!(meta.writer.load(Relaxed), self.segment.rank() + 1, "page {page} is not ours");
        meta.writer.store(0, Relaxed);
        meta.readers.store(1, Relaxed);
        self.grant(meta);
        self.unlock_stripe(word);
        Ok(())
    }

    /// Grants the lock to the first in the queue and to the readers behind a first reader.
    fn grant(&self, meta: &PageMeta) {
        loop {
            let first = meta.head.load(Relaxed);
            if first == 0 {
                return;
            }
            let cell = self.segment.rank_cell(first - 1);
            let exclusive = cell.exclusive.load(Relaxed) != 0;
            if !take(meta, if exclusive { Mode::Exclusive } else { Mode::Shared }, first) {
                return;
            }
            let next = cell.next.load(Relaxed);
            meta.head.store(next, Relaxed);
            if next == 0 {
                meta.tail.store(0, Relaxed);
            }
            cell.granted.store(1, SeqCst);
            self.pace.wake(&cell.granted, 1);
            if exclusive {
                return;
            }
        }
    }
}

/// Takes the lock for a rank if its present holders allow it.
fn take(meta: &PageMeta, mode: Mode, rank: u32) -> bool {
    let readers = meta.readers.load(Relaxed);
    if meta.writer.load(Relaxed) != 0 || (mode == Mode::Exclusive && readers != 0) {
        return false;
    }
    match mode {
        Mode::Shared => meta.readers.store(readers + 1, Relaxed),
        Mode::Exclusive => meta.writer.store(rank, Relaxed),
    }
    true
}
