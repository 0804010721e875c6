//! `amphi bench strided`: processes on several mounts write records of 47,008 bytes in turn into one file (IO500's ior-hard, Figure 11 of
//! the paper), and files of their own in large transfers (ior-easy, Figure 10).
//!
//! Both with all mounts on one machine and with each behind a link of its own. Each process reads what the process on the next mount
//! wrote. Writes are timed to the end of fsync.

use super::{
    AUTO, AUTO_NO_CONTENTION, AUTO_PAGE_LOCKS, AUTO_SIZE_ONLY, DIRECT, FIXED_512K, Found, Layout, Sample, VANILLA,
    Variant,
};
use super::{apply, cells, clear, counted, in_turn, layouts, reasons, times};
use crate::bench::Run;
use crate::bench::mounted_cluster::{Mounts, Setup};
use crate::bench::report::{Finding, Goal, Table, digits};
use crate::bench::workload::Phase;
use crate::bench::workload::ior::{Reorder, Shape};
use crate::bench::workload::plot::{Bars, bars};
use crate::bench::workload::tasks::Tasks;
use crate::bench::workload::transfers::Calls;
use crate::failure::Outcome;

/// Processes, each with a mount of its own.
const TASKS: usize = 4;
/// Bytes of a record of ior-hard.
const HARD_BYTES: u64 = 47_008;
/// Bytes of a transfer of ior-easy in the paper.
const EASY_BYTES: u64 = 16 << 20;
const HARD: [Variant; 7] = [VANILLA, DIRECT, AUTO, AUTO_NO_CONTENTION, AUTO_PAGE_LOCKS, AUTO_SIZE_ONLY, FIXED_512K];
const EASY: [Variant; 4] = [VANILLA, DIRECT, AUTO, FIXED_512K];

/// Measures both.
pub fn run(run: &mut Run) -> Outcome {
    for layout in layouts() {
        let setup = Setup { mounts: TASKS, link_mbit: layout.link_mbit, ..Setup::default() };
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
        let found = compare(run, &cluster, &what, &shape, &HARD)?;
        hard(run, &layout, &what, &shape, &found)?;
        let segments = if run.quick { 1 } else { 4 };
        let shape = Shape { block: EASY_BYTES, transfer: EASY_BYTES, segments, file_per_process: true, ..shape };
        let what = format!("ior-easy{}", layout.name);
        let found = compare(run, &cluster, &what, &shape, &EASY)?;
        let title = format!("ior-easy: a file for each process, transfers of 16 MiB, {}", layout.title);
        show(run, &title, &what, &shape, &EASY, &found);
        cluster.stop()?;
    }
    Ok(())
}

fn compare(run: &Run, cluster: &Mounts, what: &str, shape: &Shape, variants: &[Variant]) -> Outcome<Vec<Found>> {
    let calls = Calls { fsync: true, ..Calls::default() };
    let mut tasks = Tasks::start(&shape.jobs(cluster.dirs(), what, calls))?;
    let found = in_turn(run, what, variants, |variant| {
        apply(cluster, variant)?;
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

fn show(run: &mut Run, title: &str, what: &str, shape: &Shape, variants: &[Variant], found: &[Found]) {
    let mut table = Table::new(
        format!("{title}, {TASKS} processes on {TASKS} mounts (MiB/s, median and range)"),
        &["variant", "write", "read", "callbacks a record, write", "read", "lock requests a record, write"],
    );
    let records = (shape.tasks as u64 * shape.bytes() / shape.transfer * run.pairs as u64) as f64;
    for (variant, found) in variants.iter().zip(found) {
        let mut row = vec![variant.name.to_string()];
        row.extend(cells(&found.series));
        for name in ["lock_callback", "lock_callback while reading", "lock_enqueue"] {
            row.push(format!("{:.3}", times(&found.counted, name) as f64 / records));
        }
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
    let rows: Vec<_> = variants.iter().zip(found).map(|(v, f)| (v.name.to_string(), &f.counted)).collect();
    run.show(&reasons(&format!("{what}: why requests went which way, all rounds"), &rows));
}

fn hard(run: &mut Run, layout: &Layout, what: &str, shape: &Shape, found: &[Found]) -> Outcome {
    let title = format!("ior-hard: records of 47,008 bytes in turn in one file, {}", layout.title);
    show(run, &title, what, shape, &HARD, found);
    let (vanilla, direct, auto) = (&found[0], &found[1], &found[2]);
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
    let Some(path) = run.picture(&what.replace(", ", "-")) else { return Ok(()) };
    let names: Vec<String> = HARD.iter().map(|v| v.name.to_string()).collect();
    let values = |way: usize| found.iter().map(|f| f.series[way].median()).collect::<Vec<f64>>();
    let groups = [("write".to_string(), values(0)), ("read".to_string(), values(1))];
    let title = format!("Records of 47,008 bytes in one file, {}", layout.title);
    bars(&Bars { title: &title, unit: "MiB/s", names: &names, groups: &groups }, &path)
}
