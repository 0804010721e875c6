//! `DirectStreams`: open files whose next direct reads are asked for ahead.
//!
//! Owns: which these are, and how much is asked for. Does not own: asking (`prefetch::large_reads`), the stream of one
//! open file (`inode::direct_stream`).

use crate::inode::OpenFile;
use parking_lot::Mutex;
use std::sync::Weak;
use std::sync::atomic::AtomicU64;

/// Open files that something is kept for.
#[derive(Default)]
pub(crate) struct DirectStreams {
    pub(crate) open: Mutex<Vec<Weak<OpenFile>>>,
    /// Bytes asked for ahead, for all.
    pub(crate) bytes: AtomicU64,
    /// Bytes of reads that wait for the targets.
    pub(crate) waited_for: AtomicU64,
}
