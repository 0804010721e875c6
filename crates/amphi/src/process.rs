//! The parts of a process: clock, session, signals, a served mount, an embedded cluster.
//!
//! Owns: which thread runs what and the order in which things come up and go down. Does not own: what they do.
//! An embedded cluster runs the client's I/O half on worker 0's own thread, so a miss costs one hop there and back.

use crate::failure::{During, Failure, Outcome};
use crate::idle::Idle;
use crate::mount_words::{MountWord, MountWords};
use crate::size;
use crate::suggest::did_you_mean;
use amphi_client::{Client, ClientConfig, Clock, IoHalf, Way};
use amphi_env::addr::Addr;
use amphi_env::{Env, RealEnv, Time};
use amphi_fuse::{ClientFs, MountError, Session, SessionConfig};
use amphi_sched::WorkerConfig;
use amphi_server::{ServerConfig, ServerError, ServerErrorKind, run_threads};
use amphi_transport::{ClusterKey, LinkConfig, Timeouts};
use amphi_types::{Ino, SessionId, Timespec};
use amphi_wire::{Role, XattrMode};
use futures_channel::oneshot;
use rustix::fs::{Access, Mode};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Smallest page cache: the lower bound of the tunable `cache.max_bytes`.
const CACHE_MIN_BYTES: u64 = 4 << 20;

/// The machine's clocks.
struct Machine;

impl Clock for Machine {
    fn now_ns(&self) -> u64 {
        let Time(ns) = amphi_env::real::monotonic();
        ns
    }

    fn boot_ns(&self) -> u64 {
        let Time(ns) = amphi_env::real::since_boot();
        ns
    }

    #[expect(clippy::disallowed_methods, reason = "the production clock")]
    fn wall(&self) -> Timespec {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timespec::from_ns(since.as_nanos() as u64)
    }
}

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

/// Whether a name or pattern of `--set` is that of tunables of servers.
fn is_of_servers(name: &str) -> bool {
    name.starts_with("server.")
}

/// Sets those tunables of `--set` that are the servers', on all servers of the cluster that `client` has joined.
///
/// Errors: what a server refuses; those before it are set.
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

/// `host:pid`, by which people and other processes of this host know a session's holder.
pub fn holder_name() -> String {
    format!("{}:{}", host_name(), std::process::id())
}

/// Whether the process that holds a session, by its `host:pid`, ran on this host and has ended.
fn holder_gone(name: &str) -> bool {
    let here = host_name();
    match name.rsplit_once(':') {
        Some((host, pid)) if host == here => !Path::new(&format!("/proc/{pid}")).exists(),
        _ => false,
    }
}

/// A random session id.
fn session_id() -> Outcome<SessionId> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).during(|| "get random bytes".into())?;
    Ok(SessionId(u64::from_ne_bytes(bytes)))
}

/// A link to a server, as a mount or as an asker.
pub fn link_config(addrs: Vec<String>, role: Role, key: Option<ClusterKey>) -> Outcome<LinkConfig> {
    Ok(LinkConfig { addrs, session: session_id()?, role, name: holder_name(), key, timeouts: Timeouts::default() })
}

/// A server that could not be talked to; the error names its address.
pub fn link_failure(e: &std::io::Error) -> Failure {
    use std::io::ErrorKind::{ConnectionRefused, NotFound, TimedOut};
    let advice = match e.kind() {
        NotFound | ConnectionRefused => "; is `amphi server` running there?",
        TimedOut => "; is the address right and the machine up?",
        _ => "",
    };
    match e.kind() {
        amphi_client::NOT_STABLE => Failure::broken(e.to_string()),
        _ => Failure::refused(format!("{e}{advice}")),
    }
}

/// Errors of several addresses as one, which names each.
pub fn all_errors(mut errors: Vec<std::io::Error>) -> std::io::Error {
    if errors.len() == 1 {
        return errors.remove(0);
    }
    let kind = errors.first().map_or(std::io::ErrorKind::InvalidInput, std::io::Error::kind);
    let kind = if errors.iter().all(|e| e.kind() == kind) { kind } else { std::io::ErrorKind::Other };
    let lines: Vec<String> = errors.iter().map(std::io::Error::to_string).collect();
    std::io::Error::new(kind, lines.join("; "))
}

/// A failed start of a server: the surroundings are wrong unless a disk failed.
pub fn server_failure(e: ServerError) -> Failure {
    match e.kind {
        ServerErrorKind::Disk => Failure::broken(e.line),
        _ => Failure::refused(e.line),
    }
}

/// Name of this machine.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Whether an address stands for every address of the machine, so that nobody can be told it.
fn is_unspecified(addr: &str) -> bool {
    matches!(Addr::parse(addr), Ok(Addr::Tcp(host, _)) if host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified()))
}

/// Makes what others are told mean the same for them: Unix sockets by their whole path, no address that stands for all.
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

/// The mount of this process, which goes when it ends at once.
static MOUNTED: Mutex<Vec<amphi_fuse::Unmounter>> = Mutex::new(Vec::new());

/// How long taking a mount away may take when the process ends at once.
const DETACH: Duration = Duration::from_secs(2);

/// A zone has failed: what it says from now on could not be relied on, and whoever asks it should wait, not be told of
/// an error. So the process ends where it is, as if it were killed: nothing more is answered, and the next start finds
/// what a start behind a kill finds, or knows that a sync failed.
#[expect(clippy::disallowed_methods, reason = "the thread that takes mounts away")]
fn zone_failed(line: &str) {
    say_error(&format!("a zone has failed, so this server ends; start it again: {line}"));
    let mounted = std::mem::take(&mut *MOUNTED.lock().unwrap_or_else(PoisonError::into_inner));
    if !mounted.is_empty() {
        // Those who use them get errors; nobody here answers any more.
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            mounted.iter().for_each(amphi_fuse::Unmounter::unmount_by_force);
            let _ = tell.send(());
        });
        let _ = told.recv_timeout(DETACH);
    }
    std::process::exit(1);
}

/// Adds what every server of this binary has.
pub fn complete(config: &mut ServerConfig) {
    config.holder_gone = Arc::new(holder_gone);
    config.zone_failed = Arc::new(zone_failed);
    // Whoever starts a cluster can use it.
    config.root_owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    config.owner_uid = rustix::process::geteuid().as_raw();
}

/// A line for people on standard error. Nobody has to be there to read it.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Says what ends the program.
pub fn say_error(text: &str) {
    say(&format!("amphi: {text}"));
}

/// Says that everything is up, and what there is to use, to whoever waits for it.
pub fn say_ready(what: impl std::fmt::Display) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready {what}").and_then(|()| out.flush());
}

/// As many open files and connections as this process may have at most: the usual limit is 1,024, as many as there may
/// be mounts.
///
/// Errors: they are too few for anything to work.
pub fn raise_file_limit() -> Outcome {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    match getrlimit(Resource::Nofile).current {
        Some(most) if most < FILES_MIN => Err(Failure::refused(format!(
            "this process may have {most} files open, and needs {FILES_MIN}; raise the limit: ulimit -n {FILES_MIN}, or \
             LimitNOFILE= of a systemd unit"
        ))),
        _ => Ok(()),
    }
}

/// Open files that a server or a mount has before anybody uses it, with some to spare: zones, rings, and a device for
/// each reader of the kernel's requests.
const FILES_MIN: u64 = 128;

/// Lets the program end as others do when who reads its output has gone (`amphi get | head -1`).
pub fn end_when_nobody_reads() {
    let always = Arc::new(AtomicBool::new(true));
    let _ = signal_hook::flag::register_conditional_default(signal_hook::consts::SIGPIPE, always);
}

/// Signals that end a mount or a server in order: also that the terminal has gone, unless that was to be ignored
/// (nohup).
pub fn ending_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let hangup = Some(SIGHUP).filter(|s| ignored >> (s - 1) & 1 == 0);
    [SIGINT, SIGTERM].into_iter().chain(hangup).collect()
}

/// How long after the first signal another one is somebody's second wish: who ends a group of processes may send the
/// first one twice (timeout(1) does), and a hand is not so fast.
const SECOND_AFTER: Duration = Duration::from_secs(1);

/// Tells a second wish to stop from a first one.
#[derive(Default)]
struct Wishes {
    first: Option<Time>,
}

impl Wishes {
    /// Whether this signal is the second wish.
    fn is_second(&mut self, signal: i32, now: Time) -> bool {
        match self.first {
            // A terminal that goes may say so more than once.
            _ if signal == SIGHUP => false,
            None => {
                self.first = Some(now);
                false
            }
            Some(first) => now.since(first) >= SECOND_AFTER,
        }
    }
}

/// Waits for SIGINT, SIGTERM or SIGHUP, or until `also` says that there is nothing left to wait for.
pub struct Stop {
    receiver: mpsc::Receiver<()>,
    sender: mpsc::Sender<()>,
}

impl Stop {
    /// Takes over the signals. A second one of somebody who wants it to stop, a second or more after the first, ends
    /// the process at once.
    #[expect(clippy::disallowed_methods, reason = "the thread that waits for signals")]
    pub fn on_signals() -> Outcome<Stop> {
        let mut signals = signal_hook::iterator::Signals::new(ending_signals()).during(|| "handle signals".into())?;
        let (sender, receiver) = mpsc::channel();
        let signalled = sender.clone();
        std::thread::spawn(move || {
            let mut wishes = Wishes::default();
            for signal in signals.forever() {
                if wishes.is_second(signal, amphi_env::real::monotonic()) {
                    say_error("stopped at once by a second signal; unsynced writes may be lost");
                    std::process::exit(1);
                }
                let _ = signalled.send(());
            }
        });
        Ok(Stop { receiver, sender })
    }

    /// Something else that ends the wait: send to it.
    pub fn also(&self) -> mpsc::Sender<()> {
        self.sender.clone()
    }

    /// Blocks until then.
    pub fn wait(&self) {
        let _ = self.receiver.recv();
    }
}

/// Told of the end of a thread that holds it from its first line, and whether by a panic, which passes by everything
/// but destructors.
pub struct AtEnd<F: FnMut(bool)>(pub F);

impl<F: FnMut(bool)> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)(std::thread::panicking());
    }
}

/// What became of a thread that panicked.
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
    /// Writes everything back, ends session, server and threads.
    pub fn stop(self) -> Outcome {
        self.client.shutdown();
        self.join()
    }

    /// Waits for the thread to end by itself.
    pub fn join(self) -> Outcome {
        self.thread.join().unwrap_or_else(|_| Err(panicked()))
    }

    /// Whether a worker has panicked: then the others may still run, and nothing is to be expected of them.
    fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }
}

/// What happens around the life of the client in an embedded cluster; both default to nothing.
#[derive(Default)]
pub struct Around {
    /// Run when the server serves and before the client connects; an error ends both.
    pub before: Option<Box<dyn FnOnce() -> Outcome + Send>>,
    /// Run when the client has ended and before the server stops.
    pub after: Option<Box<dyn FnOnce() + Send>>,
}

impl Around {
    /// Runs `step` on a thread of its own, since the caller is the thread that serves.
    #[expect(clippy::disallowed_methods, reason = "the thread that waits for other processes")]
    async fn aside<T: Send + 'static>(step: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (done, is_done) = oneshot::channel();
        std::thread::spawn(move || drop(done.send(step())));
        is_done.await.ok()
    }
}

/// Starts a server with a client in it. Returns when the server serves; `ended` is told when it has ended.
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
                let Around { before, after } = around;
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
    let running = Running { client, thread, panicked };
    match is_up.recv() {
        Ok(true) => first_answer(running),
        Ok(false) | Err(_) => match running.join() {
            Err(e) => Err(e),
            Ok(()) => Err(Failure::broken("the server ended while it started")),
        },
    }
}

/// Starts a client of a server elsewhere. Returns when it is connected.
#[expect(clippy::disallowed_methods, reason = "the thread of the client's I/O half")]
pub fn start_client(
    addrs: Vec<String>,
    key: Option<ClusterKey>,
    spin: Duration,
    config: ClientConfig,
    ended: mpsc::Sender<()>,
) -> Outcome<Running> {
    let (client, half) = Client::new(config);
    let link = link_config(addrs, Role::Mount, key)?;
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
    let running = Running { client, thread, panicked };
    first_answer(running)
}

/// The first answer says that the session is accepted and the client knows its cluster; a refusal ends the thread.
fn first_answer(running: Running) -> Outcome<Running> {
    match running.client.getattr(&amphi_client::Ctx::root(), Ino::ROOT).wait(None) {
        Ok(_) => Ok(running),
        Err(e) => match running.stop() {
            Err(refused) => Err(refused),
            Ok(()) => Err(Failure::broken(format!("the server did not answer: {e}"))),
        },
    }
}

async fn connect_and_run<E: Env>(env: E, half: IoHalf, link: LinkConfig) -> std::io::Result<()> {
    half.run(env, link, Way::Addresses).await
}

/// Options of a FUSE mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What is mounted: the folder of a cluster of this process, or the cluster's addresses.
    pub source: String,
    /// Where.
    pub dir: PathBuf,
    /// Polling of `/dev/fuse` before a reader sleeps.
    pub spin: Duration,
    /// Other users may use the mount.
    pub allow_other: bool,
    /// Others than this process may change what is mounted: set-user-id programs count only if that is asked for.
    pub shared: bool,
    /// What else it allows.
    pub words: MountWords,
}

/// Mounts `client`. `ended` is told when the mount ends, also by `umount`.
#[expect(clippy::disallowed_methods, reason = "the thread that waits for the end of the mount")]
pub fn mount(client: Client, options: &MountOptions, ended: mpsc::Sender<()>) -> Outcome<Arc<Session>> {
    if let Err(e) = amphi_env::real::keep_populated(client.memory_ahead()) {
        tracing::warn!("no thread to get memory ahead of its use, so that first writes are slower: {e}");
    }
    let words = &options.words;
    let said = |yes, no| words.said(yes, no).unwrap_or(false);
    let config = SessionConfig {
        read_only: said(MountWord::Ro, MountWord::Rw),
        // Whoever else may write to the cluster could leave a program there that runs as root here.
        no_suid: words.said(MountWord::NoSuid, MountWord::Suid).unwrap_or(options.shared),
        no_exec: said(MountWord::NoExec, MountWord::Exec),
        devices: said(MountWord::Dev, MountWord::NoDev),
        source: options.source.clone(),
        allow_other: options.allow_other,
        default_permissions: true,
        spin: options.spin,
        ..SessionConfig::default()
    };
    let session = Session::mount(Arc::new(ClientFs::new(client)), &options.dir, config).map_err(mount_failure)?;
    if let Some(advice) = Idle::look().advice() {
        tracing::info!("{advice}");
    }
    MOUNTED.lock().unwrap_or_else(PoisonError::into_inner).push(session.unmounter());
    let session = Arc::new(session);
    let waited = session.clone();
    std::thread::spawn(move || {
        waited.wait();
        MOUNTED.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let _ = ended.send(());
    });
    Ok(session)
}

fn mount_failure(e: MountError) -> Failure {
    match e {
        MountError::Init(_) | MountError::Threads(_) => Failure::broken(e.to_string()),
        _ => Failure::refused(e.to_string()),
    }
}

/// Checks a mount point before anything is started for it.
pub fn check_mount_point(dir: &Path) -> Outcome {
    let refused = |why: String| Err(Failure::refused(format!("mount point {} {why}", dir.display())));
    let meta = match std::fs::metadata(dir) {
        Ok(meta) => meta,
        // A dead mount of ours is cleared by mounting.
        Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => return Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return refused("does not exist; make the folder first".into());
        }
        Err(e) => return refused(format!("cannot be looked at: {e}")),
    };
    if !meta.is_dir() {
        return refused("is not a directory".into());
    }
    let path = std::fs::canonicalize(dir).unwrap_or_default();
    // A dead one that the kernel still answers for is cleared by mounting as well.
    if crate::control::mounts().contains(&path) && !amphi_fuse::is_dead(&path) {
        return refused("is busy: an AmphiFS is mounted there already".into());
    }
    if !Path::new("/dev/fuse").exists() {
        return Err(Failure::refused(
            "/dev/fuse is missing, so nothing can be mounted; load the kernel module: modprobe fuse",
        ));
    }
    if rustix::fs::access("/dev/fuse", Access::READ_OK | Access::WRITE_OK).is_err() {
        return Err(Failure::refused(
            "this user may not open /dev/fuse, so nothing can be mounted; as root: chmod 666 /dev/fuse",
        ));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // What `fusermount3` asks for.
    let sticky = meta.mode() & Mode::SVTX.bits() != 0 && meta.uid() != rustix::process::getuid().as_raw();
    if sticky || rustix::fs::access(dir, Access::WRITE_OK).is_err() {
        return refused("is not this user's to mount on; give a directory that he owns and may write to".into());
    }
    amphi_fuse::find_helper().map_err(|e| Failure::refused(e.to_string()))
}

/// Where `path` is, or would be if it were made: without links as far as it exists.
fn settled(path: &Path) -> std::io::Result<PathBuf> {
    let whole = std::path::absolute(path)?;
    for existing in whole.ancestors() {
        if let Ok(real) = std::fs::canonicalize(existing) {
            return Ok(real.join(whole.strip_prefix(existing).unwrap_or(Path::new(""))));
        }
    }
    Ok(whole)
}

/// Refuses a mount point that would hide the data folder, or lie in it.
pub fn check_apart(data: &Path, mount: &Path) -> Outcome {
    let (Ok(data), Ok(mount)) = (settled(data), settled(mount)) else { return Ok(()) };
    if mount.starts_with(&data) {
        return Err(Failure::refused(format!(
            "mount point {} lies in the data folder; give another one",
            mount.display()
        )));
    }
    if data.starts_with(&mount) {
        return Err(Failure::refused(format!(
            "the data folder {} lies under the mount point {}, which would hide it; give another one",
            data.display(),
            mount.display()
        )));
    }
    Ok(())
}

/// Ends a mount and what serves it. If a worker has panicked, nobody may be left who answers: the mount is detached,
/// and nothing is waited for.
///
/// Errors: the panic, or as `unmount` and `Running::stop`; the mount is away all the same.
pub fn end(session: &Session, running: Running) -> Outcome {
    if running.has_panicked() {
        session.unmounter().unmount_by_force();
        return running.join();
    }
    let told = unmount(session, &running.client);
    running.stop().and(told)
}

/// Takes a mount away: in order if nobody uses it, otherwise detached after everything was written back.
///
/// Errors: that something could not be written back; the mount is away all the same.
fn unmount(session: &Session, client: &Client) -> Outcome {
    let unmounter = session.unmounter();
    let mut told = Ok(());
    if unmounter.unmount().is_err() {
        let synced = client.sync_all(&amphi_client::Ctx::root()).wait(None);
        told = synced.map_err(|e| Failure::broken(format!("not all that was written could be made stable: {e}")));
        tracing::warn!(
            "{} is in use; programs that have files open there get errors from now on",
            session.mount_point().display()
        );
        unmounter.unmount_by_force();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};

    /// Goal: a signal that is repeated at once is one wish, a later one a second; terminals that go say nothing new.
    /// Method: times made by hand.
    #[test]
    fn second_wishes() {
        let ms = |n: u64| Time(n * 1_000_000);
        for (signals, second) in [
            (&[(SIGTERM, 0), (SIGTERM, 1), (SIGINT, 999)][..], None),
            (&[(SIGTERM, 0), (SIGTERM, 1), (SIGTERM, 1000)], Some(2)),
            (&[(SIGINT, 5000), (SIGINT, 6500)], Some(1)),
            (&[(SIGHUP, 0), (SIGHUP, 4000), (SIGTERM, 5000), (SIGHUP, 9000)], None),
        ] {
            let mut wishes = Wishes::default();
            let found = signals.iter().position(|(signal, at)| wishes.is_second(*signal, ms(*at)));
            assert_eq!(found, second, "{signals:?}");
        }
    }

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

    /// Goal: whoever waits for the end of a cluster hears of a panic that ends it; its mount goes although it is in
    /// use, and it can be started again. Method: the clock of its client panics on the worker's thread, while a file is
    /// open.
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
