//! `Snapshot`: the report of a mount and its servers about themselves at one moment.
//!
//! Owns: the shapes of their JSON. Does not own: rates (`change`).

use crate::calibration::Limits;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The count under one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Counter {
    /// How often.
    pub samples: u64,
    /// Sum of what was counted: bytes, ns, or again how often.
    pub sum: u64,
}

/// The times of the calls of one kind that were served in one way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Times {
    /// How many calls.
    pub count: u64,
    /// The sum of their times, in nanoseconds.
    pub sum_ns: u64,
    /// The number of calls that took at most this many microseconds and more than the bound before. Calls that took
    /// longer than the last bound are counted in no bucket.
    pub up_to_us: BTreeMap<u64, u64>,
}

/// Counters of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Mount {
    /// The time since the counters began, in nanoseconds.
    pub elapsed_ns: u64,
    /// Events by name.
    pub counters: BTreeMap<String, Counter>,
    /// States by name.
    pub gauges: BTreeMap<String, u64>,
    /// Times of calls, by kind and how they were served: `read.at_once`.
    pub calls: BTreeMap<String, Times>,
}

/// A server, as the master describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Server {
    /// The number of the server, in hexadecimal.
    pub id: String,
    /// The name of the server.
    pub name: String,
    /// Whether the server answers.
    pub up: bool,
    /// Seconds since the start of the server.
    pub uptime_s: u64,
}

/// A target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Target {
    /// The number of the target.
    pub target: u16,
    /// The name of the target's server.
    pub server: String,
    /// Blocks of 4 KiB.
    pub blocks: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Inodes that can exist.
    pub inodes: u64,
    /// The number of inodes that can still be made.
    pub inodes_free: u64,
    /// Log in use, bytes.
    pub log_used_bytes: u64,
    /// Size of the log, bytes.
    pub log_bytes: u64,
    /// Blocks of file data that cannot be read.
    pub damaged_blocks: u64,
}

/// A session of a mount, as the servers describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Session {
    /// Host and process.
    pub name: String,
    /// Whether the mount is connected.
    pub connected: bool,
    /// Opens of files.
    pub opens: u64,
    /// Locks that the mount holds.
    pub locks: u64,
}

/// The cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Cluster {
    /// The number of the cluster, in hexadecimal.
    pub cluster: String,
    /// Seconds since the start of the master.
    pub uptime_s: u64,
    /// Servers.
    pub servers: Vec<Server>,
    /// Targets.
    pub targets: Vec<Target>,
    /// Mounts.
    pub sessions: Vec<Session>,
}

/// A label for each of these servers, given as name and number: the name, and the number behind it if several have this
/// name.
pub fn labels<'a>(servers: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> Vec<String> {
    let alike = |name: &str| servers.clone().filter(|(other, _)| *other == name).count();
    let label = |(name, id): (&str, &str)| if alike(name) > 1 { format!("{name}-{id}") } else { name.to_string() };
    servers.clone().map(label).collect()
}

impl Cluster {
    /// A label for each server, in their order.
    pub fn labels(&self) -> Vec<String> {
        labels(self.servers.iter().map(|server| (server.name.as_str(), server.id.as_str())))
    }
}

/// The numbers that one server has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfServer {
    /// The server's label.
    pub label: String,
    /// The counters of the server, by name.
    pub rows: BTreeMap<String, u64>,
}

/// The counts of one file of the mount since the mount has had a record of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HotFile {
    /// The inode number of the file.
    pub ino: u64,
    /// How often the file is open.
    pub open: u64,
    /// Reads.
    pub read_requests: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Writes.
    pub write_requests: u64,
    /// Bytes that were written.
    pub write_bytes: u64,
    /// Time that calls have waited for locks of the file, ns.
    pub lock_wait_ns: u64,
    /// How often a server asked for one of the file's locks back.
    pub lock_callbacks: u64,
    /// How often a server informed the mount that other mounts want the file too.
    pub contended_told: u64,
    /// Bytes that are not with the servers.
    pub dirty_bytes: u64,
}

/// Bytes and requests of a job that were served in one way for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct JobCounter {
    /// Bytes.
    pub bytes: u64,
    /// Requests.
    pub requests: u64,
}

/// A job on this mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Job {
    /// The name of the job; `-` for processes that name none.
    pub job: String,
    /// Reads and writes by way and reason.
    pub counters: BTreeMap<String, JobCounter>,
    /// Files that the job has open.
    pub open: u64,
    /// Files that the job has opened.
    pub opens: u64,
}

impl Job {
    /// Bytes whose rows begin with `read_` or `write_`.
    pub fn bytes(&self, prefix: &str) -> u64 {
        self.counters.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, c)| c.bytes).sum()
    }
}

/// The values at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// When, on a clock that does not go back.
    pub at: Duration,
    /// The mount.
    pub mount: Mount,
    /// Sums over all servers, by name.
    pub servers: BTreeMap<String, u64>,
    /// The servers that these are the sums of; empty if only the sums are known.
    pub by_server: Vec<OfServer>,
    /// The cluster; empty without an answer.
    pub cluster: Cluster,
    /// Jobs of the mount.
    pub jobs: Vec<Job>,
    /// Files that have the most to do, the first of them most.
    pub files: Vec<HotFile>,
    /// Names of some of these files, by inode number.
    pub file_names: BTreeMap<u64, String>,
    /// The highest rates that the machine can reach, as far as they were measured.
    pub limits: Limits,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Jobs {
    jobs: Vec<Job>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Files {
    files: Vec<HotFile>,
}

/// The texts that make a snapshot. All but the first may be empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Texts<'a> {
    /// The text of the mount's counters.
    pub mount: &'a str,
    /// The text of the sums of the servers' counters; it is not read if `by_server` has any entry.
    pub servers: &'a str,
    /// For each server, its label and the text of its counters.
    pub by_server: &'a [(String, String)],
    /// The text of the cluster's state.
    pub cluster: &'a str,
    /// The text of the jobs.
    pub jobs: &'a str,
    /// The text of the files with the most activity.
    pub files: &'a str,
}

fn read<T: Default + for<'a> Deserialize<'a>>(what: &str, text: &str) -> Result<T, String> {
    if text.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_str(text).map_err(|e| format!("{what}: {e}"))
}

impl Snapshot {
    /// From the JSON that `amphi stats`, `amphi stats --servers`, `amphi status` and `amphi stats --jobs` print.
    ///
    /// Errors: a sentence that names the unreadable text.
    pub fn read(at: Duration, texts: Texts<'_>) -> Result<Snapshot, String> {
        let Jobs { jobs } = read("the jobs of the mount", texts.jobs)?;
        let Files { files } = read("the busy files of the mount", texts.files)?;
        let one = |(label, text): &(String, String)| {
            let rows = read(&format!("the counters of the server {label}"), text)?;
            Ok(OfServer { label: label.clone(), rows })
        };
        let by_server: Vec<OfServer> = texts.by_server.iter().map(one).collect::<Result<_, String>>()?;
        let mut servers: BTreeMap<String, u64> = BTreeMap::new();
        for (name, n) in by_server.iter().flat_map(|server| &server.rows) {
            *servers.entry(name.clone()).or_default() += n;
        }
        if by_server.is_empty() {
            servers = read("the counters of the servers", texts.servers)?;
        }
        Ok(Snapshot {
            at,
            mount: read("the counters of the mount", texts.mount)?,
            servers,
            by_server,
            cluster: read("the status of the cluster", texts.cluster)?,
            jobs,
            files,
            file_names: BTreeMap::new(),
            limits: Limits::default(),
        })
    }

    /// A counter of the mount.
    pub fn counter(&self, name: &str) -> Counter {
        self.mount.counters.get(name).copied().unwrap_or_default()
    }

    /// A state of the mount.
    pub fn gauge(&self, name: &str) -> u64 {
        self.mount.gauges.get(name).copied().unwrap_or(0)
    }

    /// Returns the numbers that a server has counted, if it has answered.
    pub fn of_server(&self, label: &str) -> Option<&OfServer> {
        self.by_server.iter().find(|server| server.label == label)
    }

    /// A counter of all servers.
    pub fn of_servers(&self, name: &str) -> u64 {
        self.servers.get(name).copied().unwrap_or(0)
    }

    /// Reads and writes of the mount by way and reason: the rows that begin with `prefix`, `read_` or `write_`.
    pub fn ways<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (Way, Counter)> + 'a {
        self.mount.counters.iter().filter_map(move |(name, counter)| {
            let way = Way::of(name.strip_prefix(prefix)?)?;
            Some((way, *counter))
        })
    }
}

/// The way in which a request was served, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// `direct`, `buffered` or `cache`.
    pub way: &'static str,
    /// The reason.
    pub reason: String,
}

impl Way {
    fn of(text: &str) -> Option<Way> {
        let ways = ["direct", "buffered", "cache"];
        let (way, reason) = text.split_once('_')?;
        let way = ways.into_iter().find(|known| *known == way)?;
        Some(Way { way, reason: reason.replace('_', " ") })
    }
}
