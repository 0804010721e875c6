//! The queue from callers to the I/O half.
//!
//! Bound: at most `QUEUE_MAX` calls; further calls fail with `Again`. The number of waiting threads is the natural
//! limit, so only a faulty caller of the asynchronous interface reaches this bound. Background tasks are bounded by
//! what starts them (bytes of write-back under way, read-ahead windows) and are always accepted, because they finish
//! what has begun.
//!
//! A call made on the I/O half's own thread, by one of its tasks, bypasses the queue if the queue is empty. The call is
//! passed to the connection at once (`Shortcut`), which saves one turn of a task, 0.3 us. Calls in the queue keep their
//! order.

use amphi_env::Buf;
use amphi_types::{Errno, Result};
use amphi_wire::{Answer, Call, Lane};
use futures_channel::oneshot;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Most messages and tasks between the halves.
const QUEUE_MAX: usize = 1 << 16;

/// A request on its way to the I/O half.
pub(crate) struct Outgoing {
    pub(crate) lane: Lane,
    pub(crate) call: Call,
    pub(crate) payload: Option<Buf>,
    /// The place for the payload of the reply, as a number of bytes after an aligned address.
    pub(crate) pad: usize,
    pub(crate) answer: oneshot::Sender<Result<(Answer, Option<Buf>)>>,
    /// The call fails with `TimedOut` after this time.
    pub(crate) deadline: Option<Duration>,
    /// The call is not given up even if the server cannot be reached for a long time.
    pub(crate) insist: bool,
}

/// A background task.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

#[expect(clippy::large_enum_variant, reason = "boxing a call would cost an allocation for each request")]
pub(crate) enum Item {
    Call(Outgoing),
    Task(Task),
}

/// Messages from callers to the I/O half.
#[derive(Default)]
pub(crate) struct Queue {
    items: Mutex<VecDeque<Item>>,
    pub(crate) waker: AtomicWaker,
    closed: AtomicBool,
}

type Direct = Rc<dyn Fn(Outgoing)>;

thread_local! {
    /// Queues whose I/O half runs on this thread, by address, and how it sends.
    static HERE: RefCell<Vec<(*const Queue, Direct)>> = const { RefCell::new(Vec::new()) };
}

/// While this value lives, calls made on this thread are sent at once if nothing is queued.
pub(crate) struct Shortcut<'a>(&'a Queue);

impl Drop for Shortcut<'_> {
    fn drop(&mut self) {
        let ended = HERE.with_borrow_mut(|here| {
            here.iter().position(|(queue, _)| std::ptr::eq(*queue, self.0)).map(|at| here.swap_remove(at))
        });
        drop(ended);
    }
}

impl Queue {
    /// Lets calls made on this thread go to `send`, which must not call the client.
    pub(crate) fn shortcut(&self, send: impl Fn(Outgoing) + 'static) -> Shortcut<'_> {
        HERE.with_borrow_mut(|here| here.push((std::ptr::from_ref(self), Rc::new(send))));
        Shortcut(self)
    }

    /// Sends a call: at once on the I/O half's thread, otherwise through the queue.
    pub(crate) fn push_call(&self, out: Outgoing) -> Result<()> {
        let direct = HERE.with_borrow(|here| {
            let mine = here.iter().find(|(queue, _)| std::ptr::eq(*queue, self));
            mine.filter(|_| self.is_empty()).map(|(_, send)| send.clone())
        });
        match direct {
            Some(send) => {
                send(out);
                Ok(())
            }
            None => self.push(Item::Call(out)),
        }
    }

    pub(crate) fn push(&self, item: Item) -> Result<()> {
        let mut items = self.items.lock();
        if self.closed.load(Ordering::Acquire) {
            return Err(Errno::NotConnected);
        }
        if items.len() >= QUEUE_MAX && matches!(item, Item::Call(_)) {
            return Err(Errno::Again);
        }
        items.push_back(item);
        drop(items);
        self.waker.wake();
        Ok(())
    }

    pub(crate) fn pop(&self) -> Option<Item> {
        self.items.lock().pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.lock().is_empty()
    }

    /// Refuses calls from now on and drops waiting ones, whose callers get `NotConnected`.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut items = self.items.lock();
            self.closed.store(true, Ordering::Release);
            std::mem::take(&mut *items)
        };
        drop(waiting);
    }
}
