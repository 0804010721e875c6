//! The processes of a workload: this program again, with its commands on standard input, a line for each step.
//!
//! Invariants: all processes of a phase start at one moment of the machine's clock; a process ends when its input ends,
//! so none outlives the parent.

use super::{Done, Job, Phase, Together, run_phase};
use crate::program::this_program;
use amphi_host::failure::{During, Failure, Outcome};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// Time for the line that names the moment to arrive everywhere.
const LEAD_NS: u64 = 3_000_000;

/// The machine's monotonic clock, the same in all processes.
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Returns at the moment `at_ns`: sleeps at first, then polls.
pub fn wait_until(at_ns: u64) {
    loop {
        let left = at_ns.saturating_sub(now_ns());
        match left {
            0 => return,
            l if l > 200_000 => crate::clock::pause(std::time::Duration::from_nanos(l - 100_000)),
            _ => std::hint::spin_loop(),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Order {
    phase: Phase,
    at_ns: u64,
}

struct Rank {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

/// Processes that wait for their next phase.
pub struct Tasks {
    ranks: Vec<Rank>,
}

impl Tasks {
    /// Starts a process for each job.
    pub fn start(jobs: &[Job]) -> Outcome<Tasks> {
        Tasks::start_behind(&[], jobs)
    }

    /// The same, by a command that enters a memory group and becomes the program.
    pub fn start_behind(enter: &[String], jobs: &[Job]) -> Outcome<Tasks> {
        let mut tasks = Tasks { ranks: Vec::new() };
        for job in jobs {
            let mut child = this_program(enter)?
                .args(["bench", "rank"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .during(|| "start a process of the workload".into())?;
            let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
                return Err(Failure::broken("a process of the workload has no input or output"));
            };
            tasks.ranks.push(Rank { child, orders: Some(orders), answers: BufReader::new(answers).lines() });
            let rank = tasks.ranks.len() - 1;
            tasks.tell(rank, job)?;
        }
        Ok(tasks)
    }

    fn tell(&mut self, rank: usize, what: &impl Serialize) -> Outcome {
        let line = serde_json::to_string(what).during(|| "write a line for a process".into())?;
        let to = self.ranks[rank].orders.as_mut().ok_or_else(|| Failure::broken("a process has ended"))?;
        writeln!(to, "{line}").and_then(|()| to.flush()).during(|| format!("tell process {rank} what to do"))
    }

    /// All do one phase.
    ///
    /// Errors: the first that a process reports.
    pub fn phase(&mut self, phase: Phase) -> Outcome<Together> {
        let order = Order { phase, at_ns: now_ns() + LEAD_NS };
        for rank in 0..self.ranks.len() {
            self.tell(rank, &order)?;
        }
        let mut all = Vec::new();
        for (rank, task) in self.ranks.iter_mut().enumerate() {
            let line = task.answers.next().transpose().during(|| format!("read what process {rank} says"))?;
            let line = line.ok_or_else(|| Failure::broken(format!("process {rank} of the workload has died")))?;
            let answer: Result<Done, String> =
                serde_json::from_str(&line).during(|| format!("understand process {rank}"))?;
            all.push(answer.map_err(|e| Failure::broken(format!("process {rank}: {e}")))?);
        }
        Ok(Together { ranks: all })
    }

    /// Ends all.
    pub fn stop(mut self) -> Outcome {
        for (rank, task) in self.ranks.iter_mut().enumerate() {
            drop(task.orders.take());
            let status = task.child.wait().during(|| format!("wait for process {rank}"))?;
            if !status.success() {
                return Err(Failure::broken(format!("process {rank} ended with {status}")));
            }
        }
        self.ranks.clear();
        Ok(())
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &mut self.ranks {
            drop(task.orders.take());
            if !matches!(task.child.try_wait(), Ok(Some(_))) {
                let _ = task.child.kill();
                let _ = task.child.wait();
            }
        }
    }
}

/// A process of a workload: reads its job, then phases, until the input ends.
pub fn serve() -> Outcome {
    let mut lines = std::io::stdin().lines();
    let job = lines.next().transpose().during(|| "read the job".into())?;
    let job = job.ok_or_else(|| Failure::refused("this command is for `amphi bench` itself"))?;
    let mut job: Job = serde_json::from_str(&job).during(|| "understand the job".into())?;
    for line in lines {
        let line = line.during(|| "read the next phase".into())?;
        let order: Order = serde_json::from_str(&line).during(|| "understand the next phase".into())?;
        let answer: Result<Done, String> = run_phase(&mut job, order.phase, order.at_ns).map_err(|e| e.text);
        println!("{}", serde_json::to_string(&answer).during(|| "say what was done".into())?);
    }
    Ok(())
}
