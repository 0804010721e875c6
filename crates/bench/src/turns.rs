//! The order in which the variants of a comparison take turns (A B B A).
//!
//! Owns: the order of arms, rounds, the warm-up round. Does not own: the measurements, the use of the samples
//! (`series`).

use super::clock::now;
use super::run::Run;
use super::series::Series;
use amphi_host::failure::Outcome;
use std::time::Duration;

/// One side of a comparison: a name and the function that takes one sample.
pub struct Arm<'a> {
    name: String,
    sample: Box<dyn FnMut() -> Outcome<f64> + 'a>,
}

impl<'a> Arm<'a> {
    /// A side; `sample` returns a rate or a time, the same for all sides of a comparison or not.
    pub fn new(name: impl Into<String>, sample: impl FnMut() -> Outcome<f64> + 'a) -> Arm<'a> {
        Arm { name: name.into(), sample: Box::new(sample) }
    }
}

/// The order of `count` arms in a round: each comes behind each other one equally often, in `count` rounds or twice as
/// many if that is odd (Williams 1949, designs balanced for residual effects), so that none always runs after the same
/// other one.
pub fn order(round: usize, count: usize) -> Vec<usize> {
    let zigzag = (0..count).map(|i| if i % 2 == 0 { i / 2 } else { count - 1 - i / 2 });
    let mut order: Vec<usize> = zigzag.map(|at| (at + round / (1 + count % 2)) % count).collect();
    if count % 2 == 1 && round % 2 == 1 {
        order.reverse();
    }
    order
}

/// Samples all arms in turn, round after round in the orders of `order`: one round to warm up, which does not count,
/// then `run.pairs`.
///
/// Errors: the first of any arm, or that the user wants to stop.
pub fn alternate(run: &Run, what: &str, arms: Vec<Arm<'_>>) -> Outcome<Vec<Series>> {
    rounds(run, what, arms, order)
}

/// As `alternate`, but each round in the order given, for arms that need what the one before left.
pub fn as_given(run: &Run, what: &str, arms: Vec<Arm<'_>>) -> Outcome<Vec<Series>> {
    rounds(run, what, arms, |_, count| (0..count).collect())
}

fn rounds(
    run: &Run,
    what: &str,
    mut arms: Vec<Arm<'_>>,
    order: impl Fn(usize, usize) -> Vec<usize>,
) -> Outcome<Vec<Series>> {
    let mut series = vec![Series::default(); arms.len()];
    let bar = run.bar(what, ((run.pairs + 1) * arms.len()) as u64);
    for round in 0..=run.pairs {
        for turn in order(round, arms.len()) {
            let (arm, series) = (&mut arms[turn], &mut series[turn]);
            run.check_stop()?;
            bar.set_message(format!("{what}: {}", arm.name));
            let value = (arm.sample)()?;
            if round > 0 {
                series.0.push(value);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(series)
}

/// Nanoseconds per call of `op`, called for about `long`, `batch` calls between two looks at the clock.
pub fn ns_per_op(long: Duration, batch: u32, mut op: impl FnMut() -> Outcome) -> Outcome<f64> {
    let start = now();
    let mut calls = 0u64;
    loop {
        for _ in 0..batch {
            op()?;
        }
        calls += u64::from(batch);
        let passed = start.elapsed();
        if passed >= long {
            return Ok(passed.as_nanos() as f64 / calls as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Goal: each round has every variant once, and each variant follows each other one equally often. Method: all
    /// rounds of a whole design, for the numbers of arms that occur.
    #[test]
    fn neighbours_are_balanced() {
        for count in 2..=12 {
            let rounds = count * (1 + count % 2);
            let mut behind: BTreeMap<(usize, usize), usize> = BTreeMap::new();
            for round in 0..rounds {
                let order = order(round, count);
                assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), count);
                order.windows(2).for_each(|two| *behind.entry((two[0], two[1])).or_default() += 1);
            }
            assert_eq!(behind.len(), count * (count - 1), "{count}");
            assert!(behind.values().all(|&n| n == 1 + count % 2), "{count}: {behind:?}");
        }
    }
}
