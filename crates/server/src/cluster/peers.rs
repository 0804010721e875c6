//! `Cluster`: the other servers, as the worker with the connections sees them.
//!
//! Owns: the cluster map in force, sending requests to targets of other servers, and answering those of other servers.
//! Does not own: which servers may join (`membership::map`), the work of the master (`master`), the work of the other
//! servers (`follower`), the answers of targets (`dispatch`). `links` has the connections to other servers,
//! `membership::callers` the incoming ones, and `master_lease` does the work that depends on when the master's last
//! message arrived.
//!
//! A request to another server occupies a slot of a link, so requests that wait for names must leave slots for the
//! requests that end this wait. So the normal lane is for requests that wait for names, and their number is bounded
//! here. The urgent lane is for all other requests, which end by themselves. A request is executed once while its
//! receiver runs (`membership::callers`). After a restart of the receiver it is sent again, and each of these requests
//! may be repeated (`message::TargetRequest`).
//!
//! Bound: one link and one caller for each other server.

mod links;

use crate::cluster::keys::KeyBook;
use crate::cluster::sessions::SessionManager;
use crate::membership::callers::{Callers, Ticket};
use crate::membership::ended::{Begun, EndedSessions};
use crate::membership::follower_state::FollowerState;
use crate::membership::lease::MasterLease;
use crate::membership::master_state::MasterState;
use crate::membership::peer_link::STOPPING;
use crate::membership::peer_message::{PeerReply, PeerRequest};
use crate::message::{TargetReply, TargetRequest};
use crate::turns::{Turn, Turns};
use crate::worker::Worker;
use crate::worker::above::{Peers, Replying};
use amphi_env::Env;
use amphi_transport::{CallOptions, Connections, Incoming};
use amphi_types::{Cred, Errno, Result, TargetId};
use amphi_wire::{Answer, Call, ClusterMap, Lane, Reply, Request, ServerInfo};
use futures_channel::oneshot;
use links::Links;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Most requests to one other server that wait for names there. Together with the promises of `OPERATIONS_MAX`
/// operations and one wait for the lock on moving directories, these are fewer than the credits.
const WAITING_MAX: usize = 512;
/// How long work that can be done without a server waits for the answer of that server.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How often a task that waits for the lock on moving directories checks whether the master can be reached.
const LOCK_LOOK: Duration = Duration::from_secs(1);
/// The identity of this server.
pub(crate) struct ServerIdentity {
    /// The entry of the server in the cluster map.
    pub(crate) info: RefCell<ServerInfo>,
    /// Number of the cluster.
    pub(crate) cluster: u64,
    /// Random number of this run.
    pub(crate) boot: u64,
}

/// Requests that wait for their turn to query another server.
struct QuestionTurns {
    /// Requests that wait to query names on another server, by server.
    names: RefCell<BTreeMap<u64, Turns>>,
    /// Requests for the lock on moving directories.
    moves: Turns,
}

/// The other servers.
pub struct Cluster<E: Env> {
    pub(crate) worker: Rc<Worker<E>>,
    pub(crate) me: ServerIdentity,
    map: RefCell<ClusterMap>,
    links: Links<E>,
    asking: QuestionTurns,
    pub(crate) callers: Callers,
    manager: RefCell<Weak<SessionManager<E>>>,
    /// The targets may be asked.
    ready: Cell<bool>,
    pub(crate) closed: Cell<bool>,
    pub(crate) as_master: MasterState,
    pub(crate) as_follower: FollowerState,
    /// Which keys may connect to this server, and in which role.
    pub(crate) keys: KeyBook,
    /// On a server that is not the master: whether tokens are granted, and when the last message from the master
    /// arrived.
    pub(crate) lease: MasterLease,
    ended: EndedSessions,
}

impl<E: Env> Peers for Cluster<E> {
    fn ask(self: Rc<Self>, target: TargetId, question: TargetRequest) -> Replying {
        Box::pin(async move { Cluster::ask(&self, target, question).await })
    }
}

impl<E: Env> Cluster<E> {
    /// The cluster as a server knows it when it starts.
    pub fn new(worker: Rc<Worker<E>>, me: ServerInfo, map: ClusterMap, connections: Rc<Connections>) -> Rc<Cluster<E>> {
        let boot = worker.env.rand() | 1;
        worker.routes.follow(map.pool(), map.epoch);
        Rc::new(Cluster {
            me: ServerIdentity { info: RefCell::new(me), cluster: map.cluster, boot },
            links: Links::default(),
            asking: QuestionTurns { names: RefCell::default(), moves: Turns::new(1) },
            callers: Callers::new(connections),
            manager: RefCell::new(Weak::new()),
            map: RefCell::new(map),
            ready: Cell::new(false),
            closed: Cell::new(false),
            as_master: MasterState::new(boot),
            as_follower: FollowerState::default(),
            keys: KeyBook::default(),
            lease: MasterLease::default(),
            ended: EndedSessions::default(),
            worker,
        })
    }

    /// Sets the manager of the sessions.
    pub fn set_manager(&self, manager: &Rc<SessionManager<E>>) {
        *self.manager.borrow_mut() = Rc::downgrade(manager);
    }

    pub(crate) fn manager(&self) -> Result<Rc<SessionManager<E>>> {
        self.manager.borrow().upgrade().ok_or(Errno::NotConnected)
    }

    /// The map in force.
    pub fn map(&self) -> ClusterMap {
        self.map.borrow().clone()
    }

    /// Returns whether this server is the master.
    pub fn is_master(&self) -> bool {
        self.worker.routes.is_local(TargetId(0))
    }

    /// The number of this server.
    pub fn id(&self) -> u64 {
        self.me.info.borrow().id
    }

    /// Called when the targets have been recovered: questions of others are answered.
    pub fn set_ready(&self) {
        self.ready.set(true);
    }

    pub(crate) async fn until_ready(&self) {
        while !self.ready.get() {
            self.worker.env.sleep(Duration::from_millis(5)).await;
        }
    }

    /// All servers except this one.
    pub(crate) fn others(&self) -> Vec<ServerInfo> {
        let id = self.id();
        self.map.borrow().servers.iter().filter(|s| s.id != id).cloned().collect()
    }

    /// Applies a newer map: stores it, then uses it, then informs the mounts.
    pub(crate) async fn install(self: &Rc<Self>, map: ClusterMap) -> Result<()> {
        if map.epoch <= self.map.borrow().epoch {
            return Ok(());
        }
        if map.cluster != self.me.cluster || crate::membership::map::fault(&map).is_some() {
            return Err(Errno::Proto);
        }
        let keeper = self.worker.routes.local().first().copied().unwrap_or_default();
        self.worker.tell(keeper, TargetRequest::PutMap(Box::new(map.clone()))).await?;
        self.follow(map);
        Ok(())
    }

    /// Uses a newer map that is kept.
    pub(crate) fn follow(&self, map: ClusterMap) {
        if map.epoch <= self.map.borrow().epoch {
            return;
        }
        let epoch = map.epoch;
        self.links.follow(&map);
        self.worker.routes.follow(map.pool(), epoch);
        self.map.replace(map);
        if let Some(manager) = self.manager.borrow().upgrade() {
            manager.note_map(&self.map.borrow());
            manager.push_map(epoch);
        }
    }

    /// Asks a target of another server.
    pub async fn ask(self: &Rc<Self>, target: TargetId, question: TargetRequest) -> Result<TargetReply> {
        let mut server = self.server_of(target);
        if server.is_none() && !self.is_master() {
            self.refresh_map().await?;
            server = self.server_of(target);
        }
        let server = server.ok_or(Errno::Stale)?;
        if matches!(question, TargetRequest::MoveLock) {
            return self.ask_move_lock(server, target).await;
        }
        let (lane, _turn) = self.lane_of(server, &question).await;
        match self.ask_on(lane, server, PeerRequest::Target(target, question)).await? {
            PeerReply::Target(told) => Ok(told),
            _ => Err(Errno::Proto),
        }
    }

    fn server_of(&self, target: TargetId) -> Option<u64> {
        let map = self.map.borrow();
        map.server_of(target).and_then(|at| map.servers.get(at)).map(|s| s.id)
    }

    async fn lane_of(&self, server: u64, question: &TargetRequest) -> (Lane, Option<Turn>) {
        match question {
            // There are at most as many of these requests as turns of operations (`Worker::turn_for`).
            TargetRequest::Prepare { .. } => (Lane::Normal, None),
            TargetRequest::Place(..)
            | TargetRequest::View { asker: Some(_), .. }
            | TargetRequest::Open { .. }
            | TargetRequest::Ancestors { .. }
            // This one waits for the disk, and many files may be closed at once.
            | TargetRequest::Secured(_) => {
                let turns =
                    self.asking.names.borrow_mut().entry(server).or_insert_with(|| Turns::new(WAITING_MAX)).clone();
                (Lane::Normal, Some(turns.take().await))
            }
            _ => (Lane::Urgent, None),
        }
    }

    /// Requests the lock on moving directories. A server that could not be reached for long may grant the lock although
    /// the caller has given up. So the request itself is never given up, and a lock whose caller has gone is returned.
    async fn ask_move_lock(self: &Rc<Self>, server: u64, target: TargetId) -> Result<TargetReply> {
        let link = self.link_to(server).await?;
        let mut lock = pin!(async {
            let turn = self.asking.moves.take().await;
            let (sender, receiver) = oneshot::channel();
            let cluster = self.clone();
            self.worker.env.spawn(async move {
                let question = PeerRequest::Target(target, TargetRequest::MoveLock);
                let told = cluster.insist_on(Lane::Normal, server, question).await;
                drop(turn);
                if let Err(Ok(PeerReply::Target(TargetReply::Moving(number)))) = sender.send(told) {
                    cluster.worker.unlock_moves(number);
                }
            });
            receiver.await.unwrap_or(Err(Errno::Io))
        });
        while !link.has_given_up() {
            match amphi_env::timeout(&self.worker.env, LOCK_LOOK, &mut lock).await {
                Some(Ok(PeerReply::Target(told))) => return Ok(told),
                Some(Ok(_)) => return Err(Errno::Proto),
                Some(Err(e)) => return Err(e),
                None => {}
            }
        }
        Err(Errno::Io)
    }

    /// Sends a request to another server.
    pub async fn ask_server(self: &Rc<Self>, server: u64, question: PeerRequest) -> Result<PeerReply> {
        self.ask_on(Lane::Urgent, server, question).await
    }

    /// Sends a request to another server. `TimedOut` if it does not answer in time.
    pub async fn ask_soon(self: &Rc<Self>, server: u64, question: PeerRequest) -> Result<PeerReply> {
        let asked = self.ask_server(server, question);
        amphi_env::timeout(&self.worker.env, PATIENCE, asked).await.unwrap_or(Err(Errno::TimedOut))
    }

    async fn ask_on(self: &Rc<Self>, lane: Lane, server: u64, question: PeerRequest) -> Result<PeerReply> {
        self.question_on(lane, false, server, question).await
    }

    /// Works as `ask_on`, but waits until the other server can be reached again.
    async fn insist_on(self: &Rc<Self>, lane: Lane, server: u64, question: PeerRequest) -> Result<PeerReply> {
        self.question_on(lane, true, server, question).await
    }

    async fn question_on(
        self: &Rc<Self>,
        lane: Lane,
        insist: bool,
        server: u64,
        question: PeerRequest,
    ) -> Result<PeerReply> {
        let question = postcard::to_stdvec(&question).map_err(|_| Errno::TooBig)?;
        match self.call_on(lane, insist, server, Request::Ask { question }).await? {
            Reply::Told(told) => postcard::from_bytes(&told).map_err(|_| Errno::Proto),
            _ => Err(Errno::Proto),
        }
    }

    async fn call_on(self: &Rc<Self>, lane: Lane, insist: bool, server: u64, op: Request) -> Result<Reply> {
        let link = self.link_to(server).await?;
        let call = Call { target: TargetId(0), cred: Cred::root(), op };
        let options = CallOptions { lane, pad: 0, deadline: None, insist };
        let (answer, _) = link.call_with(options, call, None).await.map_err(|e| match e.errno() {
            // All of these errors mean the same: the other server cannot be reached.
            Errno::NotConnected => Errno::Io,
            errno => errno,
        })?;
        answer.result
    }

    /// Gets the master's map.
    pub(crate) async fn refresh_map(self: &Rc<Self>) -> Result<()> {
        let master = self.map.borrow().servers.first().map(|s| s.id).ok_or(Errno::Stale)?;
        let asked = self.call_on(Lane::Urgent, false, master, Request::Map);
        match amphi_env::timeout(&self.worker.env, PATIENCE, asked).await {
            Some(Ok(Reply::Map(map))) => self.install(map).await,
            Some(Err(e)) => Err(e),
            _ => Err(Errno::TimedOut),
        }
    }

    /// A request of another server.
    pub(crate) fn call(self: &Rc<Self>, incoming: Incoming) {
        let Some(ticket) = self.callers.begin(&incoming) else { return };
        let cluster = self.clone();
        self.worker.env.spawn(async move {
            let caller = ticket.server();
            let answer = Answer::of(match incoming.call.op {
                Request::Ask { question } => cluster.answer(&ticket, caller, &question).await,
                Request::Map => Ok(Reply::Map(cluster.map())),
                Request::Join { server, cluster: of, new_targets, epoch } if cluster.is_master() => {
                    cluster.join(server, of, new_targets, epoch).await
                }
                // A client that wants to join finds the master with this map.
                Request::Join { .. } => Ok(Reply::Map(cluster.map())),
                _ => Err(Errno::Perm),
            });
            cluster.callers.finish(ticket, answer);
        });
    }

    async fn answer(self: &Rc<Self>, ticket: &Ticket, caller: u64, question: &[u8]) -> Result<Reply> {
        let question: PeerRequest = postcard::from_bytes(question).map_err(|_| Errno::Proto)?;
        self.until_ready().await;
        let told = match question {
            PeerRequest::Target(target, question) if self.worker.routes.is_local(target) && question.is_for_peers() => {
                self.answer_for_target(ticket, target, question).await?
            }
            PeerRequest::Target(..) => return Err(Errno::Stale),
            PeerRequest::Install(map) => self.install(map).await.map(|()| PeerReply::Done)?,
            PeerRequest::SessionStart(session, record) => self.start_after_ends(session, record).await?,
            PeerRequest::SessionStop(session) => self.stop_here(session).await?,
            PeerRequest::SessionForget(session, stopped) => {
                let told = self.forget_here(session, stopped).await?;
                self.manager()?.idle(session.0).await;
                told
            }
            PeerRequest::Company(change) => self.told_company(change).await?,
            PeerRequest::Tune { pattern, value } => {
                self.manager()?.set_tunables(&pattern, &value).await?;
                PeerReply::Done
            }
            PeerRequest::Keys => PeerReply::Keys(Box::new((*self.keys.registry()).clone())),
            PeerRequest::SessionKey(session) => PeerReply::SessionKey(self.manager()?.key_id(session)),
            PeerRequest::InstallKeys(registry) => {
                self.install_keys(*registry).await?;
                PeerReply::Done
            }
            PeerRequest::Beat { .. } | PeerRequest::Sessions | PeerRequest::Evict { .. } => {
                self.answer_as_master(caller, question).await?
            }
        };
        postcard::to_stdvec(&told).map(Reply::Told).map_err(|_| Errno::TooBig)
    }

    async fn answer_for_target(
        self: &Rc<Self>,
        ticket: &Ticket,
        target: TargetId,
        question: TargetRequest,
    ) -> Result<PeerReply> {
        match question {
            TargetRequest::MoveUnlock(number) => self.callers.unlocked(ticket, number),
            // A session may have begun while this server was away. A session that has ended cannot open anything.
            TargetRequest::Open { session, .. } if !self.is_master() => drop(self.know_session(session).await),
            // A session that has ended cannot truncate anything either.
            TargetRequest::Trim(ref cut) if !self.is_master() => self.hear_of(cut.by).await?,
            // A late request of a session that has ended must not create again what is being removed here.
            TargetRequest::Destroy(_) if !self.is_master() => self.be_in_step().await?,
            _ => {}
        }
        let told = self.worker.ask(target, question).await?;
        if let TargetReply::Moving(number) = told
            && !self.callers.locked(ticket, number)
        {
            // The server that requested the lock has restarted or given up meanwhile.
            self.worker.tell(target, TargetRequest::MoveUnlock(number)).await?;
            return Err(Errno::Io);
        }
        Ok(PeerReply::Target(told))
    }

    /// Releases the locks on moving directories of a server that is gone.
    pub(crate) fn unlock_moves(self: &Rc<Self>, numbers: Vec<u64>) {
        for number in numbers {
            self.worker.tell_later(TargetId(0), TargetRequest::MoveUnlock(number));
        }
    }

    /// Remembers that a session has ended.
    pub(crate) fn note_ended(&self, session: Begun) {
        if let Some(oldest) = self.ended.note(session) {
            self.as_follower.forget_connection(oldest);
        }
    }

    pub(crate) fn has_ended(&self, session: Begun) -> bool {
        self.ended.has(session)
    }

    /// The server stops: it admits no client and sends no request any more.
    pub fn close(&self) {
        self.closed.set(true);
        self.callers.cut_all(STOPPING);
    }

    /// Ends the connections to other servers.
    pub async fn hang_up(&self) {
        self.links.close().await;
    }
}
