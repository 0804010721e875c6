//! Metrics in the OpenMetrics format, from one snapshot.
//!
//! Owns: names, labels and help of the metrics. Does not own: how they are fetched.
//!
//! Names are those of Prometheus: base units, `_total` for what only grows. Labels come from closed sets (operations,
//! ways, reasons, events, numbers of targets); jobs are the `JOBS_MAX` busiest and one `_other`, servers the first
//! `SERVERS_MAX` of the cluster by their names and one `_other`. No path, user or host of a program appears. Prometheus
//! names a scrape's own label `job`, hence `jobid`.

use crate::snapshot::{Job, Snapshot, Times};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeMap;
use std::fmt;

/// Most jobs that have series of their own.
const JOBS_MAX: usize = 64;
/// Most servers whose counters have series of their own in the metrics of a mount.
const SERVERS_MAX: usize = 8;
/// The label of jobs or servers that have none of their own.
const OTHERS: &str = "_other";

/// Counters of a mount that are operations of programs.
const OPERATIONS: &[&str] = &[
    "lookup",
    "getattr",
    "setattr",
    "create",
    "open",
    "close",
    "mknod",
    "mkdir",
    "symlink",
    "link",
    "unlink",
    "rmdir",
    "rename",
    "readlink",
    "readdir",
    "statfs",
    "xattr",
    "fsync",
    "seek",
    "fallocate",
];

/// Bounds of the buckets of call times, powers of two of microseconds.
const BOUNDS: u32 = 25;

type Labels = Vec<(&'static str, String)>;

/// Values of one name. Sorted out before they are written, since the format wants the series of a name together.
#[derive(Debug, Default)]
struct Family {
    help: &'static str,
    series: Vec<(Labels, f64)>,
}

/// All numbers of a snapshot, by name.
#[derive(Default)]
struct Families {
    counters: BTreeMap<&'static str, Family>,
    gauges: BTreeMap<&'static str, Family>,
    times: Vec<(Labels, Times)>,
}

impl Families {
    fn count(&mut self, name: &'static str, help: &'static str, labels: Labels, value: f64) {
        self.counters.entry(name).or_insert(Family { help, series: Vec::new() }).series.push((labels, value));
    }

    fn set(&mut self, name: &'static str, help: &'static str, labels: Labels, value: f64) {
        self.gauges.entry(name).or_insert(Family { help, series: Vec::new() }).series.push((labels, value));
    }
}

fn of_mount(snapshot: &Snapshot, all: &mut Families) {
    let (requests, sizes) = ("Reads and writes by way and reason.", "Their bytes.");
    for (op, prefix) in [("read", "read_"), ("write", "write_")] {
        for (way, counter) in snapshot.ways(prefix) {
            let labels: Labels = vec![("op", op.into()), ("way", way.way.into()), ("reason", way.reason)];
            all.count("client_io_requests", requests, labels.clone(), counter.samples as f64);
            all.count("client_io_bytes", sizes, labels, counter.sum as f64);
        }
    }
    for (name, counter) in &snapshot.mount.counters {
        if name.starts_with("read_") || (name.starts_with("write_") && snapshot_way(name)) {
            continue;
        }
        if OPERATIONS.contains(&name.as_str()) {
            let labels = vec![("op", name.clone())];
            all.count("client_requests", "Operations on names and attributes.", labels, counter.samples as f64);
        } else {
            let labels: Labels = vec![("event", name.clone())];
            all.count("client_events", "Other events of the mount.", labels.clone(), counter.samples as f64);
            if counter.sum != counter.samples {
                all.count("client_event_amount", "Their bytes or nanoseconds.", labels, counter.sum as f64);
            }
        }
    }
    for (name, value) in &snapshot.mount.gauges {
        all.set("client_state", "States of the mount.", vec![("state", name.clone())], *value as f64);
    }
}

/// Writes the times of calls, but only of the kinds of calls that occurred.
fn of_calls(snapshot: &Snapshot, all: &mut Families) {
    for (name, times) in &snapshot.mount.calls {
        let (kind, served) = name.split_once('.').unwrap_or((name, ""));
        all.times.push((vec![("op", kind.into()), ("served", served.into())], times.clone()));
    }
}

fn snapshot_way(name: &str) -> bool {
    ["write_direct_", "write_buffered_", "write_cache_"].iter().any(|prefix| name.starts_with(prefix))
}

/// Rows of one server, or of several together.
fn of_server(label: &str, rows: &BTreeMap<String, u64>, all: &mut Families) {
    for (name, value) in rows {
        let value = *value as f64;
        let labels = |name: &'static str, text: &str| vec![("server", label.to_string()), (name, text.to_string())];
        if let Some(op) = name.strip_prefix("request_") {
            all.count("server_requests", "Requests of mounts.", labels("op", op), value);
        } else if let Some((what, bound)) = name.strip_prefix("histogram_").and_then(|rest| rest.rsplit_once("_to_")) {
            let mut labels = labels("what", what);
            labels.push(("upto", bound.into()));
            all.count("server_sizes", "How often a size or time (us) was met, up to each power of two.", labels, value);
        } else if let Some(what) = name.strip_prefix("time_").and_then(|rest| rest.strip_suffix("_ns")) {
            all.count("server_time_seconds", "Time that was spent.", labels("what", what), value / 1e9);
        } else if STATES.contains(&name.as_str()) {
            all.set("server_state", "States of a server.", labels("state", name), value);
        } else if let Some(what) = name.strip_suffix("_bytes") {
            all.count("server_bytes", "Bytes.", labels("what", what), value);
        } else {
            all.count("server_events", "Other events of a server.", labels("event", name), value);
        }
    }
}

/// The servers' rows: the first `SERVERS_MAX` of the cluster by name, the others together. Servers that do not answer
/// are left out: a gap is what Prometheus can bridge.
fn of_servers(snapshot: &Snapshot, all: &mut Families) {
    let labels = snapshot.cluster.labels();
    let named = |label: &String| labels.iter().position(|known| known == label).is_none_or(|at| at < SERVERS_MAX);
    // A sum without one of the servers would be smaller than before, which Prometheus takes for a restart. The database
    // would count the whole sum once more when the server is there again.
    let up = |at: usize| snapshot.cluster.servers[at].up && snapshot.of_server(&labels[at]).is_some();
    let all_others = (SERVERS_MAX..labels.len()).all(up);
    let mut others: BTreeMap<String, u64> = BTreeMap::new();
    for server in &snapshot.by_server {
        if named(&server.label) {
            of_server(&server.label, &server.rows, all);
        } else {
            server.rows.iter().for_each(|(name, n)| *others.entry(name.clone()).or_default() += n);
        }
    }
    if all_others {
        of_server(OTHERS, &others, all);
    }
    // The mount's program is an earlier one that reports only sums over all servers.
    let servers = &snapshot.cluster.servers;
    if snapshot.by_server.is_empty() && !servers.is_empty() && servers.iter().all(|server| server.up) {
        of_server(OTHERS, &snapshot.servers, all);
    }
}

/// Rows of the servers' counters that say how things are, not how often something happened.
const STATES: &[&str] = &[
    "unstable_bytes",
    "file_locks_held",
    "file_locks_waiting",
    "tokens_held",
    "inodes_away",
    "lock_objects_contended",
    "read_cache_bytes",
    "scrub_pass_bytes",
    "checksum_items",
    "checksum_damaged_blocks",
];

fn of_cluster(snapshot: &Snapshot, all: &mut Families) {
    let cluster = &snapshot.cluster;
    for (server, label) in cluster.servers.iter().zip(cluster.labels()) {
        let labels = vec![("server", label)];
        all.set("server_up", "Whether the server answers.", labels.clone(), f64::from(u8::from(server.up)));
        all.set("server_uptime_seconds", "Since its start.", labels, server.uptime_s as f64);
    }
    for target in &cluster.targets {
        let labels = |state: &str| vec![("target", target.target.to_string()), ("state", state.to_string())];
        let block = 4096.0;
        let free = target.blocks_free.min(target.blocks);
        let space = "Space of a target.";
        all.set("target_space_bytes", space, labels("used"), (target.blocks - free) as f64 * block);
        all.set("target_space_bytes", space, labels("free"), free as f64 * block);
        all.set("target_inodes", "Inodes of a target.", labels("used"), target.inodes as f64);
        all.set("target_inodes", "Inodes of a target.", labels("free"), target.inodes_free as f64);
        all.set("target_log_bytes", "Log of a target.", labels("used"), target.log_used_bytes as f64);
        all.set("target_log_bytes", "Log of a target.", labels("size"), target.log_bytes as f64);
        let damaged = "Blocks of file data that cannot be read.";
        let labels = vec![("target", target.target.to_string())];
        all.set("target_damaged_blocks", damaged, labels, target.damaged_blocks as f64);
    }
    let connected = cluster.sessions.iter().filter(|s| s.connected).count();
    let state = |state: &str| vec![("state", state.to_string())];
    let sessions = "Mounts that the servers know.";
    all.set("sessions", sessions, state("connected"), connected as f64);
    all.set("sessions", sessions, state("away"), (cluster.sessions.len() - connected) as f64);
}

fn of_jobs(snapshot: &Snapshot, all: &mut Families) {
    let mut jobs: Vec<&Job> = snapshot.jobs.iter().collect();
    jobs.sort_by_key(|job| std::cmp::Reverse(job.bytes("")));
    let rest = jobs.split_off(jobs.len().min(JOBS_MAX));
    let mut job = |name: &str, bytes: [u64; 2]| {
        for (op, bytes) in ["read", "write"].into_iter().zip(bytes) {
            let labels = vec![("jobid", name.to_string()), ("op", op.to_string())];
            all.count("job_bytes", "Bytes of jobs on this mount.", labels, bytes as f64);
        }
    };
    for one in jobs {
        job(&one.job, [one.bytes("read_"), one.bytes("write_")]);
    }
    if !rest.is_empty() {
        let sum = |prefix: &str| rest.iter().map(|job| job.bytes(prefix)).sum();
        job(OTHERS, [sum("read_"), sum("write_")]);
    }
}

/// Returns a label's value in the form that the format requires, because the library writes it unchanged.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A name with its series.
#[derive(Debug)]
struct Metric {
    is_counter: bool,
    name: &'static str,
    family: Family,
}

/// Writes families of series in the form that the format requires.
#[derive(Debug)]
struct Values {
    metrics: Vec<Metric>,
    times: Vec<(Labels, Times)>,
}

/// One histogram: its sum in seconds, how many values, and how many in each bucket, by its upper bound.
#[derive(Debug)]
struct Histogram<'a>(&'a Times);

impl EncodeMetric for Histogram<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let Times { count, sum_ns, up_to_us } = self.0;
        // Always the same bounds: a series that begins later would seem to have been 0 for none of its time.
        let mut known = 0;
        let mut bounded: Vec<(f64, u64)> = Vec::with_capacity(BOUNDS as usize + 1);
        for us in (0..BOUNDS).map(|i| 1u64 << i) {
            let n = up_to_us.get(&us).copied().unwrap_or(0);
            known += n;
            bounded.push((us as f64 / 1e6, n));
        }
        bounded.push((f64::MAX, count.saturating_sub(known)));
        let buckets = bounded;
        encoder.encode_histogram::<NoLabelSet>(*sum_ns as f64 / 1e9, *count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

impl Collector for Values {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Metric { is_counter, name, family: Family { help, series } } in &self.metrics {
            let counter = ConstCounter::new(0.0);
            let gauge = ConstGauge::new(0.0);
            let kind = if *is_counter { counter.metric_type() } else { gauge.metric_type() };
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, value) in series {
                let labels: Labels = labels.iter().map(|(name, text)| (*name, escaped(text))).collect();
                let one = family.encode_family(&labels)?;
                if *is_counter {
                    ConstCounter::new(*value).encode(one)?;
                } else {
                    ConstGauge::new(*value).encode(one)?;
                }
            }
        }
        if !self.times.is_empty() {
            let help = "How long calls of programs took in the mount, by kind and how they were served.";
            let (name, unit) = ("client_call_duration", Unit::Seconds);
            let mut family = encoder.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
            for (labels, times) in &self.times {
                Histogram(times).encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

/// The metrics of a snapshot as text: OpenMetrics 1.0, which ends with `# EOF`. `version`: of the program. Returns the
/// text for a mount or for a server: a number that it does not know has no series.
pub fn text(snapshot: &Snapshot, version: &str) -> String {
    let mut all = Families::default();
    all.set("build_info", "The program that says this.", vec![("version", version.to_string())], 1.0);
    of_mount(snapshot, &mut all);
    of_calls(snapshot, &mut all);
    of_servers(snapshot, &mut all);
    of_cluster(snapshot, &mut all);
    of_jobs(snapshot, &mut all);
    let counters = all.counters.into_iter().map(|(name, family)| Metric { is_counter: true, name, family });
    let gauges = all.gauges.into_iter().map(|(name, family)| Metric { is_counter: false, name, family });
    let mut registry = Registry::with_prefix("amphifs");
    registry.register_collector(Box::new(Values { metrics: counters.chain(gauges).collect(), times: all.times }));
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}
