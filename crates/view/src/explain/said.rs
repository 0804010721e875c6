//! The explanation of a file, a job or a mount: the words for reasons, as text and as JSON.

use super::facts::Row;
use crate::findings::{Finding, Weight};
use crate::unit::{bytes, count, share};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The explanation of one file, job or mount.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// The subject of the explanation, and the facts that are no counters: size, layout, who serves reads.
    pub head: String,
    /// The ways of reads and writes.
    pub ways: Vec<WayShare>,
    /// Describes the pattern of the requests, one line for each property.
    pub looks: Vec<String>,
    /// The causes of slow access, the most important first.
    pub findings: Vec<Finding>,
}

/// Requests that were served in one way for one reason.
#[derive(Clone, Debug, PartialEq)]
pub struct WayShare {
    /// `read` or `write`.
    pub kind: &'static str,
    /// The row's name without that: `direct_large`.
    pub reason: String,
    /// Requests.
    pub requests: u64,
    /// Bytes.
    pub bytes: u64,
    /// Share of these requests in the bytes of all requests of their kind, per cent.
    pub percent: f64,
    /// The reason, as a clause.
    pub because: String,
}

/// Returns the reason why requests of a `kind` (`read`, `write`) were served in a way, as a clause; `tunable` returns
/// the value of a tunable, if it is known.
fn because(kind: &str, reason: &str, tunable: &dyn Fn(&str) -> Option<String>) -> String {
    let with = |text: &str, name: &str| match tunable(name) {
        Some(value) => format!("{text} ({name}={value})"),
        None => format!("{text} ({name})"),
    };
    match reason {
        "direct_user" => "O_DIRECT, or open file, file, process or mount are set to direct".into(),
        "direct_large" => with("they are large", &format!("hybrid.large_{kind}_bytes")),
        "direct_kernel" => "the kernel keeps these pages, so the mount does not".into(),
        "direct_contention" => with("other mounts want the same file", "hybrid.contention"),
        "direct_memory" => with("memory is short", "hybrid.memory"),
        "direct_overcache" => with("much of this file is in the cache already", "hybrid.overcache_bytes"),
        "direct_locality" => with("pages of this file are not used again", "hybrid.locality"),
        "buffered_faster" => with("the cache was measured to be faster", "hybrid.learn"),
        "buffered_user" => "open file, file, process or mount are set to buffered".into(),
        "buffered_small" => with("they are small", "hybrid.small_bytes"),
        "buffered_unaligned" => with("they would go direct but are not aligned to 4 KiB", "hybrid.unaligned"),
        "buffered_default" => "of middle size, and nothing speaks against the cache".into(),
        "cache_hit" => "the bytes were in the cache".into(),
        other => other.replace('_', " "),
    }
}

/// Rows of counters by way and reason as shares, the most bytes first, reads before writes.
pub(super) fn ways(rows: &BTreeMap<String, Row>, tunable: &dyn Fn(&str) -> Option<String>) -> Vec<WayShare> {
    let mut all = Vec::new();
    for kind in ["read", "write"] {
        let of = |name: &str| name.strip_prefix(kind).and_then(|rest| rest.strip_prefix('_')).map(str::to_string);
        let is_way = |reason: &str| ["direct_", "buffered_", "cache_"].iter().any(|way| reason.starts_with(way));
        let rows = rows.iter().filter_map(|(name, row)| Some((of(name).filter(|r| is_way(r))?, row)));
        let mut some: Vec<(String, &Row)> = rows.filter(|(_, row)| row.requests > 0).collect();
        some.sort_by(|a, b| b.1.bytes.cmp(&a.1.bytes).then(b.1.requests.cmp(&a.1.requests)));
        let total: u64 = some.iter().map(|(_, row)| row.bytes).sum();
        all.extend(some.into_iter().map(|(reason, row)| WayShare {
            kind,
            requests: row.requests,
            bytes: row.bytes,
            percent: share(row.bytes as f64, total as f64),
            because: because(kind, &reason, tunable),
            reason,
        }));
    }
    all
}

impl Explanation {
    /// The explanation as text for people.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.head);
        for way in &self.ways {
            let verb = if way.kind == "read" { "read" } else { "written" };
            let name = way.reason.split('_').next().unwrap_or_default();
            let name = if name == "cache" { "from the cache" } else { name };
            let _ = writeln!(
                out,
                "  {verb:<8}{:>9} in {:>8} requests, {:>3.0} % {name}: {}",
                bytes(way.bytes as f64),
                count(way.requests as f64),
                way.percent,
                way.because
            );
        }
        if self.ways.is_empty() {
            out.push_str("  no reads or writes were counted\n");
        }
        for look in &self.looks {
            let _ = writeln!(out, "  {look}");
        }
        if self.findings.is_empty() {
            out.push_str("nothing costs more than it should\n");
        }
        for (at, finding) in self.findings.iter().enumerate() {
            let _ = writeln!(out, "{}. {}", at + 1, finding.what);
            if let Some(advice) = &finding.advice {
                let _ = writeln!(out, "   what helps: {advice}");
            }
            if let Some(command) = &finding.command {
                let _ = writeln!(out, "   $ {command}");
            }
        }
        out
    }

    /// The explanation as JSON, schema `amphi.explain/1`; within the version fields are only added.
    pub fn json(&self) -> Value {
        let ways: Vec<Value> = self
            .ways
            .iter()
            .map(|w| {
                json!({ "kind": w.kind, "reason": w.reason, "requests": w.requests, "bytes": w.bytes,
                    "percent": w.percent, "because": w.because })
            })
            .collect();
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|f| {
                let weight = if f.weight == Weight::Trouble { "trouble" } else { "slow" };
                json!({ "rule": f.rule, "weight": weight, "what": f.what, "advice": f.advice, "command": f.command })
            })
            .collect();
        json!({ "schema": "amphi.explain/1", "about": self.head, "ways": ways, "looks": self.looks,
            "findings": findings })
    }
}
