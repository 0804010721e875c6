//! The servers of a cluster: their configuration, how they are started, stopped and crashed, and the check of their
//! zones.
//!
//! Owns: one running process for each server's node. Does not own: when one crashes (`run`).
//!
//! As with real processes, servers are started in any order: a server that joins waits for the master, and may learn
//! its address from any server.

use super::{CALLBACK_DEADLINE, Cluster, GRACE, KEY, LOOK, SERVERS, addr};
use crate::plant::{self, Plant};
use amphi_env::Env;
use amphi_env::sim::CrashKind;
use amphi_server::{Report, Server, ServerConfig};
use amphi_transport::local::LocalDialer;
use futures_util::future::join_all;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const DIR: &str = "/data";
/// Servers that are started or stopped together begin within this many microseconds.
const TOGETHER_US: u64 = 3_000_000;
/// One loss of power in this many only destroys the memory that outlives the process.
const GONE_ONE_IN: u64 = 4;

/// Messages between the controller and a server's task.
#[derive(Default)]
pub(super) struct Running {
    /// Leads to the server inside its process.
    pub(super) dialer: RefCell<Option<LocalDialer>>,
    ready: Cell<bool>,
    stop: Cell<bool>,
    stopped: Cell<bool>,
    failed: RefCell<Option<String>>,
}

impl Cluster {
    fn server_config(&self, at: usize) -> ServerConfig {
        let gone = self.gone.clone();
        let mut config = ServerConfig::new(DIR);
        config.roomy_bytes = 64 << 10;
        config.targets = Some(self.shape.targets_of(at));
        config.workers = self.shape.workers;
        config.zone_bytes = Some(self.shape.zone_bytes);
        config.log_bytes = 1 << 20;
        (config.secure, config.peers_secure) = (self.shape.secure, self.shape.secure);
        let forgets = plant::active() == Some(Plant::ForgottenSessions);
        config.inodes_bytes = self.shape.inodes_bytes;
        config.tunables.clone_from(&self.shape.server_tunables);
        config.session_grace = if forgets { Duration::ZERO } else { GRACE };
        config.callback_deadline = CALLBACK_DEADLINE;
        if self.loses_messages.get() {
            config.tunables.push(("server.deaf_ms".into(), "0".into()));
        }
        config.holder_gone = Arc::new(move |name| gone.lock().is_ok_and(|g| g.contains(name)));
        if !self.shape.embedded || self.shape.mounts > 1 || self.shape.servers > 1 {
            config.listen = vec![addr(at)];
            config.key = Some(KEY.to_vec());
        }
        if self.shape.servers > 1 {
            config.name = SERVERS[at].into();
        }
        if at > 0 {
            config.join = vec![addr(self.order.borrow_mut().below(at as u64) as usize)];
        }
        config
    }

    /// All servers.
    pub fn all_servers(&self) -> Vec<usize> {
        (0..self.shape.servers).collect()
    }

    /// Returns whether the process of server `at` runs.
    pub fn server_lives(&self, at: usize) -> bool {
        self.sim.alive(SERVERS[at])
    }

    /// Starts a server and waits until it serves. A server that crashes on its way up, because a crash was armed, is
    /// started again.
    ///
    /// Errors: the line with which it refused.
    pub async fn start_server(&self, at: usize) -> Result<(), String> {
        let node = SERVERS[at];
        loop {
            let env = self.sim.node(node);
            let running = Rc::new(Running::default());
            *self.servers[at].borrow_mut() = running.clone();
            let (config, told, own) = (self.server_config(at), running.clone(), env.clone());
            env.spawn(async move {
                match Server::start(own.clone(), config).await {
                    Ok(server) => {
                        *told.dialer.borrow_mut() = Some(server.dialer());
                        told.ready.set(true);
                        while !told.stop.get() {
                            own.sleep(LOOK).await;
                        }
                        told.dialer.borrow_mut().take();
                        if let Err(e) = server.stop().await {
                            *told.failed.borrow_mut() = Some(format!("the stop of {node}: {e}"));
                        }
                        told.stopped.set(true);
                    }
                    Err(e) => *told.failed.borrow_mut() = Some(format!("the start of {node}: {e}")),
                }
            });
            let up = || running.ready.get() || running.failed.borrow().is_some() || !self.sim.alive(node);
            self.wait(&format!("the start of {node}"), up).await?;
            if let Some(e) = running.failed.borrow().clone() {
                return Err(e);
            }
            if self.sim.alive(node) {
                return Ok(());
            }
        }
    }

    /// Starts these servers, in any order; returns when all serve.
    ///
    /// Errors: the line with which the first of them refused.
    pub async fn start_servers(&self, which: &[usize]) -> Result<(), String> {
        let all = join_all(which.iter().map(|at| async move {
            self.one_of(which.len()).await;
            self.start_server(*at).await
        }));
        all.await.into_iter().collect::<Result<(), String>>()?;
        // One server may have crashed while the others started, because a crash was armed.
        for at in which {
            if !self.server_lives(*at) {
                self.start_server(*at).await?;
            }
        }
        Ok(())
    }

    /// Stops all servers in order, each by itself.
    ///
    /// Errors: the line with which one failed.
    pub async fn stop_servers(&self) -> Result<(), String> {
        let all = join_all((0..self.shape.servers).map(|at| async move {
            self.one_of(self.shape.servers).await;
            self.stop_server(at).await
        }));
        all.await.into_iter().collect()
    }

    /// A random pause before what several servers do.
    async fn one_of(&self, count: usize) {
        if count > 1 {
            let us = self.order.borrow_mut().below(TOGETHER_US);
            self.env.sleep(Duration::from_micros(us)).await;
        }
    }

    async fn stop_server(&self, at: usize) -> Result<(), String> {
        let running = self.servers[at].borrow().clone();
        running.stop.set(true);
        let done = || running.stopped.get() || running.failed.borrow().is_some() || !self.server_lives(at);
        self.wait(&format!("the stop of {}", SERVERS[at]), done).await?;
        running.failed.borrow().clone().map_or(Ok(()), Err)?;
        if self.shape.servers > 1 {
            // Operations that still wait for other servers end with the process.
            self.crash_server(at, CrashKind::Process);
        }
        Ok(())
    }

    /// Crashes a server's node. Sometimes, instead of a loss of power, its process is killed and the memory that
    /// outlives it is lost as well: the state that has to be there afterwards, and the notified mounts, are the same.
    pub fn crash_server(&self, at: usize, kind: CrashKind) {
        self.servers[at].borrow().dialer.borrow_mut().take();
        let keeps = self.shape.sim.keeps;
        if kind == CrashKind::Power && keeps && self.order.borrow_mut().one_in(GONE_ONE_IN) {
            self.sim.crash(SERVERS[at], CrashKind::Process);
            self.sim.forget_kept(SERVERS[at]);
        } else {
            self.sim.crash(SERVERS[at], kind);
        }
    }

    /// Checks the zones of the stopped servers, all together; returns their contents.
    ///
    /// Errors: a line for each problem.
    pub async fn fsck(&self) -> Result<Report, Vec<String>> {
        let found = Rc::new(RefCell::new(None));
        let folders: Vec<_> = (0..self.shape.servers).map(|at| (self.sim.node(SERVERS[at]), DIR.to_string())).collect();
        let told = found.clone();
        self.sim.node(SERVERS[0]).spawn(async move {
            let report = amphi_server::fsck_folders(&folders, amphi_server::CheckData::Yes).await;
            *told.borrow_mut() = Some(report);
        });
        self.wait("the check of the zones", || found.borrow().is_some()).await.map_err(|e| vec![e])?;
        match found.borrow_mut().take() {
            Some(Ok(report)) if report.is_clean() => Ok(report),
            Some(Ok(report)) => Err(report.findings.iter().map(|f| format!("zone check: {f}")).collect()),
            Some(Err(e)) => Err(vec![format!("zone check: {e}")]),
            None => Err(vec!["zone check: ended without a report".into()]),
        }
    }
}
