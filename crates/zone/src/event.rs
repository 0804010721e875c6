//! Waiting for a condition on state shared by tasks of one thread, and giving other tasks a turn.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Wakes all waiting tasks when something changed; each checks its condition again. The number of waiters is bounded by
/// the number of waiting tasks.
#[derive(Default)]
pub struct Event {
    waiters: RefCell<Vec<Waker>>,
}

impl Event {
    /// Says that something changed.
    pub fn notify(&self) {
        for waker in self.waiters.take() {
            waker.wake();
        }
    }

    /// Completes when `ready` holds. Dropping it changes nothing.
    pub async fn wait_until(&self, mut ready: impl FnMut() -> bool) {
        poll_fn(|cx| {
            if ready() {
                return Poll::Ready(());
            }
            let mut waiters = self.waiters.borrow_mut();
            if !waiters.iter().any(|w| w.will_wake(cx.waker())) {
                waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

/// Lets other tasks run once.
pub async fn turn() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
