//! A memory group (cgroup version 1 or 2) of a test, with a limit that can be reached.

use crate::harness::eventually;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The folder in which memory groups are made, the file that exists if memory is limited there, and the files with
/// limit and usage.
const ROOTS: [[&str; 4]; 2] = [
    ["/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.limit_in_bytes", "memory.usage_in_bytes"],
    ["/sys/fs/cgroup", "cgroup.controllers", "memory.max", "memory.current"],
];

/// The group; gone when dropped, once its processes have ended.
pub struct MemoryGroup {
    dir: PathBuf,
    usage: &'static str,
    limit: u64,
    /// Memory that is charged to the group.
    ballast: PathBuf,
}

impl MemoryGroup {
    /// Makes a new group; returns nothing if this machine or this user cannot make one.
    pub fn make(limit: u64) -> Option<MemoryGroup> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("amphi-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        for [root, marker, limits, usage] in ROOTS {
            let dir = Path::new(root).join(&name);
            if !Path::new(root).join(marker).exists() || std::fs::create_dir(&dir).is_err() {
                continue;
            }
            let group = MemoryGroup { dir, usage, limit, ballast: Path::new("/dev/shm").join(&name) };
            if std::fs::write(group.dir.join(limits), limit.to_string()).is_ok() {
                return Some(group);
            }
        }
        eprintln!("no memory group can be made here: nothing is tested");
        None
    }

    /// `program` as a member of the group.
    pub fn command(&self, program: &Command) -> Command {
        let mut command = Command::new("sh");
        let procs = self.dir.join("cgroup.procs");
        command.arg("-c").arg(format!("echo $$ > {} && exec \"$@\"", procs.display())).arg("sh");
        command.arg(program.get_program()).args(program.get_args());
        command
    }

    fn used(&self) -> u64 {
        let text = std::fs::read_to_string(self.dir.join(self.usage)).expect("the usage");
        text.trim().parse().expect("a number")
    }

    /// Fills the group to `percent` of its limit, with memory of no process.
    pub fn fill(&self, percent: u64) {
        let mut rounds = 0;
        while self.used() < self.limit / 100 * percent {
            let mut more = Command::new("dd");
            more.args(["if=/dev/zero", "bs=256K", "count=4", "oflag=append", "conv=notrunc"]);
            let mut more = self.command(more.arg(format!("of={}", self.ballast.display())));
            let done = more.stdin(Stdio::null()).stderr(Stdio::null()).status().expect("sh runs");
            rounds += 1;
            assert!(done.success() && rounds < 2000, "{} of {} used", self.used(), self.limit);
        }
    }

    /// Frees what `fill` took.
    pub fn empty(&self) {
        let _ = std::fs::remove_file(&self.ballast);
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        self.empty();
        if !std::thread::panicking() {
            eventually("the group is empty", || std::fs::remove_dir(&self.dir).is_ok());
        } else {
            let _ = std::fs::remove_dir(&self.dir);
        }
    }
}
