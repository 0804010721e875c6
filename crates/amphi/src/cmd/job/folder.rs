//! The files of a job on one node: they lie in one folder, and this module removes everything of the job.
//!
//! The folder is `amphi-job-UID-ID`, with mode 0700: `data` has the zones, `mnt` is the mount point, `run` has the
//! sockets, `state` what the processes note, `key` is the cluster key, `unstaged` the list
//! of files that could not be brought out, `lock` says whose folder it is and is locked as
//! long as the keeper lives.
//!
//! Owns: names, the lock, finding mounts and memory of a job, the order of the removal. Does not own: starting what is
//! in it (`node`), whose it is (`owner`), ending processes (`processes`).
//!
//! Invariants: everything is done with the rights of the user, whose folder it is. Nothing below the mount point is
//! ever removed: it is taken away as an empty directory or not at all. A folder that does not say to which job of this
//! node it belongs is not emptied. `lock` appears with its contents and locked, and goes last. Paths are as the kernel
//! has them, without symbolic links, so that they are those of the table of mounts.

use super::owner::Owner;
use super::processes::{Of, end_all};
use amphi_host::control;
use amphi_host::failure::{Failure, Outcome};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
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
/// Variable of the environment that names the mount to the program.
pub const MOUNT_VARIABLE: &str = "AMPHI_JOB_DIR";
/// The file that is locked, and its name until it is.
const LOCK: &str = "lock";
const NEW_LOCK: &str = "lock.new";
/// The file with copies out of the file system that are not complete.
pub const UNSTAGED: &str = "unstaged";
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
    /// None: it is not known to be a job's.
    owner: Option<Owner>,
    /// Locked while this is held, by which it is of this node too.
    lock: Option<OwnedFd>,
}

impl Folder {
    /// Makes it, in `scratch`.
    ///
    /// Errors: it cannot be made or is there, or its path is too long for sockets.
    pub fn make(scratch: &Path, id: &str, owner: Owner) -> Outcome<Folder> {
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
        // It has its name when it is locked and says whose it is, so that nobody takes it for one that was left.
        let (new, lock) = (path.join(NEW_LOCK), path.join(LOCK));
        let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new);
        let file = file.map_err(|e| refused(&new, &e))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| refused(&new, &e))?;
        owner.write(&file, &new)?;
        std::fs::rename(&new, &lock).map_err(|e| refused(&lock, &e))?;
        for part in ["data", "mnt", "run", "state"] {
            private(&path.join(part))?;
        }
        Ok(Folder { path, owner: Some(owner), lock: Some(file.into()) })
    }

    /// The folder of a job in `scratch`, whether it exists or not.
    pub fn of(scratch: &Path, id: &str) -> Folder {
        Folder::at(&named(scratch, id))
    }

    /// The folder of a job with this path, whether it exists or not.
    pub fn at(path: &Path) -> Folder {
        Folder { owner: Owner::of(&path.join(LOCK)), path: path.to_path_buf(), lock: None }
    }

    /// Folders of this user in `scratch` whose keepers have ended, and those whose keepers live, or would have to be
    /// looked for on another node.
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
            let lock = path.join(LOCK);
            match open(&lock, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()) {
                Ok(fd) => {
                    let is_locked = flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err();
                    let owner = Owner::of(&lock);
                    // Locks may hold on one node alone.
                    let is_elsewhere = owner.as_ref().is_some_and(|owner| !owner.is_here(&lock));
                    match is_locked || is_elsewhere || (owner.is_none() && is_young(&path)) {
                        true => alive.push(path),
                        false => left.push(Folder { path, owner, lock: Some(fd) }),
                    }
                }
                // It is just being made, or was killed while it was.
                Err(_) if is_young(&path) => alive.push(path),
                Err(_) => left.push(Folder { path, owner: None, lock: None }),
            }
        }
        (left, alive)
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it may be one of this node.
    pub fn is_here(&self) -> bool {
        self.owner.as_ref().is_none_or(|owner| owner.is_here(&self.path.join(LOCK)))
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
        let (shown, lock) = (self.path.display(), self.path.join(LOCK));
        let owner = match &self.owner {
            Some(owner) if self.lock.is_some() || owner.is_here(&lock) => owner,
            Some(owner) => return vec![format!("{shown}: is of node {}: remove it there", owner.host())],
            None => return self.remove_empty(),
        };
        let mut left = Vec::new();
        end_all(Of::Program(owner), Signal::TERM, PROGRAM_S);
        left.extend(end_all(Of::Program(owner), Signal::KILL, KILLED_S));
        left.extend(end_all(Of::Folder(&self.path), Signal::KILL, KILLED_S));
        // There are two if somebody has mounted something on it.
        while is_mounted(&self.mount()) {
            if let Err(e) = detach(&self.mount()) {
                left.push(format!("{}: cannot be unmounted: {e}", self.mount().display()));
                break;
            }
        }
        left.extend(forget_memory(&self.path.join("data")));
        let gone = |left: &mut Vec<String>, path: &Path, result: std::io::Result<()>| match result {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => left.push(format!("{}: {e}", path.display())),
            _ => {}
        };
        gone(&mut left, &self.mount(), std::fs::remove_dir(self.mount()));
        for part in ["data", "run", "state"] {
            let path = self.path.join(part);
            gone(&mut left, &path, std::fs::remove_dir_all(&path));
        }
        for file in ["key", UNSTAGED] {
            let path = self.path.join(file);
            gone(&mut left, &path, std::fs::remove_file(&path));
        }
        // As long as something is left, the next one has to know whose it is.
        if left.is_empty() {
            gone(&mut left, &lock, std::fs::remove_file(&lock));
            gone(&mut left, &self.path, std::fs::remove_dir(&self.path));
        }
        left
    }

    /// Removes one of which nobody knows whose it is, if nothing is in it but what `make` begins with.
    fn remove_empty(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.path).into_iter().flatten().flatten().map(|entry| entry.file_name());
        if names.collect::<Vec<_>>() == [NEW_LOCK] {
            let _ = std::fs::remove_file(self.path.join(NEW_LOCK));
        }
        match std::fs::remove_dir(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                vec![format!("{}: has no file `{LOCK}` of a job; look at it and remove it", self.path.display())]
            }
            _ => Vec::new(),
        }
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
