//! `amphi stats`: counters of a mount, of its jobs, or of a file.

use crate::control;
use crate::failure::{Failure, Outcome};
use clap::Args;
use serde_json::{Value, json};
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
    /// By job: what the environment of the process that opened a file names (`--job-env` of the mount)
    #[arg(long)]
    jobs: bool,
    /// Start all counters of the mount and of its jobs again from zero after printing
    #[arg(long)]
    reset: bool,
}

impl Stats {
    /// Prints, then resets if asked.
    pub fn run(self) -> Outcome {
        let path = control::find_mount(self.path, "")?;
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

/// All jobs, part by part: an attribute holds so many.
fn jobs(path: &Path) -> Outcome<Vec<Value>> {
    let mut all: Vec<Value> = Vec::new();
    loop {
        let last = all.last().and_then(|job| job["job"].as_str());
        let name = last.map_or("user.amphi.jobs".into(), |last| format!("user.amphi.jobs.after.{last}"));
        let text = control::read(path, &name)?;
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
