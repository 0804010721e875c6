//! `WritebackErrors`: what could not be written back, for callers that sync all files.
//!
//! Owns: how many losses there were, and up to which one has been reported. Does not own: the contents of a file after
//! a loss (`writeback::writeback_errors`), or to whom the failures of one file were reported (`inode::failures`).
//!
//! Invariant: each loss is reported once to a caller that syncs all files, as `syncfs` of Linux does, however many
//! `fsync` calls have reported it before.

use amphi_types::{Errno, Result, TargetId};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// A full target refuses thousands of runs a second. Only one of them is logged within this time.
const LOG_EVERY_NS: u64 = 1_000_000_000;

#[derive(Debug)]
struct State {
    count: u64,
    told: u64,
    last: Errno,
    /// When a loss was logged last, and how many were not logged since.
    logged_ns: Option<u64>,
    silent: u64,
}

/// The losses so far.
#[derive(Debug)]
pub(crate) struct WritebackErrors {
    state: Mutex<State>,
    /// For each target, the number of the last report about accepted bytes that the target could not write. A target
    /// repeats its news, under the same number, until it knows that they have arrived.
    news: Mutex<BTreeMap<TargetId, u64>>,
}

impl Default for WritebackErrors {
    fn default() -> WritebackErrors {
        let state = State { count: 0, told: 0, last: Errno::Io, logged_ns: None, silent: 0 };
        WritebackErrors { state: Mutex::new(state), news: Mutex::default() }
    }
}

impl WritebackErrors {
    /// Notes that bytes of some file could not be written back. If this loss should be logged, returns how many were
    /// not logged before. A loss by a limit is not logged: it concerns only the program, which gets the error, and the
    /// administrator who has set the limit.
    pub(crate) fn note(&self, why: Errno, now_ns: u64) -> Option<u64> {
        let mut state = self.state.lock();
        (state.count, state.last) = (state.count + 1, why);
        if why == Errno::Quota {
            return None;
        }
        if state.logged_ns.is_some_and(|at| now_ns < at + LOG_EVERY_NS) {
            state.silent += 1;
            return None;
        }
        state.logged_ns = Some(now_ns);
        Some(std::mem::take(&mut state.silent))
    }

    /// Returns whether a target's message is new, and not a repetition of the last one.
    pub(crate) fn is_news(&self, target: TargetId, id: u64) -> bool {
        self.news.lock().insert(target, id) != Some(id)
    }

    /// Errors: that of the last loss, if there was one since the last call.
    pub(crate) fn tell(&self) -> Result<()> {
        let mut state = self.state.lock();
        assert!(state.told <= state.count, "{} losses are reported of {}", state.told, state.count);
        let news = state.count > state.told;
        state.told = state.count;
        if news { Err(state.last) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each loss is reported once, the last one with its reason, and at most one loss in a second is logged.
    /// Method: losses that the test reports at given times.
    #[test]
    fn each_loss_is_told_once() {
        let errors = WritebackErrors::default();
        assert_eq!(errors.tell(), Ok(()));
        assert_eq!([0, 1, 2].map(|ms| errors.note(Errno::Io, ms * 1_000_000)), [Some(0), None, None]);
        assert_eq!(errors.note(Errno::NoSpace, 2_000_000_000), Some(2));
        assert_eq!((errors.tell(), errors.tell()), (Err(Errno::NoSpace), Ok(())));
        assert_eq!(errors.note(Errno::Quota, 9_000_000_000), None, "the limit of a user is no news of the mount");
        assert_eq!((errors.tell(), errors.tell()), (Err(Errno::Quota), Ok(())));
        assert_eq!(errors.note(Errno::Io, 9_000_000_000), Some(0));
        let news = [(0, 1), (1, 1), (0, 1), (0, 2), (1, 1)];
        assert_eq!(news.map(|(t, id)| errors.is_news(TargetId(t), id)), [true, true, false, true, false]);
    }
}
