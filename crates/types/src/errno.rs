//! The one errno table: every error a caller of the file system can see.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Result with the error kinds of this table.
pub type Result<T> = std::result::Result<T, Errno>;

macro_rules! errnos {
    ($($name:ident = $raw:literal, $posix:literal, $text:literal;)*) => {
        /// A POSIX error kind with Linux' number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Errno { $(#[doc = $text] $name,)* }
        impl Errno {
            /// All error numbers of the table.
            pub const ALL: &'static [Errno] = &[$(Errno::$name,)*];
            /// Linux' number, positive.
            pub fn raw(self) -> i32 { match self { $(Errno::$name => $raw,)* } }
            /// The kind of a Linux number; a number not in the table becomes `Io`.
            pub fn from_raw(raw: i32) -> Errno { match raw { $($raw => Errno::$name,)* _ => Errno::Io } }
            /// POSIX name, such as `ENOENT`.
            pub fn posix_name(self) -> &'static str { match self { $(Errno::$name => $posix,)* } }
            /// Returns whether there is no space, for anybody or for the owner of the file.
            pub fn is_no_room(self) -> bool { matches!(self, Errno::NoSpace | Errno::Quota) }
            /// Returns one sentence that describes the error to people.
            pub fn text(self) -> &'static str { match self { $(Errno::$name => $text,)* } }
        }
    };
}

errnos! {
    Perm = 1, "EPERM", "operation not permitted";
    NoEnt = 2, "ENOENT", "no such file or directory";
    Intr = 4, "EINTR", "interrupted by a signal";
    Io = 5, "EIO", "input/output error";
    NxIo = 6, "ENXIO", "no data or hole beyond this offset";
    TooBig = 7, "E2BIG", "argument list too long";
    BadFd = 9, "EBADF", "bad file descriptor";
    Again = 11, "EAGAIN", "try again";
    NoMem = 12, "ENOMEM", "out of memory";
    Access = 13, "EACCES", "permission denied";
    Busy = 16, "EBUSY", "device or resource busy";
    Exist = 17, "EEXIST", "file exists";
    CrossDevice = 18, "EXDEV", "cross-device link";
    NoDev = 19, "ENODEV", "no such device";
    NotDir = 20, "ENOTDIR", "not a directory";
    IsDir = 21, "EISDIR", "is a directory";
    Inval = 22, "EINVAL", "invalid argument";
    NoTty = 25, "ENOTTY", "inappropriate ioctl";
    FileTooBig = 27, "EFBIG", "file too large";
    NoSpace = 28, "ENOSPC", "no space left on device";
    ReadOnly = 30, "EROFS", "read-only file system";
    TooManyLinks = 31, "EMLINK", "too many links";
    Range = 34, "ERANGE", "result too large for the buffer";
    NameTooLong = 36, "ENAMETOOLONG", "file name too long";
    NoSys = 38, "ENOSYS", "function not implemented";
    NotEmpty = 39, "ENOTEMPTY", "directory not empty";
    Loop = 40, "ELOOP", "too many symbolic links";
    NoData = 61, "ENODATA", "no such attribute";
    Proto = 71, "EPROTO", "protocol error";
    Overflow = 75, "EOVERFLOW", "value too large";
    NotSupported = 95, "EOPNOTSUPP", "operation not supported";
    NotConnected = 107, "ENOTCONN", "not connected";
    TimedOut = 110, "ETIMEDOUT", "timed out";
    Stale = 116, "ESTALE", "stale file handle";
    Quota = 122, "EDQUOT", "quota exceeded";
    Canceled = 125, "ECANCELED", "operation cancelled";
    // Logged by place in this table: new ones are added at the end.
    Deadlk = 35, "EDEADLK", "resource deadlock avoided";
    NoLck = 37, "ENOLCK", "no locks available";
    Remote = 66, "EREMOTE", "the names of this directory lie in its shards";
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), self.posix_name())
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    fn from(e: std::io::Error) -> Errno {
        e.raw_os_error().map_or(Errno::Io, Errno::from_raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the table is a bijection. Method: every entry there and back.
    #[test]
    fn raw_numbers_round_trip() {
        for &e in Errno::ALL {
            assert_eq!(Errno::from_raw(e.raw()), e);
        }
        assert_eq!(Errno::from_raw(4242), Errno::Io);
    }
}
