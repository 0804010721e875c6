//! An open file: how it was opened, whether its requests are buffered or direct, and which errors it has reported.
//!
//! Owns: what belongs to a single open: its flags, its group, hits, reported failures. Does not own: the order of its
//! requests (`streams`).

use super::Inode;
use super::streams::{Pieces, Streams};
use crate::api::{Ctx, OpenFlags, Program};
use crate::policy::readers::{Chosen, Reads};
use crate::telemetry::jobs::Job;
use crate::telemetry::stats::{Ledger, Way};
use amphi_types::{Attr, ByteRange, Errno, Ino, IoMode, Result};
use amphi_wire::{Access, LockExtent, ReadAdvice};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};

/// The functions of the mount that an open file, or an open that no program has taken over, calls: when it is dropped,
/// and when bytes are lost that were written through it.
pub(crate) trait Closer: Send + Sync {
    /// The last reference to an open file was dropped. `reads` describes the reads that were made through it; `ahead`
    /// is as in `OpenFile`.
    fn closed(self: Arc<Self>, open: &OpenFile, reads: Reads, ahead: bool);

    /// An open of a file that the server counts is given up; `linger`: its close may wait for others to share a
    /// message.
    fn released(self: Arc<Self>, file: &Arc<Inode>, access: Access, linger: bool);

    /// Bytes of a file were lost. It is noted for callers that sync all files.
    fn lost(&self, errno: Errno);
}

/// The program's declarations about its I/O.
#[derive(Default)]
struct Told {
    /// The locks of the file are to be granted exactly as requested, without growth.
    exact: AtomicBool,
    /// The program has advised how it reads, which holds until the close.
    reads: AtomicBool,
}

/// How a front end with a page cache treats an open file.
#[derive(Default)]
pub(crate) struct Front {
    /// The front end serves reads of the file from pages (`policy::kernel_reads`).
    pub(crate) serves: AtomicBool,
    /// The number of the caching mode in which the file was opened, if the front end dropped all pages of the file
    /// then; 0 if it kept them.
    pub(crate) emptied_rule: AtomicU64,
    /// The rule that decided whether the front end serves reads.
    chosen: AtomicU8,
    /// A program has mapped the open file, or is about to.
    pub(crate) is_mapped: AtomicBool,
}

impl Front {
    /// Records whether the front end serves reads of the open file, and which rule decided that.
    pub(crate) fn choose(&self, serves: bool, chosen: Chosen) {
        self.serves.store(serves, SeqCst);
        self.chosen.store(chosen as u8, Relaxed);
    }

    pub(crate) fn chosen(&self) -> Chosen {
        let all = [Chosen::NotAsked, Chosen::Otherwise, Chosen::Kernel, Chosen::Known, Chosen::Look];
        all.into_iter().find(|c| *c as u8 == self.chosen.load(Relaxed)).unwrap_or_default()
    }
}

/// An open file. Dropping the last reference closes the file, without waiting.
pub struct OpenFile {
    closer: Weak<dyn Closer>,
    pub(crate) file: Arc<Inode>,
    pub(crate) flags: OpenFlags,
    /// The I/O mode in the environment of the process that opened the file.
    pub(crate) process_mode: Option<IoMode>,
    /// The program that opened the file.
    pub(crate) program: Program,
    /// Number of write-back failures that were already reported to this open file.
    reported: AtomicU64,
    pieces: Pieces,
    pub(crate) streams: Streams,
    /// The counters of the open file's requests.
    pub(crate) ledger: Arc<Ledger>,
    /// The I/O mode that the user of the open file has set.
    io_mode: AtomicU8,
    told: Told,
    /// The group under whose lock requests of the open file run; 0 means none.
    pub(crate) group: AtomicU64,
    pub(crate) front: Front,
    /// The offset of the last append through this open file.
    appended_at: AtomicU64,
    /// The file was opened ahead of a program, as one of many: its close waits for others to share a message.
    ahead: bool,
}

/// A file that a create call has made or found.
#[derive(Debug)]
pub struct Created {
    /// The attributes of the file.
    pub attr: Attr,
    /// The file, open.
    pub file: Arc<OpenFile>,
    /// Whether the file is new.
    pub created: bool,
}

impl OpenFile {
    /// An open of `file` by `ctx` that is counted for `job`. `ahead`: the file was opened ahead of a program, so its
    /// close waits for others to share a message.
    pub(crate) fn new(
        closer: Weak<dyn Closer>,
        job: Arc<Job>,
        file: Arc<Inode>,
        flags: OpenFlags,
        ctx: &Ctx,
        ahead: bool,
    ) -> OpenFile {
        let ledger = Arc::new(Ledger::new(job));
        file.stats.enter(&ledger);
        OpenFile {
            closer,
            reported: AtomicU64::new(file.failures.told()),
            file,
            flags,
            process_mode: ctx.io_mode,
            program: ctx.program,
            pieces: Pieces::default(),
            streams: Streams::default(),
            ledger,
            io_mode: AtomicU8::new(IoMode::Auto as u8),
            told: Told::default(),
            group: AtomicU64::new(0),
            front: Front::default(),
            appended_at: AtomicU64::new(0),
            ahead,
        }
    }

    /// The offset of the last append through this open file. A front end that has only one append under way at a time
    /// gets the offset of each.
    pub fn appended_at(&self) -> u64 {
        self.appended_at.load(SeqCst)
    }

    /// A program is about to map the open file: posted writes (`Posting`) do not make the file longer any more, because
    /// the kernel, which limits mappings, would not know its end.
    pub fn set_mapped(&self) {
        self.front.is_mapped.store(true, SeqCst);
    }

    /// Called when a write begins at `offset`; `appends`: it begins there because the file ends there.
    pub(crate) fn note_write(&self, appends: bool, offset: u64) {
        if appends {
            self.appended_at.store(offset, SeqCst);
        }
    }

    /// Inode.
    pub fn ino(&self) -> Ino {
        self.file.ino
    }

    /// How the file was opened.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// Length of the file as this mount knows it.
    pub fn size(&self) -> u64 {
        self.file.size()
    }

    /// Requests and bytes of the file by way and reason, locks and messages, as text for users.
    pub fn counters(&self) -> String {
        self.file.stats.text(self.file.cached.dirty_bytes.load(Relaxed), None)
    }

    /// The I/O mode of the open file: `Auto` leaves the decision to the file and the mount.
    pub fn io_mode(&self) -> IoMode {
        match self.io_mode.load(Relaxed) {
            1 => IoMode::Buffered,
            2 => IoMode::Direct,
            _ => IoMode::Auto,
        }
    }

    /// Sets the I/O mode from now on. `O_DIRECT` takes precedence over this mode, and this mode over those of the file
    /// and the mount.
    pub fn set_io_mode(&self, mode: IoMode) {
        self.io_mode.store(mode as u8, Relaxed);
    }

    /// Sets whether the file's locks are granted exactly as requested, for a program that knows its pattern, or grown
    /// as far as nothing conflicts.
    pub fn set_no_expand(&self, on: bool) {
        self.told.exact.store(on, Relaxed);
    }

    /// The program advises how it reads the file. The advice is valid for all reads of the file on this mount, until
    /// another program gives other advice or this one closes the file.
    pub(crate) fn advise_reads(&self, advice: ReadAdvice) {
        self.told.reads.store(true, Relaxed);
        self.file.hints.advise_reads(advice);
    }

    /// The group of which the open file is a member; 0 means none.
    pub fn group(&self) -> u64 {
        self.member()
    }

    pub(crate) fn extent(&self) -> LockExtent {
        if self.told.exact.load(Relaxed) { LockExtent::Exact } else { LockExtent::Grown }
    }

    /// The group of which this open file is a member; 0 means none.
    #[inline]
    pub(crate) fn member(&self) -> u64 {
        self.group.load(Relaxed)
    }

    pub(crate) fn access(&self) -> Access {
        Access { read: self.flags.read, write: self.flags.write }
    }

    /// The reads since the counters were last read; a call that was split into several requests counts as one.
    pub(crate) fn reads(&self) -> Reads {
        let (requests, bytes) = self.ledger.reads();
        Reads { requests: requests.saturating_sub(self.pieces.continued()), bytes }
    }

    /// Size of the application's request of which this is a piece (H2).
    pub(crate) fn request_bytes(&self, way: Way, stream: u32, range: ByteRange) -> u64 {
        self.pieces.request_bytes(way, stream, range)
    }

    /// Remembers a piece for comparison with the next one.
    pub(crate) fn note_piece(&self, way: Way, stream: u32, range: ByteRange, may_continue: bool) {
        self.pieces.note_piece(way, stream, range, may_continue);
    }

    /// Returns whether there is a failure to report.
    pub(crate) fn has_error(&self) -> bool {
        self.file.failures.count() != self.reported.load(SeqCst)
    }

    /// Returns the failure to report, once for each failure.
    pub(crate) fn take_error(&self) -> Result<()> {
        if !self.has_error() {
            return Ok(());
        }
        self.file.failures.tell(&self.reported)
    }

    /// Bytes of `range` that were written through this open file are lost: this is reported like a failed write-back.
    pub(crate) fn lost(&self, range: ByteRange, errno: Errno) {
        if let Some(closer) = self.closer.upgrade() {
            closer.lost(errno);
        }
        self.file.failures.note(errno, range);
    }

    /// Reports the failures that were not reported to this open file yet.
    ///
    /// Errors: the latest of these failures. After that the file shows the contents that the servers have, unless they
    /// could not be reached anyway.
    pub(crate) async fn tell_failures(&self) -> Result<()> {
        let told = self.take_error();
        if told.is_err_and(Errno::is_no_room) {
            // The failed request may still be about to enter the consequences of its loss.
            let upto = self.file.flights.lock().last();
            self.file.signal.until(|| !self.file.in_flight_upto(ByteRange::ALL, upto)).await;
            self.file.settled().await;
        }
        told
    }
}

impl std::fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpenFile({}, {:?})", self.file.ino, self.flags)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.told.reads.load(Relaxed) {
            self.file.hints.advise_reads(ReadAdvice::Normal);
        }
        let reads = self.reads();
        self.file.stats.leave(&self.ledger);
        if let Some(closer) = self.closer.upgrade() {
            closer.closed(self, reads, self.ahead);
        }
    }
}
