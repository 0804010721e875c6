//! `amphi server`: only the storage side.

use super::metrics;
use crate::config_file::{ConfigFile, EXAMPLE};
use crate::members;
use crate::secure::{level, split_listen};
use crate::storage::{Storage, socket_mode, spin_us};
use crate::storage_kind::Rotational;
use amphi_env::{Env, RealEnv};
use amphi_host::client::AtEnd;
use amphi_host::failure::{Failure, Outcome};
use amphi_host::signals::Stop;
use amphi_host::size;
use amphi_host::{cluster_key, identity_file};
use amphi_process::audit_file::{self, WhenFull};
use amphi_process::own_key::{self, OwnKey};
use amphi_sched::WorkerConfig;
use amphi_server::config::NewZones;
use amphi_server::{ServerConfig, run_threads};
use amphi_transport::Secure;
use clap::Args;
use futures_channel::oneshot;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long a server may take to stop if it gets the request while it starts; then it ends at once.
const STARTING: Duration = Duration::from_secs(2);

/// Serve the zones of a folder: as the only server, as the master of a cluster, or as another server of one.
#[derive(Args, Debug)]
pub struct Server {
    /// Configuration file; options take precedence over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print a configuration file with every field explained
    #[arg(long)]
    example_config: bool,
    /// Name of the server, for people [default: the name of the machine]
    #[arg(long)]
    name: Option<String>,
    /// Folder with the zones
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Make the folder, if need be, and zones in it: for the first start of a server. Without this option a folder
    /// without zones is refused, because its disk may not be mounted
    #[arg(long)]
    format: bool,
    /// Number of targets; fixed at the first start [default there: 4]
    #[arg(long)]
    targets: Option<u16>,
    /// Size of each zone at the first start [default: 90 % of the free space over the targets]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    zone_size: Option<u64>,
    /// Size of each zone's log at the first start [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    log_size: Option<u64>,
    /// Address to listen on: unix:PATH or tcp:HOST:PORT; a TCP address may have a level as in --secure behind it, as
    /// tcp:HOST:PORT,secure=tls; may be repeated
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// How connections over TCP are protected: off, mac (each message is signed) or tls (all is encrypted) [default:
    /// mac]
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    secure: Option<Secure>,
    /// The least protection of connections to other servers that is accepted [default: what they offer]
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    peers_secure: Option<Secure>,
    /// Address that clients and other servers are told; may be repeated [default: those of --listen]
    #[arg(long, value_name = "ADDR")]
    advertise: Vec<String>,
    /// Server of the cluster to join; may be repeated; the servers are tried in turn. Without this option the server is
    /// the master
    #[arg(long, value_name = "ADDR")]
    join: Vec<String>,
    /// File with the cluster key (at least 16 random bytes, mode 0600) [default on TCP: one that the first server
    /// makes, cluster.key in its data folder]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// File with this server's own key pair (amphi key make): clients with keys are admitted, and other servers
    /// identify this server by it
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// Folder of the audit log, which says who was admitted, who was refused, and who changed keys and tunables
    /// [default with --identity: audit in the data folder; otherwise none]
    #[arg(long, value_name = "DIR")]
    audit: Option<PathBuf>,
    /// What to do while the audit log cannot be written: go on, or admit nobody new and change no keys [default: go-on]
    #[arg(long, value_name = "WHAT")]
    audit_full: Option<WhenFull>,
    /// Worker threads; targets are spread over them [default: half of the cores that the process may use, at least 1,
    /// and no more than there are targets]
    #[arg(long)]
    workers: Option<u16>,
    /// How long a worker polls after its last work before it sleeps, if nobody else needs the core; microseconds
    /// [default: 200]
    #[arg(long, value_parser = spin_us())]
    worker_spin_us: Option<u64>,
    /// Whether the zones lie on rotating disks; auto looks at their devices [default: auto]
    #[arg(long, value_name = "WHETHER")]
    rotational: Option<Rotational>,
    /// Permission bits of Unix sockets to listen on: who may connect. Users other than root and the user of the server
    /// act there only as themselves [default: 0600]
    #[arg(long, value_name = "MODE", value_parser = socket_mode)]
    socket_mode: Option<u32>,
    /// End when this process ends, which must be the parent
    #[arg(long, hide = true, value_name = "PID")]
    with_parent: Option<i32>,
}

fn or<T>(mine: Vec<T>, theirs: Vec<T>) -> Vec<T> {
    if mine.is_empty() { theirs } else { mine }
}

impl Server {
    /// Joins the options and the file.
    fn settings(&self) -> Outcome<(Storage, ServerConfig, Option<OwnKey>)> {
        let file = self.config.as_deref().map(ConfigFile::read).transpose()?.unwrap_or_default();
        let Some(data) = self.data.clone().or(file.data) else {
            return Err(Failure::refused("where are the zones? give --data DIR, or data in the configuration file"));
        };
        let workers = self.workers.or(file.workers);
        let storage = Storage {
            data,
            targets: self.targets.or(file.targets),
            zone_size: self.zone_size.or(file.zone_size),
            log_size: self.log_size.or(file.log_size).unwrap_or(64 << 20),
            workers,
            worker_spin_us: self.worker_spin_us.or(file.worker_spin_us).unwrap_or(200),
            rotational: self.rotational.or(file.rotational).unwrap_or_default(),
            format: self.format,
            socket_mode: self.socket_mode.or(file.socket_mode).unwrap_or(0o600),
        };
        let mut config = storage.config()?;
        config.new_zones = if self.format { NewZones::Wanted } else { NewZones::Refused };
        config.tunables = file.tunables;
        config.listen = or(self.listen.clone(), file.listen);
        split_listen(&mut config)?;
        config.secure = self.secure.or(file.secure).unwrap_or(config.secure);
        config.peers_secure = self.peers_secure.or(file.peers_secure).unwrap_or(config.peers_secure);
        if config.listen.is_empty() {
            return Err(Failure::refused(
                "nobody could reach it: give --listen ADDR, or listen in the configuration file",
            ));
        }
        config.advertise = or(self.advertise.clone(), file.advertise);
        config.join = or(self.join.clone(), file.join);
        config.name = self.name.clone().or(file.name).unwrap_or_else(amphi_host::link::host_name);
        amphi_process::cluster::settle_addresses(&mut config)?;
        let key = self.key.clone().or(file.key);
        config.key = cluster_key::read(key.as_deref())?.map(|(bytes, _)| bytes);
        let identity = self.identity.clone().or(file.identity.file);
        config.identity = identity.as_deref().map(identity_file::read).transpose()?;
        let own_audit = || identity.is_some().then(|| storage.data.join(audit_file::FOLDER));
        if let Some(folder) = self.audit.clone().or(file.identity.audit).or_else(own_audit) {
            config.audit = Some(audit_file::sink(&folder));
        }
        config.audit_full = self.audit_full.or(file.identity.audit_full).unwrap_or_default().into();
        config.socket_mode = storage.socket_mode;
        let own = own_key::of_server(&mut config, &storage.data)?;
        amphi_process::cluster::complete(&mut config);
        Ok((storage, config, own))
    }

    /// Serves until a signal.
    pub fn run(self) -> Outcome {
        if self.example_config {
            print!("{EXAMPLE}");
            return Ok(());
        }
        if let Some(parent) = self.with_parent {
            members::end_with(parent)?;
        }
        let (storage, config, own) = self.settings()?;
        serve(config, storage.workers(), own)
    }
}

/// Tells the service manager again and again that the server works: after every worker has answered.
async fn feed_watchdog(env: RealEnv, server: Weak<amphi_server::Server<RealEnv>>, every: Duration) {
    loop {
        env.sleep(every).await;
        let Some(server) = server.upgrade() else { return };
        server.hear_targets().await;
        amphi_host::notify::alive();
    }
}

/// Serves until a signal, or a panic of a worker.
#[expect(clippy::disallowed_methods, reason = "the thread that waits for the workers")]
fn serve(config: ServerConfig, workers: WorkerConfig, own: Option<OwnKey>) -> Outcome {
    let stop = Stop::on_signals()?;
    let (end, ends) = oneshot::channel::<()>();
    let (up, is_up) = mpsc::channel();
    let (woken, ended) = (stop.also(), stop.also());
    let panicked = Arc::<AtomicBool>::default();
    let flag = panicked.clone();
    let (numbers, questions) = metrics::serve_server();
    let thread = std::thread::spawn(move || {
        let _end = AtEnd(move |panic| {
            flag.store(panic, Ordering::Release);
            let _ = ended.send(());
        });
        run_threads(config, workers, move |env, server| {
            Box::pin(async move {
                if let Some(every) = amphi_host::notify::watchdog() {
                    env.spawn(feed_watchdog(env.clone(), Rc::downgrade(&server), every));
                }
                env.spawn(metrics::answer(Rc::downgrade(&server), questions));
                let _ = up.send(server.addrs().to_vec());
                let _ = woken.send(());
                let _ = ends.await;
            })
        })
    });
    // The server serves, has ended, or was asked to stop.
    stop.wait();
    let addrs = match is_up.try_recv() {
        Ok(addrs) => Some(addrs),
        Err(mpsc::TryRecvError::Disconnected) => None,
        // Other threads may still run, and hold the sender that has not sent anything.
        Err(mpsc::TryRecvError::Empty) if panicked.load(Ordering::Acquire) => None,
        Err(mpsc::TryRecvError::Empty) => match is_up.recv_timeout(STARTING) {
            Err(mpsc::RecvTimeoutError::Timeout) => {
                tracing::info!("stopped while it started");
                return Ok(());
            }
            Ok(_) | Err(mpsc::RecvTimeoutError::Disconnected) => None,
        },
    };
    let mut kept = Ok(());
    if let Some(addrs) = addrs {
        kept = own.map_or(Ok(()), |own| own.keep());
        if kept.is_ok() {
            amphi_host::say::say_ready(addrs.join(" "));
            stop.wait();
            amphi_host::notify::stopping("Writing checkpoints");
        }
    }
    drop(numbers);
    let _ = end.send(());
    match thread.join() {
        Ok(result) => result.map_err(amphi_process::cluster::server_failure).and(kept),
        Err(_) => Err(amphi_host::client::panicked()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_host::client::client_config;
    use amphi_process::cluster::Around;
    use amphi_process::cluster::start_cluster;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio, exit};

    /// Tells this test's program its role, and its folder.
    const PART: &str = "AMPHI_TEST_PART";
    /// Code of a process that would not end.
    const STAYED: i32 = 99;

    #[expect(clippy::disallowed_methods, reason = "the thread that ends what does not end")]
    fn play(part: &str, folder: &str) -> ! {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(60));
            exit(STAYED);
        });
        let mut config = ServerConfig::new(format!("{folder}/data"));
        (config.targets, config.workers, config.zone_bytes) = (Some(2), 2, Some(96 << 20));
        config.listen = vec![format!("unix:{folder}/sock")];
        let panics = part.starts_with("panicking");
        config.machine.is_rotating = Arc::new(move |_| {
            let second = std::thread::current().name() == Some("worker-1");
            assert!(!(panics && second), "planted");
            false
        });
        let ended = if part.ends_with("server") {
            serve(config, WorkerConfig::default(), None)
        } else {
            let (client, (ended, _)) = (client_config(None, &[]).expect("a client"), mpsc::channel());
            start_cluster(config, WorkerConfig::default(), client, Around::default(), ended).map(drop)
        };
        exit(ended.map_or_else(|failure| failure.code.into(), |()| 0));
    }

    fn spawn(part: &str, folder: &std::path::Path) -> Child {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let name = "cmd::server::tests::a_panic_while_it_starts_ends_a_server";
        command.args(["--exact", name, "--nocapture"]).env(PART, format!("{part} {}", folder.display()));
        command.env("AMPHI_RUNTIME", folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts")
    }

    /// Goal: a worker that panics while others go on ends the process with an error, and the next one serves the
    /// folder. Method: the second of two workers panics while it starts, in a server and in a server with a client;
    /// processes of this test's program act as these servers.
    #[test]
    fn a_panic_while_it_starts_ends_a_server() {
        if let Ok(part) = std::env::var(PART) {
            let (part, folder) = part.split_once(' ').expect("part and folder");
            play(part, folder);
        }
        let folder = tempfile::tempdir().expect("temporary folder");
        for part in ["panicking-server", "panicking-cluster"] {
            let status = spawn(part, folder.path()).wait().expect("it ends");
            assert_eq!(status.code(), Some(1), "{part}");
        }
        let mut next = spawn("server", folder.path());
        let lines = BufReader::new(next.stdout.take().expect("piped")).lines();
        let ready = lines.map_while(Result::ok).any(|line| line.contains("ready unix:"));
        let _ = next.kill();
        let _ = next.wait();
        assert!(ready, "the next server serves the folder");
    }
}
