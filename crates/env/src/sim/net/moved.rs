//! Connections that are passed between two tasks that stand for threads of one simulated node.
//!
//! Owns: their places meanwhile. Does not own: the connections.

use super::SimConn;
use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    /// Connections that are passed between two tasks that stand for threads, by number. All tasks of a world are on one
    /// thread.
    static MOVING: RefCell<(u64, BTreeMap<u64, SimConn>)> = const { RefCell::new((0, BTreeMap::new())) };
}

/// A simulated connection between two threads of a node.
pub struct SimMoved(u64);

impl Drop for SimMoved {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl SimMoved {
    pub(super) fn new(conn: SimConn) -> SimMoved {
        MOVING.with_borrow_mut(|(last, moving)| {
            *last += 1;
            moving.insert(*last, conn);
            SimMoved(*last)
        })
    }

    pub(super) fn take(&self) -> Option<SimConn> {
        // At the end of the thread, no connection may be left that nobody took over.
        MOVING.try_with(|moving| moving.borrow_mut().1.remove(&self.0)).ok().flatten()
    }
}
