//! What is under way ahead of the programs.
//!
//! Owns: the tables that prefetching goes by, and how much is under way. Does not own: asking (`prefetch`), the cache
//! that the bytes land in (`cache`).

pub(crate) mod direct_streams;
pub(crate) mod joint;
pub(crate) mod kept_opens;
pub(crate) mod order;
pub(crate) mod small_files;

use crate::inode::seek_maps::Maps;
use crate::policy::throughput::CALM_FLIGHT_BYTES;
use direct_streams::DirectStreams;
use joint::JointStreams;
use small_files::SmallFilePrefetch;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

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

impl Prefetch {
    /// Whether so little is read ahead that direct reads show what they carry alone.
    pub(crate) fn fills_are_calm(&self) -> bool {
        let fills = self.fill_bytes.load(SeqCst).saturating_sub(self.direct_streams.bytes.load(SeqCst));
        fills <= CALM_FLIGHT_BYTES
    }
}
