//! Waking between tasks of one thread.
//!
//! Owns: `Bell`, a condition to wait for, and `Cut`, the one-way switch that ends a connection. Invariant: no
//! allocation per ring once the list of waiters has grown to its size (a handful of tasks per connection).

use std::cell::{OnceCell, RefCell};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

/// Tasks that wait for something to change. A ring wakes all of them; each looks for itself.
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

    /// Waits until `look` finds something; it looks now and after every ring.
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

/// Ends a connection once, for the first reason given.
#[derive(Default)]
pub(crate) struct Cut {
    reason: OnceCell<Ending>,
    bell: Bell,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// One side said `Bye`.
    Bye,
    /// The stream ended or failed.
    Lost(String),
    /// The peer broke a rule; worth a warning.
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

    /// Runs `work` until it ends or the connection does; then it is dropped.
    pub(crate) async fn guard<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        use futures_util::future::{Either, select};
        match select(std::pin::pin!(self.wait()), std::pin::pin!(work)).await {
            Either::Left(_) => None,
            Either::Right((done, _)) => Some(done),
        }
    }
}

/// Lets tasks that are ready go first, `rounds` times. A reader does so before it asks for more: else its receive,
/// which finds nothing and has to be armed, is submitted before the reply that it just caused, and delays it by
/// the 0.5 us that arming takes.
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
