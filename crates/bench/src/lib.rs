//! `amphi bench`: measurements with their goals, ratios taken in one run. A benchmark is not a test.
//!
//! Owns: the command line, the order that benchmarks run in. Does not own: the parts that all share (`run`). Each
//! benchmark is a file of `bench/`. Invariants: the compared variants take turns within one run; every sample is kept;
//! processes and mounts that were started are stopped and unmounted, also after an error or a signal.

mod bare;
mod breakdown;
mod cached;
pub mod clock;
pub mod cluster;
pub mod demo;
mod embedded;
mod figures;
mod fresh;
mod idle;
mod kernel;
mod library;
mod links;
mod locks;
mod machine;
mod memory_group;
mod model;
mod modes;
mod mounted;
mod mounted_cluster;
mod mounts;
mod mpiio;
mod polling;
mod preload;
mod program;
mod raw;
mod report;
mod round_trip;
mod run;
mod scenario;
mod series;
mod servers;
mod sessions;
mod settings;
mod shares;
mod small;
pub mod stream;
mod turns;
mod untar;
mod workload;

use amphi_host::failure::{During, Failure, Outcome};
use clap::{Args, Subcommand, ValueEnum};
pub use machine::date;
pub use run::Run;
pub use settings::{DEFAULT_SPINS, session_config};
pub use shares::Calibrated;

use report::Report;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Name {
    /// What this machine can do without AmphiFS: disk, sockets, threads, FUSE
    Bare,
    /// Auto beside buffered and direct for each transfer size, through FUSE and the library
    Modes,
    /// Large transfers beside the serial model of disk, transport and FUSE
    Model,
    /// Buffered 4 KiB and 64 KiB through FUSE beside a do-nothing FUSE target
    Small,
    /// Cached 4 KiB calls of the client library beside memcpy, stat beside a bare ping-pong
    Library,
    /// Untar and delete of a tree of 10,000 files beside its budget
    Tree,
    /// Memory and processor time of an idle cluster
    Idle,
    /// What brief polling buys
    Polling,
    /// Two mounts of one server: locks that go to and fro, stat, alternate blocks, reads of what is cached
    Mounts,
    /// Warm reads and walks that the kernel can serve, alone and beside a second mount, beside the local file system
    Mount,
    /// One mount on a cluster of two server processes, beside one process
    Servers,
    /// Memory and request rate of a server with 1,000 sessions
    Sessions,
    /// Time and memory of 100,000 locks on one file
    Locks,
    /// Records in turn in one file by several mounts, beside other ways of doing it (ior-hard, ior-easy)
    Strided,
    /// Write-back on the server: records of several mounts, small synchronous writes, overwrites; on beside off
    Writeback,
    /// Streams larger than the cache in a mount whose memory is limited
    Overcache,
    /// Many small files in one directory, with and without batching (mdtest-hard)
    Files,
    /// Shared files in the sizes of two simulations
    Mixed,
    /// One and 16 streams, aligned and not, beside other ways of doing it
    Streams,
    /// Where the time of a buffered and of a direct write goes
    Breakdown,
    /// Reads of cached files without calls (`amphi run`) beside memcpy, the mount and the local file system
    Preload,
    /// Patterns of MPI programs, as their library does them and with the cooperative cache (needs MPI and `make mpiio`)
    Mpiio,
}

/// A workload of several processes.
#[derive(Subcommand, Debug)]
enum Workload {
    /// Write and read files with several processes, as IOR does
    Ior(workload::ior::Ior),
    /// Make, look at, read and remove many files with several processes, as mdtest does
    Mdtest(workload::mdtest::Mdtest),
    /// Redraw the figures and tables of the papers on this machine, each with a verdict on its shape
    Figures(figures::Figures),
    /// One process of a workload
    #[command(hide = true)]
    Rank,
}

/// Measure this machine and AmphiFS on it; prints tables, writes JSON.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    #[command(subcommand)]
    workload: Option<Workload>,
    /// What to measure; default: everything
    #[arg(value_enum)]
    names: Vec<Name>,
    /// Folder to work in, on the storage to measure; what is made in it is removed again
    #[arg(long, default_value = "bench-out")]
    dir: PathBuf,
    /// Write every sample, with the parameters of the run, to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Folder for pictures (SVG) of what is drawn
    #[arg(long)]
    plots: Option<PathBuf>,
    /// Rounds of each comparison
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pairs: u16,
    /// Fewer sizes, shorter samples: to see that it works
    #[arg(long)]
    quick: bool,
    /// Measure only rows whose name contains this, as in "read 4 KiB"; modes, model, small, library, mount, writeback,
    /// overcache and streams have such rows
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Serve the do-nothing mount here until standard input ends
    #[arg(long, hide = true)]
    null_mount: Option<PathBuf>,
    /// Read this file as standard input says
    #[arg(long, hide = true)]
    probe: Option<PathBuf>,
}

impl Bench {
    /// Runs the selected benchmarks. `calibrated` gives what was measured before of the disk of a folder, if anything
    /// was, or why that does not count.
    pub fn run(mut self, calibrated: impl FnOnce(&Path) -> Option<Result<Calibrated, String>>) -> Outcome {
        match self.workload.take() {
            Some(Workload::Ior(ior)) => return ior.run(),
            Some(Workload::Mdtest(mdtest)) => return mdtest.run(),
            Some(Workload::Figures(figures)) => return figures.run(),
            Some(Workload::Rank) => return workload::tasks::serve(),
            None => {}
        }
        if let Some(mount) = &self.null_mount {
            return program::serve_null(mount);
        }
        if let Some(file) = &self.probe {
            return preload::probe(file);
        }
        if self.dir.exists() {
            let text = format!("{}: exists already; remove it or name another folder with --dir", self.dir.display());
            return Err(Failure::refused(text));
        }
        std::fs::create_dir_all(&self.dir).during(|| format!("make {}", self.dir.display()))?;
        if let Some(plots) = &self.plots {
            std::fs::create_dir_all(plots).during(|| format!("make {}", plots.display()))?;
        }
        let dir = std::fs::canonicalize(&self.dir).during(|| format!("find {}", self.dir.display()))?;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in amphi_host::signals::ending_signals() {
            signal_hook::flag::register(signal, stop.clone()).during(|| "catch signals".into())?;
        }
        let pairs = usize::from(self.pairs);
        let machine = machine::Machine::look(&dir, pairs, self.quick);
        println!("{}", machine.line());
        let report = Report { machine, findings: Vec::new(), tables: RefCell::default() };
        let mut run = Run {
            dir: dir.clone(),
            pairs,
            quick: self.quick,
            report,
            only: self.only.clone(),
            plots: self.plots.clone(),
            stop,
        };
        let outcome = self.measure(&mut run).and_then(|()| match &self.only {
            Some(text) if run.report.findings.is_empty() => {
                Err(Failure::refused(format!("--only {text}: no row of what was to be measured has this in its name")))
            }
            _ => Ok(()),
        });
        if let Some(calibrated) = calibrated(&dir) {
            shares::show(&mut run, calibrated);
        }
        let written = self.json.as_ref().map_or(Ok(()), |path| run.report.write_json(path));
        let _ = std::fs::remove_dir_all(&dir);
        outcome.and(written)
    }

    fn measure(&self, run: &mut Run) -> Outcome {
        let names = if self.names.is_empty() { Name::value_variants() } else { &self.names };
        for name in names {
            match name {
                Name::Bare => bare::run(run)?,
                Name::Modes => modes::run(run)?,
                Name::Model => model::run(run)?,
                Name::Small => small::run(run)?,
                Name::Library => cached::run(run)?,
                Name::Tree => untar::run(run)?,
                Name::Idle => idle::run(run)?,
                Name::Polling => polling::run(run)?,
                Name::Mounts => mounts::run(run)?,
                Name::Mount => kernel::run(run)?,
                Name::Servers => servers::run(run)?,
                Name::Sessions => sessions::run(run)?,
                Name::Locks => locks::run(run)?,
                Name::Strided => scenario::strided::run(run)?,
                Name::Writeback => scenario::write_back::run(run)?,
                Name::Overcache => scenario::overcache::run(run)?,
                Name::Files => scenario::small_files::run(run)?,
                Name::Mixed => scenario::mixed::run(run)?,
                Name::Streams => scenario::streams::run(run)?,
                Name::Breakdown => breakdown::run(run)?,
                Name::Preload => preload::run(run)?,
                Name::Mpiio => mpiio::run(run)?,
            }
        }
        Ok(())
    }
}
