//! `amphi bench overcache`: processes stream files larger than the cache, mount and processes together in a group whose
//! memory is limited (Figure 8 and Table 2 of the paper).

use super::parts::Parts;
use super::reasons::{TABLE_2, reasons};
use super::variant::{
    AUTO, AUTO_AT, BASELINES, DIRECT_AT, NO_CALLER_MEMORY, NO_LEARNING, NO_LOCALITY, NO_MEMORY, NO_OVERCACHE,
    NO_PIPELINE, SIZE_ALONE, VANILLA_AT, Variant,
};
use super::{Found, Sample, add, cells, clear, counted, draw, in_turn, medians};
use crate::Run;
use crate::memory_group::MemoryGroup;
use crate::mounted_cluster::{Mounts, Setup};
use crate::report::{Finding, Goal, Table, digits};
use crate::workload::Phase;
use crate::workload::ior::{Reorder, Shape};
use crate::workload::plot::Panel;
use crate::workload::tasks::Tasks;
use crate::workload::transfers::Calls;
use amphi_host::failure::Outcome;
use amphi_host::size::show;

/// Memory of the group that the mount and the processes run in; the mount's cache takes at most 3/8 of it. 16 processes
/// with 2 MiB and the mount use 467 MiB; in 384 MiB the kernel killed the mount.
const GROUP_BYTES: u64 = 512 << 20;
/// Bytes of all files together, at least: four times the cache.
const TOTAL_BYTES: u64 = 768 << 20;
/// Bytes of each file, at least: more than the cache.
const FILE_BYTES: u64 = 200 << 20;
const SIZES: [u64; 4] = [256 << 10, 512 << 10, 1 << 20, 2 << 20];
/// The size of the paper's Table 2; with 16 processes, as there, auto without each part would take as long as a third
/// of all the rest.
const PARTS_SIZE: u64 = 512 << 10;
/// A share of the cache for each of 8 files: the default, 1 GiB of a file, is more than the whole cache of this group.
const SHARE: Variant = Variant { name: "auto, 24 MiB of a file", set: &["hybrid.overcache_bytes=24M"] };
const PARTS: [Variant; 9] =
    [AUTO, NO_MEMORY, NO_CALLER_MEMORY, NO_OVERCACHE, SHARE, NO_LOCALITY, NO_LEARNING, NO_PIPELINE, SIZE_ALONE];

/// A mount and what runs on it.
struct Place {
    cluster: Mounts,
    group: MemoryGroup,
}

impl Place {
    fn start(run: &Run) -> Outcome<Place> {
        let group = MemoryGroup::make("amphi-bench-overcache", GROUP_BYTES)?;
        let setup = Setup { mounts: 1, group: Some(&group), own_reads: true, ..Setup::default() };
        let cluster = Mounts::start(&run.dir.join("overcache"), &setup)?;
        Ok(Place { cluster, group })
    }

    /// Errors: also that the kernel killed processes of the group.
    fn stop(self) -> Outcome {
        self.group.check()?;
        self.cluster.stop()?;
        self.group.remove()
    }
}

/// Measures all sizes for few and many processes.
pub fn run(run: &mut Run) -> Outcome {
    let place = Place::start(run)?;
    let (sizes, tasks): (&[u64], &[usize]) = match run.quick {
        true => (&[PARTS_SIZE], &[2]),
        false => (&SIZES, &[2, 4, 8, 16]),
    };
    let mut table = Table::new(
        format!(
            "Streams of {} and more, {} in all or more, mount and processes in a memory group of {} (MiB/s, median and range)",
            show(FILE_BYTES),
            show(TOTAL_BYTES),
            show(GROUP_BYTES)
        ),
        &["streams and transfer", "vanilla", "direct", "auto", "fixed 512 KiB", "auto / better", "goal"],
    );
    let (mut all, mut panels) = (Vec::new(), Vec::new());
    for &tasks in tasks {
        let mut groups: [Vec<_>; 2] = Default::default();
        for &transfer in sizes {
            let what = format!("{tasks} x {}", show(transfer));
            if !run.wants(&what) {
                continue;
            }
            let found = measure(run, &place, tasks, transfer, &BASELINES)?;
            for (way, name) in ["write", "read"].into_iter().enumerate() {
                row(run, &mut table, &format!("{what} {name}"), way, &found);
                groups[way].push((show(transfer), medians(&found, way)));
            }
            all.push((what, found));
        }
        for (groups, name) in groups.into_iter().zip(["write", "read"]).filter(|(groups, _)| !groups.is_empty()) {
            panels.push(Panel { title: format!("{tasks} processes, {name}"), groups });
        }
    }
    run.show(&table);
    let rows: Vec<_> = all.iter().map(|(what, found)| (what.clone(), &found[AUTO_AT].counted)).collect();
    let title = "Why requests of auto went which way, all rounds (Table 2 of the paper)";
    run.show(&reasons(title, &TABLE_2, &["write", "read"], &rows));
    let title = format!("Streams larger than the cache, in {} of memory", show(GROUP_BYTES));
    draw(run, "overcache", &title, "MiB/s", &BASELINES, &panels, 2)?;
    without_parts(run, &place)?;
    if let Some(peak) = place.group.peak() {
        println!("Mount and processes used at most {} MiB of the group's {}.", peak >> 20, show(GROUP_BYTES));
    }
    place.stop()
}

/// Errors: this machine has no memory groups, or this user may not make one.
pub fn can_limit_memory() -> Outcome {
    MemoryGroup::make("amphi-bench-probe", GROUP_BYTES)?.remove()
}

/// All variants of these sizes, in a group and on a cluster of their own.
pub fn by_size(run: &Run, tasks: usize, sizes: &[u64], variants: &[Variant]) -> Outcome<Vec<(u64, Vec<Found>)>> {
    let place = Place::start(run)?;
    let found = sizes.iter().map(|size| Ok((*size, measure(run, &place, tasks, *size, variants)?))).collect();
    place.stop()?;
    found
}

fn without_parts(run: &mut Run, place: &Place) -> Outcome {
    let tasks = if run.quick { 2 } else { 8 };
    let what = format!("{tasks} x {}", show(PARTS_SIZE));
    if !run.wants(&format!("{what} without each part")) {
        return Ok(());
    }
    let found = measure(run, place, tasks, PARTS_SIZE, &PARTS)?;
    let parts = Parts {
        bench: "overcache",
        what: &what,
        unit: ("MiB/s", "mib_s"),
        ways: &["write", "read"],
        variants: &PARTS,
        found: &found,
    };
    parts.show_reasons(run, &TABLE_2, &["write", "read"]);
    parts.show(run)
}

fn measure(run: &Run, place: &Place, tasks: usize, transfer: u64, variants: &[Variant]) -> Outcome<Vec<Found>> {
    let total = if run.quick { TOTAL_BYTES / 2 } else { TOTAL_BYTES.max(FILE_BYTES * tasks as u64) };
    let block = total / tasks as u64 / transfer * transfer;
    let shape =
        Shape { tasks, block, transfer, segments: 1, file_per_process: true, random: None, reorder: Reorder::Next };
    let calls = Calls { fsync: true, ..Calls::default() };
    let cluster = &place.cluster;
    let jobs = shape.jobs(cluster.dirs(), "stream", calls);
    let mut processes = Tasks::start_behind(&place.group.enter(), &jobs)?;
    let what = format!("{tasks} streams of {}", show(transfer));
    let found = in_turn(run, cluster, &what, variants, || {
        clear(cluster, &mut processes)?;
        let (write, mut both) = counted(cluster, &mut processes, Phase::Write)?;
        let (read, more) = counted(cluster, &mut processes, Phase::Read)?;
        add(&mut both, more);
        Ok(Sample { values: vec![write.mib_s(), read.mib_s()], counted: both })
    });
    // A process that was killed looks like one that has ended by itself.
    place.group.check()?;
    let found = found?;
    processes.phase(Phase::Remove)?;
    processes.stop()?;
    Ok(found)
}

fn row(run: &mut Run, table: &mut Table, what: &str, way: usize, found: &[Found]) {
    let series: Vec<_> = found.iter().map(|f| f.series[way].clone()).collect();
    let value = series[AUTO_AT].over_better(&series[VANILLA_AT], &series[DIRECT_AT]).median();
    let goal = Goal::AtLeast(0.9);
    let mut cells_of = vec![what.to_string()];
    cells_of.extend(cells(&series));
    cells_of.extend([digits(value), goal.show(value)]);
    table.row(cells_of);
    let mut finding = Finding::new("overcache", what).goal(value, goal);
    for (variant, series) in BASELINES.iter().zip(&series) {
        finding = finding.series(format!("{}_mib_s", variant.key()), series);
    }
    for (name, (n, _)) in &found[AUTO_AT].counted {
        finding = finding.with(name, *n);
    }
    run.report.findings.push(finding);
}
