//! `Losses`: bytes that could not be written back, for whoever asks about all files.
//!
//! Each file remembers its own failures for who has it open. `syncfs` and `amphi sync` speak for all of them, also for those that
//! nobody has open any more, and so does the end of a mount.
//!
//! Invariant: each loss is told once to who syncs all files, as `syncfs` of Linux does, however many were told by `fsync` before.

use amphi_types::{Errno, Result};
use parking_lot::Mutex;

/// A full target refuses thousands of runs a second: the log hears of one.
const LOG_EVERY_NS: u64 = 1_000_000_000;

#[derive(Debug)]
struct State {
    count: u64,
    told: u64,
    last: Errno,
    /// When the log heard of one, and how many it did not hear of since.
    logged_ns: Option<u64>,
    silent: u64,
}

/// What was lost so far.
#[derive(Debug)]
pub(crate) struct Losses(Mutex<State>);

impl Default for Losses {
    fn default() -> Losses {
        Losses(Mutex::new(State { count: 0, told: 0, last: Errno::Io, logged_ns: None, silent: 0 }))
    }
}

impl Losses {
    /// Bytes of some file could not be written back, `now_ns`. If the log should hear of it, how many it did not hear of before.
    pub(crate) fn note(&self, why: Errno, now_ns: u64) -> Option<u64> {
        let mut state = self.0.lock();
        (state.count, state.last) = (state.count + 1, why);
        if state.logged_ns.is_some_and(|at| now_ns < at + LOG_EVERY_NS) {
            state.silent += 1;
            return None;
        }
        state.logged_ns = Some(now_ns);
        Some(std::mem::take(&mut state.silent))
    }

    /// How many so far.
    pub(crate) fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// Errors: that of the last loss, if there was one since this was asked last.
    pub(crate) fn tell(&self) -> Result<()> {
        let mut state = self.0.lock();
        let news = state.count > state.told;
        state.told = state.count;
        if news { Err(state.last) } else { Ok(()) }
    }

    /// Errors: that of the last loss, if there was one since there were `count`.
    pub(crate) fn since(&self, count: u64) -> Result<()> {
        let state = self.0.lock();
        if state.count > count { Err(state.last) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each loss is told once, the last with its reason, and the log hears of one in a second. Method: losses by hand.
    #[test]
    fn each_loss_is_told_once() {
        let losses = Losses::default();
        assert_eq!((losses.tell(), losses.since(0)), (Ok(()), Ok(())));
        assert_eq!([0, 1, 2].map(|ms| losses.note(Errno::Io, ms * 1_000_000)), [Some(0), None, None]);
        assert_eq!(losses.note(Errno::NoSpace, 2_000_000_000), Some(2));
        assert_eq!((losses.count(), losses.since(3), losses.since(4)), (4, Err(Errno::NoSpace), Ok(())));
        assert_eq!((losses.tell(), losses.tell()), (Err(Errno::NoSpace), Ok(())));
    }
}
