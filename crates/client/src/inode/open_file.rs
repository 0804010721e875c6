//! An open file: how it was opened, its streams, errors it has reported.
//!
//! Owns: what belongs to one open alone: pieces of application requests (H2), read-ahead, hits, reported failures.

use super::Inode;
use super::direct_stream::DirectStream;
use crate::api::OpenFlags;
use crate::policy::readahead::ReadAhead;
use crate::policy::records::Records;
use crate::telemetry::jobs::Job;
use crate::telemetry::stats::{Ledger, Way};
use amphi_types::{Attr, ByteRange, Ino, IoMode, Result};
use amphi_wire::{Access, LockExtent, ReadAdvice};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};

/// Streams of one open file that are told apart.
const STREAMS_MAX: usize = 32;

/// Fewer reads of an open file say nothing of its readers.
const READS_MIN: u64 = 16;

/// One application request that arrives in pieces.
#[derive(Clone, Copy)]
struct Piece {
    stream: u32,
    way: Way,
    next: u64,
    bytes: u64,
}

/// What an open file, or an open that nobody has taken over, needs of the mount when it goes.
pub(crate) trait Closer: Send + Sync {
    /// Requests below so many bytes are small.
    fn small_bytes(&self) -> u64;

    /// The last reference to an open file is gone: `ahead` as in `OpenFile`.
    fn closed(self: Arc<Self>, open: &OpenFile, ahead: bool);

    /// An open of a file that the server counts is given up; `linger`: its close may wait for others.
    fn released(self: Arc<Self>, file: &Arc<Inode>, access: Access, linger: bool);
}

/// What its program has told of its I/O.
#[derive(Default)]
struct Told {
    /// Its locks are not to be granted wider than it asks.
    exact: AtomicBool,
    /// It has said how it reads: that counts until it is closed.
    reads: AtomicBool,
}

/// An open file. Dropping the last reference closes it, without waiting.
pub struct OpenFile {
    closer: Weak<dyn Closer>,
    pub(crate) file: Arc<Inode>,
    pub(crate) flags: OpenFlags,
    /// What the environment of the process that opened it asks for.
    pub(crate) process_mode: Option<IoMode>,
    /// Failures of write-back already reported here.
    reported: AtomicU64,
    pieces: Mutex<Vec<Piece>>,
    pieces_open: AtomicU32,
    pub(crate) readahead: Mutex<ReadAhead>,
    pub(crate) direct: Mutex<DirectStream>,
    pub(crate) records: Mutex<Records>,
    /// A stream has bytes ahead of it, so hits matter to it.
    pub(crate) readahead_on: AtomicBool,
    /// Where the last read ended behind which `Client::warm_next` was asked for.
    pub(crate) warmed_to: AtomicU64,
    /// What its requests are counted in.
    pub(crate) ledger: Arc<Ledger>,
    /// How its requests go, as asked for by its user.
    io_mode: AtomicU8,
    told: Told,
    /// The group under whose lock its requests go; 0: none.
    pub(crate) group: AtomicU64,
    /// A front end serves its reads from pages (`policy::kernel_reads`).
    pub(crate) by_front: AtomicBool,
    /// The rule of caching under which it was opened, if the front end dropped all pages of the file then; 0 if it kept
    /// them.
    pub(crate) emptied_rule: AtomicU64,
    /// It was opened ahead, as one of many: its close waits for company.
    ahead: bool,
}

/// A file that was created or found by create.
#[derive(Debug)]
pub struct Created {
    /// Its attributes.
    pub attr: Attr,
    /// It, open.
    pub file: Arc<OpenFile>,
    /// Whether it is new.
    pub created: bool,
}

impl OpenFile {
    /// An open of `file` that is counted for `job`. `ahead`: it was made ahead, so its close waits for company.
    pub(crate) fn new(
        closer: Weak<dyn Closer>,
        job: Arc<Job>,
        file: Arc<Inode>,
        flags: OpenFlags,
        io_mode: Option<IoMode>,
        ahead: bool,
    ) -> OpenFile {
        let ledger = Arc::new(Ledger::new(job));
        file.stats.enter(&ledger);
        OpenFile {
            closer,
            reported: AtomicU64::new(file.failures.told()),
            file,
            flags,
            process_mode: io_mode,
            pieces: Mutex::default(),
            pieces_open: AtomicU32::new(0),
            readahead: Mutex::default(),
            direct: Mutex::default(),
            records: Mutex::default(),
            readahead_on: AtomicBool::new(false),
            warmed_to: AtomicU64::new(0),
            ledger,
            io_mode: AtomicU8::new(IoMode::Auto as u8),
            told: Told::default(),
            group: AtomicU64::new(0),
            by_front: AtomicBool::new(false),
            emptied_rule: AtomicU64::new(0),
            ahead,
        }
    }

    /// Inode.
    pub fn ino(&self) -> Ino {
        self.file.ino
    }

    /// How it was opened.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// Length of the file as this mount knows it.
    pub fn size(&self) -> u64 {
        self.file.size()
    }

    /// Requests and bytes of the file by way and reason, locks and messages, for people.
    pub fn counters(&self) -> String {
        self.file.stats.text(self.file.dirty_bytes.load(Relaxed), None)
    }

    /// How its requests go: `Auto` leaves it to the file and the mount.
    pub fn io_mode(&self) -> IoMode {
        match self.io_mode.load(Relaxed) {
            1 => IoMode::Buffered,
            2 => IoMode::Direct,
            _ => IoMode::Auto,
        }
    }

    /// Sets how its requests go from now on. `O_DIRECT` goes before it, the file and the mount behind it.
    pub fn set_io_mode(&self, mode: IoMode) {
        self.io_mode.store(mode as u8, Relaxed);
    }

    /// Whether its locks are granted as asked, for who knows its pattern, or as wide as nothing conflicts.
    pub fn set_no_expand(&self, on: bool) {
        self.told.exact.store(on, Relaxed);
    }

    /// The program says how it reads the file. That counts for all reads of the file on this mount, until another one
    /// says something else or this one closes it.
    pub(crate) fn advise_reads(&self, advice: ReadAdvice) {
        self.told.reads.store(true, Relaxed);
        self.file.advise_reads(advice);
    }

    /// The group that it is a member of; 0: none.
    pub fn group(&self) -> u64 {
        self.member()
    }

    pub(crate) fn extent(&self) -> LockExtent {
        if self.told.exact.load(Relaxed) { LockExtent::Exact } else { LockExtent::Grown }
    }

    /// The group that this open file is a member of; 0: none.
    #[inline]
    pub(crate) fn member(&self) -> u64 {
        self.group.load(Relaxed)
    }

    pub(crate) fn access(&self) -> Access {
        Access { read: self.flags.read, write: self.flags.write }
    }

    /// Notes how it was read, for those who open the file next.
    fn note_readers(&self, small_bytes: u64) {
        if self.by_front.load(SeqCst) || !self.flags.read {
            return;
        }
        let (requests, bytes) = self.ledger.reads();
        if requests >= READS_MIN {
            self.file.pages.small_reads.store(bytes / requests < small_bytes, SeqCst);
        }
    }

    /// Whether there is one to report.
    pub(crate) fn has_error(&self) -> bool {
        self.file.failures.count() != self.reported.load(SeqCst)
    }

    /// The error to report, once for each failure.
    pub(crate) fn take_error(&self) -> Result<()> {
        if !self.has_error() {
            return Ok(());
        }
        self.file.failures.tell(&self.reported)
    }

    /// Size of the application's request of which this is a piece (H2): consecutive pieces of one stream of which all
    /// but the last are as large as the front end can carry.
    pub(crate) fn request_bytes(&self, way: Way, stream: u32, range: ByteRange) -> u64 {
        if self.pieces_open.load(Relaxed) == 0 {
            return range.len();
        }
        let pieces = self.pieces.lock();
        let before = pieces.iter().find(|p| p.stream == stream && p.way == way && p.next == range.start);
        before.map_or(0, |p| p.bytes) + range.len()
    }

    /// Notes a piece for the next one.
    pub(crate) fn note_piece(&self, way: Way, stream: u32, range: ByteRange, may_continue: bool) {
        if !may_continue && self.pieces_open.load(Relaxed) == 0 {
            return;
        }
        let mut pieces = self.pieces.lock();
        let at = pieces.iter().position(|p| p.stream == stream && p.way == way);
        let before = at.map(|i| pieces.remove(i)).filter(|p| p.next == range.start).map_or(0, |p| p.bytes);
        if may_continue {
            if pieces.len() >= STREAMS_MAX {
                pieces.remove(0);
            }
            pieces.push(Piece { stream, way, next: range.end, bytes: before + range.len() });
        }
        self.pieces_open.store(pieces.len() as u32, Relaxed);
    }
}

impl std::fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpenFile({}, {:?})", self.file.ino, self.flags)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let closer = self.closer.upgrade();
        if let Some(closer) = &closer {
            self.note_readers(closer.small_bytes());
        }
        if self.told.reads.load(Relaxed) {
            self.file.advise_reads(ReadAdvice::Normal);
        }
        self.file.stats.leave(&self.ledger);
        if let Some(closer) = closer {
            closer.closed(self, self.ahead);
        }
    }
}
