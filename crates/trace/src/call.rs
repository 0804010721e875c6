//! One call of a program, as the front end of a mount served it.

/// Bits of [`Call::flags`].
pub mod flags {
    /// The kernel filled or wrote back pages of its own, so this is no call of a program.
    pub const OF_PAGES: u32 = 1;
    /// After this open the kernel serves reads from its page cache, and the trace does not contain these reads.
    pub const KERNEL_SERVES: u32 = 2;
    /// An open or create with `O_TRUNC`, or a change of attributes that names a size.
    pub const SETS_SIZE: u32 = 4;
    /// `O_DIRECT`.
    pub const DIRECT: u32 = 8;
    /// An open for reading.
    pub const READS: u32 = 16;
    /// An open for writing.
    pub const WRITES: u32 = 32;
    /// `O_APPEND`.
    pub const APPENDS: u32 = 64;
    /// `O_SYNC` or `O_DSYNC`.
    pub const SYNC: u32 = 128;
    /// `O_EXCL`.
    pub const EXCLUSIVE: u32 = 256;
    /// The inode that was found or made is a directory.
    pub const DIRECTORY: u32 = 512;
    /// The inode that was found or made is a symbolic link or another special file.
    pub const SPECIAL: u32 = 1024;
    /// The data alone was synced.
    pub const DATA_ONLY: u32 = 2048;
    /// A rename that exchanges.
    pub const EXCHANGE: u32 = 4096;
}

macro_rules! ops {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// The operation of a call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Op { $(#[doc = $text] $name = $number,)* }
        impl Op {
            /// All, in the order of their numbers.
            pub const ALL: &'static [Op] = &[$(Op::$name,)*];
            /// The name that is shown.
            pub fn name(self) -> &'static str { match self { $(Op::$name => $text,)* } }
            /// The operation that has this number in a file.
            pub fn of(number: u8) -> Option<Op> { match number { $($number => Some(Op::$name),)* _ => None } }
        }
    };
}

ops! {
    Lookup = 1, "lookup";
    Stat = 2, "stat";
    SetAttr = 3, "setattr";
    Open = 4, "open";
    Create = 5, "create";
    Read = 6, "read";
    Write = 7, "write";
    Close = 8, "close";
    Release = 9, "release";
    Fsync = 10, "fsync";
    Mkdir = 11, "mkdir";
    Rmdir = 12, "rmdir";
    Unlink = 13, "unlink";
    Rename = 14, "rename";
    Link = 15, "link";
    Symlink = 16, "symlink";
    Readlink = 17, "readlink";
    Mknod = 18, "mknod";
    OpenDir = 19, "opendir";
    ReadDir = 20, "readdir";
    ReleaseDir = 21, "releasedir";
    FsyncDir = 22, "fsyncdir";
    Fallocate = 23, "fallocate";
    Seek = 24, "seek";
    Copy = 25, "copy";
    GetXattr = 26, "getxattr";
    SetXattr = 27, "setxattr";
    Lock = 28, "lock";
    StatFs = 29, "statfs";
    Control = 30, "control";
    Other = 31, "other";
}

impl Op {
    /// Returns whether it moves bytes of a file.
    pub fn is_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }
}

/// How a call went inside the mount. The times that it waited are nanoseconds, and do not overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// The reason why it went through the cache or past it: a number among the names of `Record::Reasons`.
    pub reason: Option<u8>,
    /// A lock of the cluster.
    pub lock_ns: u64,
    /// Bytes on their way into the cache.
    pub fill_ns: u64,
    /// Any other answer of a server.
    pub server_ns: u64,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The operation.
    pub op: Op,
    /// When the mount began with it, nanoseconds of the clock that the header names.
    pub start_ns: u64,
    /// The time until the call was answered, nanoseconds.
    pub took_ns: u64,
    /// Thread of the caller; 0 if it is the kernel's own, or unknown.
    pub tid: u32,
    /// The inode, or the directory of `name`.
    pub ino: u64,
    /// The open file; 0 means none.
    pub handle: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes requested; the new size if the call changes the size.
    pub len: u64,
    /// Bytes moved or 0, or minus the error number.
    pub result: i64,
    /// Bits of [`flags`].
    pub flags: u32,
    /// The way in which the mount served the call.
    pub course: Course,
    /// The inode that was found or made, the second directory, or the source of a copy.
    pub other: u64,
    /// Size of the file as it was known when the file was found or opened; for a copy, the first byte of its source.
    pub size: Option<u64>,
    /// A name in `ino`.
    pub name: Box<[u8]>,
    /// The second name.
    pub new_name: Box<[u8]>,
}

impl Call {
    /// A call of which only the operation is known yet.
    pub fn new(op: Op) -> Call {
        Call {
            op,
            start_ns: 0,
            took_ns: 0,
            tid: 0,
            ino: 0,
            handle: 0,
            offset: 0,
            len: 0,
            result: 0,
            flags: 0,
            course: Course::default(),
            other: 0,
            size: None,
            name: Box::default(),
            new_name: Box::default(),
        }
    }

    /// Returns whether all bits are set.
    pub fn has(&self, bits: u32) -> bool {
        self.flags & bits == bits
    }

    /// When it was answered.
    pub fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.took_ns)
    }

    /// Returns whether it succeeded.
    pub fn is_done(&self) -> bool {
        self.result >= 0
    }

    /// The bytes that the call transferred, as a half-open range; empty for calls that transfer none. For a copy, these
    /// are the bytes that it wrote.
    pub fn moved(&self) -> (u64, u64) {
        (self.offset, self.offset.saturating_add(self.bytes()))
    }

    /// The bytes that a copy read from its source, as a half-open range; empty for other calls.
    pub fn copied(&self) -> (u64, u64) {
        let from = self.size.filter(|_| self.op == Op::Copy);
        from.map_or((0, 0), |from| (from, from.saturating_add(self.bytes())))
    }

    fn bytes(&self) -> u64 {
        let moves = self.op.is_data() || self.op == Op::Copy;
        if moves { u64::try_from(self.result).unwrap_or(0) } else { 0 }
    }
}

/// A thread that made calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The thread.
    pub tid: u32,
    /// The process that made the call.
    pub pid: u32,
    /// The name of its program.
    pub program: String,
}
