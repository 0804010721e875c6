//! `amphi bench mixed`: shared files written in the sizes and places of two simulations (sections 4.3 and 4.4 of the
//! paper), each process with a mount of its own.
//!
//! VPIC-like: a header of 2,104 bytes puts every piece off any alignment; each step each process writes a piece of each
//! of eight variables. Nek5000-like: pieces in the proportions of Table 4: 128 of at least 2 MiB, 132 in the window,
//! 372 small ones, at places that only depend on the number of processes.

use super::parts::Parts;
use super::reasons::{TABLES_3_AND_4, reasons};
use super::variant::{
    AUTO, AUTO_AT, BASELINES, NO_CONTENTION, NO_LEARNING, NO_LOCALITY, NO_LOCKS_AHEAD, NO_MEMORY, NO_PIPELINE,
    PAGE_LOCKS, SIZE_ALONE, VANILLA_AT, Variant,
};
use super::{Found, Sample, cells, clear, counted, draw, in_turn, layouts, medians};
use crate::Run;
use crate::mounted_cluster::{Mounts, Setup};
use crate::report::{Finding, Table, digits};
use crate::workload::plot::Panel;
use crate::workload::tasks::Tasks;
use crate::workload::transfers::{Calls, Job, Part};
use crate::workload::{self, Phase};
use amphi_host::failure::Outcome;

/// Processes, each with a mount of its own.
pub const TASKS: usize = 4;
/// Bytes before the data of an HDF5 file in the paper.
const HEADER_BYTES: u64 = 2104;
/// Variables of a particle.
const VARIABLES: u64 = 8;
const PARTS: [Variant; 9] =
    [AUTO, NO_CONTENTION, NO_LOCKS_AHEAD, NO_PIPELINE, PAGE_LOCKS, NO_MEMORY, NO_LOCALITY, NO_LEARNING, SIZE_ALONE];

/// Offset and length of each call of each process.
pub type Pieces = Vec<Vec<(u64, u64)>>;

/// A dump of particles: `steps` times eight variables, of each a piece of `piece` bytes for each process.
pub fn vpic(piece: u64, steps: u64) -> Pieces {
    let tasks = TASKS as u64;
    let at =
        |step: u64, variable: u64, rank: u64| HEADER_BYTES + ((step * VARIABLES + variable) * tasks + rank) * piece;
    let of = |rank: u64| {
        let header = (rank == 0).then_some((0, HEADER_BYTES));
        let data = (0..steps).flat_map(move |s| (0..VARIABLES).map(move |v| (at(s, v, rank), piece)));
        header.into_iter().chain(data).collect()
    };
    (0..tasks).map(of).collect()
}

/// Steps of a flow: each process writes its small, middle and large vectors, all one after the other in the file.
pub fn nek5000(steps: u64) -> Pieces {
    // 33 in the window and 93 small ones to 32 large ones; in four rounds of a step so that sizes alternate.
    let round: Vec<u64> = (0..8)
        .flat_map(|i| {
            let small = [1840, 4400, 12_008];
            let few: &[u64] = if i % 3 == 2 { &small[..2] } else { &small };
            let middle: &[u64] = if i == 7 { &[98_312, 310_024] } else { &[98_312] };
            let large = [2_097_160];
            [few, middle, &large].concat()
        })
        .collect();
    let mut pieces: Pieces = vec![Vec::new(); TASKS];
    let mut at = 136;
    for _ in 0..steps {
        for &len in &round {
            for of in &mut pieces {
                of.push((at, len));
                at += len;
            }
        }
    }
    pieces
}

/// A workload by its name, and whether it is also measured without each part of auto.
type Workload = (&'static str, Pieces, bool);

/// Measures all.
pub fn run(run: &mut Run) -> Outcome {
    let steps = |full: u64| if run.quick { full.div_ceil(8) } else { full };
    let workloads: [Workload; 3] = [
        ("VPIC-like, 32 KiB", vpic(32 << 10, steps(96)), true),
        ("VPIC-like, 1 MiB", vpic(1 << 20, steps(4)), false),
        ("Nek5000-like", nek5000(steps(2)), true),
    ];
    for layout in layouts() {
        let setup = Setup { mounts: TASKS, link_mbit: layout.link_mbit, own_reads: true, ..Setup::default() };
        let cluster = Mounts::start(&run.dir.join(format!("mixed{}", layout.name.replace(", ", "-"))), &setup)?;
        let title = format!("Shared files of simulations, {TASKS} processes on {TASKS} mounts, {}", layout.title);
        let mut table = Table::new(
            format!("{title} (MiB/s to the end of fsync, median and range)"),
            &["workload", "vanilla", "direct", "auto", "fixed 512 KiB", "auto / vanilla"],
        );
        let (mut all, mut groups): (Vec<_>, [Vec<_>; 2]) = Default::default();
        for (what, pieces, _) in &workloads {
            let name = format!("{what}{}", layout.name);
            let found = measure(run, &cluster, &name, pieces, &BASELINES)?;
            for (way, direction) in ["write", "read"].into_iter().enumerate() {
                row(run, &mut table, &format!("{name}, {direction}"), way, &found);
                groups[way].push((what.to_string(), medians(&found, way)));
            }
            all.push((name, found));
        }
        run.show(&table);
        let rows: Vec<_> = all.iter().map(|(what, found)| (what.clone(), &found[AUTO_AT].counted)).collect();
        let why = "Why writes of auto went which way, all rounds (Tables 3 and 4 of the paper)";
        run.show(&reasons(why, &TABLES_3_AND_4, &["write"], &rows));
        let panels: Vec<Panel> = ["write", "read"]
            .map(String::from)
            .into_iter()
            .zip(groups)
            .map(|(title, groups)| Panel { title, groups })
            .collect();
        draw(run, &format!("mixed{}", layout.name), &title, "MiB/s", &BASELINES, &panels, 1)?;
        for (what, pieces, _) in workloads.iter().filter(|w| w.2) {
            without_parts(run, &cluster, &format!("{what}{}", layout.name), pieces)?;
        }
        cluster.stop()?;
    }
    Ok(())
}

fn without_parts(run: &mut Run, cluster: &Mounts, what: &str, pieces: &Pieces) -> Outcome {
    let found = measure(run, cluster, what, pieces, &PARTS)?;
    let (variants, found) = (&PARTS, &found[..]);
    let parts = Parts { bench: "mixed", what, unit: ("MiB/s", "mib_s"), ways: &["write", "read"], variants, found };
    parts.show(run)?;
    parts.show_reasons(run, &TABLES_3_AND_4, &["write"]);
    Ok(())
}

/// All variants of a workload: writes to the end of fsync, then each process reads what the next one wrote. The
/// counters are those of the writes.
pub fn measure(run: &Run, cluster: &Mounts, what: &str, pieces: &Pieces, variants: &[Variant]) -> Outcome<Vec<Found>> {
    let calls = Calls { fsync: true, ..Calls::default() };
    let part =
        |rank: usize, of: usize| Part { file: cluster.dirs()[rank].join("dump"), pieces: pieces[of].clone(), key: 0 };
    let job =
        |rank: usize| Job { write: part(rank, rank), read: part(rank, (rank + 1) % TASKS), removes: rank == 0, calls };
    let jobs: Vec<_> = (0..TASKS).map(|rank| workload::Job::Transfers(job(rank))).collect();
    let mut tasks = Tasks::start(&jobs)?;
    let found = in_turn(run, cluster, what, variants, || {
        clear(cluster, &mut tasks)?;
        let (write, written) = counted(cluster, &mut tasks, Phase::Write)?;
        let (read, _) = counted(cluster, &mut tasks, Phase::CheckRead)?;
        Ok(Sample { values: vec![write.mib_s(), read.mib_s()], counted: written })
    })?;
    tasks.phase(Phase::Remove)?;
    tasks.stop()?;
    Ok(found)
}

fn row(run: &mut Run, table: &mut Table, what: &str, way: usize, found: &[Found]) {
    let series: Vec<_> = found.iter().map(|f| f.series[way].clone()).collect();
    let ratio = series[AUTO_AT].over(&series[VANILLA_AT]).median();
    let mut line = vec![what.to_string()];
    line.extend(cells(&series));
    line.push(digits(ratio));
    table.row(line);
    let mut finding = Finding::new("mixed", what).value(ratio);
    for (variant, series) in BASELINES.iter().zip(&series) {
        finding = finding.series(format!("{}_mib_s", variant.key()), series);
    }
    for (name, (n, _)) in &found[AUTO_AT].counted {
        finding = finding.with(name, *n);
    }
    run.report.findings.push(finding);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the pieces of all processes cover a file without gaps or overlaps, in the proportions of the paper.
    /// Method: all pieces sorted; counts by size.
    #[test]
    fn pieces_cover_the_file() {
        for (pieces, start) in [(vpic(32 << 10, 3), 0), (nek5000(4), 136)] {
            let mut all: Vec<(u64, u64)> = pieces.into_iter().flatten().collect();
            all.sort_unstable();
            let end = all.iter().fold(start, |at, &(offset, len)| {
                assert_eq!(offset, at);
                offset + len
            });
            assert!(end > 0);
        }
        let all: Vec<u64> = nek5000(4).concat().iter().map(|p| p.1).collect();
        let count = |of: &dyn Fn(u64) -> bool| all.iter().filter(|l| of(**l)).count() as f64;
        let (small, large) = (count(&|l| l < 32 << 10), count(&|l| l >= 2 << 20));
        let window = all.len() as f64 - small - large;
        assert!((window / large - 132.0 / 128.0).abs() < 0.15, "{window} {large}");
        assert!((small / large - 372.281 / 128.0).abs() < 0.2, "{small} {large}");
        assert!(vpic(1 << 20, 1).concat().iter().skip(1).all(|p| p.0 % 4096 != 0));
    }
}
