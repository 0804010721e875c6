//! The errors of the cache, as values. Owns the kinds and their errno values for the C interface.

use std::fmt;

/// A failure of a call on a cached file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A system call failed.
    Os {
        /// The operation that failed, for the message.
        doing: &'static str,
        /// The errno value.
        errno: i32,
    },
    /// A rank of the job ended while the file was open; locks that it held can never be released.
    RankEnded(u32),
    /// The call does not fit how the file was opened.
    NotOpenFor(&'static str),
    /// The arguments cannot be served.
    Refused(&'static str),
    /// The table of page metadata has no room for further pages.
    TableFull,
}

impl Error {
    /// The value for callers that know errno values only.
    pub fn errno(self) -> i32 {
        match self {
            Error::Os { errno, .. } => errno,
            Error::RankEnded(_) => libc::EOWNERDEAD,
            Error::NotOpenFor(_) => libc::EBADF,
            Error::Refused(_) => libc::EINVAL,
            Error::TableFull => libc::EFBIG,
        }
    }

    /// The failure of the system call that has just returned -1.
    pub fn last_os(doing: &'static str) -> Error {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        Error::Os { doing, errno }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Os { doing, errno } => write!(f, "{doing}: {}", std::io::Error::from_raw_os_error(*errno)),
            Error::RankEnded(rank) => write!(f, "rank {rank} of the job ended while it had the cached file open"),
            Error::NotOpenFor(what) => write!(f, "the file is not open for {what}"),
            Error::Refused(why) => f.write_str(why),
            Error::TableFull => f.write_str("the table of cache pages is full; a larger cache_page_size helps"),
        }
    }
}

impl std::error::Error for Error {}

/// The result of a call on a cached file.
pub type Outcome<T = ()> = Result<T, Error>;
