//! `amphi bench modes`: auto beside buffered and direct, for each transfer size, through FUSE and through the library.
//!
//! Writes are timed to the end of fsync; before each read the file is written anew by large direct writes, so that
//! neither client nor server has any of it in memory. Each size begins with empty files: small direct writes leave a
//! file in pieces on the disk. The mount serves all reads itself.

use super::Run;
use super::cluster::{Cluster, OWN_READS, set_mode};
use super::embedded::Embedded;
use super::library::LibraryFile;
use super::mounted::Op;
use super::report::{Finding, Goal, Table, digits, spread};
use super::stream::{Stream, prepare};
use super::turns::{Arm, alternate};
use amphi_host::failure::{During, Outcome};
use std::path::{Path, PathBuf};

const MODES: [&str; 3] = ["buffered", "direct", "auto"];
/// Bytes of a sample, unless that were more calls than `CALLS_MAX`.
const SAMPLE_BYTES: u64 = 128 << 20;
const CALLS_MAX: u64 = 8192;

/// Measures all sizes, both ways, both directions.
pub fn run(run: &mut Run) -> Outcome {
    let sizes: Vec<usize> = match run.quick {
        true => vec![4 << 10, 256 << 10, 8 << 20],
        false => {
            [4, 16, 32, 64, 256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10].map(|k| k << 10).into()
        }
    };
    let cluster = Cluster::up(&run.dir.join("modes"), &["--set", OWN_READS])?;
    let mount = cluster.mount.clone();
    for op in [Op::Write, Op::Read] {
        let fresh = || MODES.iter().map(|m| mount.join(m)).filter(|p| p.exists()).try_for_each(remove);
        sweep(run, "FUSE", op, &sizes, fresh, |mode, transfer, bytes| fuse(&mount, mode, op, transfer, bytes))?;
    }
    cluster.stop()?;
    let embedded = Embedded::start(&run.dir.join("modes-library"))?;
    let files: Vec<LibraryFile> =
        MODES.iter().map(|m| LibraryFile::create(embedded.client(), m)).collect::<Outcome<_>>()?;
    for op in [Op::Write, Op::Read] {
        let fresh = || files.iter().try_for_each(LibraryFile::empty);
        sweep(run, "library", op, &sizes, fresh, |mode, transfer, bytes| {
            library(&files[mode], MODES[mode], op, transfer, bytes)
        })?;
    }
    for file in files {
        file.remove()?;
    }
    embedded.stop()
}

fn remove(path: PathBuf) -> Outcome {
    std::fs::remove_file(&path).during(|| format!("remove {}", path.display()))
}

/// One sample through the mount.
fn fuse(mount: &Path, mode: usize, op: Op, transfer: usize, bytes: u64) -> Outcome<f64> {
    let path = mount.join(MODES[mode]);
    let stream = Stream { path: path.clone(), bytes, transfer, shift: 0, o_direct: false, most: None };
    if op == Op::Read {
        if path.exists() {
            set_mode(&path, "direct")?;
        }
        prepare(&path, bytes)?;
    } else if !path.exists() {
        stream.write()?;
    }
    set_mode(&path, MODES[mode])?;
    if op == Op::Read { stream.read() } else { stream.write() }
}

/// One sample through the library.
fn library(file: &LibraryFile, mode: &str, op: Op, transfer: usize, bytes: u64) -> Outcome<f64> {
    if op == Op::Read {
        file.prepare(bytes)?;
    }
    file.set_mode(mode)?;
    if op == Op::Read { file.stream_read(bytes, transfer) } else { file.stream_write(bytes, transfer) }
}

fn sweep(
    run: &mut Run,
    way: &str,
    op: Op,
    sizes: &[usize],
    fresh: impl Fn() -> Outcome,
    sample: impl Fn(usize, usize, u64) -> Outcome<f64>,
) -> Outcome {
    let title = format!("Modes: {} through {way} (MiB/s, median and range; ratio auto / better of both)", op.name());
    let mut table = Table::new(title, &["transfer", "buffered", "direct", "auto", "auto/better", "goal"]);
    let mut direct_gain = Vec::new();
    for &transfer in sizes {
        let bytes = SAMPLE_BYTES.min(transfer as u64 * CALLS_MAX).max(2 * transfer as u64);
        let shown = amphi_host::size::show(transfer as u64);
        let what = format!("{way} {} {shown}", op.name());
        if !run.wants(&what) {
            continue;
        }
        fresh()?;
        let arms = (0..3).map(|mode| {
            let sample = &sample;
            Arm::new(MODES[mode], move || sample(mode, transfer, bytes))
        });
        let series = alternate(run, &what, arms.collect())?;
        let ratio = series[2].over_better(&series[0], &series[1]);
        let value = ratio.median();
        direct_gain.push((transfer, series[1].over(&series[0]).median()));
        let goal = (transfer <= 32 << 10 || transfer >= 8 << 20).then_some(Goal::AtLeast(0.95));
        table.row(vec![
            shown,
            spread(&series[0]),
            spread(&series[1]),
            spread(&series[2]),
            digits(value),
            goal.map_or_else(|| "-".into(), |g| g.show(value)),
        ]);
        let found = Finding::new("modes", what)
            .with("path", way)
            .with("direction", op.name())
            .with("transfer_bytes", transfer)
            .with("file_bytes", bytes)
            .series("buffered_mib_s", &series[0])
            .series("direct_mib_s", &series[1])
            .series("auto_mib_s", &series[2])
            .series("auto_over_better", &ratio);
        run.report.findings.push(match goal {
            Some(goal) => found.goal(value, goal),
            None => found.value(value),
        });
    }
    let crossover = crossover(&direct_gain);
    let shown = crossover.map_or_else(
        || "none: direct is never better up to the largest size".into(),
        |c| amphi_host::size::show(c as u64),
    );
    table.note(format!("Crossover (direct is at least as fast as buffered from here on): {shown}"));
    if table.is_empty() {
        return Ok(());
    }
    let name = format!("{way} {} crossover", op.name());
    let mut found = Finding::new("modes", name).with("path", way).with("direction", op.name());
    found.value = crossover.map(|c| c as f64);
    run.report.findings.push(found);
    run.show(&table);
    Ok(())
}

/// The smallest size from which direct is not slower at any larger size.
fn crossover(direct_gain: &[(usize, f64)]) -> Option<usize> {
    direct_gain.iter().rev().take_while(|(_, gain)| *gain >= 1.0).last().map(|(size, _)| *size)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the crossover is where direct begins to win for good. Method: small lists.
    #[test]
    fn where_direct_begins_to_win() {
        assert_eq!(crossover(&[(1, 0.5), (2, 1.1), (3, 0.9), (4, 1.0), (5, 2.0)]), Some(4));
        assert_eq!(crossover(&[(1, 0.5), (2, 0.9)]), None);
        assert_eq!(crossover(&[(1, 1.5), (2, 1.9)]), Some(1));
    }
}
