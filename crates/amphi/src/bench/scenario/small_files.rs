//! `amphi bench files`: processes make many small files in one directory (IO500's mdtest-hard, Figure 9 of the paper), with and without
//! cross-file batching and with and without reading ahead of who opens them in order, on one and on several mounts.
//!
//! Making is timed until all mounts have brought everything to the disk. Each process looks at and reads the files of the next one.

use super::{Found, Sample, Variant, apply, cells, counted, in_turn, times};
use crate::bench::Run;
use crate::bench::mounted_cluster::{Mounts, Setup};
use crate::bench::report::{Finding, Table, digits};
use crate::bench::workload::mdtest::{Job, Shape, make_trees};
use crate::bench::workload::place::{Counted, counters, since};
use crate::bench::workload::tasks::{Tasks, now_ns};
use crate::bench::workload::{Phase, tasks};
use crate::control;
use crate::failure::Outcome;

/// Processes.
const TASKS: usize = 4;
/// Bytes of a file: the paper's text, and IO500's.
const SIZES: [u64; 2] = [3091, 3901];
const ONE_BY_ONE: Variant = Variant { name: "one by one", set: &["writeback.batch=off", "readahead.small_files=off"] };
const BATCHED: Variant = Variant { name: "batched", set: &["writeback.batch=on", "readahead.small_files=off"] };
const AHEAD: Variant =
    Variant { name: "batched, read ahead", set: &["writeback.batch=on", "readahead.small_files=on"] };
const VARIANTS: [Variant; 3] = [ONE_BY_ONE, BATCHED, AHEAD];
const PHASES: [&str; 4] = ["make", "stat", "read", "remove"];

/// Measures both sizes on one mount and on several.
pub fn run(run: &mut Run) -> Outcome {
    let mut table = Table::new(
        format!("{TASKS} processes, small files in one directory (files per second, median and range)"),
        &["mounts, bytes, variant", "make and sync", "stat", "read", "remove"],
    );
    let mut messages = Table::new(
        "Messages from mounts to the server for each file",
        &[
            "mounts, bytes, variant",
            "make and sync",
            "stat",
            "read",
            "remove",
            "batches",
            "files in a batch",
            "opened ahead",
        ],
    );
    for mounts in [1, TASKS] {
        let cluster = Mounts::start(&run.dir.join(format!("files-{mounts}")), &Setup { mounts, ..Setup::default() })?;
        for bytes in SIZES {
            let found = measure(run, &cluster, bytes)?;
            for (variant, found) in VARIANTS.iter().zip(&found) {
                row(run, &mut table, &mut messages, &format!("{mounts}, {bytes}, {}", variant.name), found);
            }
        }
        cluster.stop()?;
    }
    run.show(&table);
    run.show(&messages);
    Ok(())
}

fn shape(run: &Run, bytes: u64) -> Shape {
    Shape {
        tasks: TASKS,
        items: if run.quick { 200 } else { 1000 },
        depth: 0,
        branch: 1,
        own_tree: false,
        leaf_only: false,
        dirs: false,
        write_bytes: bytes,
        read_bytes: bytes,
        fsync: false,
        stride: 1,
    }
}

fn measure(run: &Run, cluster: &Mounts, bytes: u64) -> Outcome<Vec<Found>> {
    let shape = shape(run, bytes);
    let mut processes = Tasks::start(&Job::all(&shape, cluster.dirs(), "files"))?;
    let root = cluster.dirs()[0].join("files");
    let found = in_turn(run, &format!("files of {bytes} bytes"), &VARIANTS, |variant| {
        apply(cluster, variant)?;
        make_trees(&shape, &root)?;
        let (mut values, mut all) = (Vec::new(), Counted::new());
        for (name, phase) in PHASES.iter().zip([Phase::Write, Phase::Stat, Phase::Read, Phase::Remove]) {
            let (per_second, found) = match phase {
                Phase::Write => make(cluster, &mut processes)?,
                _ => {
                    let (together, found) = counted(cluster, &mut processes, phase)?;
                    (together.per_second(), found)
                }
            };
            values.push(per_second);
            for (counter, row) in found {
                all.insert(format!("{name} {counter}"), row);
            }
        }
        Ok(Sample { values, counted: all })
    })?;
    processes.stop()?;
    Ok(found)
}

/// Makes the files and waits until they are on the disk. Files per second.
fn make(cluster: &Mounts, processes: &mut Tasks) -> Outcome<(f64, Counted)> {
    let before = counters(cluster.dirs())?;
    let together = processes.phase(Phase::Write)?;
    let start_ns = together.ranks.iter().map(|r| r.start_ns).min().unwrap_or_else(now_ns);
    for mount in cluster.dirs() {
        control::write(mount, "user.amphi.sync", "all", || "sync was refused".into())?;
    }
    let seconds = tasks::now_ns().saturating_sub(start_ns) as f64 / 1e9;
    Ok((together.calls() as f64 / seconds, since(&before, &counters(cluster.dirs())?)))
}

fn row(run: &mut Run, table: &mut Table, messages: &mut Table, what: &str, found: &Found) {
    let files = (shape(run, 0).items * TASKS as u64 * run.pairs as u64) as f64;
    let mut line = vec![what.to_string()];
    line.extend(cells(&found.series));
    table.row(line);
    let sent = |phase: &str| times(&found.counted, &format!("{phase} server_calls")) as f64 / files;
    let mut line = vec![what.to_string()];
    line.extend(PHASES.iter().map(|p| digits(sent(p))));
    let batches = times(&found.counted, "make batch_requests");
    let batched = found.counted.get("make batch_files").map_or(0, |row| row.1.max(row.0));
    line.extend([digits(batches as f64 / run.pairs as f64), digits(batched as f64 / batches.max(1) as f64)]);
    let ahead = times(&found.counted, "read readahead_small_used") as f64 / files;
    line.push(format!("{:.0} %", 100.0 * ahead));
    messages.row(line);
    let mut finding = Finding::new("files", what);
    for (phase, series) in PHASES.iter().zip(&found.series) {
        finding = finding.series(format!("{phase}_per_s"), series).with(&format!("{phase}_messages"), sent(phase));
    }
    run.report.findings.push(finding);
}
