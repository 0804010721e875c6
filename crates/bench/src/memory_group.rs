//! A memory group of the machine (cgroup version 2 or 1) with a limit, for as long as a benchmark runs.

use super::clock;
use amphi_host::failure::{During, Failure, Outcome};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The group; it is removed with the value, once its processes have ended.
pub struct MemoryGroup {
    dir: PathBuf,
    procs: PathBuf,
    files: &'static Files,
}

/// Names of files of a version.
struct Files {
    root: &'static str,
    /// The file that exists if groups with a limit can be made there.
    marker: &'static str,
    limit: &'static str,
    /// The most that was used.
    peak: &'static str,
    /// The file with a line `oom_kill N`, the number of processes that the kernel has killed.
    kills: &'static str,
}

const VERSIONS: [Files; 2] = [
    Files {
        root: "/sys/fs/cgroup/memory",
        marker: "memory.limit_in_bytes",
        limit: "memory.limit_in_bytes",
        peak: "memory.max_usage_in_bytes",
        kills: "memory.oom_control",
    },
    Files {
        root: "/sys/fs/cgroup",
        marker: "cgroup.controllers",
        limit: "memory.max",
        peak: "memory.peak",
        kills: "memory.events",
    },
];

impl MemoryGroup {
    /// Makes a group of this name with `limit` bytes, in the first hierarchy that limits memory.
    ///
    /// Errors: the machine offers none, or this user may not make one.
    pub fn make(name: &str, limit: u64) -> Outcome<MemoryGroup> {
        let mut last = String::from("no memory controller");
        for files in &VERSIONS {
            let root = Path::new(files.root);
            if !root.join(files.marker).exists() {
                continue;
            }
            let dir = root.join(format!("{name}-{}", std::process::id()));
            if let Err(e) = std::fs::create_dir(&dir) {
                last = format!("{}: {e}", dir.display());
                continue;
            }
            let group = MemoryGroup { procs: dir.join("cgroup.procs"), dir, files };
            match std::fs::write(group.dir.join(files.limit), limit.to_string()) {
                Ok(()) => return Ok(group),
                Err(e) => last = format!("{}: {e}", group.dir.join(files.limit).display()),
            }
        }
        Err(Failure::refused(format!(
            "this benchmark needs a memory group of its own ({last}); run it as root where memory groups can be made"
        )))
    }

    /// The prefix of a command line that runs in it: a shell enters the group and becomes the program.
    pub fn enter(&self) -> Vec<String> {
        let procs = self.procs.display().to_string();
        vec!["sh".into(), "-c".into(), "echo $$ > \"$0\" && exec \"$@\"".into(), procs]
    }

    /// The most bytes that were used, where the kernel says so.
    pub fn peak(&self) -> Option<u64> {
        std::fs::read_to_string(self.dir.join(self.files.peak)).ok()?.trim().parse().ok()
    }

    /// Errors: the kernel has killed processes of it for want of memory.
    pub fn check(&self) -> Outcome {
        let path = self.dir.join(self.files.kills);
        let text = std::fs::read_to_string(&path).during(|| format!("read {}", path.display()))?;
        match kills(&text) {
            0 => Ok(()),
            n => Err(Failure::broken(format!("the kernel killed {n} processes of the memory group; give it more"))),
        }
    }

    /// Removes it; its processes have ended.
    pub fn remove(self) -> Outcome {
        for _ in 0..100 {
            if std::fs::remove_dir(&self.dir).is_ok() {
                return Ok(());
            }
            clock::pause(Duration::from_millis(20));
        }
        std::fs::remove_dir(&self.dir).during(|| format!("remove {}", self.dir.display()))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// The number in the line `oom_kill N`.
fn kills(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: processes that were killed are counted, in both versions. Method: texts of the kernel.
    #[test]
    fn killed_processes() {
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), 2);
        assert_eq!(kills("low 0\nhigh 0\nmax 17\noom 3\noom_kill 1\noom_group_kill 0\n"), 1);
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"), 0);
    }
}
