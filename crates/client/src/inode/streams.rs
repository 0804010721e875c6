//! `Streams`: the order in which an open file is read and written.
//!
//! Owns: the streams of one open file (read-ahead, direct reads, records), pieces of application requests (H2). Does
//! not own: what is read ahead of the streams (`ops::read`, `prefetch`).

use super::direct_stream::DirectStream;
use crate::policy::readahead::ReadAhead;
use crate::policy::records::Records;
use crate::telemetry::stats::Way;
use amphi_types::ByteRange;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Most streams of one open file that are distinguished.
const STREAMS_MAX: usize = 32;

/// A request of an application that arrives in pieces.
#[derive(Clone, Copy)]
struct Piece {
    stream: u32,
    way: Way,
    next: u64,
    bytes: u64,
}

/// Application requests that arrive in pieces.
#[derive(Default)]
pub(crate) struct Pieces {
    list: Mutex<Vec<Piece>>,
    /// Number of such requests, to be read before the lock is taken.
    open: AtomicU32,
    /// Number of pieces of reads that were not the first of their request.
    continued: AtomicU64,
}

/// Streams of one open file.
#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) readahead: Mutex<ReadAhead>,
    pub(crate) direct: Mutex<DirectStream>,
    pub(crate) records: Mutex<Records>,
    /// Bytes were read ahead of a stream, so cache hits have to be reported to the stream.
    pub(crate) readahead_on: AtomicBool,
    /// The end of the last read after which `Client::warm_next` was called.
    pub(crate) warmed_to: AtomicU64,
    pub(crate) shared: Shared,
}

/// Bytes that were shared with programs ahead of the reads of the open file, so that they could read without a system
/// call.
#[derive(Default)]
pub(crate) struct Shared {
    /// The end of the last read that the mount has seen.
    pub(crate) read_to: AtomicU64,
    /// The end of the bytes that were shared ahead of that read.
    pub(crate) shown_to: AtomicU64,
    /// Number of units that were shared ahead.
    pub(crate) units: AtomicU64,
}

impl Pieces {
    /// Number of pieces of reads that were not the first of their request.
    pub(super) fn continued(&self) -> u64 {
        self.continued.load(Relaxed)
    }

    /// Size of the application's request of which this is a piece (H2). Consecutive pieces of one stream belong to one
    /// request if all but the last are as large as the front end can send.
    pub(super) fn request_bytes(&self, way: Way, stream: u32, range: ByteRange) -> u64 {
        if self.open.load(Relaxed) == 0 {
            return range.len();
        }
        let pieces = self.list.lock();
        let before = pieces.iter().find(|p| p.stream == stream && p.way == way && p.next == range.start);
        before.map_or(0, |p| p.bytes) + range.len()
    }

    /// Remembers a piece for comparison with the next one.
    pub(super) fn note_piece(&self, way: Way, stream: u32, range: ByteRange, may_continue: bool) {
        if !may_continue && self.open.load(Relaxed) == 0 {
            return;
        }
        let mut pieces = self.list.lock();
        let at = pieces.iter().position(|p| p.stream == stream && p.way == way);
        let before = at.map(|i| pieces.remove(i)).filter(|p| p.next == range.start).map_or(0, |p| p.bytes);
        if before > 0 && way == Way::Read {
            self.continued.fetch_add(1, Relaxed);
        }
        if may_continue {
            if pieces.len() >= STREAMS_MAX {
                pieces.remove(0);
            }
            pieces.push(Piece { stream, way, next: range.end, bytes: before + range.len() });
        }
        self.open.store(pieces.len() as u32, Relaxed);
    }
}
