//! `Inode`: the stored attributes of an inode, those that stat shows, and the facts for plans.
//!
//! Owns: these three views. Does not own: how inodes change (`part`, `setattr`, `file_state`).
//!
//! While a file is being written, its size, blocks and mtime come from its objects. `Gathered` is their sum, and only
//! `Inode::attr_with` joins it with the inode's own copy. The size is the larger of both, because objects are trimmed
//! before a truncation is answered. An mtime of the objects counts only if it is newer than the moment at which an
//! mtime was last set explicitly.

use amphi_types::{Acls, Advice, Attr, FileFlags, Ino, Kind, Layout, Owner, Timespec};
use serde::{Deserialize, Serialize};

/// Size that stat shows for a directory, bytes.
const DIR_SIZE: u64 = 4096;

/// Work on a file's objects that a change of its inode has begun and that must be finished, also after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// The file was truncated. Objects on other targets may still have bytes beyond `Inode::size`.
    pub trim: bool,
    /// The file is being destroyed. Its objects are removed first, and then `MetaStore::remove_inode` follows.
    pub destroy: bool,
}

/// Owner of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeOwner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project of the tree in which it lies, or 0. In the item, its number follows the other fields (`codec`).
    #[serde(skip)]
    pub project: u32,
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
    /// When mtime (or the size) was last set explicitly. Mtimes of objects that are not newer do not count.
    pub mtime_set_ctime: Timespec,
}

impl InodeTimes {
    /// The times of an inode that is made now.
    pub fn of(now: Timespec) -> InodeTimes {
        InodeTimes { atime: now, mtime: now, ctime: now, btime: now, mtime_set_ctime: now }
    }

    /// A caller sets mtime at `now`. Mtimes of objects that were written before do not count any more.
    pub(crate) fn set_mtime(&mut self, mtime: Timespec, now: Timespec) {
        self.mtime = mtime;
        self.mtime_set_ctime = now;
    }
}

/// The attributes of an inode about the objects of its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectsState {
    /// Truncation generation, which grows whenever the size is set.
    pub generation: u64,
    /// Writers may have extended objects on other targets, so size and mtime must be gathered until the file is
    /// settled.
    pub spread: bool,
    /// There may be objects on other targets, so truncation and removal must visit these targets. It is never reset.
    pub wide: bool,
}

/// The attributes of an inode that only directories have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirState {
    /// Parent of a directory (the root's is itself). For other kinds, the directory in which it was made (a hint).
    pub parent: Ino,
    /// Number of entries of a directory.
    pub entries: u64,
}

/// The attributes of an inode that are single bits, in one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeFlags(u8);

impl InodeFlags {
    /// The file was made without a name and never linked, so it may still get its first name.
    pub const LINKABLE: InodeFlags = InodeFlags(1);
    /// The inode has an access control list among its extended attributes. Without this bit no operation looks for one.
    pub const LISTS: InodeFlags = InodeFlags(2);
    /// The names of the directory lie in its shards (`shards`).
    pub const SHARDED: InodeFlags = InodeFlags(128);
    const FILE_SHIFT: u32 = 2;
    const FILE_MASK: u8 = 0b11 << Self::FILE_SHIFT;

    /// Returns whether this bit is set.
    pub fn has(self, flag: InodeFlags) -> bool {
        self.0 & flag.0 != 0
    }

    /// Sets or clears a bit.
    pub(crate) fn set(&mut self, flag: InodeFlags, on: bool) {
        self.0 = if on { self.0 | flag.0 } else { self.0 & !flag.0 };
    }

    /// The flags that `chattr` has set.
    pub fn file_flags(self) -> FileFlags {
        FileFlags::try_from((self.0 & Self::FILE_MASK) >> Self::FILE_SHIFT).unwrap_or_default()
    }

    pub(crate) fn set_file_flags(&mut self, flags: FileFlags) {
        self.0 = self.0 & !Self::FILE_MASK | u8::from(flags) << Self::FILE_SHIFT;
    }

    /// The byte.
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    pub(crate) fn from_bits(bits: u8) -> InodeFlags {
        InodeFlags(bits)
    }

    /// Returns whether no other bits than the known ones are set.
    pub(crate) fn is_possible(self) -> bool {
        self.0 & !(Self::FILE_MASK | Self::LINKABLE.0 | Self::LISTS.0 | Self::SHARDED.0) == 0
    }
}

/// An inode as it is kept in memory and stored in its item. The order of the fields, and of those of its parts, is that
/// of the bytes on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    /// The kind of the inode.
    pub kind: Kind,
    /// Permission bits with setuid, setgid and sticky: `0o7777`.
    pub perm: u16,
    /// Hard links. A directory has 2 and one for each sub-directory. 0 means that the inode has no name.
    pub nlink: u32,
    /// The owner of the inode.
    pub owner: InodeOwner,
    /// Device number of device nodes.
    pub rdev: u32,
    /// Length in bytes: files and symbolic links.
    pub size: u64,
    /// Allocated storage in units of 512 bytes, as it was when the file was last settled.
    pub blocks: u64,
    /// Times of creation, access and change.
    pub times: InodeTimes,
    /// Layout of a file. For a directory, the layout that new files and directories in it inherit.
    pub layout: Layout,
    /// Settings of the owner for mounts; inherited in the same way.
    pub advice: Advice,
    /// The known state of a file's objects.
    pub objects: ObjectsState,
    /// Single bits.
    pub flags: InodeFlags,
    /// Pending work on objects.
    pub pending: Pending,
    /// The place of a directory in the tree of directories.
    pub dir: DirState,
    /// Target of a symbolic link.
    #[serde(with = "serde_bytes")]
    pub symlink: Box<[u8]>,
}

/// The sum over a file's objects. If there are no objects, it is `Gathered::default()`.
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
    /// Adds another object.
    pub fn join(&mut self, other: &Gathered) {
        self.size = self.size.max(other.size);
        self.mtime = self.mtime.max(other.mtime);
        self.blocks += other.blocks;
    }
}

impl Inode {
    /// The attributes that stat shows, from the inode's own copy.
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

    /// The attributes that stat shows of a file with these `objects`.
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

    /// Returns whether this is a directory whose names lie in shards.
    pub fn is_sharded(&self) -> bool {
        self.flags.has(InodeFlags::SHARDED)
    }

    /// The account to which the inode and the blocks of its objects are charged.
    pub fn charged(&self) -> Owner {
        Owner { uid: self.owner.uid, gid: self.owner.gid, project: self.owner.project }
    }

    /// The facts for plans and permission checks, but for the lists (`MetaStore::facts`).
    pub(crate) fn facts(&self, ino: Ino) -> Facts {
        Facts {
            ino,
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.owner.uid,
            gid: self.owner.gid,
            project: self.owner.project,
            empty: self.dir.entries == 0,
            linkable: self.flags.has(InodeFlags::LINKABLE),
            parent: self.dir.parent,
            layout: self.layout,
            advice: self.advice,
            flags: self.flags.file_flags(),
            acls: None,
            shards: Vec::new(),
        }
    }
}

/// The facts for plans and permission checks. They can be sent to other targets, so a plan may combine inodes of
/// several targets. The parts of the plan check again the conditions that it assumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Inode number.
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
    /// Project of the tree in which the inode lies, or 0.
    pub project: u32,
    /// Whether a directory has no entries. It is true for other kinds.
    pub empty: bool,
    /// The file was made without a name and never linked.
    pub linkable: bool,
    /// Parent of a directory.
    pub parent: Ino,
    /// Layout.
    pub layout: Layout,
    /// Settings of the owner for mounts.
    pub advice: Advice,
    /// The flags that `chattr` has set.
    pub flags: FileFlags,
    /// Access control lists, if there are any.
    pub acls: Option<Box<Acls>>,
    /// The shards of a directory whose names lie in shards, in their order.
    pub shards: Vec<Ino>,
}

impl Facts {
    /// The directory that programs know: for a shard, the directory to which it belongs.
    pub fn directory(&self) -> Ino {
        if self.ino.is_shard() { self.parent } else { self.ino }
    }

    /// Returns whether `chattr` has set this flag.
    pub fn is(&self, flag: FileFlags) -> bool {
        self.flags.has(flag)
    }

    /// Returns whether the inode may only grow or not change at all.
    pub fn is_fixed(&self) -> bool {
        self.flags != FileFlags::NONE
    }
}
