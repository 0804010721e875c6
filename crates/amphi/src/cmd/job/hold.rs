//! `amphi job hold`: the part of this node in the file system of a whole job of a batch system. The prolog starts it
//! before the job's first step, with the rights of the job's user, and the epilog ends it.
//!
//! Owns: the steps of the start on one node, and the one line that says how they ended. Does not own: the keeper
//! (`node`), which does the steps; the key (`key`); the end, which is `amphi job clean --running`.
//!
//! Nobody on one node gives orders to the others. Each node knows the address of the first server from the key, waits
//! until that server answers, and is ready when its mount shows as many servers as the job has nodes.
//!
//! Invariants: the line is `ready MOUNT` or `failed WHY`, and comes within the time limit. After `failed` nothing is
//! left of the job on this node. When this process ends, the keeper does, and so does everything else.

use super::channel::{Channel, Heard, Launcher};
use super::folder::Folder;
use super::key::JobKey;
use super::messages::{Plan, Report, Said, Task, To};
use super::node::real;
use super::owner::Owner;
use super::processes::OWN_MARK;
use super::run::zones;
use crate::cmd::status;
use amphi_env::Time;
use amphi_env::real::monotonic;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::say::{say, say_ready};
use amphi_host::size;
use clap::Args;
use serde_json::Value;
use std::io::{Write, stdin, stdout};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Pause between two looks at the servers that have joined.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long the keeper may take to remove everything.
const ENDING: Duration = Duration::from_secs(60);

/// Hold the part of this node in the file system of a job; the key comes from standard input
#[derive(Args, Debug)]
pub struct Hold {
    /// Number of the job
    #[arg(long)]
    job: String,
    /// All nodes of the job, in the same order everywhere; the first one has the first server
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', required = true)]
    nodes: Vec<String>,
    /// Which of them this one is
    #[arg(long, value_name = "HOST")]
    node: String,
    /// Folder of the node in which the job gets one of its own; {host} stands for the name of the node
    #[arg(long, value_name = "DIR")]
    scratch: String,
    /// Host in the addresses of servers, {host} as above
    #[arg(long, value_name = "NAME", default_value = "{host}")]
    address: String,
    /// Space on this node [default: 90 % of what is free]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Ports for the first server
    #[arg(long, value_name = "FIRST-LAST", value_parser = ports, default_value = "61000-64999")]
    ports: RangeInclusive<u16>,
    /// How long the start may take, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    within: u64,
}

/// The keeper of this node, as this process reaches it.
struct Kept {
    channel: Channel,
    hear: Receiver<Heard>,
    begun: Time,
    within: Duration,
}

impl Hold {
    /// Starts, prints the line, and stays until the file system ends.
    pub fn run(self) -> Outcome {
        let key = JobKey::read(stdin().lock());
        let outcome = key.and_then(|key| self.start(&key));
        let mut kept = match outcome {
            Ok(kept) => kept,
            Err(e) => {
                let line = e.text.replace('\n', " ");
                let _ = writeln!(stdout(), "failed {line}").and_then(|()| stdout().flush());
                return Err(e);
            }
        };
        // Signals that reach the keeper alone say nothing about the end of the job.
        let lost = loop {
            match kept.hear.recv() {
                Ok(Heard::Report(Report { said: Said::Lost(text), .. })) => break text,
                Ok(Heard::Report(_)) => {}
                Ok(Heard::Closed(_)) | Err(_) => break "the keeper of the job has ended".into(),
            }
        };
        kept.end();
        Err(Failure::broken(format!("job {}: {lost}", self.job)))
    }

    /// Folder, server, mount, and the servers of the other nodes.
    fn start(&self, key: &JobKey) -> Outcome<Kept> {
        let Some(at) = self.nodes.iter().position(|node| *node == self.node) else {
            return Err(Failure::refused(format!("{} is none of the nodes {}", self.node, self.nodes.join(", "))));
        };
        let plan = self.plan(key, at)?;
        let first = format!("tcp:{}:{}", plan.address.replace("{host}", &self.nodes[0]), key.port(&self.ports)?);
        let mut kept = self.keeper(&plan, at)?;
        match kept.steps(plan, at, first) {
            Ok(mount) => {
                say_ready(mount.display());
                Ok(kept)
            }
            Err(e) => {
                kept.end();
                Err(e)
            }
        }
    }

    fn plan(&self, key: &JobKey, at: usize) -> Outcome<Plan> {
        Ok(Plan {
            id: format!("{}-{}", self.job, key.word("folder")?),
            nodes: self.nodes.clone(),
            node: Some(at),
            scratch: self.scratch.clone(),
            address: self.address.clone(),
            port: if at == 0 { key.port(&self.ports)? } else { 0 },
            // The programs of such a job are the batch system's, which ends them.
            token: key.word("program")?,
            batch: Owner::batch(),
            key: if self.nodes.len() > 1 { key.digits() } else { String::new() },
            server: zones(self.size, None),
            mount: Vec::new(),
        })
    }

    /// Starts the keeper, with the mark by which `Folder::remove` finds it.
    fn keeper(&self, plan: &Plan, at: usize) -> Outcome<Kept> {
        let scratch = self.scratch.replace("{host}", &self.node);
        let folder = Folder::of(&real(Path::new(&scratch))?, &plan.id);
        let folder = folder.path().display().to_string();
        if folder.contains(char::is_whitespace) {
            return Err(Failure::refused(format!("{folder}: a folder for jobs must have no blanks in its path")));
        }
        let program = std::env::current_exe().during(|| "find this program".into())?;
        let launcher = Launcher::new(Some(&format!("env {OWN_MARK}={folder}")), &program)?;
        let (tell, hear) = channel();
        let channel = launcher.start(vec![at], &self.nodes, tell)?;
        Ok(Kept { channel, hear, begun: monotonic(), within: Duration::from_secs(self.within) })
    }
}

impl Kept {
    /// The steps of the start. Returns the mount point.
    fn steps(&mut self, plan: Plan, at: usize, first: String) -> Outcome<PathBuf> {
        let count = plan.nodes.len();
        let mount = self.ask("the folder of the job", &Task::Prepare(Box::new(plan)), |said| match said {
            Said::Prepared { mount, .. } => Some(PathBuf::from(mount)),
            _ => None,
        })?;
        let join = if at == 0 { Vec::new() } else { vec![first.clone()] };
        let what = if at == 0 { "the first server".to_string() } else { format!("the server, which joins {first},") };
        self.ask(&what, &Task::Serve { join }, |said| matches!(said, Said::Serving { .. }).then_some(()))?;
        if count == 1 {
            return Ok(mount);
        }
        let task = Task::Mount { cluster: vec![first] };
        self.ask("the mount", &task, |said| matches!(said, Said::Mounted).then_some(()))?;
        loop {
            let there = servers_of(&mount)?;
            if there >= count {
                return Ok(mount);
            }
            if self.rest().is_zero() {
                let limit = self.within.as_secs();
                return Err(Failure::broken(format!("{there} of {count} nodes were ready within {limit} s")));
            }
            // What the keeper reports meanwhile, such as the end of the server, ends this loop.
            self.listen(self.rest().min(LOOK_AGAIN), |_| None::<()>)?;
        }
    }

    fn rest(&self) -> Duration {
        self.within.saturating_sub(monotonic().since(self.begun))
    }

    /// Gives an order and waits for its answer.
    fn ask<T>(&mut self, what: &str, task: &Task, answer: impl Fn(Said) -> Option<T>) -> Outcome<T> {
        self.channel.give(To::All, task)?;
        let got = self.listen(self.rest(), answer)?;
        got.ok_or_else(|| Failure::broken(format!("{what} was not ready within {} s", self.within.as_secs())))
    }

    /// Waits for a report that is an answer, at most so long.
    ///
    /// Errors: a step failed, the server or the mount has ended, or the keeper.
    fn listen<T>(&self, limit: Duration, answer: impl Fn(Said) -> Option<T>) -> Outcome<Option<T>> {
        let until = monotonic() + limit;
        loop {
            match self.hear.recv_timeout(until.since(monotonic())) {
                Ok(Heard::Report(Report { said: Said::Failed(text) | Said::Lost(text), .. })) => {
                    return Err(Failure::broken(text));
                }
                Ok(Heard::Report(Report { said, .. })) => match answer(said) {
                    Some(value) => return Ok(Some(value)),
                    None => continue,
                },
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Ok(Heard::Closed(_)) | Err(_) => return Err(Failure::broken("the keeper of the job has ended")),
            }
        }
    }

    /// Lets the keeper remove everything and end.
    fn end(&mut self) {
        let _ = self.channel.give(To::All, &Task::End);
        let until = monotonic() + ENDING;
        loop {
            match self.hear.recv_timeout(until.since(monotonic())) {
                Ok(Heard::Report(Report { said: Said::Ended { left }, .. })) => {
                    left.iter().for_each(|what| say(&format!("amphi: is left: {what}")));
                }
                Ok(Heard::Report(_)) => {}
                Ok(Heard::Closed(_)) | Err(_) => return,
            }
        }
    }
}

/// How many servers answer on a mount.
fn servers_of(mount: &Path) -> Outcome<usize> {
    let text = status::of_mount(mount.to_path_buf())?;
    let json: Value = serde_json::from_str(&text).during(|| "read the status of the job's cluster".into())?;
    let servers = json["servers"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(servers.iter().filter(|server| server["up"] == true).count())
}

/// A range of ports, as `61000-64999`.
fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let both = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    match both {
        Some((first, last)) if 0 < first && first <= last => Ok(first..=last),
        _ => Err(format!("'{text}' is no range of ports; write for example 61000-64999")),
    }
}
