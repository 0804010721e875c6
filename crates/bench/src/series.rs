//! `Series`: the samples of one arm of a comparison, and how arms are sampled.
//!
//! Owns: taking turns (A B B A), medians, spread. Does not own: what is measured. Invariants: nothing is left out:
//! every sample after the warm-up round counts and is in the JSON; a ratio is taken within a round, where both sides
//! saw the same machine, and the median is taken over these ratios.

use super::Run;
use super::clock::now;
use amphi_host::failure::Outcome;
use serde::{Serialize, Serializer};
use std::time::Duration;

/// Samples in the order they were taken.
#[derive(Clone, Debug, Default)]
pub struct Series(pub Vec<f64>);

impl Series {
    fn quantile(&self, q: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
        let (at, part) = ((last as f64 * q) as usize, (last as f64 * q).fract());
        sorted[at] + (sorted[(at + 1).min(last)] - sorted[at]) * part
    }

    /// The middle.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Least and greatest.
    pub fn range(&self) -> (f64, f64) {
        (self.quantile(0.0), self.quantile(1.0))
    }

    /// Round by round `self / other`.
    pub fn over(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }

    /// Round by round what `self` reaches of the better of two modes: of the one with the greater median.
    pub fn over_better(&self, one: &Series, other: &Series) -> Series {
        self.over(if one.median() >= other.median() { one } else { other })
    }

    /// Round by round `self * other`.
    pub fn times(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(a, b)| a * b).collect())
    }

    /// Round by round the greater of two.
    pub fn greater(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(a, b)| a.max(*b)).collect())
    }

    /// Round by round the lesser of two.
    pub fn lesser(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(a, b)| a.min(*b)).collect())
    }

    /// Round by round `f`.
    pub fn map(&self, f: impl Fn(f64) -> f64) -> Series {
        Series(self.0.iter().map(|&v| f(v)).collect())
    }

    /// Round by round the rate of a chain in which each byte passes one part after the other: 1/(1/a + 1/b + ...).
    pub fn serial(parts: &[&Series]) -> Series {
        let rounds = parts.iter().map(|p| p.0.len()).min().unwrap_or(0);
        Series((0..rounds).map(|i| 1.0 / parts.iter().map(|p| 1.0 / p.0[i]).sum::<f64>()).collect())
    }

    /// Round by round the sum.
    pub fn sum(parts: &[&Series]) -> Series {
        let rounds = parts.iter().map(|p| p.0.len()).min().unwrap_or(0);
        Series((0..rounds).map(|i| parts.iter().map(|p| p.0[i]).sum::<f64>()).collect())
    }
}

#[derive(Serialize)]
struct Record<'a> {
    median: f64,
    quartiles: [f64; 2],
    range: [f64; 2],
    samples: &'a [f64],
}

impl Serialize for Series {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (low, high) = self.range();
        let quartiles = [self.quantile(0.25), self.quantile(0.75)];
        Record { median: self.median(), quartiles, range: [low, high], samples: &self.0 }.serialize(to)
    }
}

/// One side of a comparison: a name and what takes one sample.
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
/// many if that is odd (Williams 1949, designs balanced for residual effects), so that none always meets what the same
/// other one left behind.
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

    /// Goal: every arm is in every round once, and each comes right behind each other one equally often. Method: all
    /// rounds of a whole design, for the numbers of arms that there are.
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

    /// Goal: medians, spread, paired ratios and the serial model are what their names say. Method: small numbers.
    #[test]
    fn arithmetic_of_series() {
        let s = Series(vec![5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!((s.median(), s.range()), (3.0, (1.0, 5.0)));
        assert_eq!(Series(vec![1.0, 2.0]).median(), 1.5);
        assert_eq!(s.over(&Series(vec![5.0; 5])).0, [1.0, 0.2, 0.6, 0.4, 0.8]);
        assert_eq!(Series::serial(&[&Series(vec![3.0]), &Series(vec![6.0])]).0, [2.0]);
        assert_eq!(Series::sum(&[&Series(vec![3.0]), &Series(vec![6.0])]).0, [9.0]);
        assert!(Series::default().median().is_nan(), "no samples, no number");
    }
}
