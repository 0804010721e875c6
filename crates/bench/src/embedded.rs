//! A cluster with the client library in the benchmark's own process: the server inside it, or beside it behind a
//! socket.

use super::program::Program;
use super::round_trip::Way;
use amphi_client::Client;
use amphi_host::client::Running;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_sched::WorkerConfig;
use amphi_server::ServerConfig;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// Server and client in this process, as in `amphi up`, without a mount.
pub struct Embedded {
    /// Taken when stopped.
    running: Option<Running>,
    client: Client,
    dir: PathBuf,
}

impl Embedded {
    /// Starts both in the fresh folder `dir`.
    pub fn start(dir: &Path) -> Outcome<Embedded> {
        let data = dir.join("data");
        std::fs::create_dir_all(&data).during(|| format!("make {}", data.display()))?;
        let Some(text) = data.to_str() else {
            return Err(Failure::refused(format!("{}: the path must be UTF-8", data.display())));
        };
        let config = amphi_host::client::client_config(None, &[])?;
        let (ended, _) = mpsc::channel();
        let running = amphi_process::cluster::start_cluster(
            ServerConfig::new(text),
            WorkerConfig::default(),
            config,
            amphi_process::cluster::Around::default(),
            ended,
        )?;
        Ok(Embedded { client: running.client.clone(), running: Some(running), dir: dir.to_path_buf() })
    }

    /// Its client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Stops both and removes the folder.
    pub fn stop(mut self) -> Outcome {
        self.running.take().map_or(Ok(()), Running::stop)?;
        std::fs::remove_dir_all(&self.dir).during(|| format!("remove {}", self.dir.display()))
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = running.stop();
        }
    }
}

/// A server in a process of its own and a client in this one.
pub struct Remote {
    running: Option<Running>,
    client: Client,
    server: Option<Program>,
    dir: PathBuf,
}

impl Remote {
    /// Starts both.
    pub fn start(dir: &Path, way: Way) -> Outcome<Remote> {
        std::fs::create_dir_all(dir).during(|| format!("make {}", dir.display()))?;
        let (server, addr) = Program::server(&dir.join("data"), way)?;
        let config = amphi_host::client::client_config(None, &[])?;
        let (ended, _) = mpsc::channel();
        let own = dir.join("data").join(amphi_process::own_key::OWN_KEY);
        let key = amphi_host::cluster_key::read(own.exists().then_some(own.as_path()))?.map(|(_, key)| key);
        let running = amphi_host::client::start_client(vec![addr], key, super::DEFAULT_SPINS.1, config, ended)?;
        let client = running.client.clone();
        Ok(Remote { running: Some(running), client, server: Some(server), dir: dir.to_path_buf() })
    }

    /// Sets a tunable of the client or the server.
    pub fn set(&self, assignment: &str) -> Outcome {
        let (ctx, value) = (amphi_client::Ctx::root(), assignment.as_bytes());
        let mode = amphi_wire::XattrMode::Set;
        let set = self.client.setxattr(&ctx, amphi_types::Ino::ROOT, b"user.amphi.set", value, mode).wait(None);
        set.during(|| format!("set {assignment}"))
    }

    /// Its client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Stops both and removes the folder.
    pub fn stop(mut self) -> Outcome {
        self.running.take().map_or(Ok(()), Running::stop)?;
        self.server.take().map_or(Ok(()), Program::stop)?;
        std::fs::remove_dir_all(&self.dir).during(|| format!("remove {}", self.dir.display()))
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = running.stop();
        }
    }
}
