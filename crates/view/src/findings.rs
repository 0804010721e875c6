//! Findings: conspicuous events between two samples, with their numbers and advice.
//!
//! Owns: the rules, each of which is one function. Does not own: how findings are shown.
//!
//! A rule speaks only when something costs, not when it merely happens. Each has a test that triggers it and one near
//! it that must not.

use crate::change::Change;
use crate::limits::limits;
use crate::unit::{bytes, count, seconds, share};

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Something fails or will soon.
    Trouble,
    /// Something costs time.
    Slow,
}

/// A conspicuous fact about the mount or the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule that found this fact.
    pub rule: &'static str,
    /// How much the finding matters.
    pub weight: Weight,
    /// The finding in words, with numbers.
    pub what: String,
    /// The advice that follows from the fact, if there is one.
    pub advice: Option<String>,
    /// A command that follows the advice, if there is one.
    pub command: Option<String>,
}

/// From this share of a limit on it is named.
const NEAR_PERCENT: f64 = 85.0;

type Rule = fn(&Change<'_>) -> Option<Finding>;

const RULES: &[Rule] = &[
    servers_down,
    damaged,
    targets_full,
    log_full,
    write_back_failed,
    false_sharing,
    throttled,
    memory_short,
    tiny_disk,
    at_limit,
];

/// All findings, the most important first.
pub fn findings(change: &Change<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = RULES.iter().filter_map(|rule| rule(change)).collect();
    found.sort_by_key(|finding| finding.weight);
    found
}

fn trouble(rule: &'static str, what: String, advice: &str) -> Option<Finding> {
    Some(Finding { rule, weight: Weight::Trouble, what, advice: Some(advice.to_string()), command: None })
}

fn slow(rule: &'static str, what: String, advice: &str) -> Option<Finding> {
    let advice = (!advice.is_empty()).then(|| advice.to_string());
    Some(Finding { rule, weight: Weight::Slow, what, advice, command: None })
}

fn servers_down(change: &Change<'_>) -> Option<Finding> {
    let down: Vec<&str> = change.after.cluster.servers.iter().filter(|s| !s.up).map(|s| s.name.as_str()).collect();
    if down.is_empty() {
        return None;
    }
    trouble(
        "servers_down",
        format!("no answer from {}", down.join(", ")),
        "start `amphi server` there; calls that wait go on then",
    )
}

fn damaged(change: &Change<'_>) -> Option<Finding> {
    let blocks: u64 = change.after.cluster.targets.iter().map(|t| t.damaged_blocks).sum();
    if blocks == 0 {
        return None;
    }
    let what = format!("{blocks} blocks of file data are damaged, and reading them fails");
    trouble("damaged", what, "`amphi status` names targets; write the files anew or remove them")
}

fn targets_full(change: &Change<'_>) -> Option<Finding> {
    let used = |t: &&crate::snapshot::Target| share((t.blocks - t.blocks_free.min(t.blocks)) as f64, t.blocks as f64);
    let full: Vec<String> = change
        .after
        .cluster
        .targets
        .iter()
        .filter(|t| used(t) >= 90.0)
        .map(|t| format!("{} at {:.0} %", t.target, used(&t)))
        .collect();
    if full.is_empty() {
        return None;
    }
    trouble(
        "targets_full",
        format!("targets are nearly full: {}", full.join(", ")),
        "remove files, or add a server with `--join`",
    )
}

fn log_full(change: &Change<'_>) -> Option<Finding> {
    let used = |t: &crate::snapshot::Target| share(t.log_used_bytes as f64, t.log_bytes as f64);
    let most = change.after.cluster.targets.iter().max_by(|a, b| used(a).total_cmp(&used(b)))?;
    if used(most) < 80.0 {
        return None;
    }
    let what = format!("the log of target {} is {:.0} % full: changes wait for checkpoints", most.target, used(most));
    slow("log_full", what, "a larger `--log-size` at the first start of a zone helps")
}

fn write_back_failed(change: &Change<'_>) -> Option<Finding> {
    let failed = change.much("writeback_failed") * change.seconds();
    if failed == 0.0 {
        return None;
    }
    let what = format!("write-back of {} failed; the next fsync or close of the files says so", bytes(failed));
    trouble("write_back_failed", what, "the log of the mount names the files")
}

/// Locks that go to and fro.
fn false_sharing(change: &Change<'_>) -> Option<Finding> {
    let spent = change.at_servers("time_lock_ping_pongs_ns") / 1e9;
    if spent < 0.05 {
        return None;
    }
    let what = format!(
        "locks go to and fro between mounts, {} times a second, which takes {:.0} % of the time",
        count(change.at_servers("lock_ping_pongs")),
        100.0 * spent
    );
    slow(
        "false_sharing",
        what,
        "ranks that write neighbouring pieces of one file: larger pieces, or `amphi run --mpiio`",
    )
}

fn throttled(change: &Change<'_>) -> Option<Finding> {
    let often = change.often("write_throttled");
    if often < 1.0 {
        return None;
    }
    let dirty = change.after.gauge("cache_dirty_bytes");
    let what = format!(
        "writers wait, {} times a second, for {} that are dirty: the servers take less than programs write",
        count(often),
        bytes(dirty as f64)
    );
    slow("throttled", what, "")
}

fn memory_short(change: &Change<'_>) -> Option<Finding> {
    if change.after.gauge("memory_short") == 0 {
        return None;
    }
    slow(
        "memory_short",
        "memory is short here, so requests go past the cache".to_string(),
        "a larger memory limit of the group, or less",
    )
}

/// Disk requests of servers that are far smaller than what they carry.
fn tiny_disk(change: &Change<'_>) -> Option<Finding> {
    let (writes, written) = (change.at_servers("data_disk_writes"), change.at_servers("write_bytes"));
    let waits = change.at_servers("time_write_disk_ns") / 1e9;
    if writes < 200.0 || waits < 0.5 || written / writes >= 32.0 * 1024.0 {
        return None;
    }
    let each = seconds(waits / writes);
    let what = format!("disks write {} pieces of {} a second, {each} each", count(writes), bytes(written / writes));
    slow(
        "tiny_disk",
        what,
        "small synchronous or scattered writes: `amphi layout get FILE` shows whether a file is in pieces",
    )
}

/// Returns a finding about a rate that is near the highest one that the machine can reach.
fn at_limit(change: &Change<'_>) -> Option<Finding> {
    let near: Vec<String> = limits(change)
        .iter()
        .map(|limit| (limit.what, share(limit.rate, limit.limit)))
        .filter(|(_, percent)| *percent >= NEAR_PERCENT)
        .map(|(what, percent)| format!("{what} at {percent:.0} %"))
        .collect();
    if near.is_empty() {
        return None;
    }
    let what = format!("this is about what the machine can do: {} of what was measured", near.join(", "));
    slow("at_limit", what, "more servers, disks or links help, or less to do; `amphi calibrate --show` has the limits")
}
