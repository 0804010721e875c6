//! The reasons for which a stage ended without its target.
//!
//! Owns the error of the crate and how paths are shown to people. Does not own the errors of single entries of a tree:
//! those are notes of the report (`report`).

use rustix::io::Errno;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether anything was changed before the stage ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request or its surroundings are wrong, and nothing was changed.
    Refused,
    /// A step failed; durable parts are kept for the next try.
    Failed,
}

/// The reason why a stage ended: a sentence with the event, the path, and advice.
#[derive(Clone, Debug)]
pub struct Error {
    /// Whether anything was changed.
    pub kind: ErrorKind,
    /// The sentence.
    pub text: String,
}

impl Error {
    /// The request or its surroundings are wrong.
    pub(crate) fn refused(text: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Refused, text: text.into() }
    }

    /// Something failed while working.
    pub(crate) fn failed(text: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Failed, text: text.into() }
    }

    /// A call on the side of the target failed.
    pub(crate) fn target(what: &str, path: &Path, errno: Errno) -> Error {
        let path = show(path);
        match errno {
            Errno::NOSPC | Errno::DQUOT => Error::failed(format!(
                "{path}: the target is full; what was copied is kept: make room and give the same command again"
            )),
            _ => Error::failed(format!("{path}: cannot {what}: {}", reason(errno))),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

/// The words of an errno.
pub(crate) fn reason(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

/// A path as people and JSON can have it: bytes that are no UTF-8 and control characters as `\xNN`.
pub fn show(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                text.push_str(&format!("\\x{:02x}", u32::from(c)));
            } else {
                text.push(c);
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}
