//! Connections of one thread as the handler addresses them, and what waits to be sent on each.

use super::{CONNECTIONS_MAX, PUSHES_MAX};
use crate::bell::{Bell, Cut, Ending};
use amphi_env::Buf;
use amphi_types::SessionId;
use amphi_wire::slots::Window;
use amphi_wire::{Answer, Push, RequestId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// A connection; never used twice within a process' `Connections`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// Where a reply goes. Plain data, so that it may travel to the worker that executes the request and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyRoute {
    /// The connection.
    pub conn: ConnId,
    /// The request.
    pub id: RequestId,
}

pub(crate) enum Outgoing {
    Reply { id: RequestId, answer: Answer, payload: Option<Buf> },
    Push(Push),
}

/// One connection after its handshake.
pub(crate) struct ConnState {
    pub(crate) id: ConnId,
    pub(crate) session: SessionId,
    /// Who, for log lines.
    pub(crate) name: String,
    pub(crate) window: RefCell<Window>,
    pub(crate) queue: RefCell<VecDeque<Outgoing>>,
    pushes: Cell<usize>,
    pub(crate) ping_due: Cell<bool>,
    pub(crate) pong_due: Cell<bool>,
    pub(crate) bye_due: Cell<bool>,
    /// Something arrived since the watcher looked.
    pub(crate) heard: Cell<bool>,
    /// Rings when there is something to send.
    pub(crate) bell: Bell,
    pub(crate) cut: Cut,
}

impl ConnState {
    pub(crate) fn new(id: ConnId, session: SessionId, name: String, window: Window) -> ConnState {
        ConnState {
            id,
            session,
            name,
            window: RefCell::new(window),
            queue: RefCell::default(),
            pushes: Cell::new(0),
            ping_due: Cell::new(false),
            pong_due: Cell::new(false),
            bye_due: Cell::new(false),
            heard: Cell::new(true),
            bell: Bell::default(),
            cut: Cut::default(),
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.queue.borrow().is_empty() || self.ping_due.get() || self.pong_due.get() || self.bye_due.get()
    }

    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    /// Takes what is sent next. A reply frees its slot here and not where it is queued: of a peer that does not read, no more
    /// replies wait than it has credits.
    pub(crate) fn next(&self) -> Option<Outgoing> {
        let next = self.queue.borrow_mut().pop_front();
        match &next {
            Some(Outgoing::Reply { id, .. }) => drop(self.window.borrow_mut().handle_sent(*id)),
            Some(Outgoing::Push(_)) => self.pushes.set(self.pushes.get() - 1),
            None => {}
        }
        next
    }
}

/// The connections of one thread. Several listeners of the thread share it.
#[derive(Default)]
pub struct Connections {
    map: RefCell<BTreeMap<ConnId, Rc<ConnState>>>,
    last: Cell<u64>,
    /// Connections whose handshake is not done.
    pub(crate) greeting: Cell<usize>,
}

impl Connections {
    /// No connections.
    pub fn new() -> Rc<Connections> {
        Rc::default()
    }

    /// Answers a request. False if its connection is gone: the reply is dropped, and a resend asks for it.
    /// A reply that does not fit a message is sent as `Overflow`.
    pub fn reply(&self, route: ReplyRoute, mut answer: Answer, mut payload: Option<Buf>) -> bool {
        let Some(conn) = self.get(route.conn) else { return false };
        if !conn.window.borrow_mut().handle_reply(route.id) {
            return false;
        }
        if payload.as_ref().is_some_and(|p| p.len() > amphi_types::limits::PAYLOAD_MAX) {
            answer.overflow();
            payload = None;
        }
        conn.queue.borrow_mut().push_back(Outgoing::Reply { id: route.id, answer, payload });
        conn.bell.ring();
        true
    }

    /// Sends a message unasked. False if the connection is gone.
    pub fn push(&self, conn: ConnId, push: Push) -> bool {
        let Some(conn) = self.get(conn) else { return false };
        if conn.pushes.get() >= PUSHES_MAX {
            conn.cut.cut(Ending::Violation(format!("it does not read: {PUSHES_MAX} pushes wait")));
            return false;
        }
        conn.pushes.set(conn.pushes.get() + 1);
        conn.queue.borrow_mut().push_back(Outgoing::Push(push));
        conn.bell.ring();
        true
    }

    /// Ends a connection, for instance of an evicted session. False if it is gone already.
    pub fn cut(&self, conn: ConnId, reason: &str) -> bool {
        let Some(conn) = self.get(conn) else { return false };
        conn.cut.cut(Ending::Lost(reason.to_owned()));
        true
    }

    /// Says `Bye` to every client after the replies that are queued; clients try to reconnect.
    pub fn shutdown(&self) {
        for conn in self.map.borrow().values() {
            conn.bye_due.set(true);
            conn.bell.ring();
        }
    }

    /// Connections that are up.
    pub fn count(&self) -> usize {
        self.map.borrow().len()
    }

    fn get(&self, conn: ConnId) -> Option<Rc<ConnState>> {
        self.map.borrow().get(&conn).cloned()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.count() + self.greeting.get() < CONNECTIONS_MAX
    }

    pub(crate) fn new_id(&self) -> ConnId {
        self.last.set(self.last.get() + 1);
        ConnId(self.last.get())
    }

    /// The connection that `session` has.
    pub(crate) fn of_session(&self, session: SessionId) -> Option<Rc<ConnState>> {
        self.map.borrow().values().find(|c| c.session == session).cloned()
    }

    pub(crate) fn insert(&self, conn: Rc<ConnState>) {
        self.map.borrow_mut().insert(conn.id, conn);
    }

    /// False if it was taken out before.
    pub(crate) fn remove(&self, conn: ConnId) -> bool {
        self.map.borrow_mut().remove(&conn).is_some()
    }
}
