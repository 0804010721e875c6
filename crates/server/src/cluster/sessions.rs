//! `SessionManager`: clients and their sessions, as the worker with the connections sees them.
//!
//! Owns: who may come in (`admission`), which session has which connection, how long a session that has gone is kept,
//! eviction, and the requests that concern the whole server. Does not own: what a target knows of a session
//! (`session`).
//!
//! A session is logged on every target before its client is welcomed. It starts at target 0 last and ends there first:
//! after a crash in between, what target 0 does not know is ended everywhere. A mount that is not the only one is
//! welcomed when all others know of company (`company`). All this is the master's; other servers let in whom it knows
//! (`follower`).
//!
//! Bound: one entry for each mount session that has not ended, at most `admission::MOUNTS_MAX`, and one for each
//! administrator connected.

mod admission;
mod admission_state;
mod audit;
mod clocks;
mod company;
mod deaf;
pub(crate) mod ending;
mod entry;
mod executing;
mod gate;
mod keyed;
mod rule;
mod trust;
mod whole;

use crate::cluster::peers::Cluster;
use crate::coherence::glimpse;
use crate::dispatch;
use crate::message::TargetRequest;
use crate::records::SessionRecord;
use crate::tunables::Tunable;
use crate::worker::Worker;
use crate::worker::above::Clients;
use admission_state::AdmissionState;
use amphi_env::Env;
use amphi_transport::{ConnId, Connections, Handler, Incoming, Peer, Secure};
use amphi_types::{Errno, Result, SessionId, TargetId};
use amphi_wire::{Answer, ClusterMap, Hello, Push, ROTATING_MAX, Reply, Request, Role, Welcome};
use audit::{Audit, Kind};
use entry::{Entry, State};
use executing::Executing;
use futures_channel::oneshot;
use gate::Gate;
use rule::Rule;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

/// How long the end of a session waits for what it has under way.
const FINISH: Duration = Duration::from_secs(20);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(1);
/// How often a session without a connection is looked at: whether its process has ended.
const HOLDER_LOOK: Duration = Duration::from_secs(1);

/// What a server says of itself.
struct ServerFacts {
    /// Number of the cluster.
    cluster: u64,
    /// Random number of this run.
    boot: u64,
    started_ns: u64,
    /// Targets of this server on rotating storage, as many as are told.
    rotating: Vec<TargetId>,
}

/// Clients of a server.
pub struct SessionManager<E: Env> {
    worker: Rc<Worker<E>>,
    /// The other servers.
    cluster: RefCell<Option<Rc<Cluster<E>>>>,
    connections: Rc<Connections>,
    facts: ServerFacts,
    sessions: RefCell<BTreeMap<SessionId, Entry>>,
    /// Who is let in.
    admission: AdmissionState,
    executing: Executing,
    /// Whether there is one mount or several.
    rule: Rule,
    /// Who waits for a change of the table of sessions.
    watchers: RefCell<Vec<oneshot::Sender<()>>>,
    /// What passes of connections whose clients have keys.
    gates: RefCell<BTreeMap<ConnId, Rc<Gate>>>,
    /// Connections over a network that came with the cluster key alone.
    by_cluster_key: RefCell<BTreeMap<ConnId, SessionId>>,
    audit: Audit,
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
        let facts = ServerFacts { cluster: id, boot: worker.env.rand() | 1, started_ns: worker.now_ns(), rotating };
        let manager = Rc::new(SessionManager {
            cluster: RefCell::new(None),
            connections,
            facts,
            sessions: RefCell::new(sessions),
            admission: AdmissionState::default(),
            executing: Executing::default(),
            rule: Rule::new(worker.env.wall().sec.max(0) as u64, now_ns),
            watchers: RefCell::default(),
            gates: RefCell::default(),
            by_cluster_key: RefCell::default(),
            audit: Audit::new(worker.config.audit.clone(), worker.config.audit_full),
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
        self.admission.hold(held);
    }

    /// Nobody is let in from now on.
    pub fn close(&self) {
        self.admission.close();
    }

    /// Requests that are being executed.
    pub fn running(&self) -> u64 {
        self.executing.count()
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
        let to = self.sessions.borrow().get(&session).and_then(|e| Some((e.conn?, e.owner)));
        if let Some((conn, owner)) = to {
            self.connections.push(conn, trust::as_told(owner, push));
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
        let start = |id: &SessionId| cluster.as_ref().and_then(|c| c.as_master.begin_of(*id));
        mounts.filter_map(|(id, e)| Some((*id, SessionRecord { name: e.name.clone(), start: start(id)? }))).collect()
    }

    /// Tells every mount that there is a newer map.
    pub fn push_map(&self, epoch: u64) {
        let sessions = self.sessions.borrow();
        for conn in sessions.values().filter(|e| e.role == Role::Mount).filter_map(|e| e.conn) {
            self.connections.push(conn, Push::Map { epoch });
        }
    }

    /// Writes a new map into the audit log.
    pub(crate) fn note_map(&self, map: &ClusterMap) {
        let servers: Vec<&str> = map.servers.iter().map(|s| s.name.as_str()).collect();
        self.audit(Kind::Map, &[("epoch", &map.epoch.to_string()), ("servers", &servers.join(" "))]);
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
        while self.executing.has(session) && self.worker.env.now() < until {
            self.worker.env.sleep(LOOK).await;
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
}

/// A `SessionManager` as the transport calls it.
pub struct SessionHandler<E: Env>(pub Rc<SessionManager<E>>);

impl<E: Env> Handler for SessionHandler<E> {
    async fn hello(&self, hello: &Hello, peer: &Peer) -> std::result::Result<Welcome, String> {
        self.0.welcome(hello, peer).await
    }

    fn connected(&self, session: SessionId, role: Role, conn: ConnId, peer: &Peer) {
        if let Err(why) = self.0.set_gate(session, role, conn, peer) {
            self.0.connections.cut(conn, &why);
            return;
        }
        let secure = (!peer.unix && !peer.in_process).then_some(peer.secure);
        self.0.connected(session, role, conn, secure);
    }

    fn stranger(&self, addr: &str, why: &str) {
        self.0.audit(Kind::Refused, &[("address", addr), ("why", why)]);
    }

    fn call(self: Rc<Self>, request: Incoming) {
        self.0.clone().call(request);
    }

    fn disconnected(&self, session: SessionId, conn: ConnId, clean: bool) {
        self.0.disconnected(session, conn, clean);
    }
}

impl<E: Env> SessionManager<E> {
    fn connected(self: &Rc<Self>, session: SessionId, role: Role, conn: ConnId, secure: Option<Secure>) {
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
                    (entry.conn, entry.secure) = (Some(conn), secure);
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

    /// Whether a client may ask this; then the call says on whose behalf it counts.
    fn may_ask(&self, incoming: &mut Incoming, gate: Option<&Gate>) -> Result<()> {
        if gate::class_of(&incoming.call.op) == gate::Class::Internal {
            return Err(Errno::Perm);
        }
        let Some(gate) = gate else { return trust::may_ask(incoming) };
        trust::act_as_bound(incoming)?;
        let before = gate.squashed();
        let passed = gate.pass(incoming);
        if gate.squashed() != before {
            self.squashed(gate);
        }
        passed
    }

    fn call(self: Rc<Self>, mut incoming: Incoming) {
        let gate = self.gate(incoming.route.conn);
        if let Err(e) = self.may_ask(&mut incoming, gate.as_deref()) {
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
                | Request::Keys { .. }
                | Request::Evict { .. }
                | Request::CompanyKnown { .. }
                | Request::CompanyKept { .. }
        );
        if whole {
            let manager = self.clone();
            self.executing.begin(None);
            self.worker.env.spawn(async move {
                manager.serve(incoming).await;
                manager.executing.end(None);
            });
            return;
        }
        if incoming.role != Role::Mount && !matches!(incoming.call.op, Request::StatFs) {
            self.connections.reply(incoming.route, refused(Errno::Perm), None);
            return;
        }
        let gate = gate.filter(|gate| gate.translates());
        if incoming.deadline.is_none()
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
        let manager = self.clone();
        let mut request = Box::pin(async move {
            let id = incoming.id();
            let Incoming { session, route, mut call, payload, .. } = incoming;
            if let Request::GlimpseReply { id, .. } = call.op {
                // To whoever asked.
                call.target = glimpse::target_of(id);
            }
            let acl = gate.is_some() && Gate::asks_for_acl(&call.op);
            let (mut answer, payload) = dispatch::call(&manager.worker, session, id, call, payload, until_ns).await;
            if let Some(gate) = gate {
                gate.show(&mut answer, acl);
            }
            manager.connections.reply(route, answer, payload);
            manager.executing.end(Some(session));
        });
        // What needs neither the disk nor another worker is answered here, without a task of its own.
        if request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.worker.env.spawn(request);
        }
    }

    fn disconnected(self: &Rc<Self>, session: SessionId, conn: ConnId, clean: bool) {
        self.forget_gate(conn);
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
