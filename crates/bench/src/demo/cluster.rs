//! The child process `amphi up` of the demo: started, waited for, stopped; also if the demo fails, and killed and
//! unmounted if it does not end then.

use crate::clock::pause;
use amphi_host::failure::{During, Failure, Outcome};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long it has to end after a demo that failed: in looks.
const LOOKS: u32 = 300;
const LOOK: Duration = Duration::from_millis(50);

/// A running embedded cluster with its mount.
pub struct Cluster {
    child: Child,
    mount: PathBuf,
}

impl Cluster {
    /// Starts `amphi up` and waits for its line `ready`.
    pub fn up(data: &Path, mount: &Path, cache: u64, servers: u16) -> Outcome<Cluster> {
        let program = std::env::current_exe().during(|| "find this program".into())?;
        // An empty folder is this demo's own, whatever was in one of that name before.
        let is_new = !std::fs::read_dir(data).is_ok_and(|mut names| names.next().is_some());
        let mut child = Command::new(program)
            .arg("up")
            .arg("--data")
            .arg(data)
            .arg("--mount")
            .arg(mount)
            .args(["--cache", &cache.to_string(), "--servers", &servers.to_string()])
            .args(is_new.then_some("--format"))
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            // A signal from the terminal goes to the demo, which ends the cluster when it is no longer used.
            .process_group(0)
            .spawn()
            .during(|| "start amphi up".into())?;
        let stdout = child.stdout.take();
        let cluster = Cluster { child, mount: mount.to_path_buf() };
        let mut lines = BufReader::new(stdout.ok_or_else(|| Failure::broken("amphi up has no output"))?).lines();
        match lines.next() {
            Some(Ok(line)) if line.starts_with("ready") => Ok(cluster),
            other => Err(Failure::broken(format!("amphi up did not become ready: {other:?}"))),
        }
    }

    /// SIGTERM, then waits; the exit code must be 0 and the mount must be gone.
    pub fn stop(mut self) -> Outcome {
        kill_process(Pid::from_child(&self.child), Signal::TERM).during(|| "stop amphi up".into())?;
        let status = self.child.wait().during(|| "wait for amphi up".into())?;
        if !status.success() {
            return Err(Failure::broken(format!("amphi up ended with {status}")));
        }
        let real = std::fs::canonicalize(&self.mount).unwrap_or_else(|_| self.mount.clone());
        if amphi_host::control::mounts().contains(&real) {
            return Err(Failure::broken(format!("{} is still mounted", real.display())));
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // In order, so that it ends its servers and its mount.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let mut has_ended = || matches!(self.child.try_wait(), Ok(Some(_)));
        let ended = (0..LOOKS).any(|_| {
            let ended = has_ended();
            if !ended {
                pause(LOOK);
            }
            ended
        });
        if !ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let _ = rustix::mount::unmount(&self.mount, rustix::mount::UnmountFlags::DETACH);
        }
    }
}
