//! Mounting and unmounting: the system calls around `/dev/fuse`.
//!
//! Owns: opening the device, `mount(2)` as root and `fusermount3` otherwise, checks of the mount point, the system's
//! limit on request sizes, and the end of a mount. Does not own: the protocol spoken on the device.
//!
//! Invariants: every error says which path is affected and what to do. A mount is ended only if it is still this one,
//! that is, if it has the same number at the same path. The system reuses device numbers at once, so a later mount at
//! that path may have this one's number. Linux 6.8 and later also give each mount a unique number, which is compared as
//! well.
//!
//! Size of requests: `fs.fuse.max_pages_limit` is 256 (1 MiB) by default. With 2049 pages, 8 MiB of a call arrive in
//! one request wherever its memory begins. Larger requests gain nothing. A buffer of 16 MiB no longer stays in the
//! processor's cache, and direct calls of 16 MiB were 5 % slower in one piece than in two.

mod device;
mod fusermount;
mod table;

use crate::config::SessionConfig;
use rustix::fs::{AtFlags, FileType, Stat, StatxFlags};
use rustix::io::Errno as Raw;
use rustix::mount::{MountFlags, UnmountFlags};
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

pub(crate) use device::{clone_device, pages_limit};
pub(crate) use table::is_mounted;

/// File system type in the mount table.
pub const FS_TYPE: &str = "fuse.amphi";

/// The reason why mounting or unmounting failed.
#[derive(Debug)]
pub enum MountError {
    /// The mount point does not exist.
    Missing(PathBuf),
    /// The mount point is not a directory.
    NotADirectory(PathBuf),
    /// The mount point is mounted already, by a process that is alive.
    AlreadyMounted(PathBuf),
    /// Files are open, or a process has its working directory there.
    Busy(PathBuf),
    /// The mount point cannot be examined.
    MountPoint(PathBuf, std::io::Error),
    /// `/dev/fuse` is missing or may not be opened.
    NoDevice(Raw),
    /// The caller is not root, and there is no `fusermount3`.
    NoHelper(String),
    /// The kernel refused the mount.
    Refused(PathBuf, Raw),
    /// The kernel speaks an older protocol than 7.36 (Linux 5.17).
    KernelTooOld {
        /// Major version of the kernel's protocol.
        major: u32,
        /// Minor version of the kernel's protocol.
        minor: u32,
    },
    /// The first exchange with the kernel failed.
    Init(Raw),
    /// No thread could be started.
    Threads(std::io::Error),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::Missing(p) => write!(f, "mount point {} does not exist", p.display()),
            MountError::NotADirectory(p) => write!(f, "mount point {} is not a directory", p.display()),
            MountError::AlreadyMounted(p) => {
                write!(f, "mount point {} is busy: an AmphiFS is mounted there already", p.display())
            }
            MountError::Busy(p) => write!(f, "{} is busy: files are open there or a process works in it", p.display()),
            MountError::MountPoint(p, e) => write!(f, "mount point {}: {e}", p.display()),
            MountError::NoDevice(e) => {
                write!(f, "cannot open /dev/fuse: {e} (is the fuse module loaded and the device visible here?)")
            }
            MountError::NoHelper(why) => write!(f, "cannot mount without being root: {why}"),
            MountError::Refused(p, e) => write!(f, "the kernel refused to mount at {}: {e}", p.display()),
            MountError::KernelTooOld { major, minor } => {
                write!(f, "the kernel speaks FUSE {major}.{minor}; 7.36 (Linux 5.17) is needed")
            }
            MountError::Init(e) => write!(f, "the first exchange with the kernel over /dev/fuse failed: {e}"),
            MountError::Threads(e) => write!(f, "cannot start a thread: {e}"),
        }
    }
}

impl std::error::Error for MountError {}

/// A mount in the mount table.
pub(crate) struct MountPoint {
    /// Absolute path without symbolic links.
    pub path: PathBuf,
    /// The device number of the mount in the mount table; 0 if the mount was not found there.
    pub(crate) device_number: u64,
    /// Unique number of the mount, if the kernel gives one.
    own_number: Option<u64>,
    by_helper: bool,
}

/// Checks whether a user other than root could mount here, before anything is begun.
///
/// Errors: `NoHelper`.
pub fn find_helper() -> Result<(), MountError> {
    fusermount::find()
}

/// Opens the device and mounts it at the directory `at`.
pub(crate) fn mount(at: &Path, config: &SessionConfig) -> Result<(OwnedFd, MountPoint), MountError> {
    let path = check_mount_point(at)?;
    if rustix::process::geteuid().is_root() {
        device::raise_pages_limit(config.request_bytes() / 4096 + 1);
        let device = device::open_device(rustix::fs::OFlags::empty()).map_err(MountError::NoDevice)?;
        mount_as_root(&path, &device, config)?;
        return Ok((device, MountPoint::at(path, false)));
    }
    let source = config.source.replace('\\', r"\\").replace(',', r"\,");
    let mut options = format!("fsname={source},subtype=amphi,{}", common_options(config));
    for (on, name) in
        [(config.read_only, ",ro"), (config.no_suid, ",nosuid"), (config.no_exec, ",noexec"), (config.devices, ",dev")]
    {
        options.push_str(if on { name } else { "" });
    }
    let device = fusermount::mount(&path, &options)?;
    Ok((device, MountPoint::at(path, true)))
}

fn check_mount_point(at: &Path) -> Result<PathBuf, MountError> {
    let looked = std::fs::canonicalize(at).and_then(|p| look_at(&p).map(|m| (p, m)));
    let (path, meta) = match looked {
        Ok(found) => found,
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => return clear_dead_mount(at),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(MountError::Missing(at.into())),
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => return Err(MountError::NotADirectory(at.into())),
        Err(e) => return Err(MountError::MountPoint(at.into(), e)),
    };
    if !FileType::from_raw_mode(meta.st_mode).is_dir() {
        return Err(MountError::NotADirectory(path));
    }
    if table::is_ours(&path) {
        // For a mount whose process was just killed, the kernel may answer from its cache.
        if is_dead(&path) {
            return clear_dead_mount(&path);
        }
        return Err(MountError::AlreadyMounted(path));
    }
    Ok(path)
}

/// The attributes of a mount point. An automount at that place is not triggered: it might wait for this very mount.
pub fn look_at(path: &Path) -> std::io::Result<Stat> {
    Ok(rustix::fs::statat(rustix::fs::CWD, path, AtFlags::NO_AUTOMOUNT)?)
}

/// A mount that does not answer within this time counts as alive. A killed process releases its mount when the kernel
/// has freed its memory.
const ANSWER: Duration = Duration::from_secs(3);

/// Returns whether the process of the mount at `path` is dead. The function uses a request that the kernel does not
/// answer from its cache. A mount that does not answer is alive and waits for its servers.
pub fn is_dead(path: &Path) -> bool {
    let (tell, told) = mpsc::channel();
    let asked = path.to_path_buf();
    let ask = move || {
        let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::NO_AUTOMOUNT;
        let answer = rustix::fs::statx(rustix::fs::CWD, &asked, flags, StatxFlags::BASIC_STATS);
        let _ = tell.send(matches!(answer, Err(Raw::NOTCONN | Raw::CONNABORTED)));
    };
    let started = std::thread::Builder::new().name("mount point".into()).spawn(ask);
    started.is_ok() && told.recv_timeout(ANSWER).unwrap_or(false)
}

/// Removes a mount whose process was killed, if it was an AmphiFS. The mount of a killed process stays in the mount
/// table and answers ENOTCONN.
fn clear_dead_mount(at: &Path) -> Result<PathBuf, MountError> {
    // Links on the way can be followed, even if the mount point itself does not answer.
    let path = std::fs::canonicalize(at).map_err(|e| MountError::MountPoint(at.into(), e))?;
    if !table::is_ours(&path) {
        return Err(MountError::MountPoint(path, std::io::Error::from_raw_os_error(libc::ENOTCONN)));
    }
    tracing::warn!(path = %path.display(), "taking away a mount that a killed process left behind");
    if rustix::process::geteuid().is_root() {
        rustix::mount::unmount(&path, UnmountFlags::DETACH).map_err(|e| MountError::Refused(path.clone(), e))?;
    } else {
        fusermount::unmount(&path, true)?;
    }
    check_mount_point(&path)
}

fn common_options(config: &SessionConfig) -> String {
    let mut options = format!("max_read={}", config.request_bytes());
    for (on, name) in [(config.allow_other, ",allow_other"), (config.default_permissions, ",default_permissions")] {
        options.push_str(if on { name } else { "" });
    }
    options
}

fn mount_as_root(path: &Path, device: &OwnedFd, config: &SessionConfig) -> Result<(), MountError> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let fd = device.as_raw_fd();
    let data = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid},{}", common_options(config));
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::NODEV, !config.devices);
    flags.set(MountFlags::NOEXEC, config.no_exec);
    flags.set(MountFlags::RDONLY, config.read_only);
    flags.set(MountFlags::NOSUID, config.no_suid);
    let data = std::ffi::CString::new(data).expect("made of numbers and words");
    rustix::mount::mount(config.source.as_str(), path, FS_TYPE, flags, Some(data.as_c_str())).map_err(|e| match e {
        Raw::BUSY => MountError::Busy(path.into()),
        Raw::NODEV => MountError::NoDevice(e),
        e => MountError::Refused(path.into(), e),
    })
}

impl MountPoint {
    /// Describes what has just been mounted at `path`.
    fn at(path: PathBuf, by_helper: bool) -> MountPoint {
        let device_number = table::device_at(&path).unwrap_or(0);
        MountPoint { device_number, own_number: table::own_number_at(&path), by_helper, path }
    }

    /// Raises the kernel's read-ahead for files whose reads it serves. The kernel ignores INIT if that requests more
    /// than its default. This may fail without harm: reads then arrive in smaller requests.
    pub(crate) fn raise_read_ahead(&self, bytes: u32) {
        let path = format!("/sys/class/bdi/{}/read_ahead_kb", table::numbers(self.device_number));
        let Some(now) = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u32>().ok()) else {
            return;
        };
        let wanted = bytes >> 10;
        if now < wanted
            && !self.by_helper
            && let Err(e) = std::fs::write(&path, wanted.to_string())
        {
            tracing::info!(error = %e, "cannot raise {path}; the kernel reads ahead by {now} KiB");
        }
    }

    /// Returns whether this mount is still at its path.
    fn is_there(&self) -> bool {
        let is_same = table::device_at(&self.path).is_some_and(|d| d == self.device_number || self.device_number == 0);
        let is_other = |own: u64| table::own_number_at(&self.path).is_some_and(|there| there != own);
        is_same && !self.own_number.is_some_and(is_other)
    }

    /// Unmounts. It is no error if the mount is gone already.
    pub(crate) fn unmount(&self) -> Result<(), MountError> {
        if !self.is_there() {
            return Ok(());
        }
        if self.by_helper {
            return fusermount::unmount(&self.path, false);
        }
        match rustix::mount::unmount(&self.path, UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Raw::INVAL) => Ok(()),
            Err(Raw::BUSY) => Err(MountError::Busy(self.path.clone())),
            Err(e) => Err(MountError::Refused(self.path.clone(), e)),
        }
    }

    /// Ends the connection to the kernel, then detaches the mount although it is in use.
    pub(crate) fn unmount_by_force(&self) {
        if !self.is_there() {
            return;
        }
        // `FORCE` alone aborts the connection and then reports that the mount is busy; `DETACH` then removes it from
        // the tree.
        if !self.by_helper {
            let _ = rustix::mount::unmount(&self.path, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
            if !self.is_there() {
                return;
            }
        }
        let detached = if self.by_helper {
            fusermount::unmount(&self.path, true)
        } else {
            rustix::mount::unmount(&self.path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
                .map_err(|e| MountError::Refused(self.path.clone(), e))
        };
        if let Err(e) = detached {
            tracing::error!(error = %e, "cannot unmount");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the kernel reads ahead by the requested size, and by no less than before. Method: two sizes, read back.
    #[test]
    fn the_kernel_reads_ahead_as_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_device, at) = mount(dir.path(), &SessionConfig::default()).expect("mount");
        let path = format!("/sys/class/bdi/{}/read_ahead_kb", table::numbers(at.device_number));
        at.raise_read_ahead(768 << 10);
        at.raise_read_ahead(4 << 10);
        let told = std::fs::read_to_string(&path);
        at.unmount().expect("unmount");
        // If the system's settings cannot be written, there is nothing to test.
        if std::fs::OpenOptions::new().write(true).open("/proc/sys/fs/fuse/max_pages_limit").is_ok() {
            assert_eq!(told.expect("a setting").trim(), "768");
        }
    }

    /// Goal: a late end of a mount removes no later mount of another process at the same place, even if that one has
    /// the same device number. Method: mount, unmount, mount again, and then end the first mount in both ways. If
    /// another test has taken the number in between, the attempt is repeated.
    #[test]
    fn a_later_mount_at_the_same_place_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = SessionConfig::default();
        for _ in 0..20 {
            let (device, first) = mount(dir.path(), &config).expect("mount");
            assert!(first.is_there());
            first.unmount().expect("unmount");
            assert!(!first.is_there());
            drop(device);
            let (_device, second) = mount(dir.path(), &config).expect("mount again");
            let is_same_number = second.device_number == first.device_number;
            first.unmount().expect("it has gone");
            first.unmount_by_force();
            let stayed = second.is_there();
            second.unmount().expect("unmount");
            assert!(stayed || first.own_number.is_none());
            if is_same_number {
                return;
            }
        }
        panic!("no number was given again");
    }
}
