//! The screens of `amphi top`, as text with styles.
//!
//! Owns: the contents of the screens and their layout. Does not own: keys, terminals, when anything is read.
//!
//! A screen is a function from a change to lines, so that the same lines go to a terminal, to a pipe and into tests.

use crate::change::Change;
use crate::contention::{Contention, contention};
use crate::files::files;
use crate::findings::{Weight, findings};
use crate::limits::limits;
use crate::report::latencies;
use crate::snapshot::{Job, Target};
use crate::unit::{bytes, count, seconds, share};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use std::collections::BTreeMap;

/// Which of the screens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Screen {
    /// Rates, cache, decisions, findings.
    #[default]
    Overview,
    /// Servers, targets, mounts.
    Cluster,
    /// Jobs of the mount.
    Jobs,
    /// The busiest files, and the mounts that wait for each other.
    Files,
    /// How long calls took, at this mount and at the servers.
    Times,
    /// Every counter that moves.
    Counters,
}

impl Screen {
    /// All screens, in the order of their keys.
    pub const ALL: [Screen; 6] =
        [Screen::Overview, Screen::Cluster, Screen::Jobs, Screen::Files, Screen::Times, Screen::Counters];

    /// The name of the screen.
    pub fn name(self) -> &'static str {
        match self {
            Screen::Overview => "overview",
            Screen::Cluster => "cluster",
            Screen::Jobs => "jobs",
            Screen::Files => "files",
            Screen::Times => "times",
            Screen::Counters => "counters",
        }
    }
}

const BAR: usize = 24;
/// Most rows of a list, so that what follows stays in sight.
const ROWS: usize = 8;
/// Limits of the machine on the first screen, the nearest ones.
const LIMITS: usize = 3;
/// Widest name of a file.
const NAME: usize = 44;

fn title(text: &str) -> Line<'static> {
    Line::from(Span::styled(text.to_string(), Style::new().add_modifier(Modifier::BOLD)))
}

fn plain(text: String) -> Line<'static> {
    Line::from(text)
}

/// A bar for `part` of a whole of 100.
fn bar(part: f64) -> String {
    let full = (part.clamp(0.0, 100.0) / 100.0 * BAR as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "·".repeat(BAR - full))
}

/// The lines of a screen. `name`: of the mount.
pub fn lines(screen: Screen, name: &str, change: &Change<'_>) -> Vec<Line<'static>> {
    let mut all = head(name, change);
    match screen {
        Screen::Overview => overview(change, &mut all),
        Screen::Cluster => cluster(change, &mut all),
        Screen::Jobs => jobs(change, &mut all),
        Screen::Files => busy_files(change, &mut all),
        Screen::Times => times(change, &mut all),
        Screen::Counters => counters(change, &mut all),
    }
    all
}

fn head(name: &str, change: &Change<'_>) -> Vec<Line<'static>> {
    let cluster = &change.after.cluster;
    let up = cluster.servers.iter().filter(|s| s.up).count();
    let connected = cluster.sessions.iter().filter(|s| s.connected).count();
    vec![
        title(&format!(
            "{name}   {up} of {} servers up, {} targets, {connected} mounts   cluster {} for {}",
            cluster.servers.len(),
            cluster.targets.len(),
            cluster.cluster,
            seconds(cluster.uptime_s as f64)
        )),
        Line::default(),
    ]
}

fn times(change: &Change<'_>, all: &mut Vec<Line<'static>>) {
    all.push(title(&format!("{:<44}{:>12}{:>16}{:>16}", "what", "a second", "half within", "99 % within")));
    let us = |value: &serde_json::Value| value.as_f64().map(|us| seconds(us / 1e6));
    let rows = latencies(change);
    for row in &rows {
        let mean = || us(&row["mean_us"]).map(|mean| format!("{:>16}", format!("mean {mean}")));
        let parts = us(&row["p50_at_most_us"]).zip(us(&row["p99_at_most_us"]));
        let parts = parts.map(|(half, most)| format!("{half:>16}{most:>16}")).or_else(mean).unwrap_or_default();
        let often = count(row["per_s"].as_f64().unwrap_or(0.0));
        all.push(plain(format!("{:<44}{often:>12}{parts}", row["what"].as_str().unwrap_or_default())));
    }
    if rows.is_empty() {
        all.push(plain("nothing was timed".into()));
    }
}

fn overview(change: &Change<'_>, all: &mut Vec<Line<'static>>) {
    for (name, prefix) in [("read", "read_"), ("write", "write_")] {
        let (often, much) = change.total(prefix);
        let size = if often > 0.0 { bytes(much / often) } else { "-".into() };
        all.push(title(&format!("{name:<6}{:>12}/s {:>9} requests/s of {size}", bytes(much), count(often))));
        let ways = change.ways(prefix);
        for (way, often, bytes_s) in ways.iter().take(ROWS) {
            let part = if much > 0.0 { share(*bytes_s, much) } else { 0.0 };
            let label = format!("{} {}", way.way, way.reason);
            all.push(plain(format!("  {label:<24}{} {part:>5.1} % {:>9}/s", bar(part), count(*often))));
        }
    }
    all.push(Line::default());
    let per = |names: &[&str]| names.iter().map(|name| change.often(name)).sum::<f64>();
    all.push(plain(format!(
        "names  look up {:>7}/s   stat {:>7}/s   open {:>7}/s   create {:>7}/s   remove {:>7}/s   list {:>7}/s",
        count(per(&["lookup"])),
        count(per(&["getattr", "getattr_own", "getattr_cached"])),
        count(per(&["open"])),
        count(per(&["create", "mkdir", "mknod", "symlink"])),
        count(per(&["unlink", "rmdir"])),
        count(per(&["readdir"])),
    )));
    all.push(plain(format!(
        "calls  servers {:>7}/s   waits for locks {:>8} a second   fsync {:>7}/s   writers held {:>6}/s",
        count(per(&["server_calls"])),
        seconds(change.much("lock_wait") / 1e9),
        count(per(&["fsync"])),
        count(per(&["write_throttled"])),
    )));
    let gauge = |name: &str| bytes(change.after.gauge(name) as f64);
    all.push(plain(format!(
        "cache  {} used, {} dirty, {} on their way to servers; servers hold {} that power would lose",
        gauge("cache_used_bytes"),
        gauge("cache_dirty_bytes"),
        gauge("writeback_flight_bytes"),
        bytes(change.after.of_servers("unstable_bytes") as f64)
    )));
    for limit in limits(change).iter().take(LIMITS) {
        let part = share(limit.rate, limit.limit);
        all.push(plain(format!("limit  {:<28}{} {part:>5.1} % of what was measured", limit.what, bar(part))));
    }
    all.push(Line::default());
    let found = findings(change);
    if found.is_empty() {
        all.push(plain("nothing stands out".into()));
    }
    for finding in found {
        let color = if finding.weight == Weight::Trouble { Color::Red } else { Color::Yellow };
        all.push(Line::from(Span::styled(format!("! {}", finding.what), Style::new().fg(color))));
        all.extend(finding.advice.map(|advice| plain(format!("  {advice}"))));
    }
}

fn target_row(target: &Target) -> Line<'static> {
    let block = 4096.0;
    let used = (target.blocks - target.blocks_free.min(target.blocks)) as f64;
    let part = share(used, target.blocks as f64);
    plain(format!(
        "  {:>4} {:<16}{} {part:>5.1} % of {:>9} {:>10} inodes   log {:>3.0} %{}",
        target.target,
        target.server,
        bar(part),
        bytes(target.blocks as f64 * block),
        count(target.inodes as f64),
        share(target.log_used_bytes as f64, target.log_bytes as f64),
        if target.damaged_blocks > 0 { format!("   {} damaged", target.damaged_blocks) } else { String::new() }
    ))
}

fn cluster(change: &Change<'_>, all: &mut Vec<Line<'static>>) {
    let rate = |name: &str| change.at_servers(name);
    all.push(title("servers"));
    all.push(plain(format!(
        "  read {}/s, written {}/s; disks {} reads/s, {} writes/s, {} syncs/s",
        bytes(rate("read_bytes")),
        bytes(rate("write_bytes")),
        count(rate("data_disk_reads")),
        count(rate("data_disk_writes")),
        count(rate("disk_syncs")),
    )));
    all.push(plain(format!(
        "  changes of names {}/s; lock requests {}/s, conflicts {}/s, called back {}/s",
        count(rate("transactions")),
        count(rate("lock_requests")),
        count(rate("lock_conflicts")),
        count(rate("lock_callbacks")),
    )));
    for server in &change.after.cluster.servers {
        let state = if server.up { format!("up for {}", seconds(server.uptime_s as f64)) } else { "no answer".into() };
        all.push(plain(format!("  {:<20} {state}", server.name)));
    }
    all.push(title("targets"));
    all.extend(change.after.cluster.targets.iter().map(target_row));
    all.push(title("mounts"));
    let mut sessions: Vec<_> = change.after.cluster.sessions.iter().collect();
    sessions.sort_by_key(|s| std::cmp::Reverse((s.locks, s.opens)));
    for session in sessions.iter().take(3 * ROWS) {
        let state = if session.connected { "" } else { "   not connected" };
        all.push(plain(format!(
            "  {:<28} {:>8} open {:>8} locks{state}",
            session.name,
            count(session.opens as f64),
            count(session.locks as f64)
        )));
    }
}

fn jobs(change: &Change<'_>, all: &mut Vec<Line<'static>>) {
    let before: BTreeMap<&str, &Job> = change.before.jobs.iter().map(|job| (job.job.as_str(), job)).collect();
    let rate = |job: &Job, prefix: &str| {
        let old = before.get(job.job.as_str()).map_or(0, |job| job.bytes(prefix));
        job.bytes(prefix).saturating_sub(old) as f64 / change.seconds()
    };
    let mut rows: Vec<_> = change.after.jobs.iter().map(|job| (rate(job, "read_"), rate(job, "write_"), job)).collect();
    rows.sort_by(|a, b| (b.0 + b.1).total_cmp(&(a.0 + a.1)));
    all.push(title(&format!("{:<30}{:>14}{:>14}{:>12}{:>12}", "job", "read", "written", "read all", "written all")));
    for (read, written, job) in rows.iter().take(4 * ROWS) {
        all.push(plain(format!(
            "{:<30}{:>12}/s{:>12}/s{:>12}{:>12}   {} open",
            job.job,
            bytes(*read),
            bytes(*written),
            bytes(job.bytes("read_") as f64),
            bytes(job.bytes("write_") as f64),
            job.open
        )));
    }
    if rows.is_empty() {
        all.push(plain("no job has opened a file on this mount".into()));
    }
}

/// The end of a name says most.
fn short(name: &str) -> String {
    let length = name.chars().count();
    if length <= NAME {
        name.to_string()
    } else {
        format!("…{}", name.chars().skip(length + 1 - NAME).collect::<String>())
    }
}

fn busy_files(change: &Change<'_>, all: &mut Vec<Line<'static>>) {
    let Contention { lock_waits, lock_wait, callbacks, conflicts, ping_pongs, ping_pong, .. } = contention(change);
    all.push(plain(format!(
        "locks  waits {:>6}/s {:>8}/s   given back {:>6}/s   conflicts {:>6}/s   to and fro {:>6}/s {:>8}/s",
        count(lock_waits),
        seconds(lock_wait),
        count(callbacks),
        count(conflicts),
        count(ping_pongs),
        seconds(ping_pong),
    )));
    let files = files(change);
    all.push(title(&format!(
        "{:<NAME$} {:>11} {:>11} {:>10} {:>9} {:>9} {:>9}",
        "file", "read", "written", "requests", "waits", "wanted", "dirty"
    )));
    for file in &files {
        all.push(plain(format!(
            "{:<NAME$} {:>9}/s {:>9}/s {:>8}/s {:>7}/s {:>7}/s {:>9}",
            short(&file.name),
            bytes(file.read),
            bytes(file.written),
            count(file.requests),
            seconds(file.lock_wait),
            count(file.wanted),
            bytes(file.dirty as f64)
        )));
    }
    if files.is_empty() {
        all.push(plain("no open file has anything to do".into()));
    }
}

fn counters(change: &Change<'_>, all: &mut Vec<Line<'static>>) {
    all.push(title("mount, a second"));
    for name in change.after.mount.counters.keys() {
        let (often, much) = (change.often(name), change.much(name));
        if often > 0.0 {
            all.push(plain(format!("  {name:<34}{:>10} {:>16}", count(often), count(much))));
        }
    }
    all.push(title("servers, a second"));
    for name in change.after.servers.keys().filter(|name| !name.starts_with("histogram_")) {
        let rate = change.at_servers(name);
        if rate > 0.0 {
            all.push(plain(format!("  {name:<34}{:>10}", count(rate))));
        }
    }
}

/// The lines without styles.
pub fn text(lines: &[Line<'_>]) -> String {
    let mut text = String::new();
    for line in lines {
        let start = text.len();
        line.spans.iter().for_each(|span| text.push_str(&span.content));
        text.truncate(start + text[start..].trim_end().len());
        text.push('\n');
    }
    text
}
