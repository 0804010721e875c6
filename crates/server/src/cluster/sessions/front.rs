//! `Front`: the connections that one worker serves, and the information about sessions that requests on them need.
//!
//! Owns: passing a request of a mount from its connection to its target and the answer back, pushes to connections of
//! this worker, the messages between worker 0, which has the sessions, and workers with connections. Does not own:
//! which clients are admitted, how sessions begin and end (`SessionManager`, on worker 0), which requests are permitted
//! (`gate`, `trust`).
//!
//! Worker 0 accepts connections, executes the handshake and admits sessions. Then it passes the connection of a mount
//! to the worker that serves it, which reads, checks, executes, answers and pushes without involving worker 0. The
//! worker gets with the connection the objects that it needs for that: the owner of the session, and its gate. Worker 0
//! closes the gate for all workers at once (`Gate::close`) or replaces it (`Gate::replaced`). Each target itself knows
//! whether a session exists. Connections of servers and administrators, and connections inside the process, stay with
//! worker 0.
//!
//! Invariants: worker 0 registers a connection before the worker that gets it learns of it, and every message about it
//! uses the same queue. So each message concerns a connection that its receiver has or had. A connection that is given
//! up anywhere is reported to worker 0 once.

use super::executing::Executing;
use super::gate::{self, Gate};
use super::trust::{self, Owner};
use crate::coherence::glimpse;
use crate::dispatch;
use crate::message::{Message, TargetReply, TargetRequest};
use crate::session::reach::Terms;
use crate::worker::Worker;
use crate::worker::above::Clients;
use amphi_env::Env;
use amphi_sched::Lane;
use amphi_transport::{Alive, ConnId, Connections, Guest, Handler, Incoming, Parcel, Peer, ReplyRoute};
use amphi_types::{Cred, Errno, Result, SessionId, TargetId};
use amphi_wire::{Answer, Call, Hello, Lane as CallLane, Push, Request, RequestId, Role, Welcome};
use futures_channel::oneshot;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

/// Messages between worker 0 and the workers with connections.
pub(super) enum FrontMessage {
    /// From worker 0: take over and serve this connection.
    Adopt { parcel: Parcel, owner: Owner, gate: Option<Arc<Gate>> },
    /// From worker 0: send this message.
    Push { conn: ConnId, push: Push },
    /// From worker 0: end this connection.
    Cut { conn: ConnId, why: String },
    /// From worker 0: send goodbye on all connections.
    Shutdown,
    /// From worker 0: a query, which is answered by `Told`.
    Ask { token: u64, question: Question },
    /// To worker 0: the answer to a query.
    Told { token: u64, told: Told },
    /// To worker 0: a request about the whole server, which is answered by `Answered`.
    Request { token: u64, request: Box<WholeRequest> },
    /// From worker 0: the answer to such a request.
    Answered { token: u64, answer: Box<Answer> },
    /// To worker 0: a connection has ended. `clean` has the same meaning as in `Handler::disconnected`.
    Gone { session: SessionId, conn: ConnId, clean: bool },
    /// To worker 0: a message that needs an answer was sent to the client on this connection, so the client has to be
    /// observed.
    Watch { session: SessionId, conn: ConnId },
    /// To worker 0: the client's users were squashed in this many requests, which the audit log has to record.
    Squashed { conn: ConnId },
}

/// A query of worker 0 to a worker with connections.
pub(super) enum Question {
    /// Whether a request is being executed: one of this session, or any request.
    Executing(Option<SessionId>),
    /// Whether there is a connection.
    Connected,
    /// The message for `Connections::probe`.
    Probe(ConnId),
    /// Whether more such messages were sent to the client since the observation began. If not, the observation ends.
    AskedAgain(SessionId, ConnId),
    /// Whether the session has left a message of one of these targets unanswered since then, monotonic ns. The query
    /// uses the same queue as the session's answers, so it overtakes none of those that have arrived.
    Unanswered(SessionId, Vec<TargetId>, u64),
}

/// The answer to a `Question`.
pub(super) enum Told {
    Is(bool),
    Alive(Option<Alive>),
}

/// A request about the whole server that came by a connection of another worker.
pub(super) struct WholeRequest {
    pub(super) session: SessionId,
    pub(super) role: Role,
    pub(super) bound: Option<Arc<Cred>>,
    pub(super) conn: ConnId,
    pub(super) id: RequestId,
    pub(super) call: Call,
}

impl WholeRequest {
    /// The request as it arrived, except for its connection, because the answer refers to it only by its number.
    pub(super) fn incoming(self) -> Incoming {
        let WholeRequest { session, role, bound, conn, id, call } = self;
        let route = ReplyRoute { conn, id };
        let lane = CallLane::Urgent;
        Incoming { session, role, bound, link: 0, route, lane, deadline: None, call, payload: None }
    }
}

/// Returns whether worker 0 answers a request, whichever worker received it.
pub(super) fn is_whole(op: &Request) -> bool {
    matches!(
        op,
        Request::Map
            | Request::Goodbye
            | Request::Status
            | Request::Tunables { .. }
            | Request::Counters { .. }
            | Request::Keys { .. }
            | Request::Evict { .. }
            | Request::CompanyKnown { .. }
            | Request::CompanyKept { .. }
    )
}

/// Returns whether a client may send this request; the call then gets the user on whose behalf it is executed.
/// `squashed` is called if that is another user than the client sent.
///
/// Errors: `Perm`, `ReadOnly`, or `Io` if the client's key has been removed.
pub(super) fn may_ask(incoming: &mut Incoming, gate: Option<&Gate>, squashed: impl FnOnce(&Gate)) -> Result<()> {
    if gate::class_of(&incoming.call.op) == gate::Class::Internal {
        return Err(Errno::Perm);
    }
    let Some(gate) = gate else { return trust::may_ask(incoming) };
    trust::act_as_bound(incoming)?;
    let before = gate.squashed();
    let passed = gate.pass(incoming);
    if gate.squashed() != before {
        squashed(gate);
    }
    passed
}

/// Returns whether a message wants an answer.
pub(super) fn is_question(push: &Push) -> bool {
    matches!(push, Push::Callback { .. } | Push::Glimpse { .. } | Push::Revoke { .. } | Push::Company { .. })
}

/// A connection of a mount, on the worker that serves it.
struct Line {
    conn: ConnId,
    owner: Owner,
    /// Worker 0 observes whether the client answers; more messages were sent meanwhile.
    watched: Cell<bool>,
    asked_again: Cell<bool>,
}

/// Tasks that wait for worker 0, or on worker 0 for other workers.
#[derive(Default)]
struct Waiting {
    last: Cell<u64>,
    told: RefCell<BTreeMap<u64, oneshot::Sender<Told>>>,
    answers: RefCell<BTreeMap<u64, oneshot::Sender<Answer>>>,
}

impl Waiting {
    fn token(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }
}

/// The connections of one worker.
pub struct Front<E: Env> {
    pub(super) worker: Rc<Worker<E>>,
    pub(super) connections: Rc<Connections>,
    pub(super) executing: Executing,
    /// At workers other than 0: the gates of connections.
    gates: RefCell<BTreeMap<ConnId, Arc<Gate>>>,
    /// At workers other than 0: connections of mounts, by session and number.
    lines: RefCell<BTreeMap<(SessionId, u16), Line>>,
    /// At workers other than 0: connections whose end was not reported to worker 0 yet.
    coming: RefCell<BTreeMap<ConnId, Owner>>,
    waiting: Waiting,
}

impl<E: Env> Front<E> {
    /// The front of a worker that serves no connections yet.
    pub fn new(worker: Rc<Worker<E>>, connections: Rc<Connections>) -> Rc<Front<E>> {
        Rc::new(Front {
            worker,
            connections,
            executing: Executing::default(),
            gates: RefCell::default(),
            lines: RefCell::default(),
            coming: RefCell::default(),
            waiting: Waiting::default(),
        })
    }

    /// Says something to another worker's front.
    pub(super) fn tell(&self, to: usize, message: FrontMessage) {
        self.worker.send(to, Lane::Urgent, Message::Sessions(Box::new(message)));
    }

    /// Sends a query to a worker. Returns `None` if the worker ends before it answers.
    pub(super) async fn ask(self: &Rc<Self>, worker: usize, question: Question) -> Option<Told> {
        if worker == usize::from(self.worker.index) {
            return Some(self.answer(question).await);
        }
        let (sender, receiver) = oneshot::channel();
        let token = self.waiting.token();
        let before = self.waiting.told.borrow_mut().insert(token, sender);
        assert!(before.is_none(), "two questions to worker {worker} have the number {token}");
        self.tell(worker, FrontMessage::Ask { token, question });
        receiver.await.ok()
    }

    /// Returns whether a worker answers the query with yes.
    pub(super) async fn is(self: &Rc<Self>, worker: usize, question: Question) -> bool {
        matches!(self.ask(worker, question).await, Some(Told::Is(true)))
    }

    /// Returns whether any worker answers the query with yes.
    pub(super) async fn any(self: &Rc<Self>, question: impl Fn() -> Question) -> bool {
        for worker in 0..usize::from(self.worker.workers) {
            if self.is(worker, question()).await {
                return true;
            }
        }
        false
    }

    async fn answer(self: &Rc<Self>, question: Question) -> Told {
        match question {
            Question::Executing(Some(session)) => Told::Is(self.executing.has(session)),
            Question::Executing(None) => Told::Is(self.executing.count() > 0),
            Question::Connected => Told::Is(self.connections.count() > 0),
            Question::Probe(conn) => Told::Alive(self.connections.probe(conn).await),
            Question::AskedAgain(session, conn) => {
                let lines = self.lines.borrow();
                let line = lines.range((session, 0)..=(session, u16::MAX)).map(|(_, l)| l).find(|l| l.conn == conn);
                Told::Is(line.is_some_and(|line| {
                    let again = line.asked_again.replace(false);
                    line.watched.set(again);
                    again
                }))
            }
            Question::Unanswered(session, targets, since_ns) => {
                for target in targets {
                    let told = self.worker.ask(target, TargetRequest::Unanswered(session, since_ns)).await;
                    if matches!(told, Ok(TargetReply::Outcome(true))) {
                        return Told::Is(true);
                    }
                }
                Told::Is(false)
            }
        }
    }

    /// Executes a request that the gate has let pass, and answers it.
    pub(super) fn execute(self: &Rc<Self>, incoming: Incoming, gate: Option<Arc<Gate>>) {
        let tree = gate.as_ref().and_then(|gate| gate.tree());
        let gate = gate.filter(|gate| gate.translates());
        if incoming.deadline.is_none()
            && tree.is_none()
            && let Some(mut answer) = dispatch::at_once(&self.worker, incoming.session, &incoming.call)
        {
            if let Some(gate) = gate {
                gate.show(&mut answer, false);
            }
            self.connections.reply(incoming.route, answer, None);
            return;
        }
        self.executing.begin(Some(incoming.session));
        let until_ns = incoming.deadline.map(|d| self.worker.now_ns().saturating_add(d.as_nanos() as u64));
        let front = self.clone();
        let mut request = Box::pin(async move {
            let id = incoming.id();
            let Incoming { session, route, mut call, payload, .. } = incoming;
            if let Request::GlimpseReply { id, .. } = call.op {
                // The answer goes to the target that sent the query.
                call.target = glimpse::target_of(id);
            }
            let acl = gate.is_some() && Gate::asks_for_acl(&call.op);
            let terms = Terms { until_ns, tree };
            let (mut answer, payload) = dispatch::call(&front.worker, session, id, call, payload, terms).await;
            if let Some(gate) = gate {
                gate.show(&mut answer, acl);
            }
            front.connections.reply(route, answer, payload);
            front.executing.end(Some(session));
        });
        // A request that needs neither the disk nor another worker is answered here, without a task of its own.
        if request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.worker.env.spawn(request);
        }
    }

    /// The gate of a connection of a worker other than 0, as worker 0 last set it.
    fn gate(&self, conn: ConnId) -> Option<Arc<Gate>> {
        let mut gates = self.gates.borrow_mut();
        let gate = gates.get_mut(&conn)?;
        if let Some(latest) = gate.latest() {
            *gate = latest;
        }
        Some(gate.clone())
    }

    /// Called when a request has come to another worker than 0.
    fn call(self: Rc<Self>, mut incoming: Incoming) {
        let conn = incoming.route.conn;
        let gate = self.gate(conn);
        let squashed = |gate: &Gate| {
            if gate.is_noteworthy() {
                self.tell(0, FrontMessage::Squashed { conn });
            }
        };
        if let Err(e) = may_ask(&mut incoming, gate.as_deref(), squashed) {
            self.connections.reply(incoming.route, Answer::of(Err(e)), None);
        } else if is_whole(&incoming.call.op) {
            self.ask_about_server(incoming);
        } else if incoming.role != Role::Mount {
            // Connections of others stay with worker 0.
            self.connections.reply(incoming.route, Answer::of(Err(Errno::Perm)), None);
        } else {
            self.execute(incoming, gate);
        }
    }

    /// Lets worker 0 answer a request about the whole server.
    fn ask_about_server(self: &Rc<Self>, incoming: Incoming) {
        let Incoming { session, role, bound, route, call, .. } = incoming;
        let (sender, receiver) = oneshot::channel();
        let token = self.waiting.token();
        let before = self.waiting.answers.borrow_mut().insert(token, sender);
        assert!(before.is_none(), "two requests about the server have the number {token}");
        self.executing.begin(None);
        let request = Box::new(WholeRequest { session, role, bound, conn: route.conn, id: route.id, call });
        self.tell(0, FrontMessage::Request { token, request });
        let front = self.clone();
        self.worker.env.spawn(async move {
            let answer = receiver.await.unwrap_or_else(|_| Answer::of(Err(Errno::Io)));
            front.connections.reply(route, answer, None);
            front.executing.end(None);
        });
    }

    /// Pushes to a session that has a connection at this worker. If it has none, the message is returned.
    fn push_here(&self, session: SessionId, push: Push) -> std::result::Result<(), Push> {
        let lines = self.lines.borrow();
        let Some((_, line)) = lines.range((session, 0)..=(session, u16::MAX)).next() else { return Err(push) };
        if is_question(&push) && self.worker.tunables.deaf().is_some() {
            if line.watched.replace(true) {
                line.asked_again.set(true);
            } else {
                self.tell(0, FrontMessage::Watch { session, conn: line.conn });
            }
        }
        self.connections.push(line.conn, trust::as_told(line.owner, push));
        Ok(())
    }

    fn adopt(self: Rc<Self>, parcel: Parcel, owner: Owner, gate: Option<Arc<Gate>>) {
        let conn = parcel.conn();
        if let Some(gate) = gate {
            self.gates.borrow_mut().insert(conn, gate);
        }
        self.coming.borrow_mut().insert(conn, owner);
        let handler = Rc::new(FrontHandler(self.clone()));
        amphi_transport::adopt(&self.worker.env, parcel, handler, self.connections.clone());
    }

    fn connected(&self, guest: Guest) {
        let Guest { session, link, conn, .. } = guest;
        let Some(owner) = self.coming.borrow_mut().remove(&conn) else { return };
        let line = Line { conn, owner, watched: Cell::new(false), asked_again: Cell::new(false) };
        self.lines.borrow_mut().insert((session, link), line);
    }

    fn disconnected(&self, session: SessionId, conn: ConnId, clean: bool) {
        self.gates.borrow_mut().remove(&conn);
        self.lines.borrow_mut().retain(|(s, _), line| *s != session || line.conn != conn);
        self.tell(0, FrontMessage::Gone { session, conn, clean });
    }
}

impl<E: Env> Clients for Front<E> {
    fn push(self: Rc<Self>, session: SessionId, push: Push) {
        if let Err(push) = self.push_here(session, push) {
            self.worker.send(0, Lane::Urgent, Message::Push { session, push });
        }
    }

    fn evict(self: Rc<Self>, session: SessionId, _why: &str) {
        self.worker.send(0, Lane::Urgent, Message::Overdue { session });
    }

    fn take(self: Rc<Self>, from: usize, message: Box<dyn Any + Send>) {
        let Ok(message) = message.downcast::<FrontMessage>() else { return };
        match *message {
            FrontMessage::Adopt { parcel, owner, gate } => self.adopt(parcel, owner, gate),
            FrontMessage::Push { conn, push } => drop(self.connections.push(conn, push)),
            FrontMessage::Cut { conn, why } => drop(self.connections.cut(conn, &why)),
            FrontMessage::Shutdown => self.connections.shutdown(),
            FrontMessage::Ask { token, question } => {
                self.worker.env.clone().spawn(async move {
                    let told = self.answer(question).await;
                    self.tell(from, FrontMessage::Told { token, told });
                });
            }
            FrontMessage::Told { token, told } => {
                if let Some(waiter) = self.waiting.told.borrow_mut().remove(&token) {
                    drop(waiter.send(told));
                }
            }
            FrontMessage::Answered { token, answer } => {
                if let Some(waiter) = self.waiting.answers.borrow_mut().remove(&token) {
                    drop(waiter.send(*answer));
                }
            }
            FrontMessage::Request { .. }
            | FrontMessage::Gone { .. }
            | FrontMessage::Watch { .. }
            | FrontMessage::Squashed { .. } => debug_assert!(false, "worker 0 alone has the sessions"),
        }
    }
}

/// A `Front` of another worker than 0, as the transport calls it.
struct FrontHandler<E: Env>(Rc<Front<E>>);

impl<E: Env> Handler for FrontHandler<E> {
    async fn hello(&self, _: &Hello, _: &Peer) -> std::result::Result<Welcome, String> {
        Err("this worker lets nobody in".into())
    }

    fn connected(&self, guest: Guest, _: &Peer) {
        self.0.connected(guest);
    }

    fn call(self: Rc<Self>, request: Incoming) {
        self.0.clone().call(request);
    }

    fn disconnected(&self, session: SessionId, conn: ConnId, clean: bool) {
        self.0.disconnected(session, conn, clean);
    }
}
