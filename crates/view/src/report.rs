//! The output of `amphi top --json`, which the page of `amphi top --web` draws: everything of one sample.
//!
//! Owns: its fields. Does not own: the screens, and how the page draws it.

use crate::change::{Change, quantile};
use crate::contention::contention;
use crate::files::files;
use crate::findings::{Weight, findings};
use crate::limits::limits;
use crate::snapshot::{Job, Server, Session, Target};
use crate::unit::share;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Most jobs that are reported.
const JOBS_MAX: usize = 16;
/// Most mounts that are reported.
const MOUNTS_MAX: usize = 32;

/// The time that is shown for a time beyond all buckets; it is some days long.
const LONGEST_US: u64 = 1 << 40;

/// Names of operations, and the counters of a mount that they are the sums of.
const OPERATIONS: &[(&str, &[&str])] = &[
    ("lookup", &["lookup"]),
    ("stat", &["getattr", "getattr_own", "getattr_cached"]),
    ("open", &["open"]),
    ("create", &["create", "mkdir", "mknod", "symlink"]),
    ("remove", &["unlink", "rmdir"]),
    ("rename", &["rename"]),
    ("list", &["readdir"]),
    ("fsync", &["fsync"]),
];

/// One sample as JSON, schema `amphi.top/1`: rates a second, bytes and requests; within the version fields are only
/// added. `name`: of the mount.
pub fn json(name: &str, change: &Change<'_>) -> Value {
    let weight = |w: Weight| if w == Weight::Trouble { "trouble" } else { "slow" };
    let found: Vec<Value> = findings(change)
        .into_iter()
        .map(|f| json!({ "weight": weight(f.weight), "what": f.what, "advice": f.advice.unwrap_or_default() }))
        .collect();
    let gauge = |name: &str| change.after.gauge(name);
    let operations: BTreeMap<&str, f64> =
        OPERATIONS.iter().map(|(name, rows)| (*name, rows.iter().map(|row| change.often(row)).sum())).collect();
    json!({
        "schema": "amphi.top/1",
        "mount": name,
        "seconds": change.seconds(),
        "read": side(change, "read_"),
        "write": side(change, "write_"),
        "operations_per_s": operations,
        "cache_used_bytes": gauge("cache_used_bytes"),
        "cache_dirty_bytes": gauge("cache_dirty_bytes"),
        "writeback_flight_bytes": gauge("writeback_flight_bytes"),
        "servers_unstable_bytes": change.after.of_servers("unstable_bytes"),
        "limits": limits(change).iter().map(|limit| json!({
            "what": limit.what,
            "rate": limit.rate,
            "limit": limit.limit,
            "share_percent": share(limit.rate, limit.limit),
        })).collect::<Vec<_>>(),
        "latencies": latencies(change),
        "contention": contention(change).json(),
        "files": files(change).iter().map(crate::files::Busy::json).collect::<Vec<_>>(),
        "jobs": jobs(change),
        "servers": servers(change),
        "targets": change.after.cluster.targets.iter().map(target).collect::<Vec<_>>(),
        "mounts": mounts(change),
        "findings": found,
    })
}

/// Reads or writes.
fn side(change: &Change<'_>, prefix: &str) -> Value {
    let (requests, bytes) = change.total(prefix);
    let ways: Vec<Value> = change
        .ways(prefix)
        .into_iter()
        .map(|(way, requests, bytes)| {
            json!({ "way": way.way, "reason": way.reason, "requests_per_s": requests, "bytes_per_s": bytes })
        })
        .collect();
    json!({ "requests_per_s": requests, "bytes_per_s": bytes, "ways": ways })
}

/// The name of a row of call times, `read.at_once`, for people.
fn call_text(name: &str) -> String {
    let (kind, served) = name.split_once('.').unwrap_or((name, ""));
    format!("{kind} of a program, {}", if served == "at_once" { "answered at once" } else { "that waited" })
}

/// The known times: those of programs' calls and of the servers' disks as quantiles, all others as means.
pub(crate) fn latencies(change: &Change<'_>) -> Vec<Value> {
    let mut all = Vec::new();
    for (what, rows) in [("disk read", "disk_us_read"), ("disk write", "disk_us_write")] {
        let buckets = change.histogram(rows);
        let (often, p50, p99) = (buckets.values().sum::<f64>(), quantile(&buckets, 0.5), quantile(&buckets, 0.99));
        if let (Some(p50), Some(p99)) = (p50, p99) {
            all.push(json!({ "what": what, "per_s": often, "p50_at_most_us": p50, "p99_at_most_us": p99 }));
        }
    }
    for (name, often, buckets) in change.calls() {
        if let (Some(p50), Some(p99)) = (quantile(&buckets, 0.5), quantile(&buckets, 0.99)) {
            let (p50, p99) = (p50.min(LONGEST_US), p99.min(LONGEST_US));
            let what = call_text(name);
            all.push(json!({ "what": what, "per_s": often, "p50_at_most_us": p50, "p99_at_most_us": p99 }));
        }
    }
    let mut mean = |what: &str, often: f64, ns: f64| {
        if often > 0.0 && ns > 0.0 {
            all.push(json!({ "what": what, "per_s": often, "mean_us": ns / often / 1e3 }));
        }
    };
    let writes = change.at_servers("request_write");
    mean("write at a server", writes, change.at_servers("time_write_ns"));
    mean("of it, its record in the log", writes, change.at_servers("time_write_log_ns"));
    mean("write of a program", change.often("write_call"), change.much("write_call"));
    mean("wait for a lock", change.often("lock_wait"), change.much("lock_wait"));
    all
}

fn jobs(change: &Change<'_>) -> Vec<Value> {
    let before: BTreeMap<&str, &Job> = change.before.jobs.iter().map(|job| (job.job.as_str(), job)).collect();
    let rate = |job: &Job, prefix: &str| {
        let old = before.get(job.job.as_str()).map_or(0, |job| job.bytes(prefix));
        job.bytes(prefix).saturating_sub(old) as f64 / change.seconds()
    };
    let mut jobs: Vec<_> = change.after.jobs.iter().map(|job| (rate(job, "read_"), rate(job, "write_"), job)).collect();
    jobs.sort_by(|a, b| (b.0 + b.1).total_cmp(&(a.0 + a.1)));
    jobs.truncate(JOBS_MAX);
    let one = |(read, written, job): (f64, f64, &Job)| {
        let Job { job, open, .. } = job;
        json!({ "job": job, "read_bytes_per_s": read, "write_bytes_per_s": written, "open": open })
    };
    jobs.into_iter().map(one).collect()
}

fn servers(change: &Change<'_>) -> Vec<Value> {
    let cluster = &change.after.cluster;
    let one = |(server, label): (&Server, String)| {
        let counted = change.after.of_server(&label);
        let rate = |name: &str| counted.map_or(0.0, |counted| change.at_server(counted, name));
        json!({
            "server": label,
            "up": server.up,
            "uptime_s": server.uptime_s,
            "read_bytes_per_s": rate("read_bytes"),
            "write_bytes_per_s": rate("write_bytes"),
            "disk_reads_per_s": rate("data_disk_reads"),
            "disk_writes_per_s": rate("data_disk_writes"),
            "disk_syncs_per_s": rate("disk_syncs"),
            "unstable_bytes": counted.and_then(|c| c.rows.get("unstable_bytes")).copied().unwrap_or(0),
        })
    };
    cluster.servers.iter().zip(cluster.labels()).map(one).collect()
}

fn target(target: &Target) -> Value {
    let used = (target.blocks - target.blocks_free.min(target.blocks)) as f64;
    json!({
        "target": target.target,
        "server": target.server,
        "space_bytes": target.blocks * 4096,
        "used_percent": share(used, target.blocks as f64),
        "log_percent": share(target.log_used_bytes as f64, target.log_bytes as f64),
        "damaged_blocks": target.damaged_blocks,
    })
}

fn mounts(change: &Change<'_>) -> Vec<Value> {
    let mut mounts: Vec<_> = change.after.cluster.sessions.iter().collect();
    mounts.sort_by_key(|mount| std::cmp::Reverse((mount.locks, mount.opens)));
    mounts.truncate(MOUNTS_MAX);
    let one = |mount: &Session| {
        let Session { name, connected, opens, locks } = mount;
        json!({ "mount": name, "connected": connected, "open": opens, "locks": locks })
    };
    mounts.into_iter().map(one).collect()
}
