//! The further servers of `amphi up --servers N`: child processes of the same binary on Unix sockets.
//!
//! Owns: their folders and sockets, and starting, watching and stopping them. Does not own: the work of a server, and
//! the first server, which runs in this process and is the master.
//!
//! Invariants: a member that ends by itself after it was ready is started again. No member outlives this process,
//! because the kernel sends it a signal. A Ctrl-C of the terminal stops no member, because the mount still writes back
//! to it then.

use crate::storage::{Storage, workers_of_one_of};
use amphi_host::failure::{During, Failure, Outcome};
use amphi_server::ServerConfig;
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most servers that one machine is asked to run.
pub const SERVERS_MAX: u16 = 64;
/// Pause before a member that ended is started again.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest pause before a server that ends again and again is started again.
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// A member that ran for this long starts anew with the shortest pause.
const RAN_WELL: Duration = Duration::from_secs(60);
/// The option with which a member makes zones; a member that had zones before never makes others.
const FORMAT: &str = "--format";
/// How long a member may take to stop in order.
const STOPPING: Duration = Duration::from_secs(60);

/// Makes this process end in order when its parent ends, also if it ignores SIGTERM.
pub fn end_with(parent: i32) -> Outcome {
    let term = Signal::TERM.as_raw();
    let signal = if amphi_host::signals::ending_signals().contains(&term) { Signal::TERM } else { Signal::HUP };
    set_parent_process_death_signal(Some(signal)).during(|| "watch the parent".into())?;
    // The parent may have ended before the kernel knew that this process wants a signal.
    match getppid() {
        Some(pid) if pid.as_raw_nonzero().get() == parent => Ok(()),
        _ => Err(Failure::refused(format!("process {parent} is not the parent"))),
    }
}

fn has_zones(dir: &Path) -> bool {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    names.map(|e| e.file_name()).any(|n| n.to_string_lossy().ends_with(".zone"))
}

/// The places of the servers of one `amphi up`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    data: PathBuf,
    /// Folder of the first server.
    first: PathBuf,
    /// Servers that exist already.
    found: u16,
    /// Servers to run.
    pub servers: u16,
}

impl Site {
    /// Looks at the data folder. A single server's zones lie in it; several servers have a folder each.
    pub fn look(data: &Path, wanted: Option<u16>) -> Outcome<Site> {
        let data = std::path::absolute(data).during(|| format!("find {}", data.display()))?;
        let member = |k: u16| data.join(format!("server-{k}"));
        let alone = has_zones(&data);
        // Folders behind a gap count too, so that a server whose folder is missing is noticed.
        let further = (1..SERVERS_MAX).rev().find(|k| member(*k).is_dir()).unwrap_or(0);
        let found = if alone || further > 0 || has_zones(&member(0)) { 1 + further } else { 0 };
        // The first server makes its zones before any other does. The first server knows which of the others are
        // missing.
        if let Some(k) = (1..=further).find(|k| !alone && has_zones(&member(*k)) && !has_zones(&member(0))) {
            return Err(Failure::refused(format!(
                "{}: server-{k} in it has zones, but neither server-0 nor the folder itself has those of the first server: is its folder mounted? Put \
                 them back",
                data.display()
            )));
        }
        let servers = wanted.unwrap_or(found.max(1));
        if servers < found {
            return Err(Failure::refused(format!(
                "{} has {found} servers, not {servers}; a cluster only grows",
                data.display()
            )));
        }
        let first = if alone || (servers == 1 && found == 0) { data.clone() } else { member(0) };
        Ok(Site { data, first, found, servers })
    }

    /// Folders with the zones of all servers that one `amphi up` keeps in `data`. If there is only one server, this is
    /// `data` itself.
    pub fn folders(data: &Path) -> Vec<PathBuf> {
        let Some(site) = Site::look(data, None).ok().filter(|s| s.found > 1 || s.first != s.data) else {
            return vec![data.to_path_buf()];
        };
        let further = (1..site.found).map(|k| data.join(format!("server-{k}")));
        let first = if site.first == site.data { data.to_path_buf() } else { data.join("server-0") };
        std::iter::once(first).chain(further).collect()
    }

    fn socket(&self, server: u16) -> String {
        format!("unix:{}", self.data.join(format!("server-{server}.sock")).display())
    }

    /// The data folder, an absolute path.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns whether the first server has zones.
    pub fn has_first_zones(&self) -> bool {
        has_zones(&self.first)
    }

    /// Folder of the first server, unless it is the data folder itself.
    pub fn first(&self) -> Option<PathBuf> {
        (self.first != self.data).then(|| self.first.clone())
    }

    /// Divides the free space among the servers that are new, unless a size is given.
    pub fn share(&self, storage: &mut Storage) {
        let new = u64::from(self.servers - self.found);
        if self.servers == 1 || new == 0 || storage.zone_size.is_some() {
            return;
        }
        let near = self.data.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
        let Ok(space) = rustix::fs::statvfs(near) else { return };
        let targets = u64::from(storage.targets.unwrap_or(ServerConfig::TARGETS).max(1));
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        storage.zone_size = Some((free / 10 * 9 / (new * targets)).min(amphi_server::config::ZONE_AUTO_MAX_BYTES));
    }

    /// Makes the folder for the sockets. Returns whether it is new.
    pub fn make(&self) -> Outcome<bool> {
        let new = !self.data.exists();
        std::fs::create_dir_all(&self.data).map_err(|e| Failure::refused(format!("{}: {e}", self.data.display())))?;
        Ok(new)
    }

    /// Completes the first server's configuration.
    pub fn lead(&self, config: &mut ServerConfig) {
        config.name = "server-0".into();
        config.listen.insert(0, self.socket(0));
        config.advertise = vec![self.socket(0)];
    }

    /// Arguments of the other members. Members without zones make new ones; if the master knows a member with other
    /// zones, it refuses that member.
    pub fn members(&self, storage: &Storage, key: Option<&Path>) -> Vec<Vec<String>> {
        let one = |k: u16| {
            let data = self.data.join(format!("server-{k}")).display().to_string();
            let is_new = !has_zones(Path::new(&data));
            let mut args = vec!["server".to_string(), "--name".into(), format!("server-{k}"), "--data".into(), data];
            args.extend(is_new.then(|| FORMAT.to_string()));
            let mut add = |option: &str, value: String| args.extend([option.to_string(), value]);
            add("--listen", self.socket(k));
            add("--join", self.socket(0));
            add("--log-size", storage.log_size.to_string());
            let share = workers_of_one_of(self.servers).min(storage.targets.unwrap_or(u16::MAX));
            let workers = storage.workers.unwrap_or(share);
            add("--workers", workers.to_string());
            add("--worker-spin-us", storage.worker_spin_us.to_string());
            add("--rotational", storage.rotational.text().into());
            add("--socket-mode", format!("{:o}", storage.socket_mode));
            if let Some(targets) = storage.targets {
                add("--targets", targets.to_string());
            }
            if let Some(bytes) = storage.zone_size {
                add("--zone-size", bytes.to_string());
            }
            if let Some(key) = key {
                add("--key", key.display().to_string());
            }
            add("--with-parent", std::process::id().to_string());
            args
        };
        (1..self.servers).map(one).collect()
    }
}

/// The shared state of the threads of a member.
#[derive(Default)]
struct Watched {
    stopping: AtomicBool,
    pid: Mutex<Option<Pid>>,
}

impl Watched {
    fn signal(&self, signal: Signal) {
        let pid = self.pid.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pid) = *pid {
            let _ = kill_process(pid, signal);
        }
    }
}

struct Member {
    watched: Arc<Watched>,
    ended: mpsc::Receiver<()>,
    thread: JoinHandle<()>,
}

/// Running members.
pub struct Members(Vec<Member>);

impl Members {
    /// Starts all; returns when all are ready.
    ///
    /// Errors: why the first that did not start did not; then none runs.
    #[expect(clippy::disallowed_methods, reason = "the threads that watch child processes")]
    pub fn start(all: Vec<Vec<String>>) -> Outcome<Members> {
        let mut members = Members(Vec::new());
        let mut readies = Vec::new();
        for args in all {
            let watched = Arc::<Watched>::default();
            let ((tell, ready), (end, ended)) = (mpsc::channel(), mpsc::channel());
            let shared = watched.clone();
            let thread = std::thread::spawn(move || {
                tend(&args, &shared, tell);
                drop(end);
            });
            members.0.push(Member { watched, ended, thread });
            readies.push(ready);
        }
        for ready in readies {
            let outcome = ready.recv().unwrap_or_else(|_| Err(Failure::broken("a server ended while it started")));
            if let Err(e) = outcome {
                members.stop();
                return Err(e);
            }
        }
        Ok(members)
    }

    /// Stops all in order.
    pub fn stop(self) {
        for m in &self.0 {
            m.watched.stopping.store(true, Ordering::SeqCst);
            m.watched.signal(Signal::TERM);
        }
        for m in self.0 {
            if m.ended.recv_timeout(STOPPING) == Err(mpsc::RecvTimeoutError::Timeout) {
                tracing::error!("a server does not stop and is killed");
                m.watched.signal(Signal::KILL);
            }
            let _ = m.thread.join();
        }
    }
}

/// Keeps one member running until it is to stop.
#[expect(clippy::disallowed_methods, reason = "the thread that watches a child process")]
fn tend(args: &[String], watched: &Watched, ready: mpsc::Sender<Outcome>) {
    let name = args.get(2).cloned().unwrap_or_default();
    let mut ready = Some(ready);
    let (mut args, mut pause) = (args.to_vec(), AGAIN);
    loop {
        let begun = amphi_env::real::monotonic();
        let spawned = {
            let mut pid = watched.pid.lock().unwrap_or_else(PoisonError::into_inner);
            if watched.stopping.load(Ordering::SeqCst) {
                return;
            }
            let spawned = spawn(&args);
            *pid = spawned.as_ref().ok().map(Pid::from_child);
            spawned
        };
        let ended = match spawned {
            Ok(child) => watch(child, &name, watched, &mut ready),
            Err(e) => Failure::broken(format!("{name} cannot be started: {e}")),
        };
        if watched.stopping.load(Ordering::SeqCst) {
            return;
        }
        if let Some(ready) = ready.take() {
            let _ = ready.send(Err(ended));
            return;
        }
        if amphi_env::real::monotonic().since(begun) >= RAN_WELL {
            pause = AGAIN;
        }
        tracing::error!("{ended}; it is started again in {} s, calls to its targets wait", pause.as_secs());
        args.retain(|arg| arg != FORMAT);
        std::thread::sleep(pause);
        pause = (pause * 2).min(AGAIN_MAX);
    }
}

fn spawn(args: &[String]) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    // Only this process, not its children, reports to the service manager.
    for name in amphi_host::notify::VARIABLES {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).spawn()
}

/// Waits for the end of a member. Reports when the member is ready, and passes its log lines on.
#[expect(clippy::disallowed_methods, reason = "the thread that reads a child's errors")]
fn watch(mut child: Child, name: &str, watched: &Watched, ready: &mut Option<mpsc::Sender<Outcome>>) -> Failure {
    let errors = child.stderr.take();
    let prefix = name.to_string();
    let reader = std::thread::spawn(move || {
        let mut failure = None;
        for line in errors.into_iter().flat_map(|e| BufReader::new(e).lines()).map_while(Result::ok) {
            match line.strip_prefix("amphi: ") {
                Some(text) => failure = Some(text.to_string()),
                None => amphi_host::say::say(&format!("{prefix}: {line}")),
            }
        }
        failure
    });
    for line in child.stdout.take().into_iter().flat_map(|o| BufReader::new(o).lines()).map_while(Result::ok) {
        if line.starts_with("ready")
            && let Some(ready) = ready.take()
        {
            let _ = ready.send(Ok(()));
        }
    }
    let status = child.wait();
    *watched.pid.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let said = reader.join().ok().flatten();
    match status {
        Ok(status) => Failure {
            code: status.code().and_then(|c| u8::try_from(c).ok()).filter(|c| *c == 2).unwrap_or(1),
            text: said.map_or_else(|| format!("{name} ended: {status}"), |text| format!("{name}: {text}")),
        },
        Err(e) => Failure::broken(format!("{name}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage_kind::Rotational;

    /// Goal: the contents of a data folder decide where the servers are. A single one stays where it is, even when
    /// others join. A cluster never shrinks. Method: folders that the test makes.
    #[test]
    fn folders_of_servers() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let data = dir.path().join("data");
        let look = |wanted| Site::look(&data, wanted);
        assert_eq!(Site::folders(&data), std::slice::from_ref(&data));
        let site = look(None).expect("new");
        assert_eq!((site.servers, site.first()), (1, None));
        let site = look(Some(3)).expect("new");
        assert_eq!((site.servers, site.first()), (3, Some(data.join("server-0"))));
        assert_eq!(site.members(&storage(), None).len(), 2);
        for k in 0..2 {
            std::fs::create_dir_all(data.join(format!("server-{k}"))).expect("mkdir");
        }
        assert_eq!(look(None).expect("two").servers, 2);
        assert_eq!(look(Some(3)).expect("grows").found, 2);
        assert_eq!(Site::folders(&data), [data.join("server-0"), data.join("server-1")]);
        assert!(look(Some(1)).expect_err("shrinks").text.contains("has 2 servers"));
        std::fs::create_dir(data.join("server-3")).expect("mkdir");
        assert_eq!(look(None).expect("one is missed").servers, 4);
        let formats = |site: &Site| {
            let all = site.members(&storage(), None);
            all.iter().map(|args| args.iter().any(|a| a == FORMAT)).collect::<Vec<_>>()
        };
        assert_eq!(formats(&look(None).expect("four")), [true; 3]);
        std::fs::write(data.join("server-3/target-0003.zone"), b"").expect("write");
        assert!(!look(None).is_ok_and(|site| formats(&site)[2]), "what has zones makes none");
        assert!(look(None).expect_err("the first is missed").text.contains("is its folder mounted?"));
        std::fs::write(data.join("target-0000.zone"), b"").expect("write");
        assert_eq!(look(Some(4)).expect("one, then more").first(), None);
    }

    fn storage() -> Storage {
        Storage {
            data: "d".into(),
            targets: Some(2),
            zone_size: None,
            log_size: 1,
            workers: Some(1),
            worker_spin_us: 0,
            rotational: Rotational::Auto,
            format: false,
            socket_mode: 0o600,
        }
    }

    /// Goal: servers on one disk share its space. Method: the sizes chosen for one and for three.
    #[test]
    fn space_is_shared() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let size = |servers| {
            let mut storage = storage();
            Site::look(&dir.path().join("data"), Some(servers)).expect("new").share(&mut storage);
            storage.zone_size
        };
        assert_eq!(size(1), None, "the server decides");
        let (two, four) = (size(2).expect("chosen"), size(4).expect("chosen"));
        assert!(four < two * 11 / 20 && four > two * 9 / 20, "{two} {four}");
    }
}
