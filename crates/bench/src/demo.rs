//! `amphi demo`: the main job on real input, from nothing to nothing left running.
//!
//! Owns the order of the steps and their messages; the steps are in `demo/`. Everything goes through the program's own
//! front end: a child process `amphi up` and the mount it makes.

mod cluster;
mod folder;
mod picture;
mod real;
pub mod stop;
mod table;
pub mod tree;

use amphi_env::Time;
use amphi_env::real::monotonic;
use amphi_host::failure::{During, Failure, Outcome};
use clap::Args;
use cluster::Cluster;
use folder::Folder;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use stop::Stop;

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

/// The results that stay of a demo.
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

/// The output of this program with `args` and `path`, each line indented a little.
fn shown(args: &[&str], path: &Path) -> Outcome<String> {
    let program = std::env::current_exe().during(|| "find this program".into())?;
    let out = Command::new(program).args(args).arg(path).output();
    let out = out.during(|| format!("run amphi {}", args.join(" ")))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr).trim().to_string();
        return Err(Failure::broken(format!("amphi {}: {said}", args.join(" "))));
    }
    Ok(String::from_utf8_lossy(&out.stdout).lines().map(|line| format!("  {line}\n")).collect())
}

/// Prints one screen of `amphi top`, while a file of 8 MiB is written repeatedly, and the output of `amphi explain` for
/// that file.
fn looked_at(mount: &Path, stop: &Stop) -> Outcome {
    let (ended, written) = (AtomicBool::new(false), mount.join("looked-at"));
    println!("5. What it is doing, while a program writes: amphi top --once {}", mount.display());
    let bytes = vec![7; 8 << 20];
    let (top, writer) = std::thread::scope(|s| {
        let writer = s.spawn(|| {
            while !ended.load(Relaxed) && stop.check().is_ok() {
                std::fs::write(&written, &bytes)?;
            }
            std::io::Result::Ok(())
        });
        let top = shown(&["top", "--once"], mount);
        ended.store(true, Relaxed);
        (top, writer.join())
    });
    print!("{}", top?);
    writer.map_err(|_| Failure::broken("the writer panicked"))?.during(|| format!("write {}", written.display()))?;
    stop.check()?;
    println!("6. Why it went that way: amphi explain {}", written.display());
    print!("{}", shown(&["explain"], &written)?);
    std::fs::remove_file(&written).during(|| format!("remove {}", written.display()))
}

impl Demo {
    /// Runs every step; stops at the first that fails, or when a signal says so, with nothing left running.
    pub fn run(self) -> Outcome {
        let stop = Stop::on_signals()?;
        let folder = Folder::take(&self.dir)?;
        let start = monotonic();
        let outcome = self.steps(&folder, &stop);
        let ended = folder.end(self.keep);
        // Whatever fails because of it, a signal is why.
        stop.check()?;
        outcome.and(ended)?;
        println!(
            "\nAll compared equal, nothing is left running. {:.0} s in all.",
            monotonic().since(start).as_secs_f64()
        );
        println!("Table: {}   Picture: {}", self.dir.join(TABLE).display(), self.dir.join(PICTURE).display());
        Ok(())
    }

    fn steps(&self, folder: &Folder, stop: &Stop) -> Outcome {
        let (data, mount) = (&folder.make("data")?, &folder.make("mount")?);
        let more = if self.servers > 1 { format!(" --servers {}", self.servers) } else { String::new() };
        println!("1. A cluster: amphi up --data {} --mount {}{more}", data.display(), mount.display());
        let t = monotonic();
        let cluster = Cluster::up(data, mount, self.cache, self.servers)?;
        stop.check()?;
        done("ready", t);

        println!("2. A real source tree");
        let source = tree::choose(self.files)?;
        let t = monotonic();
        let copy = mount.join("tree");
        tree::copy(&source, &copy, stop)?;
        done(&format!("{} files, {} copied", source.files.len(), amphi_host::size::show(source.bytes)), t);
        let t = monotonic();
        tree::compare(&source, &copy, stop)?;
        done("compared byte for byte", t);

        println!("3. Real programs on it");
        real::run(mount, stop)?;

        println!(
            "4. Streams of {} through a cache of {}",
            amphi_host::size::show(2 * self.cache),
            amphi_host::size::show(self.cache)
        );
        let rows = table::measure(mount, &folder.make("raw")?, 2 * self.cache, self.largest, stop)?;
        let text = table::render(&rows);
        print!("{text}");
        std::fs::write(self.dir.join(TABLE), &text).during(|| "write the table".into())?;
        picture::draw(&rows.rows, &self.dir.join(PICTURE))?;

        looked_at(mount, stop)?;

        println!("7. Stop, start again on the same folder");
        let t = monotonic();
        cluster.stop()?;
        done("stopped", t);
        let t = monotonic();
        let cluster = Cluster::up(data, mount, self.cache, self.servers)?;
        stop.check()?;
        done("ready", t);
        let t = monotonic();
        tree::compare(&source, &copy, stop)?;
        done("compared byte for byte again", t);
        let t = monotonic();
        let listed = tree::list_all(&source, &copy)?;
        done(&format!("{listed} entries listed"), t);
        stop.check()?;
        let t = monotonic();
        tree::delete(&copy)?;
        done("deleted", t);
        cluster.stop()
    }
}
