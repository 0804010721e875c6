//! `Report`: the results of a run: tables for people, JSON for machines, goals beside the numbers.
//!
//! Owns: the form of both. Invariant: a number in a table is in the JSON as well, with all its samples.

use super::machine::Machine;
use super::series::Series;
use amphi_host::failure::{During, Outcome};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

/// The goal for a number.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Not less than this.
    AtLeast(f64),
    /// Not more than this.
    AtMost(f64),
}

impl Goal {
    /// Whether `value` reaches it.
    pub fn met(self, value: f64) -> bool {
        match self {
            Goal::AtLeast(g) => value >= g,
            Goal::AtMost(g) => value <= g,
        }
    }

    /// The goal as a cell of a table, and whether `value` meets it.
    pub fn show(self, value: f64) -> String {
        let verdict = if self.met(value) { "met" } else { "MISSED" };
        match self {
            Goal::AtLeast(g) => format!(">= {} {verdict}", digits(g)),
            Goal::AtMost(g) => format!("<= {} {verdict}", digits(g)),
        }
    }
}

/// One measured thing.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// Which benchmark.
    pub bench: &'static str,
    /// What was measured.
    pub what: String,
    /// Sizes, modes and the like.
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// Samples by name; the unit is part of the name.
    pub series: BTreeMap<String, Series>,
    /// The number that the goal speaks of.
    pub value: Option<f64>,
    /// What it should be.
    pub goal: Option<Goal>,
    /// Whether it is.
    pub met: Option<bool>,
}

impl Finding {
    /// A report without findings.
    pub fn new(bench: &'static str, what: impl Into<String>) -> Finding {
        Finding {
            bench,
            what: what.into(),
            parameters: BTreeMap::new(),
            series: BTreeMap::new(),
            value: None,
            goal: None,
            met: None,
        }
    }

    /// Adds a parameter.
    pub fn with(mut self, name: &str, value: impl Into<serde_json::Value>) -> Finding {
        self.parameters.insert(name.into(), value.into());
        self
    }

    /// Adds samples.
    pub fn series(mut self, name: impl Into<String>, series: &Series) -> Finding {
        self.series.insert(name.into(), series.clone());
        self
    }

    /// Sets the number of interest without a goal.
    pub fn value(mut self, value: f64) -> Finding {
        self.value = Some(value);
        self
    }

    /// Sets the number of interest and its goal.
    pub fn goal(mut self, value: f64, goal: Goal) -> Finding {
        self.value = Some(value);
        self.goal = Some(goal);
        self.met = Some(goal.met(value));
        self
    }
}

/// Everything a run found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The machine and the conditions of the run.
    pub machine: Machine,
    /// The findings in the order in which they were measured.
    pub findings: Vec<Finding>,
    /// The tables that were shown.
    pub tables: RefCell<Vec<Shown>>,
}

/// A table as it was shown: the pages of `docs/results` take their tables from here (`cargo xtask performance`).
#[derive(Debug, Serialize)]
pub struct Shown {
    /// What it is about.
    pub title: String,
    /// Its lines in Markdown, without the title.
    pub lines: Vec<String>,
}

impl Report {
    /// Writes everything as JSON.
    pub fn write_json(&self, path: &Path) -> Outcome {
        let text = serde_json::to_string_pretty(self).during(|| "turn the results into JSON".into())?;
        std::fs::write(path, text + "\n").during(|| format!("write {}", path.display()))
    }
}

/// A table for people.
pub struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

impl Table {
    /// A table without rows, with a title and the heads of its columns.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Table {
        let columns = columns.iter().map(|c| c.to_string()).collect();
        Table { title: title.into(), columns, rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Whether none of its rows was selected.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a line below.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// For the JSON of the run.
    pub fn shown(&self) -> Shown {
        let text = self.render();
        let lines = text.lines().skip_while(|line| !line.starts_with('|')).map(str::to_string).collect();
        Shown { title: self.title.clone(), lines }
    }

    /// The table as text: a Markdown table whose columns line up, so that it can be read on a terminal and pasted into
    /// a page.
    pub fn render(&self) -> String {
        let count = |s: &str| s.chars().count();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|i| {
                self.rows.iter().chain([&self.columns]).filter_map(|r| r.get(i)).map(|c| count(c)).max().unwrap_or(0)
            })
            .collect();
        let line = |cells: &[String]| {
            let mut out = String::from("|");
            for (i, width) in widths.iter().enumerate() {
                let cell = cells.get(i).map_or("", String::as_str);
                let blanks = " ".repeat(width - count(cell));
                // Words to the left, numbers to the right: the first column holds words.
                out += &if i == 0 { format!(" {cell}{blanks} |") } else { format!(" {blanks}{cell} |") };
            }
            out + "\n"
        };
        let mut out = format!("\n{}\n\n{}|", self.title, line(&self.columns));
        for (i, width) in widths.iter().enumerate() {
            out += &format!("{}{}|", "-".repeat(width + 1), if i == 0 { "-" } else { ":" });
        }
        out.push('\n');
        self.rows.iter().for_each(|r| out += &line(r));
        self.notes.iter().for_each(|n| out += &format!("{n}\n"));
        out
    }
}

/// Three digits or so.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "-".into(),
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Median and range.
pub fn spread(series: &Series) -> String {
    let (low, high) = series.range();
    format!("{} ({}-{})", digits(series.median()), digits(low), digits(high))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: columns line up, goals say met or missed. Method: a small table.
    #[test]
    fn table_lines_up() {
        let mut t = Table::new("t", &["what", "n"]);
        t.row(vec!["a".into(), Goal::AtLeast(0.8).show(0.75)]);
        t.row(vec!["bcdef".into(), Goal::AtMost(3.0).show(2.0)]);
        let text = t.render();
        assert!(text.contains("| a     | >= 0.80 MISSED |"), "{text}");
        assert!(text.contains("| bcdef |    <= 3.00 met |"), "{text}");
        let shown = t.shown();
        assert_eq!((shown.title.as_str(), shown.lines.len()), ("t", 4), "{shown:?}");
        assert_eq!(
            (digits(1234.5), digits(12.34), digits(0.5), digits(f64::NAN)),
            ("1234".into(), "12.3".into(), "0.50".into(), "-".into())
        );
    }
}
