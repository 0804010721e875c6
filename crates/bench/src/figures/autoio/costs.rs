//! Figure 2: where the time of a write goes.

use crate::breakdown;
use crate::figures::claim::{Check, ahead, between};
use crate::figures::graph::{Axis, Kind, Panel, Seen};
use crate::figures::lab::{Lab, Made, rate, shown};
use amphi_host::failure::Outcome;

const SIZES: [u64; 2] = [1 << 20, 8 << 20];
const COPIES: [usize; 2] = [0, 2];
const MANAGEMENT: usize = 1;

/// Measures the parts and the rates.
pub fn breakdown(lab: &mut Lab) -> Outcome<Made> {
    let sizes = lab.sized(&SIZES[..], &SIZES[1..]);
    let wanted: Vec<(usize, u64)> = sizes.iter().map(|size| (*size as usize, 0)).collect();
    let before = lab.run.report.findings.len();
    breakdown::by_size(&mut lab.run, &wanted)?;
    let (us, share) = (Axis::new("time for a MiB", "us"), Axis::new("share of all parts", "%"));
    let mut parts = Panel::new("parts", Kind::Stacks, Axis::new("write", ""), us);
    let mut shares = Panel::new("shares", Kind::Stacks, Axis::new("write", ""), share);
    let mut rates = Panel::new("throughput", Kind::Bars, Axis::new("request size", ""), rate());
    for (at, found) in lab.run.report.findings[before..].iter().enumerate() {
        let x = at as f64;
        let key = |part: &str| format!("{}_us_per_mib", part.replace(' ', "_"));
        let of = |part: &str| found.series.get(&key(part)).map_or(f64::NAN, |series| series.median());
        let total: f64 = breakdown::PARTS.iter().map(|part| of(part)).sum();
        for part in breakdown::PARTS {
            parts.push(part, x, &found.what, found.series.get(&key(part)).map_or(&[], |series| &series.0[..]));
            shares.push(part, x, &found.what, &[of(part) / total * 100.0]);
        }
        let Some((mode, size)) = found.what.split_once(' ') else { continue };
        let taken = found.series.get("us_per_mib").map(|series| series.map(|us| 1e6 / us).0).unwrap_or_default();
        rates.push(mode, x, size, &taken);
    }
    let how = "One stream of the client library to a server behind a socket; client and server count the parts. Write-back \
               goes one request at a time, so that none waits for another.";
    Ok(Made::new(vec![parts, shares, rates], how))
}

/// Statements of figure 2.
pub fn breakdown_shape(seen: &Seen<'_>) -> Vec<Check> {
    let size = shown(SIZES[1]);
    let label = format!("buffered {size}");
    let shares = seen.panel("shares");
    let of = |part: usize| shares.and_then(|panel| panel.median(breakdown::PARTS[part], &label));
    let copies = of(COPIES[0]).zip(of(COPIES[1])).map(|(one, other)| one + other);
    vec![
        between("About a fifth of a buffered write is copying.", copies, (10.0, 30.0), "%"),
        between("More than 40 % is management of the cache.", of(MANAGEMENT), (40.0, 100.0), "%"),
        ahead("Direct writes of this size are faster.", seen.panel("throughput"), ("direct", "buffered"), &size),
    ]
}

/// Panels in which the statements hold, and in which they do not.
#[cfg(test)]
pub fn made_up(holds: bool) -> Vec<Panel> {
    use crate::figures::graph::made::place;
    let (copies, management, direct) = if holds { (20.0, 45.0, 4.0) } else { (60.0, 10.0, 0.5) };
    let rows = [(breakdown::PARTS[0], copies), (breakdown::PARTS[1], management), (breakdown::PARTS[2], 1.0)];
    let rates = [("buffered", 1.0), ("direct", direct)];
    vec![place("shares", "buffered 8 MiB", &rows), place("throughput", "8 MiB", &rates)]
}
