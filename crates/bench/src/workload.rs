//! Workloads of several processes on several mounts, in the manner of IOR and mdtest.
//!
//! Owns: where a workload runs (`place`), its processes and their common start (`tasks`), the two workloads (`ior`,
//! `mdtest`), reading and writing (`transfers`), the records of single calls (`latency`). Does not own: the scenarios
//! that use them (`scenario`), the clusters (`cluster`). Option names are those of IOR 4 and mdtest 4 where they have
//! one.

pub mod ior;
pub mod latency;
pub mod mdtest;
pub mod place;
pub mod plot;
pub mod tasks;
pub mod transfers;

use serde::{Deserialize, Serialize};

/// The work of one process, sent before its phases.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Pieces of files.
    Transfers(transfers::Job),
    /// Names.
    Mdtest(mdtest::Job),
}

/// A step that all processes do at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Writes the file, or makes the items.
    Write,
    /// Reads all that was written and compares each byte.
    CheckWrite,
    /// Reads the file or the items.
    Read,
    /// Reads and compares each byte.
    CheckRead,
    /// Looks at the attributes of the items.
    Stat,
    /// Removes the file or the items.
    Remove,
}

impl Phase {
    /// The word for it in tables.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Write => "write",
            Phase::CheckWrite => "check write",
            Phase::Read => "read",
            Phase::CheckRead => "check read",
            Phase::Stat => "stat",
            Phase::Remove => "remove",
        }
    }
}

/// The result of one process in a phase. Times are nanoseconds of the machine's monotonic clock.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// The time before the open.
    pub start_ns: u64,
    /// After the open.
    pub opened_ns: u64,
    /// After the last transfer, and after fsync if one was asked for.
    pub moved_ns: u64,
    /// After the close.
    pub end_ns: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Transfers, or items.
    pub calls: u64,
    /// Length of single calls: nanoseconds and how many.
    pub latency: Vec<(u64, u64)>,
}

/// A phase of all processes together.
#[derive(Clone, Debug)]
pub struct Together {
    /// The result of each rank, in their order.
    pub ranks: Vec<Done>,
}

impl Together {
    fn first(&self, of: impl Fn(&Done) -> u64) -> u64 {
        self.ranks.iter().map(of).min().unwrap_or(0)
    }

    fn last(&self, of: impl Fn(&Done) -> u64) -> u64 {
        self.ranks.iter().map(of).max().unwrap_or(0)
    }

    /// Seconds from the first start to the last end.
    pub fn seconds(&self) -> f64 {
        self.last(|d| d.end_ns).saturating_sub(self.first(|d| d.start_ns)) as f64 / 1e9
    }

    /// Longest open, transfers and close of a process, seconds.
    pub fn parts(&self) -> [f64; 3] {
        let longest = |from: fn(&Done) -> u64, to: fn(&Done) -> u64| {
            self.ranks.iter().map(|d| to(d).saturating_sub(from(d))).max().unwrap_or(0) as f64 / 1e9
        };
        [
            longest(|d| d.start_ns, |d| d.opened_ns),
            longest(|d| d.opened_ns, |d| d.moved_ns),
            longest(|d| d.moved_ns, |d| d.end_ns),
        ]
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.ranks.iter().map(|d| d.bytes).sum()
    }

    /// Transfers or items of all.
    pub fn calls(&self) -> u64 {
        self.ranks.iter().map(|d| d.calls).sum()
    }

    /// MiB/s from the first start to the last end.
    pub fn mib_s(&self) -> f64 {
        self.bytes() as f64 / (1 << 20) as f64 / self.seconds()
    }

    /// Transfers or items per second.
    pub fn per_second(&self) -> f64 {
        self.calls() as f64 / self.seconds()
    }

    /// Lengths of single calls of all processes.
    pub fn latency(&self) -> latency::Latency {
        let mut all = latency::Latency::new();
        self.ranks.iter().flat_map(|d| &d.latency).for_each(|&(ns, n)| all.add_many(ns, n));
        all
    }
}

/// Runs one phase of `job` in a process of its own.
///
/// Errors: what failed, with the path.
fn run_phase(job: &mut Job, phase: Phase, at_ns: u64) -> amphi_host::failure::Outcome<Done> {
    tasks::wait_until(at_ns);
    match job {
        Job::Transfers(job) => job.run(phase),
        Job::Mdtest(job) => job.run(phase),
    }
}
