//! A client of servers elsewhere, and the thread of its I/O half.
//!
//! Owns: how a client is configured from a command line, its start and its end. Does not own: the work of the client
//! (`amphi_client`).

use crate::clock::Machine;
use crate::failure::{Failure, Outcome};
use crate::link::{Credentials, link_config, link_failure};
use crate::size;
use crate::suggest::did_you_mean;
use amphi_client::{Client, ClientConfig, IoHalf, Way};
use amphi_env::{Env, RealEnv};
use amphi_transport::LinkConfig;
use amphi_types::Ino;
use amphi_wire::{Role, XattrMode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Smallest page cache: the lower bound of the tunable `cache.max_bytes`.
const CACHE_MIN_BYTES: u64 = 4 << 20;

/// How this process' client is configured.
pub fn client_config(cache: Option<u64>, tunables: &[String]) -> Outcome<ClientConfig> {
    let mut config = ClientConfig::new(Arc::new(Machine));
    if let Some(bytes) = cache {
        check_cache(bytes)?;
    }
    config.cache_bytes = cache;
    config.read_text = Some(Arc::new(|path| std::fs::read_to_string(path).ok()));
    config.owner_uid = rustix::process::geteuid().as_raw();
    for t in tunables {
        let (name, value) = assignment(t)?;
        if is_of_servers(name) {
            continue;
        }
        Client::check_tunable(name, value).map_err(|e| {
            let advice = did_you_mean(name, Client::tunables().iter().map(|row| row.name));
            let hint = if e.starts_with("no tunable") { advice } else { String::new() };
            Failure::refused(format!("--set {t}: {e}{hint}"))
        })?;
        config.tunables.push((name.into(), value.into()));
    }
    Ok(config)
}

/// The two halves of `--set NAME=VALUE`.
fn assignment(text: &str) -> Outcome<(&str, &str)> {
    text.split_once('=').ok_or_else(|| Failure::refused(format!("--set '{text}' must be NAME=VALUE")))
}

/// Returns whether a name or pattern of `--set` is that of tunables of servers.
fn is_of_servers(name: &str) -> bool {
    name.starts_with("server.")
}

/// Sets those tunables of `--set` that are the servers', on all servers of the cluster that `client` has joined.
///
/// Errors: tunables that a server refuses; those before the refused one are set.
pub fn set_on_servers(client: &Client, tunables: &[String]) -> Outcome {
    let root = amphi_client::Ctx::root();
    let read = |name: &str| {
        let text = client.getxattr(&root, Ino::ROOT, name.as_bytes()).wait(None).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    };
    for text in tunables {
        let (name, _) = assignment(text)?;
        if !is_of_servers(name) {
            continue;
        }
        let set = client.setxattr(&root, Ino::ROOT, b"user.amphi.set", text.as_bytes(), XattrMode::Set).wait(None);
        set.map_err(|e| {
            let known = read("user.amphi.tunables.server.*");
            let names = known.lines().filter_map(|l| Some(l.split_once('=')?.0)).filter(|n| !n.starts_with('#'));
            match e {
                amphi_types::Errno::Inval => {
                    let (why, is_unknown) =
                        (read("user.amphi.error"), read(&format!("user.amphi.tunables.{name}")).is_empty());
                    let advice = if is_unknown { did_you_mean(name, names) } else { String::new() };
                    Failure::refused(format!("--set {text}: {why}{advice}"))
                }
                e => Failure::broken(format!("--set {text}: the servers cannot be told: {e}")),
            }
        })?;
    }
    Ok(())
}

/// A cache must hold some requests and fit the machine.
fn check_cache(bytes: u64) -> Outcome {
    let memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
    });
    let most = memory.unwrap_or(u64::MAX);
    if !(CACHE_MIN_BYTES..=most).contains(&bytes) {
        return Err(Failure::refused(format!(
            "a cache of {} makes no sense; give between {} and the memory of this machine ({})",
            size::show(bytes),
            size::show(CACHE_MIN_BYTES),
            memory.map_or("unknown".into(), size::show)
        )));
    }
    Ok(())
}

/// A guard that a thread holds from its first line. Its drop reports the end of the thread, and whether the thread
/// panicked, since a panic still runs destructors.
pub struct AtEnd<F: FnMut(bool)>(pub F);

impl<F: FnMut(bool)> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)(std::thread::panicking());
    }
}

/// The failure for a thread that panicked.
pub fn panicked() -> Failure {
    Failure::broken("a worker thread panicked; its message is above")
}

/// A client whose I/O half runs on a thread of this process.
pub struct Running {
    /// The client.
    pub client: Client,
    thread: JoinHandle<Outcome>,
    panicked: Arc<AtomicBool>,
}

impl Running {
    /// A client whose I/O half runs on `thread`, which sets `panicked` when it ends by a panic.
    pub fn new(client: Client, thread: JoinHandle<Outcome>, panicked: Arc<AtomicBool>) -> Running {
        Running { client, thread, panicked }
    }

    /// Writes everything back, ends session, server and threads.
    pub fn stop(self) -> Outcome {
        self.client.shutdown();
        self.join()
    }

    /// Waits until the thread ends by itself.
    pub fn join(self) -> Outcome {
        self.thread.join().unwrap_or_else(|_| Err(panicked()))
    }

    /// Returns whether a worker has panicked. The others may still run then, and nothing can be expected of them.
    pub fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }
}

/// Starts a client of a server elsewhere. Returns when it is connected.
#[expect(clippy::disallowed_methods, reason = "the thread of the client's I/O half")]
pub fn start_client(
    addrs: Vec<String>,
    proves: impl Into<Credentials>,
    spin: Duration,
    config: ClientConfig,
    ended: mpsc::Sender<()>,
) -> Outcome<Running> {
    // This is done before the first buffer is needed, because a server on this machine is passed the memory of this
    // process's buffers.
    if addrs.iter().any(|addr| amphi_transport::is_unix(addr)) && !amphi_env::buf::pass_memory() {
        tracing::debug!("payloads go through sockets");
    }
    let (client, half) = Client::new(config);
    let link = link_config(addrs, Role::Mount, proves)?;
    let panicked = Arc::<AtomicBool>::default();
    let flag = panicked.clone();
    let thread = std::thread::spawn(move || {
        let _end = AtEnd(move |panic| {
            flag.store(panic, Ordering::Release);
            let _ = ended.send(());
        });
        let result = RealEnv::run(spin, move |env: RealEnv| connect_and_run(env, half, link));
        result.map_err(|e| link_failure(&e))
    });
    first_answer(Running::new(client, thread, panicked))
}

/// The first answer says that the session is accepted and that the client knows its cluster. A refusal ends the thread.
pub fn first_answer(running: Running) -> Outcome<Running> {
    match running.client.root_attr(&amphi_client::Ctx::root()).wait(None) {
        Ok(_) => Ok(running),
        Err(e) => match running.stop() {
            Err(refused) => Err(refused),
            Ok(()) if e == amphi_types::Errno::Stale => Err(Failure::refused(
                "the directory of the tree to which the key is bound is gone; an administrator binds it to another one \
                 with amphi key set NAME --subtree DIR",
            )),
            Ok(()) => Err(Failure::broken(format!("the server did not answer: {e}"))),
        },
    }
}

async fn connect_and_run<E: Env>(env: E, half: IoHalf, link: LinkConfig) -> std::io::Result<()> {
    half.run(env, link, Way::Addresses).await
}
