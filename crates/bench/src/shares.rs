//! The share of the disk's limit, as `amphi calibrate` has measured it, that large transfers reach.
//!
//! Owns: which rows are compared with which limit. Does not own: the calibration, and whether it counts here.

use super::Run;
use super::report::{Table, digits};

/// The disk on which a run measures, as it was measured before: direct requests of 1 MiB, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibrated {
    /// MiB a second.
    pub read_mib_s: f64,
    /// MiB a second.
    pub write_mib_s: f64,
}

/// Adds the share to the rows of large transfers, and shows them together. A stored calibration that does not count is
/// said to be so, if there are such rows.
pub fn show(run: &mut Run, calibrated: Result<Calibrated, String>) {
    let mut table = Table::new(
        "Large transfers beside the disk's limit of `amphi calibrate` (MiB/s, median, and share of the limit in %)",
        &["transfer", "limit", "one stream", "share", "streams", "share"],
    );
    for found in run.report.findings.iter_mut().filter(|found| found.bench == "model") {
        let direction = found.parameters.get("direction").and_then(|name| name.as_str()).unwrap_or_default();
        let is_read = match direction {
            "read" => true,
            "write" => false,
            _ => continue,
        };
        let limit = match &calibrated {
            Ok(limits) => {
                if is_read {
                    limits.read_mib_s
                } else {
                    limits.write_mib_s
                }
            }
            Err(why) => {
                println!("no shares of the disk's limit: {why}");
                return;
            }
        };
        let mut row = vec![found.what.clone(), digits(limit)];
        found.parameters.insert("calibrated_mib_s".into(), limit.into());
        for (series, name) in [("amphi_mib_s", "share_percent"), ("amphi_streams_mib_s", "share_streams_percent")] {
            let rate = found.series.get(series).map_or(f64::NAN, |series| series.median());
            let share = 100.0 * rate / limit;
            row.extend([digits(rate), format!("{share:.0}")]);
            found.parameters.insert(name.into(), share.into());
        }
        table.row(row);
    }
    run.show(&table);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::{Finding, Report};
    use crate::series::Series;
    use std::sync::Arc;

    /// Goal: reads and writes are compared with the limit of their own, and rows without a direction with none. Method:
    /// a report made by hand.
    #[test]
    fn rows_have_their_share() {
        let dir = std::env::temp_dir();
        let of = |what: &str| {
            let row = Finding::new("model", what).series("amphi_mib_s", &Series(vec![50.0]));
            row.series("amphi_streams_mib_s", &Series(vec![150.0]))
        };
        let findings = vec![
            of("a").with("direction", "read"),
            of("b").with("direction", "write"),
            of("c"),
            Finding::new("idle", "d"),
        ];
        let report = Report { machine: Machine::look(&dir, 1, true), findings, tables: Default::default() };
        let mut run = Run { dir, pairs: 1, quick: true, report, only: None, plots: None, stop: Arc::default() };
        show(&mut run, Err("nothing counts".into()));
        assert!(run.report.tables.borrow().is_empty());
        show(&mut run, Ok(Calibrated { read_mib_s: 100.0, write_mib_s: 200.0 }));
        let share = |at: usize, name: &str| run.report.findings[at].parameters.get(name).and_then(|v| v.as_f64());
        assert_eq!((share(0, "share_percent"), share(0, "share_streams_percent")), (Some(50.0), Some(150.0)));
        assert_eq!((share(1, "share_percent"), share(1, "calibrated_mib_s")), (Some(25.0), Some(200.0)));
        assert_eq!((share(2, "share_percent"), share(3, "share_percent")), (None, None));
        assert_eq!(run.report.tables.borrow().len(), 1);
    }
}
