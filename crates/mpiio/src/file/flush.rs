//! Writing dirty bytes out: all of a share at close and sync, and dropping what is clean.
//!
//! Two-phase flush (the paper's section 3.4) needs no exchange here: every rank can access the frames of all ranks of
//! the node, so each rank simply writes its share of the runs, whichever ranks hold their pages.

use super::CachedFile;
use crate::error::Outcome;
use crate::locks::Mode;
use crate::segment::NO_PAGE;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::atomic::Ordering::Release;

/// A page that would be written in more parts than these is written as one part, if no other process writes the file,
/// or the file system was asked for a lock.
const FEW_PARTS: usize = 8;
/// After this many parts that were written back, the file system is informed again that more parts will come.
const PARTS_EXPECTED: usize = 16;

impl CachedFile {
    /// Writes the dirty bytes of all ranks that belong to this share of the file: the runs `r` of `run_bytes` with `r
    /// mod shares` = `share`. Continues after a failure, records it as late error, and returns the first one.
    pub fn flush_share(&mut self, share: u32, shares: u32) -> Outcome {
        self.begin()?;
        let run_pages = self.settings.run_bytes / self.page_bytes();
        let segment = self.segment();
        let mut pages: Vec<u64> = segment
            .used_frames()
            .filter(|frame| segment.looks_dirty(*frame))
            .map(|frame| segment.page_of(frame))
            .filter(|page| *page != NO_PAGE && (page / run_pages) % u64::from(shares.max(1)) == u64::from(share))
            .collect();
        pages.sort_unstable();
        pages.dedup();
        let mut first_error = Ok(());
        for run in pages.chunk_by(|a, b| a / run_pages == b / run_pages) {
            let result = self.flush_run(run.iter().copied(), false);
            self.release();
            if let Err(error) = result {
                self.note_late_error(error);
                first_error = first_error.and(Err(error));
            }
        }
        first_error
    }

    /// Writes the dirty pages of a run, which ascend; `merged`: each as one part.
    fn flush_run(&mut self, pages: impl Iterator<Item = u64>, merged: bool) -> Outcome {
        let mut dirty = Vec::new();
        for page in pages {
            if self.held.last().is_some_and(|(last, _)| *last == page) {
                continue;
            }
            self.hold(page, Mode::Exclusive)?;
            if let Some(frame) = self.frame_of(page)?
                && self.segment().looks_dirty(frame)
            {
                dirty.push((page, frame));
            }
        }
        if merged {
            let few = self.few_parts();
            for (page, frame) in &dirty {
                self.forget_clean_bytes(*frame, few);
                self.merge_parts(*page, *frame, few);
            }
        }
        self.write_dirty(&dirty)
    }

    /// Within this share of a part of the file, writes the runs that contain a page with many dirty parts. Each such
    /// page is written as one part, with the bytes that the file has in the gaps now. All ranks have finished their
    /// pieces of a collective call in this part of the file. If the file cannot be read there, the pages stay as they
    /// are.
    pub fn flush_parts(&mut self, bytes: Range<u64>, share: u32, shares: u32) -> Outcome {
        self.begin()?;
        if !self.settings.readable {
            return Ok(());
        }
        let page_bytes = self.page_bytes();
        let run_pages = self.settings.run_bytes / page_bytes;
        let few = self.few_parts();
        let window = bytes.start / page_bytes..bytes.end.div_ceil(page_bytes);
        let segment = self.segment();
        let mut pages: Vec<(u64, bool)> = segment
            .used_frames()
            .map(|frame| (segment.page_of(frame), segment.dirty_parts(frame) as usize))
            .filter(|(page, parts)| window.contains(page) && *parts > 0)
            .filter(|(page, _)| (page / run_pages) % u64::from(shares.max(1)) == u64::from(share))
            .map(|(page, parts)| (page, parts > few))
            .collect();
        pages.sort_unstable();
        pages.dedup();
        let mut result = Ok(());
        for run in pages.chunk_by(|a, b| a.0 / run_pages == b.0 / run_pages).filter(|run| run.iter().any(|p| p.1)) {
            let flushed = self.flush_run(run.iter().map(|(page, _)| *page), true);
            self.release();
            result = result.and(flushed);
        }
        result
    }

    /// Pages that are dirty in more parts than this are better written as one part.
    fn few_parts(&self) -> usize {
        FEW_PARTS.min(self.segment().geometry().spans as usize / 2)
    }

    /// Writes the dirty bytes of pages that are locked exclusively, ascending, neighbouring ranges in one request. Each
    /// written range is clean then. After a failure the other ranges stay dirty.
    pub(super) fn write_dirty(&mut self, pages: &[(u64, u32)]) -> Outcome {
        let page_bytes = self.page_bytes();
        let few = self.few_parts();
        if self.settings.merge_parts && self.settings.readable {
            pages.iter().for_each(|(page, frame)| self.merge_parts(*page, *frame, few));
        }
        let ranges: Vec<(u64, u32, Range<usize>)> = pages
            .iter()
            .flat_map(|(page, frame)| {
                let spans = self.segment().dirty(*frame).as_slice().to_vec();
                let base = page * page_bytes;
                spans.into_iter().map(move |s| (base + u64::from(s.start), *frame, s.start as usize..s.end as usize))
            })
            .collect();
        let mut in_parts = ranges.chunk_by(|a, b| a.1 == b.1).filter(|page| page.len() > few).peekable();
        // The page in parts that is being written, and how many of them have left.
        let mut parted: Option<(u64, usize)> = None;
        for run in ranges.chunk_by(|a, b| a.0 + a.2.len() as u64 == b.0) {
            let held: Vec<(u32, Range<usize>)> = run.iter().map(|r| (r.1, r.2.clone())).collect();
            self.write_frames(&held, run[0].0)?;
            while let Some(page) = in_parts.next_if(|page| page[0].0 <= run[0].0) {
                parted = Some((page[0].0 / page_bytes * page_bytes, 0));
            }
            if let Some((page, left)) = parted.as_mut().filter(|(page, _)| run[0].0 < *page + page_bytes) {
                // The first part has called back conflicting locks. The lock may be lost to other mounts again.
                if left.is_multiple_of(PARTS_EXPECTED) {
                    self.backend.expect_parts(*page, page_bytes);
                }
                *left += 1;
            }
        }
        for (_, frame) in pages {
            self.segment().dirty(*frame).clear();
        }
        Ok(())
    }

    /// If a page has more than a few dirty parts, makes all bytes from the first to the last dirty byte dirty, with the
    /// bytes that the file has in the gaps. If the file cannot be read there, the parts stay as they are.
    fn merge_parts(&mut self, page: u64, frame: u32, few: usize) {
        let parts = self.segment().dirty(frame).as_slice().to_vec();
        if let (true, [first, .., last]) = (parts.len() > few, parts.as_slice())
            && self.fill(page, frame).is_ok()
        {
            let mut dirty = self.segment().dirty(frame);
            dirty.clear();
            let inserted = dirty.insert(first.start, last.end);
            assert!(inserted, "an empty list has room for a range");
        }
    }

    /// If a page has more than a few parts, only its dirty bytes count as valid from now on. So the bytes in the gaps
    /// are read from the file, where others may have written since.
    fn forget_clean_bytes(&self, frame: u32, few: usize) {
        let parts = self.segment().dirty(frame).as_slice().to_vec();
        if parts.len() > few {
            let mut valid = self.segment().valid(frame);
            valid.clear();
            let inserted = valid.insert_all(&parts);
            assert!(inserted, "both lists have the same room");
        }
    }

    fn write_frames(&mut self, ranges: &[(u32, Range<usize>)], offset: u64) -> Outcome {
        let bytes: u64 = ranges.iter().map(|r| r.1.len() as u64).sum();
        let (page, end, size) = (self.page_bytes(), offset + bytes, self.size());
        let aligned = offset.is_multiple_of(page) && (end.is_multiple_of(page) || end >= size);
        self.stats.fs_writes += 1;
        self.stats.fs_write_bytes += bytes;
        self.stats.fs_writes_aligned += u64::from(aligned);
        let segment = &self.locks.segment;
        let parts: Vec<IoSlice<'_>> =
            ranges.iter().map(|(frame, range)| IoSlice::new(&segment.bytes(*frame)[range.clone()])).collect();
        let result = self.backend.write_at(&parts, offset);
        self.note_change();
        result
    }

    /// Writes the dirty bytes of all ranks of the node, as one rank, while the others may continue. `stable`: also
    /// makes these bytes stable, and marks clean pages as not valid, so that the next read of any rank reads the file
    /// system. The frames stay with their pages, since only their own ranks free frames.
    pub fn settle_alone(&mut self, stable: bool) -> Outcome {
        self.flush_share(0, 1)?;
        if !stable {
            return Ok(());
        }
        self.sync_backend()?;
        let segment = self.segment();
        let mut pages: Vec<u64> = segment.used_frames().map(|frame| segment.page_of(frame)).collect();
        pages.retain(|page| *page != NO_PAGE);
        pages.sort_unstable();
        pages.dedup();
        for page in pages {
            self.hold(page, Mode::Exclusive)?;
            if let Some(frame) = self.frame_of(page)?
                && !self.segment().looks_dirty(frame)
            {
                self.forget_clean(page, frame)?;
            }
            self.release();
        }
        Ok(())
    }

    /// Drops the clean pages of this rank, so that the next read asks the file system. Pages that became dirty again
    /// stay.
    pub fn drop_clean(&mut self) -> Outcome {
        self.begin()?;
        self.drop_pages(false)
    }

    /// Drops all pages of this rank, dirty ones too: the file is to be deleted.
    pub fn discard(&mut self) -> Outcome {
        self.begin()?;
        self.drop_pages(true)
    }

    fn drop_pages(&mut self, dirty_too: bool) -> Outcome {
        let segment = self.segment();
        let first = segment.rank() * segment.geometry().frames_per_rank;
        let used: Vec<u32> = self.pool.oldest_first().collect();
        for own in used {
            let frame = first + own;
            let page = self.segment().page_of(frame);
            if page == NO_PAGE {
                self.pool.release(own);
                continue;
            }
            self.hold(page, Mode::Exclusive)?;
            if self.frame_of(page)? != Some(frame) {
                // The page has moved to another node meanwhile.
                self.pool.release(own);
            } else if dirty_too || !self.segment().looks_dirty(frame) {
                self.segment().dirty(frame).clear();
                self.segment().meta(page)?.frame.store(0, Release);
                self.pool.release(own);
            }
            self.release();
        }
        self.pool.sort_free();
        Ok(())
    }
}
