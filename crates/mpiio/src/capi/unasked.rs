//! The work that the shim lets the cache do by itself, as settings of an open.
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
    /// 1: pages in many parts are read to be written as one; 2: the shim asks for that where the library does so.
    pub(super) merges: u64,
    /// 1: busy nodes give pages to those that have less to do.
    pub(super) balance: u64,
}

impl Unasked {
    /// Sets, for the ranks of the node, what nodes do for each other.
    pub(super) fn tell(&self, team: &Team) {
        team.keep_copies(self.copies != 0);
        team.balance(if self.balance != 0 { BALANCE_LEAST } else { 0 });
    }
}
