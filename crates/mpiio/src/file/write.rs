//! Writes: into frames, or, for uncached whole pages of large requests, straight to the file system. Whole pages of a
//! rank that writes nothing else, and uses none of them again, bypass the cache too.

use super::{CachedFile, Extent, Piece, check, pieces};
use crate::error::{Error, Outcome};
use crate::intervals::Span;
use crate::locks::Mode;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// From this number on, pieces in one page are added to its lists in one pass.
const MANY_PIECES: usize = 4;

/// A run of whole pages that is written past the cache.
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
        // This comes before the locks are released, so a rank that sees the new length waits for the bytes.
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
        let (mut run, mut done, mut group) = (Run::default(), 0, Vec::new());
        let mut all = pieces(extents, page_bytes, u64::MAX).peekable();
        while let Some(piece) = all.next() {
            group.push(piece);
            if all.peek().is_some_and(|next| next.page == piece.page) {
                continue;
            }
            let page = piece.page;
            if self.held.last().is_none_or(|(last, _)| *last != page) {
                if run.memory.is_empty() && self.is_relaxed() {
                    self.grow(*end);
                    self.release();
                }
                if !self.hold_here(page, Mode::Exclusive)? {
                    break;
                }
                self.refer(page)?;
            }
            // The lock is kept, so that no node gets a new copy before the write continues.
            if self.has_copies_elsewhere(page)? {
                break;
            }
            done += group.iter().map(|piece| piece.length() as u64).sum::<u64>();
            let offset = page * page_bytes + u64::from(piece.start);
            let whole = piece.length() as u64 == page_bytes && self.frame_of(page)?.is_none();
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
                self.write_group(&group, memory)?;
            }
            if run.memory.is_empty() {
                *end = (*end).max(offset + piece.length() as u64);
            }
            group.clear();
        }
        self.write_run(&run, memory)?;
        *end = (*end).max(run.offset + run.memory.len() as u64);
        Ok(done)
    }

    /// Returns whether the rank seems to write large data once, which the cache would only copy. This is so if the rank
    /// has filled its memory with whole pages that no rank had cached, and has since read nothing and used none of
    /// these pages again. It is called for a whole uncached page.
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

    /// Puts the pieces of one page, which is locked exclusively, into its frame.
    fn write_group(&mut self, group: &[Piece], memory: &[u8]) -> Outcome {
        let page = group[0].page;
        let frame = match self.frame_of(page)? {
            Some(frame) => {
                self.once = 0;
                self.stats.hits += group.len() as u64;
                self.stats.remote += if self.is_remote(frame) { group.len() as u64 } else { 0 };
                self.touch(frame);
                frame
            }
            None => match self.allocate_frame(page)? {
                Some(frame) => frame,
                None => {
                    return group.iter().try_for_each(|piece| {
                        let offset = page * self.page_bytes() + u64::from(piece.start);
                        self.fs_write(&[IoSlice::new(&memory[piece.memory_range()])], offset)
                    });
                }
            },
        };
        if !self.mark_all(frame, group) {
            return group.iter().try_for_each(|piece| self.write_piece(frame, *piece, memory));
        }
        self.segment().changes(frame).fetch_add(1, Relaxed);
        self.locks.pace.point();
        group.iter().for_each(|piece| self.put(frame, *piece, memory));
        Ok(())
    }

    /// Makes many pieces valid and dirty at once, if the lists have room for all of them.
    fn mark_all(&self, frame: u32, group: &[Piece]) -> bool {
        if group.len() < MANY_PIECES {
            return false;
        }
        let spans: Vec<Span> = group.iter().map(|piece| Span { start: piece.start, end: piece.end }).collect();
        let before = self.segment().valid(frame).as_slice().to_vec();
        if !self.segment().valid(frame).insert_all(&spans) {
            return false;
        }
        let marked = self.segment().dirty(frame).insert_all(&spans);
        if !marked {
            // A range that counts as valid has to hold its bytes.
            self.segment().valid(frame).clear();
            let restored = self.segment().valid(frame).insert_all(&before);
            assert!(restored, "there was room for it");
        }
        marked
    }

    /// Puts one piece into the frame of its page.
    fn write_piece(&mut self, frame: u32, piece: Piece, memory: &[u8]) -> Outcome {
        let segment = self.segment();
        let room = segment.valid(frame).has_room_for(piece.start, piece.end)
            && segment.dirty(frame).has_room_for(piece.start, piece.end);
        if !room {
            // The dirty bytes are written to the file system, and the lists of the page are emptied. Nothing is marked
            // before that has succeeded, since a range that counts as valid has to contain its bytes.
            self.write_dirty(&[(piece.page, frame)])?;
            self.segment().valid(frame).clear();
        }
        let segment = self.segment();
        let marked =
            segment.valid(frame).insert(piece.start, piece.end) && segment.dirty(frame).insert(piece.start, piece.end);
        assert!(marked, "there is room for a range");
        segment.changes(frame).fetch_add(1, Relaxed);
        self.locks.pace.point();
        self.put(frame, piece, memory);
        Ok(())
    }

    fn put(&self, frame: u32, piece: Piece, memory: &[u8]) {
        let to = &mut self.segment().bytes_mut(frame)[piece.start as usize..piece.end as usize];
        to.copy_from_slice(&memory[piece.memory_range()]);
    }
}
