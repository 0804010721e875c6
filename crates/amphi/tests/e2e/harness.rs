//! A cluster of a test: a temporary folder, processes of the real binary, and a mount. All of them are removed when the
//! value is dropped.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The binary under test. Its list of known folders is not the user's, and its sockets lie in a separate folder.
pub fn amphi() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_amphi"));
    command.env("AMPHI_STATE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("amphi-state"));
    command.env("AMPHI_RUNTIME", sockets());
    command
}

/// The folder in which the processes of tests have their sockets.
pub fn sockets() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("amphi-runtime")
}

/// The arguments, with what the first start of a server needs if its folder holds nothing.
pub fn as_first_start<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let data = args.iter().skip_while(|arg| **arg != "--data").nth(1);
    let is_new = data.is_some_and(|dir| {
        std::fs::read_dir(dir).is_ok_and(|mut names| names.next().is_none()) || !Path::new(dir).exists()
    });
    let format = (args.first() == Some(&"server") && is_new && !args.contains(&"--format")).then_some("--format");
    args.iter().copied().chain(format).collect()
}

/// Runs `amphi` with `args` to its end.
pub fn run(args: &[&str]) -> Output {
    amphi().args(as_first_start(args)).stdin(Stdio::null()).output().expect("amphi starts")
}

/// A counter of the mount at `dir`: how many times.
pub fn counter(dir: &Path, name: &str) -> u64 {
    let mut text = vec![0; 64 << 10];
    let len = rustix::fs::getxattr(dir, "user.amphi.stats", &mut text).expect("stats");
    let text = String::from_utf8_lossy(&text[..len]).into_owned();
    let line = text.lines().find(|l| l.split_whitespace().next() == Some(name));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// The errno of closing a file; 0 if there was none.
pub fn close_error(file: std::fs::File) -> i32 {
    // SAFETY: the descriptor is owned and used by nobody else.
    let result = unsafe { libc::close(std::os::fd::IntoRawFd::into_raw_fd(file)) };
    if result == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(0) }
}

/// A counter of the servers of the mount at `dir`, added up.
pub fn counter_of_servers(dir: &Path, name: &str) -> u64 {
    let out = run(&["stats", "--servers", "--json", &dir.to_string_lossy()]);
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    json[name].as_u64().unwrap_or(0)
}

/// A child that prints `ready` when it is ready.
pub struct Daemon {
    child: Option<Child>,
}

/// A child that has not printed `ready` yet.
pub struct Starting {
    daemon: Daemon,
    what: String,
}

impl Starting {
    /// Starts a command.
    pub fn spawn(mut command: Command) -> Starting {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("amphi starts");
        Starting { daemon: Daemon { child: Some(child) }, what: format!("{command:?}") }
    }

    /// Waits for the line `ready`. Panics with the child's errors if it ends before.
    pub fn ready(self) -> Daemon {
        self.try_ready().unwrap_or_else(|why| panic!("{why}"))
    }

    /// Waits for the line `ready`. The error has the child's errors, if it ends before.
    fn try_ready(mut self) -> Result<Daemon, String> {
        let child = self.daemon.child();
        // Drained by a thread, so that log lines never fill the pipe; shown when a test fails.
        let stderr = child.stderr.take().expect("piped");
        let reader = std::thread::spawn(move || {
            let mut all = String::new();
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("amphi: {line}");
                all.push_str(&line);
            }
            all
        });
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("output is text");
        if !line.starts_with("ready") {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("{} said {line:?} and: {}", self.what, reader.join().unwrap_or_default()));
        }
        Ok(self.daemon)
    }
}

impl Daemon {
    /// Starts `amphi` with `args` and waits for the line `ready`. Panics with the child's errors if it ends before.
    pub fn start(args: &[&str]) -> Daemon {
        Daemon::spawn(args).ready()
    }

    /// Starts `amphi` with `args`.
    pub fn spawn(args: &[&str]) -> Starting {
        let mut command = amphi();
        command.args(as_first_start(args));
        Starting::spawn(command)
    }

    /// A process that runs.
    pub fn of(child: Child) -> Daemon {
        Daemon { child: Some(child) }
    }

    /// Nothing that runs.
    pub fn none() -> Daemon {
        Daemon { child: None }
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("running")
    }

    /// Process id.
    pub fn pid(&mut self) -> u32 {
        self.child().id()
    }

    /// Stops it with SIGSTOP until the returned value is dropped, and waits until none of its threads runs. One of the
    /// threads handles the signal, and the others continue until that thread gets a core.
    pub fn pause(&mut self) -> Stopped {
        let pid = Pid::from_child(self.child());
        kill_process(pid, Signal::STOP).expect("stop");
        let stopped = Stopped(pid);
        eventually("all threads stop", || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).expect("a process");
            let states = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
            states.into_iter().all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
        });
        stopped
    }

    /// SIGTERM, wait; panics unless it ends with 0.
    pub fn stop(mut self) {
        let mut child = self.child.take().expect("running");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("signal");
        let status = child.wait().expect("wait");
        assert!(status.success(), "ended with {status}");
    }

    /// Waits; panics unless it ends with this code.
    pub fn ends_with(mut self, code: i32) {
        let mut child = self.child.take().expect("running");
        let status = child.wait().expect("wait");
        assert_eq!(status.code(), Some(code), "ended with {status}");
    }

    /// SIGKILL, wait.
    pub fn kill(mut self) {
        let mut child = self.child.take().expect("running");
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Folder, data, mount point.
pub struct Place {
    root: tempfile::TempDir,
}

impl Place {
    /// Writes a cluster key that only its user can read, and returns its path.
    pub fn key(&self, name: &str, key: &str) -> String {
        std::fs::write(self.path(name), key).expect("write");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(self.path(name), mode).expect("chmod");
        self.text(name)
    }

    /// A new folder with the folders `data` and `mount` in it.
    pub fn new() -> Place {
        let root = tempfile::tempdir().expect("temporary folder");
        std::fs::create_dir(root.path().join("mount")).expect("mkdir");
        Place { root }
    }

    /// `name` in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The same as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// The mount point.
    pub fn mount(&self) -> PathBuf {
        self.path("mount")
    }

    /// The address at which `server` listens.
    pub fn addr(&self) -> String {
        format!("unix:{}", self.text("sock"))
    }

    /// `amphi server` here, on a Unix socket, with further arguments.
    pub fn server(&self, more: &[&str]) -> Daemon {
        self.server_of_size(&[&["--zone-size", "512M"], more].concat())
    }

    /// The same, with zones of the size that is requested.
    pub fn server_of_size(&self, more: &[&str]) -> Daemon {
        let (data, addr) = (self.text("data"), self.addr());
        let mut args = vec!["server", "--data", &data, "--listen", &addr];
        args.extend_from_slice(more);
        Daemon::start(&args)
    }

    /// Server `k` of the same cluster, in the folder `data-K`; 0 is the server above.
    pub fn member(&self, k: usize, more: &[&str]) -> Daemon {
        if k == 0 {
            return self.server(more);
        }
        let (data, master, name) = (self.text(&format!("data-{k}")), self.addr(), format!("s{k}"));
        let addr = format!("unix:{}", self.text(&format!("sock-{k}")));
        let mut args = vec!["server", "--name", &name, "--data", &data, "--listen", &addr, "--join", &master];
        args.extend_from_slice(&["--zone-size", "512M"]);
        args.extend_from_slice(more);
        Daemon::start(&args)
    }

    /// Panics if a fault is found in the stopped zones of this many servers.
    pub fn fsck_members(&self, servers: usize) {
        let names: Vec<String> =
            (0..servers).map(|k| if k == 0 { "data".into() } else { format!("data-{k}") }).collect();
        self.fsck_of(&names.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// `amphi mount` of that cluster at `name` in the folder, which is made if need be. If the machine is so busy that
    /// another mount does not answer in time, the server asks to try again, and this does so.
    pub fn mount_at(&self, name: &str, more: &[&str]) -> Daemon {
        let (addr, dir) = (self.addr(), self.text(name));
        std::fs::create_dir_all(&dir).expect("mkdir");
        let mut args = vec!["mount", "--cluster", &addr, &dir];
        args.extend_from_slice(more);
        let start = || Daemon::spawn(&args).try_ready();
        let is_asked = |start: &Result<Daemon, String>| start.as_ref().is_err_and(|why| why.ends_with("; try again"));
        let first = start();
        if is_asked(&first) { start() } else { first }.unwrap_or_else(|why| panic!("{why}"))
    }

    /// `amphi up` here with further arguments.
    pub fn up(&self, more: &[&str]) -> Daemon {
        let (data, mount) = (self.text("data"), self.text("mount"));
        let mut args = vec!["up", "--data", &data, "--mount", &mount];
        args.extend_from_slice(more);
        if !more.contains(&"--zone-size") {
            args.extend_from_slice(&["--zone-size", "512M"]);
        }
        Daemon::start(&args)
    }

    /// Panics if a fault is found in the stopped zones.
    pub fn fsck(&self) {
        self.fsck_of(&["data"]);
    }

    /// The same for the folders of several servers, checked together.
    pub fn fsck_of(&self, names: &[&str]) {
        let dirs: Vec<String> = names.iter().map(|n| self.text(n)).collect();
        let args: Vec<&str> = std::iter::once("fsck").chain(dirs.iter().map(String::as_str)).collect();
        let out = run(&args);
        assert!(
            out.status.success(),
            "fsck: {}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
    }
}

impl Place {
    /// The kept memory of the zones below the place, of servers that run or were killed.
    pub fn memory(&self) -> Vec<PathBuf> {
        let mut folders = vec![self.root.path().to_path_buf()];
        let mut ids = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let is = |end: &str| entry.path().extension().is_some_and(|e| e == end);
                if entry.file_type().is_ok_and(|t| t.is_dir()) && !is_mounted(&entry.path()) {
                    folders.push(entry.path());
                } else if is("zone") {
                    let mut first = [0; 32];
                    let read = std::fs::File::open(entry.path()).and_then(|mut f| f.read_exact(&mut first));
                    let id = u64::from_le_bytes(first[24..].try_into().unwrap_or_default());
                    ids.extend(read.ok().map(|()| format!("amphi-{id:016x}-")));
                }
            }
        }
        let all = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|e| e.path());
        let ours =
            |path: &PathBuf| path.file_name().is_some_and(|n| ids.iter().any(|id| n.to_string_lossy().starts_with(id)));
        all.filter(ours).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for dir in table.lines().filter_map(|l| l.split(' ').nth(1)) {
            if Path::new(dir).starts_with(self.root.path()) {
                let _ = rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH);
            }
        }
        for memory in self.memory() {
            let _ = std::fs::remove_file(memory);
        }
    }
}

/// The errno of a failed call.
pub fn errno<T: std::fmt::Debug>(r: std::io::Result<T>) -> i32 {
    r.expect_err("the call must fail").raw_os_error().expect("an OS error")
}

/// The errno of a failed rustix call.
pub fn rerrno<T: std::fmt::Debug>(r: rustix::io::Result<T>) -> i32 {
    r.expect_err("the call must fail").raw_os_error()
}

/// Bytes that tell where they belong.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Returns whether something is mounted at `path`.
pub fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let path = path.display().to_string();
    table.lines().any(|l| l.split(' ').nth(1) == Some(&path))
}

/// Asks again until it is so; fails after a minute.
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !so() {
        assert!(std::time::Instant::now() < end, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A process that is stopped until this is dropped.
pub struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).expect("go on");
    }
}

/// A small generator for random tests; the seed is printed by the tests that use it.
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_add(0x9e37_79b9_7f4a_7c15))
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
    }
}
