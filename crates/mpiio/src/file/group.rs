//! The group lock of AmphiFS: the mounts of the job share one lock, and any other process that needs the file makes the
//! job write out its data.
//!
//! Owns: the times when the node is a member, and the work that it does before it leaves. Does not own the descriptors
//! (`backend`). All ranks and proxies of a node use the descriptors of its first rank, so that this rank joins and
//! leaves the group for all.
//!
//! While the node is a member, no process outside the job reads or writes the file, on any mount. The idle thread of
//! the node (`idle`) checks several times a second whether another process waits. Then it writes all dirty bytes and
//! leaves the group, and the waiting process sees every write that had ended before. From then on locks are taken as
//! without the group, until the ranks sync. Only then has none of them a request under way, which would wait for the
//! group as a stranger.
//!
//! The thread takes only locks that are free, and gives up after `YIELD_LOOKS` checks: a call that holds pages may
//! itself wait until the group of another node has ended.

use super::CachedFile;
use crate::error::Outcome;
use crate::locks::Mode;
use crate::segment::NO_PAGE;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// How often the thread checks whether a program waits.
pub const WATCH: Duration = Duration::from_millis(100);
/// The thread waits for pages that calls hold for this many checks, about two seconds.
const YIELD_LOOKS: u32 = 20;

/// No group is wanted, or it is not available.
const NONE: u32 = 0;
const MEMBER: u32 = 1;
const LEFT: u32 = 2;

impl CachedFile {
    /// Lets the other ranks of the node use the descriptors of this one; rank 0 calls.
    pub fn offer_descriptors(&self) {
        let header = self.segment().header();
        header.descriptors.iter().zip(self.backend.descriptors()).for_each(|(cell, fd)| cell.store(fd, SeqCst));
    }

    /// Joins the group of the job, for the whole node: at open, and at a sync if the node has left it since. No rank of
    /// the node has a request under way. One rank calls it.
    pub fn join_group(&mut self, group: u64) -> Outcome {
        let state = &self.locks.segment.header().group_state;
        if state.load(SeqCst) == MEMBER {
            return Ok(());
        }
        self.backend.group_join(group)?;
        self.segment().header().group.store(group, SeqCst);
        state.store(MEMBER, SeqCst);
        Ok(())
    }

    /// Joins again if the node has left. If that does not work now, it continues without.
    pub fn rejoin_group(&mut self) {
        let header = self.segment().header();
        if header.group_state.load(SeqCst) == LEFT {
            let _ = self.join_group(self.group());
        }
    }

    /// Leaves the group for good; everything has been written.
    pub fn leave_group(&self) {
        if self.segment().header().group_state.swap(NONE, SeqCst) == MEMBER {
            let _ = self.backend.group_leave(self.group());
        }
    }

    fn group(&self) -> u64 {
        self.segment().header().group.load(SeqCst)
    }

    /// Returns whether this file may be a member of a group.
    pub(super) fn watches(&self) -> bool {
        self.segment().header().descriptors[0].load(SeqCst) >= 0
    }

    /// Makes one check. Leaves the group if an outside process waits for the file and everything has been written, or
    /// all attempts were made. `looks`: the number of checks that found a waiting process and could not yield.
    pub fn yield_group(&mut self, looks: &mut u32) -> Outcome {
        if self.segment().header().group_state.load(SeqCst) != MEMBER {
            return Ok(());
        }
        // A group that was lost is left, too: its members could do no I/O.
        if matches!(self.backend.group_wanted(), Ok(false)) {
            return Ok(());
        }
        let written = self.flush_free();
        *looks += 1;
        if matches!(written, Ok(false)) && *looks < YIELD_LOOKS {
            return Ok(());
        }
        *looks = 0;
        self.stats.yields += 1;
        self.segment().header().group_state.store(LEFT, SeqCst);
        // Bytes that could not be written stay and are reported at sync or close; the waiting process gets the file
        // nevertheless.
        let left = self.backend.group_leave(self.group());
        written.and(left)
    }

    /// Writes the dirty bytes of all pages whose locks are free; returns whether these were all dirty pages.
    pub fn flush_free(&mut self) -> Outcome<bool> {
        self.usable()?;
        let run_pages = self.settings.run_bytes / self.page_bytes();
        let segment = self.segment();
        let mut runs: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for frame in segment.used_frames().filter(|frame| segment.looks_dirty(*frame)) {
            let page = segment.page_of(frame);
            if page == NO_PAGE {
                continue;
            }
            runs.entry(page / run_pages).or_default().push(page);
        }
        let mut all = true;
        for mut pages in runs.into_values() {
            pages.sort_unstable();
            pages.dedup();
            let (mut locked, mut dirty) = (Vec::new(), Vec::new());
            let mut result = Ok(());
            for page in pages {
                match self.locks.try_lock(page) {
                    Ok(true) => locked.push(page),
                    Ok(false) => {
                        all = false;
                        continue;
                    }
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
                match self.frame_of(page) {
                    Ok(Some(frame)) if self.segment().looks_dirty(frame) => dirty.push((page, frame)),
                    Ok(_) => {}
                    Err(error) => result = Err(error),
                }
                self.locks.pace.point();
            }
            let result = result.and_then(|()| self.write_dirty(&dirty));
            for page in locked {
                self.locks.unlock(page, Mode::Exclusive)?;
            }
            result?;
        }
        Ok(all)
    }
}
