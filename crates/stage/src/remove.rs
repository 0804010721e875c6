//! Removal of trees of the target.
//!
//! Owns the descent by descriptors; nothing outside the tree is reached. A tree that is deeper than descriptors last is
//! made flat while it is removed.

use crate::dirs::{DIRECTORY, chmod};
use crate::walk::list;
use rustix::fs::{self, AtFlags, FileType, Mode};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Directories that are open above each other; entries that are deeper are moved up first.
const DEPTH_MAX: usize = 100;

static MOVED: AtomicU64 = AtomicU64::new(0);

/// Removes the entry of this name, a whole tree if it is a directory; an absent entry is not an error.
pub(crate) fn whatever(dir: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    match fs::unlinkat(&dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(e) => return Err(e),
    }
    let stat = fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(Errno::PERM);
    }
    let top = open(&dir, name)?;
    // Entries that were moved up are found when the top is listed again.
    while !empty(&top, &top, 0)? {}
    drop(top);
    fs::unlinkat(&dir, name, AtFlags::REMOVEDIR)
}

fn open(dir: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    // The directory's own mode may exclude even its owner.
    match fs::openat(&dir, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => {}
        Ok(fd) if fs::fstat(&fd)?.st_mode & 0o700 == 0o700 => return Ok(fd),
        Ok(fd) => {
            fs::fchmod(&fd, Mode::RWXU)?;
            return Ok(fd);
        }
        Err(e) => return Err(e),
    }
    chmod(&dir, name, Mode::RWXU)?;
    fs::openat(&dir, name, DIRECTORY, Mode::empty())
}

/// Removes the contents of a directory; returns false if something was moved into the top directory meanwhile.
fn empty(top: &OwnedFd, dir: &OwnedFd, depth: usize) -> Result<bool, Errno> {
    let mut is_empty = true;
    for (name, stat) in list(dir)? {
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            fs::unlinkat(dir, &*name, AtFlags::empty())?;
            continue;
        }
        if depth >= DEPTH_MAX {
            let up = format!("deep-{}-{}", std::process::id(), MOVED.fetch_add(1, Ordering::Relaxed));
            // A directory that moves gets another parent, for which its owner must be able to write into it.
            drop(open(dir, &name)?);
            fs::renameat(dir, &*name, top, &*up)?;
            is_empty = false;
            continue;
        }
        let inner = open(dir, &name)?;
        is_empty &= empty(top, &inner, depth + 1)?;
        fs::unlinkat(dir, &*name, AtFlags::REMOVEDIR)?;
    }
    Ok(is_empty)
}
