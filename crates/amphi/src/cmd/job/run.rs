//! `amphi job run`: the steps of a job's file system, from the first folder to the last.
//!
//! Owns: the options, the list of nodes, the order of the steps, and the messages about them. Does not own: how keepers
//! are reached (`world`, `channel`), what they do (`node`), what is copied (`staging`).
//!
//! Invariants: however the steps end, the last step removes everything. Files are brought out when the program has
//! ended and before anything is removed. Files in the file system that were not brought out are lost, and the exit code
//! says if an option had asked for them.

use super::channel::Launcher;
use super::messages::{Copy, Plan, Said, Task, To};
use super::owner::Owner;
use super::program::{Program, exit_code};
use super::staging::Staging;
use super::told::Told;
use super::unstaged::{Kept, retry};
use super::world::{Event, Wish, World};
use amphi_env::Time;
use amphi_env::real::monotonic;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::link::host_name;
use amphi_host::say::{say, say_error};
use amphi_host::size;
use amphi_server::ServerConfig;
use clap::Args;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::cell::Cell;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// How long the nodes may take for a step of the start.
const STARTING: Duration = Duration::from_secs(120);
/// How long the nodes may take to remove everything.
const ENDING: Duration = Duration::from_secs(60);
/// A signal this long after the first one is a second wish to stop.
const SECOND_AFTER: Duration = Duration::from_secs(1);
/// Servers whose addresses a mount is given.
const ADDRESSES: usize = 4;
/// How the keepers are started in a job of Slurm.
const SLURM: &str = "srun --overlap --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --mpi=none --cpu-bind=none \
                     --kill-on-bad-exit=0 --quiet";
/// How they are started on named nodes.
const SSH: &str = "ssh -o BatchMode=yes {host}";

/// Run a program with a file system of its own on its nodes; the variable AMPHI_JOB_DIR of its environment names the
/// mount: amphi job run --stage-in data --stage-out out:/home/me/out -- srun ./app. Exit code: that of the program, or
/// 1 if files could not be brought out, 2 if the program did not begin.
#[derive(Args, Debug)]
pub struct Run {
    #[command(flatten)]
    nodes: Nodes,
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    staging: Staging,
    /// How long the program may take to end after SIGTERM before it is killed, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    kill_after: u32,
    /// Print JSON when everything is over
    #[arg(long)]
    json: bool,
    /// The program, best behind --: on this machine, under the user's own launcher if it is to run on all nodes
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// The nodes of the file system.
#[derive(Args, Clone, Debug)]
struct Nodes {
    /// Nodes, each with a server and a mount [default: those of the Slurm job, or this machine]
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    nodes: Vec<String>,
    /// Command that starts a program on a node, {host} stands for its name, {nodes} for their number; without {host}:
    /// on all nodes [default: srun in a Slurm job, ssh with --nodes]
    #[arg(long, value_name = "COMMAND")]
    launcher: Option<String>,
    /// Host in the addresses of servers, {host} stands for the name of the node
    #[arg(long, value_name = "NAME", default_value = "{host}")]
    address: String,
    /// Folder of each node in which the job gets one of its own, with the zones and the mount; {host} as above
    /// [default: AMPHI_JOB_SCRATCH, TMPDIR, /tmp]
    #[arg(long, value_name = "DIR")]
    scratch: Option<String>,
    /// Path of this program on the nodes [default: where it is here]
    #[arg(long, value_name = "PATH")]
    amphi: Option<PathBuf>,
}

/// The size and shape of the file system.
#[derive(Args, Clone, Debug)]
struct Files {
    /// Space on each node [default: 90 % of what is free there]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Targets of each server [default: 4]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    targets: Option<u16>,
    /// Memory of each mount for its page cache [default: that of amphi mount]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    cache: Option<u64>,
    /// Set a tunable of the mounts or (server.*) of the servers; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl Run {
    /// Runs, and ends with the program's exit code.
    pub fn run(self) -> Outcome {
        let (ins, outs) = (self.staging.ins()?, self.staging.outs()?);
        let (hosts, launcher) = self.nodes.find()?;
        let plan = self.plan(&hosts)?;
        let mut told = Told {
            id: plan.id.clone(),
            begun: monotonic(),
            steps: Vec::new(),
            staged: Vec::new(),
            program: Value::Null,
            ended_by: "program",
        };
        let mut world = World::start(&hosts, launcher)?;
        let outcome = self.steps(&mut world, &mut told, &plan, &ins, &outs);
        let ending = monotonic();
        let left = world.end(&Task::Clean(Box::new(plan.clone())), ENDING);
        told.step("everything removed", ending);
        left.iter().for_each(|what| say_error(&format!("is left: {what}")));
        let error = outcome.as_ref().err().map(|e| e.text.clone());
        if self.json {
            println!("{}", object(&told, &plan, error.as_deref(), &left));
        }
        match outcome? {
            0 if left.is_empty() => Ok(()),
            0 => Err(Failure::broken("not everything could be removed")),
            code => std::process::exit(code),
        }
    }

    /// The options in the form that keepers get.
    fn plan(&self, hosts: &[String]) -> Outcome<Plan> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let scratch = self.nodes.scratch.clone().or_else(|| set("AMPHI_JOB_SCRATCH")).or_else(|| set("TMPDIR"));
        let scratch =
            std::path::absolute(scratch.unwrap_or_else(|| "/tmp".into())).during(|| "find --scratch".into())?;
        let mut random = [0u8; 52];
        let got = rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty());
        if got != Ok(random.len()) {
            return Err(Failure::broken("no random number is to be had"));
        }
        let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let job = set("SLURM_JOB_ID").unwrap_or_else(|| std::process::id().to_string());
        let mut mount = Vec::new();
        mount.extend(self.files.cache.into_iter().flat_map(|bytes| ["--cache".to_string(), bytes.to_string()]));
        mount.extend(self.files.set.iter().flat_map(|set| ["--set".to_string(), set.clone()]));
        Ok(Plan {
            id: format!("{job}-{}", digits(&random[..4])),
            nodes: hosts.to_vec(),
            node: None,
            scratch: scratch.display().to_string(),
            address: self.nodes.address.clone(),
            port: 0,
            token: digits(&random[36..]),
            batch: Owner::batch(),
            key: if hosts.len() > 1 { digits(&random[4..36]) } else { String::new() },
            server: zones(self.files.size, self.files.targets),
            mount,
        })
    }

    /// All steps but the last. Returns the exit code.
    fn steps(&self, world: &mut World, told: &mut Told, plan: &Plan, ins: &[Copy], outs: &[Copy]) -> Outcome<i32> {
        let (folder, mount) = begin(world, told, plan)?;
        if !outs.is_empty() {
            let checked = world.ask(
                To::Node(0),
                &self.staging.check(outs),
                Some(STARTING),
                |_| false,
                |said| match said {
                    Said::Checked(problem) => Some(problem),
                    _ => None,
                },
            )?;
            if let Some(problem) = checked.into_iter().flatten().next() {
                return Err(Failure::refused(format!("{}: --stage-out: {problem}", world.host(0))));
            }
        }
        for copy in ins {
            stage(world, told, "in", copy, |_| false)?;
        }
        let program = monotonic();
        let (code, wish) = self.program(world, plan, &folder, &mount)?;
        let words: Vec<String> = self.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        told.program = json!({ "command": words, "exit": code, "seconds": monotonic().since(program).as_secs_f64() });
        told.step(&format!("program, exit code {code}"), program);
        told.ended_by = match &wish {
            None => "program",
            Some(Wish::Signal(_)) => "signal",
            Some(Wish::Lost(_)) => "failure",
        };
        if let Some(lost @ Wish::Lost(_)) = &wish {
            return Err(lost.failure());
        }
        let mut open = Vec::new();
        if wish.is_none() || self.staging.on_term() {
            let is_over = Cell::new(false);
            let mut first = wish.map(|_| monotonic());
            // Files that are not brought out are lost, so the first signal does not end this command; the batch system
            // will end it later, as it has announced.
            let mut stay = |wish: &Wish| {
                let stays = match wish {
                    Wish::Signal(_) => monotonic().since(*first.get_or_insert_with(monotonic)) < SECOND_AFTER,
                    Wish::Lost(_) => false,
                };
                is_over.set(!stays);
                stays
            };
            for copy in outs {
                if let Err(e) = stage(world, told, "out", copy, &mut stay) {
                    say_error(&e.text);
                    open.push(copy.clone());
                }
            }
            let limit = self.staging.retry();
            if !open.is_empty() && !is_over.get() && !limit.is_zero() {
                let scratch = plan.scratch.replace("{host}", world.host(0));
                open = retry(world, told, &Kept { mount: &mount, scratch: &scratch, limit }, open);
            }
        } else if !outs.is_empty() {
            say(&format!("amphi: job {}: nothing is brought out: --stage-out-on-term was not given", told.id));
        }
        let lost: Vec<String> = open.iter().map(Copy::text).collect();
        match lost.is_empty() {
            true => Ok(code),
            false if code == 0 => Err(Failure::broken(format!("was not brought out and is lost: {}", lost.join(", ")))),
            false => {
                say_error(&format!("was not brought out and is lost: {}", lost.join(", ")));
                Ok(code)
            }
        }
    }

    /// Runs the program. Returns its exit code, and why it had to end, if it had to.
    fn program(&self, world: &mut World, plan: &Plan, folder: &str, mount: &str) -> Outcome<(i32, Option<Wish>)> {
        let program = Program::start(&self.command, plan, folder, mount, world.sender())?;
        let (mut wish, mut kill_at) = (None, None);
        loop {
            let now = monotonic();
            let Some(event) = world.next(kill_at.map(|at: Time| at.since(now))) else {
                program.signal(Signal::KILL);
                kill_at = None;
                continue;
            };
            if let Event::ProgramEnded(status) = event {
                return Ok((exit_code(status), wish));
            }
            match world.wish(&event) {
                // A terminal has sent the signal to the program as well, which may handle it in its own way.
                Some(Wish::Signal(libc::SIGINT | libc::SIGQUIT)) | None => {}
                Some(why) if wish.is_none() => {
                    let signal = if why == Wish::Signal(libc::SIGHUP) { Signal::HUP } else { Signal::TERM };
                    program.signal(signal);
                    kill_at = Some(Time(now.0 + u64::from(self.kill_after) * 1_000_000_000));
                    wish = Some(why);
                }
                Some(lost @ Wish::Lost(_)) => wish = Some(lost),
                Some(Wish::Signal(_)) => {}
            }
        }
    }
}

/// Folders, servers, mounts. Returns folder and mount point on the first node.
fn begin(world: &mut World, told: &mut Told, plan: &Plan) -> Outcome<(String, String)> {
    let count = plan.nodes.len();
    let (whole, begun) = (told.begun, monotonic());
    let prepared = world.ask(
        To::All,
        &Task::Prepare(Box::new(plan.clone())),
        Some(STARTING),
        |_| false,
        |said| match said {
            Said::Prepared { folder, mount } => Some((folder, mount)),
            _ => None,
        },
    )?;
    told.step(&format!("folders on {count} {}", if count == 1 { "node" } else { "nodes" }), begun);
    let serving = |said| match said {
        Said::Serving { addresses } => Some(addresses),
        _ => None,
    };
    let begun = monotonic();
    let none = Task::Serve { join: Vec::new() };
    let mut addresses = world.ask(To::Node(0), &none, Some(STARTING), |_| false, serving)?.concat();
    if count > 1 {
        let join = Task::Serve { join: addresses.clone() };
        addresses.extend(world.ask(To::Others, &join, Some(STARTING), |_| false, serving)?.concat());
        told.step("servers", begun);
        let begun = monotonic();
        addresses.truncate(ADDRESSES);
        let mounted = |said| matches!(said, Said::Mounted).then_some(());
        world.ask(To::All, &Task::Mount { cluster: addresses }, Some(STARTING), |_| false, mounted)?;
        told.step("mounts", begun);
    } else {
        told.step("server and mount", begun);
    }
    let first = prepared.into_iter().next().unwrap_or_default();
    told.step(&format!("{} is there", first.1), whole);
    Ok(first)
}

/// Copies, and tells.
///
/// Errors: the copy is not complete.
fn stage(world: &mut World, told: &mut Told, way: &str, copy: &Copy, stay: impl FnMut(&Wish) -> bool) -> Outcome {
    let begun = monotonic();
    let result = world.ask(To::Node(0), &Task::Stage(copy.clone()), None, stay, |said| match said {
        Said::Staged(result) => Some(result),
        _ => None,
    });
    let result = result.map(|all| all.into_iter().next().unwrap_or_default());
    let failed = match &result {
        Ok(result) if result["complete"] == true => None,
        Ok(result) => Some(reason(result)),
        Err(e) => Some(e.text.clone()),
    };
    let number = |name: &str| result.as_ref().ok().and_then(|result| result[name].as_u64()).unwrap_or(0);
    told.staged.push(json!({
        "way": way,
        "copy": copy.text(),
        "complete": failed.is_none(),
        "error": failed,
        "files": number("files"),
        "bytes": number("bytes"),
        "seconds": monotonic().since(begun).as_secs_f64(),
    }));
    if let Some(why) = failed {
        return Err(Failure::broken(format!("{}: stage-{way} of {}: {why}", world.host(0), copy.text())));
    }
    let bytes = size::show(number("bytes"));
    told.step(&format!("stage-{way} of {}, {} files, {bytes}", copy.text(), number("files")), begun);
    Ok(())
}

/// Why a stage is not complete.
fn reason(result: &Value) -> String {
    if let Some(error) = result["error"].as_str().filter(|text| !text.is_empty()) {
        return error.to_string();
    }
    let notes = ["failed", "not_kept"].iter().find_map(|kind| result[*kind]["first"].as_array()?.first());
    match notes {
        Some(note) => {
            format!("{}: {}", note["path"].as_str().unwrap_or("?"), note["reason"].as_str().unwrap_or("failed"))
        }
        None => "it has ended without a result".into(),
    }
}

impl Nodes {
    /// The hosts, and how keepers are started on them.
    fn find(&self) -> Outcome<(Vec<String>, Launcher)> {
        let program = match &self.amphi {
            Some(path) => path.clone(),
            None => std::env::current_exe().during(|| "find this program".into())?,
        };
        let named = |default: Option<&'static str>| {
            let command = self.launcher.clone().or_else(|| default.map(String::from));
            Launcher::new(command.as_deref(), &program)
        };
        if !self.nodes.is_empty() {
            let mut sorted = self.nodes.clone();
            sorted.sort();
            if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(Failure::refused(format!("--nodes names {} twice", twice[0])));
            }
            return Ok((self.nodes.clone(), named(Some(SSH))?));
        }
        match std::env::var("SLURM_JOB_NODELIST") {
            Ok(list) if !list.is_empty() => Ok((hosts_of(&list)?, named(Some(SLURM))?)),
            _ => Ok((vec![host_name()], named(None)?)),
        }
    }
}

/// The names of Slurm's nodes, which it writes as `n[1-3,7]`.
fn hosts_of(list: &str) -> Outcome<Vec<String>> {
    let out = Command::new("scontrol").args(["show", "hostnames", list]).output();
    let out = out.map_err(|e| Failure::refused(format!("SLURM_JOB_NODELIST is set, but scontrol cannot run: {e}")))?;
    let hosts: Vec<String> = String::from_utf8_lossy(&out.stdout).lines().map(String::from).collect();
    if !out.status.success() || hosts.is_empty() {
        let why = String::from_utf8_lossy(&out.stderr).trim().to_string();
        return Err(Failure::refused(format!("scontrol show hostnames {list}: {why}")));
    }
    Ok(hosts)
}

/// Options of a server: the space on its node, and its targets.
pub fn zones(size: Option<u64>, targets: Option<u16>) -> Vec<String> {
    let zone = size.map(|bytes| bytes / u64::from(targets.unwrap_or(ServerConfig::TARGETS)));
    let zone = zone.into_iter().flat_map(|bytes| ["--zone-size".to_string(), bytes.to_string()]);
    zone.chain(targets.into_iter().flat_map(|n| ["--targets".to_string(), n.to_string()])).collect()
}

/// The report as JSON.
fn object(told: &Told, plan: &Plan, error: Option<&str>, left: &[String]) -> Value {
    json!({
        "schema": "amphi.job_run/1",
        "job": told.id,
        "nodes": plan.nodes,
        "steps": told.steps,
        "staged": told.staged,
        "program": told.program,
        "ended_by": told.ended_by,
        "error": error,
        "left": left,
        "seconds": monotonic().since(told.begun).as_secs_f64(),
    })
}
