//! `amphi verify`: calls of different processes on the same bytes that lack the order which a model wants.
//!
//! Owns: the words and what is printed (schema `amphi.verify/1`). Does not own: the search (`amphi_trace::verify`).

use super::replay::read_trace;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::say::say;
use amphi_trace::Trace;
use amphi_trace::summary::{shown, time};
use amphi_trace::verify::{Found, Model, Pair, Side, verify};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Find pairs of calls by different processes on the same bytes, at least one of them a write, with nothing between
/// them that orders them. These pairs are candidates, not errors: barriers and messages of a program are not in a
/// trace.
#[derive(Args, Debug)]
pub struct Verify {
    /// Traces of amphi record, of mounts of one cluster
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// What has to come between two calls
    #[arg(long, value_enum, default_value_t = Wanted::Posix)]
    model: Wanted,
    /// How far the clocks of two nodes may be apart, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1.0)]
    clocks: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What has to come between two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wanted {
    /// The first has ended before the second begins
    Posix,
    /// The writer has also synced or closed the file in between
    Commit,
    /// The writer has also closed the file, and the other process has opened it after that
    Session,
}

impl Verify {
    /// Searches and prints. Exit code 0 also if there are candidates.
    pub fn run(self) -> Outcome {
        if !(0.0..=86_400_000.0).contains(&self.clocks) {
            return Err(Failure::refused("--clocks: give milliseconds from 0 to a day"));
        }
        let traces = self.traces.iter().map(|file| read_trace(file)).collect::<Outcome<Vec<Trace>>>()?;
        if traces.iter().any(|trace| trace.calls.iter().any(|c| c.has(amphi_trace::flags::KERNEL_SERVES))) {
            say("amphi: some opens were served by the kernel's page cache, whose reads are not in the traces");
        }
        let model = match self.model {
            Wanted::Posix => Model::Posix,
            Wanted::Commit => Model::Commit,
            Wanted::Session => Model::Session,
        };
        let found = verify(&traces, model, (self.clocks * 1e6) as u64);
        let text = if self.json { format!("{}\n", self.object(&found)) } else { self.text(&traces, &found) };
        std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()).during(|| "write to standard output".into())
    }

    fn name(&self) -> &'static str {
        match self.model {
            Wanted::Posix => "posix",
            Wanted::Commit => "commit",
            Wanted::Session => "session",
        }
    }

    fn object(&self, found: &Found) -> Value {
        let side = |side: &Side| {
            json!({
                "trace": self.traces[side.trace].display().to_string(),
                "process": side.process, "thread": side.thread, "kind": side.op.name(),
                "begin": side.range.0, "end": side.range.1, "start_ns": side.time.0, "end_ns": side.time.1,
            })
        };
        let pair = |pair: &Pair| {
            json!({
                "file": pair.file, "inode": pair.ino, "pairs": pair.count, "undecided": pair.undecided,
                "first": side(&pair.calls[0]), "second": side(&pair.calls[1]),
            })
        };
        json!({
            "schema": "amphi.verify/1",
            "model": self.name(),
            "accesses": found.accesses,
            "more": found.more,
            "candidates": found.pairs.iter().map(pair).collect::<Vec<_>>(),
        })
    }

    fn text(&self, traces: &[Trace], found: &Found) -> String {
        let mut out = String::new();
        let side = |side: &Side| {
            let trace = &traces[side.trace];
            let program = trace.callers.get(&side.thread).map_or("", |caller| caller.program.as_str());
            let zero = traces[0].header.start_ns;
            format!(
                "{} of {}..{} by process {} {} on {}, {} to {}",
                side.op.name(),
                side.range.0,
                side.range.1,
                side.process,
                shown(program.as_bytes()),
                shown(trace.header.host.as_bytes()),
                time(side.time.0.saturating_sub(zero)),
                time(side.time.1.saturating_sub(zero)),
            )
        };
        for pair in &found.pairs {
            let what = if pair.undecided { "undecided, the clocks are too far apart" } else { "candidate" };
            let times = if pair.count > 1 { format!(", {} such pairs", pair.count) } else { String::new() };
            let _ = writeln!(out, "{}: {what}{times}", pair.file);
            let _ = writeln!(out, "  {}", side(&pair.calls[0]));
            let _ = writeln!(out, "  {}", side(&pair.calls[1]));
        }
        let (sure, open): (Vec<&Pair>, Vec<&Pair>) = found.pairs.iter().partition(|pair| !pair.undecided);
        let more = if found.more { ", and more" } else { "" };
        let (name, accesses) = (self.name(), found.accesses);
        let (sure, open) = (sure.len(), open.len());
        let _ = writeln!(out, "{accesses} reads and writes, model {name}: {sure} candidates, {open} undecided{more}");
        out
    }
}
