//! Threads that take work from a queue until it is empty, or until one of the threads stops the others.
//!
//! Owns the queue, its end, and the first error that ends everything. Work may add work. Threads live only as long as
//! one call of `run`.

use crate::error::Error;
use crate::report::lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// It is set once, by the first error that ends the stage.
#[derive(Default)]
pub(crate) struct Stop {
    set: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Stop {
    /// Ends everything with this error, unless there is one already.
    pub(crate) fn with(&self, error: Error) {
        lock(&self.error).get_or_insert(error);
        self.set.store(true, Ordering::Release);
    }

    /// Returns whether to end.
    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// The error, if there is one.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.is_set() {
            return Ok(());
        }
        Err(lock(&self.error).clone().unwrap_or_else(|| Error::failed("the stage was stopped")))
    }
}

struct Waiting<T> {
    items: VecDeque<T>,
    /// Number of items on which threads work.
    active: usize,
}

/// Work that waits.
pub(crate) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    changed: Condvar,
}

impl<T> Queue<T> {
    /// Adds work that is done before what waits already.
    pub(crate) fn push_first(&self, item: T) {
        lock(&self.waiting).items.push_front(item);
        self.changed.notify_one();
    }

    /// The next item; none: everything is done.
    fn take(&self, stop: &Stop) -> Option<T> {
        let mut waiting = lock(&self.waiting);
        loop {
            if stop.is_set() {
                return None;
            }
            if let Some(item) = waiting.items.pop_front() {
                waiting.active += 1;
                return Some(item);
            }
            if waiting.active == 0 {
                return None;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.active -= 1;
        let is_last = waiting.active == 0 && waiting.items.is_empty();
        drop(waiting);
        if is_last {
            self.changed.notify_all();
        }
    }
}

/// An item on which a thread works. A panic ends the other threads too, so that none waits for its work.
struct Taken<'a, T> {
    queue: &'a Queue<T>,
    stop: &'a Stop,
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stop.with(Error::failed("a thread of the stage failed"));
        }
        self.queue.done();
        if self.stop.is_set() {
            self.queue.changed.notify_all();
        }
    }
}

/// Does `first` and the work that it creates with `threads` threads, each with a state of its own.
pub(crate) fn run<T: Send, S>(
    threads: usize,
    first: impl IntoIterator<Item = T>,
    stop: &Stop,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&Queue<T>, T, &mut S) + Sync,
) {
    let items: VecDeque<T> = first.into_iter().collect();
    if items.is_empty() {
        return;
    }
    let queue = Queue { waiting: Mutex::new(Waiting { items, active: 0 }), changed: Condvar::new() };
    let worker = || {
        let mut own = state();
        while let Some(item) = queue.take(stop) {
            let taken = Taken { queue: &queue, stop };
            work(&queue, item, &mut own);
            drop(taken);
        }
        queue.changed.notify_all();
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(worker);
        }
        worker();
    });
}

/// Indices that a thread takes at a time: single ones would wait for the counter where a step is one system call.
const STEP: usize = 16;

/// Calls `work` for each index below `count` with `threads` threads.
pub(crate) fn each(threads: usize, count: usize, stop: &Stop, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let worker = || {
        loop {
            let from = next.fetch_add(STEP, Ordering::Relaxed);
            if from >= count || stop.is_set() {
                return;
            }
            (from..(from + STEP).min(count)).for_each(&work);
        }
    };
    if count <= STEP || threads <= 1 {
        return worker();
    }
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(worker);
        }
        worker();
    });
}
