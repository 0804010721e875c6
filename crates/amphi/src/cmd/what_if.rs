//! `amphi what-if`: replays a trace alternately with the recorded and with changed settings, in clusters that it starts
//! for this.
//!
//! Owns: these clusters (this program again, in a scratch folder), the order of the replays, the verdict, and the
//! output (schema `amphi.what-if/1`). Does not own: the replay (`amphi_replay`).
//!
//! Each replay has a new cluster, so that no replay is influenced by the caches and zones of the previous one. If files
//! have to be there before, the cluster is started again when they are made: a job begins with what lies on disks. The
//! settings of a trace are those that its mount had where they were not the defaults.

use super::replay::{planned, share};
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::say::say;
use amphi_replay::{Options, Plan, Report, make, replay};
use amphi_trace::summary::{size, time};
use clap::Args;
use rustix::fs::{XattrFlags, setxattr};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Least space of a cluster, bytes, in addition to twice what the trace reads and writes.
const ROOM_BYTES: u64 = 1 << 30;
/// Least size of a zone.
const ZONE_BYTES: u64 = 256 << 20;
/// Default number of rounds; fewer rounds show only large differences.
const ROUNDS: u16 = 4;

/// Replay a trace alternately with the settings that it was recorded with and with others (A B A B), each in a new
/// cluster on this machine, and say whether there is a difference.
#[derive(Args, Debug)]
pub struct WhatIf {
    /// A trace of amphi record
    trace: PathBuf,
    /// A tunable to change; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// A layout to set for the files, in the form of amphi layout set
    #[arg(long, value_name = "LAYOUT")]
    layout: Option<String>,
    /// Rounds, each of one replay with and one without
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Which share of the time between the calls of a thread to wait: 0 none, 1 all of it
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    think: f64,
    /// Targets of the clusters
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    targets: u16,
    /// Folder on the disk to try it on; a folder is made there and removed again [default: this folder]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl WhatIf {
    /// Takes the turns and prints.
    pub fn run(self) -> Outcome {
        if self.set.is_empty() && self.layout.is_none() {
            return Err(Failure::refused("say what shall be different: --set NAME=VALUE or --layout LAYOUT"));
        }
        let (trace, plan) = planned(&self.trace)?;
        let own = format!("amphi-what-if.{}", std::process::id());
        let scratch = self.scratch.clone().unwrap_or_else(|| PathBuf::from(".")).join(own);
        let room = (plan.bytes_before().saturating_add(plan.bytes_written())).saturating_mul(2) + ROOM_BYTES;
        check_room(&scratch, room)?;
        std::fs::create_dir(&scratch).map_err(|e| Failure::refused(format!("{}: {e}", scratch.display())))?;
        let present = &trace.header.tunables;
        let changed: Vec<String> = present.iter().chain(&self.set).cloned().collect();
        let taken = self.turns(&scratch, room, &plan, [(present, None), (&changed, self.layout.as_deref())]);
        let _ = std::fs::remove_dir_all(&scratch);
        let taken = taken?;
        let found = Verdict::of(&taken);
        let text = match self.json {
            true => format!("{}\n", self.object(present, &taken, &found)),
            false => self.text(present, &taken, &found),
        };
        std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()).during(|| "write to standard output".into())
    }

    /// Replays the trace with both settings, in turns.
    fn turns(
        &self,
        scratch: &Path,
        room: u64,
        plan: &Arc<Plan>,
        sides: [(&Vec<String>, Option<&str>); 2],
    ) -> Outcome<[Vec<Report>; 2]> {
        let mut taken = [Vec::new(), Vec::new()];
        for round in 0..self.rounds {
            for ((settings, layout), reports) in sides.iter().zip(&mut taken) {
                let new = Zones { targets: self.targets, room };
                let mut cluster = Cluster::start(scratch, settings, Some(new))?;
                let made = cluster.make(plan, *layout);
                if made.is_ok() && plan.bytes_before() > 0 {
                    cluster.stop();
                    cluster = Cluster::start(scratch, settings, None)?;
                }
                let done = made.and_then(|()| cluster.replay(plan, self.think));
                cluster.stop();
                let _ = std::fs::remove_dir_all(scratch.join("data"));
                reports.push(done?);
            }
            if !self.json {
                let [a, b] = [&taken[0], &taken[1]].map(|reports| reports.last().map_or(0, |r| r.took_ns));
                say(&format!("round {}: {} now, {} with the change", round + 1, time(a), time(b)));
            }
        }
        Ok(taken)
    }

    fn what(&self) -> String {
        let layout = self.layout.iter().map(|layout| format!("layout {layout}"));
        self.set.iter().cloned().chain(layout).collect::<Vec<_>>().join(" ")
    }

    fn object(&self, present: &[String], taken: &[Vec<Report>; 2], found: &Verdict) -> Value {
        let [a, b] = taken.each_ref().map(|reports| reports.iter().map(|r| r.took_ns).collect::<Vec<_>>());
        json!({
            "schema": "amphi.what-if/1",
            "settings": present,
            "change": self.what(),
            "present_ns": a,
            "changed_ns": b,
            "ratio": found.ratio,
            "ratio_least": found.least,
            "ratio_most": found.most,
            "verdict": found.word(),
        })
    }

    fn text(&self, present: &[String], taken: &[Vec<Report>; 2], found: &Verdict) -> String {
        let mut out = String::new();
        let settings = if present.is_empty() { "the defaults".into() } else { present.join(" ") };
        let _ = writeln!(out, "present settings: {settings}\nchange: {}", self.what());
        let _ = writeln!(out, "\n{:<12} {:>9} {:>10} {:>10} {:>7}", "operation", "calls", "now", "changed", "ratio");
        let sum = |side: usize, op: &amphi_trace::Op| -> (u64, u64) {
            let all = taken[side].iter().filter_map(|report| report.times.get(op));
            all.fold((0, 0), |sum, times| (sum.0 + times.calls, sum.1 + times.ns))
        };
        let rounds = u64::from(self.rounds);
        for op in taken[0].first().into_iter().flat_map(|report| report.times.keys()) {
            let ((calls, a), (_, b)) = (sum(0, op), sum(1, op));
            let ratio = if a > 0 { b as f64 / a as f64 } else { 0.0 };
            let (name, calls) = (op.name(), calls / rounds);
            let (now, changed) = (time(a / rounds), time(b / rounds));
            let _ = writeln!(out, "{name:<12} {calls:>9} {now:>10} {changed:>10} {ratio:>7.2}");
        }
        let (ratio, least, most) = (found.ratio, found.least, found.most);
        let _ = writeln!(
            out,
            "\ntime with the change: {ratio:.2} times the present one ({least:.2} to {most:.2} by round)"
        );
        let _ = writeln!(out, "{}", found.sentence());
        out
    }
}

/// The result of the comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Verdict {
    /// Median of the rounds' ratios: time with the change over time without it.
    ratio: f64,
    least: f64,
    most: f64,
    /// Whether all times of one side are below all times of the other.
    apart: bool,
}

impl Verdict {
    fn of(taken: &[Vec<Report>; 2]) -> Verdict {
        let [a, b] =
            taken.each_ref().map(|reports| reports.iter().map(|r| r.took_ns.max(1) as f64).collect::<Vec<_>>());
        Verdict::of_times(&a, &b)
    }

    fn of_times(a: &[f64], b: &[f64]) -> Verdict {
        let mut ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| b / a).collect();
        ratios.sort_by(f64::total_cmp);
        let middle = ratios.len() / 2;
        let ratio = if ratios.len() % 2 == 1 { ratios[middle] } else { (ratios[middle - 1] * ratios[middle]).sqrt() };
        let ends = |all: &[f64]| all.iter().fold((f64::MAX, 0.0f64), |(least, most), t| (least.min(*t), most.max(*t)));
        let ((a_least, a_most), (b_least, b_most)) = (ends(a), ends(b));
        let apart = a.len() > 1 && (a_most < b_least || b_most < a_least);
        Verdict { ratio, least: ratios[0], most: ratios[ratios.len() - 1], apart }
    }

    fn word(&self) -> &'static str {
        match (self.apart, self.ratio < 1.0) {
            (false, _) => "no difference",
            (true, true) => "faster",
            (true, false) => "slower",
        }
    }

    fn sentence(&self) -> &'static str {
        match self.word() {
            "faster" => "the change makes it faster: every replay with it took less time than every one without",
            "slower" => "the change makes it slower: every replay with it took more time than every one without",
            _ => "no difference that these rounds can show",
        }
    }
}

/// Errors: the disk of the folder above has less room.
fn check_room(scratch: &Path, room: u64) -> Outcome {
    let above = scratch.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let free = rustix::fs::statvfs(above).map(|s| s.f_bavail.saturating_mul(s.f_frsize));
    match free.map_err(|e| Failure::refused(format!("{}: {e}", above.display())))? {
        free if free < room => Err(Failure::refused(format!(
            "{}: a cluster for this trace needs {}, and {} are free; name a larger disk with --scratch",
            above.display(),
            size(room),
            size(free)
        ))),
        _ => Ok(()),
    }
}

/// Zones of a new cluster.
struct Zones {
    targets: u16,
    room: u64,
}

/// A cluster in the scratch folder.
struct Cluster {
    child: Child,
    mount: PathBuf,
}

impl Cluster {
    /// Starts a new cluster, or the one that exists in the folder.
    ///
    /// Errors: the message of `amphi up`.
    fn start(scratch: &Path, settings: &[String], new: Option<Zones>) -> Outcome<Cluster> {
        let (data, mount) = (scratch.join("data"), scratch.join("mount"));
        std::fs::create_dir_all(&mount).during(|| format!("make {}", mount.display()))?;
        let own = std::env::current_exe().during(|| "find this program".into())?;
        let mut command = Command::new(own);
        command.arg("up").arg("--data").arg(&data).arg("--mount").arg(&mount).arg("--private");
        if let Some(Zones { targets, room }) = new {
            let zone = (room / u64::from(targets)).next_multiple_of(1 << 20).max(ZONE_BYTES);
            command.args(["--format", "--targets", &targets.to_string(), "--zone-size", &zone.to_string()]);
        }
        for setting in settings {
            command.args(["--set", setting]);
        }
        command.env("AMPHI_STATE", scratch.join("state"));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .during(|| "start a cluster".into())?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            let _ = BufReader::new(out).read_line(&mut line);
        }
        if !line.starts_with("ready") {
            let mut said = String::new();
            if let Some(mut err) = child.stderr.take() {
                let _ = err.read_to_string(&mut said);
            }
            let _ = child.wait();
            return Err(Failure::refused(format!("a cluster with these settings does not start: {}", said.trim())));
        }
        // Nobody reads the child's log, so it is thrown away.
        if let Some(mut err) = child.stderr.take() {
            let drain = move || drop(std::io::copy(&mut err, &mut std::io::sink()));
            let _ = std::thread::Builder::new().spawn(drain);
        }
        Ok(Cluster { child, mount })
    }

    fn dir(&self) -> PathBuf {
        self.mount.join("replay")
    }

    /// Makes what has to exist before the replay.
    fn make(&self, plan: &Plan, layout: Option<&str>) -> Outcome {
        let dir = self.dir();
        std::fs::create_dir(&dir).during(|| format!("make {}", dir.display()))?;
        if let Some(layout) = layout {
            setxattr(&dir, "user.amphi.layout", layout.as_bytes(), XattrFlags::empty())
                .map_err(|e| Failure::refused(format!("the layout {layout}: {e}")))?;
        }
        make(plan, &dir).map_err(Failure::broken)
    }

    fn replay(&self, plan: &Arc<Plan>, think: f64) -> Outcome<Report> {
        let report = replay(plan.clone(), &self.dir(), Options { think }).map_err(Failure::broken)?;
        if report.failed > 0 || report.wrong > 0 {
            let note = report.notes.first().map_or("", String::as_str);
            return Err(Failure::broken(format!("the replay does not go as it was recorded: {note}")));
        }
        Ok(report)
    }

    /// Stops the cluster in order.
    fn stop(mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a verdict is given only if the results of the compared settings do not overlap. Method: times made by
    /// hand.
    #[test]
    fn verdicts() {
        let word = |a: &[f64], b: &[f64]| Verdict::of_times(a, b).word();
        assert_eq!(word(&[10.0, 11.0, 12.0], &[20.0, 21.0, 19.0]), "slower");
        assert_eq!(word(&[10.0, 11.0, 12.0], &[5.0, 5.5, 9.9]), "faster");
        assert_eq!(word(&[10.0, 11.0, 12.0], &[10.5, 13.0, 14.0]), "no difference");
        assert_eq!(word(&[10.0], &[20.0]), "no difference", "one round shows nothing");
        let found = Verdict::of_times(&[10.0, 10.0, 10.0], &[20.0, 30.0, 10.0]);
        assert_eq!((found.ratio, found.least, found.most), (2.0, 1.0, 3.0));
    }
}
