//! Lengths of single calls, kept to three digits.

use hdrhistogram::Histogram;

/// Longest call that is distinguished from longer ones, nanoseconds.
const LONGEST_NS: u64 = 1000 * 1_000_000_000;

/// Counts of lengths.
pub struct Latency(Option<Histogram<u64>>);

impl Latency {
    /// A histogram without calls.
    pub fn new() -> Latency {
        Latency(Histogram::new_with_bounds(1, LONGEST_NS, 3).ok())
    }

    /// A call of `ns`.
    pub fn add(&mut self, ns: u64) {
        self.add_many(ns, 1);
    }

    /// `n` calls of `ns`.
    pub fn add_many(&mut self, ns: u64, n: u64) {
        if let Some(h) = &mut self.0 {
            h.saturating_record_n(ns, n);
        }
    }

    /// Length and number, shortest first.
    pub fn rows(&self) -> Vec<(u64, u64)> {
        let rows = self.0.iter().flat_map(Histogram::iter_recorded);
        rows.map(|r| (r.value_iterated_to(), r.count_at_value())).collect()
    }

    /// The length that a share of the calls does not exceed, microseconds; 0 without a call.
    pub fn quantile_us(&self, share: f64) -> f64 {
        self.0.as_ref().map_or(0.0, |h| h.value_at_quantile(share) as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: counts can be sent to another process and added there. Method: two halves of the same calls.
    #[test]
    fn halves_join() {
        let (mut all, mut half) = (Latency::new(), Latency::new());
        for i in 1..=1000u64 {
            all.add(i * 1000);
            if i % 2 == 0 {
                half.add(i * 1000);
            }
        }
        let mut joined = Latency::new();
        half.rows().iter().for_each(|&(ns, n)| joined.add_many(ns, n));
        (1..=1000u64).filter(|i| i % 2 == 1).for_each(|i| joined.add(i * 1000));
        assert_eq!(joined.rows(), all.rows());
        assert!((all.quantile_us(0.5) - 500.0).abs() < 1.0, "{}", all.quantile_us(0.5));
    }
}
