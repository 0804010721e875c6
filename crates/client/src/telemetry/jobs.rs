//! Jobs: the requests of a mount are counted by job, as well as by file and reason.
//!
//! Owns: how a job gets its name, the table of jobs and their counters, the output. Does not own: reading environments
//! (front ends, which pass the name with an open), counts that an open file has not added yet (`stats::Ledger`).
//!
//! The job of a request is that of the process that opened the file. A request does not use this table: the open file
//! refers to its job, and adds its counts when it is closed and whenever the counters are read.
//!
//! Bound: `JOBS_MAX` jobs. If there are more, the job is dropped whose files are all closed and were opened or closed
//! longest ago. If there is no such job, the new job is counted together with requests that have no job (`NO_JOB`).
//! Both cases have counters.

use crate::telemetry::stats::{ByReason, Count, Stats, row_json};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Variables that may name a job; the first one that is set is used. AmphiFS's own comes first, then those of Slurm,
/// PBS, LSF and Flux.
pub const JOB_VARIABLES: [&str; 5] = ["AMPHI_JOB", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"];

/// Jobs that are remembered.
const JOBS_MAX: usize = 1024;
/// Most bytes of a name. Longer names are cut.
const NAME_MAX: usize = 64;
/// The job name of requests without a job.
const NO_JOB: &str = "-";
/// Bytes after which a print ends: an extended attribute has at most 64 KiB, a job takes 2 KiB at most.
const PRINT_BYTES: usize = 48 << 10;

/// Name of a job: 1 to 64 printable ASCII characters without blanks, quotes and backslashes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobName(Arc<str>);

impl JobName {
    /// `text` with a `_` in place of every character that a name must not have; `None` if nothing remains.
    pub fn new(text: &str) -> Option<JobName> {
        let plain = |c: char| if c.is_ascii_graphic() && !matches!(c, '"' | '\\') { c } else { '_' };
        let name: String = text.trim().chars().take(NAME_MAX).map(plain).collect();
        (!name.is_empty()).then(|| JobName(name.into()))
    }

    /// The job that an environment names: by the first of `variables` that `value` knows and that is not empty.
    pub fn find(variables: &[String], value: impl Fn(&str) -> Option<String>) -> Option<JobName> {
        variables.iter().find_map(|name| JobName::new(&value(name)?))
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Counters of a job.
#[derive(Default)]
pub(crate) struct Job {
    by_reason: ByReason,
    opens: AtomicU64,
    throttled: AtomicU64,
    /// When a file of it was opened or closed last, in turns of the table.
    used: AtomicU64,
}

impl Job {
    pub(crate) fn by_reason(&self) -> &ByReason {
        &self.by_reason
    }

    /// A writer had to wait for room.
    pub(crate) fn note_throttled(&self) {
        self.throttled.fetch_add(1, Relaxed);
    }

    fn reset(&self) {
        self.by_reason.reset();
        self.opens.store(0, Relaxed);
        self.throttled.store(0, Relaxed);
    }
}

/// Returns whether no file of the job is open: each open file has a reference to it, and so does the table.
fn is_idle(job: &Arc<Job>) -> bool {
    Arc::strong_count(job) == 1
}

type Table = BTreeMap<Arc<str>, Arc<Job>>;

/// All jobs of a mount.
pub(crate) struct Jobs {
    /// Always with that of what has no job.
    table: Mutex<Table>,
    turns: AtomicU64,
    /// The job for opens that name no job.
    pub(crate) own: Option<JobName>,
    /// Variables of a process that name its job.
    pub(crate) variables: Vec<String>,
}

impl Jobs {
    /// The table of a mount whose opens belong to job `own` if they name none.
    pub(crate) fn new(own: Option<JobName>, variables: Vec<String>) -> Jobs {
        let table = Table::from([(NO_JOB.into(), Arc::default())]);
        Jobs { table: Mutex::new(table), turns: AtomicU64::new(0), own, variables }
    }

    /// Called when a file is opened for this job.
    pub(crate) fn opened(&self, stats: &Stats, name: Option<&JobName>) -> Arc<Job> {
        let mut table = self.table.lock();
        let name = name.filter(|name| self.has_room(&mut table, stats, name)).map_or(NO_JOB, |name| &name.0);
        let job = match table.get(name) {
            Some(job) => job.clone(),
            None => table.entry(name.into()).or_default().clone(),
        };
        job.opens.fetch_add(1, Relaxed);
        self.note_use(&job);
        job
    }

    /// Called when a file of the job was closed.
    pub(crate) fn note_use(&self, job: &Job) {
        job.used.store(self.turns.fetch_add(1, Relaxed), Relaxed);
    }

    /// Returns whether the job is in the table or can be.
    fn has_room(&self, table: &mut Table, stats: &Stats, name: &JobName) -> bool {
        if table.contains_key(&name.0) || table.len() <= JOBS_MAX {
            return true;
        }
        let idle = table.iter().filter(|(name, job)| &***name != NO_JOB && is_idle(job));
        let oldest = idle.min_by_key(|(_, job)| job.used.load(Relaxed)).map(|(name, _)| name.clone());
        stats.count(if oldest.is_some() { Count::JobForgotten } else { Count::JobRefused });
        oldest.is_some_and(|oldest| table.remove(&oldest).is_some())
    }

    /// Sets all counters to zero; jobs without open files are dropped. The counts of open files must have been added
    /// before.
    pub(crate) fn reset(&self) {
        let mut table = self.table.lock();
        table.retain(|name, job| !is_idle(job) || &**name == NO_JOB);
        table.values().for_each(|job| job.reset());
    }

    /// The jobs after `after` as JSON, in the order of their names, as many as fit. `more` says whether further jobs
    /// follow. The counts of open files must have been added before.
    pub(crate) fn json(&self, after: Option<&str>) -> String {
        let table = self.table.lock();
        let from = after.map_or(Unbounded, Excluded);
        let mut out = String::from("{\"jobs\":[");
        let (mut comma, mut more) = ("", false);
        for (name, job) in table.range::<str, _>((from, Unbounded)) {
            let rows = job.by_reason.rows();
            let (opens, throttled) = (job.opens.load(Relaxed), job.throttled.load(Relaxed));
            let open = Arc::strong_count(job) - 1;
            if &**name == NO_JOB && rows.is_empty() && opens == 0 && open == 0 {
                continue;
            }
            more = out.len() >= PRINT_BYTES;
            if more {
                break;
            }
            let counters: Vec<String> = rows.iter().map(row_json).collect();
            let _ = write!(
                out,
                "{comma}{{\"job\":\"{name}\",\"open\":{open},\"opens\":{opens},\"throttled\":{throttled},\"counters\":{{{}}}}}",
                counters.join(",")
            );
            comma = ",";
        }
        let _ = write!(out, "],\"more\":{more}}}");
        out
    }
}
