//! `amphi bench overcache`: processes stream files larger than the cache, in a mount whose memory is limited (Figure 8 and Table 2 of the
//! paper).

use super::{AUTO, AUTO_NO_LOCALITY, AUTO_NO_MEMORY, DIRECT, Found, Sample, Variant};
use super::{add, apply, cells, clear, counted, in_turn, reasons};
use crate::bench::Run;
use crate::bench::memory_group::MemoryGroup;
use crate::bench::mounted_cluster::{Mounts, Setup};
use crate::bench::report::{Finding, Goal, Table, digits};
use crate::bench::workload::Phase;
use crate::bench::workload::ior::{Reorder, Shape};
use crate::bench::workload::tasks::Tasks;
use crate::bench::workload::transfers::Calls;
use crate::failure::Outcome;

/// Memory of the group that the mount runs in; its cache takes at most 3/8 of it.
const GROUP_BYTES: u64 = 512 << 20;
/// Bytes of all files together, at least: four times the cache.
const TOTAL_BYTES: u64 = 768 << 20;
/// Bytes of each file, at least: more than the cache.
const FILE_BYTES: u64 = 208 << 20;
const BUFFERED: Variant = Variant { name: "buffered", set: &["hybrid.mode=buffered"] };
const VARIANTS: [Variant; 5] = [BUFFERED, DIRECT, AUTO, AUTO_NO_MEMORY, AUTO_NO_LOCALITY];

/// Measures all sizes for few and many processes.
pub fn run(run: &mut Run) -> Outcome {
    let group = MemoryGroup::make("amphi-bench-overcache", GROUP_BYTES)?;
    let cluster =
        Mounts::start(&run.dir.join("overcache"), &Setup { mounts: 1, group: Some(&group), ..Setup::default() })?;
    let (sizes, tasks): (&[u64], &[usize]) = match run.quick {
        true => (&[512 << 10], &[2]),
        false => (&[256 << 10, 512 << 10, 1 << 20, 2 << 20], &[2, 16]),
    };
    let mut table = Table::new(
        format!(
            "Streams of {} and more, {} in all or more, the mount in a memory group of {} (MiB/s, median and range)",
            crate::size::show(FILE_BYTES),
            crate::size::show(TOTAL_BYTES),
            crate::size::show(GROUP_BYTES)
        ),
        &["streams and transfer", "buffered", "direct", "auto", "no memory", "no locality", "auto / better", "goal"],
    );
    let mut all = Vec::new();
    for &tasks in tasks {
        for &transfer in sizes {
            let found = measure(run, &cluster, tasks, transfer)?;
            for (way, name) in ["write", "read"].into_iter().enumerate() {
                let what = format!("{tasks} x {} {name}", crate::size::show(transfer));
                row(run, &mut table, &what, way, &found);
            }
            all.push((format!("{tasks} x {}", crate::size::show(transfer)), found));
        }
    }
    run.show(&table);
    let rows: Vec<_> = all.iter().map(|(what, found)| (what.clone(), &found[2].counted)).collect();
    run.show(&reasons("Why requests of auto went which way, all rounds (Table 2 of the paper)", &rows));
    cluster.stop()?;
    group.remove()
}

fn measure(run: &Run, cluster: &Mounts, tasks: usize, transfer: u64) -> Outcome<Vec<Found>> {
    let total = if run.quick { TOTAL_BYTES / 2 } else { TOTAL_BYTES.max(FILE_BYTES * tasks as u64) };
    let block = total / tasks as u64 / transfer * transfer;
    let shape =
        Shape { tasks, block, transfer, segments: 1, file_per_process: true, random: None, reorder: Reorder::Next };
    let calls = Calls { fsync: true, ..Calls::default() };
    let mut processes = Tasks::start(&shape.jobs(cluster.dirs(), "stream", calls))?;
    let what = format!("{tasks} streams of {}", crate::size::show(transfer));
    let found = in_turn(run, &what, &VARIANTS, |variant| {
        apply(cluster, variant)?;
        clear(cluster, &mut processes)?;
        let (write, mut both) = counted(cluster, &mut processes, Phase::Write)?;
        let (read, more) = counted(cluster, &mut processes, Phase::Read)?;
        add(&mut both, more);
        Ok(Sample { values: vec![write.mib_s(), read.mib_s()], counted: both })
    })?;
    processes.phase(Phase::Remove)?;
    processes.stop()?;
    Ok(found)
}

fn row(run: &mut Run, table: &mut Table, what: &str, way: usize, found: &[Found]) {
    let series: Vec<_> = found.iter().map(|f| f.series[way].clone()).collect();
    let value = series[2].over_better(&series[0], &series[1]).median();
    let goal = Goal::AtLeast(0.9);
    let mut cells_of = vec![what.to_string()];
    cells_of.extend(cells(&series));
    cells_of.extend([digits(value), goal.show(value)]);
    table.row(cells_of);
    let mut finding = Finding::new("overcache", what).goal(value, goal);
    for (variant, series) in VARIANTS.iter().zip(&series) {
        finding = finding.series(format!("{}_mib_s", variant.name.replace([' ', ','], "_")), series);
    }
    for (name, (n, _)) in &found[2].counted {
        finding = finding.with(name, *n);
    }
    run.report.findings.push(finding);
}
