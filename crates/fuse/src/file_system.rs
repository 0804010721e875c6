//! `FileSystem`: what a mount needs from a file system, one synchronous method for each operation of the kernel.
//!
//! Methods run on reader threads of the session and may block; a blocked one should end with `Errno::Intr` when
//! `Caller::interrupt` fires. A default method answers `NoSys`, which the kernel remembers for most operations: it
//! then stops asking (fsync, flush, access, xattrs) or falls back (rename flags, copy ranges).
//!
//! Invariant: names passed in have no NUL and no `/`; they may still be longer than a file system allows.

use crate::{Caller, DirSink, Later, Limits, Notifier, Payload, ReadSink};
use amphi_types::{Attr, Errno, Ino, Result, SetAttr};
use std::path::Path;
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

/// A file system behind a mount. See the module's head for threads, blocking and errors.
#[expect(unused_variables, reason = "default methods answer without looking at their arguments")]
pub trait FileSystem: Send + Sync + 'static {
    /// Called once, before any other method: what was negotiated, and how to invalidate.
    fn mounted(&self, notifier: Notifier, limits: &Limits) {}

    /// Called once, when requests are served and before anybody else knows of the mount: where it is, and its number in
    /// the mount table (0: unknown).
    fn serves(&self, at: &Path, device: u64) {}

    /// Whether a thread is one of the file system's own, whose requests are answered without waiting for anything: they
    /// are handled by whoever reads them.
    fn is_own_thread(&self, tid: u32) -> bool {
        false
    }

    /// Called once, when the mount has ended and no method runs any more.
    fn unmounted(&self) {}

    /// A request is about to be handled on this thread whose answer may say how long the kernel may keep it; `answered`
    /// follows on the same thread when the answer has been written.
    fn begins(&self) {}

    /// The answer to the request that began on this thread has been written.
    fn answered(&self) {}

    /// How long the kernel may remember that a name is not there.
    fn negative_ttl(&self) -> Duration {
        Duration::ZERO
    }

    /// Finds `name` in directory `parent`.
    fn lookup(&self, caller: &Caller<'_>, parent: Ino, name: &[u8]) -> Result<Entry>;

    /// Drops `count` references to `ino`.
    fn forget(&self, ino: Ino, count: u64) {}

    /// Attributes of `ino`. Also serves statx.
    fn getattr(&self, caller: &Caller<'_>, ino: Ino, handle: Option<Handle>) -> Result<AttrReply>;

    /// Changes attributes.
    fn setattr(&self, caller: &Caller<'_>, ino: Ino, set: &SetAttr, handle: Option<Handle>) -> Result<AttrReply> {
        Err(Errno::NoSys)
    }

    /// Target of a symbolic link.
    fn readlink(&self, caller: &Caller<'_>, ino: Ino) -> Result<Vec<u8>> {
        Err(Errno::NoSys)
    }

    /// Makes a symbolic link.
    fn symlink(&self, caller: &Caller<'_>, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        Err(Errno::NoSys)
    }

    /// Makes a node; `mode` has kind and permissions, umask applied.
    fn mknod(&self, caller: &Caller<'_>, parent: Ino, name: &[u8], mode: u32, rdev: u32) -> Result<Entry> {
        Err(Errno::NoSys)
    }

    /// Makes a directory; umask applied.
    fn mkdir(&self, caller: &Caller<'_>, parent: Ino, name: &[u8], mode: u32) -> Result<Entry> {
        Err(Errno::NoSys)
    }

    /// Removes a name that is not a directory.
    fn unlink(&self, caller: &Caller<'_>, parent: Ino, name: &[u8]) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Removes an empty directory.
    fn rmdir(&self, caller: &Caller<'_>, parent: Ino, name: &[u8]) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Renames; `flags` are `RENAME_*` bits. `new_parent` is the id by which the kernel names that directory.
    fn rename(
        &self,
        caller: &Caller<'_>,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Gives `ino` another name.
    fn link(&self, caller: &Caller<'_>, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        Err(Errno::NoSys)
    }

    /// Opens a file.
    fn open(&self, caller: &Caller<'_>, ino: Ino, how: OpenHow) -> Result<OpenReply>;

    /// Makes a regular file, unless it exists and `how` lacks `O_EXCL`, and opens it.
    fn create(
        &self,
        caller: &Caller<'_>,
        parent: Ino,
        name: &[u8],
        mode: u32,
        how: OpenHow,
    ) -> Result<(Entry, OpenReply)> {
        Err(Errno::NoSys)
    }

    /// Makes a regular file without a name in the file system of `parent` and opens it.
    fn tmpfile(&self, caller: &Caller<'_>, parent: Ino, mode: u32, how: OpenHow) -> Result<(Entry, OpenReply)> {
        Err(Errno::NotSupported)
    }

    /// Reads into `sink`.
    fn read(&self, caller: &Caller<'_>, ino: Ino, how: &ReadHow, sink: &mut ReadSink<'_>) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// A read has been answered that fills pages of the kernel, or one of a caller that is alone with the mount, and
    /// its thread has nothing else to do.
    fn read_answered(&self, how: &ReadHow) {}

    /// Writes; returns the bytes written.
    fn write(&self, caller: &Caller<'_>, ino: Ino, how: &WriteHow, data: Payload<'_>) -> Result<usize> {
        Err(Errno::NoSys)
    }

    /// Numbers of the file system.
    fn statfs(&self, caller: &Caller<'_>, ino: Ino) -> Result<Statfs> {
        Err(Errno::NoSys)
    }

    /// A descriptor of `handle` was closed; an error is what `close` returns.
    fn flush(&self, caller: &Caller<'_>, ino: Ino, handle: Handle, lock_owner: u64) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// The last descriptor of `handle` was closed. Must not wait.
    fn release(&self, ino: Ino, handle: Handle) {}

    /// Makes the file stable; `data_only` leaves out attributes that reading the data does not need.
    fn fsync(&self, caller: &Caller<'_>, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Opens a directory.
    fn opendir(&self, caller: &Caller<'_>, ino: Ino, how: OpenHow) -> Result<OpenReply> {
        Ok(OpenReply::default())
    }

    /// Lists from cookie `offset` on (0 is the start) into `sink` until it is full.
    fn readdir(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        handle: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// The last descriptor of a directory handle was closed. Must not wait.
    fn releasedir(&self, ino: Ino, handle: Handle) {}

    /// Makes a directory stable.
    fn fsyncdir(&self, caller: &Caller<'_>, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Makes everything stable.
    fn syncfs(&self, caller: &Caller<'_>) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Sets an extended attribute; `flags` are `XATTR_*` bits.
    fn setxattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Value of an extended attribute; sizes and `ERANGE` are handled by the caller.
    fn getxattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::NoSys)
    }

    /// Names of extended attributes, each followed by a zero byte.
    fn listxattr(&self, caller: &Caller<'_>, ino: Ino) -> Result<Vec<u8>> {
        Err(Errno::NoSys)
    }

    /// Removes an extended attribute.
    fn removexattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Checks `R_OK`, `W_OK`, `X_OK` bits; not asked when the kernel checks permissions itself.
    fn access(&self, caller: &Caller<'_>, ino: Ino, mask: u32) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Allocates, punches or zeroes; `mode` are `FALLOC_FL_*` bits.
    fn fallocate(&self, caller: &Caller<'_>, ino: Ino, handle: Handle, offset: u64, len: u64, mode: u32) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Next data or hole (`SEEK_DATA`, `SEEK_HOLE`) from `offset` on.
    fn lseek(&self, caller: &Caller<'_>, ino: Ino, handle: Handle, offset: u64, whence: u32) -> Result<u64> {
        Err(Errno::NoSys)
    }

    /// Copies between two files; returns the bytes copied.
    fn copy_file_range(&self, caller: &Caller<'_>, how: &CopyHow) -> Result<u64> {
        Err(Errno::NoSys)
    }

    /// Whether it keeps the memory of writes of one unit (`Payload::unit`); asked before each request.
    fn keeps_units(&self) -> bool {
        false
    }

    /// Whether locks of applications come here; otherwise the kernel keeps them, for this mount alone.
    fn keeps_locks(&self) -> bool {
        false
    }

    /// The lock with the lowest offset that stands in the way of this one, if one does. Owner and handle of the
    /// result are not used.
    fn getlk(&self, caller: &Caller<'_>, ino: Ino, how: &LockHow) -> Result<Option<LockHow>> {
        Err(Errno::NoSys)
    }

    /// Takes, changes or gives up a lock; `Again` if another owner's lock stands in the way.
    fn setlk(&self, caller: &Caller<'_>, ino: Ino, how: &LockHow) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// As `setlk`, but waits for other owners. It must not wait on this thread, which others need: to give the lock up,
    /// for instance.
    fn setlkw(&self, caller: &Caller<'_>, ino: Ino, how: &LockHow, later: Later) {
        later.answer(Err(Errno::NoSys));
    }

    /// Device control.
    fn ioctl(&self, caller: &Caller<'_>, ino: Ino, call: &IoctlCall<'_>) -> Result<IoctlReply> {
        Err(Errno::NoTty)
    }

    /// Whether this device control is one that may wait for very long: then `ioctl_later` answers it.
    fn ioctl_waits(&self, call: &IoctlCall<'_>) -> bool {
        false
    }

    /// As `ioctl`, without a thread that waits.
    fn ioctl_later(&self, caller: &Caller<'_>, ino: Ino, call: &IoctlCall<'_>, later: Later) {
        later.answer_control(Err(Errno::NoTty));
    }

    /// Events of `wanted` that are ready. The default makes the kernel say that all are, always.
    fn poll(&self, caller: &Caller<'_>, ino: Ino, handle: Handle, wanted: u32) -> Result<u32> {
        Err(Errno::NoSys)
    }
}
