//! `Server`: one process' targets, workers and listeners: start, serve, stop.
//!
//! Owns: the order in which a server comes up and goes down. Does not own: what happens in between.
//!
//! Up: open every zone and load it; check that they are one whole cluster; only then write anything; finish what a crash
//! left; end sessions that had ended before; listen. On an error nothing was changed and one line says what to do.
//! Down: let nobody in, answer what runs, checkpoint, close.

use crate::config::{ServerConfig, SharedConfig};
use crate::counters::Counters;
use crate::error::{ServerError, ServerErrorKind};
use crate::folder;
use crate::front::{Door, Front, end_everywhere};
use crate::message::{Hail, Message, Question, Told};
use crate::target::Target;
use crate::tunables::{Defaults, SharedTunables, Tunables};
use crate::worker::{RING_MESSAGES, Worker};
use amphi_env::{Env, Listener};
use amphi_sched::{MeshRx, Port, mesh};
use amphi_transport::local::{LocalDialer, pair};
use amphi_transport::{Connections, serve, serve_local};
use amphi_types::{Errno, SessionId, TargetId};
use futures_channel::oneshot;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long connections may take to end when the server stops.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long requests may take to end when the server stops.
const FINISH: Duration = Duration::from_secs(20);
/// How often a stopping server looks whether all has ended.
const LOOK: Duration = Duration::from_millis(1);

/// A running server, as the thread of worker 0 has it.
pub struct Server<E: Env> {
    env: E,
    pub(crate) worker: Rc<Worker<E>>,
    front: Rc<Front<E>>,
    dialer: LocalDialer,
    addrs: Vec<String>,
    stop_listening: RefCell<Vec<oneshot::Sender<()>>>,
}

/// What the other workers of a server are started with.
pub struct WorkerSeed {
    config: ServerConfig,
    tunables: SharedTunables,
    port: Port<Message>,
    pool: u16,
}

/// What all workers of a server share, made before any of them starts.
pub struct Seeds {
    /// For worker 0.
    pub lead: WorkerSeed,
    /// For the others, in order.
    pub others: Vec<WorkerSeed>,
}

impl Seeds {
    /// Looks at the folder, formats it if it is new, and makes a seed for each worker.
    pub async fn prepare<E: Env>(env: &E, config: &ServerConfig) -> Result<Seeds, ServerError> {
        config.check()?;
        if folder::zones(env, &config.data_dir)?.is_empty() {
            // Nothing is made for a server that could not be reached.
            for addr in &config.listen {
                drop(listen(env, addr).await?);
            }
        }
        let pool = folder::prepare(env, config).await?;
        let tunables = Arc::new(Tunables::new(Defaults {
            session_grace: config.session_grace,
            callback_deadline: config.callback_deadline,
            worker_spin: config.worker_spin,
        }));
        let workers = usize::from(config.workers.min(pool));
        let seed = |port| WorkerSeed { config: config.clone(), tunables: tunables.clone(), port, pool };
        let mut seeds = mesh(workers, RING_MESSAGES).into_iter().map(seed);
        let Some(lead) = seeds.next() else {
            return Err(ServerError::new(ServerErrorKind::Config, "a server needs at least one worker"));
        };
        Ok(Seeds { lead, others: seeds.collect() })
    }
}

/// Runs a worker other than 0 until the server stops.
pub async fn run_worker<E: Env>(env: E, seed: WorkerSeed) {
    let (worker, mesh) = open_worker(env, seed).await;
    worker.run(mesh).await;
}

async fn open_worker<E: Env>(env: E, seed: WorkerSeed) -> (Rc<Worker<E>>, MeshRx<Message>) {
    let WorkerSeed { config, tunables, port, pool } = seed;
    let config: SharedConfig = Rc::new(config);
    let (tx, rx) = port.split();
    let counters = Rc::new(Counters::default());
    let mut targets: BTreeMap<TargetId, Rc<Target<E>>> = BTreeMap::new();
    let mut failure = None;
    for index in (tx.id()..usize::from(pool)).step_by(tx.workers()) {
        match folder::open_target(&env, &config, index as u16, pool, &counters).await {
            Ok(target) => drop(targets.insert(TargetId(index as u16), target)),
            Err(e) => {
                failure = Some(e);
                break;
            }
        }
    }
    (Worker::new(env, config, tunables, counters, tx, pool, targets, failure), rx)
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

    /// Starts worker 0 and with it the server; the other workers run, or will run, elsewhere.
    pub async fn lead(env: E, seed: WorkerSeed) -> Result<Rc<Server<E>>, ServerError> {
        let (worker, mesh) = open_worker(env.clone(), seed).await;
        env.spawn(worker.clone().run(mesh));
        let started = Self::come_up(env, worker.clone()).await;
        if started.is_err() {
            for target in 0..worker.pool {
                // Some may not have been opened; the error that counts is the one above.
                let _ = worker.ask(TargetId(target), Question::Release).await;
            }
            worker.stop();
        }
        started
    }

    async fn come_up(env: E, worker: Rc<Worker<E>>) -> Result<Rc<Server<E>>, ServerError> {
        let auth = worker.config.auth()?;
        let mut hails = Vec::new();
        for target in 0..worker.pool {
            match worker.ask(TargetId(target), Question::Hail).await {
                Ok(Told::Hail(hail)) => hails.push((*hail)?),
                _ => return Err(ServerError::new(ServerErrorKind::Disk, "a worker ended while the server started")),
            }
        }
        let cluster = check_hails(&worker.config, &hails)?;
        let disk = |e: Errno| ServerError::new(ServerErrorKind::Disk, format!("{}: {e}", worker.config.data_dir));
        for target in 0..worker.pool {
            worker.tell(TargetId(target), Question::Begin).await.map_err(disk)?;
        }
        for target in 0..worker.pool {
            worker.tell(TargetId(target), Question::Recover).await.map_err(disk)?;
        }
        let remembered = reconcile_sessions(&worker, &hails).await.map_err(disk)?;
        let connections = Connections::new();
        let front = Front::new(worker.clone(), connections.clone(), cluster, remembered);
        worker.set_front(&front);
        let door = Rc::new(Door(front.clone()));
        let (dialer, local) = pair();
        let mut stop_listening = Vec::new();
        let mut addrs = Vec::new();
        for addr in &worker.config.listen {
            let listener = listen(&env, addr).await?;
            addrs.push(listener.local_addr());
            let serving = serve(env.clone(), listener, door.clone(), connections.clone(), auth.clone());
            stop_listening.push(spawn_until(&env, async move {
                if let Err(e) = serving.await {
                    tracing::error!("{e}");
                }
            }));
        }
        stop_listening.push(spawn_until(&env, serve_local(env.clone(), local, door, connections)));
        let stop_listening = RefCell::new(stop_listening);
        Ok(Rc::new(Server { env, worker, front, dialer, addrs, stop_listening }))
    }

    /// Makes connections to this server inside its thread.
    pub fn dialer(&self) -> LocalDialer {
        self.dialer.clone()
    }

    /// Addresses that it listens on, in the order of the configuration.
    pub fn addrs(&self) -> &[String] {
        &self.addrs
    }

    /// Stops in order: lets nobody in, answers what runs, checkpoints and closes every target. Clients that come
    /// back to the next run within their grace time go on.
    pub async fn stop(&self) -> Result<(), ServerError> {
        self.front.close();
        self.stop_listening.borrow_mut().clear();
        self.front.connections().shutdown();
        self.wait(FAREWELL, || self.front.connections().count() == 0).await;
        self.front.cut_all("the server stops");
        if !self.wait(FINISH, || self.front.running() == 0).await {
            tracing::warn!("{} requests did not end in time", self.front.running());
        }
        let end = self.env.now() + FINISH;
        while !self.is_idle().await && self.env.now() < end {
            self.env.sleep(LOOK).await;
        }
        let mut result = Ok(());
        for target in 0..self.worker.pool {
            if let Err(e) = self.worker.tell(TargetId(target), Question::Close).await {
                let line = format!("{}: closing failed: {e}", self.worker.config.zone_path(target));
                result = Err(ServerError::new(ServerErrorKind::Disk, line));
            }
        }
        self.worker.stop();
        result
    }

    /// Whether no target has work that goes on in the background. A target that cannot say so has failed.
    async fn is_idle(&self) -> bool {
        for target in 0..self.worker.pool {
            if let Ok(Told::Outcome(false)) = self.worker.ask(TargetId(target), Question::Idle).await {
                return false;
            }
        }
        true
    }

    async fn wait(&self, at_most: Duration, done: impl Fn() -> bool) -> bool {
        let end = self.env.now() + at_most;
        while !done() {
            if self.env.now() >= end {
                return false;
            }
            self.env.sleep(LOOK).await;
        }
        true
    }
}

async fn listen<E: Env>(env: &E, addr: &str) -> Result<E::Listener, ServerError> {
    let failed = |e| ServerError::new(ServerErrorKind::Listen, format!("cannot listen on {e}; choose another address"));
    env.listen(addr).await.map_err(|e: std::io::Error| failed(e))
}

/// Spawns a task that ends when the returned sender is dropped.
fn spawn_until<E: Env>(env: &E, task: impl Future<Output = ()> + 'static) -> oneshot::Sender<()> {
    let (sender, dropped) = oneshot::channel::<()>();
    env.spawn(async move {
        futures_util::future::select(std::pin::pin!(task), dropped).await;
    });
    sender
}

fn check_hails(config: &ServerConfig, hails: &[Hail]) -> Result<u64, ServerError> {
    let cluster = hails.first().map_or(0, |h| h.cluster);
    for (i, hail) in hails.iter().enumerate() {
        let path = config.zone_path(i as u16);
        if hail.cluster != cluster {
            return Err(ServerError::new(
                ServerErrorKind::Mismatch,
                format!(
                    "{path} belongs to cluster {:016x}, {} to {cluster:016x}; put each cluster's zones into a folder of \
                     its own",
                    hail.cluster,
                    config.zone_path(0)
                ),
            ));
        }
        if usize::from(hail.pool) != hails.len() {
            return Err(ServerError::new(
                ServerErrorKind::Mismatch,
                format!(
                    "{path} belongs to a cluster of {} targets, but the folder has {}; put the missing ones back",
                    hail.pool,
                    hails.len()
                ),
            ));
        }
    }
    Ok(cluster)
}

/// What target 0 knows is a session; what only others know has ended, or never began.
async fn reconcile_sessions<E: Env>(
    worker: &Rc<Worker<E>>,
    hails: &[Hail],
) -> amphi_types::Result<Vec<(SessionId, crate::records::SessionRecord)>> {
    let known: BTreeMap<_, _> = hails.first().map(|h| h.sessions.iter().cloned().collect()).unwrap_or_default();
    for (i, hail) in hails.iter().enumerate() {
        for (id, _) in hail.sessions.iter().filter(|(id, _)| !known.contains_key(id)) {
            end_everywhere(worker, *id).await?;
        }
        let here: Vec<SessionId> = hail.sessions.iter().map(|(id, _)| *id).collect();
        for (id, record) in known.iter().filter(|(id, _)| !here.contains(id)) {
            worker.tell(TargetId(i as u16), Question::SessionStart(*id, record.clone())).await?;
        }
    }
    Ok(known.into_iter().collect())
}
