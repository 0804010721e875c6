//! The files of a job on one node: they lie in one folder, and this module removes everything of the job.
//!
//! The folder is `amphi-job-UID-ID`, with mode 0700. `data` has the zones, `mnt` is the mount point, `run` has the
//! sockets, `state` has the notes of the processes, `key` is the cluster key, and `lock` is locked as long as the
//! keeper runs.
//!
//! Owns: names, the lock, finding processes, mounts and memory of a job. Does not own: starting them (`node`).
//!
//! Invariants: everything is done with the rights of the user who owns the folder. Nothing below the mount point is
//! ever removed: the mount point is removed as an empty directory or not at all. Processes are found by a variable in
//! their environment. So no process is missed that was started and not noted yet, and no other process is hit that got
//! the number of one that has ended.

use amphi_host::control;
use amphi_host::failure::{Failure, Outcome};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How the names of folders begin.
const PREFIX: &str = "amphi-job-";
/// Longest path of a folder: paths of Unix sockets have 107 bytes, and those here end in `/run/server-PID.sock`.
const FOLDER_MAX: usize = 72;
/// Variable of the environment by which the servers, mounts and stages of a folder are known.
pub const OWN_MARK: &str = "AMPHI_JOB_FOLDER";
/// Variable of the environment that names the mount to the program, and by which its processes are known.
pub const MOUNT_VARIABLE: &str = "AMPHI_JOB_DIR";
/// How long the program's processes may take to end before they are killed, seconds.
const PROGRAM_S: u64 = 2;
/// How long a killed process may take to end, seconds.
const KILLED_S: u64 = 20;
/// The folder with kept memory, and the prefix of the names there (`amphi_env`).
const MEMORY: &str = "/dev/shm/amphi-";
/// Place and length of a zone's number in its first block.
const ZONE_ID: std::ops::Range<usize> = 24..32;

/// The folder of a job on this node.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Locked while this is held.
    _lock: Option<OwnedFd>,
}

impl Folder {
    /// Makes it, in `scratch`.
    ///
    /// Errors: it cannot be made or is there, or its path is too long for sockets.
    pub fn make(scratch: &Path, id: &str) -> Outcome<Folder> {
        let refused = |path: &Path, e: &dyn std::fmt::Display| Failure::refused(format!("{}: {e}", path.display()));
        let path = named(scratch, id);
        if path.as_os_str().len() > FOLDER_MAX {
            let why = format!("is too long for sockets ({FOLDER_MAX} bytes at most); give a shorter --scratch");
            return Err(refused(&path, &why));
        }
        let private = |path: &Path| std::fs::DirBuilder::new().mode(0o700).create(path).map_err(|e| refused(path, &e));
        private(&path).map_err(|e| match path.exists() {
            true => {
                refused(&path, &"is there already: --scratch has to name a folder of the node alone, no shared one")
            }
            false => e,
        })?;
        for part in ["data", "mnt", "run", "state"] {
            private(&path.join(part))?;
        }
        let lock = path.join("lock");
        let fd = open(&lock, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        let fd = fd.and_then(|fd| flock(&fd, FlockOperation::NonBlockingLockExclusive).map(|()| fd));
        let fd = fd.map_err(|e| refused(&lock, &e))?;
        Ok(Folder { path, _lock: Some(fd) })
    }

    /// The folder of a job in `scratch`, whether it exists or not.
    pub fn of(scratch: &Path, id: &str) -> Folder {
        Folder { path: named(scratch, id), _lock: None }
    }

    /// Folders of this user in `scratch` whose keepers have ended, and those whose keepers live.
    pub fn left_in(scratch: &Path) -> (Vec<Folder>, Vec<PathBuf>) {
        let own = rustix::process::geteuid().as_raw();
        let begin = format!("{PREFIX}{own}-");
        let (mut left, mut alive) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(scratch).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_own = entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == own);
            if !is_own || !entry.file_name().as_bytes().starts_with(begin.as_bytes()) {
                continue;
            }
            match open(path.join("lock"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
                Ok(fd) => match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => left.push(Folder { path, _lock: Some(fd) }),
                    Err(_) => alive.push(path),
                },
                // The folder is just being made, or its keeper was killed while it made the folder.
                Err(_) if is_young(&path) => alive.push(path),
                Err(_) => left.push(Folder { path, _lock: None }),
            }
        }
        (left, alive)
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The mount point.
    pub fn mount(&self) -> PathBuf {
        self.path.join("mnt")
    }

    /// The job.
    pub fn id(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let rest = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
        rest.map_or_else(|| name.clone(), |(_, id)| id.to_string())
    }

    /// Writes the key of the job, which its user alone can read.
    pub fn write_key(&self, digits: &str) -> Outcome<PathBuf> {
        use std::io::Write;
        let path = self.path.join("key");
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(digits.as_bytes()));
        written.map_err(|e| Failure::broken(format!("{}: {e}", path.display())))?;
        Ok(path)
    }

    /// Removes everything of the job on this node: processes, the mount, memory that is kept for servers, the folder.
    /// Data in the file system is discarded. Returns what could not be removed, with the reason.
    pub fn remove(self) -> Vec<String> {
        if !self.path.exists() {
            return Vec::new();
        }
        let mut left = Vec::new();
        end_all(MOUNT_VARIABLE, &self.mount(), Signal::TERM, PROGRAM_S);
        left.extend(end_all(MOUNT_VARIABLE, &self.mount(), Signal::KILL, KILLED_S));
        left.extend(end_all(OWN_MARK, &self.path, Signal::KILL, KILLED_S));
        // There are two mounts if somebody has mounted something on the mount point.
        while is_mounted(&self.mount()) {
            if let Err(e) = detach(&self.mount()) {
                left.push(format!("{}: cannot be unmounted: {e}", self.mount().display()));
                break;
            }
        }
        left.extend(forget_memory(&self.path.join("data")));
        let mut gone = |path: &Path, result: std::io::Result<()>| match result {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => left.push(format!("{}: {e}", path.display())),
            _ => {}
        };
        gone(&self.mount(), std::fs::remove_dir(self.mount()));
        for part in ["data", "run", "state"] {
            let path = self.path.join(part);
            gone(&path, std::fs::remove_dir_all(&path));
        }
        for part in ["key", "lock"] {
            let path = self.path.join(part);
            gone(&path, std::fs::remove_file(&path));
        }
        gone(&self.path, std::fs::remove_dir(&self.path));
        left
    }
}

fn named(scratch: &Path, id: &str) -> PathBuf {
    scratch.join(format!("{PREFIX}{}-{id}", rustix::process::geteuid().as_raw()))
}

/// Whether a folder was made so recently that it may not be complete yet.
fn is_young(path: &Path) -> bool {
    let age = std::fs::metadata(path).and_then(|m| m.modified()).ok().and_then(|at| at.elapsed().ok());
    age.is_none_or(|age| age.as_secs() < 60)
}

fn is_mounted(mount: &Path) -> bool {
    control::mounts().iter().any(|at| at == mount)
}

/// Takes the mount away, also a dead one that somebody uses.
fn detach(mount: &Path) -> std::io::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(rustix::mount::unmount(mount, UnmountFlags::DETACH)?);
    }
    let mut command = Command::new("fusermount3");
    command.args(["-u", "-z", "--"]).arg(mount).stdin(Stdio::null()).stdout(Stdio::null());
    let out = command.output()?;
    match out.status.success() {
        true => Ok(()),
        false => Err(std::io::Error::other(String::from_utf8_lossy(&out.stderr).trim().to_string())),
    }
}

/// Processes of this user whose environment sets `variable` to `value`.
fn marked(variable: &str, value: &Path) -> Vec<Pid> {
    let mark = [variable.as_bytes(), b"=", value.as_os_str().as_bytes()].concat();
    let own = std::process::id();
    let is_marked = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|entry| entry == mark)
    };
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own).filter(is_marked).filter_map(|pid| Pid::from_raw(pid as i32)).collect()
}

/// Sends a signal to all of them and waits until they have ended. Returns those that have not.
fn end_all(variable: &str, value: &Path, signal: Signal, wait_s: u64) -> Vec<String> {
    let begun = amphi_env::real::monotonic();
    loop {
        // Processes that one of these started before it ended are found in the next round.
        let open = |pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?));
        let processes: Vec<(Pid, OwnedFd)> = marked(variable, value).into_iter().filter_map(open).collect();
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

/// Removes the memory that is kept for the zones of a folder, and so outlives a killed server.
fn forget_memory(data: &Path) -> Vec<String> {
    let zones = std::fs::read_dir(data).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut left = Vec::new();
    for zone in zones.filter(|path| path.extension().is_some_and(|ext| ext == "zone")) {
        let mut head = [0; ZONE_ID.end];
        let read = std::fs::OpenOptions::new().read(true).open(&zone).and_then(|mut file| file.read_exact(&mut head));
        let id = <[u8; 8]>::try_from(&head[ZONE_ID]).map(u64::from_le_bytes).unwrap_or(0);
        // A zone that was not written yet has no number and no memory.
        if read.is_err() || id == 0 {
            continue;
        }
        let begin = format!("{MEMORY}{id:016x}-");
        let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.path());
        for path in names.filter(|path| path.as_os_str().as_bytes().starts_with(begin.as_bytes())) {
            if let Err(e) = std::fs::remove_file(&path) {
                left.push(format!("{}: {e}", path.display()));
            }
        }
    }
    left
}
