//! The work that the shim lets the cache do without a request of the program, as settings of an open.
//!
//! Owns the layout, which is a part of that in `shim/amphi_mpiio.h`.

use super::BALANCE_LEAST;
use crate::team::Team;

/// The work of the cache without a request of the program.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Unasked {
    /// Runs that are idle for this long are written back in the background; 0 means never.
    pub(super) idle_ms: u64,
    /// The number of bytes that are read ahead of a rank that reads in order.
    pub(super) prefetch_bytes: u64,
    /// 1: nodes keep copies of pages of other nodes that they read again.
    pub(super) copies: u64,
    /// 1: pages in many parts are read, so that they can be written as one part; 2: the shim requests that where the
    /// library does so itself.
    pub(super) merges: u64,
    /// 1: busy nodes give pages to nodes that have less to do.
    pub(super) balance: u64,
}

impl Unasked {
    /// Sets, for all ranks of this node, how the nodes help each other.
    pub(super) fn tell(&self, team: &Team) {
        team.keep_copies(self.copies != 0);
        team.balance(if self.balance != 0 { BALANCE_LEAST } else { 0 });
    }
}
