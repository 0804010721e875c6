//! A memory group of the machine (cgroup version 2 or 1) with a limit, for as long as a benchmark runs.

use super::clock;
use crate::failure::{During, Failure, Outcome};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The group; it is removed with the value, once its processes have ended.
pub struct MemoryGroup {
    dir: PathBuf,
    procs: PathBuf,
}

/// Where groups are made, what is there if it is such a place, and the file of the limit.
const ROOTS: [(&str, &str, &str); 2] = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.limit_in_bytes"),
    ("/sys/fs/cgroup", "cgroup.controllers", "memory.max"),
];

impl MemoryGroup {
    /// Makes a group of this name with `limit` bytes, in the first hierarchy that limits memory.
    ///
    /// Errors: the machine offers none, or this user may not make one.
    pub fn make(name: &str, limit: u64) -> Outcome<MemoryGroup> {
        let mut last = String::from("no memory controller");
        for (root, marker, file) in ROOTS {
            if !Path::new(root).join(marker).exists() {
                continue;
            }
            let dir = Path::new(root).join(format!("{name}-{}", std::process::id()));
            if let Err(e) = std::fs::create_dir(&dir) {
                last = format!("{}: {e}", dir.display());
                continue;
            }
            let group = MemoryGroup { procs: dir.join("cgroup.procs"), dir };
            match std::fs::write(group.dir.join(file), limit.to_string()) {
                Ok(()) => return Ok(group),
                Err(e) => last = format!("{}: {e}", group.dir.join(file).display()),
            }
        }
        Err(Failure::refused(format!(
            "this benchmark needs a memory group of its own ({last}); run it as root where memory groups can be made"
        )))
    }

    /// What comes before a command line that runs in it: a shell enters the group and becomes the program.
    pub fn enter(&self) -> Vec<String> {
        let procs = self.procs.display().to_string();
        vec!["sh".into(), "-c".into(), "echo $$ > \"$0\" && exec \"$@\"".into(), procs]
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
