//! The second table of a scenario: auto without each of its parts, one after the other, all in turn in one run.
//!
//! Owns: the form of that table, its picture and its results. Does not own: what is measured. Invariant: the first
//! variant is auto, whole; ratios to it are taken within a round.

use super::reasons::reasons;
use super::variant::Variant;
use super::{Found, cells, draw, medians};
use crate::Run;
use crate::report::{Finding, Table, digits};
use crate::workload::plot::Panel;
use amphi_host::failure::Outcome;

/// What is shown.
pub struct Parts<'a> {
    /// The name of the benchmark on the command line.
    pub bench: &'static str,
    /// The measured quantity, in titles and in names of results.
    pub what: &'a str,
    /// The unit of the series, e.g. MiB/s, and the suffix for names of results.
    pub unit: (&'a str, &'a str),
    /// Names of the series.
    pub ways: &'a [&'a str],
    /// Auto, then what lacks a part.
    pub variants: &'a [Variant],
    /// The results of each variant.
    pub found: &'a [Found],
}

impl Parts<'_> {
    /// Ratios of variant `at` to auto, a cell for each way.
    fn ratios(&self, at: usize) -> Vec<f64> {
        let of = |way: usize| self.found[at].series[way].over(&self.found[0].series[way]).median();
        (0..self.ways.len()).map(of).collect()
    }

    /// Prints the table, keeps the results, draws the picture.
    pub fn show(&self, run: &mut Run) -> Outcome {
        let title =
            format!("Auto without each part, {} ({}, median and range; ratios of rounds)", self.what, self.unit.0);
        let heads: Vec<String> = self.ways.iter().map(|way| format!("{way} / auto")).collect();
        let columns: Vec<&str> =
            ["variant"].into_iter().chain(self.ways.iter().copied()).chain(heads.iter().map(String::as_str)).collect();
        let mut table = Table::new(title, &columns);
        for (at, (variant, found)) in self.variants.iter().zip(self.found).enumerate() {
            let mut line = vec![variant.name.to_string()];
            line.extend(cells(&found.series));
            line.extend(self.ratios(at).into_iter().map(digits));
            table.row(line);
            self.keep(run, variant, found);
        }
        run.show(&table);
        self.draw(run)
    }

    /// Which way requests went in each variant.
    pub fn show_reasons(&self, run: &Run, always: &[&str], directions: &[&str]) {
        let rows: Vec<_> = self.variants.iter().zip(self.found).map(|(v, f)| (v.name.into(), &f.counted)).collect();
        let title = format!("Why requests went which way, {}, all rounds", self.what);
        run.show(&reasons(title, always, directions, &rows));
    }

    fn keep(&self, run: &mut Run, variant: &Variant, found: &Found) {
        let mut finding = Finding::new(self.bench, format!("parts: {}, {}", self.what, variant.name));
        for (way, series) in self.ways.iter().zip(&found.series) {
            finding = finding.series(format!("{}_{}", way.replace(' ', "_"), self.unit.1), series);
        }
        for (name, (n, _)) in &found.counted {
            finding = finding.with(name, *n);
        }
        run.report.findings.push(finding);
    }

    /// A panel for each way: rates of different ways need scales of their own.
    fn draw(&self, run: &Run) -> Outcome {
        let panel = |(way, name): (usize, &&str)| Panel {
            title: name.to_string(),
            groups: vec![(String::new(), medians(self.found, way))],
        };
        let panels: Vec<Panel> = self.ways.iter().enumerate().map(panel).collect();
        let name = format!("{}-parts-{}", self.bench, self.what);
        draw(run, &name, &format!("Auto without each part, {}", self.what), self.unit.0, self.variants, &panels, 2)
    }
}
