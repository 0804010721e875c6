//! `Streams`: the order in which an open file is read and written.
//!
//! Owns: the streams of one open file (read-ahead, direct reads, records), pieces of application requests (H2). Does
//! not own: what is fetched ahead of them (`ops::read`, `prefetch`).

use super::direct_stream::DirectStream;
use crate::policy::readahead::ReadAhead;
use crate::policy::records::Records;
use crate::telemetry::stats::Way;
use amphi_types::ByteRange;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Streams of one open file that are told apart.
const STREAMS_MAX: usize = 32;

/// One application request that arrives in pieces.
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
    /// How many there are, to look at before the lock is taken.
    open: AtomicU32,
    /// Pieces of reads that were not the first of theirs.
    continued: AtomicU64,
}

/// Streams of one open file.
#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) readahead: Mutex<ReadAhead>,
    pub(crate) direct: Mutex<DirectStream>,
    pub(crate) records: Mutex<Records>,
    /// A stream has bytes ahead of it, so hits matter to it.
    pub(crate) readahead_on: AtomicBool,
    /// Where the last read ended behind which `Client::warm_next` was asked for.
    pub(crate) warmed_to: AtomicU64,
    pub(crate) shared: Shared,
}

/// What was shown to programs behind reads of the open file, so that they went on without a call.
#[derive(Default)]
pub(crate) struct Shared {
    /// Where the last read ended that was known here.
    pub(crate) read_to: AtomicU64,
    /// Where what was shown behind it ends.
    pub(crate) shown_to: AtomicU64,
    /// Units that were shown ahead of it.
    pub(crate) units: AtomicU64,
}

impl Pieces {
    /// Pieces of reads that were not the first of theirs.
    pub(super) fn continued(&self) -> u64 {
        self.continued.load(Relaxed)
    }

    /// Size of the application's request of which this is a piece (H2): consecutive pieces of one stream of which all
    /// but the last are as large as the front end can carry.
    pub(super) fn request_bytes(&self, way: Way, stream: u32, range: ByteRange) -> u64 {
        if self.open.load(Relaxed) == 0 {
            return range.len();
        }
        let pieces = self.list.lock();
        let before = pieces.iter().find(|p| p.stream == stream && p.way == way && p.next == range.start);
        before.map_or(0, |p| p.bytes) + range.len()
    }

    /// Notes a piece for the next one.
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
