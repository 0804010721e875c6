//! A cluster of a test: a temporary folder, processes of the real binary, a mount; all gone when dropped.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The binary under test.
pub fn amphi() -> Command {
    Command::new(env!("CARGO_BIN_EXE_amphi"))
}

/// Runs `amphi` with `args` to its end.
pub fn run(args: &[&str]) -> Output {
    amphi().args(args).stdin(Stdio::null()).output().expect("amphi starts")
}

/// A child that says `ready` when it is.
pub struct Daemon {
    child: Option<Child>,
}

impl Daemon {
    /// Starts `amphi` with `args` and waits for the line `ready`. Panics with its errors if it ends before.
    pub fn start(args: &[&str]) -> Daemon {
        let mut child = amphi()
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("amphi starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("output is text");
        if !line.starts_with("ready") {
            let mut text = String::new();
            let _ = child.stderr.take().map(|mut e| e.read_to_string(&mut text));
            let _ = child.kill();
            let _ = child.wait();
            panic!("amphi {args:?} said {line:?} and: {text}");
        }
        // Drained by a thread, so that log lines never fill the pipe; shown when a test fails.
        let stderr = child.stderr.take().expect("piped");
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("amphi: {line}");
            }
        });
        Daemon { child: Some(child) }
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("running")
    }

    /// Process id.
    pub fn pid(&mut self) -> u32 {
        self.child().id()
    }

    /// SIGTERM, wait; panics unless it ends with 0.
    pub fn stop(mut self) {
        let mut child = self.child.take().expect("running");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("signal");
        let status = child.wait().expect("wait");
        assert!(status.success(), "ended with {status}");
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
    /// A fresh folder with `data` and `mount` in it.
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
        let out = run(&["fsck", &self.text("data")]);
        assert!(
            out.status.success(),
            "fsck: {}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.mount(), rustix::mount::UnmountFlags::DETACH);
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

/// Whether something is mounted at `path`.
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
        std::thread::yield_now();
    }
}

/// A small generator for random tests; the seed is printed by the tests that use it.
pub struct Random(u64);

impl Random {
    /// From a seed.
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
