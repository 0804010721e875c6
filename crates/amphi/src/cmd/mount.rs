//! `amphi mount`: only the client side.

use super::metrics;
use super::up::Mounting;
use crate::secure::LeastSecure;
use crate::storage::spin_us;
use amphi_host::failure::Outcome;
use amphi_host::link::Credentials;
use amphi_host::signals::Stop;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Mount a cluster, in the foreground. Ctrl-C, SIGTERM, SIGHUP or umount ends it in order; a second signal at least a
/// second after the first ends it at once.
#[derive(Args, Debug)]
pub struct Mount {
    /// Address of a server: unix:PATH or tcp:HOST:PORT; may be repeated; the addresses are tried in turn
    #[arg(long, required = true, value_name = "ADDR")]
    cluster: Vec<String>,
    /// Mount point; must exist
    dir: PathBuf,
    /// File with the cluster key
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// File with this host's own key pair (amphi key make), which an administrator has added to the cluster
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    #[command(flatten)]
    secure: LeastSecure,
    /// How long the connection's thread polls after its last work before it sleeps, if nobody else needs the core;
    /// microseconds
    #[arg(long, default_value_t = 200, value_parser = spin_us())]
    link_spin_us: u64,
    #[command(flatten)]
    mounting: Mounting,
}

impl Mount {
    /// Runs until a signal or an unmount ends it.
    pub fn run(self) -> Outcome {
        self.mounting.watch_parent()?;
        amphi_process::mount::check_mount_point(&self.dir)?;
        let proves = self.secure.of(Credentials::read(self.key.as_deref(), self.identity.as_deref())?);
        let client = self.mounting.client_config()?;
        let stop = Stop::on_signals()?;
        let spin = Duration::from_micros(self.link_spin_us);
        let running = amphi_host::client::start_client(self.cluster.clone(), proves, spin, client, stop.also())?;
        let options = self.mounting.options(self.cluster.join(","), &self.dir, true);
        let mounted = amphi_host::client::set_on_servers(&running.client, &self.mounting.set)
            .and_then(|()| amphi_process::mount::mount(running.client.clone(), &options, stop.also()));
        let session = match mounted {
            Ok(session) => session,
            Err(e) => {
                let _ = running.stop();
                return Err(e);
            }
        };
        let numbers = metrics::serve_mount(running.client.clone());
        self.mounting.say_ready(session.mount_point());
        stop.wait();
        drop(numbers);
        amphi_host::notify::stopping("Writing back what the mount has");
        amphi_process::mount::end(&session, running)
    }
}
