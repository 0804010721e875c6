//! `Sharing`: which of the two rules for caching is in force, and what was begun under it.
//!
//! Owns: the rule, what keeps a mount alone, whether the session goes on, who caches outside. Does not own: the switch
//! from one rule to the other (`coherence::sharing`).

use super::leases::Leases;
use crate::api::KernelPages;
use amphi_types::{Errno, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// The rule in force and what was begun under it.
pub(crate) struct Sharing {
    /// Grows with each change of rule; odd while alone.
    pub(crate) rule: AtomicU64,
    /// The last change the server has told of.
    pub(crate) change: AtomicU64,
    /// Nothing begun alone is under way any more: tokens may be used.
    pub(crate) settled: AtomicBool,
    /// Operations and loans begun alone.
    pub(crate) under_way: AtomicU64,
    /// Until when a front end may use what it was lent.
    pub(crate) lent_until_ns: AtomicU64,
    /// The mount was alone and has not heard the master since, so it acts as if others had come.
    pub(crate) cautious: AtomicBool,
    /// When each server was last heard.
    pub(crate) leases: Leases,
    /// The session is over.
    pub(crate) lost: AtomicBool,
    /// Start of the server that the session spoke to last.
    pub(crate) boot: AtomicU64,
    /// Mount sessions that server had seen when this one was started.
    pub(crate) mounts: AtomicU64,
    /// The session was started anew without anybody else in between.
    pub(crate) undisturbed: AtomicBool,
    pages: Mutex<Option<Arc<dyn KernelPages>>>,
}

/// The rule before any other: odd, alone.
const ALONE_FROM_THE_START: u64 = 1;

impl Sharing {
    pub(crate) fn new() -> Sharing {
        Sharing {
            rule: AtomicU64::new(ALONE_FROM_THE_START),
            change: AtomicU64::new(0),
            settled: AtomicBool::new(false),
            under_way: AtomicU64::new(0),
            lent_until_ns: AtomicU64::new(0),
            cautious: AtomicBool::new(false),
            leases: Leases::default(),
            lost: AtomicBool::new(false),
            boot: AtomicU64::new(0),
            mounts: AtomicU64::new(0),
            undisturbed: AtomicBool::new(false),
            pages: Mutex::new(None),
        }
    }

    /// The rule in force; odd while alone.
    #[inline]
    pub(crate) fn rule(&self) -> u64 {
        self.rule.load(Relaxed)
    }

    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.rule() & 1 == 1
    }

    /// Whether there has been no other mount.
    pub(crate) fn has_always_been_alone(&self) -> bool {
        self.rule() == ALONE_FROM_THE_START
    }

    /// Whether tokens are asked for.
    pub(crate) fn uses_tokens(&self) -> bool {
        !self.is_alone() && self.settled.load(SeqCst)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }

    pub(crate) fn set_pages(&self, pages: Option<Arc<dyn KernelPages>>) {
        *self.pages.lock() = pages;
    }

    pub(crate) fn pages(&self) -> Option<Arc<dyn KernelPages>> {
        self.pages.lock().clone()
    }

    /// Operations that keep the mount alone.
    #[cfg(test)]
    pub(crate) fn begun(&self) -> u64 {
        self.under_way.load(SeqCst)
    }

    pub(crate) fn set(&self, alone: bool) {
        let rule = self.rule.fetch_add(1, SeqCst) + 1;
        debug_assert_eq!(rule & 1 == 1, alone);
    }

    /// What a call answers once the session is over.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_lost() { Err(Errno::Io) } else { Ok(()) }
    }
}
