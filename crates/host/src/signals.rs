//! Signals and limits of a process that serves.
//!
//! Owns: which signals end it, the second wish to stop, the limit of open files. Does not own: what is stopped.

use crate::failure::{During, Failure, Outcome};
use crate::say::say_error;
use amphi_env::Time;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Sets the limit of open files and connections of this process to the largest permitted one: the usual limit is 1,024,
/// which is also the highest number of mounts.
///
/// Errors: they are too few for anything to work.
pub fn raise_file_limit() -> Outcome {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    match getrlimit(Resource::Nofile).current {
        Some(most) if most < FILES_MIN => Err(Failure::refused(format!(
            "this process may have {most} files open, and needs {FILES_MIN}; raise the limit: ulimit -n {FILES_MIN}, or \
             LimitNOFILE= of a systemd unit"
        ))),
        _ => Ok(()),
    }
}

/// Open files that a server or a mount has before anybody uses it, with some to spare: zones, rings, and a device for
/// each reader of the kernel's requests.
const FILES_MIN: u64 = 128;

/// Lets the program end as others do when the reader of its output has gone (`amphi get | head -1`).
pub fn end_when_nobody_reads() {
    let always = Arc::new(AtomicBool::new(true));
    let _ = signal_hook::flag::register_conditional_default(signal_hook::consts::SIGPIPE, always);
}

/// Signals that end a mount or a server in order: also that the terminal has gone; without those that were to be
/// ignored when the process began (SIGHUP by nohup, SIGTERM by the keeper of a job).
pub fn ending_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let counts = |signal: &i32| ignored >> (signal - 1) & 1 == 0;
    [SIGINT].into_iter().chain([SIGTERM, SIGHUP].into_iter().filter(counts)).collect()
}

/// Lets a program that this process runs handle the signals that are for both: signals from a terminal reach it anyway,
/// and requests to end are passed on to it. This process continues until the program has ended.
pub fn leave_to(program: Pid) -> Outcome {
    let all = [SIGINT, SIGQUIT, SIGTERM, SIGHUP];
    let mut signals = signal_hook::iterator::Signals::new(all).during(|| "handle signals".into())?;
    let pass_on = move || {
        for signal in signals.forever() {
            let signal = match signal {
                SIGTERM => Signal::TERM,
                SIGHUP => Signal::HUP,
                _ => continue,
            };
            // A program that has ended needs no signal.
            let _ = kill_process(program, signal);
        }
    };
    std::thread::Builder::new().spawn(pass_on).map(drop).during(|| "start a thread".into())
}

/// Gives each SIGINT, SIGQUIT, SIGTERM and SIGHUP to `tell`, from another thread; none of them ends this process any
/// more.
pub fn pass_to(tell: impl Fn(i32) + Send + 'static) -> Outcome {
    let all = [SIGINT, SIGQUIT, SIGTERM, SIGHUP];
    let mut signals = signal_hook::iterator::Signals::new(all).during(|| "handle signals".into())?;
    let run = move || signals.forever().for_each(tell);
    std::thread::Builder::new().spawn(run).map(drop).during(|| "start a thread".into())
}

/// How long after the first signal another one counts as a second request to stop. A program that ends a group of
/// processes may send the first one twice (timeout(1) does), and a human is not so fast.
const SECOND_AFTER: Duration = Duration::from_secs(1);

/// Distinguishes a second request to stop from a first one.
#[derive(Default)]
struct Wishes {
    first: Option<Time>,
}

impl Wishes {
    /// Returns whether this signal is the second wish.
    fn is_second(&mut self, signal: i32, now: Time) -> bool {
        match self.first {
            // When a terminal is closed, the signal may come more than once.
            _ if signal == SIGHUP => false,
            None => {
                self.first = Some(now);
                false
            }
            Some(first) => now.since(first) >= SECOND_AFTER,
        }
    }
}

/// Waits for SIGINT, SIGTERM or SIGHUP, or until `also` reports that there is nothing left to wait for.
pub struct Stop {
    receiver: mpsc::Receiver<()>,
    sender: mpsc::Sender<()>,
}

impl Stop {
    /// Takes over the signals. A second request to stop, a second or more after the first, ends the process at once.
    #[expect(clippy::disallowed_methods, reason = "the thread that waits for signals")]
    pub fn on_signals() -> Outcome<Stop> {
        let mut signals = signal_hook::iterator::Signals::new(ending_signals()).during(|| "handle signals".into())?;
        let (sender, receiver) = mpsc::channel();
        let signalled = sender.clone();
        std::thread::spawn(move || {
            let mut wishes = Wishes::default();
            for signal in signals.forever() {
                if wishes.is_second(signal, amphi_env::real::monotonic()) {
                    say_error("stopped at once by a second signal; unsynced writes may be lost");
                    std::process::exit(1);
                }
                let _ = signalled.send(());
            }
        });
        Ok(Stop { receiver, sender })
    }

    /// Something else that ends the wait: send to it.
    pub fn also(&self) -> mpsc::Sender<()> {
        self.sender.clone()
    }

    /// Blocks until a signal arrives.
    pub fn wait(&self) {
        let _ = self.receiver.recv();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a signal that is repeated at once counts as one request, and a later one as a second request. Terminals
    /// that close add no wish. Method: signals at given times.
    #[test]
    fn second_wishes() {
        let ms = |n: u64| Time(n * 1_000_000);
        for (signals, second) in [
            (&[(SIGTERM, 0), (SIGTERM, 1), (SIGINT, 999)][..], None),
            (&[(SIGTERM, 0), (SIGTERM, 1), (SIGTERM, 1000)], Some(2)),
            (&[(SIGINT, 5000), (SIGINT, 6500)], Some(1)),
            (&[(SIGHUP, 0), (SIGHUP, 4000), (SIGTERM, 5000), (SIGHUP, 9000)], None),
        ] {
            let mut wishes = Wishes::default();
            let found = signals.iter().position(|(signal, at)| wishes.is_second(*signal, ms(*at)));
            assert_eq!(found, second, "{signals:?}");
        }
    }
}
