//! Hidden control attributes of a mount, for the super-user and the owner of the mount process.
//!
//! Attributes that can be read: `stats`, `stats.json`, `jobs` or `jobs.after.JOB` (JSON, counters of jobs, as many as
//! fit), `tunables` or `tunables.PATTERN` (lines `name=value # help`), `status` (JSON, the status of the cluster; its
//! beginning if it is long) and `status.from.N` (from byte N on, of the status that this process read last),
//! `counters.server` (lines `name value`, sums over all servers) and `counters.server.ID` (of the server to which the
//! status gives this number), `hot` (JSON, the files with the most to do), `error` (why the last change was refused),
//! `pid` (the mount's process). Attributes that can be written: `stats` = `reset`, `set` = `PATTERN=VALUE`, `sync` =
//! `all` (what syncfs would do, which the kernel does not pass on). Tunables that begin with `server.` belong to the
//! servers: the master's values are shown, and lines that begin with `#` name other servers with other values, or
//! without an answer.

use super::hot_files;
use crate::api::Ctx;
use crate::conn::replies::unexpected;
use crate::mount::Mount;
use crate::telemetry::stats::Way;
use crate::telemetry::status::{STATUS_PART_BYTES, plain};
use crate::telemetry::tunables::{Tunable, Tunables};
use amphi_types::{Errno, Result, TargetId, setting};
use amphi_wire::{Reply, Request};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The prefix of the names of the servers' tunables.
const SERVER: &str = "server.";
/// Followed by the offset of the first requested byte in the status that this process read last.
const STATUS_FROM: &str = "status.from.";
/// Followed by the last job of the previous part.
const JOBS_AFTER: &str = "jobs.after.";
/// Followed by the hexadecimal number of a server.
const COUNTERS_OF: &str = "counters.server.";
/// Processes that may read a long status at the same time.
const SHOWN_MAX: usize = 8;

pub(super) fn allowed(mount: &Mount, ctx: &Ctx) -> bool {
    ctx.cred.uid == 0 || ctx.cred.uid == mount.host.owner_uid
}

fn lines(rows: &[(String, String, String)]) -> String {
    rows.iter().fold(String::new(), |mut out, (name, value, help)| {
        let _ = writeln!(out, "{name}={value} # {help}");
        out
    })
}

type Rows = Vec<(String, String, String)>;

/// The rows in an answer to `Request::Tunables`, or none if the server has no matching ones.
fn rows_of(answer: Result<Reply>) -> Result<Rows> {
    match answer {
        Ok(Reply::Tunables(rows)) => Ok(rows),
        Ok(other) => Err(unexpected(&other)),
        Err(Errno::NoEnt) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// The servers' tunables that match, as the master has them; if there is a value, they are set first.
async fn server_tunables(mount: &Mount, ctx: &Ctx, pattern: &str, value: Option<&str>) -> Result<Rows> {
    let op = Request::Tunables { pattern: pattern.into(), value: value.map(Into::into) };
    // The master passes the request on to the other servers.
    rows_of(mount.call(TargetId(0), &ctx.cred, op).await)
}

/// The servers' tunables that match: a line with the master's value for each of them, and one for each different value
/// of another server.
async fn server_lines(mount: &Mount, ctx: &Ctx, pattern: &str) -> Result<String> {
    let rows = server_tunables(mount, ctx, pattern, None).await?;
    let mut text = lines(&rows);
    let servers = mount.cluster.map.lock().servers.clone();
    if rows.is_empty() || servers.len() < 2 {
        return Ok(text);
    }
    let answers = mount.ask_servers(&ctx.cred, &Request::Tunables { pattern: pattern.into(), value: None }).await;
    for (server, answer) in servers.iter().zip(answers).skip(1) {
        let name = plain(&format!("{} at {}", server.name, server.addrs.join(" ")));
        match rows_of(answer) {
            Ok(own) => {
                let same = |(t, v, _): &&(String, String, String)| rows.iter().any(|(n, now, _)| n == t && now == v);
                for (tunable, value, _) in own.iter().filter(|row| !same(row)) {
                    let _ = writeln!(text, "# {name}: {tunable}={value}");
                }
            }
            Err(e) => {
                let _ = writeln!(text, "# {name} does not answer ({e}); it gets what was set when it is back");
            }
        }
    }
    Ok(text)
}

/// Returns whether a pattern can mean the servers' tunables.
fn means_server(pattern: &str) -> bool {
    let literal = pattern.split(['*', '?']).next().unwrap_or_default();
    literal.starts_with(SERVER) || SERVER.starts_with(literal)
}

/// Returns whether there is a control attribute of this name to read.
fn is_known(name: &str) -> bool {
    matches!(name, "stats" | "stats.json" | "jobs" | "hot" | "error" | "pid" | "status")
        || matches!(name, "counters.server" | "tunables")
        || [STATUS_FROM, JOBS_AFTER, COUNTERS_OF, "tunables."].iter().any(|prefix| name.starts_with(prefix))
}

pub(super) async fn get(mount: &Arc<Mount>, ctx: &Ctx, name: &[u8]) -> Result<Vec<u8>> {
    let name = std::str::from_utf8(name).map_err(|_| Errno::NoData)?;
    if !allowed(mount, ctx) {
        return Err(if is_known(name) { Errno::Perm } else { Errno::NoData });
    }
    let now = mount.clock.now_ns();
    let text = match name {
        "stats" => mount.stats.text(now, &mount.gauges()),
        "stats.json" => mount.stats.json(now, &mount.gauges()),
        "jobs" => mount.booked_jobs().json(None),
        "error" => mount.panel.complaint.lock().clone(),
        "pid" => std::process::id().to_string(),
        "status" => {
            let text = status(mount, ctx).await?.into_bytes();
            let mut shown = mount.panel.shown_status.lock();
            shown.retain(|(pid, _)| *pid != ctx.pid);
            while shown.len() >= SHOWN_MAX {
                shown.pop_front();
            }
            shown.push_back((ctx.pid, text));
            drop(shown);
            return Ok(status_part(mount, ctx, 0));
        }
        name if name.starts_with(STATUS_FROM) => {
            let from = name[STATUS_FROM.len()..].parse().map_err(|_| Errno::NoData)?;
            return Ok(status_part(mount, ctx, from));
        }
        "hot" => hot_files::json(mount),
        "counters.server" => counter_lines(server_counters(mount, ctx).await?),
        name if name.starts_with(COUNTERS_OF) => {
            counter_lines(counters_of(mount, ctx, &name[COUNTERS_OF.len()..]).await?)
        }
        name if name.starts_with(JOBS_AFTER) => mount.booked_jobs().json(name.strip_prefix(JOBS_AFTER)),
        _ => {
            let pattern = match name.strip_prefix("tunables") {
                Some("") => "*",
                Some(rest) => rest.strip_prefix('.').ok_or(Errno::NoData)?,
                None => return Err(Errno::NoData),
            };
            let rows = mount.tunables.list(pattern);
            let mut text = lines(&rows) + &mount.threshold_lines(&rows);
            if means_server(pattern) {
                text.push_str(&server_lines(mount, ctx, pattern).await?);
            }
            if text.is_empty() {
                mount.complain(format!("no tunable matches {pattern:?}"));
                return Err(Errno::NoData);
            }
            text
        }
    };
    Ok(text.into_bytes())
}

pub(super) async fn set(mount: &Arc<Mount>, ctx: &Ctx, name: &[u8], text: &str) -> Result<()> {
    if !allowed(mount, ctx) {
        return Err(Errno::Perm);
    }
    match name {
        b"stats" if text == "reset" => {
            mount.stats.reset(mount.clock.now_ns());
            mount.booked_jobs().reset();
            Ok(())
        }
        b"sync" if text == "all" => crate::ops::sync::sync_all(mount.clone(), ctx.clone()).await,
        b"set" => {
            let (pattern, value) = text
                .split_once('=')
                .ok_or_else(|| mount.complain(format!("{text:?} is not of the form NAME=VALUE")))?;
            // First the value is checked here, before anything is changed. Then the tunables of servers are set first,
            // because servers may be unreachable.
            let near = Tunables::check(pattern, value).map_err(|text| mount.complain(text))?;
            let far = if means_server(pattern) {
                server_tunables(mount, ctx, pattern, Some(value)).await.inspect_err(|e| {
                    mount.complain(format!("{pattern}: the server refuses {value:?}: {e}"));
                })?
            } else {
                Vec::new()
            };
            if near.is_empty() && far.is_empty() {
                return Err(mount.complain(format!("no tunable matches {pattern:?}")));
            }
            mount.tunables.store(&near);
            mount.make_room(0);
            Ok(())
        }
        _ => Err(mount.complain("no such control attribute".into())),
    }
}

/// Lines `name value`.
fn counter_lines(rows: impl IntoIterator<Item = (String, u64)>) -> String {
    rows.into_iter().fold(String::new(), |mut out, (name, value)| {
        let _ = writeln!(out, "{name} {value}");
        out
    })
}

/// Counters of the server with this number.
///
/// Errors: `NoData` if the cluster has no such server.
async fn counters_of(mount: &Mount, ctx: &Ctx, id: &str) -> Result<Vec<(String, u64)>> {
    let id = u64::from_str_radix(id, 16).map_err(|_| Errno::NoData)?;
    let server = mount.cluster.map.lock().servers.iter().find(|s| s.id == id).cloned().ok_or(Errno::NoData)?;
    let target = server.targets.first().copied();
    match mount.ask_server(target, &ctx.cred, &Request::Counters { reset: false }).await? {
        Reply::Counters(rows) => Ok(rows),
        other => Err(unexpected(&other)),
    }
}

/// Counters of all servers that answer, added up.
async fn server_counters(mount: &Mount, ctx: &Ctx) -> Result<BTreeMap<String, u64>> {
    let mut sums = BTreeMap::new();
    let mut failure = Err(Errno::TimedOut);
    for answer in mount.ask_servers(&ctx.cred, &Request::Counters { reset: false }).await {
        match answer {
            Ok(Reply::Counters(rows)) => {
                rows.into_iter().for_each(|(name, n)| *sums.entry(name).or_default() += n);
                failure = Ok(());
            }
            Ok(other) => return Err(unexpected(&other)),
            Err(e) if failure.is_err() => failure = Err(e),
            Err(_) => {}
        }
    }
    failure.map(|()| sums)
}

/// The part of the status that the caller read last, from byte `from` on, as much as fits into an attribute.
fn status_part(mount: &Mount, ctx: &Ctx, from: usize) -> Vec<u8> {
    let shown = mount.panel.shown_status.lock();
    let text = shown.iter().find(|(pid, _)| *pid == ctx.pid).map_or(&[][..], |(_, text)| text);
    let from = from.min(text.len());
    text[from..(from + STATUS_PART_BYTES).min(text.len())].to_vec()
}

/// The cluster's status as JSON: servers, targets, sessions.
async fn status(mount: &Mount, ctx: &Ctx) -> Result<String> {
    let map = mount.cluster.map.lock().clone();
    let answers = mount.ask_servers(&ctx.cred, &Request::Status).await;
    Ok(crate::telemetry::status::json(&map, &answers.into_iter().map(Result::ok).collect::<Vec<_>>()))
}

impl Mount {
    /// Remembers why a change was refused, to be read from `user.amphi.error`.
    pub(crate) fn complain(&self, text: String) -> Errno {
        *self.panel.complaint.lock() = text;
        Errno::Inval
    }

    /// For each threshold among these tunables: a line with the set or learnt value that is in force.
    fn threshold_lines(&self, rows: &Rows) -> String {
        let thresholds = [
            ("hybrid.large_read_bytes", Tunable::LargeRead, Way::Read),
            ("hybrid.large_write_bytes", Tunable::LargeWrite, Way::Write),
        ];
        let mut text = String::new();
        for (name, place, way) in thresholds {
            let Some((_, value, _)) = rows.iter().find(|(row, ..)| row == name) else { continue };
            let learnt = self.policy.throughput.thresholds.moved(way);
            let _ = match (self.tunables.is_set(place), self.tunables.on(Tunable::Learn)) {
                (true, _) => writeln!(text, "# {name}: {value} was set and is in force"),
                (_, false) => writeln!(text, "# {name}: {value} is the default and in force (hybrid.learn is off)"),
                _ => {
                    let [alone, company] = learnt.map(|bytes| bytes.map_or(value.clone(), setting::size));
                    writeln!(text, "# {name}: learnt and in force are {alone} alone, {company} beside other mounts")
                }
            };
        }
        text
    }

    /// Numbers that describe the present moment, in addition to the counters.
    pub(crate) fn gauges(&self) -> Vec<(String, u64)> {
        let fixed = [
            ("cache_used_bytes", self.cache.used_bytes()),
            ("cache_dirty_bytes", self.cache.dirty_bytes()),
            ("cache_evicted_bytes", self.cache.evicted_bytes.load(Relaxed)),
            ("readahead_used_bytes", self.cache.used_ahead_bytes.load(Relaxed)),
            ("readahead_wasted_bytes", self.cache.wasted_ahead_bytes.load(Relaxed)),
            ("writeback_flight_bytes", self.writeback.flight_bytes.load(Relaxed)),
            ("locks_held", self.coherence.locks.held()),
            ("tokens_held", self.coherence.tokens.len()),
            ("attributes_lent", self.coherence.tokens.lent.len()),
            ("names_kept", self.coherence.tokens.names.len()),
            ("memory_short", u64::from(self.policy.group_short.load(Relaxed))),
            ("callers_short", self.policy.caller_memory.short_callers() as u64),
            ("rotating_targets", self.policy.rotational.len()),
        ];
        let small = crate::prefetch::small_files::gauges(self);
        let named = fixed.into_iter().chain(small).map(|(name, value)| (name.into(), value));
        named.chain(self.policy.throughput.shown()).collect()
    }
}
