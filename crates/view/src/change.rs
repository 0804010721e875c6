//! `Change`: the events between two samples, as rates.
//!
//! A counter that is smaller than before was reset in between (`amphi stats --reset`, or a server that restarted), so
//! all of its present value was counted since then.

use crate::snapshot::{Counter, OfServer, Snapshot, Times, Way};
use std::collections::BTreeMap;

/// Two samples of the same mount.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The first.
    pub before: &'a Snapshot,
    /// The second.
    pub after: &'a Snapshot,
}

fn grown(before: u64, after: u64) -> u64 {
    if after >= before { after - before } else { after }
}

impl<'a> Change<'a> {
    /// Seconds between the two samples, not 0.
    pub fn seconds(&self) -> f64 {
        self.after.at.saturating_sub(self.before.at).as_secs_f64().max(1e-3)
    }

    fn delta(&self, name: &str) -> Counter {
        let (before, after) = (self.before.counter(name), self.after.counter(name));
        Counter { samples: grown(before.samples, after.samples), sum: grown(before.sum, after.sum) }
    }

    /// Returns how often an event happened at the mount, per second.
    pub fn often(&self, name: &str) -> f64 {
        self.delta(name).samples as f64 / self.seconds()
    }

    /// The sum that a counter has gained at the mount, per second: bytes, or ns.
    pub fn much(&self, name: &str) -> f64 {
        self.delta(name).sum as f64 / self.seconds()
    }

    /// Returns how often it happened at the servers, a second. A server that did not answer both times is left out,
    /// since all that it ever counted would seem to have happened now.
    pub fn at_servers(&self, name: &str) -> f64 {
        if self.after.by_server.is_empty() {
            return grown(self.before.of_servers(name), self.after.of_servers(name)) as f64 / self.seconds();
        }
        self.after.by_server.iter().map(|server| self.at_server(server, name)).sum()
    }

    /// Returns how often it happened at one of the servers, a second; 0 if it did not answer at the first look.
    pub fn at_server(&self, after: &OfServer, name: &str) -> f64 {
        let of = |server: &OfServer| server.rows.get(name).copied().unwrap_or(0);
        let before = match self.before.of_server(&after.label) {
            Some(before) => of(before),
            // The look before everything.
            None if *self.before == Snapshot::default() => 0,
            None => return 0.0,
        };
        grown(before, of(after)) as f64 / self.seconds()
    }

    /// Returns how often a value was met at the servers, a second, by the upper bound of its bucket: the rows
    /// `histogram_WHAT_to_BOUND`.
    pub fn histogram(&self, what: &str) -> BTreeMap<u64, f64> {
        let begin = format!("histogram_{what}_to_");
        let buckets = self.after.servers.range(begin.clone()..).take_while(|(name, _)| name.starts_with(&begin));
        let bound = |name: &str| name[begin.len()..].parse().ok();
        buckets.filter_map(|(name, _)| Some((bound(name)?, self.at_servers(name)))).collect()
    }

    /// The calls of programs a second, by kind and how they were served: how many, and how many in each bucket, by its
    /// upper bound in microseconds; the last one has no bound.
    pub fn calls(&self) -> Vec<(&'a str, f64, BTreeMap<u64, f64>)> {
        let none = Times::default();
        let one = |(name, after): (&'a String, &Times)| {
            let before = self.before.mount.calls.get(name).unwrap_or(&none);
            let rate = |before: u64, after: u64| grown(before, after) as f64 / self.seconds();
            let of = |times: &Times, bound: &u64| times.up_to_us.get(bound).copied().unwrap_or(0);
            let bounded = after.up_to_us.keys().map(|bound| (*bound, rate(of(before, bound), of(after, bound))));
            let beyond = |times: &Times| times.count.saturating_sub(times.up_to_us.values().sum());
            let last = (u64::MAX, rate(beyond(before), beyond(after)));
            (name.as_str(), rate(before.count, after.count), bounded.chain([last]).collect())
        };
        self.after.mount.calls.iter().map(one).filter(|(_, often, _)| *often > 0.0).collect()
    }

    /// Requests and bytes a second by way and reason, the most bytes first; `prefix` is `read_` or `write_`.
    pub fn ways(&self, prefix: &str) -> Vec<(Way, f64, f64)> {
        let before: BTreeMap<Way, Counter> = self.before.ways(prefix).collect();
        let mut ways: Vec<_> = self
            .after
            .ways(prefix)
            .map(|(way, after)| {
                let before = before.get(&way).copied().unwrap_or_default();
                let (often, much) = (grown(before.samples, after.samples), grown(before.sum, after.sum));
                (way, often as f64 / self.seconds(), much as f64 / self.seconds())
            })
            .filter(|(_, often, _)| *often > 0.0)
            .collect();
        ways.sort_by(|a, b| b.2.total_cmp(&a.2).then(b.1.total_cmp(&a.1)));
        ways
    }

    /// Returns requests and bytes a second, summed over all ways.
    pub fn total(&self, prefix: &str) -> (f64, f64) {
        self.ways(prefix).iter().fold((0.0, 0.0), |all, (_, often, much)| (all.0 + often, all.1 + much))
    }
}

/// The bound of the bucket below or in which `share` (0 to 1) of the values lie; nothing if there are none.
pub fn quantile(buckets: &BTreeMap<u64, f64>, share: f64) -> Option<u64> {
    let wanted = buckets.values().sum::<f64>() * share;
    let mut seen = 0.0;
    let mut reaches = |n: f64| {
        seen += n;
        // Sums of fractions are not exact.
        n > 0.0 && seen >= wanted * (1.0 - 1e-9)
    };
    buckets.iter().find(|(_, n)| reaches(**n)).map(|(bound, _)| *bound)
}
