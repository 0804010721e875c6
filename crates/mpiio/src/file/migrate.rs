//! Pages that move to the node that uses them (the paper's section 3.2, between nodes in place of ranks).
//!
//! Owns the count of references in a row, the hand-over of a page, and the check that a page is still here. Does not
//! own the messages (`team`). Within a node nothing moves, because all of its ranks access each page in the same way.
//!
//! The lock of a page moves together with the page. A rank that gets the lock of a page on a node that has given the
//! page away detects that (`hold_here`) and asks the node that got the page. A hand-over works as follows. The giver
//! (the proxy of a rank of the other node) holds the page exclusively. `offer` makes a copy. The taker puts it into a
//! frame of its own node and records its node as the place (`take_over`). Only then does the giver drop the page
//! (`handed_over`) and release the lock.
//!
//! Invariants:
//! * While two nodes have a copy, both are locked by the same call. The taker keeps its lock to the end of the call, so
//!   that a call which takes over pages is as atomic as any other.
//! * A page whose hand-over fails stays where it was. A taker never waits for anything: without a free frame or the
//!   lock of its own node it declines.
//! * A page of which other nodes have copies does not move (`copies`).
//! * Dirty bytes stay dirty on the way. No page moves while a rank writes out all nodes one after the other (`still`).
//!   No dirty page moves while the nodes share a group lock, which each of them leaves on its own.

use super::{CachedFile, Extent, pieces};
use crate::error::Outcome;
use crate::intervals::Span;
use crate::locks::Mode;
use crate::placement::{NODES_MAX, Place};
use crate::segment::NO_PAGE;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// More references in a row than are ever counted: pages then move only for another reason (`balance`).
pub(super) const NEVER: u32 = 1 << 16;

/// A page on its way to another node, or a copy of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    /// The number of the page.
    pub page: u64,
    /// The place of the page after it has been taken over. `None` means that it is a copy, and that the page stays
    /// (`copies`).
    pub place: Option<Place>,
    /// The valid ranges of the page.
    pub valid: Vec<Span>,
    /// The dirty ranges of the page.
    pub dirty: Vec<Span>,
    /// The bytes of the valid ranges.
    pub bytes: Vec<u8>,
}

/// The reason why a step ended before its end: a page that is not here, or one of which other nodes have copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The page.
    pub page: u64,
    /// The place of the page, as far as this node knows.
    pub place: Place,
    /// The nodes with copies, a bit each; if it is not 0, the page is on this node, and the call holds it exclusively.
    pub copies: u64,
}

impl Stop {
    /// The information as ranges of a message.
    pub fn encode(self) -> [Extent; 2] {
        [Extent { offset: self.page, length: self.place.0 }, Extent { offset: self.copies, length: 0 }]
    }

    /// Decodes such ranges; also returns the remaining ranges.
    pub fn decode(extents: &[Extent]) -> Option<(Stop, &[Extent])> {
        let ([page, copies], rest) = extents.split_first_chunk()?;
        Some((Stop { page: page.offset, place: Place(page.length), copies: copies.offset }, rest))
    }
}

/// The state of a rank about pages that may move.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// The node for which this rank works, if that is not its own: for a proxy, the node of its remote rank.
    pub(super) client: Option<usize>,
    /// The load of the client's node (`balance`).
    pub(super) client_load: u32,
    /// Pages of the present call that should move to the client's node; and whether the only reason is that this node
    /// has less to do.
    wanted: Vec<(u64, bool)>,
    /// Pages of the present call of which the client's node shall have a copy.
    pub(super) copied: Vec<u64>,
    /// Pages that were offered: locked exclusively until the taker has answered, and copies shared.
    leaving: Vec<Leaving>,
    /// The call that offered them has ended, so pages that are declined are released.
    over: bool,
}

/// A page that was offered, and its frame.
#[derive(Debug)]
struct Leaving {
    page: u64,
    frame: u32,
    /// The place of the page when it has been taken; `None`: it is a copy.
    place: Option<Place>,
    /// The page is offered only because the taker has less load.
    relief: bool,
}

impl CachedFile {
    /// Sets that the node is one of several, and after how many consecutive references by another node a page moves
    /// there; 0: no page moves. Every rank of the node calls it with the same values, before the first call.
    pub fn join_nodes(&self, node: usize, nodes: usize, references: u32) {
        let header = self.segment().header();
        let few = self.segment().geometry().page_bytes as usize <= super::HANDOVER_BYTES && nodes <= NODES_MAX;
        header.job.node.store(node as u32, Relaxed);
        header.job.nodes.store(nodes as u32, Relaxed);
        header.job.references.store(if few && nodes > 1 { references } else { 0 }, Release);
    }

    /// From now on this rank works for a rank of another node.
    pub fn works_for(&mut self, node: usize) {
        self.moves.client = Some(node);
    }

    fn references(&self) -> u32 {
        self.segment().header().job.references.load(Relaxed)
    }

    /// The place of a page, as far as this node knows.
    pub fn place_of(&self, page: u64) -> Place {
        if self.references() == 0 {
            return Place::default();
        }
        Place(self.segment().find_meta(page).map_or(0, |meta| meta.place.load(SeqCst)))
    }

    /// The node to request a page, as far as this node knows.
    pub fn node_of(&self, page: u64) -> usize {
        let nodes = u64::from(self.segment().header().job.nodes.load(Relaxed).max(1));
        let run_pages = self.settings.run_bytes / self.page_bytes();
        self.place_of(page).node().unwrap_or((page / run_pages % nodes) as usize)
    }

    /// The page at which a step ended after this many bytes, and why.
    pub fn why_it_stopped(&self, extents: &[Extent], done: u64) -> Outcome<Stop> {
        let page_bytes = self.page_bytes();
        let next = pieces(extents, page_bytes, u64::MAX).find(|piece| piece.memory as u64 >= done);
        let page = next.map_or(NO_PAGE, |piece| piece.page);
        let held = self.held.last() == Some(&(page, Mode::Exclusive));
        let copies = if held { self.nodes_with_copies(page)? } else { 0 };
        Ok(Stop { page, place: self.place_of(page), copies })
    }

    /// Another node has reported where it gave a page.
    pub fn learn(&self, page: u64, place: Place) -> Outcome {
        self.segment().meta(page)?.place.fetch_max(place.0, SeqCst);
        Ok(())
    }

    /// Locks a page for the present call, as `hold` does, if this node has it, or has a copy of it and the call reads.
    /// Otherwise holds nothing.
    pub(super) fn hold_here(&mut self, page: u64, mode: Mode) -> Outcome<bool> {
        self.hold(page, mode)?;
        let fixed = self.references() == 0 && !self.keeps_copies();
        let here = fixed || self.is_here(page) || (mode == Mode::Shared && self.has_whole_copy(page)?);
        if !here {
            self.held.pop();
            self.locks.unlock(page, mode)?;
        }
        Ok(here)
    }

    /// Returns whether this node has a page that this rank has locked.
    pub(super) fn is_here(&self, page: u64) -> bool {
        let job = &self.segment().header().job;
        job.nodes.load(Relaxed) <= 1 || self.node_of(page) == job.node.load(Relaxed) as usize
    }

    /// The number of the client's node, or none when this rank works for its own node.
    fn client(&self) -> Option<u32> {
        self.moves.client.map(|node| node as u32 + 1)
    }

    /// Returns how many references in a row to the page there are with the present one by the client.
    fn in_a_row(&self, page: u64, client: u32) -> Outcome<u32> {
        let seen = self.segment().meta(page)?.streak.load(Relaxed);
        Ok(if seen >> 16 == client { (seen & 0xffff).saturating_add(1).min(0xffff) } else { 1 })
    }

    /// Returns whether the present reference will make the page move; a guess before the page is locked.
    pub(super) fn may_leave(&self, page: u64) -> Outcome<bool> {
        match (self.references(), self.client()) {
            (1.., Some(client)) => Ok(self.in_a_row(page, client)? >= self.references() || self.relieves(page)?),
            _ => Ok(false),
        }
    }

    /// Counts a reference to a page that the present call holds. If that makes the page move and the call holds it
    /// alone, the page will be offered.
    pub(super) fn refer(&mut self, page: u64) -> Outcome {
        if self.references() == 0 {
            return Ok(());
        }
        self.serve();
        let Some(client) = self.client() else {
            let streak = &self.segment().meta(page)?.streak;
            if streak.load(Relaxed) != 0 {
                streak.store(0, Relaxed);
            }
            return Ok(());
        };
        let (count, relief) = (self.in_a_row(page, client)?, self.relieves(page)?);
        self.segment().meta(page)?.streak.store((client << 16) | count, Relaxed);
        let used = count >= self.references();
        if used || relief {
            self.moves.wanted.push((page, !used));
        }
        Ok(())
    }

    /// Pages of the present call are not offered any more, since their locks go.
    pub(super) fn keep_pages(&mut self) {
        self.moves.wanted.clear();
        self.moves.copied.clear();
    }

    /// Returns whether any pages wait for the answer of their taker.
    pub(super) fn has_leaving(&self) -> bool {
        !self.moves.leaving.is_empty()
    }

    /// The pages of the present call that should move to the client's node or be copied there, as far as they have
    /// frames and have at most `bytes` and `spans`. Their locks are kept until `handed_over`, whatever is released.
    /// `over`: the call ends with this step, so that a page which is declined or copied needs no lock afterwards.
    pub fn offer(&mut self, (bytes, spans): (usize, usize), over: bool) -> Outcome<Vec<Handover>> {
        self.moves.over = over;
        let (mut offered, mut room) = (Vec::new(), (bytes, spans));
        let (wanted, client) = (std::mem::take(&mut self.moves.wanted), self.moves.client);
        let copied = std::mem::take(&mut self.moves.copied);
        let header = self.segment().header();
        if header.job.still.load(SeqCst) != 0 {
            return Ok(offered);
        }
        let group = header.group_state.load(SeqCst) != 0;
        let moved = wanted.into_iter().map(|(page, relief)| (page, Mode::Exclusive, relief));
        for (page, mode, relief) in moved.chain(copied.into_iter().map(|page| (page, Mode::Shared, false))) {
            let Some(at) = self.held.iter().rposition(|held| *held == (page, mode)) else { continue };
            let (Some(frame), Some(node)) = (self.frame_of(page)?, client) else { continue };
            let copy = mode == Mode::Shared;
            if !copy && self.nodes_with_copies(page)? != 0 {
                continue;
            }
            let valid = self.segment().valid_shared(frame).to_vec();
            let dirty = if copy { Vec::new() } else { self.segment().dirty(frame).as_slice().to_vec() };
            let length: usize = valid.iter().map(|s| (s.end - s.start) as usize).sum();
            let lists = valid.len() + dirty.len();
            if length > room.0 || lists > room.1 || (group && !dirty.is_empty()) {
                continue;
            }
            room = (room.0 - length, room.1 - lists);
            let mut bytes = Vec::with_capacity(length);
            let page_bytes = self.segment().bytes(frame);
            valid.iter().for_each(|s| bytes.extend_from_slice(&page_bytes[s.start as usize..s.end as usize]));
            if copy {
                self.add_copy(page, node)?;
            }
            let place = if copy { None } else { Some(self.place_of(page).moved_to(node)) };
            self.held.remove(at);
            self.moves.leaving.push(Leaving { page, frame, place, relief });
            offered.push(Handover { page, place, valid, dirty, bytes });
        }
        Ok(offered)
    }

    /// Called when the taker has accepted these of the offered pages. The others stay.
    pub fn handed_over(&mut self, taken: &[u64]) -> Outcome {
        let mut result = Ok(());
        for Leaving { page, frame, place, relief } in std::mem::take(&mut self.moves.leaving) {
            let segment = self.segment();
            let meta = segment.meta(page)?;
            let mode = if place.is_some() { Mode::Exclusive } else { Mode::Shared };
            if mode == Mode::Exclusive {
                // A page that was declined is not offered again at once.
                meta.streak.store(0, Relaxed);
            }
            match place.filter(|_| taken.contains(&page)) {
                Some(place) => {
                    meta.frame.store(0, Release);
                    segment.vacate(frame);
                    meta.place.fetch_max(place.0, SeqCst);
                    self.stats.relieved += u64::from(relief);
                }
                None if !self.moves.over => {
                    // The page is put in front, because a write that stopped continues at the page that it took last.
                    self.held.insert(0, (page, mode));
                    continue;
                }
                None => {}
            }
            result = result.and(self.locks.unlock(page, mode));
            self.locks.pace.point();
        }
        result
    }

    /// Puts a page that another node hands over into a frame of this rank. Returns false if the page stays where it is.
    /// `keep`: the page stays locked to the end of the present call.
    pub fn take_over(&mut self, handover: &Handover, keep: bool) -> Outcome<bool> {
        let page = handover.page;
        let Some(place) = handover.place else { return self.take_copy(handover) };
        let ours = place.node() == Some(self.segment().header().job.node.load(Relaxed) as usize);
        if !ours || self.references() == 0 || !self.locks.try_lock(page)? {
            return Ok(false);
        }
        let taken = self.put_into_frame(handover);
        if matches!(taken, Ok(true)) {
            self.segment().meta(page)?.place.fetch_max(place.0, SeqCst);
            self.stats.migrations += 1;
            if keep {
                self.held.push((page, Mode::Exclusive));
                return taken;
            }
        }
        self.locks.unlock(page, Mode::Exclusive)?;
        taken
    }

    pub(super) fn put_into_frame(&mut self, handover: &Handover) -> Outcome<bool> {
        if self.frame_of(handover.page)?.is_some() {
            return Ok(false);
        }
        let Some(frame) = self.allocate_frame(handover.page)? else { return Ok(false) };
        let segment = self.segment();
        let whole = segment.geometry().page_bytes;
        let (mut at, mut fits) = (0, true);
        for span in &handover.valid {
            let length = span.end.saturating_sub(span.start) as usize;
            let bytes = handover.bytes.get(at..at + length);
            fits &= span.end <= whole && segment.valid(frame).insert(span.start, span.end);
            match bytes {
                Some(bytes) if fits => {
                    segment.bytes_mut(frame)[span.start as usize..span.end as usize].copy_from_slice(bytes);
                }
                _ => fits = false,
            }
            at += length;
        }
        for span in &handover.dirty {
            fits &= segment.valid(frame).contains(span.start, span.end)
                && segment.dirty(frame).insert(span.start, span.end);
        }
        segment.changes(frame).fetch_add(1, Relaxed);
        if !fits {
            segment.dirty(frame).clear();
            segment.meta(handover.page)?.frame.store(0, Release);
            self.pool.release(frame % self.segment().geometry().frames_per_rank);
        }
        self.locks.pace.point();
        Ok(fits)
    }

    /// From now on pages stay on their nodes (`on`), or may move again; the requests are counted, since there may be
    /// several.
    pub fn keep_still(&self, on: bool) {
        let still = &self.segment().header().job.still;
        if on {
            still.fetch_add(1, SeqCst);
        } else {
            still.fetch_sub(1, SeqCst);
        }
    }

    /// Takes frames of this rank back whose pages moved to other nodes.
    pub(super) fn reclaim_vacated(&mut self) -> bool {
        let rank = self.segment().rank();
        if self.segment().rank_cell(rank).vacated.swap(0, SeqCst) == 0 {
            return false;
        }
        let first = rank * self.segment().geometry().frames_per_rank;
        let empty: Vec<u32> =
            self.pool.oldest_first().filter(|own| self.segment().page_of(first + own) == NO_PAGE).collect();
        empty.iter().for_each(|own| self.pool.release(*own));
        !empty.is_empty()
    }
}
