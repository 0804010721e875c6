//! A cluster in processes of its own with several mounts: one `amphi up` or servers, and an `amphi mount` for each folder.

use super::program::Program;
use super::round_trip::Way;
use crate::control;
use crate::failure::{During, Outcome};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Servers with their mounts.
pub struct Mounts {
    mounts: Vec<Program>,
    servers: Vec<Program>,
    dirs: Vec<PathBuf>,
}

impl Mounts {
    /// Starts `servers` servers and `count` mounts in the fresh folder `dir`, each mount with `args`, in the memory group whose
    /// list of processes is `group`.
    pub fn start(dir: &Path, count: usize, servers: u16, args: &[&str], group: Option<&Path>) -> Outcome<Mounts> {
        let (first, addr) = Program::server(&dir.join("data-0"), Way::Unix)?;
        let mut all = Mounts { mounts: Vec::new(), servers: vec![first], dirs: Vec::new() };
        for n in 1..servers {
            let more: [&OsStr; 2] = ["--join".as_ref(), addr.as_ref()];
            all.servers.push(Program::server_with(&dir.join(format!("data-{n}")), Way::Unix, &more)?.0);
        }
        for n in 0..count {
            let mount = dir.join(format!("mount-{n}"));
            std::fs::create_dir_all(&mount).during(|| format!("make {}", mount.display()))?;
            let mut command: Vec<OsString> = vec!["mount".into(), "--cluster".into(), addr.clone().into()];
            command.extend(args.iter().map(OsString::from));
            command.push(mount.clone().into());
            let command: Vec<&OsStr> = command.iter().map(OsString::as_os_str).collect();
            all.mounts.push(Program::start_in(&command, Some(&mount), group)?);
            all.dirs.push(mount);
        }
        Ok(all)
    }

    /// Where they are mounted.
    pub fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Sets a tunable: of the servers at one mount, of the mounts at each.
    pub fn set(&self, assignment: &str) -> Outcome {
        let to = if assignment.starts_with("server.") { &self.dirs[..1] } else { &self.dirs[..] };
        for mount in to {
            control::write(mount, "user.amphi.set", assignment, || format!("{assignment} was refused"))?;
        }
        Ok(())
    }

    /// Unmounts all and stops the servers.
    pub fn stop(mut self) -> Outcome {
        for mount in self.mounts.drain(..) {
            mount.stop()?;
        }
        while let Some(server) = self.servers.pop() {
            server.stop()?;
        }
        Ok(())
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        // Mounts first: they wait for their servers.
        self.mounts.clear();
        self.servers.clear();
    }
}
