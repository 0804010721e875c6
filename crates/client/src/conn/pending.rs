//! `Pending`: an operation under way, and `Interrupt`: how a signal ends the wait for one.
//!
//! Owns: waiting by a thread (poll, spin for a tunable time, park) or by a task (it is a future). Does not own: what
//! runs. If an operation is abandoned while it runs (interrupt, drop), the I/O half finishes it. So no lock, open or
//! half-sent request remains.
//!
//! The number that drove the design: waking a parked thread takes 30-60 us, and waking one that still polls takes 0.4
//! us.

use crate::api::Clock;
use crate::telemetry::calls::{self, Noted};
use amphi_env::real::Spin;
use amphi_types::{Errno, Result};
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// The parts of the mount that an operation under way needs.
pub(crate) trait Keeper: Send + Sync {
    /// The clock.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Returns how long a waiting thread polls before it sleeps.
    fn spin(&self) -> Duration;

    /// Finishes the operation on the I/O half, if nobody waits for it any more.
    fn keep(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);
}

type Running<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// An operation: done, or under way. It makes progress when it is polled, and in the background once it has been
/// dropped.
#[must_use = "an operation is waited for, or dropped to finish in the background"]
pub struct Pending<T: Send + 'static> {
    state: State<T>,
    lingered: bool,
}

enum State<T> {
    Ready(Result<T>),
    Running(Running<T>, Arc<dyn Keeper>),
    Taken,
}

impl<T: Send + 'static> Pending<T> {
    /// A finished operation.
    pub fn ready(result: Result<T>) -> Pending<T> {
        Pending { state: State::Ready(result), lingered: false }
    }

    /// Starts `run`, which continues until it has to wait for the first time.
    pub(crate) fn start<K: Keeper + 'static>(
        keeper: &Arc<K>,
        run: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Pending<T> {
        let mut run: Running<T> = match calls::current() {
            None => Box::pin(run),
            Some(_) => Box::pin(Noted::here(Box::pin(run))),
        };
        match run.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Pending::ready(result),
            Poll::Pending => Pending { state: State::Running(run, keeper.clone()), lingered: false },
        }
    }

    /// The result, if there is one already.
    pub fn try_take(&mut self) -> Option<Result<T>> {
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Ready(result) => Some(result),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Polls for `client.spin_us`, if no other thread needs the core, and returns the result if it arrives in this
    /// time. The function never sleeps, and no signal ends it. A `wait` after it does not poll again.
    pub fn linger(&mut self) -> Option<Result<T>> {
        let State::Running(_, keeper) = &self.state else { return self.try_take() };
        WAITED.set(true);
        let budget = keeper.spin();
        let parker = PARKER.with(Arc::clone);
        let waker = Waker::from(parker.clone());
        SPIN.with_borrow_mut(Spin::progress);
        loop {
            parker.notified.store(false, Ordering::SeqCst);
            if let Poll::Ready(result) = Pin::new(&mut *self).poll(&mut Context::from_waker(&waker)) {
                SPIN.with_borrow_mut(Spin::progress);
                return Some(result);
            }
            while !parker.notified.load(Ordering::SeqCst) {
                if !SPIN.with_borrow_mut(|spin| spin.turn(budget)) {
                    self.lingered = true;
                    return None;
                }
            }
        }
    }

    /// Blocks the calling thread until the operation is done.
    ///
    /// Errors: those of the operation; `Intr` once `interrupt` has fired: the operation then finishes in the
    /// background, and a file that it opened is closed again.
    pub fn wait(self, interrupt: Option<&Interrupt>) -> Result<T> {
        self.wait_for(interrupt, None).unwrap_or(Err(Errno::Canceled))
    }

    /// Works as `wait`, but not for longer than `most`: then the operation is returned, still under way.
    pub fn wait_for(
        mut self,
        interrupt: Option<&Interrupt>,
        most: Option<Duration>,
    ) -> std::result::Result<Result<T>, Pending<T>> {
        if let Some(result) = self.try_take() {
            return Ok(result);
        }
        let State::Running(_, keeper) = &self.state else { return Ok(Err(Errno::Canceled)) };
        let clock = keeper.clock();
        let until_ns = most.map(|most| clock.now_ns().saturating_add(most.as_nanos() as u64));
        WAITED.set(true);
        let budget = keeper.spin();
        let parker = PARKER.with(Arc::clone);
        parker.notified.store(false, Ordering::SeqCst);
        let waker = Waker::from(parker.clone());
        if let Some(interrupt) = interrupt {
            interrupt.watch(&waker);
        }
        loop {
            if let Poll::Ready(result) = Pin::new(&mut self).poll(&mut Context::from_waker(&waker)) {
                SPIN.with_borrow_mut(Spin::progress);
                return Ok(result);
            }
            if !std::mem::take(&mut self.lingered) {
                SPIN.with_borrow_mut(Spin::progress);
            }
            while !parker.notified.swap(false, Ordering::SeqCst) {
                if SPIN.with_borrow_mut(|spin| spin.turn(budget)) {
                    continue;
                }
                let Some(until_ns) = until_ns else {
                    std::thread::park();
                    continue;
                };
                let left_ns = until_ns.saturating_sub(clock.now_ns());
                if left_ns == 0 {
                    return Err(self);
                }
                std::thread::park_timeout(Duration::from_nanos(left_ns));
            }
            if interrupt.is_some_and(Interrupt::has_fired) {
                // The operation may have finished just now; then its result is returned.
                if let Poll::Ready(result) = Pin::new(&mut self).poll(&mut Context::from_waker(&waker)) {
                    return Ok(result);
                }
                return Ok(Err(Errno::Intr));
            }
        }
    }
}

impl<T: Send + 'static> Unpin for Pending<T> {}

impl<T: Send + 'static> Future for Pending<T> {
    type Output = Result<T>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        match &mut self.state {
            State::Running(run, _) => {
                let result = std::task::ready!(run.as_mut().poll(cx));
                self.state = State::Taken;
                Poll::Ready(result)
            }
            State::Ready(_) => Poll::Ready(self.try_take().unwrap_or(Err(Errno::Canceled))),
            State::Taken => Poll::Ready(Err(Errno::Canceled)),
        }
    }
}

impl<T: Send + 'static> Drop for Pending<T> {
    fn drop(&mut self) {
        if let State::Running(run, keeper) = std::mem::replace(&mut self.state, State::Taken) {
            keeper.keep(Box::pin(async move {
                let _ = run.await;
            }));
        }
    }
}

struct Parker {
    thread: Thread,
    notified: AtomicBool,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.notified.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Returns whether this thread has waited for another one since the last call of this function.
pub fn has_waited() -> bool {
    WAITED.replace(false)
}

thread_local! {
    static WAITED: Cell<bool> = const { Cell::new(false) };
    static SPIN: RefCell<Spin> = RefCell::new(Spin::new());
    static PARKER: Arc<Parker> =
        Arc::new(Parker { thread: std::thread::current(), notified: AtomicBool::new(false) });
}

/// Ends the wait for an operation from another thread. Fires at most once, and belongs to one request.
#[derive(Debug, Default)]
pub struct Interrupt {
    fired: AtomicBool,
    waiter: Mutex<Option<Waker>>,
}

impl Interrupt {
    /// An interrupt that has not fired.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// Ends the present and any later wait that is given this interrupt.
    pub fn fire(&self) {
        self.fired.store(true, Ordering::SeqCst);
        let waiter = self.waiter.lock().take();
        if let Some(waker) = waiter {
            waker.wake();
        }
    }

    /// Returns whether the interrupt has fired.
    pub fn has_fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }

    /// Wakes `waker` when it fires, or at once if it has fired. Only the waker that was registered last is woken.
    pub fn watch(&self, waker: &Waker) {
        *self.waiter.lock() = Some(waker.clone());
        if self.has_fired() {
            waker.wake_by_ref();
        }
    }
}
