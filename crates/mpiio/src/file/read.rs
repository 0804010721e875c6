//! Reads: from frames, or directly from the file system if no frame is free or caching would not pay. Frames are filled
//! page by page or, if a request covers several uncached pages, by runs.
//!
//! A frame does not pay in three cases: for pages of a request that is larger than the memory; for a long range that is
//! read for the first time (it may be the only time; the second reader fills frames, which serve all others); and for
//! ranges that a cache below serves as well, with one copy less and without a page lock. Such pages are locked during
//! the read like all others, so the call is as atomic.

use super::{CachedFile, Extent, Piece, check, pieces};
use crate::error::{Error, Outcome};
use crate::intervals::{contains, holes};
use crate::locks::Mode;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// How a call treats pages that no rank has cached.
#[derive(Clone, Copy)]
struct Absent {
    /// Whole pages are read past the cache.
    past: bool,
    /// Whole pages are read past the cache if no rank has read them in this way before.
    first: bool,
}

/// A run that comes past the cache.
#[derive(Default)]
struct Run {
    offset: u64,
    memory: Range<usize>,
}

/// Uncached pages that one request reads: they follow each other in the file, and so do their frames. Each page is held
/// exclusively, and nothing of it is valid yet.
#[derive(Default)]
struct Missing {
    pages: Vec<(u64, u32, Vec<Piece>)>,
}

impl Missing {
    fn goes_on_with(&self, page: u64, frame: u32, most: usize) -> bool {
        self.pages.len() < most && self.pages.last().is_some_and(|last| (last.0 + 1, last.1 + 1) == (page, frame))
    }
}

impl CachedFile {
    /// Reads the ranges into the memory, as one atomic step for all ranks. A read ends at the end of the file. It
    /// returns how many bytes there were, and does not change the memory behind them.
    pub fn read(&mut self, extents: &[Extent], memory: &mut [u8]) -> Outcome<u64> {
        self.begin()?;
        if !self.settings.readable {
            return Err(Error::NotOpenFor("reading"));
        }
        let total = check(extents, memory.len())?;
        let wanted = extents.iter().filter(|e| e.length > 0).map(|e| e.offset + e.length).max().unwrap_or(0);
        let done = loop {
            let size = self.size();
            self.locks.pace.point();
            let result = self.read_pages(extents, memory, total, size);
            // Here the call holds every lock. If a write has made the file longer meanwhile, it precedes this read in
            // some of its pages, so the read has to see all of it.
            let grown = self.size() > size && wanted > size;
            if result.is_ok() && !grown {
                self.locks.pace.committed();
            }
            self.release();
            let done = result?;
            if !grown {
                break done;
            }
        };
        self.stats.calls_read += 1;
        self.stats.bytes_read += done;
        Ok(done)
    }

    pub(super) fn read_pages(&mut self, extents: &[Extent], memory: &mut [u8], total: u64, size: u64) -> Outcome<u64> {
        // The rank may read the bytes that it writes.
        self.once = 0;
        let page_bytes = self.page_bytes();
        let absent = Absent { past: total > self.settings.bypass_bytes, first: self.is_stream(extents, total) };
        let (mut done, mut run, mut group) = (0u64, Run::default(), Vec::new());
        let (mut span, fills) = (None, self.stats.fills);
        let mut missing = Missing::default();
        let mut all = pieces(extents, page_bytes, size).peekable();
        while let Some(piece) = all.next() {
            group.push(piece);
            if all.peek().is_some_and(|next| next.page == piece.page) {
                continue;
            }
            if !self.read_group(&group, memory, absent, (&mut run, &mut missing))? {
                break;
            }
            span = Some((span.map_or(piece.page, |(first, _)| first), piece.page));
            done += group.iter().map(|piece| piece.length() as u64).sum::<u64>();
            group.clear();
        }
        self.read_missing(&mut missing, memory)?;
        self.read_run(&run, memory)?;
        if self.settings.prefetch_bytes > 0
            && let Some((first, last)) = span
        {
            self.read_ahead(first, last, self.stats.fills > fills)?;
        }
        Ok(done)
    }

    /// Reads the pieces of one page; false: the page moved to another node. Pages that are read past the cache join the
    /// run, and other uncached pages join those that are read together.
    fn read_group(
        &mut self,
        group: &[Piece],
        memory: &mut [u8],
        absent: Absent,
        (run, missing): (&mut Run, &mut Missing),
    ) -> Outcome<bool> {
        let page = group[0].page;
        if run.memory.is_empty() && missing.pages.is_empty() && self.is_relaxed() {
            self.release();
        }
        let mode = self.mode_to_read(page)?;
        if !self.hold_here(page, mode)? {
            return Ok(false);
        }
        self.refer_to_read(page)?;
        let mut frame = self.frame_of(page)?;
        if frame.is_none() && self.comes_past(group, absent)? {
            group.iter().try_for_each(|piece| self.join_run(run, piece, memory))?;
            return Ok(true);
        }
        let valid =
            |file: &Self, frame| group.iter().all(|p| contains(file.segment().valid_shared(frame), p.start, p.end));
        if frame.is_some_and(|frame| valid(self, frame)) {
            self.stats.hits += 1;
        } else {
            // Nothing was read under the shared lock, so releasing it and requesting the exclusive one keeps the call
            // atomic, and the page is the highest one so far, so the order stays.
            if mode == Mode::Shared {
                self.held.pop();
                self.locks.unlock(page, Mode::Shared)?;
                if !self.hold_here(page, Mode::Exclusive)? {
                    return Ok(false);
                }
            }
            frame = self.frame_of(page)?;
            if frame.is_none() {
                frame = self.allocate_frame(page)?;
            }
            if let Some(frame) = frame
                && self.segment().valid(frame).as_slice().is_empty()
            {
                let most = (self.settings.run_bytes / self.page_bytes()) as usize;
                if !missing.goes_on_with(page, frame, most) {
                    self.read_missing(missing, memory)?;
                }
                missing.pages.push((page, frame, group.to_vec()));
                return Ok(true);
            }
            if let Some(frame) = frame
                && !valid(self, frame)
            {
                self.fill(page, frame)?;
            }
            self.share(page)?;
        }
        self.locks.pace.point();
        let Some(frame) = frame else {
            return self.read_uncached(group, memory).map(|()| true);
        };
        self.stats.remote += u64::from(self.is_remote(frame));
        self.touch(frame);
        self.offer_copy(page, frame)?;
        let bytes = self.locks.segment.bytes(frame);
        for piece in group {
            memory[piece.memory_range()].copy_from_slice(&bytes[piece.start as usize..piece.end as usize]);
        }
        Ok(true)
    }

    /// Returns whether the pieces of an uncached, locked page are read past the cache.
    fn comes_past(&self, group: &[Piece], absent: Absent) -> Outcome<bool> {
        let aside = self.settings.aside_bytes;
        if aside > 0 && group.iter().all(|piece| piece.of_bytes >= aside) {
            return Ok(true);
        }
        let whole = group.len() == 1 && group[0].length() as u64 == self.page_bytes();
        if !whole || !(absent.past || absent.first) {
            return Ok(false);
        }
        let again = self.segment().meta(group[0].page)?.streamed.swap(1, Relaxed) != 0;
        Ok(absent.past || !again)
    }

    /// Adds a piece to the run that is read past the cache, or reads that run and begins another one with the piece.
    fn join_run(&mut self, run: &mut Run, piece: &Piece, memory: &mut [u8]) -> Outcome {
        let (offset, range) = (piece.page * self.page_bytes() + u64::from(piece.start), piece.memory_range());
        let follows = run.memory.end == range.start && run.offset + run.memory.len() as u64 == offset;
        if run.memory.is_empty() || !follows {
            self.read_run(run, memory)?;
            *run = Run { offset, memory: range };
        } else {
            run.memory.end = range.end;
        }
        Ok(())
    }

    /// Turns the exclusive lock of a page of this call into a shared one.
    fn share(&mut self, page: u64) -> Outcome {
        self.locks.downgrade(page)?;
        if let Some(held) = self.held.iter_mut().rev().find(|held| held.0 == page) {
            held.1 = Mode::Shared;
        }
        Ok(())
    }

    /// Reads the missing pages with one request, and copies the requested bytes from them.
    fn read_missing(&mut self, missing: &mut Missing, memory: &mut [u8]) -> Outcome {
        let Some(&(first, frame, _)) = missing.pages.first() else { return Ok(()) };
        if !self.settings.readable {
            return Err(Error::NotOpenFor("reading"));
        }
        let page_bytes = self.page_bytes();
        self.stats.fills += missing.pages.len() as u64;
        self.stats.fs_reads += 1;
        let bytes = self.locks.segment.bytes_of_run_mut(frame, missing.pages.len() as u32);
        let n = self.backend.read_at(bytes, first * page_bytes)?;
        bytes[n..].fill(0);
        self.stats.fs_read_bytes += n as u64;
        for (page, frame, pieces) in missing.pages.drain(..) {
            let inserted = self.segment().valid(frame).insert(0, page_bytes as u32);
            assert!(inserted, "an empty list has room for a range");
            self.share(page)?;
            self.locks.pace.point();
            self.stats.remote += u64::from(self.is_remote(frame));
            self.touch(frame);
            self.offer_copy(page, frame)?;
            let bytes = self.locks.segment.bytes(frame);
            for piece in pieces {
                memory[piece.memory_range()].copy_from_slice(&bytes[piece.start as usize..piece.end as usize]);
            }
        }
        Ok(())
    }

    /// Reads pieces of an uncached page for which there is no free frame, while it is locked.
    fn read_uncached(&mut self, group: &[Piece], memory: &mut [u8]) -> Outcome {
        for piece in group {
            let offset = piece.page * self.page_bytes() + u64::from(piece.start);
            let part = &mut memory[piece.memory_range()];
            let n = self.fs_read(part, offset)?;
            part[n..].fill(0);
        }
        Ok(())
    }

    fn read_run(&mut self, run: &Run, memory: &mut [u8]) -> Outcome {
        if run.memory.is_empty() {
            return Ok(());
        }
        let part = &mut memory[run.memory.clone()];
        self.stats.stream_bytes += part.len() as u64;
        let n = self.fs_read(part, run.offset)?;
        // The file is longer for the ranks than on the file system; what is not cached between is a hole.
        part[n..].fill(0);
        Ok(())
    }

    /// Makes all of a page valid; the page is locked exclusively and is valid in parts. Bytes behind the end of the
    /// file are zeros.
    pub(super) fn fill(&mut self, page: u64, frame: u32) -> Outcome {
        if !self.settings.readable {
            return Err(Error::NotOpenFor("reading"));
        }
        let page_bytes = self.page_bytes();
        let offset = page * page_bytes;
        self.stats.fills += 1;
        self.stats.fs_reads += 1;
        let lacking = holes(self.segment().valid(frame).as_slice(), 0, page_bytes as u32);
        if let (Some(first), Some(last)) = (lacking.first(), lacking.last()) {
            let (from, to) = (first.start as usize, last.end as usize);
            let mut fresh = vec![0u8; to - from];
            let n = self.backend.read_at(&mut fresh, offset + from as u64)?;
            fresh[n..].fill(0);
            self.stats.fs_read_bytes += n as u64;
            let bytes = self.segment().bytes_mut(frame);
            for hole in &lacking {
                let (a, b) = (hole.start as usize, hole.end as usize);
                bytes[a..b].copy_from_slice(&fresh[a - from..b - from]);
            }
        }
        let mut valid = self.segment().valid(frame);
        valid.clear();
        let inserted = valid.insert(0, page_bytes as u32);
        assert!(inserted, "an empty list has room for a range");
        Ok(())
    }
}
