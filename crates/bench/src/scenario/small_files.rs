//! `amphi bench files`: processes make many small files in one directory (IO500's mdtest-hard, Figure 9 of the paper),
//! on one and on several mounts; with and without cross-file batching, reading ahead of who opens them in order, and
//! the like.
//!
//! Making is timed until all mounts have brought everything to the disk. Each process looks at and reads the files of
//! the next one.

use super::parts::Parts;
use super::variant::{AUTO, BASELINES, NO_BATCHES, NO_FILES_AHEAD, Variant};
use super::{Found, Sample, cells, counted, draw, in_turn, medians, times};
use crate::Run;
use crate::mounted_cluster::{Mounts, Setup};
use crate::report::{Finding, Table, digits};
use crate::workload::mdtest::{Job, Shape, make_trees};
use crate::workload::place::{Counted, counters, since};
use crate::workload::plot::Panel;
use crate::workload::tasks::{Tasks, now_ns};
use crate::workload::{Phase, tasks};
use amphi_host::control;
use amphi_host::failure::Outcome;

/// Processes.
const TASKS: usize = 4;
/// Bytes of a file: the paper's text, and IO500's.
const SIZES: [u64; 2] = [3091, 3901];
const PARTS: [Variant; 3] = [AUTO, NO_BATCHES, NO_FILES_AHEAD];
const PHASES: [&str; 4] = ["make", "stat", "read", "remove"];

/// Measures both sizes on one mount and on several.
pub fn run(run: &mut Run) -> Outcome {
    let title = format!("{TASKS} processes, small files in one directory");
    let mut table = Table::new(
        format!("{title} (files per second, median and range)"),
        &["mounts, bytes, variant", "make and sync", "stat", "read", "remove"],
    );
    let mut messages = messages("Messages from mounts to the server for each file");
    let mut groups: [Vec<_>; 4] = Default::default();
    let mut without = Vec::new();
    for mounts in [1, TASKS] {
        let cluster = Mounts::start(&run.dir.join(format!("files-{mounts}")), &Setup { mounts, ..Setup::default() })?;
        for bytes in SIZES {
            let found = measure(run, &cluster, bytes, &BASELINES)?;
            let place = format!("{mounts}, {bytes}");
            for (variant, found) in BASELINES.iter().zip(&found) {
                row(run, &mut table, &mut messages, &format!("{place}, {}", variant.name), found);
            }
            for (way, groups) in groups.iter_mut().enumerate() {
                groups.push((format!("{mounts} x {bytes} B"), medians(&found, way)));
            }
        }
        // The files have the size of those of IO500: both use the same ways.
        without.push((mounts, measure(run, &cluster, SIZES[1], &PARTS)?));
        cluster.stop()?;
    }
    run.show(&table);
    run.show(&messages);
    let names = PHASES.map(String::from).into_iter();
    let panels: Vec<Panel> = names.zip(groups).map(|(title, groups)| Panel { title, groups }).collect();
    let title = format!("{title}: mounts x bytes of a file");
    draw(run, "files", &title, "files per second", &BASELINES, &panels, 2)?;
    for (mounts, found) in &without {
        let what = format!("{mounts} {}, {} bytes", if *mounts == 1 { "mount" } else { "mounts" }, SIZES[1]);
        without_parts(run, &what, found)?;
    }
    Ok(())
}

fn without_parts(run: &mut Run, what: &str, found: &[Found]) -> Outcome {
    let (variants, unit) = (&PARTS, ("files per second", "per_s"));
    Parts { bench: "files", what, unit, ways: &PHASES, variants, found }.show(run)?;
    let mut sent = messages(&format!("Messages for each file, {what}"));
    for (variant, found) in variants.iter().zip(found) {
        sent.row(message_cells(run, variant.name, found));
    }
    run.show(&sent);
    Ok(())
}

fn messages(title: &str) -> Table {
    let heads = [
        "mounts, bytes, variant",
        "make and sync",
        "stat",
        "read",
        "remove",
        "batches",
        "files in a batch",
        "opened ahead",
    ];
    Table::new(title, &heads)
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

fn measure(run: &Run, cluster: &Mounts, bytes: u64, variants: &[Variant]) -> Outcome<Vec<Found>> {
    compare(run, cluster, &shape(run, bytes), variants)
}

/// All variants of a shape: files per second that are made and brought to the disk, looked at, read and removed.
pub fn compare(run: &Run, cluster: &Mounts, shape: &Shape, variants: &[Variant]) -> Outcome<Vec<Found>> {
    let mut processes = Tasks::start(&Job::all(shape, cluster.dirs(), "files"))?;
    let root = cluster.dirs()[0].join("files");
    let found = in_turn(run, cluster, &format!("files of {} bytes", shape.write_bytes), variants, || {
        make_trees(shape, &root)?;
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
        control::write(mount, "user.amphi.sync", "all", |_| "sync was refused".into())?;
    }
    let seconds = tasks::now_ns().saturating_sub(start_ns) as f64 / 1e9;
    Ok((together.calls() as f64 / seconds, since(&before, &counters(cluster.dirs())?)))
}

/// Files of all rounds.
fn files(run: &Run) -> f64 {
    (shape(run, 0).items * TASKS as u64 * run.pairs as u64) as f64
}

/// Messages of a phase for each file.
fn sent(run: &Run, found: &Found, phase: &str) -> f64 {
    times(&found.counted, &format!("{phase} server_calls")) as f64 / files(run)
}

fn message_cells(run: &Run, what: &str, found: &Found) -> Vec<String> {
    let mut line = vec![what.to_string()];
    line.extend(PHASES.iter().map(|p| digits(sent(run, found, p))));
    let batches = times(&found.counted, "make batch_requests");
    let batched = found.counted.get("make batch_files").map_or(0, |row| row.1.max(row.0));
    line.extend([digits(batches as f64 / run.pairs as f64), digits(batched as f64 / batches.max(1) as f64)]);
    let ahead = times(&found.counted, "read readahead_small_used") as f64 / files(run);
    line.push(format!("{:.0} %", 100.0 * ahead));
    line
}

fn row(run: &mut Run, table: &mut Table, messages: &mut Table, what: &str, found: &Found) {
    let mut line = vec![what.to_string()];
    line.extend(cells(&found.series));
    table.row(line);
    messages.row(message_cells(run, what, found));
    let mut finding = Finding::new("files", what);
    for (phase, series) in PHASES.iter().zip(&found.series) {
        let sent = sent(run, found, phase);
        finding = finding.series(format!("{phase}_per_s"), series).with(&format!("{phase}_messages"), sent);
    }
    run.report.findings.push(finding);
}
