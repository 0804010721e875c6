//! `amphi mpiio`: what the cooperative cache of MPI jobs does (docs/MPIIO.md).
//!
//! Owns the words in which its counters are shown. Does not own: the counters and where they are found (`amphi_mpiio`).

use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::size;
use amphi_mpiio::live;
use amphi_mpiio::segment::Snapshot;
use amphi_mpiio::stats::NAMES;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Look at the cooperative cache of MPI jobs
#[derive(Args, Debug)]
pub struct Mpiio {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Show what the cache of a file does in the jobs that have it open on this machine, or what AMPHI_MPIIO_STATS
    /// wrote
    Stats {
        /// A file that a job has open, or the file that AMPHI_MPIIO_STATS names
        #[arg(required = true, value_name = "FILE")]
        paths: Vec<PathBuf>,
        /// Print the counters as JSON, an object for each job or line
        #[arg(long)]
        json: bool,
    },
}

/// One cache: its job, and its counters in the order of `NAMES`.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    title: String,
    counters: [u64; NAMES.len()],
}

impl Mpiio {
    /// Shows one file after the other.
    pub fn run(self) -> Outcome {
        let Action::Stats { paths, json } = self.action;
        for path in paths {
            let shown = of_file(&path)?;
            match json {
                true => shown.iter().for_each(|one| println!("{}", one.json())),
                false => shown.iter().for_each(|one| print!("{}", one.words())),
            }
        }
        Ok(())
    }
}

/// What to show for `path`: the caches of the jobs of this machine that have the file open, or, if there are none, the
/// lines of statistics in the file itself (what `AMPHI_MPIIO_STATS` wrote).
fn of_file(path: &Path) -> Outcome<Vec<Shown>> {
    let live = live::find(path).during(|| format!("look at {}", path.display()))?;
    if !live.is_empty() {
        return Ok(live.iter().map(|snapshot| of_job(path, snapshot)).collect());
    }
    let shown = lines_of(path);
    if shown.is_empty() {
        return Err(Failure::refused(format!(
            "no job of yours on this machine has {} in a cache, nor is it what AMPHI_MPIIO_STATS wrote; with \
             AMPHI_MPIIO_STATS=PATH in the environment of a job each close adds a line to PATH",
            path.display()
        )));
    }
    Ok(shown)
}

fn of_job(path: &Path, s: &Snapshot) -> Shown {
    let others = if s.clients > 0 { format!(" and {} of other nodes", s.clients) } else { String::new() };
    let late = if s.late_error != 0 { format!(", a write failed with error {}", s.late_error) } else { String::new() };
    let title = format!(
        "{}: open in process {}: {} ranks{others}, {} pages of {}, length {}{late}",
        path.display(),
        s.pid,
        s.ranks,
        s.pages,
        size::show(u64::from(s.page_bytes)),
        size::show(s.size),
    );
    Shown { title, counters: s.counters }
}

/// Longest file of statistics that is read.
const LOG_MAX_BYTES: u64 = 64 << 20;

/// The closes of which a file of statistics tells.
fn lines_of(path: &Path) -> Vec<Shown> {
    let fits = std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() <= LOG_MAX_BYTES);
    let text = if fits { std::fs::read(path).unwrap_or_default() } else { Vec::new() };
    String::from_utf8_lossy(&text).lines().filter_map(line).collect()
}

/// One line: `amphi-mpiio: PATH: ranks=4 nodes=1 page=1048576 calls_read=...`, or why a file was not cached.
fn line(line: &str) -> Option<Shown> {
    let rest = line.strip_prefix("amphi-mpiio: ")?;
    let Some((title, numbers)) = rest.split_once(": ranks=") else {
        let (title, why) = rest.rsplit_once(": not cached: ")?;
        return Some(Shown { title: format!("{title}: not cached: {why}"), counters: [0; NAMES.len()] });
    };
    let numbers = format!("ranks={numbers}");
    let value = |name: &str| {
        let words = numbers.split_whitespace().filter_map(|word| word.split_once('='));
        words.filter(|(key, _)| *key == name).find_map(|(_, value)| value.parse().ok()).unwrap_or(0)
    };
    let (ranks, nodes, page) = (value("ranks"), value("nodes"), value("page"));
    let title = format!("{title}: closed by {ranks} ranks on {nodes} nodes, pages of {}", size::show(page));
    Some(Shown { title, counters: NAMES.map(value) })
}

/// A part of a whole, in percent.
fn part(of: u64, all: u64) -> String {
    format!("{:.1} %", if all == 0 { 0.0 } else { of as f64 * 100.0 / all as f64 })
}

impl Shown {
    fn value(&self, name: &str) -> u64 {
        NAMES.iter().position(|n| *n == name).map_or(0, |at| self.counters[at])
    }

    fn words(&self) -> String {
        let (n, bytes) = (|name| self.value(name), |name| size::show(self.value(name)));
        let mut out = format!("{}\n", self.title);
        if self.counters == [0; NAMES.len()] {
            return out;
        }
        let looked = n("hits") + n("fills") + n("uncached");
        let requests = n("fs_reads") + n("fs_writes");
        let _ = writeln!(
            out,
            "  program      {} writes of {}, {} reads of {} in all",
            n("calls_write"),
            bytes("bytes_written"),
            n("calls_read"),
            bytes("bytes_read")
        );
        let _ = writeln!(
            out,
            "  cache        {} of {looked} references hit, {} of them pages of other ranks; {} pages made room, {} \
             references and {} went past it",
            part(n("hits"), looked),
            part(n("remote"), n("hits")),
            n("evictions"),
            n("uncached"),
            bytes("stream_bytes")
        );
        if n("once_pages") > 0 {
            let _ = writeln!(out, "  stepped aside for {} pages of large data written once", n("once_pages"));
        }
        if n("idle_pages") > 0 {
            let _ = writeln!(out, "  background   {} idle pages written", n("idle_pages"));
        }
        if n("prefetched") > 0 {
            let _ = writeln!(out, "  read ahead   {} pages", n("prefetched"));
        }
        if n("asked") > 0 {
            let (asked, moved) = (n("asked"), n("migrations"));
            let _ = writeln!(out, "  other nodes  {asked} messages; {moved} pages moved to the node that used them");
        }
        if n("relieved") > 0 {
            let _ = writeln!(out, "  balance      {} of these to a node that did less for others", n("relieved"));
        }
        if n("copies") > 0 {
            let (copies, dropped) = (n("copies"), n("recalls"));
            let _ = writeln!(out, "  copies       {copies} of pages of other nodes, {dropped} dropped for a write");
        }
        let _ = writeln!(out, "  locks        {} waits for a page", n("lock_waits"));
        if n("yields") > 0 {
            let _ = writeln!(out, "  group lock   given up {} times for somebody outside the job", n("yields"));
        }
        let _ = writeln!(
            out,
            "  file system  {} writes of {}, {} aligned; {} reads of {}; {} of the requests direct; {} syncs",
            n("fs_writes"),
            bytes("fs_write_bytes"),
            part(n("fs_writes_aligned"), n("fs_writes")),
            n("fs_reads"),
            bytes("fs_read_bytes"),
            part(n("fs_direct"), requests),
            n("fs_syncs")
        );
        out
    }

    fn json(&self) -> String {
        let mut object = serde_json::Map::new();
        object.insert("file".into(), self.title.clone().into());
        for (name, value) in NAMES.iter().zip(self.counters) {
            object.insert((*name).into(), value.into());
        }
        serde_json::Value::Object(object).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the lines that a job writes are shown in words, other lines are skipped, and a file without statistics is
    /// refused with advice. Method: a close, a file that was not cached, foreign lines.
    #[test]
    fn lines_of_jobs_in_words() {
        let text = "amphi-mpiio: /m/a: b: ranks=4 nodes=1 page=1048576 calls_write=46080 bytes_written=22118400 hits=75 \
                    fills=25 remote=30 fs_writes=6 fs_write_bytes=22118400 fs_writes_aligned=3 fs_direct=6 \
                    once_pages=12 idle_pages=3 asked=17 migrations=5 yields=2 prefetched=9 copies=7 recalls=6 \
                    relieved=4";
        let shown = line(text).expect("a close");
        let words = shown.words();
        for part in [
            "/m/a: b: closed by 4 ranks on 1 nodes, pages of 1 MiB",
            "46080 writes of 21.1 MiB",
            "75.0 % of 100 references hit, 40.0 %",
            "6 writes of 21.1 MiB, 50.0 % aligned",
            "100.0 % of the requests direct",
            "stepped aside for 12 pages",
            "3 idle pages written",
            "17 messages; 5 pages moved",
            "7 of pages of other nodes, 6 dropped",
            "given up 2 times",
            "read ahead   9 pages",
            "balance      4 of these",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert!(shown.json().contains("\"fs_writes\":6"));
        let not = line("amphi-mpiio: /m/f: not cached: a single rank").expect("a reason");
        assert_eq!(not.words(), "/m/f: not cached: a single rank\n");
        assert_eq!((line("something else"), line("amphi-mpiio: hint x: 'y' is no number")), (None, None));
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("stats");
        std::fs::write(&path, format!("{text}\nother\n")).expect("write");
        assert_eq!(of_file(&path).expect("statistics"), [shown]);
        std::fs::write(&path, "nothing").expect("write");
        assert!(of_file(&path).expect_err("no statistics").text.contains("AMPHI_MPIIO_STATS=PATH"));
    }
}
