//! An inode: what is stored of it, what stat shows of it, and what plans look at.
//!
//! Size, blocks and mtime of a file under writing come from its objects: `Gathered` is their sum, and
//! `Inode::attr_with` the one place that joins it with the inode's own copy. Size is the larger of both
//! (objects are trimmed before a truncation is answered). An mtime of the objects counts only if it is newer
//! than the moment at which an mtime was last set explicitly.

use amphi_types::{Advice, Attr, Ino, Kind, Layout, Timespec};
use serde::{Deserialize, Serialize};

/// Size that stat shows for a directory, bytes.
const DIR_SIZE: u64 = 4096;

/// Work on a file's objects that a change of its inode has begun and that must be finished after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// The file was truncated: objects on other targets may still hold bytes beyond `Inode::size`.
    pub trim: bool,
    /// The file is being destroyed: its objects go first, then `MetaStore::remove_inode`.
    pub destroy: bool,
}

/// Whose an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeOwner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Times of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeTimes {
    /// Last access.
    pub atime: Timespec,
    /// Last change of content.
    pub mtime: Timespec,
    /// Last change of content or attributes.
    pub ctime: Timespec,
    /// Creation.
    pub btime: Timespec,
    /// Change time of the last explicit setting of mtime (or of size): objects' mtimes that are not newer lose.
    pub mtime_set_ctime: Timespec,
}

impl InodeTimes {
    /// Those of what is made now.
    pub fn of(now: Timespec) -> InodeTimes {
        InodeTimes { atime: now, mtime: now, ctime: now, btime: now, mtime_set_ctime: now }
    }

    /// Somebody sets mtime at `now`: objects that were written before lose.
    pub(crate) fn set_mtime(&mut self, mtime: Timespec, now: Timespec) {
        self.mtime = mtime;
        self.mtime_set_ctime = now;
    }
}

/// What an inode knows of the objects of its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectsState {
    /// Truncation generation: grows with every set size.
    pub generation: u64,
    /// Writers may have grown objects on other targets: size and mtime must be gathered until settled.
    pub spread: bool,
    /// Objects on other targets may exist: truncation and removal must visit them. Never reset.
    pub wide: bool,
}

/// What an inode knows of directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirState {
    /// Parent of a directory (the root's is itself); of other kinds, the directory it was made in (a hint).
    pub parent: Ino,
    /// Number of entries of a directory.
    pub entries: u64,
}

/// An inode as it is kept in memory and stored in its item: the order of the fields, and of those of its parts, is that
/// of the bytes on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    /// Kind.
    pub kind: Kind,
    /// Permission bits with setuid, setgid and sticky: `0o7777`.
    pub perm: u16,
    /// Hard links; a directory has 2 and one for each sub-directory; 0 = orphan.
    pub nlink: u32,
    /// Whose it is.
    pub owner: InodeOwner,
    /// Device number of device nodes.
    pub rdev: u32,
    /// Length in bytes: files and symbolic links.
    pub size: u64,
    /// Allocated storage in units of 512 bytes, as known when the file was last settled.
    pub blocks: u64,
    /// When it was made, looked at and changed.
    pub times: InodeTimes,
    /// Layout of a file; what is made in a directory inherits it.
    pub layout: Layout,
    /// What the owner asked of mounts; inherited likewise.
    pub advice: Advice,
    /// Objects of a file.
    pub objects: ObjectsState,
    /// Made without a name and never linked: may still get its first name.
    pub linkable: bool,
    /// Pending work on objects.
    pub pending: Pending,
    /// Its place among directories.
    pub dir: DirState,
    /// Target of a symbolic link.
    #[serde(with = "serde_bytes")]
    pub symlink: Box<[u8]>,
}

/// What a file's objects together say. The sum over no objects is `Gathered::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gathered {
    /// Largest end over the objects.
    pub size: u64,
    /// Latest write over the objects.
    pub mtime: Timespec,
    /// Allocated storage in units of 512 bytes, summed.
    pub blocks: u64,
}

impl Gathered {
    /// Adds what another object says.
    pub fn join(&mut self, other: &Gathered) {
        self.size = self.size.max(other.size);
        self.mtime = self.mtime.max(other.mtime);
        self.blocks += other.blocks;
    }
}

impl Inode {
    /// What stat shows, from the inode's own copy.
    pub fn attr(&self, ino: Ino) -> Attr {
        let (size, blocks) = if self.kind == Kind::Dir { (DIR_SIZE, DIR_SIZE / 512) } else { (self.size, self.blocks) };
        Attr {
            ino,
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.owner.uid,
            gid: self.owner.gid,
            rdev: self.rdev,
            size,
            blocks,
            atime: self.times.atime,
            mtime: self.times.mtime,
            ctime: self.times.ctime,
            btime: self.times.btime,
        }
    }

    /// What stat shows of a file whose objects say `objects`.
    pub fn attr_with(&self, ino: Ino, objects: &Gathered) -> Attr {
        let mut attr = self.attr(ino);
        if self.kind == Kind::File {
            attr.size = self.size.max(objects.size);
            attr.blocks = objects.blocks;
            if objects.mtime > self.times.mtime_set_ctime {
                attr.mtime = objects.mtime;
                attr.ctime = self.times.ctime.max(objects.mtime);
            }
        }
        attr
    }

    /// What plans and permission checks look at.
    pub fn facts(&self, ino: Ino) -> Facts {
        Facts {
            ino,
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.owner.uid,
            gid: self.owner.gid,
            empty: self.dir.entries == 0,
            linkable: self.linkable,
            parent: self.dir.parent,
            layout: self.layout,
            advice: self.advice,
        }
    }
}

/// What plans and permission checks look at. It can travel, so that a plan may join inodes of several targets;
/// what a plan assumed is checked again by its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Which inode.
    pub ino: Ino,
    /// Kind.
    pub kind: Kind,
    /// Permission bits, `0o7777`.
    pub perm: u16,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// A directory without entries (true for other kinds).
    pub empty: bool,
    /// Made without a name and never linked.
    pub linkable: bool,
    /// Parent of a directory.
    pub parent: Ino,
    /// Layout.
    pub layout: Layout,
    /// What the owner asked of mounts.
    pub advice: Advice,
}
