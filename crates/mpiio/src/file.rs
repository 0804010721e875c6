//! One cached file, as the rank that has it open sees it.
//!
//! Owns the order in which a call takes page locks, the assignment of frames to pages, and the file's length as the
//! ranks see it. `read`, `write` and `flush` are its parts. Does not own the meaning of MPI calls: it is given ranges
//! of the file in ascending order and one piece of memory.
//!
//! Invariants:
//! * At most one frame of all ranks contains a page. The number of that frame is in the metadata of the page, and
//!   changes only under the exclusive lock of the page.
//! * Dirty bytes are valid. Valid bytes of a frame are the content of the file for all ranks. All other bytes can be
//!   read from the file system, because a frame writes its dirty bytes before it loses them.
//! * A call holds the locks of all pages that it touches before it releases the first, so each call is atomic, also one
//!   of many ranges. The length grows before the locks are released, so a caller that sees the new length waits for the
//!   bytes.
//! * Each rank has a fixed number of frames, which bounds the memory. Pages without a frame are read and written in the
//!   file system under their locks.

use crate::backend::Backend;
use crate::error::{Error, Outcome};
use crate::locks::{Locks, Mode};
use crate::pace::Pace;
use crate::pool::Pool;
use crate::segment::{NO_PAGE, Segment};
use crate::stats::Stats;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

mod balance;
pub mod copies;
mod flush;
pub mod group;
pub mod idle;
pub mod migrate;
mod prefetch;
mod read;
mod write;

/// A range of the file. Its bytes in memory follow those of the previous ranges.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the file.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// How a rank uses a file.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The file system lets us read.
    pub readable: bool,
    /// The file system lets us write.
    pub writable: bool,
    /// Requests of more bytes take whole uncached pages past the cache.
    pub bypass_bytes: u64,
    /// Requests for one range of at least this many bytes bypass the cache too, reads only the first time; 0 means
    /// never.
    pub stream_bytes: u64,
    /// Reads of ranges of at least this many bytes leave uncached pages to a cache below, which all ranks share; 0:
    /// never.
    pub aside_bytes: u64,
    /// No other process writes the file, so a page with many dirty parts may be read and then written as one part.
    pub merge_parts: bool,
    /// Largest run of a flush; a multiple of the page.
    pub run_bytes: u64,
    /// How many bytes are read ahead of a rank that reads consecutive ranges; 0 means none.
    pub prefetch_bytes: u64,
}

/// How many frames an eviction examines before it gives up.
const EVICTION_TRIES: usize = 64;

/// Pages with more bytes than this do not move to other nodes, and no message contains more of a page.
pub const HANDOVER_BYTES: usize = 16 << 20;

/// A file that the ranks of a node have open together, from the view of one of them.
pub struct CachedFile {
    locks: Locks,
    backend: Box<dyn Backend>,
    settings: Settings,
    pool: Pool,
    stats: Stats,
    /// Pages that the present call holds, in the order in which it took them.
    held: Vec<(u64, Mode)>,
    /// Number of whole uncached pages that this rank has written in a row, without a read in between.
    once: u32,
    /// The error that interrupted a release of locks; the next call returns it.
    broken: Option<Error>,
    moves: migrate::Moves,
    /// How far the memory of the frames is prepared (`Segment::prepare`).
    prepared: u64,
    /// The page behind the last read.
    next_read: u64,
}

/// A part of a request within one page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) page: u64,
    /// Range within the page.
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// The offset in the memory of the request.
    pub(crate) memory: usize,
    /// Length of the range of which this is a part.
    pub(crate) of_bytes: u64,
}

impl Piece {
    pub(crate) fn length(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub(crate) fn memory_range(&self) -> std::ops::Range<usize> {
        self.memory..self.memory + self.length()
    }
}

impl CachedFile {
    /// Opens the file over shared memory that all ranks have mapped.
    pub fn new(segment: Segment, backend: Box<dyn Backend>, settings: Settings, pace: Arc<dyn Pace>) -> Self {
        let pool = Pool::new(segment.geometry().frames_per_rank);
        let page = u64::from(segment.geometry().page_bytes);
        let run_bytes = (settings.run_bytes / page).max(1) * page;
        let settings = Settings { run_bytes, ..settings };
        let locks = Locks { segment, pace };
        CachedFile {
            locks,
            backend,
            settings,
            pool,
            stats: Stats::default(),
            held: Vec::new(),
            once: 0,
            broken: None,
            moves: migrate::Moves::default(),
            prepared: 0,
            next_read: u64::MAX,
        }
    }

    fn segment(&self) -> &Segment {
        &self.locks.segment
    }

    fn page_bytes(&self) -> u64 {
        u64::from(self.segment().geometry().page_bytes)
    }

    /// The length of the file, including cached bytes beyond its end on the file system.
    pub fn size(&self) -> u64 {
        self.segment().header().size.load(SeqCst)
    }

    /// The counters of this rank.
    pub fn stats(&self) -> Stats {
        Stats { fs_direct: self.backend.direct_requests(), ..self.stats }
    }

    /// Publishes the counters for readers outside; called at the end of a call.
    pub fn publish(&self) {
        self.segment().publish(&self.stats().values());
    }

    /// A request was sent to another node on behalf of this rank.
    pub fn count_asked(&mut self) {
        self.stats.asked += 1;
    }

    /// The shared memory.
    pub fn memory(&self) -> &Segment {
        &self.locks.segment
    }

    /// Adds to the shared pointer and returns its previous value.
    pub fn pointer_add(&self, add: u64) -> u64 {
        self.segment().header().pointer.fetch_add(add, SeqCst)
    }

    /// Sets the shared pointer.
    pub fn pointer_set(&self, value: u64) {
        self.segment().header().pointer.store(value, SeqCst);
    }

    /// The shared pointer.
    pub fn pointer(&self) -> u64 {
        self.segment().header().pointer.load(SeqCst)
    }

    /// The first error of a write for which no rank waited, as an errno value; 0 means none.
    pub fn late_error(&self) -> i32 {
        self.segment().header().late_error.load(Acquire)
    }

    /// Forgets the late error, after every rank has seen it.
    pub fn clear_late_error(&self) {
        self.segment().header().late_error.store(0, Release);
    }

    fn note_late_error(&self, error: Error) {
        let cell = &self.segment().header().late_error;
        let _ = cell.compare_exchange(0, error.errno(), SeqCst, SeqCst);
    }

    /// Makes the data that was written to the file system stable, if there was any since the last time. After a failure
    /// the system may have dropped data that it could not write, and may report success for the next sync; so the
    /// failure is remembered.
    pub fn sync_backend(&mut self) -> Outcome {
        self.no_sync_failed()?;
        // Another rank may be syncing now: what it makes stable counts only when it is.
        let changes = self.segment().header().changes.given.load(SeqCst);
        if self.segment().header().changes.stable.load(SeqCst) >= changes {
            return Ok(());
        }
        self.stats.fs_syncs += 1;
        let result = self.backend.sync();
        match result {
            Ok(()) => {
                // The system reports a failure to one rank only, if they use the same descriptor.
                self.no_sync_failed()?;
                self.segment().header().changes.stable.fetch_max(changes, SeqCst);
            }
            Err(error) => self.segment().header().sync_error.store(error.errno(), SeqCst),
        }
        result
    }

    fn no_sync_failed(&self) -> Outcome {
        match self.segment().header().sync_error.load(SeqCst) {
            0 => Ok(()),
            errno => Err(Error::Os { doing: "sync again", errno }),
        }
    }

    /// Called when the file system was given something that the next sync has to make stable.
    fn note_change(&self) {
        self.segment().header().changes.given.fetch_add(1, SeqCst);
    }

    /// Sets the length in the file system and for the ranks. One rank calls it, when nothing is cached and no other
    /// call is under way.
    pub fn set_size(&mut self, size: u64) -> Outcome {
        self.backend.set_size(size)?;
        self.note_change();
        self.segment().header().size.store(size, SeqCst);
        Ok(())
    }

    /// Allocates the space of the first `size` bytes; a shorter file gets this length. One rank calls it.
    pub fn allocate(&mut self, size: u64) -> Outcome {
        self.backend.allocate(size)?;
        self.note_change();
        self.segment().header().size.fetch_max(size, SeqCst);
        Ok(())
    }

    /// Reads the length from the file system, since others may have changed it. One rank calls it, when nothing is
    /// cached.
    pub fn refresh_size(&mut self) -> Outcome {
        let size = self.backend.size()?;
        self.segment().header().size.store(size, SeqCst);
        Ok(())
    }

    /// Leaves the file in a consistent state. Bytes that were not flushed before stay for the ranks that still have it
    /// open.
    pub fn leave(&self) {
        self.segment().leave();
    }

    /// Begins a call.
    fn begin(&mut self) -> Outcome {
        debug_assert!(self.held.is_empty());
        self.usable()
    }

    fn usable(&self) -> Outcome {
        if let Some(error) = self.broken {
            return Err(error);
        }
        self.locks.check_ended()
    }

    /// Locks a page for the present call.
    fn hold(&mut self, page: u64, mode: Mode) -> Outcome {
        let waited = self.locks.lock(page, mode)?;
        self.stats.lock_waits += u64::from(waited);
        self.held.push((page, mode));
        self.locks.pace.point();
        Ok(())
    }

    /// One step of a call over several nodes, which writes and keeps the locks. The steps of a call ascend, and no page
    /// is in two of them. The caller releases, also after an error. The step ends before a page that moved to another
    /// node, and returns how many bytes it wrote.
    pub fn write_held(&mut self, extents: &[Extent], memory: &[u8]) -> Outcome<u64> {
        self.usable()?;
        if !self.settings.writable {
            return Err(Error::NotOpenFor("writing"));
        }
        let total = check(extents, memory.len())?;
        self.write_pages(extents, memory, total, &mut 0)
    }

    /// Works as `write_held`, for a read of ranges below the end of the file.
    pub fn read_held(&mut self, extents: &[Extent], memory: &mut [u8]) -> Outcome<u64> {
        self.usable()?;
        if !self.settings.readable {
            return Err(Error::NotOpenFor("reading"));
        }
        let total = check(extents, memory.len())?;
        self.read_pages(extents, memory, total, u64::MAX)
    }

    /// Returns whether the present call holds locks.
    pub fn holds(&self) -> bool {
        !self.held.is_empty() || self.has_leaving()
    }

    /// Called when the present call holds all of its locks and has done its work.
    pub fn commit(&self) {
        self.locks.pace.committed();
    }

    /// Called when the rank has ended or can no longer be reached: the locks that it holds are never released.
    pub fn give_up(&self) {
        self.segment().header().ended.store(self.segment().rank() + 1, SeqCst);
    }

    /// Counts a call whose steps ran on several nodes.
    pub fn count_call(&mut self, read: Option<u64>, written: Option<u64>) {
        self.stats.calls_read += u64::from(read.is_some());
        self.stats.bytes_read += read.unwrap_or(0);
        self.stats.calls_write += u64::from(written.is_some());
        self.stats.bytes_written += written.unwrap_or(0);
    }

    /// The file is at least this long.
    pub fn grow(&self, size: u64) {
        self.segment().header().size.fetch_max(size, SeqCst);
    }

    /// The file has this length, as all ranks have agreed.
    pub fn agree_size(&self, size: u64) {
        self.segment().header().size.store(size, SeqCst);
    }

    /// Sets whether calls of this node release each page as soon as they no longer need it.
    pub fn relax(&self, on: bool) {
        self.segment().header().relaxed.store(u32::from(on), SeqCst);
    }

    /// Returns whether a request is for one long range, as programs write or read them once.
    fn is_stream(&self, extents: &[Extent], total: u64) -> bool {
        let least = self.settings.stream_bytes;
        least > 0 && total >= least && extents.iter().filter(|e| e.length > 0).count() == 1
    }

    fn is_relaxed(&self) -> bool {
        self.segment().header().relaxed.load(SeqCst) != 0
    }

    /// How the rank uses the file.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Releases the locks that the present call holds.
    pub fn release(&mut self) {
        self.keep_pages();
        for (page, mode) in std::mem::take(&mut self.held) {
            if let Err(error) = self.locks.unlock(page, mode) {
                self.broken.get_or_insert(error);
            }
        }
    }

    /// The frame that has a page which the caller has locked.
    fn frame_of(&self, page: u64) -> Outcome<Option<u32>> {
        Ok(self.segment().meta(page)?.frame.load(Acquire).checked_sub(1))
    }

    /// Remembers a use of a frame.
    fn touch(&mut self, frame: u32) {
        let per_rank = self.segment().geometry().frames_per_rank;
        if frame / per_rank == self.segment().rank() {
            self.pool.touch(frame % per_rank);
        }
    }

    fn is_remote(&self, frame: u32) -> bool {
        frame / self.segment().geometry().frames_per_rank != self.segment().rank()
    }

    /// A frame for a page that the caller holds exclusively and that is not cached; none when all are in use.
    fn allocate_frame(&mut self, page: u64) -> Outcome<Option<u32>> {
        let own = match self.pool.take_free() {
            Some(own) => own,
            None if self.reclaim_vacated() || self.evict()? => match self.pool.take_free() {
                Some(own) => own,
                None => return Ok(None),
            },
            None => {
                self.stats.uncached += 1;
                return Ok(None);
            }
        };
        let segment = self.segment();
        let frame = segment.rank() * segment.geometry().frames_per_rank + own;
        let used = segment.rank_cell(segment.rank()).frames_used.fetch_max(own + 1, SeqCst);
        if used <= own {
            self.locks.segment.prepare(frame, &mut self.prepared);
        }
        let segment = self.segment();
        segment.assign(frame, page);
        segment.meta(page)?.frame.store(frame + 1, Release);
        Ok(Some(frame))
    }

    /// Frees the frame that was not used for longest and whose page is not locked.
    fn evict(&mut self) -> Outcome<bool> {
        let segment = self.segment();
        let first = segment.rank() * segment.geometry().frames_per_rank;
        let candidates: Vec<u32> = self.pool.oldest_first().take(EVICTION_TRIES).collect();
        for own in candidates {
            let frame = first + own;
            let page = self.segment().page_of(frame);
            self.locks.pace.point();
            if page == NO_PAGE {
                self.pool.release(own);
                return Ok(true);
            }
            if !self.locks.try_lock(page)? {
                continue;
            }
            if self.frame_of(page)? != Some(frame) {
                // The page has moved to another node meanwhile.
                self.locks.unlock(page, Mode::Exclusive)?;
                self.pool.release(own);
                return Ok(true);
            }
            let written = self.write_cluster(page, frame);
            if let Err(error) = &written {
                // The bytes stay; the next flush tries again, and sync and close report it on every rank.
                self.note_late_error(*error);
                self.locks.unlock(page, Mode::Exclusive)?;
                continue;
            }
            self.segment().meta(page)?.frame.store(0, Release);
            self.locks.unlock(page, Mode::Exclusive)?;
            self.pool.release(own);
            self.stats.evictions += 1;
            return Ok(true);
        }
        Ok(false)
    }

    /// Writes the dirty bytes of a page that is locked exclusively, and those of its dirty neighbours in the same run
    /// that can be had without waiting, so that an eviction, too, leaves long runs.
    fn write_cluster(&mut self, page: u64, frame: u32) -> Outcome {
        if !self.segment().looks_dirty(frame) {
            return Ok(());
        }
        let run_pages = self.settings.run_bytes / self.page_bytes();
        let first = page / run_pages * run_pages;
        let mut cluster = vec![(page, frame)];
        let mut extra = Vec::new();
        for neighbour in (first..page).rev() {
            let Some(found) = self.try_dirty(neighbour)? else { break };
            extra.push(neighbour);
            cluster.insert(0, (neighbour, found));
        }
        for neighbour in page + 1..first + run_pages {
            let Some(found) = self.try_dirty(neighbour)? else { break };
            extra.push(neighbour);
            cluster.push((neighbour, found));
        }
        let result = self.write_dirty(&cluster);
        for neighbour in extra {
            self.locks.unlock(neighbour, Mode::Exclusive)?;
        }
        result
    }

    /// Locks a page that is cached and dirty if that needs no waiting, and returns its frame.
    fn try_dirty(&self, page: u64) -> Outcome<Option<u32>> {
        // A page without metadata is not cached, and this call must not make any for it.
        let hint = self.segment().find_meta(page).and_then(|meta| meta.frame.load(Acquire).checked_sub(1));
        if !hint.is_some_and(|frame| self.segment().looks_dirty(frame)) || !self.locks.try_lock(page)? {
            return Ok(None);
        }
        match self.frame_of(page)? {
            Some(frame) if self.segment().looks_dirty(frame) => Ok(Some(frame)),
            _ => {
                self.locks.unlock(page, Mode::Exclusive)?;
                Ok(None)
            }
        }
    }

    fn fs_read(&mut self, buffer: &mut [u8], offset: u64) -> Outcome<usize> {
        if !self.settings.readable {
            return Err(Error::NotOpenFor("reading"));
        }
        self.stats.fs_reads += 1;
        let n = self.backend.read_at(buffer, offset)?;
        self.stats.fs_read_bytes += n as u64;
        Ok(n)
    }

    fn fs_write(&mut self, parts: &[IoSlice<'_>], offset: u64) -> Outcome {
        let bytes: u64 = parts.iter().map(|p| p.len() as u64).sum();
        let (page, end) = (self.page_bytes(), offset + bytes);
        self.stats.fs_writes += 1;
        self.stats.fs_write_bytes += bytes;
        let aligned = offset.is_multiple_of(page) && (end.is_multiple_of(page) || end >= self.size());
        self.stats.fs_writes_aligned += u64::from(aligned);
        let result = self.backend.write_at(parts, offset);
        self.note_change();
        result
    }
}

/// Checks a request: ascending ranges without overlap, as long as the memory, within the limits of a file.
pub(crate) fn check(extents: &[Extent], memory: usize) -> Outcome<u64> {
    let mut total = 0u64;
    let mut at = 0u64;
    for extent in extents {
        let end = extent.offset.checked_add(extent.length).filter(|end| *end <= i64::MAX as u64);
        let Some(end) = end else { return Err(Error::Refused("a range lies beyond the largest file")) };
        if extent.offset < at {
            return Err(Error::Refused("the ranges of a request have to ascend"));
        }
        at = end;
        total += extent.length;
    }
    if total != memory as u64 {
        return Err(Error::Refused("the ranges of a request have another length than its memory"));
    }
    Ok(total)
}

/// The request cut at page boundaries, and at `limit` in the file.
pub(crate) fn pieces(extents: &[Extent], page_bytes: u64, limit: u64) -> impl Iterator<Item = Piece> {
    let mut memory = 0usize;
    extents.iter().flat_map(move |extent| {
        let begin = memory;
        memory += extent.length as usize;
        let end = (extent.offset + extent.length).min(limit);
        let mut at = extent.offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let page = at / page_bytes;
            let stop = end.min((page + 1).saturating_mul(page_bytes));
            let piece = Piece {
                page,
                start: (at - page * page_bytes) as u32,
                end: (stop - page * page_bytes) as u32,
                memory: begin + (at - extent.offset) as usize,
                of_bytes: extent.length,
            };
            at = stop;
            Some(piece)
        })
    })
}
