//! Permission rules, as pure functions of a caller and the facts of inodes.
//!
//! Owns: the rules who may read, write, search, delete and own. Does not own: the order in which an operation checks
//! them (`plan`, `setattr`, `xattr`).
//!
//! Rights beyond those of a user come from capabilities; initially root has all of them. Operations that `chattr` has
//! forbidden (`FileFlags`) are refused to everybody, before permissions are checked, as in Linux.

use crate::Facts;
use amphi_types::{Caps, Cred, Errno, FileFlags, Kind, Result};

/// Setuid bit.
pub const SETUID: u16 = 0o4000;
/// Setgid bit.
pub const SETGID: u16 = 0o2000;
/// Sticky bit.
pub const STICKY: u16 = 0o1000;
/// Execution by the group. It makes the setgid bit of a file mean "run as the group".
pub const GROUP_EXEC: u16 = 0o0010;

/// Kinds of access, which can be combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// Read a file, list a directory.
    pub read: bool,
    /// Write a file, change a directory's entries.
    pub write: bool,
    /// Execute a file, search a directory.
    pub exec: bool,
}

impl Want {
    /// Read.
    pub const READ: Want = Want { read: true, write: false, exec: false };
    /// Write.
    pub const WRITE: Want = Want { read: false, write: true, exec: false };
    /// Execute or search.
    pub const EXEC: Want = Want { read: false, write: false, exec: true };
    /// Write and search: what a change of a directory's entries needs.
    pub const CHANGE: Want = Want { read: false, write: true, exec: true };

    fn bits(self) -> u16 {
        u16::from(self.read) << 2 | u16::from(self.write) << 1 | u16::from(self.exec)
    }
}

/// Returns whether `cred` has all of `want` on the inode (`Cred::has_access_by`).
///
/// Errors: `Perm` for a change of an immutable inode, `Access`.
pub fn access(cred: &Cred, facts: &Facts, want: Want) -> Result<()> {
    if want.write && facts.is(FileFlags::IMMUTABLE) {
        return Err(Errno::Perm);
    }
    let acl = facts.acls.as_ref().and_then(|acls| acls.access.as_ref());
    let has = cred.has_access_by(acl, facts.kind, facts.perm, (facts.uid, facts.gid), want.bits());
    if has { Ok(()) } else { Err(Errno::Access) }
}

/// Returns whether the attributes of the inode may be changed at all, by any user with the right.
///
/// Errors: `Perm` if it is immutable or may only grow.
pub fn changeable(facts: &Facts) -> Result<()> {
    if facts.is_fixed() { Err(Errno::Perm) } else { Ok(()) }
}

/// Returns whether `cred` owns the inode, or counts as its owner.
pub fn is_owner(cred: &Cred, facts: &Facts) -> bool {
    cred.may(Caps::FOWNER) || cred.uid == facts.uid
}

/// Checks that `cred` owns the inode or counts as its owner.
///
/// Errors: `Perm`.
pub fn owner(cred: &Cred, facts: &Facts) -> Result<()> {
    if is_owner(cred, facts) { Ok(()) } else { Err(Errno::Perm) }
}

/// Returns whether `cred` may look names up in `dir`.
///
/// Errors: `NotDir`, `Access`.
pub fn search(cred: &Cred, dir: &Facts) -> Result<()> {
    if dir.kind != Kind::Dir {
        return Err(Errno::NotDir);
    }
    access(cred, dir, Want::EXEC)
}

/// Returns whether `cred` may add an entry to `dir`.
///
/// Errors: `NotDir`, `NoEnt` for a removed directory, `Access`.
pub fn insert(cred: &Cred, dir: &Facts) -> Result<()> {
    if dir.kind != Kind::Dir {
        return Err(Errno::NotDir);
    }
    if dir.nlink == 0 {
        return Err(Errno::NoEnt);
    }
    access(cred, dir, Want::CHANGE)
}

/// Returns whether `cred` may remove or replace the entry of `child` in `dir`. In a sticky directory only the owner of
/// the child, the owner of the directory, and a caller that counts as owner of everything may.
///
/// Errors: `NotDir`, `Access`, and `Perm` for the sticky rule and for flags that `chattr` has set on either inode.
pub fn delete(cred: &Cred, dir: &Facts, child: &Facts) -> Result<()> {
    if dir.kind != Kind::Dir {
        return Err(Errno::NotDir);
    }
    access(cred, dir, Want::CHANGE)?;
    if dir.is(FileFlags::APPEND) || child.is_fixed() {
        return Err(Errno::Perm);
    }
    let sticky = dir.perm & STICKY != 0;
    if sticky && cred.uid != dir.uid && !is_owner(cred, child) { Err(Errno::Perm) } else { Ok(()) }
}

/// Returns whether `cred` may open the inode for `want`.
///
/// Errors: `IsDir` for writing a directory, `Loop` for a symbolic link, `Access`. Every user may open any inode without
/// access (`O_PATH`).
pub fn open(cred: &Cred, facts: &Facts, want: Want) -> Result<()> {
    match facts.kind {
        Kind::Dir if want.write => Err(Errno::IsDir),
        Kind::Symlink if want != Want::default() => Err(Errno::Loop),
        _ => access(cred, facts, want),
    }
}

/// `perm` after setuid and setgid were cleared as by a write or chown. If the group cannot execute the file, members of
/// the group and callers with `FSETID` keep its setgid bit.
pub fn without_suidgid(cred: &Cred, perm: u16, gid: u32) -> u16 {
    let mut perm = perm & !SETUID;
    if perm & GROUP_EXEC != 0 || !(cred.may(Caps::FSETID) || cred.in_group(gid)) {
        perm &= !SETGID;
    }
    perm
}
