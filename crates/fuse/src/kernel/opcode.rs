//! Operation codes of requests.

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// The operation of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Opcode { $($(#[$doc])* $name = $number,)* }
        impl Opcode {
            /// Every known code.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];
            /// The opcode with this number; `None` if this version does not know it.
            pub fn from_raw(raw: u32) -> Option<Opcode> {
                match raw { $($number => Some(Opcode::$name),)* _ => None }
            }
        }
    };
}

opcodes! {
    /// Find a name in a directory.
    Lookup = 1,
    /// Drop references; no reply.
    Forget = 2,
    /// Attributes.
    Getattr = 3,
    /// Change attributes.
    Setattr = 4,
    /// Target of a symbolic link.
    Readlink = 5,
    /// Make a symbolic link.
    Symlink = 6,
    /// Make a node.
    Mknod = 8,
    /// Make a directory.
    Mkdir = 9,
    /// Remove a name.
    Unlink = 10,
    /// Remove a directory.
    Rmdir = 11,
    /// Rename without flags.
    Rename = 12,
    /// Make a hard link.
    Link = 13,
    /// Open a file.
    Open = 14,
    /// Read.
    Read = 15,
    /// Write.
    Write = 16,
    /// Totals of the file system.
    Statfs = 17,
    /// Last close of a handle.
    Release = 18,
    /// Make a file stable.
    Fsync = 20,
    /// Set an extended attribute.
    Setxattr = 21,
    /// Value of an extended attribute.
    Getxattr = 22,
    /// Names of extended attributes.
    Listxattr = 23,
    /// Remove an extended attribute.
    Removexattr = 24,
    /// A descriptor was closed.
    Flush = 25,
    /// Negotiation.
    Init = 26,
    /// Open a directory.
    Opendir = 27,
    /// List a directory.
    Readdir = 28,
    /// Last close of a directory handle.
    Releasedir = 29,
    /// Make a directory stable.
    Fsyncdir = 30,
    /// Test a POSIX lock.
    Getlk = 31,
    /// Set a lock.
    Setlk = 32,
    /// Set a lock, waiting.
    Setlkw = 33,
    /// Check permissions.
    Access = 34,
    /// Create and open.
    Create = 35,
    /// The caller of another request got a signal.
    Interrupt = 36,
    /// Block of a device.
    Bmap = 37,
    /// The mount ends.
    Destroy = 38,
    /// Device control.
    Ioctl = 39,
    /// Readiness.
    Poll = 40,
    /// Answer to a retrieve notification.
    NotifyReply = 41,
    /// Several FORGETs; no reply.
    BatchForget = 42,
    /// Allocate, punch or zero.
    Fallocate = 43,
    /// List a directory with attributes.
    Readdirplus = 44,
    /// Rename with flags.
    Rename2 = 45,
    /// Next data or hole.
    Lseek = 46,
    /// Copy between files.
    CopyFileRange = 47,
    /// Map for DAX.
    Setupmapping = 48,
    /// Unmap for DAX.
    Removemapping = 49,
    /// Make the file system stable.
    Syncfs = 50,
    /// Open a file without a name.
    Tmpfile = 51,
    /// Attributes with creation time.
    Statx = 52,
    /// Copy between files, 64-bit result.
    CopyFileRange64 = 53,
}
