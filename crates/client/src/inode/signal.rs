//! `Signal`: waiting for a condition on plain data.

use parking_lot::Mutex;
use std::task::Waker;

/// Wakes all tasks that wait for a condition on plain data.
#[derive(Default)]
pub(crate) struct Signal {
    wakers: Mutex<Vec<Waker>>,
}

impl Signal {
    pub(crate) fn notify(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until `done` returns true; it is called after each `notify`.
    pub(crate) async fn until(&self, mut done: impl FnMut() -> bool) {
        std::future::poll_fn(|cx| {
            if done() {
                return std::task::Poll::Ready(());
            }
            {
                let mut wakers = self.wakers.lock();
                if !wakers.iter().any(|w| w.will_wake(cx.waker())) {
                    wakers.push(cx.waker().clone());
                }
            }
            if done() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await
    }
}
