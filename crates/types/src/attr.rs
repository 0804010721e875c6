//! Attributes of an inode and credentials of a caller.

use crate::Ino;
use serde::{Deserialize, Serialize};

/// Time since the epoch, as in POSIX' `timespec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "AnyTimespec")]
pub struct Timespec {
    /// Seconds; negative before 1970.
    pub sec: i64,
    /// Nanoseconds, below 10^9.
    pub nsec: u32,
}

impl Timespec {
    /// From nanoseconds since the epoch.
    pub fn from_ns(ns: u64) -> Timespec {
        Timespec { sec: (ns / 1_000_000_000) as i64, nsec: (ns % 1_000_000_000) as u32 }
    }
}

/// A `Timespec` as it comes, which may be none.
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

/// What stat shows.
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

    /// Whether setuid or setgid is set.
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

/// Attributes to change; absent ones stay.
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
    /// Explicit change time (only the kernel's own write-back sends it).
    pub ctime: Option<Timespec>,
    /// Clear setuid and setgid as a write or chown by an unprivileged caller does.
    pub kill_suidgid: bool,
    /// The caller has the file open for writing: no permission check for `size`.
    pub open_for_write: bool,
}

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cred {
    /// Effective user; 0 passes every check but those on kinds.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups, at most `limits::GROUPS_MAX`.
    pub groups: Vec<u32>,
}

impl Cred {
    /// The super-user.
    pub fn root() -> Cred {
        Cred::default()
    }

    /// Whether the caller is in `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
