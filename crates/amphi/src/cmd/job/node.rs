//! The keeper of a node: the folder of a job there, its server and its mount.
//!
//! Owns: which processes a node runs for a job, when they are ready, and that all of them end with the keeper. Does not
//! own: when server and mount are started (`run`), what is removed and how (`folder`).
//!
//! Invariants: SIGTERM, SIGINT and SIGHUP do not end a keeper, as a batch system sends SIGTERM to all processes of a
//! job while files are still to be brought out; they are reported. The keeper's children ignore SIGTERM. The end of its
//! standard input ends the keeper. Servers and mounts get a signal from the kernel when their keeper is killed.

use super::folder::{Folder, MOUNT_VARIABLE};
use super::messages::{Copy, Order, Place, Plan, Report, Said, Task};
use super::owner::Owner;
use super::processes::OWN_MARK;
use super::unstaged::List;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::say::say;
use clap::Args;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Variables by which launchers number the processes that they start, one on each node.
const RANKS: [&str; 4] = ["SLURM_PROCID", "PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"];

/// Keep the server and the mount of a job on this node, as the orders on standard input say
#[derive(Args, Debug)]
pub struct Node {}

/// An event that a keeper waits for.
enum Heard {
    Order(Order),
    /// Nobody gives orders any more.
    Left,
    Signal(i32),
    /// A child is ready, and gives these addresses.
    Ready(Part, String),
    /// A child has ended; the last words of its output and of its errors.
    Ended(Part, String, String),
}

/// A child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Server,
    Mount,
    /// Server and mount in one process.
    Both,
    Stage,
    /// `amphi job stage-out`.
    Retry,
}

impl Part {
    fn word(self) -> &'static str {
        match self {
            Part::Server => "the server",
            Part::Mount => "the mount",
            Part::Both => "the file system",
            Part::Stage | Part::Retry => "the stage",
        }
    }
}

impl Node {
    /// Runs until an order ends the keeper, or its standard input ends.
    #[expect(clippy::disallowed_methods, reason = "the thread that reads orders")]
    pub fn run(self) -> Outcome {
        let (tell, hear) = channel();
        let signalled = tell.clone();
        amphi_host::signals::pass_to(move |signal| drop(signalled.send(Heard::Signal(signal))))?;
        let orders = tell.clone();
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(order) => drop(orders.send(Heard::Order(order))),
                    Err(e) => say(&format!("amphi: an order makes no sense: {e}")),
                }
            }
            let _ = orders.send(Heard::Left);
        });
        Keeper { node: 0, plan: None, folder: None, children: Vec::new(), tell }.follow(&hear)
    }
}

struct Keeper {
    node: usize,
    plan: Option<Plan>,
    folder: Option<Folder>,
    children: Vec<(Part, Child)>,
    tell: Sender<Heard>,
}

impl Keeper {
    fn follow(mut self, hear: &Receiver<Heard>) -> Outcome {
        loop {
            match hear.recv().unwrap_or(Heard::Left) {
                // Before `Prepare`, a keeper may not know which node it is on.
                Heard::Order(order) if self.plan.is_some() && !order.to.means(self.node) => {}
                Heard::Order(Order { what: Task::End, .. }) => {
                    let left = self.end();
                    self.report(Said::Ended { left });
                    return Ok(());
                }
                Heard::Order(Order { what: Task::Clean(plan), .. }) => {
                    let (node, given) = place(&plan)?;
                    self.node = node;
                    let left = Folder::of(&real(&given)?, &plan.id).remove();
                    self.report(Said::Ended { left });
                    return Ok(());
                }
                Heard::Order(order) => {
                    if let Err(e) = self.obey(order.what) {
                        self.report(Said::Failed(e.text));
                    }
                }
                Heard::Left => {
                    let left = self.end();
                    left.iter().for_each(|what| say(&format!("amphi: {what}")));
                    return Ok(());
                }
                Heard::Signal(signal) => self.report(Said::Signal(signal)),
                Heard::Ready(part, what) => {
                    let addresses = what.split(' ').map(String::from).collect();
                    match part {
                        Part::Server => self.report(Said::Serving { addresses }),
                        Part::Both => self.report(Said::Serving { addresses: Vec::new() }),
                        Part::Mount => self.report(Said::Mounted),
                        Part::Stage | Part::Retry => {}
                    }
                }
                Heard::Ended(part, output, errors) => {
                    let at = self.children.iter().position(|(one, _)| *one == part);
                    if let Some((_, mut child)) = at.map(|at| self.children.remove(at)) {
                        let _ = child.wait();
                    }
                    match (part, serde_json::from_str(&output)) {
                        (Part::Stage, Ok(result)) => self.report(Said::Staged(result)),
                        (Part::Stage, Err(_)) => self.report(Said::Staged(no_result(&errors))),
                        (Part::Retry, _) if errors.is_empty() => {}
                        (Part::Retry, _) => say(&format!("amphi: {errors}")),
                        _ => self.report(Said::Lost(format!("{} has ended: {errors}", part.word()))),
                    }
                }
            }
        }
    }

    fn report(&self, said: Said) {
        let line = serde_json::to_string(&Report { node: self.node, said }).unwrap_or_default();
        let mut out = std::io::stdout();
        // If writing fails, the reader has ended, which the end of standard input shows as well.
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }

    fn obey(&mut self, task: Task) -> Outcome {
        match task {
            Task::Prepare(plan) => self.prepare(*plan),
            Task::Serve { join } => self.serve(&join),
            Task::Mount { cluster } => self.mount(&cluster),
            Task::Check { targets, may_exist } => {
                let problem = targets.iter().find_map(|target| problem_of(Path::new(target), may_exist));
                self.report(Said::Checked(problem));
                Ok(())
            }
            Task::Stage(copy) => self.stage(copy),
            Task::Keep(copies) => self.keep(copies),
            Task::Retry => self.retry(),
            Task::Unstaged => self.unstaged(),
            Task::Clean(_) | Task::End => Ok(()),
        }
    }

    fn prepare(&mut self, plan: Plan) -> Outcome {
        let (node, given) = place(&plan)?;
        self.node = node;
        let scratch = real(&given)?;
        // What a killed job has left of this user takes space that this one may need.
        let (left, _) = Folder::left_in(&scratch);
        for old in left {
            let id = old.id();
            let remains = old.remove();
            if remains.is_empty() {
                say(&format!("amphi: {}: removed what job {id} had left", plan.nodes[node]));
            }
            remains.iter().for_each(|what| say(&format!("amphi: {}: {what}", plan.nodes[node])));
        }
        let folder = Folder::make(&scratch, &plan.id, Owner::here(&plan.token, &plan.batch))?;
        // The program gets the path as it was given, which may be the same on all nodes while what it leads to is not.
        let shown = given.join(folder.path().file_name().unwrap_or_default());
        let (path, mount) = (shown.display().to_string(), shown.join("mnt").display().to_string());
        let key = if plan.key.is_empty() { Ok(None) } else { folder.write_key(&plan.key).map(Some) };
        self.folder = Some(folder);
        key?;
        self.plan = Some(plan);
        self.report(Said::Prepared { folder: path, mount });
        Ok(())
    }

    /// Plan and folder, which exist from `Prepare` on.
    fn place(&self) -> Outcome<(&Plan, &Folder)> {
        let both = self.plan.as_ref().zip(self.folder.as_ref());
        both.ok_or_else(|| Failure::broken("an order came before the folder was made"))
    }

    fn serve(&mut self, join: &[String]) -> Outcome {
        let (plan, folder) = self.place()?;
        let text = |path: PathBuf| path.display().to_string();
        let data = ["--data".to_string(), text(folder.path().join("data"))];
        let parent = ["--with-parent".to_string(), std::process::id().to_string()];
        let (part, mut args) = if plan.nodes.len() == 1 {
            let mount = ["--mount".to_string(), text(folder.mount()), "--private".into()];
            (Part::Both, ["up".to_string()].into_iter().chain(mount).chain(plan.mount.clone()).collect::<Vec<_>>())
        } else {
            let host = plan.address.replace("{host}", &plan.nodes[self.node]);
            let mut args =
                vec!["server".to_string(), "--format".into(), "--name".into(), plan.nodes[self.node].clone()];
            args.extend([
                "--listen".to_string(),
                format!("tcp:{host}:{}", plan.port),
                "--key".into(),
                text(folder.path().join("key")),
            ]);
            args.extend(join.iter().flat_map(|addr| ["--join".to_string(), addr.clone()]));
            (Part::Server, args)
        };
        args.extend(data.into_iter().chain(parent).chain(plan.server.clone()));
        self.begin(part, args)
    }

    fn mount(&mut self, cluster: &[String]) -> Outcome {
        let (plan, folder) = self.place()?;
        let mut args = vec!["mount".to_string(), "--private".into()];
        args.extend(["--key".to_string(), folder.path().join("key").display().to_string()]);
        args.extend(["--with-parent".to_string(), std::process::id().to_string()]);
        args.extend(cluster.iter().flat_map(|addr| ["--cluster".to_string(), addr.clone()]));
        args.extend(plan.mount.clone());
        args.push(folder.mount().display().to_string());
        self.begin(Part::Mount, args)
    }

    fn stage(&mut self, copy: Copy) -> Outcome {
        let mount = self.place()?.1.mount();
        let (from, to) = (copy.source.at(&mount), copy.target.at(&mount));
        if let (Place::Inside(_), Some(above)) = (&copy.target, to.parent()) {
            std::fs::create_dir_all(above).during(|| format!("make {}", above.display()))?;
        }
        let mut args = vec!["stage".to_string(), "--json".into()];
        args.extend(copy.options);
        args.extend(["--".to_string(), from.display().to_string(), to.display().to_string()]);
        self.begin(Part::Stage, args)
    }

    fn keep(&self, mut copies: Vec<Copy>) -> Outcome {
        let folder = self.place()?.1;
        // What the program has not made will not be there later either.
        copies.retain(|copy| copy.source.at(&folder.mount()).symlink_metadata().is_ok());
        List::make(folder, &copies)?;
        self.report(Said::Unstaged(Some(copies)));
        Ok(())
    }

    fn retry(&mut self) -> Outcome {
        let folder = self.place()?.1;
        let scratch = folder.path().parent().unwrap_or(Path::new("/")).display().to_string();
        let args = ["job", "stage-out", &folder.id(), "--scratch", &scratch].map(String::from);
        self.begin(Part::Retry, args.to_vec())
    }

    fn unstaged(&self) -> Outcome {
        let list = List::open(self.place()?.1)?;
        let copies = if list.is_busy() { None } else { Some(list.read()?) };
        self.report(Said::Unstaged(copies));
        Ok(())
    }

    /// Starts a child of this program. The child's parent, whose end the kernel reports to it, is this thread.
    #[expect(clippy::disallowed_methods, reason = "the threads that read what a child says")]
    fn begin(&mut self, part: Part, args: Vec<String>) -> Outcome {
        let (plan, folder) = self.place()?;
        // A batch system sends SIGTERM to these processes as well, which the file system has to outlive. Child
        // processes inherit that a signal is ignored.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "trap '' TERM; exec \"$0\" \"$@\""]);
        command.arg(std::env::current_exe().during(|| "find this program".into())?);
        for name in amphi_host::notify::VARIABLES {
            command.env_remove(name);
        }
        command.env_remove(MOUNT_VARIABLE).env(OWN_MARK, folder.path());
        command.env("AMPHI_RUNTIME", folder.path().join("run")).env("AMPHI_STATE", folder.path().join("state"));
        if std::env::var_os("AMPHI_LOG").is_none() {
            command.env("AMPHI_LOG", "warn");
        }
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A signal from a terminal ends the program, not its file system.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let host = plan.nodes[self.node].clone();
        let mut child = command.spawn().during(|| format!("start {}", part.word()))?;
        let (output, errors, tell) = (child.stdout.take(), child.stderr.take(), self.tell.clone());
        self.children.push((part, child));
        let reader = std::thread::spawn(move || {
            let mut failure = String::new();
            for line in errors.into_iter().flat_map(|e| BufReader::new(e).lines()).map_while(Result::ok) {
                match line.strip_prefix("amphi: ") {
                    Some(text) => failure = text.to_string(),
                    None => say(&format!("{host}: {line}")),
                }
            }
            failure
        });
        std::thread::spawn(move || {
            let mut last = String::new();
            for line in output.into_iter().flat_map(|o| BufReader::new(o).lines()).map_while(Result::ok) {
                if let Some(what) = line.strip_prefix("ready ") {
                    let _ = tell.send(Heard::Ready(part, what.to_string()));
                }
                last = line;
            }
            let failure = reader.join().unwrap_or_default();
            let _ = tell.send(Heard::Ended(part, last, failure));
        });
        Ok(())
    }

    /// Ends all children and removes everything. Data that is still in the file system is discarded, because nobody can
    /// read it any more.
    fn end(&mut self) -> Vec<String> {
        for (_, child) in &mut self.children {
            let _ = child.kill();
        }
        for (_, mut child) in self.children.drain(..) {
            let _ = child.wait();
        }
        self.folder.take().map(Folder::remove).unwrap_or_default()
    }
}

/// The path of a folder without symbolic links, as the table of mounts has it.
pub fn real(scratch: &Path) -> Outcome<PathBuf> {
    scratch.canonicalize().map_err(|e| {
        Failure::refused(format!("{}: the folder for jobs cannot be used ({e}); make it", scratch.display()))
    })
}

/// Which node this is, and the folder in which that of the job lies, as it was given.
fn place(plan: &Plan) -> Outcome<(usize, PathBuf)> {
    let named = || std::env::var("SLURMD_NODENAME").ok().and_then(|name| plan.nodes.iter().position(|n| *n == name));
    let ranked = || RANKS.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
    let node = plan.node.or_else(named).or_else(ranked).filter(|node| *node < plan.nodes.len());
    let node = node.ok_or_else(|| {
        Failure::refused(format!(
            "{}: the launcher does not say which node this is: none of SLURMD_NODENAME, {} does",
            amphi_host::link::host_name(),
            RANKS.join(", ")
        ))
    })?;
    Ok((node, PathBuf::from(plan.scratch.replace("{host}", &plan.nodes[node]))))
}

/// Why a file could not be brought to `target`.
fn problem_of(target: &Path, may_exist: bool) -> Option<String> {
    let above = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let shown = target.display();
    if !may_exist && target.symlink_metadata().is_ok() {
        return Some(format!("{shown}: is there already; --existing replace or update allows that"));
    }
    let writable = rustix::fs::access(above, rustix::fs::Access::WRITE_OK);
    match writable {
        Ok(()) if above.is_dir() => None,
        Ok(()) => Some(format!("{shown}: {} is no directory", above.display())),
        Err(e) => Some(format!("{shown}: {}: {}", above.display(), std::io::Error::from(e))),
    }
}

/// The result of a stage whose process has not printed one.
fn no_result(text: &str) -> Value {
    serde_json::json!({ "complete": false, "error": text })
}
