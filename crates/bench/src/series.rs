//! `Series`: the samples of one arm of a comparison.
//!
//! Owns: medians, spread, ratios. Does not own: how arms are sampled (`turns`). Invariants: nothing is left out:
//! every sample after the warm-up round counts and is in the JSON; a ratio is taken within a round, where both sides
//! saw the same machine, and the median is taken over these ratios.

use serde::{Serialize, Serializer};

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

#[cfg(test)]
mod tests {
    use super::*;

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
