//! Attributes of an inode and credentials of a caller.

use crate::Ino;
use serde::{Deserialize, Serialize};

/// A time since the epoch, as in POSIX' `timespec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "AnyTimespec")]
pub struct Timespec {
    /// Seconds; negative before 1970.
    pub sec: i64,
    /// Nanoseconds, below 10^9.
    pub nsec: u32,
}

impl Timespec {
    /// Makes the time from nanoseconds since the epoch.
    pub fn from_ns(ns: u64) -> Timespec {
        Timespec { sec: (ns / 1_000_000_000) as i64, nsec: (ns % 1_000_000_000) as u32 }
    }
}

/// A `Timespec` as a peer sends it, which may be no valid time.
#[derive(Deserialize)]
struct AnyTimespec {
    sec: i64,
    nsec: u32,
}

impl TryFrom<AnyTimespec> for Timespec {
    type Error = &'static str;

    fn try_from(t: AnyTimespec) -> Result<Timespec, Self::Error> {
        if t.nsec < 1_000_000_000 { Ok(Timespec { sec: t.sec, nsec: t.nsec }) } else { Err("a second has 10^9 ns") }
    }
}

/// Kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
    /// Character device.
    CharDev,
    /// Block device.
    BlockDev,
}

impl Kind {
    /// The `S_IFMT` bits.
    pub fn mode_bits(self) -> u32 {
        match self {
            Kind::Fifo => 0o010000,
            Kind::CharDev => 0o020000,
            Kind::Dir => 0o040000,
            Kind::BlockDev => 0o060000,
            Kind::File => 0o100000,
            Kind::Symlink => 0o120000,
            Kind::Socket => 0o140000,
        }
    }

    /// The kind in the `S_IFMT` bits of `mode`, if they name one.
    pub fn from_mode(mode: u32) -> Option<Kind> {
        [Kind::Fifo, Kind::CharDev, Kind::Dir, Kind::BlockDev, Kind::File, Kind::Symlink, Kind::Socket]
            .into_iter()
            .find(|k| k.mode_bits() == mode & 0o170000)
    }

    /// The `d_type` of readdir.
    pub fn dtype(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }
}

/// The attributes of an inode that stat shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Kind.
    pub kind: Kind,
    /// Permission bits with setuid, setgid and sticky: `0o7777`.
    pub perm: u16,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device nodes.
    pub rdev: u32,
    /// Length in bytes.
    pub size: u64,
    /// Allocated storage in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of content.
    pub mtime: Timespec,
    /// Last change of content or attributes.
    pub ctime: Timespec,
    /// Creation.
    pub btime: Timespec,
}

impl Attr {
    /// `st_mode`.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | u32::from(self.perm)
    }

    /// Returns whether setuid or setgid is set.
    pub fn has_set_id(&self) -> bool {
        self.perm & 0o6000 != 0
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimeSet {
    /// `UTIME_NOW`: needs only write permission.
    Now,
    /// A given time: needs ownership.
    At(Timespec),
}

/// Attributes to change; absent ones stay unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    /// New permission bits, `0o7777`.
    pub perm: Option<u16>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length (truncate or extend).
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<TimeSet>,
    /// New modification time.
    pub mtime: Option<TimeSet>,
    /// Explicit change time (only the kernel's own write-back sends it): needs ownership, or an open for writing.
    pub ctime: Option<Timespec>,
    /// All flags of the inode after the change.
    pub flags: Option<FileFlags>,
    /// The new project (`Owner`); 0 means none.
    pub project: Option<u32>,
    /// Clear setuid and setgid as a write or chown by an unprivileged caller does. Alone, it needs what a write needs,
    /// or ownership.
    pub kill_suidgid: bool,
    /// The caller has the file open for writing: no permission check for `size`, `ctime` and `kill_suidgid`.
    pub open_for_write: bool,
}

/// Those flags of `chattr` on files and directories that are kept here. No permission overrides a flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct FileFlags(u8);

impl FileFlags {
    /// The empty set of flags.
    pub const NONE: FileFlags = FileFlags(0);
    /// `chattr +a`: a file can be opened for writing only with `O_APPEND`; entries of a directory can only be added.
    pub const APPEND: FileFlags = FileFlags(1);
    /// `chattr +i`: nothing of it changes.
    pub const IMMUTABLE: FileFlags = FileFlags(2);

    /// Returns whether all of `flags` are in this set.
    pub fn has(self, flags: FileFlags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns these flags together with `flags`.
    #[must_use]
    pub fn and(self, flags: FileFlags) -> FileFlags {
        FileFlags(self.0 | flags.0)
    }

    /// Returns these flags without `flags`.
    #[must_use]
    pub fn without(self, flags: FileFlags) -> FileFlags {
        FileFlags(self.0 & !flags.0)
    }
}

impl TryFrom<u8> for FileFlags {
    type Error = &'static str;

    fn try_from(bits: u8) -> Result<FileFlags, Self::Error> {
        if bits < 4 { Ok(FileFlags(bits)) } else { Err("a file has no such flag") }
    }
}

impl From<FileFlags> for u8 {
    fn from(flags: FileFlags) -> u8 {
        flags.0
    }
}

/// Rights of a caller beyond those of its user: the capabilities of Linux that a file system uses.
///
/// These capabilities decide, not the number of the user: the super-user without them is a user like any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caps(u16);

impl Caps {
    /// No capability, which is what an ordinary user has.
    pub const NONE: Caps = Caps(0);
    /// Changes owners and groups as it likes.
    pub const CHOWN: Caps = Caps(1);
    /// Reads, writes and searches in spite of the permissions; executes a file with any execute bit.
    pub const DAC_OVERRIDE: Caps = Caps(1 << 1);
    /// Reads files, lists and searches directories whatever the permissions say.
    pub const DAC_READ_SEARCH: Caps = Caps(1 << 2);
    /// Allows the other operations of the owner.
    pub const FOWNER: Caps = Caps(1 << 3);
    /// A change leaves setuid and setgid set where it removes them for other users.
    pub const FSETID: Caps = Caps(1 << 4);
    /// Makes devices.
    pub const MKNOD: Caps = Caps(1 << 5);
    /// Sees and changes attributes of the `trusted` and `security` name spaces.
    pub const SYS_ADMIN: Caps = Caps(1 << 6);
    /// Gives capabilities to programs (`security.capability`).
    pub const SETFCAP: Caps = Caps(1 << 7);
    /// Sets and clears `FileFlags`.
    pub const LINUX_IMMUTABLE: Caps = Caps(1 << 8);
    /// All capabilities, which the super-user has.
    pub const ALL: Caps = Caps((1 << 9) - 1);

    /// Makes the set from the mask that Linux shows (`CapEff` of `/proc/PID/status`).
    pub fn from_linux(mask: u64) -> Caps {
        let known = [
            (0, Caps::CHOWN),
            (1, Caps::DAC_OVERRIDE),
            (2, Caps::DAC_READ_SEARCH),
            (3, Caps::FOWNER),
            (4, Caps::FSETID),
        ];
        let more = [(9, Caps::LINUX_IMMUTABLE), (27, Caps::MKNOD), (21, Caps::SYS_ADMIN), (31, Caps::SETFCAP)];
        let known = known.into_iter().chain(more);
        known.filter(|(bit, _)| mask >> bit & 1 == 1).fold(Caps::NONE, |all, (_, cap)| all.and(cap))
    }

    /// Returns whether all of `caps` are in this set.
    #[inline]
    pub fn has(self, caps: Caps) -> bool {
        self.0 & caps.0 == caps.0
    }

    /// Returns these capabilities together with `caps`.
    #[must_use]
    pub fn and(self, caps: Caps) -> Caps {
        Caps(self.0 | caps.0)
    }
}

/// The user on whose behalf a request is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cred {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups, at most `limits::GROUPS_MAX`.
    pub groups: Vec<u32>,
    /// The capabilities of the user.
    pub caps: Caps,
}

impl Default for Cred {
    fn default() -> Cred {
        Cred::root()
    }
}

impl Cred {
    /// A user with what Linux gives him at first: all capabilities if he is the super-user, otherwise none.
    pub fn new(uid: u32, gid: u32, groups: Vec<u32>) -> Cred {
        Cred { uid, gid, groups, caps: if uid == 0 { Caps::ALL } else { Caps::NONE } }
    }

    /// The super-user with all capabilities.
    pub fn root() -> Cred {
        Cred::new(0, 0, Vec::new())
    }

    /// Returns whether it has this capability.
    #[inline]
    pub fn may(&self, cap: Caps) -> bool {
        self.caps.has(cap)
    }

    /// Returns whether the user has all of `want` (4 read, 2 write, 1 execute or search, as in a mode) on an inode of
    /// `kind` with the permissions `perm`, owner `uid` and group `gid`. The class (owner, group, others) is the first
    /// that fits; its bits alone decide. Then capabilities do: a file without any execute bit cannot be executed.
    pub fn has_access(&self, kind: Kind, perm: u16, (uid, gid): (u32, u32), want: u16) -> bool {
        let class = if self.uid == uid {
            perm >> 6
        } else if self.in_group(gid) {
            perm >> 3
        } else {
            perm
        };
        want & 0o7 & !class == 0 || self.overrides(kind, perm, want)
    }

    /// Returns whether capabilities give the user the access `want`, whatever the permissions say.
    pub(crate) fn overrides(&self, kind: Kind, perm: u16, want: u16) -> bool {
        let is_dir = kind == Kind::Dir;
        self.may(Caps::DAC_OVERRIDE) && (is_dir || want & 1 == 0 || perm & 0o111 != 0)
            || self.may(Caps::DAC_READ_SEARCH) && if is_dir { want & 2 == 0 } else { want & 0o7 == 4 }
    }

    /// Returns whether the caller is in `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: capabilities add to the rights of a caller's class, each just as in Linux. Method: a table.
    #[test]
    fn capabilities_add_to_permissions() {
        let with = |caps| Cred { caps, ..Cred::new(7, 7, vec![]) };
        let may = |cred: &Cred, kind, perm, want| cred.has_access(kind, perm, (1, 1), want);
        let (file, dir) = (Kind::File, Kind::Dir);
        let backup = with(Caps::DAC_READ_SEARCH);
        assert!(may(&backup, file, 0, 4) && !may(&backup, file, 0, 6) && !may(&backup, file, 0, 1));
        assert!(may(&backup, dir, 0, 5) && !may(&backup, dir, 0, 2) && may(&backup, dir, 0o002, 2));
        let all = with(Caps::DAC_OVERRIDE);
        assert!(may(&all, file, 0, 6) && !may(&all, file, 0, 1) && may(&all, file, 0o100, 7) && may(&all, dir, 0, 7));
        assert!(!may(&with(Caps::FOWNER), file, 0, 4) && may(&Cred::root(), file, 0, 6));
        let nobody = Cred { caps: Caps::NONE, ..Cred::root() };
        assert!(!may(&nobody, file, 0o770, 4) && may(&nobody, file, 0o004, 4));
        assert!(!nobody.has_access(file, 0o077, (0, 0), 4), "the owner's bits alone decide");
        assert_eq!(Caps::from_linux(u64::MAX), Caps::ALL);
        assert_eq!(Caps::from_linux(1 << 2 | 1 << 7), Caps::DAC_READ_SEARCH);
    }
}
