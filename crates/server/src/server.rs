//! `Server`: the targets, workers and listeners of one process: start, serve, stop.
//!
//! Owns: the order in which a server starts and stops. Does not own: the work of the server while it serves.
//!
//! Start: open every zone and load it; check that all zones belong to one server; join the cluster, or be its master.
//! Only then write to zones that existed before: finish what a crash interrupted, end sessions that had ended before,
//! and admit mounts. If an error occurs, nothing has been changed, and one line says what to do. Stop: admit no client,
//! answer the requests under way, make a checkpoint, close.

use crate::cluster::follower::Enlisted;
use crate::cluster::peers::Cluster;
use crate::cluster::sessions::ending::end_everywhere;
use crate::cluster::sessions::front::Front;
use crate::cluster::sessions::{SessionHandler, SessionManager};
use crate::config::{NewZones, ServerConfig, SharedConfig};
use crate::counters::Counters;
use crate::dispatch;
use crate::error::{ServerError, ServerErrorKind};
use crate::folder;
use crate::membership::map::{self, Belonging};
use crate::message::{Message, OpenReport, TargetReply, TargetRequest};
use crate::ops::scrub::scrub_agent;
use crate::records::HomeRecord;
use crate::tunables::{SharedTunables, Tunables};
use crate::worker::routes::{Routes, SharedRoutes};
use crate::worker::{Worker, ring_messages};
use crate::zone_target::Target;
use crate::zone_target::memory_watch::watch_memory;
use amphi_dlm::SessionEnd;
use amphi_env::{Env, Listener};
use amphi_sched::{MeshRx, Port, mesh};
use amphi_transport::local::{LocalDialer, pair};
use amphi_transport::{Connections, ServerAuth, serve, serve_local};
use amphi_types::{Errno, SessionId, TargetId};
use amphi_wire::{ClusterMap, Reply, ServerInfo};
use futures_channel::oneshot;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// How long connections may take to end when the server stops.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long requests may take to end when the server stops.
const FINISH: Duration = Duration::from_secs(20);
/// How often a stopping server checks whether all requests have ended.
const LOOK: Duration = Duration::from_millis(1);

/// A running server, as the thread of worker 0 holds it.
pub struct Server<E: Env> {
    env: E,
    pub(crate) worker: Rc<Worker<E>>,
    manager: Rc<SessionManager<E>>,
    pub(crate) cluster: Rc<Cluster<E>>,
    dialer: LocalDialer,
    addrs: Vec<String>,
    stop_listening: RefCell<Vec<oneshot::Sender<()>>>,
}

/// The properties that a server reports about itself.
pub struct Observed {
    /// The number of the server in the map.
    pub id: u64,
    /// The servers of the cluster, as this server knows them.
    pub map: ClusterMap,
    /// The server's answer to `Request::Status`.
    pub status: Reply,
    /// The server's counters, summed over its targets and workers.
    pub counters: Vec<(String, u64)>,
}

/// The values with which the other workers of a server are started.
pub struct WorkerSeed {
    config: ServerConfig,
    tunables: SharedTunables,
    port: Port<Message>,
    routes: SharedRoutes,
    enlisted: Option<Enlisted>,
}

/// The shared state of all workers of a server, made before any of them starts.
pub struct Seeds {
    /// The seed of worker 0.
    pub lead: WorkerSeed,
    /// The seeds of the other workers, in order.
    pub others: Vec<WorkerSeed>,
}

impl Seeds {
    /// Looks at the folder, formats it if it is new, and makes a seed for each worker.
    pub async fn prepare<E: Env>(env: &E, config: &ServerConfig) -> Result<Seeds, ServerError> {
        config.check()?;
        let tunables = Arc::new(Tunables::of(config)?);
        let mut addrs = config.advertise.clone();
        if folder::zones(env, &config.data_dir)?.is_empty() && config.new_zones != NewZones::Refused {
            // All addresses are checked first, so that nothing is made for a server that clients could not reach.
            for addr in &config.listen {
                let listened = listen(env, addr, config.socket_mode).await?.local_addr();
                if config.advertise.is_empty() {
                    addrs.push(listened);
                }
            }
        }
        let folder::Prepared { targets, enlisted } = folder::prepare(env, config, &addrs).await?;
        let workers = config.workers.min(targets.len() as u16);
        if workers < config.workers && config.workers_wanted {
            tracing::warn!(
                "{} workers are too many for {} targets, each of which has one worker: {workers} are used",
                config.workers,
                targets.len()
            );
        }
        let pool = enlisted.as_ref().map_or(0, |e| e.map.pool()) + targets.len() as u16;
        let routes = Arc::new(Routes::new(targets, workers, pool));
        let seed = |port| WorkerSeed {
            config: config.clone(),
            tunables: tunables.clone(),
            port,
            routes: routes.clone(),
            enlisted: enlisted.clone(),
        };
        let mut seeds = mesh(usize::from(workers), ring_messages(usize::from(workers))).into_iter().map(seed);
        let Some(lead) = seeds.next() else {
            return Err(ServerError::new(ServerErrorKind::Config, "a server needs at least one worker"));
        };
        Ok(Seeds { lead, others: seeds.collect() })
    }
}

/// Runs a worker other than 0 until the server stops.
pub async fn run_worker<E: Env>(env: E, seed: WorkerSeed) {
    let (worker, mesh, _) = open_worker(env, seed).await;
    let front = Front::new(worker.clone(), Connections::of_one_of(usize::from(worker.workers)));
    let clients: Weak<Front<E>> = Rc::downgrade(&front);
    worker.set_clients(clients);
    dispatch::run(worker, mesh).await;
}

async fn open_worker<E: Env>(env: E, seed: WorkerSeed) -> (Rc<Worker<E>>, MeshRx<Message>, Option<Enlisted>) {
    let WorkerSeed { config, tunables, port, routes, enlisted } = seed;
    let config: SharedConfig = Rc::new(config);
    let (tx, rx) = port.split();
    let counters = Rc::new(Counters::default());
    let mut targets: BTreeMap<TargetId, Rc<Target<E>>> = BTreeMap::new();
    let (mut failure, mut queues) = (None, BTreeMap::new());
    for &id in routes.local().iter().skip(tx.id()).step_by(tx.workers()) {
        match folder::open_target(&env, &config, &tunables, id.0, routes.pool(), &counters, &mut queues).await {
            Ok(target) => {
                env.spawn(scrub_agent(env.clone(), Rc::downgrade(&target), target.storage.verifier.listen()));
                if let Some(read) = &config.machine.read_file {
                    env.spawn(watch_memory(env.clone(), Rc::downgrade(&target), read.clone()));
                }
                target.tune_storage(&tunables);
                targets.insert(id, target);
            }
            Err(e) => {
                failure = Some(e);
                break;
            }
        }
    }
    let opened: Vec<_> = targets.values().cloned().collect();
    let worker =
        Worker::new(env, config, tunables, counters, tx, routes, targets, failure, dispatch::target_requests::answer);
    if !worker.config.tunables.is_empty() {
        opened.iter().for_each(|target| target.tune(&worker.env, &worker.tunables));
    }
    (worker, rx, enlisted)
}

impl<E: Env> Server<E> {
    /// Starts a server with all its workers as tasks of this thread.
    pub async fn start(env: E, config: ServerConfig) -> Result<Rc<Server<E>>, ServerError> {
        let Seeds { lead, others } = Seeds::prepare(&env, &config).await?;
        for seed in others {
            env.spawn(run_worker(env.clone(), seed));
        }
        Server::lead(env, lead).await
    }

    /// Starts worker 0 and with it the server. The other workers run, or will run, on other threads.
    pub async fn lead(env: E, seed: WorkerSeed) -> Result<Rc<Server<E>>, ServerError> {
        let (worker, mesh, enlisted) = open_worker(env.clone(), seed).await;
        env.spawn(dispatch::run(worker.clone(), mesh));
        let started = Self::come_up(env, worker.clone(), enlisted).await;
        if started.is_err() {
            for target in worker.routes.local() {
                // Some targets may not have been opened; the error that counts is the one above.
                let _ = worker.ask(*target, TargetRequest::Release).await;
            }
            worker.stop();
        }
        started
    }

    async fn come_up(env: E, worker: Rc<Worker<E>>, enlisted: Option<Enlisted>) -> Result<Rc<Server<E>>, ServerError> {
        let auth = worker.config.auth()?;
        let mut reports = Vec::new();
        for target in worker.routes.local() {
            match worker.ask(*target, TargetRequest::OpenReport).await {
                Ok(TargetReply::OpenReport(report)) => reports.push((*report)?),
                _ => return Err(ServerError::new(ServerErrorKind::Disk, "a worker ended while the server started")),
            }
        }
        let local = worker.routes.local();
        let belonging = map::belonging(local, &reports, |t| worker.config.zone_path(t.0))?;
        let disk = |e: Errno| ServerError::new(ServerErrorKind::Disk, format!("{}: {e}", worker.config.data_dir));
        let mut listeners = Vec::new();
        for addr in &worker.config.listen {
            listeners.push(listen(&env, addr, worker.config.socket_mode).await?);
        }
        let addrs: Vec<String> = listeners.iter().map(|l| l.local_addr()).collect();
        let connections = Connections::of_one_of(usize::from(worker.workers));
        let front = Front::new(worker.clone(), connections.clone());
        let is_new = enlisted.is_some();
        let (cluster, has_map) = know_cluster(&worker, belonging, enlisted, &addrs, &connections)?;
        let id = cluster.map().cluster;
        let peers: Weak<Cluster<E>> = Rc::downgrade(&cluster);
        worker.set_peers(peers);
        let is_master = cluster.is_master();
        cluster.remember_keys(&reports);
        let mut serving = Serving { env: env.clone(), auth, connections: connections.clone(), stops: Vec::new() };
        let home = HomeRecord { server: cluster.id(), targets: local.to_vec() };
        let begin = async || {
            for target in local {
                worker.tell(*target, TargetRequest::Begin(home.clone())).await.map_err(disk)?;
            }
            Ok(())
        };
        let mut early = None;
        let mut joined = true;
        if !is_master {
            // The master checks whether it can reach this server.
            let manager = SessionManager::new(worker.clone(), front.clone(), id, Vec::new());
            manager.hold_mounts(true);
            attach(&worker, &manager, &cluster);
            serving.listen(std::mem::take(&mut listeners), &worker.config, &manager);
            if is_new {
                // Zones that were made for this purpose record their server before the master does, so that a start
                // that is interrupted after the join can be repeated.
                begin().await?;
            }
            joined = cluster.come_in(has_map).await?;
            early = Some(manager);
        }
        if !is_master {
            cluster.begin_granting(reports.iter().any(|h| h.cut_off)).await.map_err(disk)?;
        }
        begin().await?;
        for target in local {
            worker.tell(*target, TargetRequest::Recover).await.map_err(disk)?;
        }
        for target in local {
            worker.tell(*target, TargetRequest::Reap).await.map_err(disk)?;
        }
        let manager = match early {
            Some(manager) => {
                cluster.keep_copy().await.map_err(disk)?;
                let version = cluster.remember(&reports, joined).await.map_err(disk)?;
                cluster.end_robbed(&reports).await.map_err(disk)?;
                cluster.set_ready();
                cluster.keep_step(joined, version);
                manager.hold_mounts(false);
                manager
            }
            None => {
                cluster.keep_map(has_map).await?;
                let remembered = reconcile_sessions(&worker, &cluster, &reports).await.map_err(disk)?;
                let manager = SessionManager::new(worker.clone(), front, id, remembered);
                attach(&worker, &manager, &cluster);
                manager.begin(reports.iter().any(|h| h.cut_off)).await.map_err(disk)?;
                let sessions = reports.first().into_iter().flat_map(|h| &h.sessions);
                cluster.as_master.note_begins(sessions.map(|(id, record)| (*id, record.start)));
                if reports.iter().any(|h| h.lost) {
                    manager.end_robbed();
                }
                cluster.set_ready();
                cluster.watch_servers();
                serving.listen(listeners, &worker.config, &manager);
                manager
            }
        };
        let dialer = serving.locally(&manager);
        let stop_listening = RefCell::new(serving.stops);
        Ok(Rc::new(Server { env, worker, manager, cluster, dialer, addrs, stop_listening }))
    }

    /// Makes connections to this server inside its thread.
    pub fn dialer(&self) -> LocalDialer {
        self.dialer.clone()
    }

    /// Addresses on which the server listens, in the order of the configuration.
    pub fn addrs(&self) -> &[String] {
        &self.addrs
    }

    /// The report of the server about itself, for its own process.
    ///
    /// Errors: a target does not answer any more.
    pub async fn observe(&self) -> amphi_types::Result<Observed> {
        let (status, counters) = self.manager.report().await?;
        Ok(Observed { id: self.cluster.id(), map: self.cluster.map(), status, counters })
    }

    /// Returns when every target of this server, and every worker that has a target, has answered. A target that has
    /// failed answers that it has failed.
    pub async fn hear_targets(&self) {
        for target in self.worker.routes.local() {
            let _ = self.worker.ask(*target, TargetRequest::Status).await;
        }
    }

    /// Stops in order: admits no client, answers requests under way, checkpoints and closes every target. Clients that
    /// connect to the next run within their grace time continue.
    pub async fn stop(&self) -> Result<(), ServerError> {
        self.manager.close();
        self.stop_listening.borrow_mut().clear();
        self.manager.shutdown();
        self.wait(FAREWELL, async || !self.manager.is_any_connected().await).await;
        self.manager.cut_all("the server stops");
        if !self.wait(FINISH, async || !self.manager.is_executing(None).await).await {
            tracing::warn!("some requests did not end in time");
        }
        let end = self.env.now() + FINISH;
        while !self.is_idle().await && self.env.now() < end {
            self.env.sleep(LOOK).await;
        }
        let mut result = Ok(());
        // Work that waits for other servers is finished after the next start.
        self.cluster.close();
        self.worker.give_up_waiting();
        self.cluster.hang_up().await;
        for target in self.worker.routes.local() {
            if let Err(e) = self.worker.tell(*target, TargetRequest::Close).await {
                let line = format!("{}: closing failed: {e}", self.worker.config.zone_path(target.0));
                result = Err(ServerError::new(ServerErrorKind::Disk, line));
            }
        }
        self.worker.stop();
        result
    }

    /// Returns whether no target has work that continues in the background. A target that cannot say so has failed.
    async fn is_idle(&self) -> bool {
        let mut idle = true;
        // All targets are closed concurrently, since one may wait for bytes that another has to sync.
        for target in self.worker.routes.local() {
            let told = self.worker.ask(*target, TargetRequest::Idle).await;
            idle &= !matches!(told, Ok(TargetReply::Outcome(false)));
        }
        idle
    }

    async fn wait(&self, at_most: Duration, done: impl AsyncFn() -> bool) -> bool {
        let end = self.env.now() + at_most;
        while !done().await {
            if self.env.now() >= end {
                return false;
            }
            self.env.sleep(LOOK).await;
        }
        true
    }
}

async fn listen<E: Env>(env: &E, addr: &str, socket_mode: u32) -> Result<E::Listener, ServerError> {
    let failed = |e| ServerError::new(ServerErrorKind::Listen, format!("cannot listen on {e}; choose another address"));
    let listener = env.listen(addr).await.map_err(|e: std::io::Error| failed(e))?;
    listener.set_mode(socket_mode).map_err(failed)?;
    Ok(listener)
}

/// Spawns a task that ends when the returned sender is dropped.
fn spawn_until<E: Env>(env: &E, task: impl Future<Output = ()> + 'static) -> oneshot::Sender<()> {
    let (sender, dropped) = oneshot::channel::<()>();
    env.spawn(async move {
        futures_util::future::select(std::pin::pin!(task), dropped).await;
    });
    sender
}

/// The information about the cluster in the zones, and from the master if it is another server. Returns whether a map
/// was stored with the zones.
fn know_cluster<E: Env>(
    worker: &Rc<Worker<E>>,
    belonging: Belonging,
    enlisted: Option<Enlisted>,
    addrs: &[String],
    connections: &Rc<Connections>,
) -> Result<(Rc<Cluster<E>>, bool), ServerError> {
    let config = &worker.config;
    let targets = worker.routes.local().to_vec();
    let is_master = targets.first() == Some(&TargetId(0));
    let id = match (&belonging.home, &enlisted) {
        (Some(home), _) => home.server,
        (None, Some(enlisted)) => enlisted.server,
        (None, None) => worker.env.rand() | 1,
    };
    let addrs = if config.advertise.is_empty() { addrs.to_vec() } else { config.advertise.clone() };
    let me = ServerInfo { id, name: config.name.clone(), addrs, targets };
    if let Some(map) = belonging.map.as_ref().filter(|m| m.cluster != belonging.cluster) {
        let line = format!("{}: the map kept here is that of cluster {:016x}", config.data_dir, map.cluster);
        return Err(ServerError::new(ServerErrorKind::Mismatch, line));
    }
    let has_map = belonging.map.is_some();
    let map = match (belonging.map, enlisted) {
        (Some(map), _) => map,
        (None, Some(enlisted)) => enlisted.map,
        (None, None) if is_master => map::first(belonging.cluster, me.clone()),
        (None, None) => ClusterMap { epoch: 0, cluster: belonging.cluster, servers: Vec::new() },
    };
    if !is_master && !has_map && config.join.is_empty() {
        let line = format!("{}: these are not the master's zones; name the master to join", config.data_dir);
        return Err(ServerError::new(ServerErrorKind::Mismatch, line));
    }
    Ok((Cluster::new(worker.clone(), me, map, connections.clone()), has_map))
}

/// Gives front, cluster and worker references to each other.
fn attach<E: Env>(worker: &Rc<Worker<E>>, manager: &Rc<SessionManager<E>>, cluster: &Rc<Cluster<E>>) {
    let clients: Weak<SessionManager<E>> = Rc::downgrade(manager);
    worker.set_clients(clients);
    cluster.set_manager(manager);
    manager.set_cluster(cluster.clone());
}

/// Listeners as they are started.
struct Serving<E: Env> {
    env: E,
    auth: ServerAuth,
    connections: Rc<Connections>,
    /// Dropping one of these senders ends its listener.
    stops: Vec<oneshot::Sender<()>>,
}

impl<E: Env> Serving<E> {
    /// `listeners` in the order of the configuration.
    fn listen(&mut self, listeners: Vec<E::Listener>, config: &ServerConfig, manager: &Rc<SessionManager<E>>) {
        for (listener, addr) in listeners.into_iter().zip(&config.listen) {
            let door = Rc::new(SessionHandler(manager.clone()));
            let auth = ServerAuth { secure: config.secure_of(addr), ..self.auth.clone() };
            let serving = serve(self.env.clone(), listener, door, self.connections.clone(), auth);
            self.stops.push(spawn_until(&self.env, async move {
                if let Err(e) = serving.await {
                    tracing::error!("{e}");
                }
            }));
        }
    }

    fn locally(&mut self, manager: &Rc<SessionManager<E>>) -> LocalDialer {
        let (dialer, local) = pair();
        let door = Rc::new(SessionHandler(manager.clone()));
        self.stops.push(spawn_until(&self.env, serve_local(self.env.clone(), local, door, self.connections.clone())));
        dialer
    }
}

/// A session that target 0 knows exists. A session that only other targets know has ended, or never began.
async fn reconcile_sessions<E: Env>(
    worker: &Rc<Worker<E>>,
    cluster: &Rc<Cluster<E>>,
    reports: &[OpenReport],
) -> amphi_types::Result<Vec<(SessionId, crate::records::SessionRecord)>> {
    let known: BTreeMap<_, _> = reports.first().map(|h| h.sessions.iter().cloned().collect()).unwrap_or_default();
    for (target, report) in worker.routes.local().iter().zip(reports) {
        for (id, _) in report.sessions.iter().filter(|(id, _)| !known.contains_key(id)) {
            end_everywhere(worker, Some(cluster), *id, SessionEnd::CutOff, || ()).await?;
        }
        let here: Vec<SessionId> = report.sessions.iter().map(|(id, _)| *id).collect();
        for (id, record) in known.iter().filter(|(id, _)| !here.contains(id)) {
            worker.tell(*target, TargetRequest::SessionStart(*id, record.clone())).await?;
        }
    }
    Ok(known.into_iter().collect())
}
