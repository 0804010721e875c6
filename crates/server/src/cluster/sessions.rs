//! `SessionManager`: clients and their sessions, as worker 0 sees them, which accepts their connections.
//!
//! Owns: admission (`admission`), which session has which connections, how long a disconnected session is kept,
//! eviction, and the requests that concern the whole server. Does not own: the record of a session at a target
//! (`session`), connections and the requests on them (`front`: each worker has one).
//!
//! A session is logged on every target before its client is welcomed. A session's begin is recorded on target 0 last,
//! and its end there first. So after a crash in between, sessions that target 0 does not know are ended everywhere. If
//! other mounts exist, a new mount is welcomed when all of them have switched to shared mode (`company`). All of this
//! is done by the master. Other servers admit the mounts that the master knows (`follower`).
//!
//! Bound: one entry for each mount session that has not ended, at most `admission::MOUNTS_MAX`, and one for each
//! connected administrator.

mod admission;
mod admission_state;
mod audit;
mod clocks;
mod company;
mod deaf;
pub(crate) mod ending;
mod entry;
mod executing;
pub(crate) mod front;
mod gate;
mod keyed;
mod lines;
mod rule;
mod trust;
mod whole;

use crate::cluster::peers::Cluster;
use crate::message::TargetRequest;
use crate::records::SessionRecord;
use crate::tunables::Tunable;
use crate::worker::Worker;
use crate::worker::above::Clients;
use admission_state::AdmissionState;
use amphi_env::Env;
use amphi_transport::{ConnId, Guest, Handler, Incoming, Parcel, Peer, Secure};
use amphi_types::{Errno, Result, SessionId, TargetId};
use amphi_wire::{Answer, ClusterMap, Hello, Push, ROTATING_MAX, Reply, Request, Role, Welcome};
use audit::{Audit, Kind};
use entry::{Entry, Line, State};
use front::{Front, FrontMessage, Question};
use futures_channel::oneshot;
use gate::Gate;
use rule::Rule;
use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long the end of a session waits for its changes under way.
const FINISH: Duration = Duration::from_secs(20);
/// How often the end of a session checks for changes under way.
const LOOK: Duration = Duration::from_millis(1);
/// How often the server checks, for a session without a connection, whether its process has ended.
const HOLDER_LOOK: Duration = Duration::from_secs(1);

/// The reason why further connections of a session end.
const FIRST_ENDED: &str = "the first connection of the session has ended";

/// The report of a server about itself.
struct ServerFacts {
    /// Number of the cluster.
    cluster: u64,
    /// Random number of this run.
    boot: u64,
    started_ns: u64,
    /// Targets of this server on rotating storage, at most as many as fit into the message.
    rotating: Vec<TargetId>,
}

/// Clients of a server.
pub struct SessionManager<E: Env> {
    worker: Rc<Worker<E>>,
    /// The other servers.
    cluster: RefCell<Option<Rc<Cluster<E>>>>,
    /// The connections of this worker, and sending to those of other workers.
    front: Rc<Front<E>>,
    facts: ServerFacts,
    sessions: RefCell<BTreeMap<SessionId, Entry>>,
    /// The admission of clients.
    admission: AdmissionState,
    /// Whether there is one mount or several.
    rule: Rule,
    /// Tasks that wait for a change of the table of sessions.
    watchers: RefCell<Vec<oneshot::Sender<()>>>,
    /// The gates of connections whose clients have keys.
    gates: RefCell<BTreeMap<ConnId, Arc<Gate>>>,
    /// Connections over a network that were authenticated with the cluster key only.
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

    fn take(self: Rc<Self>, from: usize, message: Box<dyn Any + Send>) {
        if let Ok(message) = message.downcast::<FrontMessage>() {
            SessionManager::take(self, from, *message);
        }
    }
}

impl<E: Env> SessionManager<E> {
    /// A session manager with the sessions that the targets remember. Each of them has the grace time to reconnect.
    pub fn new(
        worker: Rc<Worker<E>>,
        front: Rc<Front<E>>,
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
            front,
            facts,
            sessions: RefCell::new(sessions),
            admission: AdmissionState::default(),
            rule: Rule::new(worker.env.wall().sec.max(0) as u64, now_ns),
            watchers: RefCell::default(),
            gates: RefCell::default(),
            by_cluster_key: RefCell::default(),
            audit: Audit::new(worker.config.audit.clone(), worker.config.audit_full),
            deaf: RefCell::default(),
            worker,
        });
        // The value permitted by an earlier run is not known, so the present value of the tunable is assumed.
        manager.rule.lend(manager.worker.tunables.get(Tunable::TokenMs));
        for id in ids {
            manager.keep_for_grace(id, 0);
        }
        manager
    }

    /// Sets whether mounts have to wait.
    pub fn hold_mounts(&self, held: bool) {
        self.admission.hold(held);
    }

    /// No client is admitted from now on.
    pub fn close(&self) {
        self.admission.close();
    }

    /// Returns whether any worker is executing a request: one of a given session, or any request.
    pub async fn is_executing(&self, session: Option<SessionId>) -> bool {
        self.front.any(|| Question::Executing(session)).await
    }

    /// Says goodbye on every connection of every worker.
    pub fn shutdown(&self) {
        self.front.connections.shutdown();
        for worker in 1..usize::from(self.worker.workers) {
            self.front.tell(worker, FrontMessage::Shutdown);
        }
    }

    /// Returns whether there is a connection at any worker.
    pub async fn is_any_connected(&self) -> bool {
        self.front.any(|| Question::Connected).await
    }

    /// Ends every connection of a session.
    pub fn cut_all(&self, why: &str) {
        let lines: Vec<Line> = self.sessions.borrow().values().flat_map(Entry::lines).copied().collect();
        lines.into_iter().for_each(|line| self.cut(line, why));
    }

    /// Sends a message to a session's client. Without a connection the message is lost, and the client presents its
    /// state again when it reconnects.
    pub fn push(self: &Rc<Self>, session: SessionId, push: Push) {
        let to = self.sessions.borrow().get(&session).and_then(|e| Some((e.conn?, e.owner)));
        if let Some((line, owner)) = to {
            self.listen_for_answer(session, line.conn, &push);
            self.push_by(line, trust::as_told(owner, push));
        }
    }

    fn push_by(&self, line: Line, push: Push) {
        match line.worker {
            0 => drop(self.front.connections.push(line.conn, push)),
            worker => self.front.tell(usize::from(worker), FrontMessage::Push { conn: line.conn, push }),
        }
    }

    /// Ends a connection, wherever it is served.
    fn cut(&self, line: Line, why: &str) {
        match line.worker {
            0 => drop(self.front.connections.cut(line.conn, why)),
            worker => self.front.tell(usize::from(worker), FrontMessage::Cut { conn: line.conn, why: why.into() }),
        }
    }

    /// Sets the interface to the other servers.
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

    /// Informs every mount that there is a newer map.
    pub fn push_map(&self, epoch: u64) {
        let sessions = self.sessions.borrow();
        for line in sessions.values().filter(|e| e.role == Role::Mount).filter_map(|e| e.conn) {
            self.push_by(line, Push::Map { epoch });
        }
    }

    /// Writes a new map into the audit log.
    pub(crate) fn note_map(&self, map: &ClusterMap) {
        let servers: Vec<&str> = map.servers.iter().map(|s| s.name.as_str()).collect();
        self.audit(Kind::Map, &[("epoch", &map.epoch.to_string()), ("servers", &servers.join(" "))]);
    }

    /// Sets tunables of this server to the values that were set on another one.
    pub async fn set_tunables(&self, pattern: &str, value: &str) -> Result<()> {
        self.worker.tunables.apply(pattern, Some(value))?;
        for target in self.worker.routes.local() {
            self.worker.tell(*target, TargetRequest::Tune).await?;
        }
        Ok(())
    }

    /// Called when a session has ended on another server, so its connection is closed.
    pub fn leave(&self, session: SessionId) {
        let entry = self.sessions.borrow_mut().remove(&session);
        entry.iter().flat_map(Entry::lines).for_each(|line| self.cut(*line, "the session has ended"));
    }

    /// Waits until nothing of a session is being executed, at most `FINISH`: it begins again under its id.
    pub async fn idle(&self, session: SessionId) {
        let until = self.worker.env.now() + FINISH;
        while self.is_executing(Some(session)).await && self.worker.env.now() < until {
            self.worker.env.sleep(LOOK).await;
        }
    }

    /// Returns whether a session has a connection to this server.
    pub fn is_connected(&self, session: SessionId) -> bool {
        self.sessions.borrow().get(&session).is_some_and(|e| e.conn.is_some())
    }

    /// Returns how long a disconnected session is kept.
    pub fn grace(&self) -> Duration {
        Duration::from_millis(self.worker.tunables.get(Tunable::SessionGraceMs))
    }
}

/// A `SessionManager` as the transport calls it.
pub struct SessionHandler<E: Env>(pub Rc<SessionManager<E>>);

/// How a connection is protected. `None` means that it does not leave the machine.
fn secure_of(peer: &Peer) -> Option<Secure> {
    (!peer.unix && !peer.in_process).then_some(peer.secure)
}

impl<E: Env> Handler for SessionHandler<E> {
    async fn hello(&self, hello: &Hello, peer: &Peer) -> std::result::Result<Welcome, String> {
        self.0.welcome(hello, peer).await
    }

    fn place(&self, hello: &Hello, welcome: &Welcome, _: &Peer) -> Option<usize> {
        self.0.place(hello, welcome)
    }

    fn hand_over(&self, to: usize, guest: Guest, peer: &Peer, parcel: Parcel) {
        let manager = &self.0;
        let owner = {
            let sessions = manager.sessions.borrow();
            sessions.get(&guest.session).filter(|e| e.state == State::Alive).map(|e| e.owner)
        };
        let allowed = manager.set_gate(guest, peer);
        let (Some(owner), Ok(())) = (owner, &allowed) else {
            // The session ended between its welcome and now, or its key was removed.
            if let Err(why) = allowed {
                tracing::info!("{}: cut: {why}", peer.addr);
            }
            manager.forget_gate(guest.conn);
            manager.front.connections.came_back();
            return drop(parcel);
        };
        let gate = manager.gate(guest.conn);
        manager.front.tell(to, FrontMessage::Adopt { parcel, owner, gate });
        manager.connected(guest, Line::new(to as u16, guest.conn), peer);
    }

    fn connected(&self, guest: Guest, peer: &Peer) {
        if let Err(why) = self.0.set_gate(guest, peer) {
            self.0.front.connections.cut(guest.conn, &why);
            return;
        }
        self.0.connected(guest, Line::new(0, guest.conn), peer);
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
    fn connected(self: &Rc<Self>, guest: Guest, line: Line, peer: &Peer) {
        let Guest { session, role, link, conn } = guest;
        if role == Role::Server {
            if let Some(cluster) = self.cluster() {
                cluster.callers.connected(session, conn);
            }
            return;
        }
        let is_master = self.cluster().is_none_or(|c| c.is_master());
        let (again, before) = {
            let mut sessions = self.sessions.borrow_mut();
            match sessions.get_mut(&session).filter(|e| e.state == State::Alive) {
                Some(entry) if link > 0 => {
                    let before = entry.more.insert(link, line);
                    drop(sessions);
                    self.replaced(before, line);
                    return self.push_again_by(session, line);
                }
                Some(entry) => {
                    let before = entry.conn.replace(line);
                    (entry.secure, entry.memory) = (secure_of(peer), peer.memory);
                    entry.epoch += 1;
                    // Other servers than the master forget a connection with its end.
                    ((entry.epoch > 1 || !is_master) && role == Role::Mount, before)
                }
                None => {
                    // The session ended between its welcome and now.
                    drop(sessions);
                    self.cut(line, "the session has ended");
                    return;
                }
            }
        };
        self.replaced(before, line);
        self.tell_company(session);
        self.ring();
        if again {
            self.push_again(session);
        }
    }

    /// Called when a connection has replaced another one of the same number. If the same worker serves both, that
    /// worker has already closed the earlier one.
    fn replaced(&self, before: Option<Line>, by: Line) {
        if let Some(before) = before.filter(|before| before.worker != by.worker) {
            self.cut(before, "a newer connection of the session took over");
        }
    }

    /// Works as `push_again`, for the connection that the targets of one worker use.
    fn push_again_by(self: &Rc<Self>, session: SessionId, line: Line) {
        let targets: Vec<TargetId> = self.targets_by(session, line.conn);
        let worker = self.worker.clone();
        self.worker.env.spawn(async move {
            for target in targets {
                let _ = worker.tell(target, TargetRequest::PushAgain(session)).await;
            }
        });
    }

    /// Targets of this server whose questions to a session are sent on this connection.
    fn targets_by(&self, session: SessionId, conn: ConnId) -> Vec<TargetId> {
        let sessions = self.sessions.borrow();
        let Some(entry) = sessions.get(&session) else { return Vec::new() };
        let owner = |target: TargetId| self.worker.routes.owner(target).unwrap_or(0) as u16;
        let by = |target: &&TargetId| entry.line_of(owner(**target)).is_some_and(|line| line.conn == conn);
        self.worker.routes.local().iter().filter(by).copied().collect()
    }

    /// Pushes that were not answered may have been lost with an earlier connection.
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
        let gate = self.gate(incoming.route.conn);
        let squashed = |gate: &Gate| {
            if gate.is_noteworthy() {
                self.note_squashed(gate);
            }
        };
        let connections = &self.front.connections;
        if let Err(e) = front::may_ask(&mut incoming, gate.as_deref(), squashed) {
            connections.reply(incoming.route, refused(e), None);
        } else if incoming.role == Role::Server {
            match self.cluster() {
                Some(cluster) => cluster.call(incoming),
                None => drop(connections.reply(incoming.route, refused(Errno::Io), None)),
            }
        } else if matches!(incoming.call.op, Request::Map) {
            connections.reply(incoming.route, Answer::of(self.map()), None);
        } else if front::is_whole(&incoming.call.op) {
            let manager = self.clone();
            self.front.executing.begin(None);
            self.worker.env.spawn(async move {
                let (route, session) = (incoming.route, incoming.session);
                let (answer, over) = manager.serve(incoming).await;
                manager.front.connections.reply(route, answer, None);
                if over {
                    manager.remove(session);
                }
                manager.front.executing.end(None);
            });
        } else if incoming.role != Role::Mount && !matches!(incoming.call.op, Request::StatFs) {
            connections.reply(incoming.route, refused(Errno::Perm), None);
        } else {
            self.front.execute(incoming, gate);
        }
    }

    fn map(&self) -> Result<Reply> {
        self.cluster().map(|c| Reply::Map(c.map())).ok_or(Errno::Proto)
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
            if entry.conn.is_none_or(|line| line.conn != conn) {
                // The session's other connections do not depend on this one.
                entry.more.retain(|_, line| line.conn != conn);
                return;
            }
            entry.conn = None;
            entry.epoch += 1;
            entry.heard_ns = self.worker.now_ns();
            // Only the master decides whether a mount has gone.
            if entry.role == Role::Admin || !is_master {
                let entry = sessions.remove(&session);
                drop(sessions);
                // The further connections of the mount reconnect after the first one.
                entry.iter().flat_map(|e| e.more.values()).for_each(|line| self.cut(*line, FIRST_ENDED));
                return;
            }
            entry.epoch
        };
        self.ring();
        self.keep_for_grace(session, epoch);
    }
}
