//! Structures that the kernel is sent: replies and notifications.

use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire! {
    /// The attributes that stat shows.
    Attr, 88 {
        /// Inode number.
        ino: u64,
        /// Length in bytes.
        size: u64,
        /// Storage in units of 512 bytes.
        blocks: u64,
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
        /// Kind and permissions.
        mode: u32,
        /// Hard links.
        nlink: u32,
        /// The owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Device number.
        rdev: u32,
        /// Preferred request size in bytes.
        blksize: u32,
        /// This mount does not use it.
        flags: u32,
    }
}

wire! {
    /// Totals of the file system (reply to STATFS).
    Statfs, 80 {
        /// All blocks.
        blocks: u64,
        /// Number of free blocks.
        bfree: u64,
        /// Blocks free for users.
        bavail: u64,
        /// All inodes.
        files: u64,
        /// Number of free inodes.
        ffree: u64,
        /// Preferred request size in bytes.
        bsize: u32,
        /// Longest name in bytes.
        namelen: u32,
        /// Bytes of a block.
        frsize: u32,
        /// Zero.
        padding: u32,
        /// Zero.
        spare: [u32; 6],
    }
}

wire! {
    /// First bytes of every reply.
    OutHeader, 16 {
        /// Bytes of the reply with this header.
        len: u32,
        /// Zero, a negative error number or a notification code.
        error: i32,
        /// Request that is answered, 0 for a notification.
        unique: u64,
    }
}

wire! {
    /// Reply to INIT.
    InitOut, 64 {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
        /// Read-ahead in bytes.
        max_readahead: u32,
        /// Flags taken, low half.
        flags: u32,
        /// Background requests in flight.
        max_background: u16,
        /// Background requests that count as congestion.
        congestion_threshold: u16,
        /// Payload of the largest WRITE in bytes.
        max_write: u32,
        /// Granularity of time stamps in nanoseconds.
        time_gran: u32,
        /// Pages of the largest request.
        max_pages: u16,
        /// This mount does not use it.
        map_alignment: u16,
        /// Flags taken, high half.
        flags2: u32,
        /// This mount does not use it.
        max_stack_depth: u32,
        /// This mount does not use it.
        request_timeout: u16,
        /// Zero.
        unused16: [u16; 3],
        /// Zero.
        unused: [u32; 4],
    }
}

wire! {
    /// Reply to LOOKUP and to everything that makes an inode.
    EntryOut, 128 {
        /// Inode, 0 for a negative entry.
        nodeid: u64,
        /// Generation of the inode number.
        generation: u64,
        /// Entry timeout, seconds.
        entry_valid: u64,
        /// Attribute timeout, seconds.
        attr_valid: u64,
        /// Entry timeout, nanoseconds beside the seconds.
        entry_valid_nsec: u32,
        /// Attribute timeout, nanoseconds beside the seconds.
        attr_valid_nsec: u32,
        /// Attributes.
        attr: Attr,
    }
}

wire! {
    /// Reply to GETATTR and SETATTR.
    AttrOut, 104 {
        /// Attribute timeout, seconds.
        attr_valid: u64,
        /// Attribute timeout, nanoseconds beside the seconds.
        attr_valid_nsec: u32,
        /// Zero.
        dummy: u32,
        /// Attributes.
        attr: Attr,
    }
}

wire! {
    /// A time stamp of STATX.
    SxTime, 16 {
        /// Seconds.
        sec: i64,
        /// Nanoseconds.
        nsec: u32,
        /// Zero.
        reserved: i32,
    }
}

wire! {
    /// The attributes that statx shows.
    Statx, 256 {
        /// Which members are valid.
        mask: u32,
        /// Preferred request size in bytes.
        blksize: u32,
        /// Attribute bits.
        attributes: u64,
        /// Hard links.
        nlink: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Kind and permissions.
        mode: u16,
        /// Zero.
        spare0: u16,
        /// Inode number.
        ino: u64,
        /// Length in bytes.
        size: u64,
        /// Storage in units of 512 bytes.
        blocks: u64,
        /// Attribute bits that are supported.
        attributes_mask: u64,
        /// Last access.
        atime: SxTime,
        /// Creation.
        btime: SxTime,
        /// Last change.
        ctime: SxTime,
        /// Last modification.
        mtime: SxTime,
        /// Device number of a device node, major.
        rdev_major: u32,
        /// Device number of a device node, minor.
        rdev_minor: u32,
        /// This mount does not use it.
        dev_major: u32,
        /// This mount does not use it.
        dev_minor: u32,
        /// Zero.
        spare2: [u64; 14],
    }
}

wire! {
    /// Reply to STATX.
    StatxOut, 288 {
        /// Attribute timeout, seconds.
        attr_valid: u64,
        /// Attribute timeout, nanoseconds beside the seconds.
        attr_valid_nsec: u32,
        /// Zero.
        flags: u32,
        /// Zero.
        spare: [u64; 2],
        /// Attributes.
        stat: Statx,
    }
}

wire! {
    /// Reply to OPEN and OPENDIR.
    OpenOut, 16 {
        /// Handle.
        fh: u64,
        /// How the kernel treats the open file.
        open_flags: u32,
        /// This mount does not use it.
        backing_id: i32,
    }
}

wire! {
    /// Reply to WRITE and COPY_FILE_RANGE.
    WriteOut, 8 {
        /// Bytes written.
        size: u32,
        /// Zero.
        padding: u32,
    }
}

wire! {
    /// Reply to GETXATTR and LISTXATTR without room.
    GetxattrOut, 8 {
        /// Bytes needed.
        size: u32,
        /// Zero.
        padding: u32,
    }
}

wire! {
    /// Reply to IOCTL; output follows.
    IoctlOut, 16 {
        /// Result of the call.
        result: i32,
        /// Zero.
        flags: u32,
        /// Zero.
        in_iovs: u32,
        /// Zero.
        out_iovs: u32,
    }
}

wire! {
    /// Reply to POLL.
    PollOut, 8 {
        /// Events that are ready.
        revents: u32,
        /// Zero.
        padding: u32,
    }
}

wire! {
    /// Reply to LSEEK.
    LseekOut, 8 {
        /// The offset that was found.
        offset: u64,
    }
}

wire! {
    /// Reply to COPY_FILE_RANGE_64.
    CopyFileRangeOut, 8 {
        /// Bytes copied.
        bytes_copied: u64,
    }
}

wire! {
    /// One directory entry in a reply; the name follows, then zeros to a multiple of 8.
    Dirent, 24 {
        /// Inode number.
        ino: u64,
        /// Cookie of the next entry.
        off: u64,
        /// Bytes of the name.
        namelen: u32,
        /// D_type.
        kind: u32,
    }
}

wire! {
    /// Notification: drop pages and attributes.
    NotifyInvalInode, 24 {
        /// Inode.
        ino: u64,
        /// First byte; negative if only attributes are concerned.
        off: i64,
        /// Number of bytes, 0 for all.
        len: i64,
    }
}

wire! {
    /// Notification: drop a name. The name follows, with a zero byte.
    NotifyInvalEntry, 16 {
        /// Directory.
        parent: u64,
        /// Bytes of the name.
        namelen: u32,
        /// Zero.
        flags: u32,
    }
}

wire! {
    /// Reply to GETLK.
    LkOut, 24 {
        /// First byte.
        start: u64,
        /// Last byte.
        end: u64,
        /// `F_RDLCK`, `F_WRLCK`, or `F_UNLCK` if no lock conflicts.
        kind: u32,
        /// Process.
        pid: u32,
    }
}
