//! The way to keepers: child processes that start them, whose standard input and output are theirs.
//!
//! Owns: how a keeper is started on this machine, by a command for each node (`ssh {host}`), or by one that starts all
//! of them (`srun`). Does not own: the messages (`messages`).
//!
//! Invariants: the children are in process groups of their own, so that signals from a terminal end only the program.
//! When a channel is dropped, the keepers' standard input ends.

use super::messages::{Order, Report, Task, To};
use super::processes::APART;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::say::say;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;

/// A report that arrived over a channel.
#[derive(Debug)]
pub enum Heard {
    /// A keeper's report.
    Report(Report),
    /// Keepers cannot say anything any more: the nodes of the channel.
    Closed(Vec<usize>),
}

/// How keepers are started.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The words of a command, `{host}` and `{nodes}` in them; none: as a child of this process.
    words: Vec<String>,
    /// Path of the program on the nodes.
    program: String,
}

impl Launcher {
    /// From a command line as the user typed it.
    ///
    /// Errors: a path of the program that a shell of the nodes could take for something else.
    pub fn new(command: Option<&str>, program: &Path) -> Outcome<Launcher> {
        let words = command.unwrap_or_default().split_whitespace().map(String::from).collect();
        let program = program.to_string_lossy().into_owned();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@:,=".contains(c);
        if command.is_some() && !program.chars().all(is_plain) {
            return Err(Failure::refused(format!(
                "{program}: shells on the nodes would not take this path as it is; name another one with --amphi"
            )));
        }
        Ok(Launcher { words, program })
    }

    /// Whether a command starts the keepers of all nodes.
    pub fn starts_all(&self) -> bool {
        !self.words.is_empty() && !self.words.iter().any(|word| word.contains("{host}"))
    }

    fn command(&self, host: &str, nodes: usize) -> Command {
        let fill = |word: &String| word.replace("{host}", host).replace("{nodes}", &nodes.to_string());
        let words: Vec<String> = self.words.iter().map(fill).chain([self.program.clone()]).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["job", "node"]).env_remove(APART);
        command
    }

    /// Starts the keepers of `nodes`: all nodes, or a single one. Their reports go to `tell`.
    #[expect(clippy::disallowed_methods, reason = "the thread that reads what keepers report")]
    pub fn start(&self, nodes: Vec<usize>, hosts: &[String], tell: Sender<Heard>) -> Outcome<Channel> {
        let host = nodes.first().and_then(|node| hosts.get(*node)).cloned().unwrap_or_default();
        let mut command = self.command(&host, nodes.len());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let shown = command.get_program().to_string_lossy().into_owned();
        let mut child =
            command.spawn().map_err(|e| Failure::refused(format!("{host}: cannot start {shown} for it: {e}")))?;
        let (orders, reports) = (child.stdin.take(), child.stdout.take());
        let heard = nodes.clone();
        std::thread::spawn(move || {
            for line in reports.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(report) => drop(tell.send(Heard::Report(report))),
                    // Other lines come from a login shell or a launcher.
                    Err(_) => say(&format!("{host}: {line}")),
                }
            }
            let _ = tell.send(Heard::Closed(heard));
        });
        Ok(Channel { nodes, child, orders })
    }
}

/// A running start command.
pub struct Channel {
    nodes: Vec<usize>,
    child: Child,
    orders: Option<ChildStdin>,
}

impl Channel {
    /// Sends an order to those of the channel's keepers that it is for. A keeper that has ended is noticed by the end
    /// of its output.
    pub fn give(&mut self, to: To, what: &Task) -> Outcome {
        if !self.nodes.iter().any(|node| to.means(*node)) {
            return Ok(());
        }
        let what = match (what, self.nodes.as_slice()) {
            // Where one process starts all keepers, each of them knows which one it is.
            (Task::Prepare(plan), [one]) => Task::Prepare(plan.of(*one)),
            (Task::Clean(plan), [one]) => Task::Clean(plan.of(*one)),
            (other, _) => other.clone(),
        };
        let line = serde_json::to_string(&Order { to, what }).during(|| "write an order".into())?;
        if let Some(orders) = &mut self.orders {
            let _ = writeln!(orders, "{line}").and_then(|()| orders.flush());
        }
        Ok(())
    }

    /// Ends the keepers' standard input, so that they end.
    pub fn close(&mut self) {
        self.orders = None;
    }

    /// Whether the command has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.orders = None;
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a command for each node has its name, one for all their number, and a path that a shell would change is
    /// refused. Method: three commands.
    #[test]
    fn commands_of_nodes() {
        let typed = |launcher: &Launcher| {
            let command = launcher.command("n1", 3);
            let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
            [command.get_program().to_string_lossy().into_owned()]
                .into_iter()
                .chain(words)
                .collect::<Vec<_>>()
                .join(" ")
        };
        let program = Path::new("/opt/a/amphi");
        let each = Launcher::new(Some("ssh -q {host}"), program).expect("good");
        assert_eq!((typed(&each).as_str(), each.starts_all()), ("ssh -q n1 /opt/a/amphi job node", false));
        let all = Launcher::new(Some("srun --nodes={nodes}"), program).expect("good");
        assert_eq!((typed(&all).as_str(), all.starts_all()), ("srun --nodes=3 /opt/a/amphi job node", true));
        let odd = Path::new("/opt/a b/amphi");
        assert!(Launcher::new(Some("ssh {host}"), odd).expect_err("a blank").text.contains("--amphi"));
        let own = Launcher::new(None, odd).expect("no shell");
        assert_eq!((typed(&own).as_str(), own.starts_all()), ("/opt/a b/amphi job node", false));
    }
}
