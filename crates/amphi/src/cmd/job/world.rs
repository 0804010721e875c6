//! All events that `amphi job run` waits for, from keepers, the program and signals, and how it waits for answers of
//! keepers.
//!
//! Owns: the channels to keepers, who has answered, what ends a job early. Does not own: the steps of a job (`run`).
//!
//! Invariants: each wait has an end: answers of all nodes, the failure or loss of one of them, a wish to stop, or the
//! time limit.

use super::channel::{Channel, Heard, Launcher};
use super::messages::{Report, Said, Task, To};
use amphi_host::failure::{Failure, Outcome};
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// An event that `amphi job run` waits for.
pub enum Event {
    /// Reports from keepers.
    Keeper(Heard),
    /// The program has ended.
    ProgramEnded(Option<ExitStatus>),
    /// A signal.
    Signal(i32),
}

/// Why a job ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// A signal, here or at a keeper.
    Signal(i32),
    /// A node's part of the file system is gone.
    Lost(String),
}

impl Wish {
    /// Converts a report of an error into a failure.
    pub fn failure(&self) -> Failure {
        match self {
            Wish::Signal(signal) => Failure::broken(format!("stopped by signal {signal}")),
            Wish::Lost(text) => Failure::broken(text.clone()),
        }
    }
}

/// The keepers of a job.
pub struct World {
    hosts: Vec<String>,
    launcher: Launcher,
    channels: Vec<Channel>,
    /// Nodes whose keepers have ended.
    closed: Vec<bool>,
    /// Nodes on which everything is removed.
    ended: Vec<bool>,
    tell: Sender<Event>,
    hear: Receiver<Event>,
}

impl World {
    /// Starts a keeper on each host.
    pub fn start(hosts: &[String], launcher: Launcher) -> Outcome<World> {
        let (tell, hear) = channel();
        let signalled = tell.clone();
        amphi_host::signals::pass_to(move |signal| drop(signalled.send(Event::Signal(signal))))?;
        let count = hosts.len();
        let (closed, ended) = (vec![false; count], vec![false; count]);
        let mut world = World { hosts: hosts.to_vec(), launcher, channels: Vec::new(), closed, ended, tell, hear };
        world.open(&(0..count).collect::<Vec<_>>())?;
        Ok(world)
    }

    #[expect(clippy::disallowed_methods, reason = "the thread that passes on what channels tell")]
    fn open(&mut self, nodes: &[usize]) -> Outcome {
        let (heard, hears) = channel::<Heard>();
        let tell = self.tell.clone();
        std::thread::spawn(move || hears.into_iter().for_each(|heard| drop(tell.send(Event::Keeper(heard)))));
        if self.launcher.starts_all() {
            let all: Vec<usize> = (0..self.hosts.len()).collect();
            self.channels.push(self.launcher.start(all, &self.hosts, heard)?);
            return Ok(());
        }
        for node in nodes {
            self.channels.push(self.launcher.start(vec![*node], &self.hosts, heard.clone())?);
        }
        Ok(())
    }

    /// The sender for the end of the program.
    pub fn sender(&self) -> Sender<Event> {
        self.tell.clone()
    }

    /// The name of a node.
    pub fn host(&self, node: usize) -> &str {
        self.hosts.get(node).map_or("", String::as_str)
    }

    /// The next event, `None` after `limit`.
    pub fn next(&mut self, limit: Option<Duration>) -> Option<Event> {
        let event = match limit {
            None => self.hear.recv().ok(),
            Some(limit) => self.hear.recv_timeout(limit).ok(),
        };
        if let Some(Event::Keeper(Heard::Closed(nodes))) = &event {
            nodes.iter().for_each(|node| self.closed[*node] = true);
        }
        if let Some(Event::Keeper(Heard::Report(Report { node, said: Said::Ended { .. } }))) = &event
            && let Some(ended) = self.ended.get_mut(*node)
        {
            *ended = true;
        }
        event
    }

    /// Whether an event ends the job before its time.
    pub fn wish(&self, event: &Event) -> Option<Wish> {
        match event {
            Event::Signal(signal) => Some(Wish::Signal(*signal)),
            Event::Keeper(Heard::Report(Report { said: Said::Signal(signal), .. })) => Some(Wish::Signal(*signal)),
            Event::Keeper(Heard::Report(Report { node, said: Said::Lost(text) })) => {
                Some(Wish::Lost(format!("{}: {text}", self.host(*node))))
            }
            Event::Keeper(Heard::Closed(nodes)) => {
                let names: Vec<&str> = nodes.iter().map(|node| self.host(*node)).collect();
                Some(Wish::Lost(format!("{}: the keeper of the job has ended", names.join(", "))))
            }
            _ => None,
        }
    }

    /// Gives an order.
    pub fn give(&mut self, to: To, what: &Task) -> Outcome {
        self.channels.iter_mut().try_for_each(|channel| channel.give(to, what))
    }

    /// Gives an order and waits for the answer of each node that it is for: what `answer` makes of its report.
    ///
    /// Errors: the first node that fails, with its name; a request to stop; the end of the time limit. `stay` decides
    /// whether a request to stop is ignored.
    pub fn ask<T>(
        &mut self,
        to: To,
        what: &Task,
        limit: Option<Duration>,
        mut stay: impl FnMut(&Wish) -> bool,
        mut answer: impl FnMut(Said) -> Option<T>,
    ) -> Outcome<Vec<T>> {
        let nodes = to.nodes(self.hosts.len());
        let mut answers: Vec<Option<T>> = self.hosts.iter().map(|_| None).collect();
        self.give(to, what)?;
        let begun = amphi_env::real::monotonic();
        loop {
            let missing: Vec<&str> =
                nodes.iter().filter(|node| answers[**node].is_none()).map(|node| self.host(*node)).collect();
            if missing.is_empty() {
                return Ok(answers.into_iter().flatten().collect());
            }
            let rest = limit.map(|limit| limit.saturating_sub(amphi_env::real::monotonic().since(begun)));
            let late = format!("no answer of {} within {} s", missing.join(", "), limit.unwrap_or_default().as_secs());
            let Some(event) = self.next(rest) else { return Err(Failure::broken(late)) };
            if let Some(wish) = self.wish(&event) {
                if stay(&wish) {
                    continue;
                }
                return Err(wish.failure());
            }
            let Event::Keeper(Heard::Report(Report { node, said })) = event else { continue };
            match said {
                Said::Failed(text) => return Err(Failure::broken(format!("{}: {text}", self.host(node)))),
                other => {
                    if let (Some(slot), Some(value)) = (answers.get_mut(node), answer(other)) {
                        *slot = Some(value);
                    }
                }
            }
        }
    }

    /// Ends all keepers; if a keeper no longer answers, another keeper removes what it has on its node. Returns what
    /// could not be removed, with its node.
    pub fn end(mut self, clean: &Task, limit: Duration) -> Vec<String> {
        let mut left = Vec::new();
        let _ = self.give(To::All, &Task::End);
        self.await_ends(limit, &mut left);
        // If a keeper ended without a last report, nobody knows what it has left.
        let unsure: Vec<usize> = (0..self.hosts.len()).filter(|node| !self.ended[*node]).collect();
        self.channels.clear();
        if !unsure.is_empty() {
            // Further reports on the first channels are ignored.
            (self.tell, self.hear) = channel();
            unsure.iter().for_each(|node| self.closed[*node] = false);
            match self.open(&unsure).and_then(|()| self.give(To::All, clean)) {
                Ok(()) => self.await_ends(limit, &mut left),
                Err(e) => left.push(e.text),
            }
        }
        let unknown = (0..self.hosts.len()).filter(|node| !self.ended[*node]);
        left.extend(
            unknown.map(|node| format!("{}: did not answer; `amphi job clean` there removes it", self.host(node))),
        );
        left
    }

    fn await_ends(&mut self, limit: Duration, left: &mut Vec<String>) {
        let begun = amphi_env::real::monotonic();
        while (0..self.hosts.len()).any(|node| !self.ended[node] && !self.closed[node]) {
            let rest = limit.saturating_sub(amphi_env::real::monotonic().since(begun));
            match self.next(Some(rest)) {
                None => break,
                Some(Event::Keeper(Heard::Report(Report { node, said: Said::Ended { left: what } }))) => {
                    left.extend(what.into_iter().map(|text| format!("{}: {text}", self.host(node))));
                }
                Some(_) => {}
            }
        }
        // Keepers have ended when they have said so; the commands that started them follow.
        self.channels.iter_mut().for_each(Channel::close);
        while self.channels.iter_mut().any(|channel| !channel.has_ended()) {
            let rest = limit.saturating_sub(amphi_env::real::monotonic().since(begun));
            if rest.is_zero() {
                break;
            }
            let _ = self.next(Some(rest.min(Duration::from_millis(20))));
        }
    }
}
