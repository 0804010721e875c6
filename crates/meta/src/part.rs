//! `Part`: the primitive changes of names and links, of which all operations on names consist.
//!
//! Owns: checking and applying parts. Does not own: which parts an operation needs, and permissions (`plan`), since
//! those may combine inodes of several targets.
//!
//! A part concerns one inode or one directory, hence one target. A part states what its plan assumed, and its check
//! finds out whether that still holds: `Refusal::Conflict` means collect facts and plan again, `Refusal::Errno` is the
//! operation's result. All parts of a list are checked before any of them is applied. A plan contains each (directory,
//! name) and makes each inode only once.
//!
//! Invariant: between a successful `check_parts` and `apply_parts` nothing else may change the inodes concerned. For
//! one target, call both together; for several, the server holds its locks in between. A list that is applied at
//! recovery must not have been applied before; the server records that in the same `Txn`.

use crate::inode::InodeFlags;
use crate::inodes::Brief;
use crate::shared_attrs::SharedAttrs;
use crate::store::Dirty;
use crate::{Inode, MetaStore, Named};
use amphi_types::item::Txn;
use amphi_types::{Acls, Advice, Errno, Ino, Kind, Layout, Name, TargetId, Timespec, limits};
use serde::{Deserialize, Serialize};

/// A new inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewInode {
    /// The number of the inode, from `next_ino` or `alloc_ino` of its target.
    pub ino: Ino,
    /// Kind.
    pub kind: Kind,
    /// Permission bits, `0o7777`.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Target of a symbolic link, otherwise empty.
    #[serde(with = "serde_bytes")]
    pub symlink: Vec<u8>,
    /// Directory in which the inode is made.
    pub parent: Ino,
    /// Layout.
    pub layout: Layout,
    /// Settings of the owner for mounts.
    pub advice: Advice,
    /// Whether the inode gets a name at once. If not, it has no name, and may be linked later.
    pub linked: bool,
}

/// A primitive change. Parts are serialised in logged intents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// Adds an entry.
    InsertDentry {
        /// Directory.
        dir: Ino,
        /// Name, which must be free.
        name: Name,
        /// Inode.
        child: Ino,
        /// Kind of the inode.
        kind: Kind,
    },
    /// Removes an entry.
    RemoveDentry {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Name,
        /// Inode that the entry must name.
        expect: Ino,
    },
    /// Makes an entry name another inode.
    ReplaceDentry {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Name,
        /// Inode that the entry must name.
        expect: Ino,
        /// Inode that the entry will name.
        child: Ino,
        /// Kind of that inode.
        kind: Kind,
    },
    /// Makes an inode.
    MakeInode(NewInode),
    /// Adds a name to a file.
    Link {
        /// File.
        ino: Ino,
    },
    /// Removes a name from an inode. A directory, which must be empty, loses all its links.
    Unlink {
        /// Inode.
        ino: Ino,
        /// Kind that the inode must have.
        kind: Kind,
    },
    /// The entries of a directory have changed: its mtime and ctime are set to the present time.
    TouchDir {
        /// Directory.
        dir: Ino,
        /// Change of the directory's link count by sub-directories that were added or removed.
        links: i32,
    },
    /// A directory was moved.
    SetParent {
        /// Directory.
        ino: Ino,
        /// The new parent of the directory.
        parent: Ino,
    },
    /// An inode was renamed: its ctime is set to the present time.
    TouchCtime {
        /// Inode.
        ino: Ino,
    },
    /// A new inode inherits access control lists. Follows its `MakeInode`, which has the matching permissions.
    SetAcls {
        /// Inode.
        ino: Ino,
        /// The lists that the inode inherits.
        acls: Acls,
    },
    /// Puts an inode that a part before this one makes into a project.
    SetProject {
        /// Inode.
        ino: Ino,
        /// The project, not 0.
        project: u32,
    },
    /// An empty directory gets shards, which other parts of the same operation make.
    SetShards {
        /// Directory.
        ino: Ino,
        /// The shards of the directory, in their order.
        shards: Vec<Ino>,
        /// What the directory was when this was planned, and what the shards are made with.
        was: Box<SharedAttrs>,
    },
    /// The attributes of a directory with shards have changed. Each shard gets them as well.
    SetShared {
        /// The directory, or one of its shards.
        ino: Ino,
        /// The attributes of the directory when this was planned; `None` for a shard.
        was: Option<Box<SharedAttrs>>,
        /// The new attributes of the directory.
        now: Box<SharedAttrs>,
    },
}

/// The reason why parts cannot be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// An assumption of the plan no longer holds: collect the facts and plan again.
    Conflict,
    /// The operation fails with this error.
    Errno(Errno),
}

impl From<Errno> for Refusal {
    fn from(e: Errno) -> Refusal {
        Refusal::Errno(e)
    }
}

impl Refusal {
    /// The error of an operation on one target, where a conflict is impossible; a conflict becomes `Io`.
    pub fn errno(self) -> Errno {
        match self {
            Refusal::Conflict => Errno::Io,
            Refusal::Errno(e) => e,
        }
    }
}

/// The work that remains after parts were applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Inodes that lost their last name, and are destroyed when nobody has them open.
    pub orphaned: Vec<Ino>,
}

impl Part {
    /// The inode whose target executes the part.
    pub fn ino(&self) -> Ino {
        match self {
            Part::InsertDentry { dir, .. }
            | Part::RemoveDentry { dir, .. }
            | Part::ReplaceDentry { dir, .. }
            | Part::TouchDir { dir, .. } => *dir,
            Part::MakeInode(new) => new.ino,
            Part::Link { ino }
            | Part::Unlink { ino, .. }
            | Part::SetParent { ino, .. }
            | Part::TouchCtime { ino }
            | Part::SetAcls { ino, .. }
            | Part::SetProject { ino, .. }
            | Part::SetShards { ino, .. }
            | Part::SetShared { ino, .. } => *ino,
        }
    }

    /// The target that executes the part.
    pub fn target(&self) -> TargetId {
        self.ino().target()
    }
}

impl MetaStore {
    /// Returns whether `apply_parts` would succeed. Changes nothing.
    pub fn check_parts(&self, parts: &[Part]) -> Result<(), Refusal> {
        if parts.iter().any(|part| self.leaves_shards(part, parts)) {
            return Err(Refusal::Conflict);
        }
        parts.iter().try_for_each(|part| self.check_part(part))
    }

    /// Returns whether this is the removal of a directory that has got shards since it was planned. The first shard,
    /// which lies beside the directory, is checked for all of them.
    fn leaves_shards(&self, part: &Part, parts: &[Part]) -> bool {
        let Part::Unlink { ino, kind: Kind::Dir } = part else { return false };
        if !self.is_sharded(*ino) {
            return false;
        }
        let first = self.shards(*ino).first().copied();
        !parts.iter().any(|other| matches!(other, Part::Unlink { ino, .. } if Some(*ino) == first))
    }

    /// The first shard, which is on the directory's target, is checked for all shards.
    fn planned(&self, ino: Ino) -> Result<Brief, Refusal> {
        self.brief(ino).map_err(|_| Refusal::Conflict)
    }

    fn planned_dir(&self, dir: Ino) -> Result<Brief, Refusal> {
        let inode = self.planned(dir)?;
        match (inode.kind, inode.nlink) {
            (Kind::Dir, 0) => Err(Refusal::Errno(Errno::NoEnt)),
            (Kind::Dir, _) => Ok(inode),
            _ => Err(Refusal::Errno(Errno::NotDir)),
        }
    }

    fn check_part(&self, part: &Part) -> Result<(), Refusal> {
        match part {
            Part::InsertDentry { dir, name, .. } => {
                if self.planned_dir(*dir)?.flags.has(InodeFlags::SHARDED) {
                    return Err(Refusal::Conflict);
                }
                if self.index.find(dir.local(), name.as_bytes()).is_some() {
                    return Err(Refusal::Conflict);
                }
                self.index.free_cookie(dir.local(), name.as_bytes()).ok_or(Errno::NoSpace)?;
            }
            Part::RemoveDentry { dir, name, expect } | Part::ReplaceDentry { dir, name, expect, .. } => {
                self.planned_dir(*dir)?;
                match self.index.find(dir.local(), name.as_bytes()) {
                    Some(named) if named.child == *expect => {}
                    _ => return Err(Refusal::Conflict),
                }
            }
            Part::MakeInode(new) => {
                let local = new.ino.local();
                if new.ino.target() != self.target || local == 0 || self.inodes.contains(local) {
                    return Err(Refusal::Conflict);
                }
            }
            Part::Link { ino } => {
                let inode = self.planned(*ino)?;
                if inode.kind == Kind::Dir {
                    return Err(Errno::Perm.into());
                }
                if inode.nlink == 0 && (!inode.flags.has(InodeFlags::LINKABLE) || inode.pending.destroy) {
                    return Err(Errno::NoEnt.into());
                }
                if inode.nlink >= limits::LINK_MAX {
                    return Err(Errno::TooManyLinks.into());
                }
            }
            Part::Unlink { ino, kind } => {
                let inode = self.planned(*ino)?;
                if inode.kind != *kind || inode.nlink == 0 {
                    return Err(Refusal::Conflict);
                }
                if inode.entries > 0 {
                    return Err(Errno::NotEmpty.into());
                }
            }
            Part::TouchDir { dir, links } => {
                let inode = self.planned_dir(*dir)?;
                match inode.nlink.checked_add_signed(*links) {
                    Some(nlink) if nlink >= 2 => {}
                    Some(_) => return Err(Refusal::Conflict),
                    None => return Err(Errno::TooManyLinks.into()),
                }
            }
            Part::SetParent { ino, .. } => {
                if self.planned(*ino)?.kind != Kind::Dir {
                    return Err(Refusal::Conflict);
                }
            }
            Part::TouchCtime { ino } => {
                self.planned(*ino)?;
            }
            // An inode that a plan has used, and that may have been removed since.
            Part::SetAcls { .. } | Part::SetProject { .. } => {}
            Part::SetShards { ino, was, .. } => {
                let inode = self.planned_dir(*ino)?;
                if inode.entries > 0 {
                    return Err(Errno::NotEmpty.into());
                }
                if inode.flags.has(InodeFlags::SHARDED) {
                    return Err(Errno::Exist.into());
                }
                if !self.shared_attrs(*ino).is_some_and(|now| now.agrees(was)) {
                    return Err(Refusal::Conflict);
                }
            }
            Part::SetShared { ino, was, .. } => {
                self.planned(*ino)?;
                if was.as_deref().is_some_and(|was| self.shared_attrs(*ino).as_ref() != Some(was)) {
                    return Err(Refusal::Conflict);
                }
            }
        }
        Ok(())
    }

    /// An earlier part makes the inode.
    pub fn apply_parts(&mut self, parts: &[Part], now: Timespec, txn: &mut Txn) -> Applied {
        self.apply_promised(parts, now, now, txn)
    }

    /// Works as `apply_parts`, but some time after `now`, the time of the operation. Items that are not held
    /// exclusively, so that others may have changed them since, get the time `late`. Otherwise the times of such an
    /// inode would go back.
    pub fn apply_promised(&mut self, parts: &[Part], now: Timespec, late: Timespec, txn: &mut Txn) -> Applied {
        debug_assert_eq!(self.check_parts(parts), Ok(()), "parts are checked before they are applied");
        let mut dirty = Dirty::default();
        let mut applied = Applied::default();
        for part in parts {
            self.apply_part(part, now, late, &mut dirty, &mut applied);
        }
        self.emit(dirty, txn);
        applied
    }

    fn apply_part(&mut self, part: &Part, now: Timespec, late: Timespec, dirty: &mut Dirty, applied: &mut Applied) {
        let at = |inode: &Inode| if inode.times.ctime > now { late } else { now };
        match part {
            Part::InsertDentry { dir, name, child, kind } => {
                let named = Named { child: *child, kind: *kind };
                self.put_dentry(dir.local(), name.as_bytes(), named, dirty);
            }
            Part::RemoveDentry { dir, name, .. } => self.drop_dentry(dir.local(), name.as_bytes(), dirty),
            Part::ReplaceDentry { dir, name, child, kind, .. } => {
                let (dir, name) = (dir.local(), name.as_bytes());
                if self.index.find(dir, name).is_some() {
                    let cookie = self.index.cookie(dir, name);
                    self.index.insert(dir, cookie, name, Named { child: *child, kind: *kind });
                    dirty.dentry(dir, cookie, name);
                }
            }
            Part::MakeInode(new) => self.insert_inode(new, now, dirty),
            Part::Link { ino } => self.edit(*ino, dirty, |inode| {
                inode.nlink += 1;
                inode.flags.set(InodeFlags::LINKABLE, false);
                inode.times.ctime = at(inode);
            }),
            Part::Unlink { ino, kind } => {
                #[cfg(test)]
                if self.planted == Some(crate::tests::Bug::KeptLink) && *kind == Kind::Fifo {
                    return;
                }
                self.edit(*ino, dirty, |inode| {
                    inode.nlink = if *kind == Kind::Dir { 0 } else { inode.nlink - 1 };
                    inode.times.ctime = at(inode);
                    if inode.nlink == 0 {
                        applied.orphaned.push(*ino);
                    }
                });
            }
            Part::TouchDir { dir, links } => self.edit(*dir, dirty, |inode| {
                let at = at(inode);
                inode.nlink = inode.nlink.saturating_add_signed(*links);
                inode.times.set_mtime(at, at);
                inode.times.ctime = at;
            }),
            Part::SetParent { ino, parent } => self.edit(*ino, dirty, |inode| inode.dir.parent = *parent),
            Part::TouchCtime { ino } => self.edit(*ino, dirty, |inode| inode.times.ctime = at(inode)),
            Part::SetAcls { ino, acls } => self.put_acls(*ino, acls, dirty),
            Part::SetProject { ino, project } => self.edit(*ino, dirty, |inode| inode.owner.project = *project),
            Part::SetShards { ino, shards, .. } => {
                self.put_shards(*ino, shards, dirty);
                self.edit(*ino, dirty, |inode| inode.times.ctime = at(inode));
            }
            Part::SetShared { ino, now, .. } => self.put_shared(*ino, now, dirty),
        }
    }

    /// Changes an inode of this target, if it exists.
    pub(crate) fn edit(&mut self, ino: Ino, dirty: &mut Dirty, change: impl FnOnce(&mut Inode)) {
        let local = ino.local();
        if let Some(inode) = dirty.known_inode(local) {
            change(inode);
            self.inodes.insert(local, inode);
        } else if let Some(mut inode) = self.inodes.get(local) {
            change(&mut inode);
            self.put_inode(local, inode, dirty);
        }
    }

    /// Makes this the inode of this number, which the change has not touched before.
    pub(crate) fn put_inode(&mut self, local: u64, inode: Inode, dirty: &mut Dirty) {
        self.inodes.insert(local, &inode);
        dirty.inode(local, inode);
    }

    fn put_dentry(&mut self, dir: u64, name: &[u8], named: Named, dirty: &mut Dirty) {
        let Some(cookie) = self.index.free_cookie(dir, name) else { return };
        self.index.insert(dir, cookie, name, named);
        dirty.dentry(dir, cookie, name);
        self.edit(self.ino(dir), dirty, |inode| inode.dir.entries += 1);
    }

    fn drop_dentry(&mut self, dir: u64, name: &[u8], dirty: &mut Dirty) {
        let Some(cookie) = self.index.remove(dir, name) else { return };
        dirty.dentry(dir, cookie, name);
        self.edit(self.ino(dir), dirty, |inode| inode.dir.entries -= 1);
    }
}
