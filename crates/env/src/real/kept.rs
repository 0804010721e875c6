//! Memory that outlives the process: small files of a tmpfs, which the kernel has in memory alone.
//!
//! Owns: their place, names and rights. Does not own: what is in them.
//!
//! Invariants: nobody but the user of the process can write to one; a place that is no tmpfs is not used, since a
//! write there could wait for a disk; nor is that of a container, which ends with it.

use super::disk::context;
use crate::Kept;
use rustix::fs::{FileType, Mode, OFlags};
use std::io;
use std::os::fd::OwnedFd;

/// Where they lie. Every Linux with glibc has it, for POSIX shared memory (shm_overview(7)).
const PLACE: &str = "/dev/shm";
/// What statfs(2) says of a tmpfs.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Whose `/dev/shm` it is.
const IPC_NAMESPACE: &str = "/proc/self/ns/ipc";
/// Inode of the first IPC namespace, that of the machine: part of the kernel's interface (`PROC_IPC_INIT_INO` of linux/proc_ns.h).
const MACHINE: u64 = 0xEFFF_FFFF;

/// Whether memory that this process makes outlives it.
///
/// Errors: `Unsupported` where there is no tmpfs, or it is that of a container, which is killed and goes as a whole.
pub fn memory_outlives() -> io::Result<()> {
    let unsupported = |why: &str| Err(io::Error::new(io::ErrorKind::Unsupported, format!("{PLACE}: {why}")));
    let place = rustix::fs::statfs(PLACE).map_err(|e| context(PLACE, e))?;
    if place.f_type as i64 != TMPFS_MAGIC {
        return unsupported("it is no tmpfs");
    }
    let namespace = rustix::fs::stat(IPC_NAMESPACE).map_err(|e| context(IPC_NAMESPACE, e))?;
    if namespace.st_ino != MACHINE {
        return unsupported("the IPC namespace is not the machine's, it may end with the server");
    }
    Ok(())
}

/// A file of a tmpfs.
pub struct RealKept {
    fd: OwnedFd,
}

fn path_of(name: &str) -> String {
    assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{name:?} is no name of kept memory");
    format!("{PLACE}/amphi-{name}")
}

impl RealKept {
    pub(super) fn make(name: &str) -> io::Result<RealKept> {
        memory_outlives()?;
        forget(name)?;
        let path = path_of(name);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).map_err(|e| context(&path, e))?;
        Ok(RealKept { fd })
    }
}

/// Names are seen by all users, so what is there may be anybody's, of any size.
pub(super) fn read(name: &str, most: usize) -> io::Result<Vec<u8>> {
    let path = path_of(name);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(&path, flags, Mode::empty()).map_err(|e| context(&path, e))?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| context(&path, e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{path}: it is no file")));
    }
    let (mut bytes, mut done) = (vec![0; most.min(stat.st_size as usize)], 0);
    while done < bytes.len() {
        match rustix::io::retry_on_intr(|| rustix::io::read(&fd, &mut bytes[done..])).map_err(|e| context(&path, e))? {
            0 => break,
            n => done += n,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

pub(super) fn forget(name: &str) -> io::Result<()> {
    let path = path_of(name);
    match rustix::fs::unlink(&path) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(context(&path, e)),
    }
}

impl Kept for RealKept {
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.fd, &bytes[done..], at + done as u64))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => done += n,
            }
        }
        Ok(())
    }

    fn is_there(&self) -> bool {
        rustix::fs::fstat(&self.fd).is_ok_and(|stat| stat.st_nlink > 0)
    }
}
