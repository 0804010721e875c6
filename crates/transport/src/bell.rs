//! `Bell` and `Cut`: wake-ups between tasks of one thread.
//!
//! Owns: `Bell`, a condition to wait for, and `Cut`, the one-way switch that ends a connection. Does not own: the
//! conditions for which tasks wait.
//!
//! Invariant: a ring allocates nothing once the list of waiters has grown to its size (a handful of tasks for each
//! connection).

use std::cell::{OnceCell, RefCell};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

/// Tasks that wait for a change. A ring wakes all of them, and each checks for itself.
#[derive(Default)]
pub(crate) struct Bell {
    waiting: RefCell<Vec<Waker>>,
}

impl Bell {
    pub(crate) fn ring(&self) {
        loop {
            let next = self.waiting.borrow_mut().pop();
            match next {
                Some(waker) => waker.wake(),
                None => return,
            }
        }
    }

    pub(crate) fn register(&self, cx: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|w| w.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
    }

    /// Waits until `look`, which is called now and after every ring, returns something.
    pub(crate) async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| match look() {
            Some(found) => Poll::Ready(found),
            None => {
                self.register(cx);
                Poll::Pending
            }
        })
        .await
    }
}

/// Ends a connection once, with the first reason that is given.
#[derive(Default)]
pub(crate) struct Cut {
    reason: OnceCell<Ending>,
    bell: Bell,
}

/// The reason why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// One side said `Bye`.
    Bye,
    /// The stream ended or failed.
    Lost(String),
    /// The peer has broken a rule, which is worth a warning.
    Violation(String),
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::Bye => f.write_str("closed in order"),
            Ending::Lost(why) | Ending::Violation(why) => f.write_str(why),
        }
    }
}

impl Cut {
    /// Ends the connection; later reasons are ignored.
    pub(crate) fn cut(&self, ending: Ending) {
        if self.reason.set(ending).is_ok() {
            self.bell.ring();
        }
    }

    pub(crate) fn ending(&self) -> Option<&Ending> {
        self.reason.get()
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.reason.get().is_some()
    }

    pub(crate) async fn wait(&self) {
        self.bell.until(|| self.is_cut().then_some(())).await;
    }

    /// Runs `work` until it or the connection ends. In the second case the work is dropped.
    pub(crate) async fn guard<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        use futures_util::future::{Either, select};
        match select(std::pin::pin!(self.wait()), std::pin::pin!(work)).await {
            Either::Left(_) => None,
            Either::Right((done, _)) => Some(done),
        }
    }
}

/// Lets tasks that are ready run first, `rounds` times. A reader calls it before it receives again. Otherwise its
/// receive, which finds nothing and has to be armed, would be submitted before the reply that it just caused, and would
/// delay this reply by the 0.5 us that arming takes.
pub(crate) async fn step_aside(rounds: u32) {
    let mut left = rounds;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
