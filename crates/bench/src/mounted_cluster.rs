//! A cluster in processes of its own with several mounts: servers, and an `amphi mount` for each folder.

use super::cluster::OWN_READS;
use super::links::Links;
use super::memory_group::MemoryGroup;
use super::program::Program;
use super::round_trip::Way;
use amphi_host::control;
use amphi_host::failure::{During, Outcome};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What is started.
#[derive(Default)]
pub struct Setup<'a> {
    /// Mounts.
    pub mounts: usize,
    /// Servers; the first is always there.
    pub servers: u16,
    /// The memory group that the mounts run in.
    pub group: Option<&'a MemoryGroup>,
    /// Mbit/s of the link between each mount and the servers; none: all share a Unix socket.
    pub link_mbit: Option<u32>,
    /// The mounts serve all reads themselves: their own way is measured, as in the papers.
    pub own_reads: bool,
}

/// Servers with their mounts.
pub struct Mounts {
    mounts: Vec<Program>,
    servers: Vec<Program>,
    dirs: Vec<PathBuf>,
    /// Tunables that were set, with what they were before the first time.
    before: RefCell<BTreeMap<String, String>>,
    /// Last: processes end before their name spaces.
    _links: Option<Links>,
}

/// The key of all processes on a network.
const KEY: &str = "a key of a benchmark that nobody else can reach";

impl Mounts {
    /// Starts it in the fresh folder `dir`.
    pub fn start(dir: &Path, setup: &Setup) -> Outcome<Mounts> {
        let links = setup.link_mbit.map(|mbit| Links::make(setup.mounts, mbit)).transpose()?;
        let mut with: Vec<OsString> = Vec::new();
        if links.is_some() {
            let key = dir.join("key");
            std::fs::create_dir_all(dir).during(|| format!("make {}", dir.display()))?;
            std::fs::write(&key, KEY).during(|| format!("write {}", key.display()))?;
            std::fs::set_permissions(&key, Permissions::from_mode(0o600))
                .during(|| format!("protect {}", key.display()))?;
            with.extend(["--key".into(), key.into()]);
        }
        let mut all = Mounts {
            mounts: Vec::new(),
            servers: Vec::new(),
            dirs: Vec::new(),
            before: RefCell::default(),
            _links: None,
        };
        let mut addr = String::new();
        for n in 0..setup.servers.max(1) {
            let data = dir.join(format!("data-{n}"));
            let mut more = with.clone();
            if n > 0 {
                more.extend(["--join".into(), addr.clone().into()]);
            }
            let more: Vec<&OsStr> = more.iter().map(OsString::as_os_str).collect();
            let (server, at) = match &links {
                None => Program::server_with(&data, Way::Unix, &more)?,
                Some(links) => Program::server_at(&links.server(), &data, &Links::listen(), &more)?,
            };
            all.servers.push(server);
            if n == 0 {
                addr = at;
            }
        }
        for n in 0..setup.mounts {
            let mount = dir.join(format!("mount-{n}"));
            std::fs::create_dir_all(&mount).during(|| format!("make {}", mount.display()))?;
            let mut command: Vec<OsString> = vec!["mount".into(), "--cluster".into(), addr.clone().into()];
            command.extend(with.iter().cloned());
            if setup.own_reads {
                command.extend(["--set".into(), OWN_READS.into()]);
            }
            command.push(mount.clone().into());
            let command: Vec<&OsStr> = command.iter().map(OsString::as_os_str).collect();
            let mut enter = setup.group.map(MemoryGroup::enter).unwrap_or_default();
            enter.extend(links.as_ref().map(|links| links.mount(n)).unwrap_or_default());
            all.mounts.push(Program::start_behind(&enter, &command, Some(&mount))?);
            all.dirs.push(mount);
        }
        all._links = links;
        Ok(all)
    }

    /// Where they are mounted.
    pub fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Processes of the servers.
    pub fn server_pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.servers.iter().map(Program::pid)
    }

    /// Sets a tunable: of the servers at one mount, of the mounts at each.
    pub fn set(&self, assignment: &str) -> Outcome {
        let name = assignment.split('=').next().unwrap_or_default();
        if !self.before.borrow().contains_key(name) {
            // An unreadable value is refused below.
            let now = control::read_if_any(&self.dirs[0], &format!("user.amphi.tunables.{name}"));
            let now = now.ok().flatten().unwrap_or_default();
            let mut before = self.before.borrow_mut();
            for (name, was) in assignments(&now) {
                before.entry(name.to_string()).or_insert_with(|| was.to_string());
            }
        }
        self.put(assignment)
    }

    /// Gives every tunable that was set the value that it had when the cluster began.
    pub fn put_back(&self) -> Outcome {
        self.before.borrow().values().try_for_each(|was| self.put(was))
    }

    fn put(&self, assignment: &str) -> Outcome {
        let to = if assignment.starts_with("server.") { &self.dirs[..1] } else { &self.dirs[..] };
        for mount in to {
            control::write(mount, "user.amphi.set", assignment, |_| format!("{assignment} was refused"))?;
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

/// The assignments of a list of tunables by name, without remarks: behind a value, and lines of their own on what was
/// learnt.
fn assignments(list: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split(" # ").next()).filter_map(|line| Some((line.split_once('=')?.0, line)))
}

impl Drop for Mounts {
    fn drop(&mut self) {
        // Mounts first: they wait for their servers.
        self.mounts.clear();
        self.servers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is put back are assignments, and no remark is taken for one. Method: a list with both kinds of
    /// remarks.
    #[test]
    fn remarks_are_no_assignments() {
        let list = "hybrid.large_read_bytes=4M # default\n# hybrid.large_read_bytes: learnt and in force are 4M alone\n\na.b=1";
        let found: Vec<_> = assignments(list).collect();
        assert_eq!(found, [("hybrid.large_read_bytes", "hybrid.large_read_bytes=4M"), ("a.b", "a.b=1")]);
    }
}
