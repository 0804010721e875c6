//! Arguments and results of the file system's calls, as plain values.

use amphi_types::{Attr, Ino};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// An open file or directory, numbered by the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// An inode that was looked up or newly made. Each `Entry` that the kernel gets counts as one reference until FORGET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Attributes, with the inode number.
    pub attr: Attr,
    /// The node id under which the kernel knows the inode. It is the inode's number, unless the kernel has a directory
    /// of that id at another place (`node`).
    pub node: Ino,
    /// Generation of the inode number.
    pub generation: u64,
    /// Entry timeout: how long the kernel may cache the name.
    pub entry_ttl: Duration,
    /// Attribute timeout: how long the kernel may cache the attributes.
    pub attr_ttl: Duration,
}

/// Attributes with their timeout in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrReply {
    /// Attributes.
    pub attr: Attr,
    /// Attribute timeout: how long the kernel may cache the attributes.
    pub ttl: Duration,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenHow {
    /// `O_*` bits of the caller. With `O_TRUNC` the open also truncates the file.
    pub flags: u32,
    /// With `O_TRUNC`: the open also clears setuid and setgid.
    pub kill_suidgid: bool,
}

impl OpenHow {
    /// Returns whether all bits of `mask` are set.
    pub fn has(&self, mask: i32) -> bool {
        self.flags & mask as u32 == mask as u32
    }

    /// Returns whether reading is allowed.
    pub fn reads(&self) -> bool {
        self.flags & libc::O_ACCMODE as u32 != libc::O_WRONLY as u32
    }

    /// Returns whether writing is allowed.
    pub fn writes(&self) -> bool {
        self.flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32
    }
}

/// How the kernel treats an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// The kernel uses its page cache and empties it at the open. This is right for `O_DIRECT` opens, because the
    /// kernel then sends the pieces of a call in parallel.
    pub const CACHED: OpenFlags = OpenFlags(0);
    /// The kernel's page cache is bypassed: every read and write is sent to the mount.
    pub const DIRECT_IO: OpenFlags = OpenFlags(crate::kernel::flags::fopen::DIRECT_IO);
    /// The kernel uses its page cache and keeps what is there at the open.
    pub const KEEP_CACHE: OpenFlags = OpenFlags(crate::kernel::flags::fopen::KEEP_CACHE);
    /// The kernel sends several direct writes to the inode at a time.
    pub const PARALLEL_WRITES: OpenFlags = OpenFlags(crate::kernel::flags::fopen::PARALLEL_DIRECT_WRITES);
    /// The kernel sends no FLUSH at a close.
    pub const NO_FLUSH: OpenFlags = OpenFlags(crate::kernel::flags::fopen::NOFLUSH);
    /// The kernel caches the listing of the directory.
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
    /// Number of the open file.
    pub handle: Handle,
    /// Whether and how the kernel uses its page cache for the file.
    pub flags: OpenFlags,
}

/// A read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadHow {
    /// The open file.
    pub handle: Handle,
    /// First byte.
    pub offset: u64,
    /// Bytes wanted. A shorter answer means the end of the file.
    pub size: usize,
    /// `O_*` bits that the descriptor has now (`fcntl` may have changed them since the open).
    pub flags: u32,
    /// The bytes go into the kernel's page cache: the read is for a mapping, or the file is open without direct I/O.
    pub into_page_cache: bool,
}

/// A write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteHow {
    /// Open file. With `from_page_cache` the kernel names any open file of the inode.
    pub handle: Handle,
    /// First byte. With `O_APPEND` it is the offset that the kernel takes for the end of the file, which may be
    /// outdated.
    pub offset: u64,
    /// The present `O_*` bits of the descriptor.
    pub flags: u32,
    /// The kernel writes back whole dirty pages of a shared mapping, and no program is the caller.
    pub from_page_cache: bool,
    /// The write also clears setuid and setgid.
    pub kill_suidgid: bool,
}

/// A copy between two files of the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyHow {
    /// The inode to read from.
    pub from: Ino,
    /// The handle to read from.
    pub from_handle: Handle,
    /// First byte to read.
    pub from_offset: u64,
    /// The inode to write to.
    pub to: Ino,
    /// The handle to write to.
    pub to_handle: Handle,
    /// First byte to write.
    pub to_offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// The kind of a lock, or its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// `F_RDLCK`, `LOCK_SH`.
    Shared,
    /// `F_WRLCK`, `LOCK_EX`.
    Exclusive,
    /// `F_UNLCK`, `LOCK_UN`: no lock.
    Unlock,
}

/// A file lock (`flock`, `fcntl`), as an application requests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHow {
    /// Open file through which the lock is requested.
    pub handle: Handle,
    /// Owner: a number for the process's table of descriptors (POSIX), or for the open file (OFD and `flock`).
    pub owner: u64,
    /// First byte.
    pub first: u64,
    /// Last byte. The largest offset means that the lock also covers everything behind the end of the file.
    pub last: u64,
    /// Shared, exclusive, or to be removed.
    pub kind: LockKind,
    /// Process that requests it. 0 if the process is outside this mount's process name space, and for an unlock.
    pub pid: u32,
    /// The lock is one of `flock`, which conflicts only with other locks of `flock`.
    pub flock: bool,
}

/// A device control call (`ioctl`) in the restricted form, in which the command encodes the sizes of input and output.
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
    /// The call is made on a directory.
    pub on_directory: bool,
    /// The caller is a 32-bit process.
    pub compat: bool,
}

/// Result of a device control call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoctlReply {
    /// The result of `ioctl`.
    pub result: i32,
    /// Output bytes; bytes beyond `output_max` are cut off.
    pub output: Vec<u8>,
}

/// Totals of the file system, as `statfs` reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// All blocks.
    pub blocks: u64,
    /// Number of free blocks.
    pub free: u64,
    /// Blocks free for users.
    pub available: u64,
    /// All inodes.
    pub files: u64,
    /// Number of free inodes.
    pub files_free: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// A request that is being served, and that excludes other requests meanwhile.
#[must_use = "what is excluded is allowed again when this is dropped"]
#[derive(Default)]
pub struct Arrival<'a>(Option<&'a AtomicU32>);

impl<'a> Arrival<'a> {
    /// An arrival that is counted in `counter` as long as it lives.
    pub(crate) fn counted(counter: &'a AtomicU32) -> Arrival<'a> {
        counter.fetch_add(1, SeqCst);
        Arrival(Some(counter))
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        if let Some(counter) = self.0 {
            counter.fetch_sub(1, SeqCst);
        }
    }
}
