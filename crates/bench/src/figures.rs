//! `amphi bench figures`: every figure and table of the papers behind AmphiFS, measured at the size of this machine,
//! drawn, and compared with what the paper's text states about its shape.
//!
//! Owns: the command, the order and the time left, what happens on errors and signals. Does not own: what is measured
//! for a figure and what it must look like (a file for each paper), the statements (`claim`), the pictures (`svg`).
//! Invariants: a figure is written as soon as it is made, so that a stopped run keeps what it has; the working folder
//! with all clusters is removed however the run ends; "not reproduced" is said in the same words and places as
//! "reproduced"; a shape that is not reproduced is a result and no error.

mod autoio;
mod catalog;
mod claim;
mod graph;
mod lab;
mod mpiio;
mod peakfs;
mod record;
mod svg;

use crate::report::Report;
use crate::{Run, clock, machine};
use amphi_host::failure::{During, Failure, Outcome};
use catalog::{Figure, Source};
use claim::{Check, Verdict};
use clap::Args;
use graph::Seen;
use lab::{Lab, Made};
use record::Record;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Rounds of each comparison, whole and quick.
const ROUNDS: [u16; 2] = [5, 2];

/// Redraw the figures and tables of the papers on this machine, each with a verdict on its shape
#[derive(Args, Debug)]
pub struct Figures {
    /// Show all figures with their numbers, and measure nothing
    #[arg(long)]
    list: bool,
    /// Make these alone: autoio-5, autoio-t2 (a table), a number (that one of each paper), or a paper
    #[arg(long, value_name = "N", value_delimiter = ',')]
    only: Vec<String>,
    /// Fewer sizes, shorter samples and fewer rounds: done within minutes, for a first look
    #[arg(long)]
    quick: bool,
    /// Folder for pictures (SVG), numbers (JSON, text) and the page index.html; figures of the same name are replaced
    #[arg(long, value_name = "DIR", default_value = "figures-out")]
    out: PathBuf,
    /// Folder to work in, on the storage to measure; it is made and removed again
    #[arg(long, value_name = "DIR", default_value = "bench-out")]
    dir: PathBuf,
    /// Rounds of each comparison [default: 5, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pairs: Option<u16>,
    /// Measure one index in a process of its own
    #[arg(long, hide = true)]
    index: Option<String>,
}

/// The working folder; it goes with the value.
struct Workplace(PathBuf);

impl Drop for Workplace {
    fn drop(&mut self) {
        // A folder that was unmounted just now may still be busy for a moment.
        for _ in 0..20 {
            if std::fs::remove_dir_all(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            clock::pause(Duration::from_millis(50));
        }
        eprintln!("amphi: {} could not be removed; remove it by hand", self.0.display());
    }
}

/// What is done, what is left, and how fast it goes.
struct Progress {
    start: std::time::Instant,
    /// Seconds that the catalogue says, done and in all.
    done: u32,
    all: u32,
}

impl Progress {
    /// Seconds left by the pace so far; by the catalogue before the first figure is done.
    fn left(&self) -> f64 {
        let left = f64::from(self.all.saturating_sub(self.done));
        let pace = match self.done {
            0 => 1.0,
            done => self.start.elapsed().as_secs_f64() / f64::from(done),
        };
        left * pace
    }
}

/// A time for people.
fn minutes(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s => format!("{:.0} min", s / 60.0),
    }
}

fn list() {
    let mut paper = "";
    for figure in catalog::all() {
        if figure.paper() != paper {
            paper = figure.paper();
            println!("\n{paper}");
        }
        match figure.source {
            Source::Measured { .. } => println!("  {:<10} {}", figure.id, figure.title),
            Source::Untried(why) => println!("  {:<10} {} (cannot be tried here: {why})", figure.id, figure.title),
        }
    }
}

impl Figures {
    /// Makes the selected figures.
    pub fn run(&self) -> Outcome {
        if let Some(name) = &self.index {
            return peakfs::indexes::measure_one(name);
        }
        if self.list {
            list();
            return Ok(());
        }
        let figures = catalog::wanted(&self.only)?;
        if self.dir.exists() {
            let text = format!("{}: exists already; remove it or name another folder with --dir", self.dir.display());
            return Err(Failure::refused(text));
        }
        std::fs::create_dir_all(&self.out).during(|| format!("make {}", self.out.display()))?;
        std::fs::create_dir_all(&self.dir).during(|| format!("make {}", self.dir.display()))?;
        let place = Workplace(std::fs::canonicalize(&self.dir).during(|| format!("find {}", self.dir.display()))?);
        let stop = Arc::new(AtomicBool::new(false));
        for signal in amphi_host::signals::ending_signals() {
            signal_hook::flag::register(signal, stop.clone()).during(|| "catch signals".into())?;
        }
        let pairs = usize::from(self.pairs.unwrap_or(ROUNDS[usize::from(self.quick)]));
        let machine = machine::Machine::look(&place.0, pairs, self.quick);
        println!("{}", machine.line());
        let report = Report { machine, findings: Vec::new(), tables: RefCell::default() };
        let run = Run { dir: place.0.clone(), pairs, quick: self.quick, report, only: None, plots: None, stop };
        self.make(&figures, &mut Lab::new(run))
    }

    fn make(&self, figures: &[Figure], lab: &mut Lab) -> Outcome {
        let all = figures.iter().map(|f| f.seconds(self.quick)).sum();
        let mut progress = Progress { start: clock::now(), done: 0, all };
        let (mut verdicts, mut failed) = (Vec::new(), Vec::new());
        let mut ended = Ok(());
        for (at, figure) in figures.iter().enumerate() {
            let left = minutes(progress.left());
            println!("[{} of {}, about {left} left] {}: {}", at + 1, figures.len(), figure.id, figure.title);
            let result = lab.run.check_stop().and_then(|()| measured(figure, lab));
            clear(&lab.run.dir);
            if lab.run.stop.load(Ordering::Relaxed) {
                ended = Err(Failure::broken(format!("stopped by a signal at {}", figure.id)));
                break;
            }
            let (made, checks) = result.unwrap_or_else(|e| {
                failed.push(figure.id);
                (Made::default(), vec![Check::whole(format!("measuring failed: {}", e.text))])
            });
            let record = self.record(lab, figure, made, checks);
            print!("{}", record.verdicts());
            record.write(&self.out)?;
            write_index(&self.out)?;
            verdicts.push(record.verdict);
            progress.done += figure.seconds(self.quick);
        }
        let count = |verdict: Verdict| verdicts.iter().filter(|v| **v == verdict).count();
        println!(
            "\n{} of {} figures: {} reproduced, {} not reproduced, {} cannot be tried here; {}",
            verdicts.len(),
            figures.len(),
            count(Verdict::Reproduced),
            count(Verdict::NotReproduced),
            count(Verdict::CannotBeTried),
            self.out.join(record::INDEX).display()
        );
        ended?;
        match failed.is_empty() {
            true => Ok(()),
            false => Err(Failure::broken(format!("measuring failed, see the text of each: {}", failed.join(", ")))),
        }
    }

    fn record(&self, lab: &Lab, figure: &Figure, made: Made, checks: Vec<Check>) -> Record {
        Record {
            id: figure.id.into(),
            title: figure.title.into(),
            paper: figure.paper().into(),
            how: made.how,
            verdict: Verdict::of(&checks),
            checks,
            panels: made.panels,
            machine: lab.run.report.machine.line(),
            date: machine::date(clock::unix_seconds()),
            quick: self.quick,
            rounds: lab.run.pairs,
        }
    }
}

/// Removes what a figure left in the working folder, whose space the next one may need. What is busy goes at the end.
fn clear(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let _ = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
    }
}

/// The panels of a figure and its statements with their verdicts.
fn measured(figure: &Figure, lab: &mut Lab) -> Outcome<(Made, Vec<Check>)> {
    match figure.source {
        Source::Untried(why) => Ok((Made::default(), vec![Check::whole(why)])),
        Source::Measured { measure, check, .. } => {
            let made = measure(lab)?;
            if let Some(missing) = &made.missing {
                let checks = vec![Check::whole(missing)];
                return Ok((made, checks));
            }
            let checks = check(&Seen { panels: &made.panels, cores: lab.run.report.machine.cores });
            Ok((made, checks))
        }
    }
}

fn write_index(out: &Path) -> Outcome {
    let ids: Vec<&str> = catalog::all().iter().map(|figure| figure.id).collect();
    record::write_index(out, &ids)
}

#[cfg(test)]
mod tests;
