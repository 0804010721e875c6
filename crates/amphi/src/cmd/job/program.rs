//! The user's program.
//!
//! Owns: its start, its end, ending it when the job has to end. Does not own: processes that it leaves behind on the
//! nodes (`folder`).

use super::folder::MOUNT_VARIABLE;
use super::messages::Plan;
use super::processes::{APART, PROGRAM_MARK};
use super::world::Event;
use amphi_host::failure::{Failure, Outcome};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::Sender;

/// A running program.
pub struct Program {
    pid: Option<Pid>,
}

impl Program {
    /// Starts the program. The program's end is reported to `tell`.
    #[expect(clippy::disallowed_methods, reason = "the thread that waits for the program")]
    pub fn start(
        command: &[OsString],
        plan: &Plan,
        folder: &str,
        mount: &str,
        tell: Sender<Event>,
    ) -> Outcome<Program> {
        let name = &command[0];
        let child = Command::new(name)
            .args(&command[1..])
            .env(MOUNT_VARIABLE, mount)
            .env(PROGRAM_MARK, &plan.token)
            .env_remove(APART)
            // So that `amphi top` and others find the job's own mount and server.
            .env("AMPHI_RUNTIME", format!("{folder}/run"))
            .spawn();
        let mut child = child.map_err(|e| Failure::refused(format!("cannot start {}: {e}", name.display())))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        std::thread::spawn(move || {
            let _ = tell.send(Event::ProgramEnded(child.wait().ok()));
        });
        Ok(Program { pid })
    }

    /// Sends it a signal. A program that has ended needs no signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            let _ = kill_process(pid, signal);
        }
    }
}

/// The exit code that a shell would report.
pub fn exit_code(status: Option<ExitStatus>) -> i32 {
    status.map_or(1, |status| status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}
