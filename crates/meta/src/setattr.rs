//! Setting attributes: the required rights, and the other attributes that change with them.
//!
//! Owns: `decide`, which is the whole rule as a function from the inode to its successor, so that check and apply
//! cannot differ. Does not own: permission rules (`perm`).

use crate::codec::ItemKey;
use crate::perm::{self, SETGID, Want};
use crate::store::Dirty;
use crate::{Facts, Inode, MetaStore};
use amphi_types::item::Txn;
use amphi_types::{Attr, Caps, Cred, Errno, FileFlags, Ino, Kind, Result, SetAttr, TimeSet, Timespec, limits};

/// The attribute that gives a program capabilities. It is removed whenever setuid is cleared, and with every change of
/// the file's bytes.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

fn time(set: TimeSet, now: Timespec) -> Timespec {
    match set {
        TimeSet::Now => now,
        TimeSet::At(t) => t,
    }
}

/// Returns whether the flags of `chattr` allow `set` (Linux, `may_setattr` and `do_truncate`). The kernel's own
/// write-back of times, which alone has a change time, is allowed to those who have the file open for writing: it
/// belongs to an earlier write.
///
/// Errors: `Perm`.
fn check_flags(cred: &Cred, facts: &Facts, set: &SetAttr) -> Result<()> {
    let times = [set.atime, set.mtime];
    let is_given = times.into_iter().flatten().any(|time| matches!(time, TimeSet::At(_))) || set.ctime.is_some();
    let given = is_given && !(set.ctime.is_some() && set.open_for_write);
    if set.perm.is_some() || set.uid.is_some() || set.gid.is_some() || set.project.is_some() || given {
        perm::changeable(facts)?;
    }
    let touched = times.contains(&Some(TimeSet::Now)) && facts.is(FileFlags::IMMUTABLE);
    if touched || (set.size.is_some() && facts.is(FileFlags::APPEND)) {
        return Err(Errno::Perm);
    }
    match set.flags {
        Some(_) if !matches!(facts.kind, Kind::File | Kind::Dir) => Err(Errno::NotSupported),
        Some(flags) if flags != facts.flags && !cred.may(Caps::LINUX_IMMUTABLE) => Err(Errno::Perm),
        Some(_) => perm::owner(cred, facts),
        None => Ok(()),
    }
}

/// The inode after `set`, or the reason for refusal.
fn decide(cred: &Cred, inode: &Inode, facts: &Facts, set: &SetAttr, now: Timespec) -> Result<Inode> {
    let owner = perm::is_owner(cred, facts);
    let mut next = inode.clone();
    check_flags(cred, facts, set)?;
    if let Some(flags) = set.flags {
        next.flags.set_file_flags(flags);
    }
    if let Some(size) = set.size {
        match inode.kind {
            Kind::File => {}
            Kind::Dir => return Err(Errno::IsDir),
            _ => return Err(Errno::Inval),
        }
        if !set.open_for_write {
            perm::access(cred, facts, Want::WRITE)?;
        }
        if size > limits::FILE_MAX {
            return Err(Errno::FileTooBig);
        }
        next.size = size;
        next.objects.generation += 1;
        next.pending.trim = inode.objects.wide;
        next.times.set_mtime(now, now);
    }
    if let Some(uid) = set.uid {
        // The owner may set himself as owner; giving a file away takes a capability.
        let may = cred.may(Caps::CHOWN) || (cred.uid == inode.owner.uid && uid == inode.owner.uid);
        if !may {
            return Err(Errno::Perm);
        }
        next.owner.uid = uid;
    }
    if let Some(gid) = set.gid {
        let own = cred.uid == inode.owner.uid && (cred.in_group(gid) || gid == inode.owner.gid);
        if !cred.may(Caps::CHOWN) && !own {
            return Err(Errno::Perm);
        }
        next.owner.gid = gid;
    }
    if let Some(project) = set.project.filter(|project| *project != inode.owner.project) {
        // A user who could leave a project would leave its limit.
        if !cred.may(Caps::SYS_ADMIN) {
            return Err(Errno::Perm);
        }
        next.owner.project = project;
    }
    if let Some(bits) = set.perm {
        if !owner {
            return Err(Errno::Perm);
        }
        if inode.kind == Kind::Symlink {
            return Err(Errno::NotSupported);
        }
        next.perm = bits & 0o7777;
        if !cred.may(Caps::FSETID) && !cred.in_group(next.owner.gid) {
            next.perm &= !SETGID;
        }
    } else if (set.uid.is_some() || set.gid.is_some()) && inode.kind != Kind::Dir {
        next.perm = perm::without_suidgid(cred, next.perm, inode.owner.gid);
    }
    // A change of size, owner or permissions was allowed above, and takes the bits along. Alone, they go with a write.
    let goes_along = set.size.is_some() || set.uid.is_some() || set.gid.is_some() || set.perm.is_some();
    match set.kill_suidgid && !goes_along && !set.open_for_write {
        true if owner => perm::changeable(facts)?,
        true => perm::access(cred, facts, Want::WRITE)?,
        false => {}
    }
    if set.kill_suidgid && inode.kind != Kind::Dir {
        next.perm = perm::without_suidgid(cred, next.perm, inode.owner.gid);
    }
    for set_time in [set.atime, set.mtime].into_iter().flatten() {
        match set_time {
            TimeSet::At(t) if t.nsec >= 1_000_000_000 => return Err(Errno::Inval),
            TimeSet::At(_) => perm::owner(cred, facts)?,
            TimeSet::Now if owner || (set.size.is_some() && set.open_for_write) => {}
            TimeSet::Now => perm::access(cred, facts, Want::WRITE)?,
        }
    }
    if set.ctime.is_some() && !set.open_for_write {
        perm::owner(cred, facts)?;
    }
    if let Some(atime) = set.atime {
        next.times.atime = time(atime, now);
    }
    if let Some(mtime) = set.mtime {
        next.times.set_mtime(time(mtime, now), now);
    }
    let asked = SetAttr { kill_suidgid: false, open_for_write: false, ..*set } != SetAttr::default();
    if asked || next.perm != inode.perm {
        next.times.ctime = set.ctime.unwrap_or(now);
    }
    Ok(next)
}

impl MetaStore {
    /// Returns whether the file gives capabilities to programs that execute it (`security.capability`).
    pub fn gives_capabilities(&self, ino: Ino) -> bool {
        self.xattrs.has(ino.local(), CAPABILITY)
    }

    /// Returns whether `setattr` will succeed. Errors: as `setattr`.
    pub fn check_setattr(&self, cred: &Cred, ino: Ino, set: &SetAttr, now: Timespec) -> Result<()> {
        decide(cred, &self.inode(ino)?, &self.facts(ino)?, set, now).map(|_| ())
    }

    /// Changes attributes and returns the new ones. Setting the size changes only the inode: the server trims stripe 0
    /// in the same `Txn`. If the file is `wide`, `Pending::trim` is set until `trim_done`.
    ///
    /// With new permissions the access control list changes as well (`Acl::chmod`).
    ///
    /// Errors: `Stale`, `Perm` (not the owner, chown or chgrp not allowed, forbidden by what `chattr` has set),
    /// `Access` (size, a time of now or the loss of set-user-id bits without write permission), `IsDir` or `Inval`
    /// (size of something other than a file), `FileTooBig`, `Inval` (time stamp), `NotSupported` (mode of a symbolic
    /// link).
    pub fn setattr(&mut self, cred: &Cred, ino: Ino, set: &SetAttr, now: Timespec, txn: &mut Txn) -> Result<Attr> {
        let inode = self.inode(ino)?;
        let next = decide(cred, &inode, &self.facts(ino)?, set, now)?;
        let perm = (next.perm != inode.perm).then_some(next.perm);
        let mut dirty = Dirty::default();
        if next != inode {
            self.put_inode(ino.local(), next, &mut dirty);
        }
        if let Some(perm) = perm {
            self.chmod_list(ino, perm, &mut dirty);
        }
        let local = ino.local();
        let changed = set.kill_suidgid || set.size.is_some() || set.uid.is_some() || set.gid.is_some();
        if changed && self.xattrs.remove(local, CAPABILITY) {
            dirty.mark(ItemKey::Xattr { local, name: CAPABILITY.into() });
        }
        self.emit(dirty, txn);
        self.getattr(ino)
    }
}
