//! `amphi replay`: makes the calls of a trace again in a directory of any file system.
//!
//! Owns: the directory and what is printed (schema `amphi.replay/1`). Does not own: the calls (`amphi_replay`).

use super::record::open_trace;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::say::say;
use amphi_replay::{Options, Plan, Report, clear, make, plan, replay};
use amphi_trace::Trace;
use amphi_trace::summary::{size, time};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Make the calls of a trace again: each recorded thread has a thread, files have their recorded sizes, and what is
/// read is checked. Exit code 1: a call failed that had not, or a read returned other bytes.
#[derive(Args, Debug)]
pub struct Replay {
    /// A trace of amphi record
    trace: PathBuf,
    /// An empty or new directory, on any file system; what is made in it is removed again [default: a new one in this
    /// folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Which share of the time between the calls of a thread to wait: 0 none, 1 all of it
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share)]
    think: f64,
    /// Leave what was made
    #[arg(long)]
    keep: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A share from 0 to 1.
pub fn share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "give a number from 0 to 1".into())
}

/// Reads a trace for a replay or a check, and reports what is missing in it.
pub fn read_trace(file: &Path) -> Outcome<Trace> {
    let trace = Trace::read(open_trace(file)?);
    let trace = trace.map_err(|fault| Failure::refused(format!("{}: {fault}", file.display())))?;
    match &trace.fault {
        Some(fault) if fault.is_cut => say(&format!("amphi: {}: {fault}; what is there is used", file.display())),
        Some(fault) => return Err(Failure::refused(format!("{}: {fault}", file.display()))),
        None => {}
    }
    if trace.lost > 0 {
        say(&format!("amphi: {}: {} calls are missing in the trace", file.display(), trace.lost));
    }
    Ok(trace)
}

/// A plan that has at least one call.
pub fn planned(file: &Path) -> Outcome<(Trace, Arc<Plan>)> {
    let trace = read_trace(file)?;
    let plan = plan(&trace);
    if plan.calls() == 0 {
        return Err(Failure::refused(format!("{}: there are no calls in it that could be made again", file.display())));
    }
    Ok((trace, Arc::new(plan)))
}

impl Replay {
    /// Makes the files, replays, prints, and removes the files.
    pub fn run(self) -> Outcome {
        let (_, plan) = planned(&self.trace)?;
        let dir = self.dir.clone().unwrap_or_else(|| PathBuf::from(format!("replay.{}", std::process::id())));
        let is_new = fresh(&dir)?;
        let done = make(&plan, &dir)
            .and_then(|()| replay(plan.clone(), &dir, Options { think: self.think }))
            .map_err(Failure::broken);
        if !self.keep {
            let cleared = clear(&dir).map_err(Failure::broken);
            if is_new {
                let _ = std::fs::remove_dir(&dir);
            }
            if let Err(e) = cleared {
                say(&format!("amphi: {e}"));
            }
        }
        let report = done?;
        let text = if self.json { format!("{}\n", object(&plan, &report)) } else { text(&plan, &report) };
        std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes())
            .during(|| "write to standard output".into())?;
        if report.failed > 0 || report.wrong > 0 {
            let (failed, wrong) = (report.failed, report.wrong);
            return Err(Failure::broken(format!(
                "{failed} calls failed that had not, {wrong} reads returned wrong bytes"
            )));
        }
        Ok(())
    }
}

/// An empty directory at this path. Returns whether it was made.
///
/// Errors: the directory is not empty.
pub fn fresh(dir: &Path) -> Outcome<bool> {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            None => Ok(false),
            Some(_) => {
                Err(Failure::refused(format!("{}: is not empty; give --dir a new or empty directory", dir.display())))
            }
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            std::fs::create_dir(dir)
                .map_err(|e| Failure::refused(format!("{}: cannot be made: {e}", dir.display())))?;
            Ok(true)
        }
        Err(e) => Err(Failure::refused(format!("{}: {e}", dir.display()))),
    }
}

fn object(plan: &Plan, report: &Report) -> Value {
    let operations = report.times.iter().map(|(op, times)| {
        json!({ "name": op.name(), "calls": times.calls, "recorded_ns": times.recorded_ns, "ns": times.ns })
    });
    let skipped = report.skipped.iter().map(|(op, calls)| json!({ "name": op.name(), "calls": calls }));
    json!({
        "schema": "amphi.replay/1",
        "threads": plan.threads(),
        "calls": plan.calls(),
        "recorded_ns": report.recorded_ns,
        "took_ns": report.took_ns,
        "latest_ns": report.latest_ns,
        "order_wait_ns": report.order_ns,
        "read_bytes": report.read,
        "written_bytes": report.written,
        "failed": report.failed,
        "wrong_reads": report.wrong,
        "short_reads": report.short,
        "opened_without_direct": report.not_direct,
        "notes": report.notes,
        "operations": operations.collect::<Vec<_>>(),
        "not_replayed": skipped.collect::<Vec<_>>(),
    })
}

fn text(plan: &Plan, report: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} calls of {} threads took {}, when recorded {}; read {}, written {}",
        plan.calls(),
        plan.threads(),
        time(report.took_ns),
        time(report.recorded_ns),
        size(report.read),
        size(report.written)
    );
    let _ = writeln!(
        out,
        "the latest call began {} later than recorded; calls waited {} for those of other threads",
        time(report.latest_ns),
        time(report.order_ns)
    );
    let _ = writeln!(out, "\n{:<12} {:>9} {:>10} {:>10} {:>7}", "operation", "calls", "recorded", "here", "ratio");
    for (op, times) in &report.times {
        let ratio = if times.recorded_ns > 0 { times.ns as f64 / times.recorded_ns as f64 } else { 0.0 };
        let (recorded, here) = (time(times.recorded_ns), time(times.ns));
        let _ = writeln!(out, "{:<12} {:>9} {recorded:>10} {here:>10} {ratio:>7.2}", op.name(), times.calls);
    }
    let skipped: Vec<String> = report.skipped.iter().map(|(op, calls)| format!("{} x {calls}", op.name())).collect();
    if !skipped.is_empty() {
        let _ = writeln!(out, "not replayed: {}", skipped.join(", "));
    }
    if report.short > 0 {
        let _ = writeln!(out, "{} reads returned another number of bytes than when recorded", report.short);
    }
    if report.not_direct > 0 {
        let _ = writeln!(out, "{} files were opened without O_DIRECT, which this file system lacks", report.not_direct);
    }
    for note in &report.notes {
        let _ = writeln!(out, "{note}");
    }
    out
}
