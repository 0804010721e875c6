//! The common state of all benchmarks of a run: folder, rounds, stopping, the place of results.

use crate::report::{Report, Table};
use amphi_host::failure::{Failure, Outcome};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The common state of all benchmarks of a run.
pub struct Run {
    /// Working folder.
    pub dir: PathBuf,
    /// Rounds of each comparison.
    pub pairs: usize,
    /// Fewer sizes, shorter samples.
    pub quick: bool,
    /// The results so far.
    pub report: Report,
    /// Measure only rows whose name contains this.
    pub only: Option<String>,
    /// Folder for pictures.
    pub plots: Option<PathBuf>,
    /// The user wants to stop.
    pub stop: Arc<AtomicBool>,
}

impl Run {
    /// A progress bar that vanishes when it is done.
    pub fn bar(&self, what: &str, len: u64) -> ProgressBar {
        let style = ProgressStyle::with_template("  [{bar:24}] {pos}/{len} {elapsed} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        ProgressBar::new(len).with_style(style).with_message(what.to_string())
    }

    /// Whether a row of this name is to be measured.
    pub fn wants(&self, row: &str) -> bool {
        self.only.as_ref().is_none_or(|text| row.contains(text.as_str()))
    }

    /// Errors once the user wants to stop.
    pub fn check_stop(&self) -> Outcome {
        if self.stop.load(Ordering::Relaxed) { Err(Failure::broken("stopped by a signal")) } else { Ok(()) }
    }

    /// How long a sample of many short calls takes.
    pub fn sample_time(&self) -> Duration {
        Duration::from_millis(if self.quick { 30 } else { 100 })
    }

    /// The path of the picture `name`, if pictures are wanted.
    pub fn picture(&self, name: &str) -> Option<PathBuf> {
        self.plots.as_ref().map(|dir| dir.join(format!("{name}.svg")))
    }

    /// Prints a table, if it has rows, and keeps it for the JSON.
    pub fn show(&self, table: &Table) {
        if !table.is_empty() {
            println!("{}", table.render());
            self.report.tables.borrow_mut().push(table.shown());
        }
    }
}
