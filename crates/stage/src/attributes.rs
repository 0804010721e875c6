//! The attributes of an entry except its bytes: owner, mode, access control lists, extended attributes, times.
//!
//! Owns how they are carried over and the record of those that were not kept. An entry is opened by its name once,
//! without following links, and all calls use the open file. Afterwards the target is read back: a file system that
//! accepts a change without keeping it is detected. The flags of `chattr`, and times of creation and of change, are not
//! preserved.

use crate::dirs::{Place, by_descriptor};
use crate::entries::kind;
use crate::error::reason;
use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

/// Largest list of names and largest value that Linux permits.
const XATTR_MAX: usize = 64 << 10;
/// Room for the names that most files have.
const XATTR_FEW: usize = 1 << 10;
const SET_IDS: u32 = 0o6000;
/// A label of the machine's policy, which itself determines the label of a new file.
const SELINUX: &str = "security.selinux";
/// Attributes that a new file may have inherited from its folder, and that are removed if the source has none.
const INHERITED: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// The result of setting the attributes.
pub(crate) enum Applied {
    /// All others were set; these could not be preserved.
    Done(Vec<String>),
    /// The source is no longer what was copied.
    Changed,
}

/// The reason why it failed altogether.
pub(crate) enum Trouble {
    Source(Errno),
    Target(Errno),
}

/// Carries the attributes of `from` over to `to`, if `accepts` finds the source still to be what was copied.
pub(crate) fn apply(from: &Place<'_>, to: &Place<'_>, accepts: impl FnOnce(&Stat) -> bool) -> Result<Applied, Trouble> {
    let source = open(from).map_err(Trouble::Source)?;
    let want = fs::fstat(&source).map_err(Trouble::Source)?;
    if !accepts(&want) {
        return Ok(Applied::Changed);
    }
    let target = open(to).map_err(Trouble::Target)?;
    let has = fs::fstat(&target).map_err(Trouble::Target)?;
    if kind(&has) != kind(&want) {
        return Err(Trouble::Target(Errno::STALE));
    }
    let mut lost = Vec::new();
    let owned = owner(&target, &want, &has, &mut lost).map_err(Trouble::Target)?;
    let changed = xattrs(&source, &target, kind(&want) == FileType::Symlink, &mut lost)?;
    if kind(&want) != FileType::Symlink {
        // A program that runs with the rights of its owner must not get the rights of another owner.
        let dropped = if owned { 0 } else { want.st_mode & SET_IDS };
        let mode = want.st_mode & 0o7777 & !dropped;
        // A new owner clears bits of the mode, and an access control list sets some.
        let now = match (has.st_uid, has.st_gid) == (want.st_uid, want.st_gid) && !changed {
            true => has,
            false => fs::fstat(&target).map_err(Trouble::Target)?,
        };
        if now.st_mode & 0o7777 != mode
            && let Err(e) = fs::chmod(by_descriptor(&target), Mode::from_raw_mode(mode))
        {
            lost.push(format!("mode: {}", reason(e)));
        } else if dropped != 0 {
            lost.push("set-user-ID or set-group-ID bit: the owner was not kept".into());
        }
    }
    let same_times = (has.st_mtime, has.st_mtime_nsec, has.st_atime, has.st_atime_nsec)
        == (want.st_mtime, want.st_mtime_nsec, want.st_atime, want.st_atime_nsec);
    if !same_times && let Err(e) = fs::utimensat(&to.dir, &*to.name, &times(&want), AtFlags::SYMLINK_NOFOLLOW) {
        lost.push(format!("times: {}", reason(e)));
    }
    check(&target, &want, &mut lost).map_err(Trouble::Target)?;
    Ok(Applied::Done(lost))
}

fn open(place: &Place<'_>) -> Result<OwnedFd, Errno> {
    fs::openat(&place.dir, &*place.name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn times(want: &Stat) -> Timestamps {
    let time = |tv_sec, tv_nsec: u64| Timespec { tv_sec, tv_nsec: tv_nsec.cast_signed() };
    Timestamps {
        last_access: time(want.st_atime, want.st_atime_nsec),
        last_modification: time(want.st_mtime, want.st_mtime_nsec),
    }
}

/// Sets owner and group; false: not both are kept.
fn owner(target: &OwnedFd, want: &Stat, has: &Stat, lost: &mut Vec<String>) -> Result<bool, Errno> {
    if (has.st_uid, has.st_gid) == (want.st_uid, want.st_gid) {
        return Ok(true);
    }
    let (uid, gid) = (Uid::from_raw(want.st_uid), Gid::from_raw(want.st_gid));
    match fs::chownat(target, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH) {
        Ok(()) => return Ok(true),
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL) => {}
        Err(e) => return Err(e),
    }
    // A user who may not change the owner of files may still be in the group.
    let group_kept = has.st_gid == want.st_gid || fs::chownat(target, "", None, Some(gid), AtFlags::EMPTY_PATH).is_ok();
    if !group_kept {
        lost.push(format!("group {}: not permitted", want.st_gid));
    }
    if has.st_uid != want.st_uid {
        lost.push(format!("owner {}: not permitted", want.st_uid));
    }
    Ok(group_kept && has.st_uid == want.st_uid)
}

/// Names of the extended attributes; the list is empty on file systems without any.
fn list(fd: &OwnedFd) -> Result<BTreeSet<String>, Errno> {
    let (path, mut names) = (by_descriptor(fd), vec![0; XATTR_FEW]);
    let mut listed = fs::listxattr(path.as_str(), &mut names[..]);
    if listed == Err(Errno::RANGE) {
        names.resize(XATTR_MAX, 0);
        listed = fs::listxattr(path.as_str(), &mut names[..]);
    }
    let len = match listed {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => 0,
        Err(e) => return Err(e),
    };
    let names = names[..len].split(|b| *b == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

fn get(fd: &OwnedFd, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; XATTR_MAX];
    let len = fs::getxattr(by_descriptor(fd), name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

/// True: the target was changed.
fn xattrs(source: &OwnedFd, target: &OwnedFd, is_link: bool, lost: &mut Vec<String>) -> Result<bool, Trouble> {
    let want = match list(source) {
        // On some kernels attributes of a link cannot be read, and hardly ever exist.
        Err(_) if is_link => return Ok(false),
        other => other.map_err(Trouble::Source)?,
    };
    let (has, mut changed) = (list(target).unwrap_or_default(), false);
    for name in &want {
        let value = match get(source, name) {
            Ok(value) => value,
            // It was removed meanwhile, which the time of change shows, or only root may read it.
            Err(Errno::NODATA) => continue,
            Err(_) if name == SELINUX => continue,
            Err(e) => {
                lost.push(format!("attribute {name} cannot be read: {}", reason(e)));
                continue;
            }
        };
        if has.contains(name) && get(target, name).is_ok_and(|old| old == value) {
            continue;
        }
        changed = true;
        match fs::setxattr(by_descriptor(target), name.as_str(), &value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(_) if name == SELINUX => {}
            Err(e) => lost.push(format!("attribute {name}: {}", reason(e))),
        }
    }
    for name in has.difference(&want).filter(|n| n.starts_with("user.") || INHERITED.contains(&n.as_str())) {
        changed = true;
        if let Err(e) = fs::removexattr(by_descriptor(target), name.as_str())
            && e != Errno::NODATA
        {
            lost.push(format!("attribute {name} stays: {}", reason(e)));
        }
    }
    Ok(changed)
}

/// Compares the attributes of the target, where no change was refused.
fn check(target: &OwnedFd, want: &Stat, lost: &mut Vec<String>) -> Result<(), Errno> {
    if !lost.is_empty() {
        return Ok(());
    }
    let has = fs::fstat(target)?;
    if (has.st_uid, has.st_gid) != (want.st_uid, want.st_gid) {
        lost.push(format!(
            "owner {}:{}: the file system of the target has {}:{}",
            want.st_uid, want.st_gid, has.st_uid, has.st_gid
        ));
    }
    if kind(want) != FileType::Symlink && (has.st_mode ^ want.st_mode) & 0o7777 != 0 {
        lost.push(format!(
            "mode {:o}: the file system of the target has {:o}",
            want.st_mode & 0o7777,
            has.st_mode & 0o7777
        ));
    }
    if (has.st_mtime, has.st_mtime_nsec) != (want.st_mtime, want.st_mtime_nsec) {
        lost.push("time of modification: the file system of the target has another one".into());
    }
    Ok(())
}
