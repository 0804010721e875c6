//! The queue from callers to the I/O half.
//!
//! Bound: at most `QUEUE_MAX` calls; beyond, calls fail with `Again`. Threads that wait for their call are the natural
//! limit, so only a runaway caller of the asynchronous interface reaches it. Background tasks are bounded by what starts
//! them (bytes of write-back under way, read-ahead windows) and always get in: they finish what has begun.

use amphi_env::Buf;
use amphi_types::{Errno, Result};
use amphi_wire::{Answer, Call, Lane};
use futures_channel::oneshot;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most messages and tasks between the halves.
const QUEUE_MAX: usize = 1 << 16;

/// A request on its way to the I/O half.
pub(crate) struct Outgoing {
    pub(crate) lane: Lane,
    pub(crate) call: Call,
    pub(crate) payload: Option<Buf>,
    /// Where the payload of the reply shall lie, bytes after an aligned address.
    pub(crate) pad: usize,
    pub(crate) answer: oneshot::Sender<Result<(Answer, Option<Buf>)>>,
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

impl Queue {
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

    /// Refuses what comes from now on and drops what waits: its callers get `NotConnected`.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut items = self.items.lock();
            self.closed.store(true, Ordering::Release);
            std::mem::take(&mut *items)
        };
        drop(waiting);
    }
}
