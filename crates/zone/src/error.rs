//! Errors of a zone: kind, place, sentence. Code matches only on the kind.

use amphi_types::Errno;
use std::fmt;

/// The kind of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneErrorKind {
    /// The storage has no superblock of this format.
    NotAZone,
    /// Both superblocks are empty: the making of the zone was interrupted. `Zone::format` may be repeated.
    Unfinished,
    /// A superblock of a version that this program does not know.
    Version,
    /// The zone belongs to another cluster.
    Cluster,
    /// The zone belongs to another target.
    Target,
    /// Bytes that were durable do not verify.
    Corrupt,
    /// The storage failed.
    Io,
    /// Another process has opened the zone.
    Busy,
    /// There is already something where a zone should be made.
    Exists,
    /// The zone to open does not exist.
    Missing,
    /// Sizes that make no zone.
    Params,
    /// No room in the metadata region.
    NoSpace,
}

/// The reason why a zone cannot be made, opened or checkpointed. Nothing was changed on the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneError {
    /// The kind of the error, which is the only part to match on.
    pub kind: ZoneErrorKind,
    /// The place: the path, and the structure with its block number.
    pub place: String,
    /// The fault at that place, for users.
    pub text: String,
}

impl ZoneError {
    /// Joins the parts.
    pub fn new(kind: ZoneErrorKind, place: impl Into<String>, text: impl Into<String>) -> ZoneError {
        ZoneError { kind, place: place.into(), text: text.into() }
    }

    /// Returns this error with `path` in front of the place.
    pub(crate) fn at(mut self, path: &str) -> ZoneError {
        if !self.place.starts_with(path) {
            self.place = format!("{path}: {}", self.place);
        }
        self
    }

    pub(crate) fn corrupt(place: impl Into<String>, text: impl Into<String>) -> ZoneError {
        ZoneError::new(ZoneErrorKind::Corrupt, place, text)
    }

    pub(crate) fn io(place: impl Into<String>, e: &std::io::Error) -> ZoneError {
        let kind = match e.kind() {
            std::io::ErrorKind::WouldBlock => ZoneErrorKind::Busy,
            std::io::ErrorKind::AlreadyExists => ZoneErrorKind::Exists,
            std::io::ErrorKind::NotFound => ZoneErrorKind::Missing,
            _ => ZoneErrorKind::Io,
        };
        let (place, text) = (place.into(), e.to_string());
        // Errors of the environment often contain the path already.
        let text = text.strip_prefix(place.as_str()).and_then(|t| t.strip_prefix(": ")).unwrap_or(&text).to_string();
        ZoneError::new(kind, place, text)
    }
}

impl fmt::Display for ZoneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

impl std::error::Error for ZoneError {}

impl From<ZoneError> for Errno {
    fn from(e: ZoneError) -> Errno {
        match e.kind {
            ZoneErrorKind::NoSpace => Errno::NoSpace,
            ZoneErrorKind::Busy => Errno::Busy,
            ZoneErrorKind::Exists => Errno::Exist,
            ZoneErrorKind::Missing => Errno::NoEnt,
            ZoneErrorKind::Params => Errno::Inval,
            _ => Errno::Io,
        }
    }
}
