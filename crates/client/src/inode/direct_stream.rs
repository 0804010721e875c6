//! `DirectStream`: the direct reads of one open file, and the reads that were requested ahead of them.
//!
//! Owns: the state. Does not own: when reads are requested ahead, and what is done with their bytes
//! (`prefetch::large_reads`).

use super::Inode;
use amphi_pagecache::Segments;
use amphi_types::{ByteRange, Result};
use futures_channel::oneshot;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Counts the bytes that were requested ahead.
pub(crate) trait AheadOwner: Send + Sync {
    /// This many bytes of the file are no longer requested or kept ahead.
    fn ended(&self, file: &Arc<Inode>, bytes: u64);
}

/// The direct reads of one open file.
#[derive(Default)]
pub(crate) struct DirectStream {
    /// The offset at which the last read ended.
    pub(crate) last_end: u64,
    /// Bytes of one request: the longest of the last reads.
    pub(crate) step: u64,
    /// Number of consecutive reads that were shorter than `step`.
    pub(crate) shorter: u32,
    /// Number of consecutive reads, each of which began where the one before ended.
    pub(crate) matches: u32,
    /// This many more reads must follow each other before the next one is requested ahead.
    pub(crate) caution: u32,
    /// Reads that were requested ahead, in order of their offsets.
    pub(crate) ahead: VecDeque<Ahead>,
    /// Whether this stream is among the `DirectStreams`.
    pub(crate) listed: bool,
}

/// A read that was requested ahead.
pub(crate) struct Ahead {
    owner: Weak<dyn AheadOwner>,
    /// The file that is read.
    pub(crate) file: Arc<Inode>,
    /// The bytes that were requested.
    pub(crate) range: ByteRange,
    /// The id of the fill of the read, whose bytes are held until a reader takes them.
    pub(crate) id: u64,
    /// The number of the caching mode in which the read was requested.
    pub(crate) rule: u64,
    /// When the read was requested, nanoseconds.
    pub(crate) since_ns: u64,
    /// The bytes.
    pub(crate) data: Data,
}

/// The bytes of a read that was requested ahead.
pub(crate) enum Data {
    /// The bytes have not arrived yet.
    Coming(oneshot::Receiver<Result<Segments>>),
    /// The bytes that the previous reader has left.
    Here(Segments),
}

impl Ahead {
    /// A read of `range` of `file` that has been requested.
    pub(crate) fn new(
        owner: Weak<dyn AheadOwner>,
        file: Arc<Inode>,
        range: ByteRange,
        (id, rule): (u64, u64),
        since_ns: u64,
        data: Data,
    ) -> Ahead {
        Ahead { owner, file, range, id, rule, since_ns, data }
    }

    /// All bytes of the read.
    pub(crate) async fn wait(&mut self) -> Option<Segments> {
        let bytes = match &mut self.data {
            Data::Coming(data) => data.await.ok()?.ok()?,
            Data::Here(bytes) => std::mem::take(bytes),
        };
        (bytes.len() as u64 == self.range.len()).then_some(bytes)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.file.fill_ends(self.id);
        if let Some(owner) = self.owner.upgrade() {
            owner.ended(&self.file, self.range.len());
        }
    }
}
