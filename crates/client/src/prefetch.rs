//! Prefetching: data that is asked for before the program does.
//!
//! Owns: read-ahead of one open file and of several that are one sequence, large direct reads in a row, small files of
//! a directory that a program opens one after the other. Does not own: the cache that the bytes land in (`cache`), the
//! locks they lie under (`coherence`).

pub(crate) mod joint;
pub(crate) mod large_reads;
pub(crate) mod small_files;

use crate::inode::seek_maps::Maps;
use joint::JointStreams;
use large_reads::DirectStreams;
use small_files::SmallFilePrefetch;
use std::sync::atomic::AtomicU64;

/// What is under way ahead of the programs.
#[derive(Default)]
pub(crate) struct Prefetch {
    pub(crate) small_files: SmallFilePrefetch,
    /// Direct reads that were asked for ahead.
    pub(crate) direct_streams: DirectStreams,
    /// Open files that are read as one sequence.
    pub(crate) joint: JointStreams,
    /// Bytes of fills under way.
    pub(crate) fill_bytes: AtomicU64,
    /// Where files have data and holes, for programs that ask for both in turn.
    pub(crate) seek_maps: Maps,
}
