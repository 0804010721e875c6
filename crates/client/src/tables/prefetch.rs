//! State of prefetching: the bytes and files that are requested before programs need them.
//!
//! Owns: the tables of prefetching, and how many bytes are under way. Does not own: the requests (`prefetch`), the
//! cache that receives the bytes (`cache`).

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

/// State of prefetching.
#[derive(Default)]
pub(crate) struct Prefetch {
    pub(crate) small_files: SmallFilePrefetch,
    /// Streams of direct reads whose next reads are requested ahead.
    pub(crate) direct_streams: DirectStreams,
    /// Open files that are read as one sequence.
    pub(crate) joint: JointStreams,
    /// Bytes of fills under way.
    pub(crate) fill_bytes: AtomicU64,
    /// The ranges of files that have data, and their holes, for programs that request both in turn.
    pub(crate) seek_maps: Maps,
}

impl Prefetch {
    /// Returns whether so little is being read ahead that the rate of direct reads can be measured.
    pub(crate) fn fills_are_calm(&self) -> bool {
        let fills = self.fill_bytes.load(SeqCst).saturating_sub(self.direct_streams.bytes.load(SeqCst));
        fills <= CALM_FLIGHT_BYTES
    }
}
