//! Copies of pages that are only read, on nodes that read them again; an option that is off unless it is requested.
//!
//! Owns: which nodes get copies and have them, and how a copy is dropped. Does not own the messages (`team/copies.rs`,
//! and `team/handover.rs` for the bytes).
//!
//! A page is cached on one node. When a node reads a page a second time and no rank has written it since the first
//! time, the reply contains a copy of the whole page, which that node's rank puts into a frame of its own. From then
//! on, reads of that node use the copy. A write locks the page exclusively at its node, finds that there are copies,
//! stops, makes their nodes drop them, and continues. With copies, pages do not move to nodes that read them, and a
//! page with copies does not move.
//!
//! Invariants:
//! * A copy is whole and never dirty. A copy equals its page. A node gets a copy while its page is locked shared at its
//!   node, until the copy is in its frame. A rank that writes the page, which is then locked exclusively, has first
//!   made all nodes drop their copies. So locking a copy shared is as good as locking its page.
//! * `PageMeta::copies` names each node that has a copy, and perhaps some that have dropped theirs.
//! * A copy takes a frame of the rank that read, so the bound of memory is the same as without copies. It is evicted
//!   like other pages, and dropped with every sync.

use super::migrate::Handover;
use super::{CachedFile, HANDOVER_BYTES};
use crate::error::Outcome;
use crate::intervals::Span;
use crate::locks::Mode;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// Most nodes of a job that keeps copies: each has a bit.
const NODES_MAX: u32 = 64;

impl CachedFile {
    /// The nodes keep copies from now on, or not; after `join_nodes`, and every rank of the node says the same.
    pub fn keep_copies(&self, on: bool) {
        let job = &self.segment().header().job;
        let few = (2..=NODES_MAX).contains(&job.nodes.load(Relaxed));
        let small = self.segment().geometry().page_bytes as usize <= HANDOVER_BYTES;
        job.copies.store(u32::from(on && few && small), Release);
    }

    pub(super) fn keeps_copies(&self) -> bool {
        self.segment().header().job.copies.load(Relaxed) != 0
    }

    /// Returns whether this node may have a copy of a page of another one; a hint.
    pub fn may_have_copy(&self, page: u64) -> bool {
        self.keeps_copies()
            && !self.is_here(page)
            && self.segment().find_meta(page).is_some_and(|meta| meta.frame.load(SeqCst) != 0)
    }

    /// Returns whether this node's part of a locked page is a copy that one of its ranks may read. A proxy does not use
    /// it: the rank that asks it has wrong information about the place of the page.
    pub(super) fn has_whole_copy(&self, page: u64) -> Outcome<bool> {
        if !self.keeps_copies() || self.moves.client.is_some() {
            return Ok(false);
        }
        let frame = self.frame_of(page)?;
        Ok(frame.is_some_and(|frame| self.is_whole(frame)))
    }

    fn is_whole(&self, frame: u32) -> bool {
        let whole = Span { start: 0, end: self.segment().geometry().page_bytes };
        self.segment().valid_shared(frame) == [whole]
    }

    /// The mode in which a page is locked for reading: exclusive if the read may make it move.
    pub(super) fn mode_to_read(&self, page: u64) -> Outcome<Mode> {
        let moves = !self.keeps_copies() && self.may_leave(page)?;
        Ok(if moves { Mode::Exclusive } else { Mode::Shared })
    }

    /// Counts a read as a reference. If there are copies, reads do not make pages move.
    pub(super) fn refer_to_read(&mut self, page: u64) -> Outcome {
        if self.keeps_copies() && self.moves.client.is_some() {
            self.serve();
            return Ok(());
        }
        self.refer(page)
    }

    /// Called when a page that the present call holds shared was read from its frame. If that was for another node
    /// which has read it before, it shall have a copy.
    pub(super) fn offer_copy(&mut self, page: u64, frame: u32) -> Outcome {
        let Some(node) = self.moves.client.filter(|_| self.keeps_copies()) else { return Ok(()) };
        let seen = self.segment().meta(page)?.seen.fetch_or(1 << node, Relaxed);
        if seen >> node & 1 == 1 && self.is_whole(frame) {
            self.moves.copied.push(page);
        }
        Ok(())
    }

    /// The nodes that may have a copy of a page.
    pub(super) fn nodes_with_copies(&self, page: u64) -> Outcome<u64> {
        Ok(if self.keeps_copies() { self.segment().meta(page)?.copies.load(SeqCst) } else { 0 })
    }

    /// Called when the node is about to have a copy of a page that is locked shared.
    pub(super) fn add_copy(&self, page: u64, node: usize) -> Outcome {
        self.segment().meta(page)?.copies.fetch_or(1 << node, SeqCst);
        Ok(())
    }

    /// Returns whether other nodes may have copies of a page that the present call, which holds it alone, is about to
    /// write.
    pub(super) fn has_copies_elsewhere(&self, page: u64) -> Outcome<bool> {
        if !self.keeps_copies() {
            return Ok(false);
        }
        let meta = self.segment().meta(page)?;
        meta.seen.store(0, Relaxed);
        Ok(meta.copies.load(SeqCst) != 0)
    }

    /// No other node has a copy any more of a page that the present call has locked exclusively.
    pub fn recalled(&self, page: u64) -> Outcome {
        if self.held.contains(&(page, Mode::Exclusive)) {
            self.segment().meta(page)?.copies.store(0, SeqCst);
        }
        Ok(())
    }

    /// A copy had to be dropped elsewhere.
    pub fn count_recall(&mut self) {
        self.stats.recalls += 1;
    }

    /// Puts a copy of a page of another node into a frame of this rank. Returns false if there is no free frame. The
    /// page is locked shared at its node until the result is reported.
    pub(super) fn take_copy(&mut self, copy: &Handover) -> Outcome<bool> {
        let page = copy.page;
        if !self.keeps_copies() || self.is_here(page) || !self.locks.try_lock(page)? {
            return Ok(false);
        }
        let taken = self.put_into_frame(copy);
        self.stats.copies += u64::from(matches!(taken, Ok(true)));
        self.locks.unlock(page, Mode::Exclusive)?;
        taken
    }

    /// Drops this node's copy of a page of another node, when the ranks that read it have finished. The page is locked
    /// exclusively at its node, so that no new copy is made.
    pub fn drop_copy(&mut self, page: u64) -> Outcome {
        self.usable()?;
        self.locks.lock(page, Mode::Exclusive)?;
        if let Some(frame) = self.frame_of(page)?
            && !self.is_here(page)
        {
            self.forget(page, frame)?;
        }
        self.locks.unlock(page, Mode::Exclusive)
    }

    /// Marks a clean page that is locked exclusively as not valid: a copy as a whole.
    pub(super) fn forget_clean(&self, page: u64, frame: u32) -> Outcome {
        if self.is_here(page) {
            self.segment().valid(frame).clear();
            return Ok(());
        }
        self.forget(page, frame)
    }

    fn forget(&self, page: u64, frame: u32) -> Outcome {
        self.segment().meta(page)?.frame.store(0, Release);
        self.segment().vacate(frame);
        Ok(())
    }
}
