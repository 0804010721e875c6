//! Where figures are measured: the run, its sizes, and measurements that several figures share.
//!
//! Owns: sweeps over sizes into panels, what was measured already. Does not own: the benchmarks, which are those of
//! `amphi bench`. Invariant: what several figures show is measured once for a run.

use super::graph::{Axis, Kind, Panel};
use crate::Run;
use crate::scenario::Found;
use crate::scenario::variant::Variant;
use amphi_host::failure::Outcome;
use amphi_host::size;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a figure shows.
#[derive(Clone, Debug, Default)]
pub struct Made {
    /// Its panels.
    pub panels: Vec<Panel>,
    /// How it was measured, in a sentence.
    pub how: String,
    /// What this machine lacks for it; nothing was measured then.
    pub missing: Option<String>,
}

impl Made {
    /// What was measured.
    pub fn new(panels: Vec<Panel>, how: impl Into<String>) -> Made {
        Made { panels, how: how.into(), missing: None }
    }

    /// Nothing, for want of something that this machine does not offer.
    pub fn missing(what: impl Into<String>) -> Made {
        Made { missing: Some(what.into()), ..Made::default() }
    }

    /// The same with the panels of these names alone.
    pub fn only(&self, names: &[&str]) -> Made {
        let kept = self.panels.iter().filter(|panel| names.contains(&panel.name.as_str())).cloned().collect();
        Made { panels: kept, ..self.clone() }
    }
}

/// The run and what was measured in it.
pub struct Lab {
    /// The run.
    pub run: Run,
    made: BTreeMap<&'static str, Made>,
}

impl Lab {
    /// Nothing measured yet.
    pub fn new(run: Run) -> Lab {
        Lab { run, made: BTreeMap::new() }
    }

    /// `full`, or `quick` in a quick run.
    pub fn sized<T>(&self, full: T, quick: T) -> T {
        if self.run.quick { quick } else { full }
    }

    /// The folder of the clusters of a measurement; it is empty.
    pub fn folder(&self, name: &str) -> PathBuf {
        self.run.dir.join(name)
    }

    /// The measurement `name`, made once.
    pub fn once(&mut self, name: &'static str, measure: impl FnOnce(&mut Lab) -> Outcome<Made>) -> Outcome<Made> {
        if let Some(made) = self.made.get(name) {
            return Ok(made.clone());
        }
        let made = measure(self)?;
        self.made.insert(name, made.clone());
        Ok(made)
    }
}

/// An axis of sizes.
pub fn sizes(name: &str) -> Axis {
    Axis::new(name, "bytes").log()
}

/// An axis of transfer rates.
pub fn rate() -> Axis {
    Axis::new("throughput", "MiB/s")
}

/// A panel for each value of a sample, in the order of `names`; points are added by `add`.
pub fn panels(names: &[&str], kind: Kind, x: &Axis, y: &Axis) -> Vec<Panel> {
    names.iter().map(|name| Panel::new(*name, kind, x.clone(), y.clone())).collect()
}

/// Adds what all variants reached at `x`: value `n` of each sample to panel `n`. `name` names the curve of a variant.
pub fn add(
    panels: &mut [Panel],
    x: f64,
    label: &str,
    variants: &[Variant],
    found: &[Found],
    name: impl Fn(&Variant) -> String,
) {
    for (variant, found) in variants.iter().zip(found) {
        for (panel, series) in panels.iter_mut().zip(&found.series) {
            panel.push(&name(variant), x, label, &series.0);
        }
    }
}

/// The label of a size.
pub fn shown(bytes: u64) -> String {
    size::show(bytes)
}

/// Shares of requests by reason, as piles that reach 100 %: a pile for each of `rows` (label and counters), of the
/// requests of `direction` ("write", "read"). `heads` are the reasons with the names of their curves; those that are
/// not named come together as "other".
pub fn reasons(
    name: &str,
    direction: &str,
    heads: &[(&str, &str)],
    rows: &[(String, &crate::workload::place::Counted)],
) -> Panel {
    let mut panel = Panel::new(name, Kind::Stacks, Axis::new("requests", ""), Axis::new("share of the requests", "%"));
    for (at, (label, counted)) in rows.iter().enumerate() {
        let of = |counter: &str| -> Option<u64> {
            let reason = counter.strip_prefix(direction)?.strip_prefix('_')?;
            let counts = reason.starts_with("direct_") || reason.starts_with("buffered_");
            counts.then(|| counted[counter].0)
        };
        let total: u64 = counted.keys().filter_map(|counter| of(counter)).sum();
        let share = |n: u64| n as f64 / total as f64 * 100.0;
        let mut named = 0;
        for (reason, curve) in heads {
            let n = counted.get(&format!("{direction}_{reason}")).map_or(0, |row| row.0);
            named += n;
            panel.push(curve, at as f64, label, &[share(n)]);
        }
        panel.push("other", at as f64, label, &[share(total.saturating_sub(named))]);
    }
    panel
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: shares by reason add up to 100 % with those that are not named, counters of the other direction and of
    /// other things do not count, and without requests there is no share. Method: made-up counters.
    #[test]
    fn shares_add_up() {
        let counted: crate::workload::place::Counted = [
            ("write_direct_large", 2),
            ("write_buffered_small", 5),
            ("write_direct_user", 3),
            ("read_direct_large", 100),
            ("write_call", 100),
        ]
        .map(|(name, n)| (name.to_string(), (n, 0)))
        .into();
        let heads = [("direct_large", "large"), ("buffered_small", "small"), ("direct_contention", "contention")];
        let empty = Default::default();
        let panel = reasons("p", "write", &heads, &[("x".into(), &counted), ("y".into(), &empty)]);
        let share = |curve| panel.median(curve, "x");
        assert_eq!((share("large"), share("small"), share("contention")), (Some(20.0), Some(50.0), Some(0.0)));
        assert_eq!(share("other"), Some(30.0));
        assert_eq!(panel.median("large", "y"), None);
    }
}
