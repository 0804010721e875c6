//! Files the client knows something about, and open files.
//!
//! Owns: per inode the size as this mount sees it, dirty units, requests under way, sticky errors, the change log that
//! tells fills whether they are still true; per open file its streams. Does not own: cached bytes (`cache`).
//!
//! A `File` lives while it is open, has cached bytes or a close still to be sent. Who is right about the size: the
//! client while it has changes that the server has not confirmed, otherwise the latest answer that no change overlapped.

use crate::api::OpenFlags;
use crate::core::Core;
use crate::decision::Reason;
use crate::rangelock::RangeLock;
use crate::readahead::ReadAhead;
use crate::stats::{FileStats, Way};
use crate::tunables::Knob;
use amphi_types::{Attr, ByteRange, Errno, Ino, IoMode, Layout, Pattern, RangeSet, Result, Timespec};
use amphi_wire::{Access, InodeView};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::task::Waker;

/// Streams of one open file that are told apart.
const STREAMS_MAX: usize = 32;

/// Wakes everybody who waits for some condition on plain data.
#[derive(Default)]
pub(crate) struct Signal {
    wakers: Mutex<Vec<Waker>>,
}

impl Signal {
    pub(crate) fn notify(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until `done` holds; it is asked after each `notify`.
    pub(crate) async fn until(&self, mut done: impl FnMut() -> bool) {
        std::future::poll_fn(|cx| {
            if done() {
                return std::task::Poll::Ready(());
            }
            {
                let mut wakers = self.wakers.lock();
                if !wakers.iter().any(|w| w.will_wake(cx.waker())) {
                    wakers.push(cx.waker().clone());
                }
            }
            if done() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await
    }
}

/// A layout in one word: pattern, log2 of the stripe size, count, pool.
fn pack(layout: Layout) -> u64 {
    let pattern = match layout.pattern {
        Pattern::Growing => 0,
        Pattern::Striped => 1,
        Pattern::Whole => 2,
    };
    let shift = u64::from(layout.stripe_size.trailing_zeros());
    pattern | shift << 8 | u64::from(layout.stripe_count) << 16 | u64::from(layout.pool) << 32
}

fn unpack(word: u64) -> Layout {
    let pattern = match word & 0xff {
        0 => Pattern::Growing,
        1 => Pattern::Striped,
        _ => Pattern::Whole,
    };
    let stripe_size = 1 << (word >> 8 & 31);
    Layout { pattern, stripe_size, stripe_count: (word >> 16) as u16, pool: (word >> 32) as u16 }
}

/// What is known of an inode beside its size.
pub(crate) struct Known {
    pub(crate) view: InodeView,
    /// Time of the last write that is only in the cache, or set explicitly after it.
    pub(crate) mtime: Timespec,
    /// The cache holds writes with that time.
    pub(crate) mtime_local: bool,
    /// Opens that have not been released.
    pub(crate) opens: Vec<Access>,
    /// Closes that wait for write-back.
    pub(crate) closes: Vec<Access>,
    /// `Spread` was answered since the last writer closed.
    pub(crate) spread: bool,
}

/// Which units are dirty.
#[derive(Default)]
pub(crate) struct DirtyIndex {
    /// Unit index -> since when, nanoseconds.
    pub(crate) units: BTreeMap<u64, u64>,
}

/// A fill under way.
struct Fill {
    id: u64,
    range: ByteRange,
    /// What changed since it was asked for: the answer may be older than that.
    spoiled: RangeSet,
}

/// Fills under way.
#[derive(Default)]
struct Fills {
    next: u64,
    list: Vec<Fill>,
}

/// Write-back under way.
#[derive(Default)]
pub(crate) struct Flights {
    pub(crate) ranges: Vec<(u64, ByteRange)>,
    pub(crate) next: u64,
    /// From this offset on nothing may set out: a truncate is under way.
    pub(crate) frozen_from: Option<u64>,
}

/// A file.
pub(crate) struct File {
    pub(crate) ino: Ino,
    pub(crate) known: Mutex<Known>,
    pub(crate) size: AtomicU64,
    /// Layout and I/O mode of `known.view` again, for hits that take no lock.
    layout_packed: AtomicU64,
    io_mode: AtomicU8,
    /// Counts changes of the size or of what the server has, at start and end.
    pub(crate) epoch: AtomicU64,
    pub(crate) range: RangeLock,
    pub(crate) dirty: Mutex<DirtyIndex>,
    pub(crate) flights: Mutex<Flights>,
    fills: Mutex<Fills>,
    fills_under_way: AtomicU32,
    pub(crate) signal: Signal,
    /// Bytes of cache memory.
    pub(crate) cached_bytes: AtomicU64,
    /// End of the bytes that were ever cached.
    pub(crate) cached_end: AtomicU64,
    /// Dirty bytes, those under way included.
    pub(crate) dirty_bytes: AtomicU64,
    /// Bit s: a write lock on all of stripe s is held and not on its way back.
    pub(crate) whole_locks: AtomicU64,
    /// Failures of write-back: count and the latest.
    errors: Mutex<(u64, Errno)>,
    error_count: AtomicU64,
    /// Bytes whose write-back failed and that nobody was told of yet.
    pub(crate) failed: Mutex<Vec<ByteRange>>,
    /// Until when the file counts as contended, nanoseconds.
    pub(crate) contended_until_ns: AtomicU64,
    /// Pages that left the cache, and those used again, in the present window of measurement.
    pub(crate) pages_left: AtomicU64,
    pub(crate) pages_reused: AtomicU64,
    pub(crate) no_locality: AtomicBool,
    pub(crate) probe: AtomicU32,
    pub(crate) stats: FileStats,
}

impl File {
    fn new(view: InodeView) -> File {
        File {
            ino: view.attr.ino,
            size: AtomicU64::new(view.attr.size),
            layout_packed: AtomicU64::new(pack(view.layout)),
            io_mode: AtomicU8::new(view.io_mode as u8),
            known: Mutex::new(Known {
                mtime: view.attr.mtime,
                spread: view.spread,
                view,
                mtime_local: false,
                opens: Vec::new(),
                closes: Vec::new(),
            }),
            epoch: AtomicU64::new(0),
            range: RangeLock::default(),
            dirty: Mutex::default(),
            flights: Mutex::default(),
            fills: Mutex::default(),
            fills_under_way: AtomicU32::new(0),
            signal: Signal::default(),
            cached_bytes: AtomicU64::new(0),
            cached_end: AtomicU64::new(0),
            dirty_bytes: AtomicU64::new(0),
            whole_locks: AtomicU64::new(0),
            errors: Mutex::new((0, Errno::Io)),
            error_count: AtomicU64::new(0),
            failed: Mutex::default(),
            contended_until_ns: AtomicU64::new(0),
            pages_left: AtomicU64::new(0),
            pages_reused: AtomicU64::new(0),
            no_locality: AtomicBool::new(false),
            probe: AtomicU32::new(0),
            stats: FileStats::new(),
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(SeqCst)
    }

    pub(crate) fn view(&self) -> InodeView {
        self.known.lock().view
    }

    pub(crate) fn mtime(&self) -> Timespec {
        self.known.lock().mtime
    }

    /// What the owner of the file asked of the decision.
    pub(crate) fn io_mode(&self) -> IoMode {
        match self.io_mode.load(Relaxed) {
            1 => IoMode::Buffered,
            2 => IoMode::Direct,
            _ => IoMode::Auto,
        }
    }

    /// Where the bytes lie.
    pub(crate) fn layout(&self) -> Layout {
        unpack(self.layout_packed.load(Relaxed))
    }

    /// Whether this mount has it open for writing.
    pub(crate) fn has_writers(&self) -> bool {
        self.known.lock().opens.iter().any(|a| a.write)
    }

    /// Marks the begin or end of a change that answers under way may or may not have seen.
    pub(crate) fn mark_epoch(&self) {
        self.epoch.fetch_add(1, SeqCst);
    }

    /// Enters a fill. From now on changes of its bytes spoil it.
    pub(crate) fn fill_begins(&self, range: ByteRange) -> u64 {
        let mut fills = self.fills.lock();
        fills.next += 1;
        let id = fills.next;
        fills.list.push(Fill { id, range, spoiled: RangeSet::new() });
        self.fills_under_way.store(fills.list.len() as u32, SeqCst);
        id
    }

    /// Whether what fill `id` brings for `range` is still true. To be asked under the lock of the cache's shard.
    pub(crate) fn fill_is_true(&self, id: u64, range: ByteRange) -> bool {
        self.fills.lock().list.iter().any(|f| f.id == id && !f.spoiled.overlaps(range))
    }

    /// Ends a fill.
    pub(crate) fn fill_ends(&self, id: u64) {
        let mut fills = self.fills.lock();
        fills.list.retain(|f| f.id != id);
        self.fills_under_way.store(fills.list.len() as u32, SeqCst);
        drop(fills);
        self.signal.notify();
    }

    /// What the server has of `range`, or the right to cache it, changed now: fills that were asked for before do not
    /// count there.
    pub(crate) fn spoil(&self, range: ByteRange) {
        if self.fills_under_way.load(SeqCst) > 0 {
            for fill in self.fills.lock().list.iter_mut().filter(|f| f.range.overlaps(&range)) {
                fill.spoiled.insert(range.intersect(&fill.range));
            }
        }
    }

    /// The parts of `range` that no fill under way brings.
    pub(crate) fn not_being_filled(&self, range: ByteRange) -> Vec<ByteRange> {
        let mut covered = RangeSet::new();
        self.fills.lock().list.iter().for_each(|f| covered.insert(f.range));
        covered.gaps(range).into_vec()
    }

    /// Whether a fill under way brings bytes of `range`.
    pub(crate) fn is_being_filled(&self, range: ByteRange) -> bool {
        self.fills_under_way.load(SeqCst) > 0 && self.fills.lock().list.iter().any(|f| f.range.overlaps(&range))
    }

    /// Whether bytes of `range` are on their way to the server.
    pub(crate) fn in_flight(&self, range: ByteRange) -> bool {
        self.flights.lock().ranges.iter().any(|(_, r)| r.overlaps(&range))
    }

    /// The attributes with what only this client knows laid over them.
    pub(crate) fn overlay(&self, mut attr: Attr) -> Attr {
        let known = self.known.lock();
        attr.size = self.size();
        if known.mtime_local {
            attr.mtime = known.mtime;
            attr.ctime = attr.ctime.max(known.mtime);
        }
        attr
    }

    /// Takes a view that was asked for when the epoch was `epoch`.
    pub(crate) fn adopt(&self, view: InodeView, epoch: u64) -> Attr {
        let mut known = self.known.lock();
        let spread = known.spread;
        let generation = known.view.generation.max(view.generation);
        known.view = InodeView { generation, ..view };
        self.layout_packed.store(pack(view.layout), Relaxed);
        self.io_mode.store(view.io_mode as u8, Relaxed);
        known.spread = spread || view.spread;
        let quiet = self.epoch.load(SeqCst) == epoch && self.dirty_bytes.load(SeqCst) == 0;
        if quiet && self.size.swap(view.attr.size, SeqCst) != view.attr.size {
            tracing::debug!(ino = %self.ino, size = view.attr.size, "the size changed elsewhere");
        }
        drop(known);
        self.overlay(view.attr)
    }

    /// A write now ends at `end`.
    pub(crate) fn extend(&self, end: u64) {
        self.size.fetch_max(end, SeqCst);
    }

    /// Notes the time of a write that is in the cache alone.
    pub(crate) fn touch(&self, now: Timespec) {
        let mut known = self.known.lock();
        known.mtime = now;
        known.mtime_local = true;
    }

    /// Notes the time of a write that went past the cache: what the cache still holds was written before.
    pub(crate) fn touched_past_cache(&self, at: Timespec) {
        let mut known = self.known.lock();
        if known.mtime_local {
            known.mtime = known.mtime.max(at);
        }
    }

    /// Remembers a failed write-back for everybody who has the file open.
    pub(crate) fn fail(&self, range: ByteRange, errno: Errno) {
        let mut e = self.errors.lock();
        *e = (e.0 + 1, errno);
        self.error_count.store(e.0, SeqCst);
        self.failed.lock().push(range);
    }

    /// Opens of this mount that have not been released.
    pub(crate) fn open_count(&self) -> u32 {
        let known = self.known.lock();
        known.opens.len() as u32
    }

    /// Every open the server knows of.
    pub(crate) fn opens(&self) -> Vec<Access> {
        let known = self.known.lock();
        known.opens.iter().chain(&known.closes).copied().collect()
    }

    pub(crate) fn access_count(&self) -> u32 {
        let known = self.known.lock();
        (known.opens.len() + known.closes.len()) as u32
    }
}

/// One application request that arrives in pieces.
#[derive(Clone, Copy)]
struct Piece {
    stream: u32,
    way: Way,
    next: u64,
    bytes: u64,
}

/// An open file. Dropping the last reference closes it, without waiting.
pub struct OpenFile {
    pub(crate) core: Weak<Core>,
    pub(crate) file: Arc<File>,
    pub(crate) flags: OpenFlags,
    /// Failures of write-back already reported here.
    reported: AtomicU64,
    pieces: Mutex<Vec<Piece>>,
    pieces_open: AtomicU32,
    pub(crate) readahead: Mutex<ReadAhead>,
    /// A stream has bytes ahead of it, so hits matter to it.
    pub(crate) readahead_on: AtomicBool,
    hits: [Hits; HIT_SHARDS],
}

/// Cache hits of one open file by some of the threads: two threads on one line would cost more than the hit.
#[derive(Default)]
#[repr(align(128))]
struct Hits {
    requests: AtomicU64,
    bytes: AtomicU64,
}

const HIT_SHARDS: usize = 4;

impl OpenFile {
    pub(crate) fn new(core: &Arc<Core>, file: Arc<File>, flags: OpenFlags) -> OpenFile {
        OpenFile {
            core: Arc::downgrade(core),
            reported: AtomicU64::new(file.error_count.load(SeqCst)),
            file,
            flags,
            pieces: Mutex::default(),
            pieces_open: AtomicU32::new(0),
            readahead: Mutex::default(),
            readahead_on: AtomicBool::new(false),
            hits: Default::default(),
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

    /// Requests and bytes of the file by way and reason, for people.
    pub fn counters(&self) -> String {
        self.book_hits();
        self.file.stats.text()
    }

    /// Counts a hit.
    pub(crate) fn hit(&self, shard: usize, bytes: u64) {
        let hits = &self.hits[shard % HIT_SHARDS];
        hits.requests.fetch_add(1, Relaxed);
        hits.bytes.fetch_add(bytes, Relaxed);
    }

    /// Moves the hits counted here to the file's counters.
    pub(crate) fn book_hits(&self) {
        for hits in &self.hits {
            let (requests, bytes) = (hits.requests.swap(0, Relaxed), hits.bytes.swap(0, Relaxed));
            self.file.stats.add(Way::Read, Reason::CacheHit, requests, bytes);
        }
    }

    pub(crate) fn access(&self) -> Access {
        Access { read: self.flags.read, write: self.flags.write }
    }

    /// The error to report, once for each failure; the bytes that failed are forgotten then.
    pub(crate) fn take_error(&self) -> Result<()> {
        let file = &self.file;
        if file.error_count.load(SeqCst) == self.reported.load(SeqCst) {
            return Ok(());
        }
        let (count, errno) = *file.errors.lock();
        if self.reported.swap(count, SeqCst) >= count {
            return Ok(());
        }
        if let Some(core) = self.core.upgrade() {
            let failed = std::mem::take(&mut *file.failed.lock());
            failed.into_iter().for_each(|range| core.cache.forget_failed(file, range));
            crate::ops::attr::refresh(core, file.clone());
        }
        Err(errno)
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
        // The core is asked only where the answer counts: small requests pass by.
        let may_continue = may_continue && self.core.upgrade().is_some_and(|c| c.tunables.on(Knob::Pieces));
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
        self.book_hits();
        if let Some(core) = self.core.upgrade() {
            crate::ops::open::release(&core, &self.file, self.access());
        }
    }
}

const TABLE_SHARDS: usize = 16;

/// All files the client knows something about.
pub(crate) struct FileTable {
    shards: Vec<Mutex<BTreeMap<Ino, Arc<File>>>>,
}

impl FileTable {
    pub(crate) fn new() -> FileTable {
        FileTable { shards: (0..TABLE_SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, ino: Ino) -> &Mutex<BTreeMap<Ino, Arc<File>>> {
        &self.shards[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % TABLE_SHARDS]
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<File>> {
        self.shard(ino).lock().get(&ino).cloned()
    }

    /// The file, known from now on; `open` is counted in the same step, so that nobody forgets it in between.
    pub(crate) fn open(&self, view: InodeView, access: Access, epoch: Option<u64>) -> Arc<File> {
        let mut shard = self.shard(view.attr.ino).lock();
        let mut fresh = false;
        let file = shard
            .entry(view.attr.ino)
            .or_insert_with(|| {
                fresh = true;
                Arc::new(File::new(view))
            })
            .clone();
        if !fresh {
            file.adopt(view, epoch.unwrap_or(u64::MAX));
        }
        let mut known = file.known.lock();
        known.opens.push(access);
        drop(known);
        file
    }

    /// Forgets a file that nobody needs any more.
    pub(crate) fn reap(&self, file: &Arc<File>) {
        let mut shard = self.shard(file.ino).lock();
        let unused = file.access_count() == 0
            && file.cached_bytes.load(SeqCst) == 0
            && file.dirty_bytes.load(SeqCst) == 0
            && file.fills_under_way.load(SeqCst) == 0;
        if unused && shard.get(&file.ino).is_some_and(|f| Arc::ptr_eq(f, file)) {
            shard.remove(&file.ino);
        }
    }

    /// All files, in order of inodes.
    pub(crate) fn all(&self) -> Vec<Arc<File>> {
        let mut all: Vec<_> = self.shards.iter().flat_map(|s| s.lock().values().cloned().collect::<Vec<_>>()).collect();
        all.sort_by_key(|f| f.ino);
        all
    }
}
