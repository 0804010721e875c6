//! The workloads that made autoIO (FAST'24, section 4) known, at the size of this machine, with their baselines in the
//! same run.
//!
//! Owns: where the mounts are, taking turns with the variants (`variant`). Each scenario is a file of `scenario/`: a
//! table of the baselines for all sizes, one of auto without each part (`parts`) for representative ones, the ways of
//! requests (`reasons`), pictures. Invariants: all variants of a table run on one cluster, in turn, each round on a
//! fresh file; every read is verified.

pub mod mixed;
pub mod overcache;
mod parts;
mod reasons;
pub mod small_files;
pub mod streams;
pub mod strided;
pub mod variant;
pub mod write_back;

use super::Run;
use super::links::Links;
use super::mounted_cluster::Mounts;
use super::report::spread;
use super::series::Series;
use super::turns::order;
use super::workload::place::{Counted, counters, since};
use super::workload::plot::{Bars, Panel, bars};
use super::workload::tasks::Tasks;
use super::workload::{Phase, Together};
use amphi_host::failure::Outcome;
use variant::Variant;

/// Mbit/s of each mount's link where the mounts are machines of their own: so slow that the processors are not what all
/// wait for.
const LINK_MBIT: u32 = 1000;

/// The place of the mounts of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The suffix of the name of a workload.
    pub name: &'static str,
    /// The title of the tables.
    pub title: &'static str,
    /// Mbit/s of each mount's link, if each has one.
    pub link_mbit: Option<u32>,
}

/// All mounts beside their server, and each behind a link of its own where this machine lets us make some.
pub fn layouts() -> Vec<Layout> {
    let mut all = vec![Layout { name: "", title: "all on one machine", link_mbit: None }];
    match Links::make(1, LINK_MBIT) {
        Ok(_) => all.push(Layout {
            name: ", links",
            title: "each mount behind a link of 1 Gbit/s",
            link_mbit: Some(LINK_MBIT),
        }),
        Err(e) => eprintln!("amphi: skipped what needs a link for each mount: {e}"),
    }
    all
}

/// A phase with what the mounts counted meanwhile.
pub fn counted(cluster: &Mounts, tasks: &mut Tasks, phase: Phase) -> Outcome<(Together, Counted)> {
    let before = counters(cluster.dirs())?;
    let all = tasks.phase(phase)?;
    Ok((all, since(&before, &counters(cluster.dirs())?)))
}

/// Removes the files of the round before, and waits until servers and mounts have done with them.
pub fn clear(cluster: &Mounts, tasks: &mut Tasks) -> Outcome {
    tasks.phase(Phase::Remove)?;
    let mut last = counters(cluster.dirs())?;
    for _ in 0..50 {
        super::clock::pause(std::time::Duration::from_millis(40));
        let now = counters(cluster.dirs())?;
        if times(&now, "lock_callback") == times(&last, "lock_callback") {
            break;
        }
        last = now;
    }
    Ok(())
}

/// The result of a sample of one variant: numbers in a fixed order, and counters.
pub struct Sample {
    /// The measured values, in an order that is the same for each variant.
    pub values: Vec<f64>,
    /// Counters of interest; the sum over all rounds is kept.
    pub counted: Counted,
}

/// The results of all rounds of one variant.
#[derive(Default)]
pub struct Found {
    /// One series for each of `Sample::values`, in their order.
    pub series: Vec<Series>,
    /// Sum over the rounds.
    pub counted: Counted,
}

/// All variants in turn, round after round, in the orders of `turns::order`; the first round does not count.
pub fn in_turn(
    run: &Run,
    cluster: &Mounts,
    what: &str,
    variants: &[Variant],
    mut sample: impl FnMut() -> Outcome<Sample>,
) -> Outcome<Vec<Found>> {
    let mut found: Vec<Found> = variants.iter().map(|_| Found::default()).collect();
    let bar = run.bar(what, ((run.pairs + 1) * variants.len()) as u64);
    for round in 0..=run.pairs {
        for turn in order(round, variants.len()) {
            let (variant, found) = (&variants[turn], &mut found[turn]);
            run.check_stop()?;
            bar.set_message(format!("{what}: {}", variant.name));
            variant.apply(cluster)?;
            let sample = sample()?;
            bar.inc(1);
            if round == 0 {
                continue;
            }
            found.series.resize(sample.values.len(), Series::default());
            for (series, value) in found.series.iter_mut().zip(sample.values) {
                series.0.push(value);
            }
            for (name, (n, sum)) in sample.counted {
                let row = found.counted.entry(name).or_default();
                *row = (row.0 + n, row.1 + sum);
            }
        }
    }
    bar.finish_and_clear();
    Ok(found)
}

/// Samples of a counter.
pub fn times(counted: &Counted, name: &str) -> u64 {
    counted.get(name).map_or(0, |row| row.0)
}

/// Adds what another phase counted.
pub fn add(sum: &mut Counted, more: Counted) {
    for (name, row) in more {
        let sum = sum.entry(name).or_default();
        *sum = (sum.0 + row.0, sum.1 + row.1);
    }
}

/// Median and range of each series, as cells.
pub fn cells(series: &[Series]) -> Vec<String> {
    series.iter().map(spread).collect()
}

/// Median of a series of each variant.
pub fn medians(found: &[Found], way: usize) -> Vec<f64> {
    found.iter().map(|f| f.series[way].median()).collect()
}

/// Draws rates of all variants, if pictures are wanted.
pub fn draw(
    run: &Run,
    name: &str,
    title: &str,
    unit: &str,
    variants: &[Variant],
    panels: &[Panel],
    columns: usize,
) -> Outcome {
    if panels.is_empty() {
        return Ok(());
    }
    let Some(path) = run.picture(&name.replace([' ', ','], "-").replace("--", "-")) else { return Ok(()) };
    let names: Vec<String> = variants.iter().map(|v| v.name.to_string()).collect();
    bars(&Bars { title, unit, names: &names, panels, columns }, &path)
}
