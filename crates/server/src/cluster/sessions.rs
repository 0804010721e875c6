//! `SessionManager`: clients and their sessions, as the worker with the connections sees them.
//!
//! Owns: who may come in, which session has which connection, how long a session that has gone is kept, eviction,
//! and the requests that concern the whole server. Does not own: what a target knows of a session (`session`).
//!
//! A session is logged on every target before its client is welcomed. It starts at target 0 last and ends there first:
//! after a crash in between, what target 0 does not know is ended everywhere. A mount that is not the only one is
//! welcomed when all others know of company (`company`). All this is the master's; other servers let in whom it knows
//! (`follower`).
//!
//! Bound: one entry for each mount session that has not ended, at most `MOUNTS_MAX`, and one for each administrator
//! connected.

mod clocks;
mod company;
mod deaf;
mod ending;
mod trust;
mod whole;

use crate::cluster::peers::{Cluster, PEER_CREDITS, STOPPING};
use crate::coherence::glimpse;
use crate::dispatch;
use crate::message::TargetRequest;
use crate::records::SessionRecord;
use crate::tunables::Tunable;
use crate::worker::Worker;
use crate::worker::above::Clients;
use amphi_env::Env;
use amphi_transport::{ConnId, Connections, Handler, Incoming, Peer};
use amphi_types::{Errno, Result, SessionId, TargetId};
use amphi_wire::slots::{NORMAL_CREDITS, URGENT_CREDITS};
use amphi_wire::{Answer, Hello, Push, ROTATING_MAX, Reply, Request, Role, VERSION, Welcome};
use company::Rule;
pub use deaf::Eviction;
pub use ending::{AFTER_POWER_LOSS, TOLD_LOOK, end_everywhere};
use trust::Owner;

use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque, btree_map};
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

/// How long the end of a session waits for what it has under way.
const FINISH: Duration = Duration::from_secs(20);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(1);
/// Most mounts: each may hold the credits' worth of requests and 131,072 tokens of a target.
const MOUNTS_MAX: usize = 1024;
/// A new mount is told after this time that others did not answer: shorter than its patience with one attempt [5 s].
const ADMISSION: Duration = Duration::from_secs(4);
/// How often a session without a connection is looked at: whether its process has ended.
const HOLDER_LOOK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Being logged on the targets.
    Starting,
    /// Its client may come and go.
    Alive,
    /// Being removed from the targets.
    Ending,
    /// Removed from the targets here; other servers may still have something of it.
    EndingElsewhere,
}

impl State {
    fn is_ending(self) -> bool {
        matches!(self, State::Ending | State::EndingElsewhere)
    }
}

struct Entry {
    name: String,
    role: Role,
    owner: Owner,
    state: State,
    conn: Option<ConnId>,
    /// Counts connections and departures, so that a timer knows whether it is still about the same departure.
    epoch: u64,
    /// The last switch between alone and company that the mount has said it knows.
    known: u64,
    /// When it was last told of one, monotonic ns.
    asked_ns: u64,
    /// When it said last that it is at it, monotonic ns.
    kept_ns: u64,
    /// When it was last welcomed or left, monotonic ns.
    heard_ns: u64,
    /// A task sees to it that it answers; it was asked more meanwhile.
    watched: bool,
    asked_again: bool,
}

impl Entry {
    fn new(name: &str, role: Role, state: State, now_ns: u64) -> Entry {
        let (owner, conn, epoch, known, asked_ns) = (Owner::Unknown, None, 0, 0, 0);
        let (kept_ns, heard_ns, watched, asked_again, name) = (0, now_ns, false, false, name.into());
        Entry { name, role, owner, state, conn, epoch, known, asked_ns, kept_ns, heard_ns, watched, asked_again }
    }
}

/// Clients of a server.
pub struct SessionManager<E: Env> {
    worker: Rc<Worker<E>>,
    /// The other servers.
    cluster: RefCell<Option<Rc<Cluster<E>>>>,
    connections: Rc<Connections>,
    sessions: RefCell<BTreeMap<SessionId, Entry>>,
    /// Id of the cluster.
    id: u64,
    boot: u64,
    started_ns: u64,
    /// Sessions of mounts that have been started.
    mounts_started: Cell<u64>,
    /// Targets of this server on rotating storage, as many as are told.
    rotating: Vec<TargetId>,
    closed: Cell<bool>,
    /// Mounts have to wait: the server is not in its cluster yet.
    held: Cell<bool>,
    /// They have to wait: power was lost, and not all have been told.
    after_power_loss: Cell<bool>,
    running: Cell<u64>,
    /// Requests of mounts that are being executed, by session.
    busy: RefCell<BTreeMap<SessionId, u64>>,
    /// Whether there is one mount or several.
    rule: Rule,
    /// Who waits for a change of the table of sessions.
    watchers: RefCell<Vec<oneshot::Sender<()>>>,
    /// Sessions that ended because they did not answer, the last `deaf::REMEMBERED_MAX`.
    deaf: RefCell<VecDeque<SessionId>>,
}

fn refused(errno: Errno) -> Answer {
    Answer::of(Err(errno))
}

impl<E: Env> Clients for SessionManager<E> {
    fn push(self: Rc<Self>, session: SessionId, push: Push) {
        SessionManager::push(&self, session, push);
    }

    fn evict(self: Rc<Self>, session: SessionId, why: &str) {
        SessionManager::evict(&self, session, why);
    }
}

impl<E: Env> SessionManager<E> {
    /// A front with the sessions that the targets remember; each has the grace time to come back.
    pub fn new(
        worker: Rc<Worker<E>>,
        connections: Rc<Connections>,
        id: u64,
        remembered: Vec<(SessionId, SessionRecord)>,
    ) -> Rc<SessionManager<E>> {
        let now_ns = worker.now_ns();
        let entry = |record: SessionRecord| Entry::new(&record.name, Role::Mount, State::Alive, now_ns);
        let sessions: BTreeMap<_, _> = remembered.into_iter().map(|(id, record)| (id, entry(record))).collect();
        let ids: Vec<SessionId> = sessions.keys().copied().collect();
        let rotates = |t: &&TargetId| (worker.config.machine.is_rotating)(&worker.config.zone_path(t.0));
        let rotating = worker.routes.local().iter().filter(rotates).take(ROTATING_MAX).copied().collect();
        let manager = Rc::new(SessionManager {
            cluster: RefCell::new(None),
            id,
            boot: worker.env.rand() | 1,
            started_ns: worker.now_ns(),
            mounts_started: Cell::new(0),
            rotating,
            connections,
            sessions: RefCell::new(sessions),
            closed: Cell::new(false),
            held: Cell::new(false),
            after_power_loss: Cell::new(false),
            running: Cell::new(0),
            busy: RefCell::default(),
            rule: Rule::new(worker.env.wall().sec.max(0) as u64, now_ns),
            watchers: RefCell::default(),
            deaf: RefCell::default(),
            worker,
        });
        // What an earlier run allowed is not known; the tunable says what it mostly was.
        manager.rule.lend(manager.worker.tunables.get(Tunable::TokenMs));
        for id in ids {
            manager.keep_for_grace(id, 0);
        }
        manager
    }

    /// The connections.
    pub fn connections(&self) -> &Rc<Connections> {
        &self.connections
    }

    /// Whether mounts have to wait.
    pub fn hold_mounts(&self, held: bool) {
        self.held.set(held);
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
    pub fn push(self: &Rc<Self>, session: SessionId, push: Push) {
        self.listen_for_answer(session, &push);
        let conn = self.sessions.borrow().get(&session).and_then(|e| e.conn);
        if let Some(conn) = conn {
            self.connections.push(conn, push);
        }
    }

    /// Tells it of the other servers.
    pub fn set_cluster(&self, cluster: Rc<Cluster<E>>) {
        self.cluster.replace(Some(cluster));
    }

    /// The other servers.
    pub fn cluster(&self) -> Option<Rc<Cluster<E>>> {
        self.cluster.borrow().clone()
    }

    /// Mounts whose sessions have begun or are beginning, and do not end.
    pub fn mounts(&self) -> Vec<(SessionId, SessionRecord)> {
        let sessions = self.sessions.borrow();
        let mounts = sessions.iter().filter(|(_, e)| e.role == Role::Mount && !e.state.is_ending());
        let cluster = self.cluster();
        let start = |id| cluster.as_ref().and_then(|c| c.starts.borrow().get(id).copied());
        mounts.filter_map(|(id, e)| Some((*id, SessionRecord { name: e.name.clone(), start: start(id)? }))).collect()
    }

    /// Tells every mount that there is a newer map.
    pub fn push_map(&self, epoch: u64) {
        let sessions = self.sessions.borrow();
        for conn in sessions.values().filter(|e| e.role == Role::Mount).filter_map(|e| e.conn) {
            self.connections.push(conn, Push::Map { epoch });
        }
    }

    /// Sets tunables of this server, as another one was told.
    pub async fn set_tunables(&self, pattern: &str, value: &str) -> Result<()> {
        self.worker.tunables.apply(pattern, Some(value))?;
        for target in self.worker.routes.local() {
            self.worker.tell(*target, TargetRequest::Tune).await?;
        }
        Ok(())
    }

    /// A session has ended elsewhere: its connection goes.
    pub fn leave(&self, session: SessionId) {
        let entry = self.sessions.borrow_mut().remove(&session);
        if let Some(conn) = entry.and_then(|e| e.conn) {
            self.connections.cut(conn, "the session has ended");
        }
    }

    /// Waits until nothing of a session is being executed, at most `FINISH`: it begins again under its id.
    pub async fn idle(&self, session: SessionId) {
        let until = self.worker.env.now() + FINISH;
        while self.busy.borrow().contains_key(&session) && self.worker.env.now() < until {
            self.worker.env.sleep(LOOK).await;
        }
    }

    fn admit_server(&self, hello: &Hello) -> std::result::Result<bool, String> {
        match self.cluster().filter(|c| !c.closed.get()) {
            Some(cluster) => {
                let (known, moves) = cluster.callers.admit(hello)?;
                cluster.unlock_moves(moves);
                Ok(known)
            }
            None => Err(STOPPING.into()),
        }
    }

    /// Whether a session has a connection to here.
    pub fn is_connected(&self, session: SessionId) -> bool {
        self.sessions.borrow().get(&session).is_some_and(|e| e.conn.is_some())
    }

    /// How long a session that has gone is kept.
    pub fn grace(&self) -> Duration {
        Duration::from_millis(self.worker.tunables.get(Tunable::SessionGraceMs))
    }

    /// Lets a client in. Says whether its session was known.
    async fn admit(self: &Rc<Self>, hello: &Hello) -> std::result::Result<bool, String> {
        if self.closed.get() {
            return Err(STOPPING.into());
        }
        while self.held.get() || (self.after_power_loss.get() && hello.role == Role::Mount) {
            self.worker.env.sleep(LOOK).await;
        }
        if let Some(member) = self.cluster().filter(|c| hello.role == Role::Mount && !c.is_master()) {
            let resumed = member.admit_mount(hello.session).await?;
            let now_ns = self.worker.now_ns();
            let mut sessions = self.sessions.borrow_mut();
            sessions.entry(hello.session).or_insert_with(|| Entry::new(&hello.name, Role::Mount, State::Alive, now_ns));
            return Ok(resumed);
        }
        let now_ns = self.worker.now_ns();
        match hello.role {
            Role::Admin => {
                let entry = Entry::new(&hello.name, Role::Admin, State::Alive, now_ns);
                let mut sessions = self.sessions.borrow_mut();
                if sessions.get(&hello.session).is_some_and(|e| e.role == Role::Mount) {
                    return Err("this session is that of a mount".into());
                }
                sessions.insert(hello.session, entry);
                return Ok(false);
            }
            Role::Server => return Err("this server takes no servers".into()),
            Role::Mount => {}
        }
        if let Some(entry) = self.sessions.borrow_mut().get_mut(&hello.session) {
            return match entry.state {
                State::Alive if entry.role == Role::Mount => {
                    entry.name = hello.name.clone();
                    entry.heard_ns = now_ns;
                    Ok(true)
                }
                State::Alive => Err("this session is that of an administrator".into()),
                State::Starting => Err("this session is just being started".into()),
                State::Ending | State::EndingElsewhere => Err("this session has just been ended; mount again".into()),
            };
        }
        let mounts = self.sessions.borrow().values().filter(|e| e.role == Role::Mount).count();
        if mounts >= MOUNTS_MAX {
            return Err(format!("{mounts} mounts use this file system, which is the most; unmount one of them first"));
        }
        let entry = Entry::new(&hello.name, Role::Mount, State::Starting, now_ns);
        self.sessions.borrow_mut().insert(hello.session, entry);
        // A task of its own, because the handshake may end before it.
        let (sender, mut receiver) = oneshot::channel();
        let (manager, hello) = (self.clone(), hello.clone());
        self.worker.env.spawn(async move {
            let result = manager.begin_session(&hello, mounts > 0, || sender.is_canceled()).await;
            drop(sender.send(result));
        });
        match amphi_env::timeout(&self.worker.env, ADMISSION, &mut receiver).await {
            Some(result) => result.unwrap_or_else(|_| Err(STOPPING.into())).map(|()| false),
            // A server that has just gone is waited for longer than a mount waits for its welcome.
            None if mounts == 0 => Err("the session is just being started; try again".into()),
            None => {
                drop(receiver);
                self.rule.wanted(self.worker.now_ns());
                self.ring();
                Err("another mount has not answered yet that it knows of this one; try again".into())
            }
        }
    }

    async fn begin_session(
        self: &Rc<Self>,
        hello: &Hello,
        company: bool,
        given_up: impl Fn() -> bool,
    ) -> std::result::Result<(), String> {
        let started = async {
            if company {
                self.join_company(hello.session, &given_up).await?;
            }
            if given_up() {
                return Err("the client has gone".into());
            }
            self.start(hello).await.map_err(|e| format!("the session could not be recorded: {e}"))
        };
        if let Err(e) = started.await {
            self.remove(hello.session);
            self.cluster().inspect(|c| c.sessions_changed());
            return Err(e);
        }
        if let Some(entry) = self.sessions.borrow_mut().get_mut(&hello.session).filter(|e| e.state == State::Starting) {
            self.mounts_started.set(self.mounts_started.get() + 1);
            entry.state = State::Alive;
            entry.heard_ns = self.worker.now_ns();
        }
        self.ring();
        // Until its connection is up, the session counts as gone.
        self.keep_for_grace(hello.session, 0);
        Ok(())
    }

    async fn start(self: &Rc<Self>, hello: &Hello) -> Result<()> {
        let record = SessionRecord { name: hello.name.clone(), start: self.worker.env.rand() };
        if let Some(cluster) = self.cluster() {
            cluster.start_elsewhere(hello.session, &record).await;
        }
        for target in self.worker.routes.local().iter().rev() {
            let question = TargetRequest::SessionStart(hello.session, record.clone());
            self.worker.tell(*target, question).await?;
        }
        Ok(())
    }
}

/// A `SessionManager` as the transport calls it.
pub struct SessionHandler<E: Env>(pub Rc<SessionManager<E>>);

impl<E: Env> Handler for SessionHandler<E> {
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

impl<E: Env> SessionManager<E> {
    async fn welcome(self: &Rc<Self>, hello: &Hello, peer: &Peer) -> std::result::Result<Welcome, String> {
        trust::may_come(hello, peer, self.sessions.borrow().get(&hello.session))?;
        if self.was_deaf(hello.session) {
            return Err("this session has been ended because it did not answer; mount again".into());
        }
        if hello.role != Role::Server && self.cluster().is_some_and(|c| c.callers.is_caller(hello.session)) {
            return Err("this session is a server's".into());
        }
        // The master has looked at the clock of a mount already.
        if hello.role == Role::Server || self.cluster().is_none_or(|c| c.is_master()) {
            clocks::agree(hello, self.worker.env.wall())?;
        }
        let (resumed, normal_credits, urgent_credits) = match hello.role {
            // To a run of its own that it does not know yet, another server says everything again.
            Role::Server => {
                let known = self.admit_server(hello)?;
                (known || ![0, self.boot].contains(&hello.last_boot), PEER_CREDITS, PEER_CREDITS)
            }
            _ => (self.admit(hello).await?, NORMAL_CREDITS, URGENT_CREDITS),
        };
        if let Some(entry) = self.sessions.borrow_mut().get_mut(&hello.session) {
            // It may have begun while this client was waiting.
            trust::may_come(hello, peer, Some(entry))?;
            if entry.owner == Owner::Unknown {
                entry.owner = Owner::of(peer);
            }
        }
        let token_ms = self.worker.tunables.get(Tunable::TokenMs);
        if hello.role == Role::Mount {
            // Said and noted in one step: later switches are told to the connection.
            self.rule.lend(token_ms);
            if let Some(entry) = self.sessions.borrow_mut().get_mut(&hello.session).filter(|_| !resumed) {
                entry.known = self.rule.change();
            }
            self.look_alone();
        }
        Ok(Welcome {
            version: VERSION,
            boot: self.boot,
            cluster: self.id,
            resumed,
            begun: self.cluster().filter(|_| hello.role == Role::Mount).map_or(0, |c| c.begin_of(hello.session)),
            normal_credits,
            urgent_credits,
            pool: self.worker.pool(),
            token_ms: token_ms as u32,
            alone: self.rule.is_alone(),
            map_epoch: self.worker.routes.epoch(),
            mounts: self.mounts_started.get(),
            rotating: self.rotating.clone(),
        })
    }

    fn connected(self: &Rc<Self>, session: SessionId, role: Role, conn: ConnId) {
        if role == Role::Server {
            if let Some(cluster) = self.cluster() {
                cluster.callers.connected(session, conn);
            }
            return;
        }
        let is_master = self.cluster().is_none_or(|c| c.is_master());
        let again = {
            let mut sessions = self.sessions.borrow_mut();
            match sessions.get_mut(&session).filter(|e| e.state == State::Alive) {
                Some(entry) => {
                    entry.conn = Some(conn);
                    entry.epoch += 1;
                    // Other servers than the master forget a connection with its end.
                    (entry.epoch > 1 || !is_master) && role == Role::Mount
                }
                None => {
                    // It ended between its welcome and now.
                    drop(sessions);
                    self.connections.cut(conn, "the session has ended");
                    return;
                }
            }
        };
        self.tell_company(session);
        self.ring();
        if again {
            self.push_again(session);
        }
    }

    /// What was pushed and not answered may have been lost with an earlier connection.
    fn push_again(self: &Rc<Self>, session: SessionId) {
        let worker = self.worker.clone();
        self.worker.env.spawn(async move {
            // Other servers push on connections of their own.
            for target in worker.routes.local() {
                // A target that cannot be asked has ended.
                let _ = worker.tell(*target, TargetRequest::PushAgain(session)).await;
            }
        });
    }

    fn call(self: Rc<Self>, mut incoming: Incoming) {
        if let Err(e) = trust::may_ask(&mut incoming) {
            self.connections.reply(incoming.route, refused(e), None);
            return;
        }
        if incoming.role == Role::Server {
            match self.cluster() {
                Some(cluster) => cluster.call(incoming),
                None => drop(self.connections.reply(incoming.route, refused(Errno::Io), None)),
            }
            return;
        }
        if matches!(incoming.call.op, Request::Map) {
            let map = self.cluster().map(|c| c.map()).ok_or(Errno::Proto);
            self.connections.reply(incoming.route, Answer::of(map.map(Reply::Map)), None);
            return;
        }
        let whole = matches!(
            incoming.call.op,
            Request::Goodbye
                | Request::Status
                | Request::Tunables { .. }
                | Request::Counters { .. }
                | Request::CompanyKnown { .. }
                | Request::CompanyKept { .. }
        );
        if whole {
            let manager = self.clone();
            self.running.set(self.running.get() + 1);
            self.worker.env.spawn(async move {
                manager.serve(incoming).await;
                manager.running.set(manager.running.get() - 1);
            });
            return;
        }
        if incoming.role != Role::Mount && !matches!(incoming.call.op, Request::StatFs) {
            self.connections.reply(incoming.route, refused(Errno::Perm), None);
            return;
        }
        if incoming.deadline.is_none()
            && let Some(answer) = dispatch::at_once(&self.worker, incoming.session, &incoming.call)
        {
            self.connections.reply(incoming.route, answer, None);
            return;
        }
        self.running.set(self.running.get() + 1);
        *self.busy.borrow_mut().entry(incoming.session).or_default() += 1;
        let until_ns = incoming.deadline.map(|d| self.worker.now_ns().saturating_add(d.as_nanos() as u64));
        let manager = self.clone();
        let mut request = Box::pin(async move {
            let id = incoming.id();
            let Incoming { session, route, mut call, payload, .. } = incoming;
            if let Request::GlimpseReply { id, .. } = call.op {
                // To whoever asked.
                call.target = glimpse::target_of(id);
            }
            let (answer, payload) = dispatch::call(&manager.worker, session, id, call, payload, until_ns).await;
            manager.connections.reply(route, answer, payload);
            manager.running.set(manager.running.get() - 1);
            if let btree_map::Entry::Occupied(mut busy) = manager.busy.borrow_mut().entry(session) {
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

    fn disconnected(self: &Rc<Self>, session: SessionId, conn: ConnId, clean: bool) {
        let cluster = self.cluster();
        if let Some(cluster) = cluster.as_ref().filter(|c| c.callers.is_caller(session)) {
            let moves = cluster.callers.disconnected(session, conn, clean);
            return cluster.unlock_moves(moves);
        }
        let is_master = cluster.is_none_or(|c| c.is_master());
        let epoch = {
            let mut sessions = self.sessions.borrow_mut();
            let Some(entry) = sessions.get_mut(&session) else { return };
            if entry.conn != Some(conn) {
                return;
            }
            entry.conn = None;
            entry.epoch += 1;
            entry.heard_ns = self.worker.now_ns();
            // Whether a mount has gone is the master's to say.
            if entry.role == Role::Admin || !is_master {
                sessions.remove(&session);
                return;
            }
            entry.epoch
        };
        self.ring();
        self.keep_for_grace(session, epoch);
    }
}
