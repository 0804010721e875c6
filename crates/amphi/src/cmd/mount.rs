//! `amphi mount`: the client side alone.

use super::up::Mounting;
use crate::failure::{Failure, Outcome};
use crate::process::{self, Stop};
use amphi_transport::ClusterKey;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Mount a cluster, in the foreground; Ctrl-C, SIGTERM or umount ends it in order.
#[derive(Args, Debug)]
pub struct Mount {
    /// Address of a server: unix:PATH or tcp:HOST:PORT; may be repeated, they are tried in turn
    #[arg(long, required = true, value_name = "ADDR")]
    cluster: Vec<String>,
    /// Mount point; must exist
    dir: PathBuf,
    /// File with the cluster key
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// How long the connection's thread polls after its last work before it sleeps, microseconds
    #[arg(long, default_value_t = 50)]
    link_spin_us: u64,
    #[command(flatten)]
    mounting: Mounting,
}

/// The key as the link wants it.
pub fn cluster_key(path: Option<&std::path::Path>) -> Outcome<Option<ClusterKey>> {
    let key = process::read_key(path)?;
    key.map(|k| ClusterKey::new(&k).map_err(|e| Failure::refused(e.to_string()))).transpose()
}

impl Mount {
    /// Runs until a signal or an unmount ends it.
    pub fn run(self) -> Outcome {
        process::check_mount_point(&self.dir)?;
        let key = cluster_key(self.key.as_deref())?;
        let client = process::client_config(self.mounting.cache, &self.mounting.set)?;
        let stop = Stop::on_signals()?;
        let spin = Duration::from_micros(self.link_spin_us);
        let running = process::start_client(self.cluster.clone(), key, spin, client, stop.also())?;
        let session = match process::mount(running.client.clone(), &self.mounting.options(&self.dir), stop.also()) {
            Ok(session) => session,
            Err(e) => {
                let _ = running.stop();
                return Err(e);
            }
        };
        println!("ready {}", session.mount_point().display());
        stop.wait();
        process::unmount(&session, &running.client);
        running.stop()
    }
}
