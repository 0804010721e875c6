//! `amphi bench streams`: one process from 4 KiB to 256 MiB, aligned and off by 8 bytes (Figure 5 of the paper), and 16 processes from
//! 256 KiB to 2 MiB (Figure 8), through one mount.
//!
//! Off by 8 bytes: transfers are 8 bytes longer than a round size, so that none but the first starts on a block.

use super::{AUTO, DIRECT, FIXED_512K, Found, Sample, Variant};
use super::{add, apply, cells, clear, counted, in_turn, reasons};
use crate::bench::Run;
use crate::bench::cluster::set_mode;
use crate::bench::mounted_cluster::{Mounts, Setup};
use crate::bench::report::{Finding, Goal, Table, digits};
use crate::bench::workload::Phase;
use crate::bench::workload::ior::{Reorder, Shape};
use crate::bench::workload::tasks::Tasks;
use crate::bench::workload::transfers::Calls;
use crate::failure::Outcome;

const BUFFERED: Variant = Variant { name: "buffered", set: &["hybrid.mode=buffered"] };
const VARIANTS: [Variant; 4] = [BUFFERED, DIRECT, AUTO, FIXED_512K];
/// Bytes of a sample, unless that were more calls than `CALLS_MAX`.
const SAMPLE_BYTES: u64 = 128 << 20;
const CALLS_MAX: u64 = 2048;

/// Measures single streams, then many.
pub fn run(run: &mut Run) -> Outcome {
    let cluster = Mounts::start(&run.dir.join("streams"), &Setup { mounts: 1, ..Setup::default() })?;
    let sizes: &[u64] = match run.quick {
        true => &[64 << 10, 4 << 20],
        false => &[4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20],
    };
    let mut all = Vec::new();
    for (title, off) in [("aligned", 0), ("off by 8 bytes", 8)] {
        let mut table = table(&format!("One stream, {title}"));
        for &size in sizes {
            let bytes = SAMPLE_BYTES.min(size * CALLS_MAX).max(2 * size);
            let found = measure(run, &cluster, 1, size + off, bytes / size)?;
            let what = format!("1 x {}, {title}", crate::size::show(size));
            rows(run, &mut table, &what, &found, None);
            all.push((what, found));
        }
        run.show(&table);
    }
    let sizes: &[u64] = match run.quick {
        true => &[512 << 10],
        false => &[256 << 10, 512 << 10, 1 << 20, 2 << 20],
    };
    let mut table = table("16 streams");
    for &size in sizes {
        let found = measure(run, &cluster, 16, size, (2 * SAMPLE_BYTES / 16 / size).max(4))?;
        let what = format!("16 x {}", crate::size::show(size));
        rows(run, &mut table, &what, &found, Some(Goal::AtLeast(0.9)));
        all.push((what, found));
    }
    run.show(&table);
    let rows: Vec<_> = all.iter().map(|(what, found)| (what.clone(), &found[2].counted)).collect();
    run.show(&reasons("Why requests of auto went which way, all rounds", &rows));
    cluster.stop()
}

fn table(title: &str) -> Table {
    Table::new(
        format!("{title}: MiB/s, writes to the end of fsync, reads cold (median and range)"),
        &["streams and transfer", "buffered", "direct", "auto", "fixed 512 KiB", "auto / better", "goal"],
    )
}

fn measure(run: &Run, cluster: &Mounts, tasks: usize, transfer: u64, calls: u64) -> Outcome<Vec<Found>> {
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
    let what = format!("{tasks} x {}", crate::size::show(transfer));
    let files: Vec<_> = (0..tasks).map(|r| cluster.dirs()[0].join(format!("cold.{r:08}"))).collect();
    cold.phase(Phase::Remove)?;
    cold.phase(Phase::Write)?;
    let found = in_turn(run, &what, &VARIANTS, |variant| {
        apply(cluster, variant)?;
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
        let value = series[2].over_better(&series[0], &series[1]).median();
        let mut line = vec![format!("{what}, {name}")];
        line.extend(cells(&series));
        line.extend([digits(value), goal.map_or_else(|| "-".into(), |g| g.show(value))]);
        table.row(line);
        let mut finding = Finding::new("streams", format!("{what}, {name}"));
        for (variant, series) in VARIANTS.iter().zip(&series) {
            finding = finding.series(format!("{}_mib_s", variant.name.replace(' ', "_")), series);
        }
        run.report.findings.push(match goal {
            Some(goal) => finding.goal(value, goal),
            None => finding.value(value),
        });
    }
}
