//! `amphi bench streams`: one process from 4 KiB to 256 MiB, aligned and off by 8 bytes (Figure 5 of the paper), and 16
//! processes from 256 KiB to 2 MiB (Figure 8), through one mount.
//!
//! Off by 8 bytes: transfers are 8 bytes longer than a round size, so that none but the first starts on a block.

use super::parts::Parts;
use super::reasons::{TABLE_2, reasons};
use super::variant::{
    AUTO, AUTO_AT, BASELINES, DIRECT_AT, NO_LEARNING, NO_LOCALITY, NO_MEMORY, NO_OVERCACHE, NO_PIPELINE,
    NO_READS_AHEAD, SIZE_ALONE, VANILLA_AT, Variant,
};
use super::{Found, Sample, add, cells, clear, counted, draw, in_turn, medians};
use crate::Run;
use crate::cluster::set_mode;
use crate::mounted_cluster::{Mounts, Setup};
use crate::report::{Finding, Goal, Table, digits};
use crate::workload::Phase;
use crate::workload::ior::{Reorder, Shape};
use crate::workload::plot::Panel;
use crate::workload::tasks::Tasks;
use crate::workload::transfers::Calls;
use amphi_host::failure::Outcome;

/// The parts that can affect one stream of large transfers.
const LARGE_PARTS: [Variant; 3] = [AUTO, NO_PIPELINE, NO_READS_AHEAD];
/// The parts that can affect many streams in the window.
const WINDOW_PARTS: [Variant; 8] =
    [AUTO, NO_MEMORY, NO_OVERCACHE, NO_LOCALITY, NO_LEARNING, NO_PIPELINE, NO_READS_AHEAD, SIZE_ALONE];
/// Bytes of a sample, unless that were more calls than `CALLS_MAX`.
const SAMPLE_BYTES: u64 = 128 << 20;
const CALLS_MAX: u64 = 2048;

/// Bytes of each of `tasks` streams of this transfer, in calls.
fn calls(tasks: usize, size: u64) -> u64 {
    match tasks {
        1 => SAMPLE_BYTES.min(size * CALLS_MAX).max(2 * size) / size,
        _ => (2 * SAMPLE_BYTES / tasks as u64 / size).max(4),
    }
}

/// Measures single streams, then many, then telling ones without each part.
pub fn run(run: &mut Run) -> Outcome {
    let cluster = Mounts::start(&run.dir.join("streams"), &Setup { mounts: 1, own_reads: true, ..Setup::default() })?;
    let (one, many): (&[u64], &[u64]) = match run.quick {
        true => (&[64 << 10, 4 << 20], &[512 << 10]),
        false => (
            &[4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20],
            &[256 << 10, 512 << 10, 1 << 20, 2 << 20],
        ),
    };
    let goal = Some(Goal::AtLeast(0.9));
    let (mut all, mut panels) = (Vec::new(), Vec::new());
    for (title, behind, tasks, sizes, off, goal) in [
        ("One stream, aligned", ", aligned", 1, one, 0, None),
        ("One stream, off by 8 bytes", ", off by 8 bytes", 1, one, 8, None),
        ("16 streams", "", 16, many, 0, goal),
    ] {
        let mut table = table(title);
        let mut groups: [Vec<_>; 2] = Default::default();
        for &size in sizes {
            let what = format!("{tasks} x {}{behind}", amphi_host::size::show(size));
            if !run.wants(&what) {
                continue;
            }
            let found = measure(run, &cluster, tasks, size + off, calls(tasks, size), &BASELINES)?;
            rows(run, &mut table, &what, &found, goal);
            (0..2).for_each(|way| groups[way].push((amphi_host::size::show(size), medians(&found, way))));
            all.push((what, found));
        }
        run.show(&table);
        for (groups, way) in groups.into_iter().zip(["write", "cold read"]).filter(|(groups, _)| !groups.is_empty()) {
            panels.push(Panel { title: format!("{title}, {way}"), groups });
        }
    }
    let rows: Vec<_> = all.iter().map(|(what, found)| (what.clone(), &found[AUTO_AT].counted)).collect();
    run.show(&reasons("Why requests of auto went which way, all rounds", &TABLE_2, &["write", "read"], &rows));
    draw(run, "streams", "Streams", "MiB/s", &BASELINES, &panels, 2)?;
    let large = if run.quick { 4 << 20 } else { 16 << 20 };
    without_parts(run, &cluster, 1, large, &LARGE_PARTS)?;
    without_parts(run, &cluster, 16, 512 << 10, &WINDOW_PARTS)?;
    cluster.stop()
}

fn without_parts(run: &mut Run, cluster: &Mounts, tasks: usize, size: u64, variants: &[Variant]) -> Outcome {
    let what = &format!("{tasks} x {}", amphi_host::size::show(size));
    if !run.wants(&format!("{what} without each part")) {
        return Ok(());
    }
    let found = &measure(run, cluster, tasks, size, calls(tasks, size), variants)?[..];
    let parts = Parts { bench: "streams", what, unit: ("MiB/s", "mib_s"), ways: &["write", "read"], variants, found };
    parts.show(run)?;
    parts.show_reasons(run, &TABLE_2, &["write", "read"]);
    Ok(())
}

fn table(title: &str) -> Table {
    Table::new(
        format!("{title}: MiB/s, writes to the end of fsync, reads cold (median and range)"),
        &["streams and transfer", "vanilla", "direct", "auto", "fixed 512 KiB", "auto / better", "goal"],
    )
}

/// All variants of one place: writes to the end of fsync, then cold reads.
pub fn measure(
    run: &Run,
    cluster: &Mounts,
    tasks: usize,
    transfer: u64,
    calls: u64,
    variants: &[Variant],
) -> Outcome<Vec<Found>> {
    let shape = Shape {
        tasks,
        block: transfer,
        transfer,
        segments: calls,
        file_per_process: true,
        random: None,
        reorder: Reorder::None,
    };
    let fsync = Calls { fsync: true, ..Calls::default() };
    let jobs = |name: &str| shape.jobs(cluster.dirs(), name, fsync);
    // Reads are of files that were written past the cache: nothing of them is in memory.
    let (mut writers, mut cold) = (Tasks::start(&jobs("written"))?, Tasks::start(&jobs("cold"))?);
    let what = format!("{tasks} x {}", amphi_host::size::show(transfer));
    let files: Vec<_> = (0..tasks).map(|r| cluster.dirs()[0].join(format!("cold.{r:08}"))).collect();
    cold.phase(Phase::Remove)?;
    cold.phase(Phase::Write)?;
    let found = in_turn(run, cluster, &what, variants, || {
        clear(cluster, &mut writers)?;
        let (write, mut both) = counted(cluster, &mut writers, Phase::Write)?;
        files.iter().try_for_each(|f| set_mode(f, "direct"))?;
        cold.phase(Phase::Write)?;
        files.iter().try_for_each(|f| set_mode(f, "auto"))?;
        let (read, more) = counted(cluster, &mut cold, Phase::Read)?;
        add(&mut both, more);
        Ok(Sample { values: vec![write.mib_s(), read.mib_s()], counted: both })
    })?;
    for mut tasks in [writers, cold] {
        tasks.phase(Phase::Remove)?;
        tasks.stop()?;
    }
    Ok(found)
}

fn rows(run: &mut Run, table: &mut Table, what: &str, found: &[Found], goal: Option<Goal>) {
    for (way, name) in ["write", "read"].into_iter().enumerate() {
        let series: Vec<_> = found.iter().map(|f| f.series[way].clone()).collect();
        let value = series[AUTO_AT].over_better(&series[VANILLA_AT], &series[DIRECT_AT]).median();
        let mut line = vec![format!("{what}, {name}")];
        line.extend(cells(&series));
        line.extend([digits(value), goal.map_or_else(|| "-".into(), |g| g.show(value))]);
        table.row(line);
        let mut finding = Finding::new("streams", format!("{what}, {name}"));
        for (variant, series) in BASELINES.iter().zip(&series) {
            finding = finding.series(format!("{}_mib_s", variant.key()), series);
        }
        run.report.findings.push(match goal {
            Some(goal) => finding.goal(value, goal),
            None => finding.value(value),
        });
    }
}
