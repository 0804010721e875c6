//! `DiskQueue`: how many bytes of file data one worker reads from one disk at a time.
//!
//! Owns: which reads may go to the disk now, in the order of their arrival. Does not own: writes, the log, and reads
//! below `SMALL_BYTES`, which do not wait here.
//!
//! A disk needs a few MiB of requests to be busy, and more does not make it faster. Requests that are sent together are
//! also answered together: a virtual disk reports finished requests only when it has nothing left to do. With 32 MiB it
//! reports nothing for 6 ms, and then everything within 50 us. Meanwhile no bytes are sent, and afterwards the disk is
//! idle while all of them are sent. If reads are divided into portions, one portion is on its way to the mount while
//! the disk reads the next. So reads of 1 to 16 MiB have 1.2 to 1.4 times the rate (docs/LESSONS.md, Large transfers).
//! Writes gain nothing by this, so they do not wait here.
//!
//! Invariants: reads are served in the order of arrival. One transfer may always be under way, however large. A `turn`
//! that is dropped has no further effect.

use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Transfers below this size neither wait nor count.
const SMALL_BYTES: u64 = 64 << 10;

/// The queue of one disk.
#[derive(Debug, Default)]
pub struct DiskQueue {
    most: Cell<u64>,
    busy: Cell<u64>,
    waiting: RefCell<VecDeque<(u64, oneshot::Sender<Turn>)>>,
}

/// Bytes of a read that is with the disk, until this is dropped.
#[derive(Debug)]
#[must_use = "dropping the turn ends it"]
pub struct Turn {
    queue: Option<Rc<DiskQueue>>,
    bytes: u64,
}

impl DiskQueue {
    /// Sets how many bytes of reads the disk may have at a time.
    pub fn tune(self: &Rc<Self>, most: u64) {
        self.most.set(most);
        self.admit();
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.busy.get() == 0 || self.busy.get().saturating_add(bytes) <= self.most.get()
    }

    fn enter(self: &Rc<Self>, bytes: u64) -> Turn {
        debug_assert!(self.has_room(bytes), "whoever enters has room");
        self.busy.set(self.busy.get() + bytes);
        Turn { queue: Some(self.clone()), bytes }
    }

    /// Waits until a read of `bytes` may go to the disk.
    pub async fn turn(self: &Rc<Self>, bytes: u64) -> Turn {
        if bytes < SMALL_BYTES {
            return Turn { queue: None, bytes };
        }
        let turn = if self.waiting.borrow().is_empty() && self.has_room(bytes) {
            return self.enter(bytes);
        } else {
            let (grant, turn) = oneshot::channel();
            self.waiting.borrow_mut().push_back((bytes, grant));
            turn
        };
        // The caller keeps the queue alive while it waits, and the queue serves every waiting read.
        turn.await.unwrap_or(Turn { queue: None, bytes })
    }

    fn admit(self: &Rc<Self>) {
        loop {
            let (bytes, grant) = {
                let mut waiting = self.waiting.borrow_mut();
                while waiting.front().is_some_and(|(_, grant)| grant.is_canceled()) {
                    waiting.pop_front();
                }
                match waiting.front() {
                    Some((bytes, _)) if self.has_room(*bytes) => {}
                    _ => return,
                }
                let Some(next) = waiting.pop_front() else { return };
                next
            };
            drop(grant.send(self.enter(bytes)));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            debug_assert!(queue.busy.get() >= self.bytes, "what leaves the disk was counted");
            queue.busy.set(queue.busy.get() - self.bytes);
            queue.admit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// Goal: turns are given in the order of arrival, as many as fit and at least one; small transfers do not wait; a
    /// dropped turn is skipped, whether it was granted or not. Method: the test requests and drops the turns itself.
    #[test]
    fn turns_come_in_order() {
        let queue = Rc::new(DiskQueue::default());
        let ask = |kib: u64| {
            Box::pin({
                let queue = queue.clone();
                async move { queue.turn(kib << 10).await }
            })
        };
        queue.tune(1 << 20);
        let huge = ask(4096).now_or_never().expect("one may always be with the disk");
        let (mut a, mut b, mut c) = (ask(512), ask(1024), ask(128));
        assert!(a.as_mut().now_or_never().is_none());
        assert!(b.as_mut().now_or_never().is_none());
        assert!(c.as_mut().now_or_never().is_none());
        let _small = ask(63).now_or_never().expect("small ones do not wait");
        drop(huge);
        let a = a.now_or_never().expect("the first");
        assert!(c.as_mut().now_or_never().is_none(), "there is room, but it came after another");
        drop(b);
        drop(a);
        let c = c.now_or_never().expect("who has gone away is passed over");
        assert_eq!(queue.busy.get(), 128 << 10);
        let mut d = ask(1024);
        assert!(d.as_mut().now_or_never().is_none());
        drop(c);
        assert_eq!(queue.busy.get(), 1 << 20, "granted");
        drop(d);
        assert_eq!(queue.busy.get(), 0, "granted and not taken");
        let (e, mut f) = (ask(1024).now_or_never().expect("room"), ask(1024));
        assert!(f.as_mut().now_or_never().is_none());
        queue.tune(2 << 20);
        let f = f.now_or_never().expect("a higher bound lets in who waits");
        drop((e, f));
        assert_eq!((queue.busy.get(), queue.waiting.borrow().len()), (0, 0));
    }
}
