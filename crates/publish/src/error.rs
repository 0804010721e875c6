//! The reason why a publication failed: a sentence with the event, the path, and advice.

use rustix::io::Errno;
use std::fmt;
use std::path::Path;

/// Whether anything was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request or its surroundings are wrong, and nothing was changed.
    Refused,
    /// Something failed while working; the same command again continues.
    Failed,
}

/// The reason why a tree was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Whether anything was changed.
    pub kind: ErrorKind,
    /// The sentence.
    pub text: String,
}

/// Outcome of a step.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn refused(text: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Refused, text: text.into() }
    }

    pub(crate) fn failed(text: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Failed, text: text.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

/// A path as people read it, on one line.
pub(crate) fn show(path: &Path) -> String {
    path.display().to_string().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Adds what was being done, to which path.
pub(crate) trait During<T> {
    /// `what` is a verb such as `create`.
    fn during(self, what: &str, path: &Path) -> Result<T>;
}

impl<T> During<T> for std::io::Result<T> {
    fn during(self, what: &str, path: &Path) -> Result<T> {
        self.map_err(|e| Error::failed(format!("{}: cannot {what}: {e}", show(path))))
    }
}

impl<T> During<T> for std::result::Result<T, Errno> {
    fn during(self, what: &str, path: &Path) -> Result<T> {
        self.map_err(std::io::Error::from).during(what, path)
    }
}
