//! `Missed`: signals that the kernel does not tell of.
//!
//! A signal that hits its caller between the moment when a request is given to an entry and that when its thread has taken it gives no
//! INTERRUPT: the kernel looks for requests that wait and for those that were sent, and this one is neither (seen with Linux 6.18). The caller
//! could then not even be killed until the answer comes. So once a handler has waited for `LOOK_AFTER`, its caller is looked at: what
//! came before the request was taken is still pending then, and what comes later the kernel tells.
//!
//! Owns: the requests to look at. Bound: those that began to wait within `LOOK_AFTER`.

use crate::interrupt::InHand;
use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// How long a handler has waited when its caller is looked at.
const LOOK_AFTER: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct State {
    /// Thread and request.
    fresh: Vec<(u32, u64)>,
    ended: bool,
}

/// The look-out.
#[derive(Debug, Default)]
pub(super) struct Missed {
    state: Mutex<State>,
    changed: Condvar,
}

impl Missed {
    /// The handler of `unique`, which thread `tid` called for, is about to wait.
    pub(super) fn waits(&self, tid: u32, unique: u64) {
        if tid == 0 {
            return;
        }
        let mut state = self.state.lock();
        state.fresh.push((tid, unique));
        if state.fresh.len() == 1 {
            self.changed.notify_one();
        }
    }

    /// No more requests come.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_one();
    }

    /// Looks at callers until the end.
    pub(super) fn run(&self, in_hand: &InHand) {
        let mut state = self.state.lock();
        while !state.ended {
            if state.fresh.is_empty() {
                self.changed.wait(&mut state);
                continue;
            }
            // All that are there now have waited as long when this ends; what comes meanwhile has its turn afterwards.
            let waited = state.fresh.len();
            self.changed.wait_for(&mut state, LOOK_AFTER);
            let later = state.fresh.split_off(waited);
            let fresh = std::mem::replace(&mut state.fresh, later);
            drop(state);
            for (tid, unique) in fresh {
                if in_hand.holds(unique) && has_signal(tid) {
                    in_hand.interrupt(unique);
                }
            }
            state = self.state.lock();
        }
    }
}

/// Whether thread `tid` has a signal before it that ends a call.
fn has_signal(tid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{tid}/status")).is_ok_and(|status| is_pending(&status))
}

fn is_pending(status: &str) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !(mask("SigBlk:") | mask("SigIgn:")) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: signals that end a call are told from those that are blocked or ignored. Method: lines as the kernel writes them.
    #[test]
    fn pending_masks() {
        let status = |own: u64, shared: u64, blocked: u64, ignored: u64| {
            format!(
                "Name:\tx\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\n"
            )
        };
        assert!(!is_pending(&status(0, 0, 0, 0)));
        assert!(is_pending(&status(0x100, 0, 0, 0)) && is_pending(&status(0, 0x4000, 0, 0)));
        assert!(!is_pending(&status(0, 0x4000, 0x4000, 0)) && !is_pending(&status(0x4000, 0, 0, 0x4000)));
        assert!(is_pending(&status(0x2000, 0x4000, 0x4000, 0)));
        assert!(!has_signal(std::process::id()));
    }
}
