//! Flag bits of the FUSE protocol, grouped by the message that carries them.

/// Flags of INIT; the bits from 32 on are in the field `flags2` of the message.
pub mod init {
    /// Several reads of one file may be in flight.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// The mount serves POSIX and OFD locks.
    pub const POSIX_LOCKS: u64 = 1 << 1;
    /// OPEN carries `O_TRUNC` and truncates the file.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// LOOKUP of `.` and `..` finds inodes that the kernel has forgotten, so file handles stay valid
    /// (`open_by_handle_at`, re-export by NFS).
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// Writes may exceed one page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// Requests that make an inode contain the permissions before the umask, and the umask in addition.
    pub const DONT_MASK: u64 = 1 << 6;
    /// The mount serves `flock` locks.
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// A read from the page cache first requests the attributes if their timeout is over.
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    /// Directories are read with READDIRPLUS.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// The pieces of one direct request are sent in parallel.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// Lookups and listings of one directory may run in parallel.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The mount keeps access control lists: the kernel requests them as extended attributes, and checks them with the
    /// permissions.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// The device of an aborted mount answers ECONNABORTED instead of ENODEV.
    pub const ABORT_ERROR: u64 = 1 << 21;
    /// `max_pages` is valid.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// Symbolic links may stay in the kernel's cache.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// The file system clears setuid and setgid when a request says so.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// `flags2` is valid.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Requests that create an inode carry the supplementary group that decides its group.
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    /// Shared mappings of files opened with direct I/O.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// `valid` bits of SETATTR.
pub mod setattr {
    /// Permission bits.
    pub const MODE: u32 = 1 << 0;
    /// Owner.
    pub const UID: u32 = 1 << 1;
    /// Group.
    pub const GID: u32 = 1 << 2;
    /// Length.
    pub const SIZE: u32 = 1 << 3;
    /// Access time.
    pub const ATIME: u32 = 1 << 4;
    /// Modification time.
    pub const MTIME: u32 = 1 << 5;
    /// The handle is valid.
    pub const FH: u32 = 1 << 6;
    /// Access time is now.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// Modification time is now.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// Change time.
    pub const CTIME: u32 = 1 << 10;
    /// Clear setuid and setgid.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flags in an OPEN reply.
pub mod fopen {
    /// Bypass the kernel's page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Keep cached pages at open.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// Cache the listing of this directory.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// No FLUSH at close.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Several direct writes to one inode are sent at a time.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Remaining one-bit flags.
pub mod bits {
    /// GETATTR: the handle is valid.
    pub const GETATTR_FH: u32 = 1 << 0;
    /// READ: the lock owner is valid. The kernel sets it in every read except those for its page cache.
    pub const READ_LOCKOWNER: u32 = 1 << 1;
    /// WRITE: dirty pages of the kernel's page cache. The handle is any open handle of the inode.
    pub const WRITE_CACHE: u32 = 1 << 0;
    /// WRITE: clear setuid and setgid.
    pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
    /// OPEN and CREATE: clear setuid and setgid when truncating.
    pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
    /// GETLK, SETLK, SETLKW: the lock is one of `flock`.
    pub const LK_FLOCK: u32 = 1 << 0;
    /// FSYNC: data only.
    pub const FSYNC_DATA: u32 = 1 << 0;
    /// IOCTL: on a directory.
    pub const IOCTL_DIR: u32 = 1 << 4;
    /// IOCTL: the caller is a 32-bit process.
    pub const IOCTL_COMPAT: u32 = 1 << 0;
    /// Request extension: supplementary groups.
    pub const EXT_GROUPS: u32 = 32;
    /// Notification: drop cached pages and attributes of an inode.
    pub const NOTIFY_INVAL_INODE: i32 = 2;
    /// Notification: drop a directory entry.
    pub const NOTIFY_INVAL_ENTRY: i32 = 3;
}
