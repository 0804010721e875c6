//! `Change`: the events between two samples, as rates.
//!
//! A counter that is smaller than before was reset in between (`amphi stats --reset`, a server that restarted), so its
//! value now has accumulated since.

use crate::snapshot::{Counter, Snapshot, Way};
use std::collections::BTreeMap;

/// Two looks at the same mount.
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

impl Change<'_> {
    /// Seconds between them, not 0.
    pub fn seconds(&self) -> f64 {
        self.after.at.saturating_sub(self.before.at).as_secs_f64().max(1e-3)
    }

    fn delta(&self, name: &str) -> Counter {
        let (before, after) = (self.before.counter(name), self.after.counter(name));
        Counter { samples: grown(before.samples, after.samples), sum: grown(before.sum, after.sum) }
    }

    /// How often it happened at the mount, a second.
    pub fn often(&self, name: &str) -> f64 {
        self.delta(name).samples as f64 / self.seconds()
    }

    /// How much of it there was at the mount, a second: bytes, or ns.
    pub fn much(&self, name: &str) -> f64 {
        self.delta(name).sum as f64 / self.seconds()
    }

    /// How often it happened at the servers, a second.
    pub fn at_servers(&self, name: &str) -> f64 {
        grown(self.before.of_servers(name), self.after.of_servers(name)) as f64 / self.seconds()
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

    /// Requests and bytes a second, over all ways.
    pub fn total(&self, prefix: &str) -> (f64, f64) {
        self.ways(prefix).iter().fold((0.0, 0.0), |all, (_, often, much)| (all.0 + often, all.1 + much))
    }
}
