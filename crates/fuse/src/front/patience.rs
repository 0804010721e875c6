//! `Patience`: when a signal ends a wait.
//!
//! The kernel reports only the first signal of a waiting call. If that signal kills the caller, the wait ends at once.
//! Any other signal (of a timer, for example) must not break calls that programs do not expect to fail. So the
//! operation gets `GRACE` to finish, and then ends with EINTR if a handler is waiting to run. The kernel also reports
//! signals that concern no thread of the program (`signals`); they end no call. Meanwhile the caller is looked at again
//! and again, because the kernel does not report a killing signal that follows.
//!
//! Owns: this rule, and the calls that are observed. Does not own: the delivery of interrupts (`interrupt`, `later`),
//! what a pending signal demands (`signals`).
//!
//! Bound: at most `OBSERVERS_MAX` calls are observed at a time. If there are more, a signal ends a wait at once.

use crate::later::Later;
use crate::request::Caller;
use crate::signals::Signals;
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
/// How often the mount checks which signals the caller of an interrupted call has pending.
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

    /// Continues waiting as a task. From now on `later` receives the caller's signals.
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
        if Signals::of(self.tid) == Signals::Kill || self.observers.fetch_update(SeqCst, SeqCst, one_more).is_err() {
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
        while !*finished {
            match Signals::of(self.tid) {
                Signals::Kill => break,
                Signals::Handle if waited >= GRACE => break,
                Signals::Handle | Signals::Nothing => {}
            }
            self.changed.wait_for(&mut finished, LOOK);
            waited += LOOK;
        }
        self.interrupt.fire();
    }
}
