//! Types and numbers that C sees.
//!
//! Owns: their layout. Does not own: what they mean to an operation. A struct that may grow begins with its size, which
//! the caller sets to `sizeof`; what a caller's struct does not have yet is left out, or counts as zero.

use std::ffi::c_char;

/// A file system, an open file, an open directory or a queue; never negative. Functions that open something return a
/// handle or a negative errno.
pub type AmphiHandle = i64;

/// What `amphi_version` returns with this header: major version, then minor version in the lower 16 bits. Programs run
/// with any library of the same major version that is not older than the header they were compiled with.
pub const AMPHI_VERSION: u32 = 1 << 16;

/// Path functions: a symbolic link at the end of the path is itself meant.
pub const AMPHI_NOFOLLOW: u32 = 1;
/// `amphi_link`: a symbolic link at the end of the old path is followed.
pub const AMPHI_FOLLOW: u32 = 2;
/// `amphi_unlink`: removes an empty directory instead of a file.
pub const AMPHI_REMOVEDIR: u32 = 4;
/// `amphi_rename`: fails with `EEXIST` if the new name exists.
pub const AMPHI_RENAME_NOREPLACE: u32 = 1;
/// `amphi_rename`: exchanges the two names.
pub const AMPHI_RENAME_EXCHANGE: u32 = 2;
/// `amphi_setxattr`: fails with `EEXIST` if the attribute exists.
pub const AMPHI_XATTR_CREATE: u32 = 1;
/// `amphi_setxattr`: fails with `ENODATA` unless the attribute exists.
pub const AMPHI_XATTR_REPLACE: u32 = 2;
/// `amphi_opendir`: entries come with attributes.
pub const AMPHI_DIR_ATTRIBUTES: u32 = 1;

/// `amphi_setattr`: permission bits, `mode & 07777`.
pub const AMPHI_SET_MODE: u32 = 1;
/// `amphi_setattr`: the owner.
pub const AMPHI_SET_UID: u32 = 2;
/// `amphi_setattr`: the group.
pub const AMPHI_SET_GID: u32 = 4;
/// `amphi_setattr`: the length.
pub const AMPHI_SET_SIZE: u32 = 8;
/// `amphi_setattr`: the time of the last access.
pub const AMPHI_SET_ATIME: u32 = 16;
/// `amphi_setattr`: the time of the last change of the content.
pub const AMPHI_SET_MTIME: u32 = 32;
/// `amphi_setattr`: the time of the last access is now.
pub const AMPHI_SET_ATIME_NOW: u32 = 64;
/// `amphi_setattr`: the time of the last change of the content is now.
pub const AMPHI_SET_MTIME_NOW: u32 = 128;

/// `amphi_advise`: nothing any more.
pub const AMPHI_ADVISE_NORMAL: u32 = 0;
/// `amphi_advise`: the file is read at random.
pub const AMPHI_ADVISE_RANDOM: u32 = 1;
/// `amphi_advise`: the file is read in sequence.
pub const AMPHI_ADVISE_SEQUENTIAL: u32 = 2;
/// `amphi_advise`: the range will be read soon.
pub const AMPHI_ADVISE_WILLNEED: u32 = 3;
/// `amphi_advise`: the range is not needed any more.
pub const AMPHI_ADVISE_DONTNEED: u32 = 4;
/// `amphi_advise`: the file is read once.
pub const AMPHI_ADVISE_ONCE: u32 = 5;

/// `amphi_lock_ahead`: the range will be written, not only read.
pub const AMPHI_LOCK_WRITE: u32 = 1;
/// `amphi_lock_ahead`: waits for the answer of the servers.
pub const AMPHI_LOCK_WAIT: u32 = 2;
/// `amphi_lock_ahead` returns: the request was sent, or, after a wait, refused.
pub const AMPHI_LOCK_SENT: i32 = 0;
/// `amphi_lock_ahead` returns: this client has the lock.
pub const AMPHI_LOCK_HELD: i32 = 1;
/// `amphi_lock_ahead` returns: another lock of this client covers the range.
pub const AMPHI_LOCK_COVERED: i32 = 2;
/// `amphi_group_lock`: fails with `EAGAIN` instead of waiting for another group.
pub const AMPHI_GROUP_NOWAIT: u32 = 1;

/// Request: reads `len` bytes at `offset` into `buffer`.
pub const AMPHI_OP_READ: u32 = 1;
/// Request: writes `len` bytes of `buffer` at `offset`.
pub const AMPHI_OP_WRITE: u32 = 2;
/// Request: as `amphi_fsync`.
pub const AMPHI_OP_FSYNC: u32 = 3;
/// Request: as `amphi_fdatasync`.
pub const AMPHI_OP_FDATASYNC: u32 = 4;

/// How a cluster is opened. All zeros but `size` and `servers` are the defaults.
#[repr(C)]
pub struct AmphiOptions {
    /// `sizeof(struct amphi_options)`.
    pub size: u32,
    /// How long the library's thread polls for answers before it sleeps, microseconds; 0: 100.
    pub spin_us: u32,
    /// Addresses of servers, separated by blanks: `HOST:PORT` or `unix:PATH`.
    pub servers: *const c_char,
    /// File with the cluster key, or NULL.
    pub key_file: *const c_char,
    /// File with this host's own key pair, or NULL.
    pub identity_file: *const c_char,
    /// Bytes of the page cache; 0: 1/4 of the memory of the machine.
    pub cache_bytes: u64,
    /// Tunables as in `amphi mount --set`, `NAME=VALUE` each, separated by blanks, or NULL.
    pub tunables: *const c_char,
    /// Permission bits that new files and directories do not get; -1: the umask of the process as it is now.
    pub umask: i32,
    /// Zero.
    pub reserved: u32,
}

/// A time since the epoch.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AmphiTime {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds, below 10^9.
    pub nsec: u32,
    /// Zero.
    pub reserved: u32,
}

/// Attributes, as those of stat(2).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AmphiStat {
    /// `sizeof(struct amphi_stat)`, set by the caller.
    pub struct_size: u32,
    /// Kind and permissions, as `st_mode`.
    pub mode: u32,
    /// Number of the inode.
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
    /// Storage in use, units of 512 bytes.
    pub blocks: u64,
    /// Names of the inode.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device that a device node stands for, as `makedev` makes it.
    pub rdev: u32,
    /// Last access.
    pub atime: AmphiTime,
    /// Last change of the content.
    pub mtime: AmphiTime,
    /// Last change of content or attributes.
    pub ctime: AmphiTime,
    /// Creation.
    pub btime: AmphiTime,
}

/// Attributes to set.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AmphiSetattr {
    /// `sizeof(struct amphi_setattr)`.
    pub struct_size: u32,
    /// Which of the following count: `AMPHI_SET_*`.
    pub valid: u32,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Zero.
    pub reserved: u32,
    /// Length in bytes.
    pub size: u64,
    /// Last access.
    pub atime: AmphiTime,
    /// Last change of the content.
    pub mtime: AmphiTime,
}

/// Space of a file system, as `statvfs`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AmphiStatfs {
    /// `sizeof(struct amphi_statfs)`, set by the caller.
    pub struct_size: u32,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks.
    pub blocks: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Inodes in use and free.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
    /// Longest name, bytes.
    pub name_max: u32,
    /// Zero.
    pub reserved: u32,
}

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AmphiEntry {
    /// Where `amphi_seekdir` goes on behind this entry.
    pub cookie: u64,
    /// Number of the inode.
    pub ino: u64,
    /// Kind, as `d_type` of readdir(3).
    pub kind: u32,
    /// Bytes of the name.
    pub name_len: u32,
    /// Attributes if the directory was opened with `AMPHI_DIR_ATTRIBUTES`; otherwise its `struct_size` is 0.
    pub stat: AmphiStat,
    /// The name, ended by a zero byte.
    pub name: [c_char; 256],
}

/// A request to a queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AmphiRequest {
    /// `sizeof(struct amphi_request)`, the same in all requests of a call.
    pub size: u32,
    /// `AMPHI_OP_*`.
    pub op: u32,
    /// Comes back with the completion.
    pub tag: u64,
    /// The open file.
    pub file: AmphiHandle,
    /// The memory, which belongs to the library until the completion was taken.
    pub buffer: *mut std::ffi::c_void,
    /// Bytes.
    pub len: u64,
    /// Where in the file.
    pub offset: i64,
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// The end of a request.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmphiCompletion {
    /// That of the request.
    pub tag: u64,
    /// What the call of the same name would have returned: bytes, 0, or a negative errno.
    pub result: i64,
}
