//! The progress of a job's steps: what is told to people, and what the report as JSON has.

use super::messages::Copy;
use amphi_env::Time;
use amphi_env::real::monotonic;
use amphi_host::say::say;
use serde_json::{Value, json};

/// The progress of the steps, as the command prints it.
pub struct Told {
    /// The job.
    pub id: String,
    /// When the command began.
    pub begun: Time,
    /// The steps, with their times.
    pub steps: Vec<Value>,
    /// The copies.
    pub staged: Vec<Value>,
    /// The program's command, exit code and time.
    pub program: Value,
    /// Why the program ended.
    pub ended_by: &'static str,
}

impl Told {
    /// Tells of a step that has ended.
    pub fn step(&mut self, what: &str, begun: Time) {
        let seconds = monotonic().since(begun).as_secs_f64();
        say(&format!("amphi: job {}: {what}: {seconds:.2} s", self.id));
        self.steps.push(json!({ "step": what, "seconds": seconds }));
    }

    /// Tells that a copy is complete which was not at first.
    pub fn brought_out(&mut self, copy: &Copy) {
        say(&format!("amphi: job {}: stage-out of {} is complete now", self.id, copy.text()));
        for staged in self.staged.iter_mut().filter(|staged| staged["copy"] == copy.text()) {
            staged["complete"] = true.into();
            staged["error"] = Value::Null;
        }
    }
}
