//! `DirectStreams`: open files whose next direct reads are requested ahead.
//!
//! Owns: which files these are, and how many bytes are requested. Does not own: the requests (`prefetch::large_reads`),
//! the stream of one open file (`inode::direct_stream`).

use crate::inode::OpenFile;
use parking_lot::Mutex;
use std::sync::Weak;
use std::sync::atomic::AtomicU64;

/// Open files for which bytes are kept ahead.
#[derive(Default)]
pub(crate) struct DirectStreams {
    pub(crate) open: Mutex<Vec<Weak<OpenFile>>>,
    /// Bytes requested ahead, over all files.
    pub(crate) bytes: AtomicU64,
    /// Bytes of reads that wait for the targets.
    pub(crate) waited_for: AtomicU64,
}
