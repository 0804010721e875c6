//! Writes: into frames, or, for whole pages of large requests that nobody caches, straight to the file system. So do
//! whole pages of a rank that writes nothing else and comes back to none of them.

use super::{CachedFile, Extent, Piece, check, pieces};
use crate::error::{Error, Outcome};
use crate::locks::Mode;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// A run of whole pages that goes past the cache.
#[derive(Default)]
struct Run {
    offset: u64,
    memory: Range<usize>,
}

impl CachedFile {
    /// Writes the memory to the ranges, as one atomic step for all ranks.
    pub fn write(&mut self, extents: &[Extent], memory: &[u8]) -> Outcome<u64> {
        self.begin()?;
        if !self.settings.writable {
            return Err(Error::NotOpenFor("writing"));
        }
        let total = check(extents, memory.len())?;
        if total == 0 {
            return Ok(0);
        }
        let mut end = 0;
        let result = self.write_pages(extents, memory, total, &mut end);
        // Before the locks go: whoever sees the new length waits for the bytes.
        self.locks.segment.header().size.fetch_max(end, SeqCst);
        if result.is_ok() {
            self.locks.pace.committed();
        }
        self.locks.pace.point();
        self.release();
        result?;
        self.stats.calls_write += 1;
        self.stats.bytes_written += total;
        Ok(total)
    }

    pub(super) fn write_pages(&mut self, extents: &[Extent], memory: &[u8], total: u64, end: &mut u64) -> Outcome<u64> {
        let page_bytes = self.page_bytes();
        let past_cache = self.is_stream(extents, total) || total > self.settings.bypass_bytes;
        let (mut run, mut done) = (Run::default(), 0);
        for piece in pieces(extents, page_bytes, u64::MAX) {
            if self.held.last().is_none_or(|(page, _)| *page != piece.page) {
                if run.memory.is_empty() && self.is_relaxed() {
                    self.grow(*end);
                    self.release();
                }
                if !self.hold_here(piece.page, Mode::Exclusive)? {
                    break;
                }
                self.refer(piece.page)?;
            }
            // The lock stays, so that nobody gets a new copy before the write goes on.
            if self.has_copies_elsewhere(piece.page)? {
                break;
            }
            done += piece.length() as u64;
            let offset = piece.page * page_bytes + u64::from(piece.start);
            let whole = piece.length() as u64 == page_bytes && self.frame_of(piece.page)?.is_none();
            let once = whole && self.is_written_once();
            if whole && (past_cache || once) {
                self.stats.once_pages += u64::from(once && !past_cache);
                let follows = run.memory.end == piece.memory && run.offset + run.memory.len() as u64 == offset;
                if run.memory.is_empty() || !follows {
                    self.write_run(&run, memory)?;
                    run = Run { offset, memory: piece.memory_range() };
                } else {
                    run.memory.end = piece.memory_range().end;
                }
            } else {
                self.write_run(&run, memory)?;
                run = Run::default();
                self.write_piece(piece, &memory[piece.memory_range()])?;
            }
            if run.memory.is_empty() {
                *end = (*end).max(offset + piece.length() as u64);
            }
        }
        self.write_run(&run, memory)?;
        *end = (*end).max(run.offset + run.memory.len() as u64);
        Ok(done)
    }

    /// Whether the rank seems to write large data once, which the cache would only copy: it has filled its memory with
    /// whole pages that nobody had, and has read nothing and come back to nothing meanwhile. Called for a whole page
    /// that nobody has.
    fn is_written_once(&mut self) -> bool {
        self.once = self.once.saturating_add(1);
        self.settings.stream_bytes > 0 && self.once > self.segment().geometry().frames_per_rank
    }

    fn write_run(&mut self, run: &Run, memory: &[u8]) -> Outcome {
        if run.memory.is_empty() {
            return Ok(());
        }
        self.stats.stream_bytes += run.memory.len() as u64;
        self.fs_write(&[IoSlice::new(&memory[run.memory.clone()])], run.offset)
    }

    /// Puts bytes into a page that is locked exclusively.
    fn write_piece(&mut self, piece: Piece, bytes: &[u8]) -> Outcome {
        let frame = match self.frame_of(piece.page)? {
            Some(frame) => {
                self.once = 0;
                self.stats.hits += 1;
                self.stats.remote += u64::from(self.is_remote(frame));
                self.touch(frame);
                frame
            }
            None => match self.allocate_frame(piece.page)? {
                Some(frame) => frame,
                None => {
                    let offset = piece.page * self.page_bytes() + u64::from(piece.start);
                    return self.fs_write(&[IoSlice::new(bytes)], offset);
                }
            },
        };
        let segment = self.segment();
        let room = segment.valid(frame).has_room_for(piece.start, piece.end)
            && segment.dirty(frame).has_room_for(piece.start, piece.end);
        if !room {
            // The file system gets the dirty bytes, and the page starts afresh. Nothing is marked before that has
            // succeeded, since a range that counts as valid has to hold its bytes.
            self.write_dirty(&[(piece.page, frame)])?;
            self.segment().valid(frame).clear();
        }
        let segment = self.segment();
        let marked =
            segment.valid(frame).insert(piece.start, piece.end) && segment.dirty(frame).insert(piece.start, piece.end);
        assert!(marked, "there is room for a range");
        segment.changes(frame).fetch_add(1, Relaxed);
        self.locks.pace.point();
        self.segment().bytes_mut(frame)[piece.start as usize..piece.end as usize].copy_from_slice(bytes);
        Ok(())
    }
}
