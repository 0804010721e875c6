//! `Front`: clients and their sessions, as the worker with the connections sees them.
//!
//! Owns: who may come in, which session has which connection, how long a session that has gone is kept, eviction,
//! and the requests that concern the whole server. Does not own: what a target knows of a session (`questions`).
//!
//! A session is logged on every target before its client is welcomed. It starts at target 0 last and ends there
//! first: after a crash in between, what target 0 does not know is ended everywhere. One session of a mount at a
//! time; a second one is told who holds the first.
//!
//! Bound: one entry for each mount session that has not ended (one), and one for each administrator connected.

use crate::counters::add;
use crate::message::{Question, Told};
use crate::records::SessionRecord;
use crate::worker::Worker;
use amphi_env::Env;
use amphi_transport::{ConnId, Connections, Handler, Incoming, Peer};
use amphi_types::{Errno, Result, SessionId, TargetId};
use amphi_wire::slots::{NORMAL_CREDITS, URGENT_CREDITS};
use amphi_wire::{Answer, Hello, Push, Reply, Request, Role, SessionStatus, VERSION, Welcome};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, btree_map};
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

/// How long the end of a session waits for what it has under way.
const FINISH: Duration = Duration::from_secs(20);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Being logged on the targets.
    Starting,
    /// Its client may come and go.
    Alive,
    /// Being removed from the targets.
    Ending,
}

struct Entry {
    name: String,
    role: Role,
    state: State,
    conn: Option<ConnId>,
    /// Counts connections and departures, so that a timer knows whether it is still about the same departure.
    epoch: u64,
}

/// Clients of a server.
pub struct Front<E: Env> {
    worker: Rc<Worker<E>>,
    connections: Rc<Connections>,
    sessions: RefCell<BTreeMap<SessionId, Entry>>,
    cluster: u64,
    boot: u64,
    started_ns: u64,
    closed: Cell<bool>,
    running: Cell<u64>,
    /// Requests of mounts that are being executed, by session.
    busy: RefCell<BTreeMap<SessionId, u64>>,
}

fn refused(errno: Errno) -> Answer {
    Answer { result: Err(errno), contended: false }
}

impl<E: Env> Front<E> {
    /// A front with the sessions that the targets remember; each has the grace time to come back.
    pub fn new(
        worker: Rc<Worker<E>>,
        connections: Rc<Connections>,
        cluster: u64,
        remembered: Vec<(SessionId, SessionRecord)>,
    ) -> Rc<Front<E>> {
        let entry = |record: SessionRecord| Entry {
            name: record.name,
            role: Role::Mount,
            state: State::Alive,
            conn: None,
            epoch: 0,
        };
        let sessions: BTreeMap<_, _> = remembered.into_iter().map(|(id, record)| (id, entry(record))).collect();
        let ids: Vec<SessionId> = sessions.keys().copied().collect();
        let front = Rc::new(Front {
            cluster,
            boot: worker.env.rand() | 1,
            started_ns: worker.now_ns(),
            connections,
            sessions: RefCell::new(sessions),
            closed: Cell::new(false),
            running: Cell::new(0),
            busy: RefCell::default(),
            worker,
        });
        for id in ids {
            front.keep_for_grace(id, 0);
        }
        front
    }

    /// The connections.
    pub fn connections(&self) -> &Rc<Connections> {
        &self.connections
    }

    /// Nobody is let in from now on.
    pub fn close(&self) {
        self.closed.set(true);
    }

    /// Requests that are being executed.
    pub fn running(&self) -> u64 {
        self.running.get()
    }

    /// Ends every connection of a session.
    pub fn cut_all(&self, why: &str) {
        let conns: Vec<ConnId> = self.sessions.borrow().values().filter_map(|e| e.conn).collect();
        for conn in conns {
            self.connections.cut(conn, why);
        }
    }

    /// Sends a message to a session's client; without a connection it is lost, and the client says its state again
    /// when it comes back.
    pub fn push(&self, session: SessionId, push: Push) {
        let conn = self.sessions.borrow().get(&session).and_then(|e| e.conn);
        if let Some(conn) = conn {
            self.connections.push(conn, push);
        }
    }

    fn grace(&self) -> Duration {
        Duration::from_millis(self.worker.tunables.session_grace_ms.get())
    }

    fn keep_for_grace(self: &Rc<Self>, session: SessionId, epoch: u64) {
        let weak = Rc::downgrade(self);
        let sleep = self.worker.env.sleep(self.grace());
        self.worker.env.spawn(async move {
            sleep.await;
            if let Some(front) = weak.upgrade() {
                let gone = front.sessions.borrow().get(&session).is_some_and(|e| e.conn.is_none() && e.epoch == epoch);
                if gone {
                    front.evict(session, "it did not come back in time");
                }
            }
        });
    }

    /// Ends a session that did not keep to the rules or did not come back.
    pub fn evict(self: &Rc<Self>, session: SessionId, why: &str) {
        let Some(name) = self.sessions.borrow().get(&session).map(|e| e.name.clone()) else { return };
        tracing::warn!("session of {name} is evicted: {why}");
        add(&self.worker.counters.evictions, 1);
        let front = self.clone();
        self.worker.env.spawn(async move {
            if let Err(e) = front.end(session).await {
                tracing::error!("session of {name} could not be removed: {e}");
            }
        });
    }

    /// Ends a session on all targets.
    async fn end(self: &Rc<Self>, session: SessionId) -> Result<()> {
        let conn = match self.sessions.borrow_mut().get_mut(&session) {
            Some(entry) if entry.state != State::Ending => {
                entry.state = State::Ending;
                entry.epoch += 1;
                entry.conn.take()
            }
            _ => return Ok(()),
        };
        let ended = end_everywhere(&self.worker, session).await;
        // What the session had under way may still happen; nobody else is let in before it has.
        let until = self.worker.env.now() + FINISH;
        while self.busy.borrow().contains_key(&session) && self.worker.env.now() < until {
            self.worker.env.sleep(LOOK).await;
        }
        self.sessions.borrow_mut().remove(&session);
        if let Some(conn) = conn {
            self.connections.cut(conn, "the session has ended");
        }
        ended
    }

    /// Whoever stands in the way of a new mount.
    fn holder(&self, session: SessionId) -> Option<(SessionId, String, bool)> {
        let sessions = self.sessions.borrow();
        let other = sessions.iter().find(|(id, e)| **id != session && e.role == Role::Mount)?;
        Some((*other.0, other.1.name.clone(), other.1.conn.is_some() || other.1.state != State::Alive))
    }

    async fn admit(self: &Rc<Self>, hello: &Hello) -> std::result::Result<bool, String> {
        if self.closed.get() {
            return Err("the server is stopping".into());
        }
        if hello.role == Role::Admin {
            let entry =
                Entry { name: hello.name.clone(), role: Role::Admin, state: State::Alive, conn: None, epoch: 0 };
            let mut sessions = self.sessions.borrow_mut();
            if sessions.get(&hello.session).is_some_and(|e| e.role == Role::Mount) {
                return Err("this session is that of a mount".into());
            }
            sessions.insert(hello.session, entry);
            return Ok(false);
        }
        if let Some(entry) = self.sessions.borrow_mut().get_mut(&hello.session) {
            return match entry.state {
                State::Alive if entry.role == Role::Mount => {
                    entry.name = hello.name.clone();
                    Ok(true)
                }
                State::Alive => Err("this session is that of an administrator".into()),
                State::Starting => Err("this session is just being started".into()),
                State::Ending => Err("this session has just been ended; mount again".into()),
            };
        }
        if let Some((id, name, up)) = self.holder(hello.session) {
            let gone = (self.worker.config.holder_gone)(&name);
            if up && !gone {
                return Err(format!(
                    "{name} has this file system mounted; only one mount at a time is possible yet, unmount it there first"
                ));
            }
            // A killed process' connection may still be there for a moment: ending the session cuts it.
            if !gone {
                return Err(format!(
                    "{name} had this file system mounted and may come back; try again in {} s, or unmount it there",
                    self.grace().as_secs().max(1)
                ));
            }
            self.evict_now(id, &name).await?;
            if let Some((_, name, _)) = self.holder(hello.session) {
                return Err(format!("{name} has just mounted this file system"));
            }
        }
        let entry = Entry { name: hello.name.clone(), role: Role::Mount, state: State::Starting, conn: None, epoch: 0 };
        self.sessions.borrow_mut().insert(hello.session, entry);
        let started = self.start(hello).await;
        let mut sessions = self.sessions.borrow_mut();
        match started {
            Ok(()) => {
                if let Some(entry) = sessions.get_mut(&hello.session) {
                    entry.state = State::Alive;
                }
                drop(sessions);
                // Until its connection is up, the session counts as gone.
                self.keep_for_grace(hello.session, 0);
                Ok(false)
            }
            Err(e) => {
                sessions.remove(&hello.session);
                Err(format!("the session could not be recorded: {e}"))
            }
        }
    }

    async fn evict_now(self: &Rc<Self>, session: SessionId, name: &str) -> std::result::Result<(), String> {
        tracing::info!("session of {name} is ended: its process has gone");
        add(&self.worker.counters.evictions, 1);
        self.end(session).await.map_err(|e| format!("the session of {name} could not be ended: {e}"))
    }

    async fn start(self: &Rc<Self>, hello: &Hello) -> Result<()> {
        let record = SessionRecord { name: hello.name.clone() };
        for target in (0..self.worker.pool).rev() {
            let question = Question::SessionStart(hello.session, record.clone());
            self.worker.tell(TargetId(target), question).await?;
        }
        Ok(())
    }

    /// A request about the whole server.
    async fn serve(self: &Rc<Self>, incoming: Incoming) {
        let (route, session) = (incoming.route, incoming.session);
        let result = match incoming.call.op {
            Request::Goodbye => self.end_politely(session).await,
            Request::Status => self.status().await,
            Request::Tunables { pattern, value } => self.tunables(&pattern, value.as_deref()).await,
            Request::Counters { reset } => self.counters(reset).await,
            _ => Err(Errno::Perm),
        };
        let goodbye = matches!(result, Ok(Reply::Done));
        self.connections.reply(route, Answer { result, contended: false }, None);
        if goodbye {
            self.sessions.borrow_mut().remove(&session);
        }
    }

    /// Shows tunables, or sets them; then every target has taken them over.
    async fn tunables(&self, pattern: &str, value: Option<&str>) -> Result<Reply> {
        let rows = self.worker.tunables.apply(pattern, value)?;
        if value.is_some() {
            for target in 0..self.worker.pool {
                self.worker.tell(TargetId(target), Question::Tune).await?;
            }
        }
        Ok(Reply::Tunables(rows))
    }

    async fn end_politely(self: &Rc<Self>, session: SessionId) -> Result<Reply> {
        match self.sessions.borrow_mut().get_mut(&session) {
            Some(entry) if entry.state == State::Alive => {
                entry.state = State::Ending;
                entry.epoch += 1;
            }
            _ => return Ok(Reply::Done),
        }
        end_everywhere(&self.worker, session).await?;
        Ok(Reply::Done)
    }

    async fn status(self: &Rc<Self>) -> Result<Reply> {
        let mut targets = Vec::new();
        let mut held: BTreeMap<SessionId, (u64, u64)> = BTreeMap::new();
        for target in 0..self.worker.pool {
            let Told::Status(status, opens) = self.worker.ask(TargetId(target), Question::Status).await? else {
                return Err(Errno::Proto);
            };
            targets.push(*status);
            for (session, (opens, locks)) in opens {
                let sum = held.entry(session).or_default();
                *sum = (sum.0 + opens, sum.1 + locks);
            }
        }
        let mounts = |(id, e): (&SessionId, &Entry)| {
            let (opens, locks) = held.get(id).copied().unwrap_or_default();
            let connected = e.conn.is_some();
            (e.role == Role::Mount).then(|| SessionStatus {
                session: *id,
                name: e.name.clone(),
                connected,
                opens,
                locks,
            })
        };
        let sessions = self.sessions.borrow().iter().filter_map(mounts).collect();
        let uptime_s = self.worker.now_ns().saturating_sub(self.started_ns) / 1_000_000_000;
        Ok(Reply::Status { uptime_s, cluster: self.cluster, targets, sessions })
    }

    async fn counters(self: &Rc<Self>, reset: bool) -> Result<Reply> {
        let mut all: Vec<(String, u64)> = Vec::new();
        for target in 0..self.worker.pool {
            let question = Question::Counters { reset };
            let Told::Counters(part) = self.worker.ask(TargetId(target), question).await? else {
                return Err(Errno::Proto);
            };
            for (name, n) in part {
                match all.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, sum)) => *sum += n,
                    None => all.push((name, n)),
                }
            }
        }
        Ok(Reply::Counters(all))
    }
}

/// Ends a session on every target: first nothing more is taken from it anywhere, then what it holds goes.
pub async fn end_everywhere<E: Env>(worker: &Rc<Worker<E>>, session: SessionId) -> Result<()> {
    for target in 0..worker.pool {
        worker.tell(TargetId(target), Question::SessionStop(session)).await?;
    }
    for target in 0..worker.pool {
        worker.tell(TargetId(target), Question::SessionForget(session)).await?;
    }
    Ok(())
}

/// A `Front` as the transport calls it.
pub struct Door<E: Env>(pub Rc<Front<E>>);

impl<E: Env> Handler for Door<E> {
    async fn hello(&self, hello: &Hello, peer: &Peer) -> std::result::Result<Welcome, String> {
        self.0.welcome(hello, peer).await
    }

    fn connected(&self, session: SessionId, role: Role, conn: ConnId) {
        self.0.connected(session, role, conn);
    }

    fn call(self: Rc<Self>, request: Incoming) {
        self.0.clone().call(request);
    }

    fn disconnected(&self, session: SessionId, conn: ConnId, clean: bool) {
        self.0.disconnected(session, conn, clean);
    }
}

impl<E: Env> Front<E> {
    async fn welcome(self: &Rc<Self>, hello: &Hello, _peer: &Peer) -> std::result::Result<Welcome, String> {
        let resumed = self.admit(hello).await?;
        Ok(Welcome {
            version: VERSION,
            boot: self.boot,
            cluster: self.cluster,
            resumed,
            normal_credits: NORMAL_CREDITS,
            urgent_credits: URGENT_CREDITS,
            pool: self.worker.pool,
            token_ms: self.worker.tunables.token_ms.get() as u32,
        })
    }

    fn connected(&self, session: SessionId, _role: Role, conn: ConnId) {
        if let Some(entry) = self.sessions.borrow_mut().get_mut(&session) {
            entry.conn = Some(conn);
            entry.epoch += 1;
        }
    }

    fn call(self: Rc<Self>, incoming: Incoming) {
        let whole = matches!(
            incoming.call.op,
            Request::Goodbye | Request::Status | Request::Tunables { .. } | Request::Counters { .. }
        );
        let front = self.clone();
        if whole {
            self.running.set(self.running.get() + 1);
            self.worker.env.spawn(async move {
                front.serve(incoming).await;
                front.running.set(front.running.get() - 1);
            });
            return;
        }
        if incoming.role != Role::Mount && !matches!(incoming.call.op, Request::StatFs) {
            self.connections.reply(incoming.route, refused(Errno::Perm), None);
            return;
        }
        self.running.set(self.running.get() + 1);
        *self.busy.borrow_mut().entry(incoming.session).or_default() += 1;
        let until_ns = incoming.deadline.map(|d| self.worker.now_ns().saturating_add(d.as_nanos() as u64));
        let mut request = Box::pin(async move {
            let id = incoming.id();
            let Incoming { session, route, call, payload, .. } = incoming;
            let (answer, payload) = front.worker.call(session, id, call, payload, until_ns).await;
            front.connections.reply(route, answer, payload);
            front.running.set(front.running.get() - 1);
            if let btree_map::Entry::Occupied(mut busy) = front.busy.borrow_mut().entry(session) {
                *busy.get_mut() -= 1;
                if *busy.get() == 0 {
                    busy.remove();
                }
            }
        });
        // What needs neither the disk nor another worker is answered here, without a task of its own.
        if request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.worker.env.spawn(request);
        }
    }

    fn disconnected(self: &Rc<Self>, session: SessionId, conn: ConnId, _clean: bool) {
        let epoch = {
            let mut sessions = self.sessions.borrow_mut();
            let Some(entry) = sessions.get_mut(&session) else { return };
            if entry.conn != Some(conn) {
                return;
            }
            entry.conn = None;
            entry.epoch += 1;
            if entry.role == Role::Admin {
                sessions.remove(&session);
                return;
            }
            entry.epoch
        };
        self.keep_for_grace(session, epoch);
    }
}
