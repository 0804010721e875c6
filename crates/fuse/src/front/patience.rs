//! `Patience`: when a signal ends a wait.
//!
//! The kernel reports only the first signal of a waiting call. If that signal kills the caller, the wait ends at once.
//! Any other signal (of a timer, or of a terminal that changed its size) must not break calls that programs do not
//! expect to fail. So the operation gets `GRACE` to finish, and then ends with EINTR. Meanwhile the caller is looked at
//! again and again, because the kernel does not report a killing signal that follows.
//!
//! Owns: this rule, and the calls that are observed. Does not own: the delivery of interrupts (`interrupt`, `later`).
//!
//! Bound: at most `OBSERVERS_MAX` calls are observed at a time. Beyond that, a signal ends a wait at once.

use crate::later::Later;
use crate::request::Caller;
use amphi_client::{Interrupt, Pending};
use amphi_types::{Errno, Result};
use parking_lot::{Condvar, Mutex};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

/// How long a call continues after a signal that does not kill.
const GRACE: Duration = Duration::from_secs(2);
/// How often the mount checks whether the caller of an interrupted call is being killed.
const LOOK: Duration = Duration::from_millis(20);
/// Most calls observed at a time.
const OBSERVERS_MAX: usize = 64;

/// Waits for operations of callers that may get signals.
#[derive(Default)]
pub(crate) struct Patience {
    observers: Arc<AtomicUsize>,
}

/// One waiting call.
struct Waiting {
    tid: u32,
    interrupt: Interrupt,
    finished: Mutex<bool>,
    changed: Condvar,
    observers: Arc<AtomicUsize>,
}

impl Patience {
    /// Waits for `pending`. The head of the module describes the effect of signals.
    pub(crate) fn wait<T: Send + 'static>(&self, caller: &Caller<'_>, pending: Pending<T>) -> Result<T> {
        self.begin(caller).wait(pending)
    }

    /// Begins a wait.
    pub(crate) fn begin(&self, caller: &Caller<'_>) -> Wait {
        let waiting = Arc::new(Waiting {
            tid: caller.tid,
            interrupt: Interrupt::new(),
            finished: Mutex::new(false),
            changed: Condvar::new(),
            observers: self.observers.clone(),
        });
        caller.interrupt.wake_on_interrupt(&Waker::from(waiting.clone()));
        Wait(waiting)
    }
}

/// A wait, with or without a thread.
pub(crate) struct Wait(Arc<Waiting>);

impl Wait {
    /// Waits on this thread.
    pub(crate) fn wait<T: Send + 'static>(&self, pending: Pending<T>) -> Result<T> {
        pending.wait(Some(&self.0.interrupt))
    }

    /// Waits on this thread for `most` at the longest. If the operation is not done then, it is returned as the error.
    pub(crate) fn wait_for<T: Send + 'static>(
        &self,
        pending: Pending<T>,
        most: Duration,
    ) -> std::result::Result<Result<T>, Pending<T>> {
        pending.wait_for(Some(&self.0.interrupt), Some(most))
    }

    /// Goes on waiting as a task. From now on `later` receives the caller's signals.
    pub(crate) async fn go_on<T: Send + 'static>(&self, pending: Pending<T>, later: &Later) -> Result<T> {
        later.wake_on_interrupt(Waker::from(self.0.clone()));
        let interrupt = &self.0.interrupt;
        let mut pending = pin!(pending);
        poll_fn(|cx| {
            interrupt.watch(cx.waker());
            match pending.as_mut().poll(cx) {
                Poll::Pending if interrupt.has_fired() => Poll::Ready(Err(Errno::Intr)),
                polled => polled,
            }
        })
        .await
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        *self.0.finished.lock() = true;
        self.0.changed.notify_all();
    }
}

/// Woken by the first signal, on a thread that reads the device, so it must not wait.
impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        let one_more = |n: usize| (n < OBSERVERS_MAX).then_some(n + 1);
        if is_dying(self.tid) || self.observers.fetch_update(SeqCst, SeqCst, one_more).is_err() {
            self.interrupt.fire();
            return;
        }
        let observed = self.clone();
        let observe = move || {
            observed.observe();
            observed.observers.fetch_sub(1, SeqCst);
        };
        if std::thread::Builder::new().name("amphi-fuse-signal".into()).spawn(observe).is_err() {
            self.observers.fetch_sub(1, SeqCst);
            self.interrupt.fire();
        }
    }
}

impl Waiting {
    fn observe(&self) {
        let mut finished = self.finished.lock();
        let mut waited = Duration::ZERO;
        while !*finished && waited < GRACE && !is_dying(self.tid) {
            self.changed.wait_for(&mut finished, LOOK);
            waited += LOOK;
        }
        self.interrupt.fire();
    }
}

/// Whether thread `tid` has a killing signal pending. A thread that cannot be looked at counts as dying.
fn is_dying(tid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status"));
    status.map_or(true, |s| kill_is_pending(&s))
}

/// A signal that ends the process makes the kernel mark SIGKILL pending for each of its threads.
fn kill_is_pending(status: &str) -> bool {
    let bit = 1u64 << (libc::SIGKILL - 1);
    let mask = |line: &str| u64::from_str_radix(line.trim(), 16).unwrap_or(0);
    let lines = status.lines().filter_map(|l| l.strip_prefix("SigPnd:").or_else(|| l.strip_prefix("ShdPnd:")));
    lines.map(mask).any(|m| m & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: killing signals are distinguished from others. Method: lines as the kernel writes them.
    #[test]
    fn pending_masks() {
        let status = |own: &str, shared: &str| {
            format!("Name:\tx\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\tffffffffffffffff\n")
        };
        let none = "0000000000000000";
        assert!(!kill_is_pending(&status(none, none)));
        assert!(!kill_is_pending(&status(none, "0000000000002000")), "SIGALRM");
        assert!(kill_is_pending(&status("0000000000000100", none)));
        assert!(kill_is_pending(&status(none, "0000000000004100")));
        assert!(!is_dying(std::process::id()));
    }
}
