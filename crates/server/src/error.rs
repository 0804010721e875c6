//! The reasons why a server does not start or a folder cannot be used: one clear line that names the place and the
//! remedy.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The kind of the error; code may depend on this, and not on the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerErrorKind {
    /// Another process serves this folder.
    InUse,
    /// The folder or one of its files cannot be reached.
    Unreachable,
    /// Zones are missing, too many, of another cluster, or of another version.
    Mismatch,
    /// A zone does not verify.
    Corrupt,
    /// The configuration makes no sense.
    Config,
    /// The server cannot listen on an address.
    Listen,
    /// There is not enough room for the zones.
    NoSpace,
    /// A disk failed while the server was starting or stopping.
    Disk,
    /// The cluster does not admit the server.
    Refused,
}

/// An error with its place and a remedy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerError {
    /// The kind of the error.
    pub kind: ServerErrorKind,
    /// The whole line for people.
    pub line: String,
}

impl ServerError {
    /// An error of `kind` with its line.
    pub fn new(kind: ServerErrorKind, line: impl Into<String>) -> ServerError {
        ServerError { kind, line: line.into() }
    }

    /// An error of the environment at `place`, with the matching kind.
    pub fn io(place: &str, e: &std::io::Error) -> ServerError {
        use std::io::ErrorKind;
        match e.kind() {
            ErrorKind::WouldBlock => ServerError::new(
                ServerErrorKind::InUse,
                format!("{place}: another server uses this folder; stop it first, or give this one its own folder"),
            ),
            ErrorKind::StorageFull => ServerError::new(
                ServerErrorKind::NoSpace,
                format!("{place}: no space left; free some, or ask for smaller zones"),
            ),
            _ => {
                let text = e.to_string();
                // Errors of the environment often name the path themselves.
                let text = text.strip_prefix(place).and_then(|t| t.strip_prefix(": ")).unwrap_or(&text);
                ServerError::new(
                    ServerErrorKind::Unreachable,
                    format!("{place}: {text}; check the path and its rights"),
                )
            }
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for ServerError {}
