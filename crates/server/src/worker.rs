//! `Worker`: routes requests and questions to targets, here or at another worker.
//!
//! Owns: the targets of one thread, the sending half of the mesh, and tasks that wait for answers. Does not own:
//! incoming messages (`dispatch`), connections and sessions (`cluster::sessions`), the operations (`ops`); it gets
//! interfaces to those at the start (`above`).
//!
//! Invariants: only its own worker uses a target's state. The mesh is always drained, because a message never waits for
//! anything but becomes a task. A message that finds its ring full waits in a queue that the credits of the sessions
//! bound.

pub(crate) mod above;
pub(crate) mod request;
pub(crate) mod routes;

use crate::coherence::locks::Locks;
use crate::coherence::tokens::Tokens;
use crate::config::SharedConfig;
use crate::counters::{Counters, add};
use crate::error::ServerError;
use crate::message::{Message, TargetReply, TargetRequest};
use crate::session::reach::Terms;
use crate::tunables::SharedTunables;
use crate::turns::{Turn, Turns};
use crate::worker::above::{Above, AnswerTarget, Clients, Peers};
use crate::worker::routes::SharedRoutes;
use crate::zone_target::Target;
use amphi_env::{Buf, Env};
use amphi_sched::{Lane, MeshTx, SendError};
use amphi_types::{Errno, Result, SessionId, TargetId};
use amphi_wire::{Answer, Call, Push, Request, RequestId};
use futures_channel::oneshot;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Number of messages in a ring between two of a few workers, the least number, and the number in all rings to one
/// worker. A message that finds its ring full waits in a queue, which the credits of the sessions bound.
const RING_MESSAGES: usize = 1024;
const RING_MESSAGES_MIN: usize = 64;
const RINGS_MESSAGES: usize = 2048;
/// How long a message that found its ring full waits before it is tried again.
const RETRY_FULL: Duration = Duration::from_micros(50);
/// Most operations over several servers that a server coordinates at the same time. Each waits in at most one slot of a
/// link.
const OPERATIONS_MAX: usize = 256;
/// Pause before another server that could not be reached is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The answer to a client's request, with its payload.
pub type Called = (Answer, Option<Buf>);

/// The state of one worker.
pub struct Worker<E: Env> {
    /// The environment of the worker.
    pub env: E,
    /// The server's configuration.
    pub config: SharedConfig,
    /// The server's tunables.
    pub tunables: SharedTunables,
    /// The counters of the worker.
    pub counters: Rc<Counters>,
    /// The number of the worker.
    pub index: u16,
    /// Number of workers.
    pub workers: u16,
    /// Which targets are where.
    pub routes: SharedRoutes,
    targets: RefCell<BTreeMap<TargetId, Rc<Target<E>>>>,
    /// The reason why not all targets could be opened.
    failure: Option<ServerError>,
    above: Above<E>,
    mesh: MeshTx<Message>,
    /// Messages that found the ring to their worker full.
    full: RefCell<VecDeque<(usize, Lane, Message)>>,
    turns: Turns,
    stopped: Cell<bool>,
    waiters: Waiters,
}

/// Tasks that wait for the answer of another worker, by token.
#[derive(Default)]
struct Waiters {
    last: Cell<u64>,
    calls: RefCell<BTreeMap<u64, oneshot::Sender<Called>>>,
    asks: RefCell<BTreeMap<u64, oneshot::Sender<Result<TargetReply>>>>,
}

impl Waiters {
    fn token(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }
}

/// Messages that a ring holds between two of this many workers: all rings of 16 workers take 8 MiB.
pub const fn ring_messages(workers: usize) -> usize {
    let share = RINGS_MESSAGES / if workers == 0 { 1 } else { workers };
    if share > RING_MESSAGES {
        RING_MESSAGES
    } else if share < RING_MESSAGES_MIN {
        RING_MESSAGES_MIN
    } else {
        share
    }
}

impl<E: Env> Worker<E> {
    /// A worker with its targets, or with those that it could open before the failure.
    #[expect(clippy::too_many_arguments, reason = "made in one place from parts of different origin")]
    pub fn new(
        env: E,
        config: SharedConfig,
        tunables: SharedTunables,
        counters: Rc<Counters>,
        mesh: MeshTx<Message>,
        routes: SharedRoutes,
        targets: BTreeMap<TargetId, Rc<Target<E>>>,
        failure: Option<ServerError>,
        answer: AnswerTarget<E>,
    ) -> Rc<Worker<E>> {
        let turns = Turns::new(OPERATIONS_MAX / mesh.workers().max(1));
        let worker = Rc::new(Worker {
            env,
            config,
            tunables,
            counters,
            index: mesh.id() as u16,
            workers: mesh.workers() as u16,
            routes,
            targets: RefCell::new(targets),
            failure,
            above: Above { answer, clients: RefCell::default(), peers: RefCell::default() },
            mesh,
            full: RefCell::default(),
            turns,
            stopped: Cell::new(false),
            waiters: Waiters::default(),
        });
        worker.hear_of_failed_flushes();
        worker
    }

    /// Informs the mounts that wrote bytes which a target of this worker cannot flush.
    fn hear_of_failed_flushes(self: &Rc<Self>) {
        for target in self.targets.borrow().values() {
            let (worker, target_id) = (Rc::downgrade(self), target.id);
            target.storage.write_back.writers.tell_by(move |session, id, ino| {
                if let Some(worker) = worker.upgrade() {
                    worker.push(session, Push::WriteFailed { target: target_id, id, ino });
                }
            });
        }
    }

    /// Sets the interface to the connections of this worker.
    pub fn set_clients(&self, clients: Weak<dyn Clients>) {
        *self.above.clients.borrow_mut() = Some(clients);
    }

    /// Sets worker 0's interface to the other servers.
    pub fn set_peers(&self, peers: Weak<dyn Peers>) {
        *self.above.peers.borrow_mut() = Some(peers);
    }

    /// Number of targets of the cluster.
    pub fn pool(&self) -> u16 {
        self.routes.pool()
    }

    /// The first target of this worker.
    pub fn first_target(&self) -> Option<TargetId> {
        self.targets.borrow().keys().next().copied()
    }

    /// Lets go of a target that is closed.
    pub fn drop_target(&self, target: TargetId) {
        let dropped = self.targets.borrow_mut().remove(&target);
        drop(dropped);
    }

    /// A target of this worker.
    pub fn target(&self, target: TargetId) -> Option<Rc<Target<E>>> {
        self.targets.borrow().get(&target).cloned()
    }

    /// Monotonic time in ns.
    pub fn now_ns(&self) -> u64 {
        self.env.now().0
    }

    /// Sends a message to another worker. If its ring is full, the message is sent later, in the order of its lane.
    pub fn send(self: &Rc<Self>, to: usize, lane: Lane, message: Message) {
        assert!(to < usize::from(self.workers), "a message to worker {to} of {}", self.workers);
        let waits = self.full.borrow().iter().any(|(t, l, _)| (*t, *l) == (to, lane));
        let message = if waits {
            message
        } else {
            match self.mesh.try_send(to, lane, message) {
                // If a worker is gone, it has been stopped, and waiting tasks are dropped with it.
                Ok(()) | Err(SendError::Gone(_)) => return,
                Err(SendError::Full(message)) => message,
            }
        };
        let first = self.full.borrow().is_empty();
        self.full.borrow_mut().push_back((to, lane, message));
        if first {
            let (worker, env) = (self.clone(), self.env.clone());
            self.env.spawn(async move {
                while !worker.full.borrow().is_empty() {
                    env.sleep(RETRY_FULL).await;
                    worker.retry_full();
                }
            });
        }
    }

    fn retry_full(&self) {
        let mut blocked = Vec::new();
        let mut still = VecDeque::new();
        for (to, lane, message) in std::mem::take(&mut *self.full.borrow_mut()) {
            if blocked.contains(&(to, lane)) {
                still.push_back((to, lane, message));
                continue;
            }
            if let Err(SendError::Full(message)) = self.mesh.try_send(to, lane, message) {
                blocked.push((to, lane));
                still.push_back((to, lane, message));
            }
        }
        *self.full.borrow_mut() = still;
    }

    /// An answer that another worker has sent back.
    pub fn called(&self, token: u64, answer: Answer, payload: Option<Buf>) {
        if let Some(waiter) = self.waiters.calls.borrow_mut().remove(&token) {
            drop(waiter.send((answer, payload)));
        }
    }

    /// A reply that another worker has sent back.
    pub fn told(&self, token: u64, told: Result<TargetReply>) {
        if let Some(waiter) = self.waiters.asks.borrow_mut().remove(&token) {
            drop(waiter.send(told));
        }
    }

    /// The worker is about to stop, so no task waits any more for servers that cannot be reached.
    pub fn give_up_waiting(&self) {
        self.stopped.set(true);
    }

    /// Ends the `run` of every worker.
    pub fn stop(self: &Rc<Self>) {
        for to in 0..usize::from(self.workers) {
            self.send(to, Lane::Normal, Message::Stop);
        }
    }

    /// Hands a client's request to worker `to`, which has its target, and waits for the answer.
    pub async fn forward(
        self: &Rc<Self>,
        to: usize,
        session: SessionId,
        id: RequestId,
        call: Call,
        payload: Option<Buf>,
        terms: Terms,
    ) -> Called {
        add(&self.counters.forwarded, 1);
        let (sender, receiver) = oneshot::channel();
        let token = self.waiters.token();
        let before = self.waiters.calls.borrow_mut().insert(token, sender);
        assert!(before.is_none(), "two forwarded requests have the number {token}");
        let lane = lane_of(&call.op);
        self.send(to, lane, Message::Call { token, session, id, call: Box::new(call), payload, terms });
        receiver.await.unwrap_or((Answer::of(Err(Errno::Io)), None))
    }

    /// Sends a request to a target, wherever it is: all requests between targets use this function. Worker 0 sends a
    /// request to another server. `Io` if that server cannot be reached for long.
    pub async fn ask(self: &Rc<Self>, target: TargetId, question: TargetRequest) -> Result<TargetReply> {
        let to = self.routes.owner(target).unwrap_or(0);
        if to == usize::from(self.index) {
            return self.ask_here(target, question).await;
        }
        let (sender, receiver) = oneshot::channel();
        let token = self.waiters.token();
        let before = self.waiters.asks.borrow_mut().insert(token, sender);
        assert!(before.is_none(), "two questions to targets have the number {token}");
        self.send(to, Lane::Urgent, Message::Ask { token, target, question: Box::new(question) });
        receiver.await.unwrap_or(Err(Errno::Io))
    }

    /// Sends a request to a target and expects `Done`. While the other server cannot be reached the request is
    /// repeated: for operations that are decided.
    pub async fn insist(self: &Rc<Self>, target: TargetId, question: TargetRequest) -> Result<()> {
        match self.insist_ask(target, question).await? {
            TargetReply::Done => Ok(()),
            _ => Err(Errno::Proto),
        }
    }

    /// Returns whether the server stops.
    pub fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// Works as `insist`, for other answers.
    pub async fn insist_ask(self: &Rc<Self>, target: TargetId, question: TargetRequest) -> Result<TargetReply> {
        if self.routes.is_local(target) {
            return self.ask(target, question).await;
        }
        loop {
            match self.ask(target, question.clone()).await {
                // An error of the other server's disk looks the same, and does not end either.
                Err(Errno::Io | Errno::NotConnected | Errno::Again) if !self.stopped.get() => {
                    self.env.sleep(ASK_AGAIN).await;
                }
                other => return other,
            }
        }
    }

    /// Sends a target one message, without a waiting caller.
    pub fn tell_later(self: &Rc<Self>, target: TargetId, question: TargetRequest) {
        let worker = self.clone();
        self.env.spawn(async move {
            let _ = worker.ask(target, question).await;
        });
    }

    /// Gives the lock on moving directories back to another server's target 0, however long that takes.
    pub fn unlock_moves(self: &Rc<Self>, number: u64) {
        let worker = self.clone();
        self.env.spawn(async move {
            let _ = worker.insist(TargetId(0), TargetRequest::MoveUnlock(number)).await;
        });
    }

    /// Waits for the turn of an operation over `targets`, if some are on other servers. Requests of such operations
    /// that wait there take credits, and must leave some to the requests that end the wait.
    pub async fn turn_for(&self, mut targets: impl Iterator<Item = TargetId>) -> Option<Turn> {
        match targets.any(|t| !self.routes.is_local(t)) {
            true => Some(self.turns.take().await),
            false => None,
        }
    }

    /// Asks a target and expects `Done`.
    pub async fn tell(self: &Rc<Self>, target: TargetId, question: TargetRequest) -> Result<()> {
        match self.ask(target, question).await? {
            TargetReply::Done => Ok(()),
            _ => Err(Errno::Proto),
        }
    }

    /// Asks a target that no other worker of this server has.
    pub async fn ask_here(self: &Rc<Self>, target: TargetId, question: TargetRequest) -> Result<TargetReply> {
        if let (TargetRequest::OpenReport, Some(failure)) = (&question, &self.failure) {
            return Ok(TargetReply::OpenReport(Box::new(Err(failure.clone()))));
        }
        if let Some(target) = self.target(target) {
            return (self.above.answer)(self, &target, question).await;
        }
        if self.routes.is_local(target) {
            return Err(Errno::Stale);
        }
        let peers = self.above.peers.borrow().as_ref().and_then(Weak::upgrade);
        match peers {
            Some(peers) => peers.ask(target, question).await,
            None => Err(Errno::Stale),
        }
    }

    /// Sends the callbacks that a target's lock space requested.
    pub fn send_callbacks(self: &Rc<Self>, target: &Target<E>) {
        if !self.push_callbacks(&target.coherence.locks) || !target.coherence.locks.start_watch() {
            return;
        }
        // A session that has not answered by the deadline is evicted.
        let (worker, locks, env) = (self.clone(), target.coherence.locks.clone(), self.env.clone());
        self.env.spawn(async move {
            while let Some(deadline) = locks.next_deadline() {
                let left = deadline.saturating_sub(worker.now_ns());
                let quiet = worker.tunables.callback_again_ns();
                env.sleep(Duration::from_nanos(left.min(quiet) + 1)).await;
                for session in locks.overdue(worker.now_ns()) {
                    worker.overdue(session);
                }
                add(&worker.counters.again, locks.push_unanswered(worker.now_ns(), quiet));
                worker.push_callbacks(&locks);
            }
        });
    }

    /// Sends the callbacks that wait to be sent. Returns whether there were any.
    fn push_callbacks(self: &Rc<Self>, locks: &Locks) -> bool {
        let outbox = locks.take_outbox();
        add(&self.counters.callbacks, outbox.len() as u64);
        let any = !outbox.is_empty();
        outbox.into_iter().for_each(|(session, push)| self.push(session, push));
        any
    }

    fn push_revocations(self: &Rc<Self>, tokens: &Tokens) {
        for (session, push) in tokens.take_outbox() {
            add(&self.counters.revocations, 1);
            self.push(session, push);
        }
    }

    /// Sends the revocations that a target's token space requested, and has its deadlines watched.
    pub fn send_revocations(self: &Rc<Self>, target: &Target<E>) {
        self.push_revocations(&target.coherence.tokens);
        if !target.coherence.tokens.start_watch(self.now_ns(), self.tunables.callback_again_ns()) {
            return;
        }
        let (worker, tokens, env) = (self.clone(), target.coherence.tokens.clone(), self.env.clone());
        self.env.spawn(async move {
            loop {
                let (late, next) = tokens.watch(worker.now_ns(), worker.tunables.callback_again_ns());
                for session in late {
                    worker.overdue(session);
                }
                add(&worker.counters.again, tokens.take_again());
                worker.push_revocations(&tokens);
                let Some((at, woken)) = next else { return };
                let sleep = env.sleep(Duration::from_nanos(at.saturating_sub(worker.now_ns()) + 1));
                futures_util::future::select(woken, std::pin::pin!(sleep)).await;
            }
        });
    }

    /// Sends a message to a session's client.
    pub fn push(self: &Rc<Self>, session: SessionId, push: Push) {
        if let Some(clients) = self.clients() {
            clients.push(session, push);
        }
    }

    /// A message between the worker with the sessions and the workers with connections.
    pub fn take(self: &Rc<Self>, from: usize, message: Box<dyn Any + Send>) {
        if let Some(clients) = self.clients() {
            clients.take(from, message);
        }
    }

    /// A session did not answer a callback in time: it is evicted.
    pub fn overdue(self: &Rc<Self>, session: SessionId) {
        if self.index != 0 {
            return self.send(0, Lane::Urgent, Message::Overdue { session });
        }
        if let Some(clients) = self.clients() {
            clients.evict(session, "it did not answer a callback in time");
        }
    }

    fn clients(&self) -> Option<Rc<dyn Clients>> {
        self.above.clients.borrow().as_ref().and_then(Weak::upgrade)
    }
}

/// The lane of the mesh for a request: requests that end a wait of others overtake those that may wait.
pub fn lane_of(op: &Request) -> Lane {
    match op {
        Request::LockCancel { .. } | Request::LockKept { .. } | Request::PagesLeft { .. } => Lane::Urgent,
        Request::GlimpseReply { .. } | Request::Revoked { .. } | Request::FileLockClosed { .. } => Lane::Urgent,
        Request::WriteFailedKnown { .. } | Request::DirectoryShown { .. } | Request::Grant { .. } => Lane::Urgent,
        Request::Write { server_lock: false, .. } | Request::WriteBatch { .. } => Lane::Urgent,
        _ => Lane::Normal,
    }
}
