//! The order of events of files and of requests, as far as it matters for answers of servers.
//!
//! Owns: one counter of requests and changes, and the moment of a request.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Counts requests to servers and changes of files, so that an answer can be compared with what happened since its
/// request.
static TICKS: AtomicU64 = AtomicU64::new(0);

pub(super) fn tick() -> u64 {
    TICKS.fetch_add(1, SeqCst) + 1
}

/// When a request was sent, and in which caching mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedAt {
    pub(super) at: u64,
    pub(super) rule: u64,
}

impl AskedAt {
    pub(crate) fn now(rule: u64) -> AskedAt {
        AskedAt { at: tick(), rule }
    }

    pub(crate) fn rule(self) -> u64 {
        self.rule
    }

    /// For an answer that is older than the latest change.
    pub(crate) const PAST: AskedAt = AskedAt { at: 0, rule: 0 };
}
