//! Structures that the kernel sends.

use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire! {
    /// First bytes of every request.
    InHeader, 40 {
        /// Bytes of the request with this header.
        len: u32,
        /// Operation code.
        opcode: u32,
        /// Id of the request.
        unique: u64,
        /// Inode that the request is about.
        nodeid: u64,
        /// Effective user of the caller.
        uid: u32,
        /// Effective group of the caller.
        gid: u32,
        /// Thread id of the caller, 0 for page write-back.
        pid: u32,
        /// Length of extensions in units of 8 bytes.
        total_extlen: u16,
        /// Zero.
        padding: u16,
    }
}

wire! {
    /// Arguments of INIT.
    InitIn, 64 {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
        /// Read-ahead in bytes.
        max_readahead: u32,
        /// Flags offered, low half.
        flags: u32,
        /// Flags offered, high half.
        flags2: u32,
        /// Zero.
        unused: [u32; 11],
    }
}

wire! {
    /// Arguments of FORGET.
    ForgetIn, 8 {
        /// References dropped.
        nlookup: u64,
    }
}

wire! {
    /// One element of a BATCH_FORGET.
    ForgetOne, 16 {
        /// Inode.
        nodeid: u64,
        /// References dropped.
        nlookup: u64,
    }
}

wire! {
    /// Arguments of BATCH_FORGET; elements follow.
    BatchForgetIn, 8 {
        /// Number of elements.
        count: u32,
        /// Zero.
        dummy: u32,
    }
}

wire! {
    /// Arguments of GETATTR.
    GetattrIn, 16 {
        /// Whether the handle is valid.
        getattr_flags: u32,
        /// Zero.
        dummy: u32,
        /// Handle.
        fh: u64,
    }
}

wire! {
    /// Arguments of STATX.
    StatxIn, 24 {
        /// Whether the handle is valid.
        getattr_flags: u32,
        /// Zero.
        reserved: u32,
        /// Handle.
        fh: u64,
        /// `AT_STATX_*` bits.
        sx_flags: u32,
        /// Wanted members.
        sx_mask: u32,
    }
}

wire! {
    /// Arguments of MKNOD; the name follows.
    MknodIn, 16 {
        /// Kind and permissions.
        mode: u32,
        /// Device number.
        rdev: u32,
        /// Umask of the caller.
        umask: u32,
        /// Zero.
        padding: u32,
    }
}

wire! {
    /// Arguments of MKDIR; the name follows.
    MkdirIn, 8 {
        /// Permissions.
        mode: u32,
        /// Umask of the caller.
        umask: u32,
    }
}

wire! {
    /// Arguments of RENAME; two names follow.
    RenameIn, 8 {
        /// The new parent.
        newdir: u64,
    }
}

wire! {
    /// Arguments of RENAME2; two names follow.
    Rename2In, 16 {
        /// New parent.
        newdir: u64,
        /// `RENAME_*` bits.
        flags: u32,
        /// Zero.
        padding: u32,
    }
}

wire! {
    /// Arguments of LINK; the name follows.
    LinkIn, 8 {
        /// Inode that gets another name.
        oldnodeid: u64,
    }
}

wire! {
    /// Arguments of SETATTR.
    SetattrIn, 88 {
        /// Which members of this structure are valid.
        valid: u32,
        /// Zero.
        padding: u32,
        /// Handle.
        fh: u64,
        /// Length in bytes.
        size: u64,
        /// Owner of locks.
        lock_owner: u64,
        /// Last access, seconds.
        atime: u64,
        /// Last modification, seconds.
        mtime: u64,
        /// Last change, seconds.
        ctime: u64,
        /// Last access, nanoseconds.
        atimensec: u32,
        /// Last modification, nanoseconds.
        mtimensec: u32,
        /// Last change, nanoseconds.
        ctimensec: u32,
        /// Permissions.
        mode: u32,
        /// Zero.
        unused4: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Zero.
        unused5: u32,
    }
}

wire! {
    /// Arguments of OPEN and OPENDIR.
    OpenIn, 8 {
        /// `O_*` bits of the caller.
        flags: u32,
        /// Whether to clear setuid and setgid.
        open_flags: u32,
    }
}

wire! {
    /// Arguments of CREATE and TMPFILE; the name follows.
    CreateIn, 16 {
        /// `O_*` bits of the caller.
        flags: u32,
        /// Permissions.
        mode: u32,
        /// Umask of the caller.
        umask: u32,
        /// Whether to clear setuid and setgid.
        open_flags: u32,
    }
}

wire! {
    /// Arguments of RELEASE and RELEASEDIR.
    ReleaseIn, 24 {
        /// Handle.
        fh: u64,
        /// `O_*` bits of the open.
        flags: u32,
        /// Whether to flush.
        release_flags: u32,
        /// Owner of locks.
        lock_owner: u64,
    }
}

wire! {
    /// Arguments of FLUSH.
    FlushIn, 24 {
        /// Handle.
        fh: u64,
        /// Zero.
        unused: u32,
        /// Zero.
        padding: u32,
        /// Owner of locks.
        lock_owner: u64,
    }
}

wire! {
    /// Arguments of READ, READDIR and READDIRPLUS.
    ReadIn, 40 {
        /// Handle.
        fh: u64,
        /// Offset in the file, or cookie.
        offset: u64,
        /// Wanted bytes.
        size: u32,
        /// Whether the lock owner is valid.
        read_flags: u32,
        /// Owner of locks.
        lock_owner: u64,
        /// `O_*` bits of the descriptor.
        flags: u32,
        /// Zero.
        padding: u32,
    }
}

wire! {
    /// Arguments of WRITE; the payload follows.
    WriteIn, 40 {
        /// Handle.
        fh: u64,
        /// Offset in the file.
        offset: u64,
        /// Bytes of the payload.
        size: u32,
        /// Origin and kill bits.
        write_flags: u32,
        /// Owner of locks.
        lock_owner: u64,
        /// `O_*` bits of the descriptor.
        flags: u32,
        /// Zero.
        padding: u32,
    }
}

wire! {
    /// Arguments of FSYNC and FSYNCDIR.
    FsyncIn, 16 {
        /// Handle.
        fh: u64,
        /// Whether data alone counts.
        fsync_flags: u32,
        /// Zero.
        padding: u32,
    }
}

wire! {
    /// Arguments of SETXATTR (short form); name and value follow.
    SetxattrIn, 8 {
        /// Bytes of the value.
        size: u32,
        /// `XATTR_*` bits.
        flags: u32,
    }
}

wire! {
    /// Arguments of GETXATTR (the name follows) and LISTXATTR.
    GetxattrIn, 8 {
        /// Size of the buffer in bytes, 0 requests the size.
        size: u32,
        /// Zero.
        padding: u32,
    }
}

wire! {
    /// Arguments of ACCESS.
    AccessIn, 8 {
        /// R_OK, W_OK, X_OK bits.
        mask: u32,
        /// Zero.
        padding: u32,
    }
}

wire! {
    /// Arguments of INTERRUPT.
    InterruptIn, 8 {
        /// Request whose caller got a signal.
        unique: u64,
    }
}

wire! {
    /// Arguments of IOCTL; input follows.
    IoctlIn, 32 {
        /// Handle.
        fh: u64,
        /// Kind of the caller and of the inode.
        flags: u32,
        /// Command.
        cmd: u32,
        /// Address or value.
        arg: u64,
        /// Bytes of input.
        in_size: u32,
        /// Room for output.
        out_size: u32,
    }
}

wire! {
    /// Arguments of POLL.
    PollIn, 24 {
        /// Handle.
        fh: u64,
        /// Kernel's handle for a wake-up.
        kh: u64,
        /// Whether a wake-up is wanted.
        flags: u32,
        /// Wanted events.
        events: u32,
    }
}

wire! {
    /// Arguments of FALLOCATE.
    FallocateIn, 32 {
        /// Handle.
        fh: u64,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// `FALLOC_FL_*` bits.
        mode: u32,
        /// Zero.
        padding: u32,
    }
}

wire! {
    /// Arguments of LSEEK.
    LseekIn, 24 {
        /// Handle.
        fh: u64,
        /// Start of the search.
        offset: u64,
        /// SEEK_DATA or SEEK_HOLE.
        whence: u32,
        /// Zero.
        padding: u32,
    }
}

wire! {
    /// Arguments of COPY_FILE_RANGE.
    CopyFileRangeIn, 56 {
        /// The handle to read from.
        fh_in: u64,
        /// First byte to read.
        off_in: u64,
        /// The inode to write to.
        nodeid_out: u64,
        /// The handle to write to.
        fh_out: u64,
        /// First byte to write.
        off_out: u64,
        /// Number of bytes.
        len: u64,
        /// Zero.
        flags: u64,
    }
}

wire! {
    /// Arguments of SYNCFS.
    SyncfsIn, 8 {
        /// Zero.
        padding: u64,
    }
}

wire! {
    /// Head of a request extension.
    ExtHeader, 8 {
        /// Bytes with this head.
        size: u32,
        /// Kind of the extension.
        kind: u32,
    }
}

wire! {
    /// A lock on a file.
    FileLock, 24 {
        /// First byte.
        start: u64,
        /// Last byte.
        end: u64,
        /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
        kind: u32,
        /// Process.
        pid: u32,
    }
}

wire! {
    /// Arguments of GETLK, SETLK and SETLKW.
    LkIn, 48 {
        /// Handle.
        fh: u64,
        /// Owner of the lock.
        owner: u64,
        /// The lock.
        lk: FileLock,
        /// Flags.
        lk_flags: u32,
        /// Zero.
        padding: u32,
    }
}
