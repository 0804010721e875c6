//! Processes of a job, and ending them.
//!
//! Owns: the marks in the environment of processes, which of them are a job's, signals to them. Does not own: when they
//! have to end (`folder`).
//!
//! Invariants: processes are found by a mark in their environment, so that none is missed that was started and not
//! noted, and none is taken for one whose number it has. A mark is inherited, also by what a program submits or leaves
//! to a batch system; so a process is no longer of the job if its batch system gives it another number, and file
//! systems and jobs that a program starts step apart (`step_apart`). No ancestor of this process is signalled, nor of a
//! process that has stepped apart.

use super::owner::{BATCH, Owner};
use amphi_host::failure::{Failure, Outcome};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Variable of the environment by which the servers, mounts and stages of a folder are known.
pub const OWN_MARK: &str = "AMPHI_JOB_FOLDER";
/// Variable by which the processes of a run's program are known.
pub const PROGRAM_MARK: &str = "AMPHI_JOB_TOKEN";
/// Variable of a process that has stepped apart.
pub const APART: &str = "AMPHI_JOB_APART";

/// A kind of processes of a job.
#[derive(Clone, Copy, Debug)]
pub enum Of<'a> {
    /// The program's.
    Program(&'a Owner),
    /// Servers, mounts and stages of this folder.
    Folder(&'a Path),
}

/// Lets this process not be one of the job whose program has started it. A mark goes only with the whole environment,
/// so the program is executed anew, before it has done anything.
///
/// Errors: it cannot be executed.
pub fn step_apart() -> Outcome {
    if std::env::var_os(PROGRAM_MARK).is_none() {
        return Ok(());
    }
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_else(|| "amphi".into());
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name).args(words).env_remove(PROGRAM_MARK).env(APART, "1");
    let e = command.exec();
    Err(Failure::refused(format!("cannot start anew without {PROGRAM_MARK} of another job: {e}; unset it")))
}

/// Sends a signal to all of them and waits until they have ended. Returns those that have not.
pub fn end_all(of: Of<'_>, signal: Signal, wait_s: u64) -> Vec<String> {
    let begun = amphi_env::real::monotonic();
    loop {
        // Those that a process has started before it ended are found in the next round.
        let processes = find(of);
        if processes.is_empty() {
            return Vec::new();
        }
        for (_, fd) in &processes {
            let _ = pidfd_send_signal(fd, signal);
        }
        let mut left = Vec::new();
        for (pid, fd) in &processes {
            let past = amphi_env::real::monotonic().since(begun).as_secs();
            let limit = Timespec { tv_sec: wait_s.saturating_sub(past) as i64, tv_nsec: 0 };
            let ended = rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)));
            if ended == Ok(0) {
                left.push(format!("process {}: does not end", pid.as_raw_nonzero()));
            }
        }
        if !left.is_empty() || amphi_env::real::monotonic().since(begun).as_secs() >= wait_s {
            return left;
        }
    }
}

/// Those that there are now.
fn find(of: Of<'_>) -> Vec<(Pid, OwnedFd)> {
    let (mut found, mut spared) = (Vec::new(), BTreeSet::new());
    spare(std::process::id(), &mut spared);
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        // Opened before its environment is read, so that both are of the same process or the signal reaches none.
        let process = Pid::from_raw(pid as i32).and_then(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)));
        let Some(process) = process else { continue };
        let environment = Environment(std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default());
        if environment.get(APART).is_some() {
            spare(pid, &mut spared);
        } else if environment.is_of(of) {
            found.push((pid, process));
        }
    }
    found.into_iter().filter(|(pid, _)| !spared.contains(pid)).map(|(_, process)| process).collect()
}

/// Adds a process and its ancestors.
fn spare(mut pid: u32, spared: &mut BTreeSet<u32>) {
    while pid != 0 && spared.insert(pid) {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name in front may have anything in it.
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        pid = parent.unwrap_or(0);
    }
}

/// The environment that a process was executed with.
struct Environment(Vec<u8>);

impl Environment {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.split(|b| *b == 0).find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }

    fn is_of(&self, of: Of<'_>) -> bool {
        match of {
            Of::Folder(path) => self.get(OWN_MARK) == Some(path.as_os_str().as_bytes()),
            Of::Program(owner) => {
                self.get(PROGRAM_MARK) == Some(owner.token.as_bytes())
                    && BATCH.iter().all(|name| {
                        let own = owner.batch.get(*name).map(String::as_bytes);
                        self.get(name).is_none_or(|number| own == Some(number))
                    })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::process::{Child, Stdio};

    fn owner(token: &str) -> Owner {
        Owner::here(token, &BTreeMap::from([("SLURM_JOB_ID".to_string(), "7".to_string())]))
    }

    /// A shell with this environment that stays until it is ended; its standard output has begun when this returns.
    fn started(script: &str, environment: &[(&str, &str)]) -> Child {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).envs(environment.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let mut first = [0];
        let out = child.stdout.as_mut().expect("piped");
        std::io::Read::read_exact(out, &mut first).expect("it begins");
        child
    }

    fn has_ended(child: &mut Child) -> bool {
        child.try_wait().expect("wait").is_some()
    }

    /// Goal: processes of the program are ended, those of another batch job that it has submitted are not, nor are a
    /// job that it has started and that job's shell. Method: shells with such environments.
    #[test]
    fn only_processes_of_the_job_end() {
        let token = format!("t{}", std::process::id());
        let wait = "echo begun; read line";
        let of = |number: &'static str| [(PROGRAM_MARK, token.as_str()), ("SLURM_JOB_ID", number)];
        let mut own = started(wait, &of("7"));
        let mut submitted = started(wait, &of("8"));
        let apart = format!("env -u {PROGRAM_MARK} {APART}=1 sh -c '{wait}'; exit 4");
        let mut shell = started(&apart, &of("7"));
        let mut other = started(wait, &[(PROGRAM_MARK, "another")]);
        let mut server = started(wait, &[(OWN_MARK, "/none/such")]);
        assert_eq!(end_all(Of::Program(&owner(&token)), Signal::KILL, 20), Vec::<String>::new());
        own.wait().expect("ended");
        assert!(![&mut submitted, &mut shell, &mut other, &mut server].into_iter().any(has_ended));
        assert_eq!(end_all(Of::Folder(Path::new("/none/such")), Signal::KILL, 20), Vec::<String>::new());
        server.wait().expect("ended");
        for mut child in [submitted, shell, other] {
            drop(child.stdin.take());
            child.wait().expect("it ends by itself");
        }
    }

    /// Goal: no job ends the processes from which it was started. Method: a shell with the mark, in which another
    /// process with the mark ends all that have it.
    #[test]
    fn ancestors_stay() {
        let token = format!("a{}", std::process::id());
        let own = std::env::current_exe().expect("a program");
        let script = "sh -c 'echo begun; exec sleep 600' & \"$0\" cmd::job::processes::tests::child --exact; echo lives; \
                      wait $!; echo $?";
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).arg(own).env(PROGRAM_MARK, &token).env("AMPHI_TEST_END", &token);
        let out = command.env("SLURM_JOB_ID", "7").output().expect("a shell");
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(said.contains("lives") && said.trim_end().ends_with("137"), "{said}");
    }

    /// The process of `ancestors_stay`; nothing in a run of all tests.
    #[test]
    fn child() {
        let Ok(token) = std::env::var("AMPHI_TEST_END") else { return };
        assert_eq!(end_all(Of::Program(&owner(&token)), Signal::KILL, 20), Vec::<String>::new());
    }
}
