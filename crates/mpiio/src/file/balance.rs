//! Balancing: a node that serves many requests of other nodes gives pages to requesting nodes that serve fewer. It is
//! an option that is off by default.
//!
//! Owns the load of a node and the rule. Does not own how pages move (`migrate`), which is the same for all reasons.
//!
//! The node of a page follows from its number, so of any long range all nodes have equally many. This does not help a
//! node whose pages all nodes use in turn: no single node refers to any of its pages several times in a row, so no page
//! moves. So here each reference of a rank of another node counts as load of the serving node, and the request contains
//! the load of the requesting node. A page to which two consecutive references of other nodes were made moves to the
//! second one's node, if that has far less load. The load moves with the pages, and the rule ends when no node has much
//! more than those that send requests to it.
//!
//! Invariants: only the decision is made here, from numbers that may be old or wrong. A wrong decision costs a move.
//! Loads are halved each second, and a node gives pages only to one with less than half of its own load. So a page does
//! not return before the loads have reversed.

use super::CachedFile;
use super::migrate::NEVER;
use crate::error::Outcome;
use crate::placement::NODES_MAX;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// The present load according to a word of `JobNodes::served`.
fn load_at(word: u64, now: u32) -> u32 {
    // A rank that read the clock a moment before has a slightly older time.
    let age = now.saturating_sub((word >> 32) as u32);
    (word as u32).checked_shr(age).unwrap_or(0)
}

impl CachedFile {
    /// From now on the load of the nodes is balanced: a node whose load is greater than that of another by `least`
    /// gives pages to the other node; 0 means no balancing. This is called after `join_nodes`, by every rank of the
    /// node with the same value. If pages do not move by migration, they move only for this reason.
    pub fn balance(&self, least: u32) {
        let job = &self.segment().header().job;
        let nodes = job.nodes.load(Relaxed) as usize;
        let small = self.segment().geometry().page_bytes as usize <= super::HANDOVER_BYTES;
        if least > 0 && (2..=NODES_MAX).contains(&nodes) && small {
            let _ = job.references.compare_exchange(0, NEVER, Release, Relaxed);
            job.balance.store(least, Release);
        }
    }

    fn least_difference(&self) -> u32 {
        self.segment().header().job.balance.load(Relaxed)
    }

    /// The recent load of the node from others, in references to pages; 0 unless nodes are balanced.
    pub fn load(&self) -> u32 {
        if self.least_difference() == 0 {
            return 0;
        }
        load_at(self.segment().header().job.served.load(Relaxed), self.locks.pace.seconds())
    }

    /// Called when the node of the rank behind this proxy has this load now.
    pub fn asked_by(&mut self, load: u64) {
        self.moves.client_load = u32::try_from(load).unwrap_or(u32::MAX);
    }

    /// Counts a reference of the rank behind this proxy.
    pub(super) fn serve(&self) {
        if self.least_difference() == 0 || self.moves.client.is_none() {
            return;
        }
        let (served, now) = (&self.segment().header().job.served, self.locks.pace.seconds());
        let _ = served.fetch_update(Relaxed, Relaxed, |word| {
            let then = now.max((word >> 32) as u32);
            Some((u64::from(then) << 32) | u64::from(load_at(word, then).saturating_add(1)))
        });
    }

    /// Returns whether a reference to a page makes it move to the client's node, which has a lower load. The previous
    /// reference must have come from another node, too, so that the page is of no use to our own ranks now.
    pub(super) fn relieves(&self, page: u64) -> Outcome<bool> {
        let least = self.least_difference();
        if least == 0 || self.moves.client.is_none() {
            return Ok(false);
        }
        let bound = self.moves.client_load.saturating_mul(2).saturating_add(least);
        Ok(self.load() > bound && self.segment().meta(page)?.streak.load(Relaxed) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: load is halved each second, whatever the clocks of ranks say. Method: numbers.
    #[test]
    fn load_fades() {
        let word = (100 << 32) | 1000;
        let after = [99, 100, 101, 103, 131, 132, u32::MAX].map(|now| load_at(word, now));
        assert_eq!(after, [1000, 1000, 500, 125, 0, 0, 0]);
    }
}
