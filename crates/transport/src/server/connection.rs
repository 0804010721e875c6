//! `Connections`: the connections of one thread, as the handler addresses them, and what waits to be sent on each.
//!
//! Owns: these connections and their queues. Does not own: reading and writing them (`accept`).

use super::budget::Budget;
use super::{CONNECTIONS_MAX, GREETINGS_MAX, PUSHES_MAX};
use crate::bell::{Bell, Cut, Ending};
use amphi_env::Buf;
use amphi_types::{Cred, SessionId};
use amphi_wire::slots::Window;
use amphi_wire::{Answer, Push, RequestId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

/// Id of a connection, never used twice within the `Connections` of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// The connection through which a reply is sent. It is plain data, so it can be passed to the worker that executes the
/// request, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyRoute {
    /// The connection.
    pub conn: ConnId,
    /// The request.
    pub id: RequestId,
}

#[expect(clippy::large_enum_variant, reason = "nearly all are replies: a box would cost each an allocation")]
pub(crate) enum Outgoing {
    Reply { id: RequestId, answer: Answer, payload: Option<Buf> },
    Push(Push),
}

/// The pings of one connection.
#[derive(Default)]
struct Pings {
    /// A `Ping` is on its way.
    open: Cell<bool>,
    sent: Cell<u64>,
    answered: Cell<u64>,
    /// When the last `Ping` was sent, nothing else waited to be sent.
    behind_all: Cell<bool>,
    bell: Bell,
}

/// The result of an answer to a `Ping` (`Connections::probe`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alive {
    /// Everything that was pushed before the call was sent before the `Ping`, so the client has read it.
    pub has_read_all: bool,
}

/// One connection after its handshake.
pub(crate) struct ConnState {
    pub(crate) id: ConnId,
    pub(crate) session: SessionId,
    /// Which of the session's connections it is.
    pub(crate) link: u16,
    /// The user as whom its client may act.
    pub(crate) bound: Option<Arc<Cred>>,
    /// The client's name, for log lines.
    pub(crate) name: String,
    pub(crate) window: RefCell<Window>,
    pub(crate) queue: RefCell<VecDeque<Outgoing>>,
    pushes: Cell<usize>,
    pub(crate) ping_due: Cell<bool>,
    pings: Pings,
    pub(crate) pong_due: Cell<bool>,
    pub(crate) bye_due: Cell<bool>,
    /// A message has arrived since the watcher last checked.
    pub(crate) heard: Cell<bool>,
    /// Rings when there is something to send.
    pub(crate) bell: Bell,
    pub(crate) cut: Cut,
}

impl ConnState {
    pub(crate) fn new(
        id: ConnId,
        (session, link): (SessionId, u16),
        bound: Option<Arc<Cred>>,
        name: String,
        window: Window,
    ) -> ConnState {
        ConnState {
            id,
            session,
            link,
            bound,
            name,
            window: RefCell::new(window),
            queue: RefCell::default(),
            pushes: Cell::new(0),
            ping_due: Cell::new(false),
            pings: Pings::default(),
            pong_due: Cell::new(false),
            bye_due: Cell::new(false),
            heard: Cell::new(true),
            bell: Bell::default(),
            cut: Cut::default(),
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        let ping = self.ping_due.get() && !self.pings.open.get();
        !self.queue.borrow().is_empty() || ping || self.pong_due.get() || self.bye_due.get()
    }

    /// Returns whether a `Ping` has to be sent now. Only one is under way at a time, so an answer belongs to the last
    /// one.
    pub(crate) fn take_ping(&self) -> bool {
        if self.pings.open.get() || !self.ping_due.replace(false) {
            return false;
        }
        self.pings.open.set(true);
        self.pings.sent.set(self.pings.sent.get() + 1);
        self.pings.behind_all.set(self.queue.borrow().is_empty());
        true
    }

    /// A `Pong` has arrived.
    pub(crate) fn pong(&self) {
        if self.pings.open.replace(false) {
            self.pings.answered.set(self.pings.sent.get());
            self.pings.bell.ring();
            if self.ping_due.get() {
                self.bell.ring();
            }
        }
    }

    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    /// Takes the message that is sent next. A reply frees its slot here, not when it is queued. So if a peer does not
    /// read, no more replies wait than it has credits.
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

/// A connection in the handshake.
pub(crate) struct Greeting {
    connections: Rc<Connections>,
    number: u64,
    /// Ends the connection.
    pub(crate) cut: Rc<Cut>,
}

impl Drop for Greeting {
    fn drop(&mut self) {
        self.connections.greetings.borrow_mut().retain(|(number, _)| *number != self.number);
    }
}

/// The connections of one thread, shared by all its listeners. Ids come from the thread that accepts.
#[derive(Default)]
pub struct Connections {
    map: RefCell<BTreeMap<ConnId, Rc<ConnState>>>,
    last: Cell<u64>,
    /// Connections that were accepted here and are served by other threads.
    away: Cell<usize>,
    /// How to end the connections in the handshake, the oldest first.
    greetings: RefCell<VecDeque<(u64, Rc<Cut>)>>,
    /// Memory of payloads on their way.
    pub(crate) budget: Budget,
}

impl Connections {
    /// A set without connections.
    pub fn new() -> Rc<Connections> {
        Rc::default()
    }

    /// A set without connections for one of this many threads of a server, which divide the budget of payloads.
    pub fn of_one_of(threads: usize) -> Rc<Connections> {
        Rc::new(Connections { budget: Budget::of_one_of(threads), ..Connections::default() })
    }

    /// Answers a request. Returns false if its connection is gone: the reply is dropped, and a repeated request gets
    /// it. A reply that does not fit into a message is sent as `Overflow`.
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

    /// Sends a push. False if the connection is gone.
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

    /// Ends a connection, for instance of an evicted session. Returns false if it is gone already.
    pub fn cut(&self, conn: ConnId, reason: &str) -> bool {
        let Some(conn) = self.get(conn) else { return false };
        conn.cut.cut(Ending::Lost(reason.to_owned()));
        true
    }

    /// Sends `Bye` to every client after the replies that are queued. Clients then try to reconnect.
    pub fn shutdown(&self) {
        for conn in self.map.borrow().values() {
            conn.bye_due.set(true);
            conn.bell.ring();
        }
    }

    /// Sends the client a `Ping`. Returns when the client has answered a `Ping` that was sent after this call; `None`
    /// if the connection ends before. The stream keeps its order. So everything that the client sent before it read the
    /// `Ping` has been passed to the `Handler` by then.
    pub async fn probe(&self, conn: ConnId) -> Option<Alive> {
        let conn = self.get(conn)?;
        let wanted = conn.pings.sent.get() + 1;
        conn.ping_due.set(true);
        conn.bell.ring();
        let answered = conn.pings.bell.until(|| (conn.pings.answered.get() >= wanted).then_some(()));
        conn.cut.guard(answered).await?;
        Some(Alive { has_read_all: conn.pings.behind_all.get() })
    }

    /// Number of connections after their handshake.
    pub fn count(&self) -> usize {
        self.map.borrow().len()
    }

    /// Returns whether the connection exists.
    pub fn has(&self, conn: ConnId) -> bool {
        self.map.borrow().contains_key(&conn)
    }

    /// Returns whether more than half of `CONNECTIONS_MAX` is left: connections that are useful but not necessary are
    /// opened only then.
    pub fn is_roomy(&self) -> bool {
        2 * self.all() < CONNECTIONS_MAX
    }

    /// A connection that was accepted here and served by another thread has ended.
    pub fn came_back(&self) {
        debug_assert!(self.away.get() > 0, "what comes back has gone");
        self.away.set(self.away.get().saturating_sub(1));
    }

    /// A connection goes to another thread.
    pub(crate) fn goes_away(&self) {
        self.away.set(self.away.get() + 1);
    }

    /// Connections that were accepted here and have not ended.
    fn all(&self) -> usize {
        self.count() + self.greeting() + self.away.get()
    }

    fn get(&self, conn: ConnId) -> Option<Rc<ConnState>> {
        self.map.borrow().get(&conn).cloned()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.all() < CONNECTIONS_MAX
    }

    /// Number of connections in their handshake.
    pub(crate) fn greeting(&self) -> usize {
        self.greetings.borrow().len()
    }

    /// A connection enters the handshake, which is over when the returned value is dropped.
    pub(crate) fn greet(self: &Rc<Self>) -> Greeting {
        let mut greetings = self.greetings.borrow_mut();
        if greetings.len() >= GREETINGS_MAX
            && let Some((_, oldest)) = greetings.pop_front()
        {
            oldest.cut(Ending::Lost(format!("more than {GREETINGS_MAX} others came while it said nothing")));
        }
        let (number, cut) = (self.new_id().0, Rc::<Cut>::default());
        greetings.push_back((number, cut.clone()));
        Greeting { connections: self.clone(), number, cut }
    }

    pub(crate) fn new_id(&self) -> ConnId {
        self.last.set(self.last.get() + 1);
        ConnId(self.last.get())
    }

    /// The connection of `session` with this number.
    pub(crate) fn of_session(&self, session: SessionId, link: u16) -> Option<Rc<ConnState>> {
        self.map.borrow().values().find(|c| (c.session, c.link) == (session, link)).cloned()
    }

    pub(crate) fn insert(&self, conn: Rc<ConnState>) {
        self.map.borrow_mut().insert(conn.id, conn);
    }

    /// Removes a connection. Returns false if it was removed before.
    pub(crate) fn remove(&self, conn: ConnId) -> bool {
        self.map.borrow_mut().remove(&conn).is_some()
    }
}
