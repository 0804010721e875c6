//! Wakes a receiver that sleeps, and costs a sender nothing for one that does not.
//!
//! Invariant: no wake-up is lost. A receiver announces its sleep and then checks the ring again; a sender pushes a
//! message and then checks whether the receiver sleeps. Both have a sequentially consistent fence between the two
//! actions, so at least one of them sees the other. `loom` tries every interleaving of it and every value that the
//! memory model lets a load return (`cargo test -p amphi-sched --features loom bell`).

#[cfg(not(feature = "loom"))]
use futures_util::task::AtomicWaker;
#[cfg(feature = "loom")]
use loom::future::AtomicWaker;
#[cfg(feature = "loom")]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(feature = "loom"))]
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll};

/// Wakes one receiver. The bell has cache lines of its own, because senders read it for each message.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Bell {
    sleeps: AtomicBool,
    waker: AtomicWaker,
}

impl Bell {
    /// Called when an item for the receiver has been pushed: wakes it if it sleeps.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// The result of `look`, or a sleep that the next `ring` ends. Only one task may wait.
    pub(crate) fn wait<T>(&self, cx: &mut Context<'_>, mut look: impl FnMut() -> Option<T>) -> Poll<T> {
        #[cfg(feature = "loom")]
        self.waker.register(cx.waker().clone());
        #[cfg(not(feature = "loom"))]
        self.waker.register(cx.waker());
        self.sleeps.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        match look() {
            Some(found) => {
                self.sleeps.store(false, Ordering::Relaxed);
                Poll::Ready(found)
            }
            None => Poll::Pending,
        }
    }
}

#[cfg(all(test, feature = "loom"))]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    /// Whether the receiver was woken. This is not one of loom's atomics, because it is read when all senders have
    /// ended.
    #[derive(Default)]
    struct Woken(std::sync::atomic::AtomicBool);

    impl Wake for Woken {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    type Wait = fn(&Bell, &mut Context<'_>, &AtomicUsize) -> Poll<usize>;

    /// Fails if a receiver sleeps on when every sender has pushed.
    fn model(senders: usize, wait: Wait) {
        let mut builder = loom::model::Builder::new();
        // All interleavings of three threads take minutes; those with two involuntary switches, a second.
        builder.preemption_bound = (senders > 1).then_some(2);
        builder.check(move || {
            let both = Arc::new((Bell::default(), AtomicUsize::new(0)));
            let threads: Vec<_> = (0..senders)
                .map(|_| {
                    let both = both.clone();
                    loom::thread::spawn(move || {
                        both.1.fetch_add(1, Ordering::Release);
                        both.0.ring();
                    })
                })
                .collect();
            let woken = std::sync::Arc::<Woken>::default();
            let waker = Waker::from(woken.clone());
            let found = wait(&both.0, &mut Context::from_waker(&waker), &both.1);
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(found.is_ready() || woken.0.load(Ordering::SeqCst), "it sleeps, and messages wait");
        });
    }

    fn some(count: &AtomicUsize) -> Option<usize> {
        Some(count.load(Ordering::Acquire)).filter(|&n| n > 0)
    }

    /// Goal: a message is seen, whenever it is pushed. Method: every interleaving of a receiver with one and two
    /// senders.
    #[test]
    fn no_wake_up_is_lost() {
        for senders in [1, 2] {
            model(senders, |bell, cx, count| bell.wait(cx, || some(count)));
        }
    }

    /// Goal: the test above can fail. Method: as a planted mistake, a receiver announces its sleep after its last check
    /// of the ring.
    #[test]
    #[should_panic(expected = "it sleeps, and messages wait")]
    fn a_late_announcement_is_found() {
        model(1, |bell, cx, count| match some(count) {
            Some(n) => Poll::Ready(n),
            None => bell.wait(cx, || None),
        });
    }
}
