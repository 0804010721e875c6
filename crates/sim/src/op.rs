//! `Op` and `Outcome`: one call on the mount and its result, as data.
//!
//! Owns: the vocabulary in which programs, the reference and the history speak. Does not own: which calls are made
//! (`generate`), how (`perform`) or which results they should have (`reference`).
//!
//! Calls name inodes by number and open files by a number of the program, so that an operation means the same to the
//! file system and to the reference.

use amphi_client::{Fallocate, OpenFlags};
use amphi_types::{Ino, Kind, Timespec};
use amphi_wire::{RenameMode, XattrMode};
use std::fmt;

/// A name.
pub type Name = Vec<u8>;

/// Number of an open file within its program.
pub type Handle = u32;

/// Bytes that a write carries: those of `dice::bytes_of(tag, len)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the write, given once in a run.
    pub tag: u64,
    /// Length.
    pub len: u64,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the call of its name; the fields are the call's arguments")]
pub enum Op {
    Lookup { dir: Ino, name: Name },
    GetAttr { ino: Ino },
    Chmod { ino: Ino, perm: u16 },
    Chown { ino: Ino, uid: Option<u32>, gid: Option<u32> },
    SetTimes { ino: Ino, mtime: Option<Timespec> },
    Truncate { ino: Ino, size: u64, handle: Option<Handle> },
    Mknod { dir: Ino, name: Name, kind: Kind, perm: u16 },
    Mkdir { dir: Ino, name: Name, perm: u16 },
    Symlink { dir: Ino, name: Name, to: Vec<u8> },
    Link { ino: Ino, dir: Ino, name: Name },
    Unlink { dir: Ino, name: Name },
    Rmdir { dir: Ino, name: Name },
    Rename { from: Ino, from_name: Name, to: Ino, to_name: Name, mode: RenameMode },
    ReadLink { ino: Ino },
    List { dir: Ino, max: u32, plus: bool },
    GetXattr { ino: Ino, name: Name },
    ListXattr { ino: Ino },
    SetXattr { ino: Ino, name: Name, value: Vec<u8>, mode: XattrMode },
    RemoveXattr { ino: Ino, name: Name },
    Create { dir: Ino, name: Name, perm: u16, flags: OpenFlags, handle: Handle },
    Tmpfile { dir: Ino, perm: u16, flags: OpenFlags, handle: Handle },
    Open { ino: Ino, flags: OpenFlags, handle: Handle },
    Close { handle: Handle },
    Read { handle: Handle, offset: u64, len: u64, direct: bool },
    Write { handle: Handle, offset: u64, stamp: Stamp, direct: bool },
    Fsync { handle: Handle, datasync: bool },
    FsyncDir { dir: Ino },
    SyncAll,
    Fallocate { handle: Handle, mode: Fallocate, offset: u64, len: u64 },
    Copy { from: Handle, from_offset: u64, to: Handle, to_offset: u64, len: u64 },
    StatFs,
    SetLayout { ino: Ino, text: &'static str },
}

/// The attributes that stat shows and the reference knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Inode.
    pub ino: Ino,
    /// Kind.
    pub kind: Kind,
    /// Permissions.
    pub perm: u16,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length; 0 for directories and nodes, whose length means nothing.
    pub size: u64,
    /// Last change of content.
    pub mtime: Timespec,
    /// Last change.
    pub ctime: Timespec,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing but success.
    Done,
    /// Attributes.
    Attr(Seen),
    /// A new or found file, open: its attributes, whether it is new.
    Opened(Seen, bool),
    /// Bytes: content, target of a link, value of an attribute.
    Bytes(Vec<u8>),
    /// How many bytes.
    Count(u64),
    /// Names in the order of their bytes; a name that was listed twice occurs twice.
    Names(Vec<(Name, Ino)>),
}

fn text(name: &[u8]) -> String {
    if name.len() > 40 { format!("<{} bytes>", name.len()) } else { String::from_utf8_lossy(name).into_owned() }
}

fn flags_text(f: &OpenFlags) -> String {
    let on = [
        (f.read, "r"),
        (f.write, "w"),
        (f.append, " append"),
        (f.direct, " direct"),
        (f.sync, " sync"),
        (f.dsync, " dsync"),
        (f.truncate, " trunc"),
        (f.exclusive, " excl"),
    ];
    on.iter().filter(|(set, _)| *set).map(|(_, t)| *t).collect()
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Lookup { dir, name } => write!(f, "lookup {dir}/{}", text(name)),
            Op::GetAttr { ino } => write!(f, "getattr {ino}"),
            Op::Chmod { ino, perm } => write!(f, "chmod {ino} {perm:o}"),
            Op::Chown { ino, uid, gid } => write!(f, "chown {ino} {uid:?}:{gid:?}"),
            Op::SetTimes { ino, mtime } => write!(f, "utimens {ino} {mtime:?}"),
            Op::Truncate { ino, size, handle } => write!(f, "truncate {ino} to {size} by {handle:?}"),
            Op::Mknod { dir, name, kind, perm } => write!(f, "mknod {dir}/{} {kind:?} {perm:o}", text(name)),
            Op::Mkdir { dir, name, perm } => write!(f, "mkdir {dir}/{} {perm:o}", text(name)),
            Op::Symlink { dir, name, to } => write!(f, "symlink {dir}/{} -> {}", text(name), text(to)),
            Op::Link { ino, dir, name } => write!(f, "link {ino} as {dir}/{}", text(name)),
            Op::Unlink { dir, name } => write!(f, "unlink {dir}/{}", text(name)),
            Op::Rmdir { dir, name } => write!(f, "rmdir {dir}/{}", text(name)),
            Op::Rename { from, from_name, to, to_name, mode } => {
                write!(f, "rename {from}/{} to {to}/{} {mode:?}", text(from_name), text(to_name))
            }
            Op::ReadLink { ino } => write!(f, "readlink {ino}"),
            Op::List { dir, max, plus } => write!(f, "readdir {dir} by {max}{}", if *plus { " plus" } else { "" }),
            Op::GetXattr { ino, name } => write!(f, "getxattr {ino} {}", text(name)),
            Op::ListXattr { ino } => write!(f, "listxattr {ino}"),
            Op::SetXattr { ino, name, value, mode } => {
                write!(f, "setxattr {ino} {} of {} bytes {mode:?}", text(name), value.len())
            }
            Op::RemoveXattr { ino, name } => write!(f, "removexattr {ino} {}", text(name)),
            Op::Create { dir, name, perm, flags, handle } => {
                write!(f, "h{handle} = create {dir}/{} {perm:o} {}", text(name), flags_text(flags))
            }
            Op::Tmpfile { dir, perm, flags, handle } => {
                write!(f, "h{handle} = tmpfile {dir} {perm:o} {}", flags_text(flags))
            }
            Op::Open { ino, flags, handle } => write!(f, "h{handle} = open {ino} {}", flags_text(flags)),
            Op::Close { handle } => write!(f, "close h{handle}"),
            Op::Read { handle, offset, len, direct } => {
                write!(f, "read h{handle} {offset}+{len}{}", if *direct { " direct" } else { "" })
            }
            Op::Write { handle, offset, stamp, direct } => {
                let how = if *direct { " direct" } else { "" };
                write!(f, "write h{handle} {offset}+{} bytes #{}{how}", stamp.len, stamp.tag)
            }
            Op::Fsync { handle, datasync } => write!(f, "{} h{handle}", if *datasync { "fdatasync" } else { "fsync" }),
            Op::FsyncDir { dir } => write!(f, "fsync of directory {dir}"),
            Op::SyncAll => write!(f, "sync"),
            Op::Fallocate { handle, mode, offset, len } => write!(f, "fallocate h{handle} {mode:?} {offset}+{len}"),
            Op::Copy { from, from_offset, to, to_offset, len } => {
                write!(f, "copy_file_range h{from} {from_offset}+{len} to h{to} {to_offset}")
            }
            Op::StatFs => write!(f, "statfs"),
            Op::SetLayout { ino, text } => write!(f, "set layout of {ino} to {text}"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = |f: &mut fmt::Formatter<'_>, s: &Seen| {
            let (kind, mtime, ctime) = (s.kind, s.mtime, s.ctime);
            write!(f, "{} {kind:?} {:o} links {} owner {}:{} size {}", s.ino, s.perm, s.nlink, s.uid, s.gid, s.size)?;
            write!(f, " mtime {}.{:09} ctime {}.{:09}", mtime.sec, mtime.nsec, ctime.sec, ctime.nsec)
        };
        match self {
            Outcome::Done => write!(f, "ok"),
            Outcome::Attr(s) => seen(f, s),
            Outcome::Opened(s, new) => {
                seen(f, s)?;
                write!(f, "{}", if *new { " (new)" } else { "" })
            }
            Outcome::Bytes(b) => write!(f, "{} bytes", b.len()),
            Outcome::Count(n) => write!(f, "{n}"),
            Outcome::Names(names) => {
                write!(f, "{} names:", names.len())?;
                names.iter().try_for_each(|(n, ino)| write!(f, " {}={ino}", text(n)))
            }
        }
    }
}
