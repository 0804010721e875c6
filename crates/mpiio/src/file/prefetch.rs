//! Reading ahead of a rank that reads consecutive ranges. It is an option that is off by default.
//!
//! Owns when and what is prefetched. It fetches whole uncached pages behind the read, with one request, into frames of
//! this rank. The pages must belong to this node (`migrate`), begin before the end of the file, and have free locks. It
//! waits for nothing. The locks are released before the call continues, because the call may need these pages itself. A
//! failure has no effect. Bound: `Settings::prefetch_bytes`, and half of the rank's frames.

use super::CachedFile;
use crate::error::Outcome;
use crate::locks::Mode;
use std::sync::atomic::Ordering::Release;

impl CachedFile {
    /// A read covered the pages `first` to `last` and had to fetch pages or not. Fetches the pages behind the read if
    /// the rank's last read ended where this one began.
    pub(super) fn read_ahead(&mut self, first: u64, last: u64, fetched: bool) -> Outcome {
        let follows = (first..=first + 1).contains(&self.next_read);
        self.next_read = last + 1;
        let frames = u64::from(self.segment().geometry().frames_per_rank);
        let most = (self.settings.prefetch_bytes / self.page_bytes()).min(frames / 2);
        if !follows || !fetched || most == 0 {
            return Ok(());
        }
        let mut pages = Vec::new();
        for page in last + 1..=last + most {
            match self.make_room_ahead(page, pages.last().copied())? {
                Some(frame) => pages.push((page, frame)),
                None => break,
            }
        }
        let result = self.fetch_ahead(&pages);
        for (page, frame) in pages {
            if result.is_err() {
                self.segment().meta(page)?.frame.store(0, Release);
                self.pool.release(frame % frames as u32);
            }
            self.locks.unlock(page, Mode::Exclusive)?;
        }
        // If these pages cannot be read, the error is reported when they are needed.
        Ok(())
    }

    /// A frame for a page, which is then locked; `None` if nothing has to be fetched there, or not together with the
    /// previous page.
    fn make_room_ahead(&mut self, page: u64, before: Option<(u64, u32)>) -> Outcome<Option<u32>> {
        let begins = page.checked_mul(self.page_bytes()).is_some_and(|at| at < self.size());
        if !begins || self.frame_of(page)?.is_some() || !self.locks.try_lock(page)? {
            return Ok(None);
        }
        let free = self.is_here(page) && self.frame_of(page)?.is_none();
        if let Some(frame) = if free { self.allocate_frame(page)? } else { None } {
            if before.is_none_or(|(_, last)| last + 1 == frame) {
                return Ok(Some(frame));
            }
            self.segment().meta(page)?.frame.store(0, Release);
            self.pool.release(frame % self.segment().geometry().frames_per_rank);
        }
        self.locks.unlock(page, Mode::Exclusive)?;
        Ok(None)
    }

    fn fetch_ahead(&mut self, pages: &[(u64, u32)]) -> Outcome {
        let (Some(&(page, frame)), page_bytes) = (pages.first(), self.page_bytes()) else { return Ok(()) };
        let bytes = self.locks.segment.bytes_of_run_mut(frame, pages.len() as u32);
        self.locks.pace.point();
        let n = self.backend.read_at(bytes, page * page_bytes)?;
        bytes[n..].fill(0);
        self.stats.fs_reads += 1;
        self.stats.fs_read_bytes += n as u64;
        self.stats.prefetched += pages.len() as u64;
        for (_, frame) in pages {
            let inserted = self.segment().valid(*frame).insert(0, page_bytes as u32);
            assert!(inserted, "an empty list has room for a range");
        }
        Ok(())
    }
}
