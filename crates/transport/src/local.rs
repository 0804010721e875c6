//! Connections inside one thread: messages are passed on without encoding or copying.
//!
//! Owns: the dialer, the listener and the two queues of a connection. Does not own: handshake, credits and replies,
//! which are the same code as for sockets.
//!
//! Invariant: a queue contains at most `LOCAL_QUEUE_MAX` messages, and a sender waits for a free place. Both ends live
//! and die with one process, so a link over such a connection never reconnects.

use crate::bell::Bell;
use crate::pipe::Message;
use amphi_env::Buf;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Most messages in one direction of an in-process connection.
pub const LOCAL_QUEUE_MAX: usize = 256;
/// Most connections that wait to be accepted.
pub const LOCAL_BACKLOG_MAX: usize = 16;

#[derive(Default)]
struct Channel {
    queue: RefCell<VecDeque<(Message, Option<Buf>)>>,
    closed: Cell<bool>,
    bell: Bell,
}

/// The sending half. Dropping it ends the stream after the bytes that were sent.
pub(crate) struct LocalTx(Rc<Channel>);
/// The receiving half. Dropping it makes sends fail.
pub(crate) struct LocalRx(Rc<Channel>);

/// The other end of the connection is gone.
pub(crate) struct Gone;

impl LocalTx {
    pub(crate) async fn send(&mut self, message: Message, payload: Option<Buf>) -> Result<(), Gone> {
        let channel = &self.0;
        let room = || {
            let full = channel.queue.borrow().len() >= LOCAL_QUEUE_MAX;
            if channel.closed.get() { Some(Err(Gone)) } else { (!full).then_some(Ok(())) }
        };
        channel.bell.until(room).await?;
        channel.queue.borrow_mut().push_back((message, payload));
        channel.bell.ring();
        Ok(())
    }
}

impl LocalRx {
    /// Waits for the next message and returns the result of `look` for it; `None` at the end of the stream.
    pub(crate) async fn peek<T>(&mut self, look: impl Fn(&Message) -> T) -> Option<T> {
        let channel = &self.0;
        let next = || match channel.queue.borrow().front() {
            Some((message, _)) => Some(Some(look(message))),
            None => channel.closed.get().then_some(None),
        };
        channel.bell.until(next).await
    }

    /// Takes the next message.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(Message, Option<Buf>)> {
        let channel = &self.0;
        if channel.queue.borrow().len() == LOCAL_QUEUE_MAX {
            channel.bell.ring();
        }
        channel.queue.borrow_mut().pop_front()
    }
}

impl Drop for LocalTx {
    fn drop(&mut self) {
        self.0.closed.set(true);
        self.0.bell.ring();
    }
}

impl Drop for LocalRx {
    fn drop(&mut self) {
        self.0.closed.set(true);
        let dropped = std::mem::take(&mut *self.0.queue.borrow_mut());
        drop(dropped);
        self.0.bell.ring();
    }
}

pub(crate) type LocalConn = (LocalTx, LocalRx);

fn connection() -> (LocalConn, LocalConn) {
    let (there, back) = (Rc::<Channel>::default(), Rc::<Channel>::default());
    ((LocalTx(there.clone()), LocalRx(back.clone())), (LocalTx(back), LocalRx(there)))
}

#[derive(Default)]
struct Backlog {
    waiting: RefCell<VecDeque<LocalConn>>,
    closed: Cell<bool>,
    bell: Bell,
}

/// Makes connections to the listener of the same pair.
#[derive(Clone)]
pub struct LocalDialer(Rc<Backlog>);

/// Accepts the connections of its dialers, within the same thread.
pub struct LocalListener(Rc<Backlog>);

/// A dialer and the listener it reaches.
pub fn pair() -> (LocalDialer, LocalListener) {
    let backlog = Rc::<Backlog>::default();
    (LocalDialer(backlog.clone()), LocalListener(backlog))
}

impl LocalDialer {
    /// A new connection, unless the listener is gone or `LOCAL_BACKLOG_MAX` connections wait for it.
    pub(crate) fn dial(&self) -> Option<LocalConn> {
        let mut waiting = self.0.waiting.borrow_mut();
        if self.0.closed.get() || waiting.len() >= LOCAL_BACKLOG_MAX {
            return None;
        }
        let (near, far) = connection();
        waiting.push_back(far);
        drop(waiting);
        self.0.bell.ring();
        Some(near)
    }
}

impl LocalListener {
    pub(crate) async fn accept(&self) -> LocalConn {
        self.0.bell.until(|| self.0.waiting.borrow_mut().pop_front()).await
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        self.0.closed.set(true);
        let dropped = std::mem::take(&mut *self.0.waiting.borrow_mut());
        drop(dropped);
    }
}
