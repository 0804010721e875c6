//! The figures of the paper on cooperative caching for MPI programs.

use super::catalog::{Figure, Source};
use super::claim::{Check, ahead, at_least, between};
use super::graph::{Axis, Kind, Panel, Seen};
use super::lab::{Lab, Made};
use amphi_host::failure::Outcome;

const DRAWING: &str = "a drawing of the design, without numbers";

const fn untried(id: &'static str, title: &'static str, why: &'static str) -> Figure {
    Figure { id, title, source: Source::Untried(why) }
}

/// The paper.
pub const FIGURES: [Figure; 7] = [
    untried("mpiio-1", "design of the cache", DRAWING),
    untried("mpiio-2", "flow of a read", DRAWING),
    untried("mpiio-3", "partition of BTIO", DRAWING),
    untried(
        "mpiio-t1",
        "bytes that BTIO and FLASH move",
        "the amounts belong to classes B and C; the patterns here are smaller",
    ),
    Figure {
        id: "mpiio-4",
        title: "BTIO and FLASH: native, cached, cached with direct I/O",
        source: Source::Measured { seconds: [120, 40], measure: patterns, check: patterns_shape },
    },
    untried(
        "mpiio-5",
        "file domains aligned with stripes",
        "domains are always whole pages and stripes, so there is no unaligned side",
    ),
    Figure {
        id: "mpiio-6",
        title: "BTIO natively: writes and reads apart",
        source: Source::Measured { seconds: [2, 1], measure: natively, check: natively_shape },
    },
];

/// Names of the patterns in the benchmark and in the paper.
const PATTERNS: [(&str, &str); 2] = [("btio", "BTIO"), ("flash", "FLASH")];
const SIDES: [&str; 3] = ["native", "cached", "cached, direct"];

fn both_patterns(lab: &mut Lab) -> Outcome<Made> {
    let before = lab.run.report.findings.len();
    let library = match crate::mpiio::installed(&lab.run) {
        Ok(library) => library,
        Err(e) if e.code == 2 => return Ok(Made::missing(e.text)),
        Err(e) => return Err(e),
    };
    let library = crate::mpiio::on_a_mount(&mut lab.run, &library, &PATTERNS.map(|pattern| pattern.0))?;
    let axis = || (Axis::new("pattern", ""), Axis::new("time", "s"));
    let mut panels = ["both", "write", "read"].map(|name| Panel::new(name, Kind::Bars, axis().0, axis().1));
    let found = &lab.run.report.findings[before..];
    for (at, (pattern, label)) in PATTERNS.iter().enumerate() {
        for side in SIDES {
            let what = format!("{pattern} AmphiFS {library} {side}");
            let Some(finding) = found.iter().find(|finding| finding.what == what) else { continue };
            let (Some(write), Some(read)) = (finding.series.get("write_s"), finding.series.get("read_s")) else {
                continue;
            };
            let both = crate::series::Series::sum(&[write, read]);
            for (panel, series) in panels.iter_mut().zip([&both, write, read]) {
                panel.push(side, at as f64, label, &series.0);
            }
        }
    }
    let how =
        format!("4 ranks of {library} on one mount; times of writing and reading back, without the start of the job.");
    Ok(Made::new(panels.into(), how))
}

/// Figure 4.
fn patterns(lab: &mut Lab) -> Outcome<Made> {
    Ok(lab.once("mpiio", both_patterns)?.only(&["both"]))
}

/// Statements of figure 4; times, so that the first of a pair is the slower one.
fn patterns_shape(seen: &Seen<'_>) -> Vec<Check> {
    let panel = seen.panel("both");
    let [native, cached, direct] = SIDES;
    let gain = |label: &str| panel.and_then(|panel| panel.ratio(native, cached, label));
    let less = gain("FLASH").zip(gain("BTIO")).map(|(flash, btio)| flash / btio);
    vec![
        at_least("BTIO is 2 to 20 times as fast with the cache.", panel, (native, cached), "BTIO", 2.0),
        between("FLASH gains less.", less, (0.0, 0.9), "of the gain of BTIO"),
        at_least("Direct I/O does not improve on the cache alone.", panel, (direct, cached), "BTIO", 0.95),
        ahead("With direct I/O the cache is still better than without it.", panel, (native, direct), "BTIO"),
    ]
}

/// Figure 6.
fn natively(lab: &mut Lab) -> Outcome<Made> {
    let mut made = lab.once("mpiio", both_patterns)?;
    if made.missing.is_some() {
        return Ok(made);
    }
    let mut panel = Panel::new("native", Kind::Bars, Axis::new("direction", ""), Axis::new("time", "s"));
    for way in ["write", "read"] {
        let of = made.panels.iter().find(|panel| panel.name == way);
        if let Some(series) = of.and_then(|panel| panel.samples(SIDES[0], PATTERNS[0].1)) {
            panel.push(way, 0.0, PATTERNS[0].1, &series.0);
        }
    }
    made.panels = vec![panel];
    Ok(made)
}

/// Statements of figure 6.
fn natively_shape(seen: &Seen<'_>) -> Vec<Check> {
    let claim = "Natively, reads take longer than writes, since what is read ahead is of no use.";
    vec![ahead(claim, seen.panel("native"), ("read", "write"), PATTERNS[0].1)]
}

/// Panels in which the statements hold, and in which they do not.
#[cfg(test)]
pub mod made_up {
    use super::*;
    use crate::figures::graph::made::{curves, place};

    /// Figure 4.
    pub fn patterns(holds: bool) -> Vec<Panel> {
        let rows = match holds {
            true => [(SIDES[0], [10.0, 5.0]), (SIDES[1], [1.0, 4.0]), (SIDES[2], [2.0, 6.0])],
            false => [(SIDES[0], [1.0, 5.0]), (SIDES[1], [1.0, 4.0]), (SIDES[2], [0.92, 6.0])],
        };
        vec![curves("both", &["BTIO", "FLASH"], &[0.0, 1.0], &rows)]
    }

    /// Figure 6.
    pub fn natively(holds: bool) -> Vec<Panel> {
        vec![place("native", "BTIO", &[("write", 1.0), ("read", if holds { 3.0 } else { 0.3 })])]
    }
}
