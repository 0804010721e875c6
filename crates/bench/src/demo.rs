//! `amphi demo`: the main job on real input, from nothing to nothing left running.
//!
//! Owns the order of the steps and what is said about them; the steps are in `demo/`. Everything goes through
//! the program's own front end: a child process `amphi up` and the mount it makes.

mod cluster;
mod picture;
mod real;
mod table;
pub mod tree;

use amphi_env::Time;
use amphi_env::real::monotonic;
use amphi_host::failure::{Failure, Outcome};
use clap::Args;
use cluster::Cluster;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;

/// Start a cluster, run real programs on it, measure, stop, start again, compare; under 5 minutes.
#[derive(Args, Debug)]
pub struct Demo {
    /// Folder to work in: a new one, or that of a demo before
    #[arg(long, default_value = "demo-out")]
    dir: PathBuf,
    /// Client cache; the streamed file has twice this size
    #[arg(long, default_value = "64M", value_parser = amphi_host::size::parse)]
    cache: u64,
    /// Least number of files of the source tree
    #[arg(long, default_value_t = 10_000)]
    files: usize,
    /// Servers of the cluster, each further one in a process of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8))]
    servers: u16,
    /// Keep the folder with the cluster's data; otherwise only the picture and the table stay
    #[arg(long)]
    keep: bool,
    /// Largest transfer that is measured: fewer make the demo short enough for a test
    #[arg(long, hide = true, default_value = "64M", value_parser = amphi_host::size::parse)]
    largest: u64,
}

/// What stays of a demo.
const TABLE: &str = "table.txt";
const PICTURE: &str = "stream.svg";
const RESULTS: [&str; 2] = [TABLE, PICTURE];

/// A progress bar with the step's name in front.
fn bar(what: &str, len: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("  {msg:<34} [{bar:30}] {pos}/{len} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ");
    ProgressBar::new(len).with_style(style).with_message(what.to_string())
}

/// Prints a finished step with its time.
fn done(what: &str, since: Time) {
    println!("  {what:<60} {:>7.1} s", monotonic().since(since).as_secs_f64());
}

impl Demo {
    /// Runs every step; stops at the first that fails, with nothing left running.
    pub fn run(self) -> Outcome {
        self.clear()?;
        let start = monotonic();
        let (data, mount) = (self.dir.join("data"), self.dir.join("mount"));
        for d in [&data, &mount] {
            std::fs::create_dir_all(d).map_err(|e| Failure::broken(format!("cannot make {}: {e}", d.display())))?;
        }
        let outcome = self.steps(&data, &mount);
        if !self.keep {
            for d in [&data, &mount, &self.dir.join("raw")] {
                let _ = std::fs::remove_dir_all(d);
            }
            // Only if nothing is in it that is worth a look.
            let _ = std::fs::remove_dir(&self.dir);
        }
        outcome?;
        println!(
            "\nAll compared equal, nothing is left running. {:.0} s in all.",
            monotonic().since(start).as_secs_f64()
        );
        println!("Table: {}   Picture: {}", self.dir.join(TABLE).display(), self.dir.join(PICTURE).display());
        Ok(())
    }

    /// Takes away what a demo before has left of its own; everything else is somebody's.
    fn clear(&self) -> Outcome {
        let shown = self.dir.display();
        let names = match std::fs::read_dir(&self.dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Failure::refused(format!("{shown}: {e}; name another folder with --dir"))),
            Ok(entries) => entries.filter_map(|e| Some(e.ok()?.file_name())).collect::<Vec<_>>(),
        };
        if let Some(other) = names.iter().find(|n| !RESULTS.iter().any(|r| *n == r)) {
            return Err(Failure::refused(format!(
                "{shown}: exists already and has more in it than table and picture of a demo ({}); remove it or name another folder with --dir",
                other.display()
            )));
        }
        for name in RESULTS {
            let _ = std::fs::remove_file(self.dir.join(name));
        }
        Ok(())
    }

    fn steps(&self, data: &std::path::Path, mount: &std::path::Path) -> Outcome {
        let more = if self.servers > 1 { format!(" --servers {}", self.servers) } else { String::new() };
        println!("1. A cluster: amphi up --data {} --mount {}{more}", data.display(), mount.display());
        let t = monotonic();
        let cluster = Cluster::up(data, mount, self.cache, self.servers)?;
        done("ready", t);

        println!("2. A real source tree");
        let source = tree::choose(self.files)?;
        let t = monotonic();
        let copy = mount.join("tree");
        tree::copy(&source, &copy)?;
        done(&format!("{} files, {} copied", source.files.len(), amphi_host::size::show(source.bytes)), t);
        let t = monotonic();
        tree::compare(&source, &copy)?;
        done("compared byte for byte", t);

        println!("3. Real programs on it");
        real::run(mount)?;

        println!(
            "4. Streams of {} through a cache of {}",
            amphi_host::size::show(2 * self.cache),
            amphi_host::size::show(self.cache)
        );
        let rows = table::measure(mount, &self.dir.join("raw"), 2 * self.cache, self.largest)?;
        let text = table::render(&rows);
        print!("{text}");
        std::fs::write(self.dir.join(TABLE), &text)
            .map_err(|e| Failure::broken(format!("cannot write the table: {e}")))?;
        picture::draw(&rows.rows, &self.dir.join(PICTURE))?;

        println!("5. Stop, start again on the same folder");
        let t = monotonic();
        cluster.stop()?;
        done("stopped", t);
        let t = monotonic();
        let cluster = Cluster::up(data, mount, self.cache, self.servers)?;
        done("ready", t);
        let t = monotonic();
        tree::compare(&source, &copy)?;
        done("compared byte for byte again", t);
        let t = monotonic();
        let listed = tree::list_all(&source, &copy)?;
        done(&format!("{listed} entries listed"), t);
        let t = monotonic();
        tree::delete(&copy)?;
        done("deleted", t);
        cluster.stop()
    }
}
