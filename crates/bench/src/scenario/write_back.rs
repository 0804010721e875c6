//! `amphi bench writeback`: the effect of write-back on the server for records that mounts write in turn into one file
//! (ior-hard), for small synchronous writes, for random overwrites, and its cost for large ones; on beside off. And the
//! effect of the servers' read cache on readers of such a file behind the others.
//!
//! Owns: the workloads, among them those for the cost of checksums of data, and the counters of the server meanwhile
//! (disk writes, bytes, syncs, processor time, extents). Invariant: each workload ends with an `fsync` within the
//! measured time, so no side leaves work for later.

use super::variant::Variant;
use super::{Found, Sample, cells, clear, in_turn};
use crate::Run;
use crate::mounted_cluster::{Mounts, Setup};
use crate::report::{Finding, Goal, Table, digits};
use crate::series::Series;
use crate::workload::Phase;
use crate::workload::ior::{Reorder, Shape};
use crate::workload::tasks::Tasks;
use crate::workload::transfers::Calls;
use amphi_host::control;
use amphi_host::failure::{During, Outcome};
use rustix::fs::{Mode, OFlags, open};
use std::path::Path;

/// Mounts, each with a process.
const TASKS: usize = 4;
/// Bytes of a record of ior-hard.
const HARD_BYTES: u64 = 47_008;
/// The switch, and a disk of which each write takes 5 ms.
const SIDES: [Variant; 4] = [
    Variant { name: "off", set: &["server.write_back=off"] },
    Variant { name: "on", set: &["server.write_back=on"] },
    Variant { name: "off, slow disk", set: &["server.write_back=off", "server.disk_write_delay_us=5000"] },
    Variant { name: "on, slow disk", set: &["server.write_back=on", "server.disk_write_delay_us=5000"] },
];
/// The servers' read cache without and with room for the file.
const CACHES: [Variant; 2] = [
    Variant { name: "read cache off", set: &["server.read_cache_bytes=0"] },
    Variant { name: "read cache on", set: &["server.read_cache_bytes=64M"] },
];
/// Data without and with checksums.
const CHECKSUMS: [Variant; 2] = [
    Variant { name: "checksums off", set: &["server.checksums=off"] },
    Variant { name: "checksums on", set: &["server.checksums=on"] },
];
/// What checksums may cost.
const CHECKSUM_GOALS: &[(usize, bool, Goal)] = &[(0, true, Goal::AtLeast(0.97)), (1, true, Goal::AtLeast(0.97))];
/// The values of each side, in the order of a sample's values.
const HEADS: [&str; 8] = [
    "write MiB/s",
    "read MiB/s",
    "disk writes a MiB",
    "syncs a MiB",
    "bytes to disk a byte",
    "server CPU ms a MiB",
    "extents a MiB",
    "disk reads a MiB, reading",
];

/// One workload.
struct Workload {
    /// The name in titles and results.
    what: &'static str,
    /// Which process writes which bytes.
    shape: Shape,
    /// How.
    calls: Calls,
    /// Written in sequence before, so that the measured writes overwrite.
    over: bool,
    /// What is compared.
    sides: &'static [Variant],
    /// Goals: place in `HEADS`, whether on / off (else the value of on), and the goal.
    goals: &'static [(usize, bool, Goal)],
}

/// Measures all.
pub fn run(run: &mut Run) -> Outcome {
    let cluster =
        Mounts::start(&run.dir.join("writeback"), &Setup { mounts: TASKS, own_reads: true, ..Setup::default() })?;
    for workload in workloads(run.quick) {
        if run.wants(workload.what) {
            measure(run, &cluster, &workload)?;
        }
    }
    cluster.stop()
}

fn workloads(quick: bool) -> Vec<Workload> {
    let fewer = if quick { 5 } else { 1 };
    let hard = Shape {
        tasks: TASKS,
        block: HARD_BYTES,
        transfer: HARD_BYTES,
        segments: 500 / fewer,
        file_per_process: false,
        random: None,
        reorder: Reorder::Next,
    };
    let of = |tasks, bytes, segments| Shape {
        tasks,
        block: bytes,
        transfer: bytes,
        segments,
        reorder: Reorder::None,
        ..hard.clone()
    };
    let fsync = Calls { fsync: true, ..Calls::default() };
    let mut all = vec![
        Workload {
            what: "ior-hard",
            shape: hard.clone(),
            calls: fsync,
            over: false,
            sides: &SIDES,
            goals: &[
                (2, false, Goal::AtMost(3.0)),
                (6, false, Goal::AtMost(1.2)),
                (4, false, Goal::AtMost(1.03)),
                (0, true, Goal::AtLeast(1.1)),
                (1, true, Goal::AtLeast(4.0)),
            ],
        },
        Workload {
            what: "ior-hard, read by others",
            shape: hard.clone(),
            calls: fsync,
            over: false,
            sides: &CACHES,
            goals: &[(7, false, Goal::AtMost(0.1)), (1, true, Goal::AtLeast(4.0)), (0, true, Goal::AtLeast(0.97))],
        },
        Workload {
            what: "4 KiB appended and synced",
            shape: of(1, 4096, 500 / fewer),
            calls: Calls { fsync_each: true, ..Calls::default() },
            over: false,
            sides: &SIDES[..2],
            goals: &[(0, true, Goal::AtLeast(0.97))],
        },
        Workload {
            what: "4 KiB, O_DIRECT",
            shape: of(1, 4096, 2000 / fewer),
            calls: Calls { o_direct: true, ..fsync },
            over: false,
            sides: &SIDES[..2],
            goals: &[(0, true, Goal::AtLeast(0.97))],
        },
        Workload {
            what: "4 KiB at random over two mounts",
            shape: Shape { random: Some(7), ..of(2, 4096, 2048 / fewer) },
            calls: fsync,
            over: true,
            sides: &SIDES[..2],
            goals: &[(0, true, Goal::AtLeast(0.97))],
        },
        Workload {
            what: "64 KiB, buffered",
            shape: of(1, 64 << 10, 1024 / fewer),
            calls: fsync,
            over: false,
            sides: &SIDES[..2],
            goals: &[(0, true, Goal::AtLeast(0.97)), (1, true, Goal::AtLeast(0.97))],
        },
        Workload {
            what: "1 MiB, O_DIRECT",
            shape: of(1, 1 << 20, 256 / fewer),
            calls: Calls { o_direct: true, ..fsync },
            over: false,
            sides: &SIDES[..2],
            goals: &[(0, true, Goal::AtLeast(0.97)), (1, true, Goal::AtLeast(0.97))],
        },
    ];
    let checked = [
        ("1 MiB, O_DIRECT, checksums", 1 << 20, 256, true),
        ("1 MiB, buffered, checksums", 1 << 20, 256, false),
        ("64 KiB, O_DIRECT, checksums", 64 << 10, 1024, true),
        ("4 KiB, O_DIRECT, checksums", 4096, 2000, true),
    ];
    all.extend(checked.map(|(what, bytes, segments, o_direct)| Workload {
        what,
        shape: of(1, bytes, segments / fewer),
        calls: Calls { o_direct, ..fsync },
        over: false,
        sides: &CHECKSUMS,
        goals: CHECKSUM_GOALS,
    }));
    all
}

fn measure(run: &mut Run, cluster: &Mounts, workload: &Workload) -> Outcome {
    let Workload { what, shape, calls, over, .. } = workload;
    let file = what.replace([' ', ','], "-");
    let mut tasks = Tasks::start(&shape.jobs(cluster.dirs(), &file, *calls))?;
    let whole = Shape { tasks: 1, block: 1 << 20, transfer: 1 << 20, random: None, ..shape.clone() };
    let whole = Shape { segments: (shape.bytes() * shape.tasks as u64).div_ceil(1 << 20), ..whole };
    let quiet = Calls { fsync: true, ..Calls::default() };
    let mut before = over.then(|| Tasks::start(&whole.jobs(cluster.dirs(), &file, quiet))).transpose()?;
    let sides = workload.sides;
    let found = in_turn(run, cluster, what, sides, || {
        clear(cluster, &mut tasks)?;
        if let Some(before) = &mut before {
            before.phase(Phase::Write)?;
        }
        sample(cluster, &mut tasks, &file)
    })?;
    tasks.phase(Phase::Remove)?;
    before.map_or(Ok(()), Tasks::stop)?;
    tasks.stop()?;
    show(run, workload, sides, &found);
    Ok(())
}

/// The work of the server so far.
#[derive(Clone, Copy, Default)]
struct Work {
    writes: u64,
    reads: u64,
    syncs: u64,
    bytes: u64,
    cpu_ms: u64,
}

fn work(cluster: &Mounts) -> Outcome<Work> {
    let mut all = Work::default();
    for line in control::read(&cluster.dirs()[0], "user.amphi.counters.server")?.lines() {
        let Some((name, n)) = line.split_once(|c: char| c == '=' || c.is_whitespace()) else { continue };
        let n: u64 = n.trim().parse().unwrap_or(0);
        match name {
            "data_disk_writes" | "log_groups" => all.writes += n,
            "data_disk_reads" => all.reads += n,
            "disk_syncs" => all.syncs += n,
            _ => {}
        }
    }
    for pid in cluster.server_pids() {
        all.bytes += written_bytes(pid)?;
        all.cpu_ms += cpu_ms(pid)?;
    }
    Ok(all)
}

/// Bytes that process `pid` sent to disks.
fn written_bytes(pid: u32) -> Outcome<u64> {
    let path = format!("/proc/{pid}/io");
    let text = std::fs::read_to_string(&path).during(|| format!("read {path}"))?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(bytes.and_then(|n| n.trim().parse().ok()).unwrap_or(0))
}

/// Processor time of process `pid`, ms.
fn cpu_ms(pid: u32) -> Outcome<u64> {
    let path = format!("/proc/{pid}/schedstat");
    let mut ns = 0;
    let tasks = format!("/proc/{pid}/task");
    for task in std::fs::read_dir(&tasks).during(|| format!("read {tasks}"))? {
        let of = task.during(|| format!("read {tasks}"))?.path().join("schedstat");
        let text = std::fs::read_to_string(of).during(|| format!("read {path}"))?;
        ns += text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(ns / 1_000_000)
}

/// Extents of the file at `path`, of all targets.
fn extents(path: &Path) -> Outcome<u64> {
    let _file =
        open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).during(|| format!("open {}", path.display()))?;
    let text = control::read(path, "user.amphi.extents")?;
    let all: serde_json::Value = serde_json::from_str(&text).during(|| "understand the extents".into())?;
    Ok(all["objects"].as_array().into_iter().flatten().filter_map(|o| o["extents"].as_u64()).sum())
}

fn sample(cluster: &Mounts, tasks: &mut Tasks, file: &str) -> Outcome<Sample> {
    let start = work(cluster)?;
    let write = tasks.phase(Phase::Write)?;
    let written = work(cluster)?;
    let extents = extents(&cluster.dirs()[0].join(file))?;
    let between = work(cluster)?;
    let read = tasks.phase(Phase::Read)?;
    let done = work(cluster)?;
    let mib = write.bytes() as f64 / f64::from(1 << 20);
    let each = |n: u64| n as f64 / mib;
    let values = vec![
        write.mib_s(),
        read.mib_s(),
        each(written.writes - start.writes),
        each(written.syncs - start.syncs),
        (written.bytes - start.bytes) as f64 / write.bytes() as f64,
        each(written.cpu_ms - start.cpu_ms),
        each(extents),
        each(done.reads - between.reads),
    ];
    Ok(Sample { values, counted: Default::default() })
}

fn show(run: &mut Run, workload: &Workload, sides: &[Variant], found: &[Found]) {
    let title = format!("On the server, {} (median and range)", workload.what);
    let heads: Vec<&str> = std::iter::once("side").chain(HEADS).collect();
    let mut table = Table::new(title, &heads);
    for (side, found) in sides.iter().zip(found) {
        let mut row = vec![side.name.to_string()];
        row.extend(cells(&found.series));
        table.row(row);
        let mut finding = Finding::new("writeback", format!("{}, {}", workload.what, side.name))
            .with("tasks", workload.shape.tasks)
            .with("transfer_bytes", workload.shape.transfer);
        for (name, series) in HEADS.iter().zip(&found.series) {
            finding = finding.series(name.replace([' ', '/', ','], "_"), series);
        }
        run.report.findings.push(finding);
    }
    run.show(&table);
    let mut table = Table::new(format!("{}: goals", workload.what), &["what", "value", "goal"]);
    let mut row = |name: String, value: f64, goal: Goal| {
        table.row(vec![name.clone(), digits(value), goal.show(value)]);
        run.report.findings.push(Finding::new("writeback", format!("{}, {name}", workload.what)).goal(value, goal));
    };
    let ratio = |on: &Series, off: &Series| on.over(off).median();
    for &(at, is_ratio, goal) in workload.goals {
        match is_ratio {
            true => row(format!("{}, on / off", HEADS[at]), ratio(&found[1].series[at], &found[0].series[at]), goal),
            false => row(HEADS[at].to_string(), found[1].series[at].median(), goal),
        }
    }
    if let [_, _, off, on] = found {
        let slow = ratio(&on.series[0], &off.series[0]);
        row("write MiB/s, slow disk, on / off".into(), slow, Goal::AtLeast(4.0));
    }
    run.show(&table);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the goals name columns that are there, and a ratio has both of its sides. Method: all workloads.
    #[test]
    fn goals_have_columns() {
        for workload in workloads(true) {
            assert!(workload.goals.iter().all(|(at, ..)| *at < HEADS.len()), "{}", workload.what);
            assert!(workload.sides.len() >= 2, "{}", workload.what);
            workload.shape.check().expect("sizes fit together");
        }
    }
}
