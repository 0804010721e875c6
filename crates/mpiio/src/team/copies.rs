//! Copies of pages, over all nodes: before a write of a page, the nodes that have copies of it drop them.
//!
//! Owns the order of these messages. The rank that writes has a connection to each leader, so it sends the messages
//! itself, while it holds the page exclusively at its node. There it waits for the calls that read the copy. A copy
//! waits only for pages with higher numbers, of which the writer has locked none yet: in the lock order a copy comes
//! after its page and before the next page, so no cycle of waits is possible.

use super::Team;
use super::message::Kind;
use crate::error::Outcome;
use crate::file::migrate::Stop;

impl Team {
    /// Sets whether this job's nodes keep copies of pages of other nodes that they read again; called as for
    /// `join_nodes`.
    pub fn keep_copies(&self, on: bool) {
        self.local.keep_copies(on);
    }

    /// A write stopped at a page. If other nodes have copies of the page, the write holds it alone at `home`; this
    /// function makes these nodes drop their copies, so that the write can continue.
    pub(super) fn recall(&mut self, home: usize, stop: &Stop) -> Outcome {
        let page = stop.page;
        if stop.copies == 0 {
            return Ok(());
        }
        for node in (0..self.peers.len().min(64)).filter(|node| stop.copies >> node & 1 == 1) {
            self.local.count_recall();
            if node == self.node {
                self.local.drop_copy(page)?;
            } else {
                self.ask(node, Kind::DropCopy, page, &[], &[])?;
            }
        }
        if home == self.node {
            return self.local.recalled(page);
        }
        let Some(Some(link)) = self.peers.get_mut(home) else { return Ok(()) };
        let sent = link.send(Kind::Recalled, (page, 0), &[], &[]);
        self.broken = self.broken.or(sent.err());
        sent
    }
}
