//! Memory that outlives the process: small files of a tmpfs, which the kernel keeps only in memory.
//!
//! Owns: their place, names and rights. Does not own: the content of the files.
//!
//! Invariants: only the user of the process can write to such memory. A place that is not a tmpfs is not used, because
//! a write there could wait for a disk. The tmpfs of a container, which ends with it, is not used either.

use super::disk::context;
use super::origin;
use crate::Kept;
use rustix::fs::{FileType, Mode, OFlags, Stat, XattrFlags};
use std::io;
use std::os::fd::OwnedFd;

/// The folder of these files. Every Linux with glibc has it, for POSIX shared memory (shm_overview(7)).
const PLACE: &str = "/dev/shm";
/// How their names begin.
const PREFIX: &str = "amphi-";
/// The attribute that says which file the memory belongs to. Every tmpfs supports attributes of this kind; only root
/// can set them.
const ORIGIN: &str = "trusted.amphi.of";
/// Most bytes of that attribute: a path and some more.
const NOTE_MAX: usize = 4096 + 256;
/// Most files that are looked at when memory is made.
const SWEPT_MAX: usize = 4096;
/// The type of a tmpfs in statfs(2).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The namespace to which this `/dev/shm` belongs.
const IPC_NAMESPACE: &str = "/proc/self/ns/ipc";
/// The same folder as the first process sees it; only root may look.
const FIRST_PLACE: &str = "/proc/1/root/dev/shm";
/// Inode of the first IPC namespace, that of the machine: part of the kernel's interface (`PROC_IPC_INIT_INO` of
/// linux/proc_ns.h).
const MACHINE: u64 = 0xEFFF_FFFF;

/// Returns whether memory that this process makes outlives the process.
///
/// Errors: `Unsupported` if there is no tmpfs, or it is that of a container, which ends as a whole when it is killed.
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
    // A process that may not look assumes the machine's tmpfs.
    if rustix::fs::stat(FIRST_PLACE)
        .is_ok_and(|first| rustix::fs::stat(PLACE).is_ok_and(|own| own.st_dev != first.st_dev))
    {
        return unsupported("it is not the one of the machine, it may end with the server");
    }
    Ok(())
}

/// A file of a tmpfs.
pub struct RealKept {
    fd: OwnedFd,
}

fn path_of(name: &str) -> String {
    assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{name:?} is no name of kept memory");
    format!("{PLACE}/{PREFIX}{name}")
}

impl RealKept {
    pub(super) fn make(name: &str, of: &str) -> io::Result<RealKept> {
        memory_outlives()?;
        sweep();
        forget(name)?;
        let path = path_of(name);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).map_err(|e| context(&path, e))?;
        if let Some(note) = origin::note(of) {
            // A process that may not set it (only root may) leaves the memory behind when the file is deleted, which is
            // the only loss.
            let _ = rustix::fs::fsetxattr(&fd, ORIGIN, &note, XattrFlags::empty());
        }
        Ok(RealKept { fd })
    }
}

/// Removes the memory of files that have been deleted, because nobody can use it any more.
fn sweep() {
    let own = rustix::process::geteuid().as_raw();
    let names = std::fs::read_dir(PLACE).into_iter().flatten().filter_map(|e| e.ok()?.file_name().into_string().ok());
    for name in names.filter(|n| n.starts_with(PREFIX)).take(SWEPT_MAX) {
        let path = format!("{PLACE}/{name}");
        let mut note = [0; NOTE_MAX];
        let read = rustix::fs::lgetxattr(&path, ORIGIN, &mut note[..]).unwrap_or(0);
        let is_own = rustix::fs::lstat(&path).is_ok_and(|stat| stat.st_uid == own);
        if is_own && origin::is_deleted(&note[..read]) && rustix::fs::unlink(&path).is_ok() {
            tracing::info!("removed {path}, the kept memory of a zone that has been deleted");
        }
    }
}

/// All users see these names, so a file there may belong to anybody and be of any kind and size. So the memory is used
/// only if it belongs to this user, to root, or to the owner of the file `of`.
pub(super) fn read(name: &str, of: &str, most: usize) -> io::Result<Vec<u8>> {
    let path = path_of(name);
    let owner = rustix::fs::stat(of).map_err(|e| context(of, e))?.st_uid;
    let users = [rustix::process::geteuid().as_raw(), 0, owner];
    let counts = |stat: &Stat| {
        let mode = Mode::from_raw_mode(stat.st_mode);
        let file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        file && users.contains(&stat.st_uid) && !mode.intersects(Mode::WGRP | Mode::WOTH)
    };
    // This is checked first: a file that is not used need not be readable.
    let stat = rustix::fs::lstat(&path).map_err(|e| context(&path, e))?;
    let foreign = || io::Error::new(io::ErrorKind::NotFound, format!("{path}: somebody else made it"));
    if !counts(&stat) {
        return Err(foreign());
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(&path, flags, Mode::empty()).map_err(|e| context(&path, e))?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| context(&path, e))?;
    if !counts(&stat) {
        return Err(foreign());
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
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            match rustix::io::retry_on_intr(|| rustix::io::pread(&self.fd, &mut into[done..], at + done as u64))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => done += n,
            }
        }
        Ok(())
    }

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

    fn room(&self) -> io::Result<u64> {
        let found = rustix::fs::fstatvfs(&self.fd)?;
        // A place without a limit has no blocks.
        let is_bounded = found.f_blocks > 0;
        Ok(if is_bounded { found.f_bavail.saturating_mul(found.f_frsize) } else { u64::MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: memory of other users is not used: files that others may write to or have made, and other kinds of files,
    /// count as absent, and cause no failure. Method: each of them in the place of the memory.
    #[test]
    fn memory_of_others_is_not_there() {
        let dir = tempfile::tempdir().expect("directory");
        let own = dir.path().join("zone");
        std::fs::write(&own, b"").expect("file");
        let own = own.to_str().expect("text");
        let name = format!("test-others-{:x}", std::process::id());
        let path = path_of(&name);
        let found = |what: &str| {
            let found = read(&name, own, 100);
            forget(&name).or_else(|_| std::fs::remove_dir(&path)).expect(what);
            found.map_err(|e| e.kind())
        };
        let put = |mode: u32| {
            std::fs::write(&path, b"forged").expect("file");
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode)).expect("mode");
        };
        put(0o600);
        assert_eq!(found("own"), Ok(b"forged".to_vec()));
        let gone = Err(io::ErrorKind::NotFound);
        put(0o620);
        assert_eq!(found("the group may write"), gone);
        put(0o602);
        assert_eq!(found("all may write"), gone);
        std::fs::create_dir(&path).expect("directory");
        assert_eq!(found("directory"), gone);
        std::os::unix::fs::symlink(own, &path).expect("link");
        assert_eq!(found("link"), gone);
        if rustix::process::geteuid().is_root() {
            let nobody = rustix::fs::Uid::from_raw(65534);
            put(0o600);
            rustix::fs::chown(&path, Some(nobody), None).expect("owner");
            assert_eq!(found("somebody else's"), gone);
            put(0o600);
            rustix::fs::chown(&path, Some(nobody), None).expect("owner");
            rustix::fs::chown(own, Some(nobody), None).expect("owner");
            assert_eq!(found("the owner's"), Ok(b"forged".to_vec()));
        }
    }

    /// Goal: the memory of a deleted zone is removed when the next one is made, that of an existing zone stays. Method:
    /// two files with memory, one removed. (The owner is recorded in attributes that only root may set.)
    #[test]
    fn memory_of_deleted_files_goes() {
        if memory_outlives().is_err() || !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("directory");
        let names = ["gone", "there", "new"].map(|n| format!("test-{n}-{:x}", std::process::id()));
        let zones = ["a", "b", "c"].map(|n| dir.path().join(n).to_str().expect("text").to_string());
        for zone in &zones {
            std::fs::write(zone, b"zone").expect("file");
        }
        let made = [0, 1].map(|i| RealKept::make(&names[i], &zones[i]).expect("memory"));
        std::fs::remove_file(&zones[0]).expect("remove");
        let new = RealKept::make(&names[2], &zones[2]).expect("memory");
        assert_eq!((made[0].is_there(), made[1].is_there(), new.is_there()), (false, true, true));
        names.iter().for_each(|name| forget(name).expect("forget"));
    }
}
