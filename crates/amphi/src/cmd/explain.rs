//! `amphi explain` and `amphi advise`: the reasons of decisions for requests, the causes of slow access, and their
//! remedies.
//!
//! Owns: finding the subject of the command, and reading the facts. Does not own: the rules (`amphi_view::explain`).

use super::look::look;
use super::{calibrate, stats, status};
use amphi_env::{Env, RealEnv};
use amphi_host::control;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_view::explain::{Explanation, FileFacts, FileTexts, of_file, of_job, of_mount, tunables};
use amphi_view::snapshot::Texts;
use amphi_view::{Change, Snapshot};
use clap::Args;
use rustix::fs::{Mode, OFlags, open};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Open files of a process that are explained.
const FILES_MAX: usize = 16;

/// The subject of the explanation.
#[derive(Args, Debug)]
struct About {
    /// A file, a directory of a mount (for the mount), or the number of a process (for its open files); default: the
    /// only mount here
    about: Option<PathBuf>,
    /// A job of the mount, as `amphi stats --jobs` names it
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Of a mount: observe only the next N seconds, not the time since its counters began
    #[arg(long = "for", value_name = "SECONDS", conflicts_with = "job")]
    seconds: Option<f64>,
}

/// Say which way requests of a file, a process, a job or a mount went and why, what costs time, and what helps.
#[derive(Args, Debug)]
pub struct Explain {
    #[command(flatten)]
    about: About,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Print the commands that `amphi explain` knows to make things faster.
#[derive(Args, Debug)]
pub struct Advise {
    #[command(flatten)]
    about: About,
    /// Carry the commands out, with a question before each
    #[arg(long)]
    apply: bool,
}

impl Explain {
    /// Prints what is found.
    pub fn run(self) -> Outcome {
        let mut out = io::stdout().lock();
        for (at, explanation) in self.about.explain()?.iter().enumerate() {
            let gap = if at > 0 { "\n" } else { "" };
            let shown = match self.json {
                true => format!("{}\n", explanation.json()),
                false => format!("{gap}{}", explanation.text()),
            };
            out.write_all(shown.as_bytes()).during(|| "write to standard output".into())?;
        }
        Ok(())
    }
}

impl Advise {
    /// Prints the commands, or carries them out.
    pub fn run(self) -> Outcome {
        if self.apply && !io::stdin().is_terminal() {
            return Err(Failure::refused("--apply asks before each command, and standard input is no terminal"));
        }
        let all = self.about.explain()?;
        let found = all.iter().flat_map(|explanation| &explanation.findings);
        let mut seen = BTreeSet::new();
        for finding in found {
            let Some(command) = finding.command.as_ref().filter(|command| seen.insert((*command).clone())) else {
                continue;
            };
            println!("# {}\n{command}", finding.what);
            if self.apply && agreed()? {
                carry_out(command)?;
            }
        }
        if seen.is_empty() {
            amphi_host::say::say("no command would change anything; `amphi explain` says what programs can do");
        }
        Ok(())
    }
}

/// Whether the user says yes.
fn agreed() -> Outcome<bool> {
    print!("do it? [y/N] ");
    io::stdout().flush().during(|| "write to standard output".into())?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).during(|| "read the answer".into())?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Runs a command of this program, as a shell would.
fn carry_out(command: &str) -> Outcome {
    let own = std::env::current_exe().during(|| "find this program".into())?;
    let line = format!("amphi() {{ \"$AMPHI_ITSELF\" \"$@\"; }}; {command}");
    let done = std::process::Command::new("/bin/sh")
        .args(["-c", &line])
        .env("AMPHI_ITSELF", own)
        .status()
        .during(|| format!("run {command}"))?;
    if done.success() { Ok(()) } else { Err(Failure::broken(format!("{command}: {done}"))) }
}

impl About {
    fn explain(&self) -> Outcome<Vec<Explanation>> {
        if let Some(job) = &self.job {
            return Ok(vec![job_of(&control::find_mount(self.about.clone(), "")?, job)?]);
        }
        let pid = self.about.as_ref().and_then(|about| about.to_str()?.parse::<u32>().ok());
        if let (Some(pid), Some(about)) = (pid, &self.about)
            && !about.exists()
        {
            return process(pid);
        }
        let path = control::find_mount(self.about.clone(), "")?;
        if path.is_file() {
            return Ok(vec![file(&path, &shown(&path), &Cluster::of(&path))?]);
        }
        Ok(vec![mount(&path, self.seconds)?])
    }
}

/// A path without the control characters on which a terminal would act.
fn shown(path: &Path) -> String {
    path.display().to_string().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The facts that are the same for all files of a mount; empty for callers without the right to read them.
#[derive(Default)]
struct Cluster {
    tunables: String,
    targets: BTreeMap<u16, String>,
}

impl Cluster {
    fn of(path: &Path) -> Cluster {
        let tunables = control::read(path, "user.amphi.tunables.hybrid.*").unwrap_or_default();
        if tunables.is_empty() {
            // A caller who may not read these facts may not read the others either.
            return Cluster::default();
        }
        let text = status::of_mount(path.to_path_buf()).unwrap_or_default();
        let seen = Snapshot::read(Duration::ZERO, Texts { cluster: &text, ..Texts::default() });
        let targets = seen.unwrap_or_default().cluster.targets.into_iter().map(|t| (t.target, t.server)).collect();
        Cluster { tunables, targets }
    }
}

/// The facts about a file. `path` leads to it; `name` is shown.
fn file(path: &Path, name: &str, cluster: &Cluster) -> Outcome<Explanation> {
    // A file that is on no mount has no mode.
    let mode = control::read(path, "user.amphi.mode")?;
    let layout = control::read(path, "user.amphi.layout")?;
    let consistency = control::read_if_any(path, "user.amphi.consistency")?.unwrap_or_default();
    // Read before the file is opened here, because this open would be counted too.
    let counters = control::read_if_any(path, "user.amphi.counters.json")?.unwrap_or_default();
    let portrait = control::read_if_any(path, "user.amphi.portrait")?.unwrap_or_default();
    let size = std::fs::metadata(path).during(|| format!("look at {name}"))?.len();
    let extents = match open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()) {
        Ok(_open) => control::read_if_any(path, "user.amphi.extents").ok().flatten().unwrap_or_default(),
        // Only callers who may read the file are shown where its data lies.
        Err(_) => String::new(),
    };
    let texts = FileTexts { counters: &counters, portrait: &portrait, extents: &extents, tunables: &cluster.tunables };
    let (path, targets) = (name.into(), cluster.targets.clone());
    let facts = FileFacts { path, size, layout, mode, consistency, targets, ..FileFacts::default() };
    Ok(of_file(&facts.read(texts).map_err(Failure::broken)?))
}

/// The files of mounts that a process has open, those with the most bytes first.
fn process(pid: u32) -> Outcome<Vec<Explanation>> {
    let mounts = control::mounts();
    let dir = PathBuf::from(format!("/proc/{pid}/fd"));
    let entries = std::fs::read_dir(&dir).during(|| format!("look at the open files of process {pid}"))?;
    let (mut seen, mut all, mut known) = (BTreeSet::new(), Vec::new(), BTreeMap::new());
    for entry in entries.flatten() {
        let (link, Ok(at)) = (entry.path(), std::fs::read_link(entry.path())) else { continue };
        let Some(mount) = mounts.iter().filter(|mount| at.starts_with(mount)).max_by_key(|m| m.as_os_str().len())
        else {
            continue;
        };
        // A descriptor that was closed meanwhile is skipped.
        if !std::fs::metadata(&link).is_ok_and(|m| m.is_file()) || !seen.insert(at.clone()) {
            continue;
        }
        let cluster = known.entry(mount.clone()).or_insert_with(|| Cluster::of(mount));
        all.push(file(&link, &shown(&at), cluster)?);
    }
    if all.is_empty() {
        return Err(Failure::refused(format!("process {pid} has no file of an AmphiFS mount open")));
    }
    let bytes = |e: &Explanation| e.ways.iter().map(|way| way.bytes).sum::<u64>();
    all.sort_by_key(|e| std::cmp::Reverse(bytes(e)));
    if all.len() > FILES_MAX {
        amphi_host::say::say(&format!(
            "{} more files that process {pid} has open are not shown",
            all.len() - FILES_MAX
        ));
        all.truncate(FILES_MAX);
    }
    Ok(all)
}

fn job_of(path: &Path, name: &str) -> Outcome<Explanation> {
    let jobs = stats::jobs(path)?;
    let jobs: Vec<amphi_view::snapshot::Job> = jobs.into_iter().flat_map(serde_json::from_value).collect();
    let Some(job) = jobs.iter().find(|job| job.job == name) else {
        let names: Vec<&str> = jobs.iter().map(|job| job.job.as_str()).collect();
        return Err(Failure::refused(format!("no job {name:?} on this mount; there are: {}", names.join(", "))));
    };
    Ok(of_job(job, &tunables(&Cluster::of(path).tunables)))
}

/// A mount, observed since its counters began or over the next `seconds`.
fn mount(path: &Path, seconds: Option<f64>) -> Outcome<Explanation> {
    RealEnv::run(Duration::ZERO, |env| async move {
        let name = format!("mount {}", shown(path));
        let values = tunables(&Cluster::of(path).tunables);
        let now = || Duration::from_nanos(env.now().0);
        let before = match seconds {
            None => None,
            Some(seconds) => {
                let before = look(&path, now())?;
                env.sleep(Duration::from_secs_f64(seconds.clamp(0.1, 86_400.0))).await;
                Some(before)
            }
        };
        let mut after = look(&path, now())?;
        if let Some(Ok(limits)) = calibrate::limits_of(&control::source_of(path).unwrap_or_default()) {
            after.limits = limits;
        }
        let before = before.unwrap_or_else(|| {
            after.at = Duration::from_nanos(after.mount.elapsed_ns);
            Snapshot::default()
        });
        Ok(of_mount(&name, &Change { before: &before, after: &after }, &values))
    })
}
