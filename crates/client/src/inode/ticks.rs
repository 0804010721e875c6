//! When things happened to files, as far as that orders answers of servers.
//!
//! Owns: one count of questions and changes, and the moment of a question.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Counts questions to servers and changes of files, so that an answer can be told from what happened since its
/// question.
static TICKS: AtomicU64 = AtomicU64::new(0);

pub(super) fn tick() -> u64 {
    TICKS.fetch_add(1, SeqCst) + 1
}

/// When something was asked for, and under which rule of caching.
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

    /// Of an answer that is older than the latest change.
    pub(crate) const PAST: AskedAt = AskedAt { at: 0, rule: 0 };
}
