//! `amphi bench mixed`: shared files written in the sizes and places of two simulations (sections 4.3 and 4.4 of the paper), each process
//! with a mount of its own.
//!
//! VPIC-like: a header of 2,104 bytes puts every piece off any alignment; each step each process writes a piece of each of eight
//! variables. Nek5000-like: pieces in the proportions of Table 4: 128 of at least 2 MiB, 132 in the window, 372 small ones, at places
//! that only depend on the number of processes.

use super::{AUTO, AUTO_NO_CONTENTION, DIRECT, FIXED_512K, Found, Sample, VANILLA, Variant};
use super::{apply, cells, clear, counted, in_turn, layouts, reasons};
use crate::bench::Run;
use crate::bench::mounted_cluster::{Mounts, Setup};
use crate::bench::report::{Finding, Table, digits};
use crate::bench::workload::tasks::Tasks;
use crate::bench::workload::transfers::{Calls, Job, Part};
use crate::bench::workload::{self, Phase};
use crate::failure::Outcome;

/// Processes, each with a mount of its own.
const TASKS: usize = 4;
/// Bytes before the data of an HDF5 file in the paper.
const HEADER_BYTES: u64 = 2104;
/// Variables of a particle.
const VARIABLES: u64 = 8;
const VARIANTS: [Variant; 5] = [VANILLA, DIRECT, AUTO, AUTO_NO_CONTENTION, FIXED_512K];

/// Offset and length of each call of each process.
type Pieces = Vec<Vec<(u64, u64)>>;

/// A dump of particles: `steps` times eight variables, of each a piece of `piece` bytes for each process.
fn vpic(piece: u64, steps: u64) -> Pieces {
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
fn nek5000(steps: u64) -> Pieces {
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

/// Measures all.
pub fn run(run: &mut Run) -> Outcome {
    let steps = |full: u64| if run.quick { full.div_ceil(8) } else { full };
    let workloads = [
        ("VPIC-like, 32 KiB", vpic(32 << 10, steps(96))),
        ("VPIC-like, 1 MiB", vpic(1 << 20, steps(4))),
        ("Nek5000-like", nek5000(steps(2))),
    ];
    for layout in layouts() {
        let setup = Setup { mounts: TASKS, link_mbit: layout.link_mbit, ..Setup::default() };
        let cluster = Mounts::start(&run.dir.join(format!("mixed{}", layout.name.replace(", ", "-"))), &setup)?;
        let mut table = Table::new(
            format!(
                "Shared files of simulations, {TASKS} processes on {TASKS} mounts, {} (MiB/s to the end of fsync, median and range)",
                layout.title
            ),
            &["workload", "vanilla", "direct", "auto", "no contention", "fixed 512 KiB", "auto / vanilla"],
        );
        let mut all = Vec::new();
        for (what, pieces) in &workloads {
            let what = format!("{what}{}", layout.name);
            let found = measure(run, &cluster, &what, pieces)?;
            for (way, name) in ["write", "read"].into_iter().enumerate() {
                row(run, &mut table, &format!("{what}, {name}"), way, &found);
            }
            all.push((what, found));
        }
        run.show(&table);
        let rows: Vec<_> = all.iter().map(|(what, found)| (what.clone(), &found[2].counted)).collect();
        run.show(&reasons("Why writes of auto went which way, all rounds (Tables 3 and 4 of the paper)", &rows));
        cluster.stop()?;
    }
    Ok(())
}

fn measure(run: &Run, cluster: &Mounts, what: &str, pieces: &Pieces) -> Outcome<Vec<Found>> {
    let calls = Calls { fsync: true, ..Calls::default() };
    let part =
        |rank: usize, of: usize| Part { file: cluster.dirs()[rank].join("dump"), pieces: pieces[of].clone(), key: 0 };
    let job =
        |rank: usize| Job { write: part(rank, rank), read: part(rank, (rank + 1) % TASKS), removes: rank == 0, calls };
    let jobs: Vec<_> = (0..TASKS).map(|rank| workload::Job::Transfers(job(rank))).collect();
    let mut tasks = Tasks::start(&jobs)?;
    let found = in_turn(run, what, &VARIANTS, |variant| {
        apply(cluster, variant)?;
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
    let ratio = series[2].over(&series[0]).median();
    let mut line = vec![what.to_string()];
    line.extend(cells(&series));
    line.push(digits(ratio));
    table.row(line);
    let mut finding = Finding::new("mixed", what).value(ratio);
    for (variant, series) in VARIANTS.iter().zip(&series) {
        finding = finding.series(format!("{}_mib_s", variant.name.replace([' ', ','], "_")), series);
    }
    for (name, (n, _)) in &found[2].counted {
        finding = finding.with(name, *n);
    }
    run.report.findings.push(finding);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the pieces of all processes cover a file without gaps or overlaps, in the proportions of the paper. Method: all pieces
    /// sorted; counts by size.
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
