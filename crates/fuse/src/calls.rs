//! What the calls of a file system take and answer, in plain values.

use amphi_types::{Attr, Ino};
use std::time::Duration;

/// An open file or directory, numbered by the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// A looked-up or newly made inode. Each one given to the kernel counts as one reference until FORGET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Attributes, with the inode number.
    pub attr: Attr,
    /// Under which the kernel knows the inode: its number, unless it would take it for one that it has elsewhere.
    pub node: Ino,
    /// Generation of the inode number.
    pub generation: u64,
    /// How long the kernel may keep the name.
    pub entry_ttl: Duration,
    /// How long the kernel may keep the attributes.
    pub attr_ttl: Duration,
}

/// Attributes and how long the kernel may keep them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrReply {
    /// Attributes.
    pub attr: Attr,
    /// Their life in the kernel's cache.
    pub ttl: Duration,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenHow {
    /// `O_*` bits of the caller, `O_TRUNC` included: the open truncates.
    pub flags: u32,
    /// With `O_TRUNC`: clear setuid and setgid.
    pub kill_suidgid: bool,
}

impl OpenHow {
    /// Whether all bits of `mask` are set.
    pub fn has(&self, mask: i32) -> bool {
        self.flags & mask as u32 == mask as u32
    }

    /// Whether reading is allowed.
    pub fn reads(&self) -> bool {
        self.flags & libc::O_ACCMODE as u32 != libc::O_WRONLY as u32
    }

    /// Whether writing is allowed.
    pub fn writes(&self) -> bool {
        self.flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32
    }
}

/// How the kernel treats an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// Kernel page cache, emptied at open. The right one for `O_DIRECT` opens: pieces of a call then run in parallel.
    pub const CACHED: OpenFlags = OpenFlags(0);
    /// No kernel page cache: every read and write comes here.
    pub const DIRECT_IO: OpenFlags = OpenFlags(crate::kernel::flags::fopen::DIRECT_IO);
    /// Kernel page cache, kept at open.
    pub const KEEP_CACHE: OpenFlags = OpenFlags(crate::kernel::flags::fopen::KEEP_CACHE);
    /// Several direct writes to the inode at a time.
    pub const PARALLEL_WRITES: OpenFlags = OpenFlags(crate::kernel::flags::fopen::PARALLEL_DIRECT_WRITES);
    /// No FLUSH at close.
    pub const NO_FLUSH: OpenFlags = OpenFlags(crate::kernel::flags::fopen::NOFLUSH);
    /// Listing kept by the kernel.
    pub const CACHE_DIR: OpenFlags = OpenFlags(crate::kernel::flags::fopen::CACHE_DIR);
}

impl std::ops::BitOr for OpenFlags {
    type Output = OpenFlags;
    fn bitor(self, other: OpenFlags) -> OpenFlags {
        OpenFlags(self.0 | other.0)
    }
}

/// An open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenReply {
    /// Its number.
    pub handle: Handle,
    /// How the kernel treats it.
    pub flags: OpenFlags,
}

/// A read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadHow {
    /// Open file.
    pub handle: Handle,
    /// First byte.
    pub offset: u64,
    /// Bytes wanted. Fewer mean the end of the file.
    pub size: usize,
    /// `O_*` bits of the descriptor now.
    pub flags: u32,
    /// The bytes go into the kernel's page cache: a mapping, or a file that is open without direct I/O.
    pub into_page_cache: bool,
}

/// A write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteHow {
    /// Open file; only some handle of the inode when `from_page_cache`.
    pub handle: Handle,
    /// First byte. With `O_APPEND` the kernel's idea of the end, which may be stale.
    pub offset: u64,
    /// `O_*` bits of the descriptor now.
    pub flags: u32,
    /// Dirty pages of a shared mapping: whole pages, no caller.
    pub from_page_cache: bool,
    /// Clear setuid and setgid.
    pub kill_suidgid: bool,
}

/// A copy between two files of the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyHow {
    /// Inode to read from.
    pub from: Ino,
    /// Handle to read from.
    pub from_handle: Handle,
    /// First byte to read.
    pub from_offset: u64,
    /// Inode to write to.
    pub to: Ino,
    /// Handle to write to.
    pub to_handle: Handle,
    /// First byte to write.
    pub to_offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// What a lock shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// `F_RDLCK`, `LOCK_SH`.
    Shared,
    /// `F_WRLCK`, `LOCK_EX`.
    Exclusive,
    /// `F_UNLCK`, `LOCK_UN`: none.
    Unlock,
}

/// A lock of an application on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHow {
    /// Open file through which it is asked for.
    pub handle: Handle,
    /// Owner: a number for the process's table of files (POSIX), or for the open file (OFD and `flock`).
    pub owner: u64,
    /// First byte.
    pub first: u64,
    /// Last byte; the largest offset means to the end of every file.
    pub last: u64,
    /// What it shall be.
    pub kind: LockKind,
    /// Process that asks; 0 if it is outside our process namespace, or to unlock.
    pub pid: u32,
    /// One of `flock`, which meets only its like.
    pub flock: bool,
}

/// A device control call, restricted form: input and output sizes are encoded in the command.
#[derive(Clone, Copy, Debug)]
pub struct IoctlCall<'a> {
    /// Open file or directory.
    pub handle: Handle,
    /// Command.
    pub cmd: u32,
    /// The argument as a number.
    pub arg: u64,
    /// Input bytes.
    pub input: &'a [u8],
    /// Most output bytes.
    pub output_max: usize,
    /// On a directory.
    pub on_directory: bool,
    /// The caller is a 32-bit process.
    pub compat: bool,
}

/// Result of a device control call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoctlReply {
    /// What `ioctl` returns.
    pub result: i32,
    /// Output bytes; those beyond `output_max` are cut off.
    pub output: Vec<u8>,
}

/// Numbers of the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Blocks free for users.
    pub available: u64,
    /// All inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Longest name in bytes.
    pub name_max: u32,
}
