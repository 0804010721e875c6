//! To which run and which node the folder of a job belongs.
//!
//! Owns: the contents of `lock`, the file of a folder that its keeper locks, and what they mean to others. Does not
//! own: the lock (`folder`), finding the processes of a run (`processes`).
//!
//! Invariants: without these contents nothing is known to be a job's, and nothing is removed. Where locks of files hold
//! on one node alone, a lock that is free says nothing about another node, so a folder counts as left only on the node
//! that made it.

use amphi_host::failure::{During, Outcome};
use amphi_host::link::host_name;
use rustix::fs::fsync;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// First line of the file, with the version of what follows.
const MAGIC: &str = "amphi-job 1\n";
/// Most bytes of the file that are read.
const BYTES_MAX: u64 = 64 << 10;
/// Variables by which batch systems number their jobs.
pub const BATCH: [&str; 4] = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"];

/// The owner of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// A random number of the run, by which its program's processes are known.
    pub token: String,
    /// Those of `BATCH` that are set for the program.
    pub batch: BTreeMap<String, String>,
    node: Node,
}

/// A node, as it was when the folder was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Node {
    host: String,
    /// `/etc/machine-id`, as nodes can have the same name; empty where there is none.
    machine: String,
    boot: String,
}

impl Node {
    fn here() -> Node {
        let line = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_string();
        Node { host: host_name(), machine: line("/etc/machine-id"), boot: line("/proc/sys/kernel/random/boot_id") }
    }
}

impl Owner {
    /// Of a run on this node.
    pub fn here(token: &str, batch: &BTreeMap<String, String>) -> Owner {
        Owner { token: token.to_string(), batch: batch.clone(), node: Node::here() }
    }

    /// The batch system's numbers that are set for this process.
    pub fn batch() -> BTreeMap<String, String> {
        BATCH.iter().filter_map(|name| Some(((*name).to_string(), std::env::var(name).ok()?))).collect()
    }

    /// Writes it, stable on return.
    pub fn write(&self, mut file: impl Write + AsFd, path: &Path) -> Outcome {
        let text = serde_json::to_string(self).during(|| "write the owner of a folder".into())?;
        let written = file.write_all(format!("{MAGIC}{text}\n").as_bytes());
        written.and_then(|()| Ok(fsync(file)?)).during(|| format!("write {}", path.display()))
    }

    /// That of the folder with this `lock`; none: it is not known to be a job's.
    pub fn of(lock: &Path) -> Option<Owner> {
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(lock).ok()?;
        let mut text = String::new();
        file.take(BYTES_MAX).read_to_string(&mut text).ok()?;
        serde_json::from_str(text.strip_prefix(MAGIC)?).ok()
    }

    /// Its node.
    pub fn host(&self) -> &str {
        &self.node.host
    }

    /// Whether the folder with this `lock` was made on this node. What was made since this node was started, under the
    /// number of another start, is of a node that looks the same.
    pub fn is_here(&self, lock: &Path) -> bool {
        let here = Node::here();
        let looks_so = (&self.node.host, &self.node.machine) == (&here.host, &here.machine);
        let is_older = || Some(std::fs::metadata(lock).ok()?.mtime() < started_s()?);
        looks_so && (self.node.boot == here.boot || is_older().unwrap_or(false))
    }

    /// Another node's, for tests.
    #[cfg(test)]
    pub fn elsewhere(&self, host: &str, boot: &str) -> Owner {
        let mut other = self.clone();
        let set = |name: &mut String, value: &str| {
            if !value.is_empty() {
                *name = value.to_string();
            }
        };
        set(&mut other.node.host, host);
        set(&mut other.node.boot, boot);
        other
    }
}

/// When this node was started, in seconds since 1970 by its clock.
fn started_s() -> Option<i64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}
