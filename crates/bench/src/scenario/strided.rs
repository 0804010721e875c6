//! `amphi bench strided`: processes on several mounts write records of 47,008 bytes in turn into one file (IO500's
//! ior-hard, Figure 11 of the paper), and files of their own in large transfers (ior-easy, Figure 10).
//!
//! Both with all mounts on one machine and with each behind a link of its own. Each process reads the data that the
//! process on the next mount wrote. Writes are timed to the end of fsync.

use super::parts::Parts;
use super::reasons::{TABLES_3_AND_4, reasons};
use super::variant::{
    AUTO, AUTO_AT, BASELINES, DIRECT_AT, NO_CONTENTION, NO_LEARNING, NO_LOCALITY, NO_LOCKS_AHEAD, NO_MEMORY,
    NO_OVERCACHE, NO_PIPELINE, NO_READS_AHEAD, PAGE_LOCKS, SIZE_ALONE, VANILLA_AT, Variant,
};
use super::{Found, Layout, Sample, cells, clear, counted, draw, in_turn, layouts, medians, times};
use crate::Run;
use crate::mounted_cluster::{Mounts, Setup};
use crate::report::{Finding, Goal, Table, digits};
use crate::workload::Phase;
use crate::workload::ior::{Reorder, Shape};
use crate::workload::plot::Panel;
use crate::workload::tasks::Tasks;
use crate::workload::transfers::Calls;
use amphi_host::failure::Outcome;

/// Processes, each with a mount of its own.
const TASKS: usize = 4;
/// Bytes of a record of ior-hard.
const HARD_BYTES: u64 = 47_008;
/// Bytes of a transfer of ior-easy in the paper.
const EASY_BYTES: u64 = 16 << 20;
/// The parts that can affect records that several mounts write in turn.
const HARD_PARTS: [Variant; 9] =
    [AUTO, NO_CONTENTION, NO_LOCKS_AHEAD, PAGE_LOCKS, NO_MEMORY, NO_OVERCACHE, NO_LOCALITY, NO_LEARNING, SIZE_ALONE];
/// The parts that can affect large transfers.
const EASY_PARTS: [Variant; 3] = [AUTO, NO_PIPELINE, NO_READS_AHEAD];
/// Numbers of a sample.
const WAYS: [&str; 2] = ["write", "read"];

/// Measures both.
pub fn run(run: &mut Run) -> Outcome {
    for layout in layouts() {
        let setup = Setup { mounts: TASKS, link_mbit: layout.link_mbit, own_reads: true, ..Setup::default() };
        let cluster = Mounts::start(&run.dir.join(format!("strided{}", layout.name.replace(", ", "-"))), &setup)?;
        let shape = Shape {
            tasks: TASKS,
            block: HARD_BYTES,
            transfer: HARD_BYTES,
            segments: if run.quick { 100 } else { 1000 },
            file_per_process: false,
            random: None,
            reorder: Reorder::Next,
        };
        let what = format!("ior-hard{}", layout.name);
        let found = compare(run, &cluster, &what, &shape, &BASELINES)?;
        hard(run, &layout, &what, &shape, &found)?;
        without_parts(run, &cluster, &what, &shape, &HARD_PARTS)?;
        let segments = if run.quick { 1 } else { 4 };
        let shape = Shape { block: EASY_BYTES, transfer: EASY_BYTES, segments, file_per_process: true, ..shape };
        let what = format!("ior-easy{}", layout.name);
        let found = compare(run, &cluster, &what, &shape, &BASELINES)?;
        let title = format!("ior-easy: a file for each process, transfers of 16 MiB, {}", layout.title);
        show(run, &title, &what, &shape, &found);
        picture(run, &what, &title, &found)?;
        without_parts(run, &cluster, &what, &shape, &EASY_PARTS)?;
        cluster.stop()?;
    }
    Ok(())
}

fn without_parts(run: &mut Run, cluster: &Mounts, what: &str, shape: &Shape, variants: &[Variant]) -> Outcome {
    let found = &compare(run, cluster, what, shape, variants)?[..];
    let parts = Parts { bench: "strided", what, unit: ("MiB/s", "mib_s"), ways: &WAYS, variants, found };
    parts.show(run)?;
    let title = format!("Auto without each part, {what}: locks");
    run.show(&locks(run, &title, shape, variants, found));
    parts.show_reasons(run, &TABLES_3_AND_4, &WAYS);
    Ok(())
}

/// Callbacks and requests of locks for each record.
fn locks(run: &Run, title: &str, shape: &Shape, variants: &[Variant], found: &[Found]) -> Table {
    let heads = ["variant", "callbacks a record, write", "read", "lock requests a record, write", "granted ahead"];
    let mut table = Table::new(title, &heads);
    for (variant, found) in variants.iter().zip(found) {
        let mut row = vec![variant.name.to_string()];
        row.extend(for_a_record(run, shape, found));
        table.row(row);
    }
    table
}

fn for_a_record(run: &Run, shape: &Shape, found: &Found) -> Vec<String> {
    let records = (shape.tasks as u64 * shape.bytes() / shape.transfer * run.pairs as u64) as f64;
    let of = |name: &&str| format!("{:.3}", times(&found.counted, name) as f64 / records);
    ["lock_callback", "lock_callback while reading", "lock_enqueue", "lock_ahead_granted"].iter().map(of).collect()
}

/// All variants of a shape: writes to the end of fsync, then reads. Counters of locks while reading have the words
/// ` while reading` behind their names.
pub fn compare(run: &Run, cluster: &Mounts, what: &str, shape: &Shape, variants: &[Variant]) -> Outcome<Vec<Found>> {
    let calls = Calls { fsync: true, ..Calls::default() };
    let mut tasks = Tasks::start(&shape.jobs(cluster.dirs(), what, calls))?;
    let found = in_turn(run, cluster, what, variants, || {
        clear(cluster, &mut tasks)?;
        let (write, mut written) = counted(cluster, &mut tasks, Phase::Write)?;
        let (read, read_counts) = counted(cluster, &mut tasks, Phase::Read)?;
        for (name, row) in read_counts {
            let name = if name.starts_with("lock_") { format!("{name} while reading") } else { name };
            let sum = written.entry(name).or_default();
            *sum = (sum.0 + row.0, sum.1 + row.1);
        }
        Ok(Sample { values: vec![write.mib_s(), read.mib_s()], counted: written })
    })?;
    tasks.phase(Phase::Remove)?;
    tasks.stop()?;
    Ok(found)
}

fn show(run: &mut Run, title: &str, what: &str, shape: &Shape, found: &[Found]) {
    let mut table = Table::new(
        format!("{title}, {TASKS} processes on {TASKS} mounts (MiB/s, median and range)"),
        &[
            "variant",
            "write",
            "read",
            "callbacks a record, write",
            "read",
            "lock requests a record, write",
            "granted ahead",
        ],
    );
    for (variant, found) in BASELINES.iter().zip(found) {
        let mut row = vec![variant.name.to_string()];
        row.extend(cells(&found.series));
        row.extend(for_a_record(run, shape, found));
        table.row(row);
        let mut finding = Finding::new("strided", format!("{what}, {}", variant.name))
            .with("tasks", shape.tasks)
            .with("transfer_bytes", shape.transfer)
            .with("segments", shape.segments)
            .series("write_mib_s", &found.series[0])
            .series("read_mib_s", &found.series[1]);
        for (name, (n, _)) in &found.counted {
            finding = finding.with(name, *n);
        }
        run.report.findings.push(finding);
    }
    run.show(&table);
    let rows: Vec<_> = BASELINES.iter().zip(found).map(|(v, f)| (v.name.to_string(), &f.counted)).collect();
    let title = format!("{what}: why requests went which way, all rounds");
    run.show(&reasons(title, &TABLES_3_AND_4, &WAYS, &rows));
}

fn hard(run: &mut Run, layout: &Layout, what: &str, shape: &Shape, found: &[Found]) -> Outcome {
    let title = format!("ior-hard: records of 47,008 bytes in turn in one file, {}", layout.title);
    show(run, &title, what, shape, found);
    let (vanilla, direct, auto) = (&found[VANILLA_AT], &found[DIRECT_AT], &found[AUTO_AT]);
    let mut table = Table::new(format!("{what}: goals"), &["what", "ratio", "goal"]);
    let writes = auto.series[0].over(&vanilla.series[0]).median();
    let reads = auto.series[1].over_better(&vanilla.series[1], &direct.series[1]).median();
    for (name, value, goal) in [
        ("write, auto / vanilla", writes, Goal::AtLeast(1.3)),
        ("read, auto / better of vanilla and direct", reads, Goal::AtLeast(0.9)),
    ] {
        table.row(vec![name.into(), digits(value), goal.show(value)]);
        run.report.findings.push(Finding::new("strided", format!("{what}, {name}")).goal(value, goal));
    }
    run.show(&table);
    picture(run, what, &title, found)
}

fn picture(run: &Run, what: &str, title: &str, found: &[Found]) -> Outcome {
    let groups = WAYS.iter().enumerate().map(|(way, name)| (name.to_string(), medians(found, way))).collect();
    draw(run, what, title, "MiB/s", &BASELINES, &[Panel { title: String::new(), groups }], 1)
}
