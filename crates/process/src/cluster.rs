//! Servers of this process, with a client in it or without.
//!
//! Owns: the common parts of every server of this binary, which thread runs what, and the order of start and stop. Does
//! not own: the work of these parts. An embedded cluster runs the client's I/O half on worker 0's own thread, so a miss
//! costs one hop there and back.

use crate::mount::detach_all;
use amphi_client::{Client, ClientConfig, Way};
use amphi_env::addr::Addr;
use amphi_env::{Env, RealEnv};
use amphi_host::client::{AtEnd, Running, first_answer};
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::link::{host_name, link_config};
use amphi_host::say::say_error;
use amphi_sched::WorkerConfig;
use amphi_server::{Server, ServerConfig, ServerError, ServerErrorKind, run_threads};
use amphi_transport::{ClusterKey, LinkConfig};
use amphi_wire::Role;
use futures_channel::oneshot;
use rustix::process::{Pid, test_kill_process};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

/// Returns whether the process that holds a session, by its `host:pid`, ran on this host and has ended.
fn holder_gone(name: &str) -> bool {
    let here = host_name();
    let pid = name.rsplit_once(':').filter(|(host, _)| *host == here).and_then(|(_, pid)| pid.parse().ok());
    // A signal would say so, too, where /proc shows a server no processes of others (hidepid, ProtectProc=).
    pid.and_then(Pid::from_raw).is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

/// A failed start of a server: the surroundings are wrong unless a disk failed.
pub fn server_failure(e: ServerError) -> Failure {
    match e.kind {
        ServerErrorKind::Disk => Failure::broken(e.line),
        _ => Failure::refused(e.line),
    }
}

/// Returns whether an address means all addresses of the machine, so that it cannot be advertised.
fn is_unspecified(addr: &str) -> bool {
    matches!(Addr::parse(addr), Ok(Addr::Tcp(host, _)) if host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified()))
}

/// Makes addresses valid for others: Unix sockets get their whole path, and addresses that mean all addresses are left
/// out.
pub fn settle_addresses(config: &mut ServerConfig) -> Outcome {
    for addr in config.listen.iter_mut().chain(&mut config.advertise).chain(&mut config.join) {
        if let Some(path) = addr.strip_prefix("unix:").filter(|p| !p.is_empty()) {
            let whole = std::path::absolute(path).during(|| format!("find {path}"))?;
            *addr = format!("unix:{}", whole.display());
        }
    }
    for addr in config.advertise.iter().chain(&config.join) {
        Addr::parse(addr).map_err(|e| Failure::refused(e.to_string()))?;
    }
    if let Some(addr) = config.advertise.iter().find(|a| is_unspecified(a)) {
        return Err(Failure::refused(format!(
            "{addr} leads nowhere from elsewhere; --advertise an address of this machine"
        )));
    }
    let nowhere = config.advertise.is_empty() && config.listen.iter().all(|a| is_unspecified(a));
    if nowhere && !config.join.is_empty() {
        return Err(Failure::refused(format!(
            "{} leads nowhere from elsewhere; give the address that others reach with --advertise",
            config.listen.join(" ")
        )));
    }
    Ok(())
}

/// A zone has failed: its later answers would be unreliable, and clients should wait, not get an error. So the process
/// ends at once, as if it were killed: it answers no more requests, and the next start finds the state of a killed
/// process, or knows that a sync failed.
fn zone_failed(line: &str) {
    say_error(&format!("a zone has failed, so this server ends; start it again: {line}"));
    // Users of its mounts get errors; no thread answers any more.
    detach_all();
    std::process::exit(1);
}

/// Adds what every server of this binary has.
pub fn complete(config: &mut ServerConfig) {
    config.holder_gone = Arc::new(holder_gone);
    config.zone_failed = Arc::new(zone_failed);
    // The user who starts a cluster can use it.
    config.root_owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    config.owner_uid = rustix::process::geteuid().as_raw();
}

/// A task on the thread of a server.
type Beside = Box<dyn FnOnce(Weak<Server<RealEnv>>) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// Hooks around the life of the client in an embedded cluster; all default to nothing.
#[derive(Default)]
pub struct Around {
    /// Run when the server serves and before the client connects; an error ends both.
    pub before: Option<Box<dyn FnOnce() -> Outcome + Send>>,
    /// Run when the client has ended and before the server stops.
    pub after: Option<Box<dyn FnOnce() + Send>>,
    /// Runs beside the client, on the server's thread.
    pub beside: Option<Beside>,
}

impl Around {
    /// Runs `step` on a separate thread, since the calling thread serves requests.
    #[expect(clippy::disallowed_methods, reason = "the thread that waits for other processes")]
    async fn aside<T: Send + 'static>(step: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (done, is_done) = oneshot::channel();
        std::thread::spawn(move || drop(done.send(step())));
        is_done.await.ok()
    }
}

/// Starts a server with a client in it. Returns when the server serves; `ended` gets a message when it has ended.
#[expect(clippy::disallowed_methods, reason = "the thread that waits for the workers")]
pub fn start_cluster(
    mut server: ServerConfig,
    workers: WorkerConfig,
    client: ClientConfig,
    around: Around,
    ended: mpsc::Sender<()>,
) -> Outcome<Running> {
    complete(&mut server);
    let (client, half) = Client::new(client);
    let config = link_config(Vec::new(), Role::Mount, None)?;
    let config = LinkConfig { key: server.key.as_deref().and_then(|k| ClusterKey::new(k).ok()), ..config };
    let (up, is_up) = mpsc::channel::<bool>();
    let (panicked, not_up) = (Arc::<AtomicBool>::default(), up.clone());
    let flag = panicked.clone();
    let thread = std::thread::spawn(move || {
        let _end = AtEnd(move |panic| {
            flag.store(panic, Ordering::Release);
            let _ = not_up.send(false);
            let _ = ended.send(());
        });
        let result = run_threads(server, workers, move |env: RealEnv, server| {
            Box::pin(async move {
                let Around { before, after, beside } = around;
                if let Some(beside) = beside {
                    env.spawn(beside(Rc::downgrade(&server)));
                }
                let begun = match before {
                    Some(before) => Around::aside(before).await.unwrap_or(Ok(())),
                    None => Ok(()),
                };
                let served = match begun {
                    Ok(()) => {
                        let _ = up.send(true);
                        let ran = half.run(env, config, Way::Local(server.dialer())).await;
                        ran.map_err(|e| Failure::broken(e.to_string()))
                    }
                    Err(e) => Err(e),
                };
                if let Some(after) = after {
                    Around::aside(after).await;
                }
                served
            })
        });
        result.map_err(server_failure)?
    });
    let running = Running::new(client, thread, panicked);
    match is_up.recv() {
        Ok(true) => first_answer(running),
        Ok(false) | Err(_) => match running.join() {
            Err(e) => Err(e),
            Ok(()) => Err(Failure::broken("the server ended while it started")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::{MountOptions, end, mount};
    use crate::mount_words::MountWords;
    use amphi_client::Clock;
    use amphi_host::clock::Machine;
    use amphi_types::Timespec;
    use rustix::fs::{Mode, OFlags};
    use std::time::Duration;

    /// The machine's clocks, until worker 0 is to panic.
    struct Planted(Arc<AtomicBool>);

    impl Planted {
        fn look(&self) {
            let worker = std::thread::current().name() == Some("worker-0");
            assert!(!(worker && self.0.load(Ordering::Relaxed)), "planted");
        }
    }

    impl Clock for Planted {
        fn now_ns(&self) -> u64 {
            self.look();
            Machine.now_ns()
        }

        fn boot_ns(&self) -> u64 {
            self.look();
            Machine.boot_ns()
        }

        fn wall(&self) -> Timespec {
            self.look();
            Machine.wall()
        }
    }

    /// Goal: a caller that waits for the end of a cluster learns of a panic that ends it; its mount is removed although
    /// it is in use, and it can be started again. Method: the clock of its client panics on the worker's thread, while
    /// a file is open.
    #[test]
    fn a_panic_of_a_worker_is_told() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let dir = folder.path().join("mount");
        std::fs::create_dir(&dir).expect("mkdir");
        for panics in [true, false] {
            let mut server = ServerConfig::new(folder.path().join("data").display().to_string());
            (server.targets, server.zone_bytes) = (Some(1), Some(96 << 20));
            let plant = Arc::<AtomicBool>::default();
            let client = ClientConfig::new(Arc::new(Planted(plant.clone())));
            let (ended, has_ended) = mpsc::channel();
            let running = start_cluster(server, WorkerConfig::default(), client, Around::default(), ended);
            let running = running.unwrap_or_else(|e| panic!("{e}"));
            assert!(!running.has_panicked());
            if panics {
                let (source, spin) = ("test".into(), Duration::ZERO);
                let words = MountWords::default();
                let options = MountOptions { source, dir: dir.clone(), spin, allow_other: false, shared: false, words };
                let session = mount(running.client.clone(), &options, mpsc::channel().0);
                let session = session.unwrap_or_else(|e| panic!("{e}"));
                let (flags, mode) = (OFlags::CREATE | OFlags::WRONLY, Mode::RUSR);
                let file = rustix::fs::open(dir.join("open"), flags, mode).expect("it serves");
                plant.store(true, Ordering::Relaxed);
                has_ended.recv().expect("told");
                assert!(running.has_panicked());
                assert_eq!(end(&session, running).expect_err("a panic").code, 1);
                assert_eq!(std::fs::read_dir(&dir).expect("no mount").count(), 0);
                drop(file);
            } else {
                assert!(running.stop().is_ok());
            }
        }
    }
}
