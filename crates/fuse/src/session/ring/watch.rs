//! `Watch`: looks after what the kernel forgets of requests through io_uring (seen with Linux 6.18).
//!
//! *Signals.* One that hits its caller between the moment when a request is given to an entry and that when its thread has taken it gives no
//! INTERRUPT: the kernel looks for requests that wait and for those that were sent, and this one is neither. The caller could then not even be
//! killed until the answer comes. So once a handler has waited for a while, its caller is looked at: what came before the request was
//! taken is still pending then, and what comes later the kernel tells.
//!
//! *Requests.* One that came while no entry of its queue waited is given to an entry that comes back, but not to one that is new. If those
//! that are out stay out, because their callers wait for a lock, say, it would lie there. So a queue that has got a new entry is `short`
//! until an entry has come back and found nothing; if that takes long, somebody calls from that core (`nudge`), for whom the new entry is taken,
//! and comes back.
//!
//! Owns: when to look and to call. Bound: requests that began to wait within `TICK`; one call for each queue and tick.

use super::Ring;
use crate::interrupt::InHand;
use parking_lot::{Condvar, Mutex};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// How long a handler has waited, or a queue was short, when it is looked at.
const TICK: Duration = Duration::from_millis(5);

/// So often `rests` looks.
const RESTS_MAX: usize = 20;

#[derive(Debug, Default)]
struct State {
    /// Thread and request.
    fresh: Vec<(u32, u64)>,
    /// A queue became short.
    short: bool,
    ended: bool,
}

/// The watch.
#[derive(Debug, Default)]
pub(super) struct Watch {
    state: Mutex<State>,
    changed: Condvar,
    /// Nobody tells: for waits by the clock.
    rested: Condvar,
}

impl Watch {
    /// The handler of `unique`, which thread `tid` called for, is about to wait.
    pub(super) fn waits(&self, tid: u32, unique: u64) {
        if tid != 0 {
            self.tell(|state| state.fresh.push((tid, unique)));
        }
    }

    /// A queue has become short.
    pub(super) fn is_short(&self) {
        self.tell(|state| state.short = true);
    }

    /// No more requests come.
    pub(super) fn end(&self) {
        self.tell(|state| state.ended = true);
    }

    /// Waits until no queue is short and no call is under way, for as long as these take when others hold nobody up.
    pub(super) fn rests(&self, ring: &Ring) {
        let mut state = self.state.lock();
        for _ in 0..RESTS_MAX {
            if !state.short && ring.nudging.load(SeqCst) == 0 {
                break;
            }
            self.rested.wait_for(&mut state, TICK);
        }
    }

    fn tell(&self, what: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        let idle = state.fresh.is_empty() && !state.short;
        what(&mut state);
        if idle || state.ended {
            self.changed.notify_one();
        }
    }

    /// Watches until the end; `mount`: where the file system is mounted.
    pub(super) fn run(&self, ring: &Arc<Ring>, in_hand: &InHand, mount: &Path) {
        let mut state = self.state.lock();
        while !state.ended {
            if state.fresh.is_empty() && !state.short {
                self.changed.wait(&mut state);
                continue;
            }
            // What is there now has waited as long when this ends; what comes meanwhile has its turn afterwards.
            let (waited, short) = (state.fresh.len(), ring.short_queues());
            self.changed.wait_for(&mut state, TICK);
            let later = state.fresh.split_off(waited);
            let fresh = std::mem::replace(&mut state.fresh, later);
            let still_short = ring.short_queues();
            state.short = !still_short.is_empty();
            drop(state);
            for (tid, unique) in fresh {
                if in_hand.holds(unique) && has_signal(tid) {
                    in_hand.interrupt(unique);
                }
            }
            still_short.into_iter().filter(|queue| short.contains(queue)).for_each(|queue| nudge(ring, queue, mount));
            state = self.state.lock();
        }
    }
}

/// Calls the file system from the core of `queue`, on a thread of its own: it may have to wait as the others do.
fn nudge(ring: &Arc<Ring>, queue: usize, mount: &Path) {
    let (for_thread, mount) = (ring.clone(), mount.to_path_buf());
    let call = move || {
        super::serve::stay_on(queue);
        let tid = rustix::thread::gettid().as_raw_pid() as u32;
        for_thread.nudgers.lock().push(tid);
        // Any call that the kernel passes on will do; it is answered with an error.
        let _ = rustix::fs::statfs(&mount);
        for_thread.nudgers.lock().retain(|&t| t != tid);
        for_thread.nudging.fetch_sub(1, SeqCst);
    };
    ring.nudging.fetch_add(1, SeqCst);
    if let Err(e) = std::thread::Builder::new().name("amphi-fuse-nudge".into()).spawn(call) {
        ring.nudging.fetch_sub(1, SeqCst);
        tracing::debug!(error = %e, "no thread to call from");
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
