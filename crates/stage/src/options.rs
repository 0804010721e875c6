//! The subject of a stage, and its options.
//!
//! Owns the options of a stage with their defaults.

use std::path::PathBuf;

/// The handling of an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// The stage is refused.
    Refuse,
    /// At the end the copy replaces the target, and the old one is removed.
    Replace,
    /// The target is updated; entries that are missing in the source stay.
    Update,
    /// The target is updated, and entries that the source does not have are removed.
    UpdateAndDelete,
}

/// The handling of owners, attributes or special files that cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The stage fails, with its copy ready for another try.
    All,
    /// Attributes that cannot be kept are named, and the stage continues.
    Possible,
}

/// Whether the target is read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Every piece is compared.
    Yes,
    /// None is.
    No,
}

/// Whether remains of unfinished stages beside the target are removed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// Leftovers of earlier stages are reported and stay; those of this stage are used.
    Stay,
    /// Leftovers of earlier stages are removed, also those of this stage.
    Remove,
}

/// Largest part of a file that is copied and compared at a time.
pub const PIECE_BYTES: u64 = 64 << 20;
/// Bytes that a crash costs at most.
pub const SYNC_BYTES: u64 = 256 << 20;

/// The subject of a stage, and its options.
#[derive(Clone, Debug)]
pub struct Options {
    /// A file or a directory; a symbolic link here is followed, below it none is.
    pub source: PathBuf,
    /// The name of the copy; its folder has to exist.
    pub target: PathBuf,
    /// Threads that copy.
    pub threads: usize,
    /// The handling of an existing target.
    pub existing: Existing,
    /// The handling of attributes that cannot be kept.
    pub keep: Keep,
    /// Whether the target is read back.
    pub verify: Verify,
    /// The handling of remains of unfinished stages.
    pub leftovers: Leftovers,
    /// Bytes that are copied again after a crash at most.
    pub sync_bytes: u64,
    /// Bytes of a piece at most; smaller where many threads share `sync_bytes`.
    pub piece_bytes: u64,
}

impl Options {
    /// The default options.
    pub fn new(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Options {
        Options {
            source: source.into(),
            target: target.into(),
            threads: threads(),
            existing: Existing::Refuse,
            keep: Keep::All,
            verify: Verify::Yes,
            leftovers: Leftovers::Stay,
            sync_bytes: SYNC_BYTES,
            piece_bytes: PIECE_BYTES,
        }
    }
}

/// Most threads that are used unless more are requested.
const THREADS_MAX: usize = 16;

/// Threads of a stage by default: some wait for the source while others wait for the target.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(4, |n| (2 * n.get()).clamp(4, THREADS_MAX))
}
