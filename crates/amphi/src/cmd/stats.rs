//! `amphi stats`: counters of a mount, of its jobs, or of a file.

use super::attributes::Attributes;
use amphi_host::control;
use amphi_host::failure::{Failure, Outcome};
use amphi_host::size;
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Show how a mount's requests went: how many, how large, buffered or direct and why.
#[derive(Args, Debug)]
pub struct Stats {
    /// Mount point, or a file on it, for its own counters on this mount; default: the only mount here
    path: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Counters by job: the job is named by the environment of the process that opened a file (`--job-env` of the
    /// mount)
    #[arg(long)]
    jobs: bool,
    /// The counters of the servers: requests, and sizes and times of disk requests
    #[arg(long, conflicts_with_all = ["jobs", "reset"])]
    servers: bool,
    /// Start all counters of the mount and of its jobs again from zero after printing
    #[arg(long)]
    reset: bool,
}

impl Stats {
    /// Prints the counters, then resets them if requested.
    pub fn run(self) -> Outcome {
        let path = control::find_mount(self.path, "")?;
        if self.servers {
            let rows = control::read(&path, "user.amphi.counters.server")?;
            let text = if self.json { servers_json(&rows).to_string() + "\n" } else { servers(&rows) };
            print!("{text}");
            return Ok(());
        }
        let text = match (self.jobs, self.json) {
            (true, true) => json!({ "jobs": jobs(&path)? }).to_string(),
            (true, false) => render(&jobs(&path)?),
            (false, json) if path.is_file() => of_file(&path, json)?,
            (false, true) => control::read(&path, "user.amphi.stats.json")?,
            (false, false) => control::read(&path, "user.amphi.stats")?,
        };
        print!("{text}");
        if !text.ends_with('\n') {
            println!();
        }
        if self.reset {
            control::write(&path, "user.amphi.stats", "reset", |_| "reset was refused".into())?;
        }
        Ok(())
    }
}

fn of_file(path: &Path, json: bool) -> Outcome<String> {
    let name = if json { "user.amphi.counters.json" } else { "user.amphi.counters" };
    if let Some(text) = control::read_if_any(path, name)? {
        return Ok(text);
    }
    // Every file of a mount has a mode.
    control::read(path, "user.amphi.mode")?;
    Ok(if json {
        "{\"counters\":{}}".into()
    } else {
        "nothing: neither open nor cached on this mount, nor among those that it has closed lately".into()
    })
}

/// All jobs of the mount of a path.
pub fn jobs(path: &Path) -> Outcome<Vec<Value>> {
    jobs_of(&path)
}

/// All jobs, read in several parts, because an attribute can contain only some of them.
pub fn jobs_of(mount: &impl Attributes) -> Outcome<Vec<Value>> {
    let mut all: Vec<Value> = Vec::new();
    loop {
        let last = all.last().and_then(|job| job["job"].as_str());
        let name = last.map_or("user.amphi.jobs".into(), |last| format!("user.amphi.jobs.after.{last}"));
        let text = mount.attribute(&name)?;
        let mut part: Value =
            serde_json::from_str(&text).map_err(|e| Failure::broken(format!("the jobs of the mount: {e}")))?;
        match part["jobs"].take() {
            Value::Array(jobs) if !jobs.is_empty() => all.extend(jobs),
            _ => return Ok(all),
        }
        if part["more"] != true {
            return Ok(all);
        }
    }
}

/// Lines `name value`.
fn rows(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| line.split_once(' ')).filter_map(|(name, n)| Some((name, n.parse().ok()?)))
}

/// The parts of a histogram's name: what, `read` or `write`, the upper bound of the bucket.
fn bucket(name: &str) -> Option<(&str, &str, u64)> {
    let (name, bound) = name.strip_prefix("histogram_")?.rsplit_once("_to_")?;
    let (what, way) = name.rsplit_once('_')?;
    Some((what, way, bound.parse().ok()?))
}

/// The servers' counters as one object.
pub fn servers_json(text: &str) -> Value {
    Value::Object(rows(text).map(|(name, n)| (name.to_string(), n.into())).collect())
}

/// Counters first, then each distribution as a table of its own: reads and writes up to each power of two.
fn servers(text: &str) -> String {
    let (mut out, mut all) = (String::new(), BTreeMap::<&str, BTreeMap<u64, [u64; 2]>>::new());
    for (name, n) in rows(text) {
        match bucket(name) {
            Some((what, way, bound)) => {
                all.entry(what).or_default().entry(bound).or_default()[usize::from(way == "write")] += n;
            }
            None if n > 0 => {
                let _ = writeln!(out, "{name:<33} {n}");
            }
            None => {}
        }
    }
    out += &write_back(text);
    out += &read_cache(text);
    for (what, buckets) in all {
        let sum = |way: usize| buckets.values().map(|n| n[way]).sum::<u64>();
        let sums = [sum(0), sum(1)];
        let (title, as_size) = match what {
            "request_bytes" => ("bytes of a request, up to", true),
            "disk_pieces" => ("disk requests of a request, up to", false),
            "disk_bytes" => ("bytes of a disk request, up to", true),
            "disk_us" => ("microseconds of the disk for a request, up to", false),
            other => (other, false),
        };
        let _ = writeln!(out, "\n{title:<46} {:>10} {:>4} {:>10} {:>4}", "reads", "%", "writes", "%");
        for (bound, counts) in &buckets {
            let bound = if as_size { size::show(*bound) } else { bound.to_string() };
            let share = |way: usize| (100 * counts[way]).checked_div(sums[way]).unwrap_or(0);
            let _ = writeln!(out, "{bound:>46} {:>10} {:>4} {:>10} {:>4}", counts[0], share(0), counts[1], share(1));
        }
    }
    out
}

/// How much the servers' write-back joined; nothing if it has not written.
fn write_back(text: &str) -> String {
    let rows: BTreeMap<&str, u64> = rows(text).collect();
    let of = |name: &str| rows.get(name).copied().unwrap_or(0);
    let (units, runs) = (of("flushes"), of("flush_runs"));
    if units == 0 || runs == 0 {
        return String::new();
    }
    let share = 100 * of("flushes_whole") / units;
    let merged = of("write_back") as f64 / runs as f64;
    format!(
        "\nwrite-back: {share} % of the flushed units were full, {merged:.1} accepted writes became a run of bytes\n"
    )
}

/// How many of the reads that could have been served from the servers' memory were served from there; nothing if there
/// were no such reads.
fn read_cache(text: &str) -> String {
    let rows: BTreeMap<&str, u64> = rows(text).collect();
    let of = |name: &str| rows.get(name).copied().unwrap_or(0);
    let (hits, misses) = (of("read_cache_hits"), of("read_cache_misses"));
    let Some(share) = (100 * hits).checked_div(hits + misses) else { return String::new() };
    let held = size::show(of("read_cache_bytes"));
    format!("\nread cache: {share} % of {} small reads were served from memory, {held} are kept\n", hits + misses)
}

/// A line for each job, its requests by reason below.
fn render(jobs: &[Value]) -> String {
    let mut out = String::new();
    for job in jobs {
        let name = job["job"].as_str().unwrap_or_default();
        let _ =
            writeln!(out, "job {name}: opens {}, open {}, throttled {}", job["opens"], job["open"], job["throttled"]);
        for (name, n) in job["counters"].as_object().into_iter().flatten() {
            let _ = writeln!(out, "  {name:<33} {} requests {} bytes", n["requests"], n["bytes"]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what people see of the servers' counters: those that have counted, and tables of their distributions.
    /// Method: some rows with given numbers.
    #[test]
    fn servers_are_shown() {
        let text = "evictions 0\nrequest_read 7\nhistogram_disk_bytes_read_to_4096 3\n\
                    histogram_disk_bytes_write_to_1048576 5\nhistogram_disk_bytes_read_to_8192 1\n";
        let shown = servers(text);
        let lines: Vec<Vec<&str>> = shown.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["request_read", "7"]);
        assert_eq!(lines[2][..6], ["bytes", "of", "a", "disk", "request,", "up"]);
        assert_eq!(lines[3], ["4", "KiB", "3", "75", "0", "0"]);
        assert_eq!(lines[4], ["8", "KiB", "1", "25", "0", "0"]);
        assert_eq!(lines[5], ["1", "MiB", "0", "0", "5", "100"]);
        assert_eq!(servers_json(text)["histogram_disk_bytes_read_to_8192"], 1);
        let text = "write_back 90\nflushes 8\nflushes_whole 2\nflush_runs 20\n";
        let line = "write-back: 25 % of the flushed units were full, 4.5 accepted writes became a run of bytes";
        assert_eq!(servers(text).lines().last(), Some(line));
        let text = "read_cache_hits 30\nread_cache_misses 10\nread_cache_bytes 65536\n";
        let line = "read cache: 75 % of 40 small reads were served from memory, 64 KiB are kept";
        assert_eq!(servers(text).lines().last(), Some(line));
    }

    /// Goal: what people see of jobs. Method: one with requests and one without.
    #[test]
    fn jobs_are_shown() {
        let counters = json!({ "write_direct_large": { "requests": 3, "bytes": 25_165_824 } });
        let jobs = [
            json!({ "job": "-", "open": 1, "opens": 2, "throttled": 0, "counters": {} }),
            json!({ "job": "4711", "open": 0, "opens": 7, "throttled": 5, "counters": counters }),
        ];
        let want = "job -: opens 2, open 1, throttled 0\n\
                    job 4711: opens 7, open 0, throttled 5\n  \
                    write_direct_large                3 requests 25165824 bytes\n";
        assert_eq!(render(&jobs), want);
    }
}
