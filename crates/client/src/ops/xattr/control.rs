//! Hidden control attributes of a mount, for the super-user and the owner of the mount process.
//!
//! Read: `stats`, `stats.json`, `jobs` or `jobs.after.JOB` (JSON, counters of jobs, as many as fit), `tunables` or `tunables.PATTERN` (lines `name=value # help`), `status` (JSON, the
//! cluster's; its beginning if it is long) and `status.from.N` (byte N and on of the status that was shown last), `counters.server`, `error` (why the last change was refused). Write: `stats` = `reset`, `set` =
//! `PATTERN=VALUE`, `sync` = `all` (what syncfs would do, which the kernel does not pass on). What begins with `server.` is the server's.

use crate::api::Ctx;
use crate::core::{Core, unexpected};
use crate::jobs;
use crate::status::STATUS_PART_BYTES;
use amphi_types::{Errno, Result, TargetId};
use amphi_wire::{Reply, Request};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The names of the servers' tunables begin so.
const SERVER: &str = "server.";
/// With the number of the first byte that is wanted of the status that was shown last.
const STATUS_FROM: &str = "status.from.";
/// With the last job of the print before.
const JOBS_AFTER: &str = "jobs.after.";

fn allowed(core: &Core, ctx: &Ctx) -> bool {
    ctx.cred.uid == 0 || ctx.cred.uid == core.owner_uid
}

fn lines(rows: &[(String, String, String)]) -> String {
    rows.iter().fold(String::new(), |mut out, (name, value, help)| {
        let _ = writeln!(out, "{name}={value} # {help}");
        out
    })
}

async fn server_tunables(
    core: &Core,
    ctx: &Ctx,
    pattern: &str,
    value: Option<&str>,
) -> Result<Vec<(String, String, String)>> {
    let op = Request::Tunables { pattern: pattern.into(), value: value.map(Into::into) };
    // The master passes it on to the others.
    match core.call(TargetId(0), &ctx.cred, op).await? {
        Reply::Tunables(rows) => Ok(rows),
        other => Err(unexpected(&other)),
    }
}

/// Whether a pattern can mean the server's tunables.
fn means_server(pattern: &str) -> bool {
    let literal = pattern.split(['*', '?', '[']).next().unwrap_or_default();
    literal.starts_with(SERVER) || SERVER.starts_with(literal)
}

pub(super) async fn get(core: &Arc<Core>, ctx: &Ctx, name: &[u8]) -> Result<Vec<u8>> {
    let name = std::str::from_utf8(name).map_err(|_| Errno::NoData)?;
    if !allowed(core, ctx) {
        return Err(Errno::NoData);
    }
    let now = core.clock.now_ns();
    let text = match name {
        "stats" => core.stats.text(now, &core.gauges()),
        "stats.json" => core.stats.json(now, &core.gauges()),
        "jobs" => jobs::json(core, None),
        "error" => core.complaint.lock().clone(),
        "status" => {
            *core.shown_status.lock() = status(core, ctx).await?.into_bytes();
            return Ok(status_part(core, 0));
        }
        name if name.starts_with(STATUS_FROM) => {
            let from = name[STATUS_FROM.len()..].parse().map_err(|_| Errno::NoData)?;
            return Ok(status_part(core, from));
        }
        "counters.server" => server_counters(core, ctx).await?.iter().fold(String::new(), |mut out, (name, value)| {
            let _ = writeln!(out, "{name} {value}");
            out
        }),
        name if name.starts_with(JOBS_AFTER) => jobs::json(core, name.strip_prefix(JOBS_AFTER)),
        _ => {
            let pattern = match name.strip_prefix("tunables") {
                Some("") => "*",
                Some(rest) => rest.strip_prefix('.').ok_or(Errno::NoData)?,
                None => return Err(Errno::NoData),
            };
            let mut rows = core.tunables.list(pattern);
            if means_server(pattern) {
                match server_tunables(core, ctx, pattern, None).await {
                    Ok(more) => rows.extend(more),
                    Err(e) if rows.is_empty() => return Err(e),
                    Err(_) => {}
                }
            }
            if rows.is_empty() {
                core.complain(format!("no tunable matches {pattern:?}"));
                return Err(Errno::NoData);
            }
            lines(&rows)
        }
    };
    Ok(text.into_bytes())
}

pub(super) async fn set(core: &Arc<Core>, ctx: &Ctx, name: &[u8], text: &str) -> Result<()> {
    if !allowed(core, ctx) {
        return Err(Errno::Perm);
    }
    match name {
        b"stats" if text == "reset" => {
            core.stats.reset(core.clock.now_ns());
            jobs::reset(core);
            Ok(())
        }
        b"sync" if text == "all" => crate::ops::sync::sync_all(core.clone(), ctx.clone()).await,
        b"set" => {
            let (pattern, value) =
                text.split_once('=').ok_or_else(|| core.complain(format!("{text:?} is not of the form NAME=VALUE")))?;
            // First those that may be out of reach.
            let far = if means_server(pattern) {
                server_tunables(core, ctx, pattern, Some(value)).await.inspect_err(|e| {
                    core.complain(format!("{pattern}: the server refuses {value:?}: {e}"));
                })?
            } else {
                Vec::new()
            };
            if far.is_empty() || !core.tunables.list(pattern).is_empty() {
                core.tunables.set(pattern, value).map_err(|text| core.complain(text))?;
                core.make_room(0);
            }
            Ok(())
        }
        _ => Err(core.complain("no such control attribute".into())),
    }
}

/// Counters of all servers that answer, added up.
async fn server_counters(core: &Core, ctx: &Ctx) -> Result<BTreeMap<String, u64>> {
    let mut sums = BTreeMap::new();
    let mut failure = Err(Errno::TimedOut);
    for answer in core.ask_servers(&ctx.cred, &Request::Counters { reset: false }).await {
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

/// What the status that was shown last says from byte `from` on, as much as fits into an attribute.
fn status_part(core: &Core, from: usize) -> Vec<u8> {
    let shown = core.shown_status.lock();
    let from = from.min(shown.len());
    shown[from..(from + STATUS_PART_BYTES).min(shown.len())].to_vec()
}

/// The cluster's status as JSON: servers, targets, sessions.
async fn status(core: &Core, ctx: &Ctx) -> Result<String> {
    let map = core.map.lock().clone();
    let answers = core.ask_servers(&ctx.cred, &Request::Status).await;
    Ok(crate::status::json(&map, &answers.into_iter().map(Result::ok).collect::<Vec<_>>()))
}

impl Core {
    /// Remembers why a change was refused, to be read from `user.amphi.error`.
    pub(crate) fn complain(&self, text: String) -> Errno {
        *self.complaint.lock() = text;
        Errno::Inval
    }

    /// Numbers of the moment beside the counters.
    pub(crate) fn gauges(&self) -> Vec<(String, u64)> {
        let fixed = [
            ("cache_used_bytes", self.cache.used_bytes()),
            ("cache_dirty_bytes", self.cache.dirty_bytes()),
            ("cache_evicted_bytes", self.cache.evicted_bytes.load(Relaxed)),
            ("readahead_used_bytes", self.cache.used_ahead_bytes.load(Relaxed)),
            ("readahead_wasted_bytes", self.cache.wasted_ahead_bytes.load(Relaxed)),
            ("writeback_flight_bytes", self.flight_bytes.load(Relaxed)),
            ("locks_held", self.locks.held()),
            ("tokens_held", self.tokens.len()),
            ("memory_short", u64::from(self.group_short.load(Relaxed))),
            ("callers_short", self.callers.short_callers() as u64),
            ("rotating_targets", self.rotating.len()),
        ];
        let small = crate::siblings::gauges(self);
        let named = fixed.into_iter().chain(small).map(|(name, value)| (name.into(), value));
        named.chain(self.learned.shown()).collect()
    }
}
