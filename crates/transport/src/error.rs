//! Errors: why a call or a listener ended.
//!
//! Owns: `LinkError` (of calls) and `ServeError` (of listeners). Does not own: errors of single connections, which are
//! log lines, because no code above this crate acts on them.

use amphi_types::Errno;
use std::fmt;

/// The reason why a call has no answer. Whether the server executed it is unknown, except for `Overloaded` and
/// `TooLarge`, which were not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// The link was closed on this side, or the in-process server is gone.
    Closed,
    /// No server could be reached for longer than `Timeouts::give_up`.
    Unreachable,
    /// The call's own deadline passed.
    Deadline,
    /// The server restarted, and the client could not present its state again.
    Lost(Errno),
    /// More than `WAITING_MAX` calls wait for a slot.
    Overloaded,
    /// The request does not fit `limits::BODY_MAX` or `limits::PAYLOAD_MAX`.
    TooLarge,
}

impl LinkError {
    /// The error that a caller of the file system gets.
    pub fn errno(self) -> Errno {
        match self {
            LinkError::Closed => Errno::NotConnected,
            LinkError::Unreachable => Errno::Io,
            LinkError::Deadline => Errno::TimedOut,
            LinkError::Lost(e) => e,
            LinkError::Overloaded => Errno::Again,
            LinkError::TooLarge => Errno::TooBig,
        }
    }
}

impl From<LinkError> for Errno {
    fn from(e: LinkError) -> Errno {
        e.errno()
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Closed => f.write_str("the connection was closed"),
            LinkError::Unreachable => f.write_str("the server cannot be reached"),
            LinkError::Deadline => f.write_str("the request's deadline passed"),
            LinkError::Lost(e) => write!(f, "state lost with the restart of the server: {e}"),
            LinkError::Overloaded => f.write_str("too many requests wait for the server"),
            LinkError::TooLarge => f.write_str("the request is larger than a message may be"),
        }
    }
}

impl std::error::Error for LinkError {}

/// The reason why a listener is not served.
#[derive(Debug)]
pub enum ServeError {
    /// The kernel does not report who connects to the address, and there is no cluster key.
    KeyNeeded {
        /// The address.
        addr: String,
    },
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::KeyNeeded { addr } => {
                write!(f, "{addr} can be reached by others, so it needs a cluster key: --key FILE")
            }
        }
    }
}

impl std::error::Error for ServeError {}
