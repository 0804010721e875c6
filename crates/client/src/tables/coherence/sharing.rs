//! `Sharing`: which caching mode is in force (sole or shared), and which operations and timeouts began in it.
//!
//! Owns: the mode, what delays the switch to shared mode, whether the session continues, and the front end that also
//! caches. Does not own: the switch from one mode to the other (`coherence::sharing`).

use super::leases::Leases;
use crate::api::{KernelPages, PostedWrites};
use crate::inode::Inode;
use amphi_types::{Errno, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// The caching mode in force, and the operations and timeouts that began in it.
pub(crate) struct Sharing {
    /// Number of the caching mode, which grows with each switch and is odd in sole mode.
    pub(crate) rule: AtomicU64,
    /// Number of the last switch in a push of the server.
    pub(crate) change: AtomicU64,
    /// No operation or timeout of sole mode is left, so the mount may use tokens.
    pub(crate) settled: AtomicBool,
    /// Operations and timeouts that began in sole mode and have not ended.
    pub(crate) under_way: AtomicU64,
    /// When the last timeout ends that a front end was given in sole mode.
    pub(crate) lent_until_ns: AtomicU64,
    /// The mount was in sole mode and has received nothing from the master since, so it acts as in shared mode.
    pub(crate) cautious: AtomicBool,
    /// When the last message from each server arrived.
    pub(crate) leases: Leases,
    /// The session is over.
    pub(crate) lost: AtomicBool,
    /// The number of the start (boot) of the master with which the session spoke last.
    pub(crate) boot: AtomicU64,
    /// The count of sessions of mounts that the master had admitted when this session began.
    pub(crate) mounts: AtomicU64,
    /// The session was started anew, and no other mount existed in between.
    pub(crate) undisturbed: AtomicBool,
    pages: Mutex<Option<Arc<dyn KernelPages>>>,
    /// The writes that programs post.
    posts: Mutex<Option<Arc<dyn PostedWrites>>>,
}

/// The number of the first mode: odd, for sole mode.
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
            posts: Mutex::new(None),
        }
    }

    /// The number of the mode in force; odd in sole mode.
    #[inline]
    pub(crate) fn rule(&self) -> u64 {
        self.rule.load(Relaxed)
    }

    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.rule() & 1 == 1
    }

    /// Returns whether there has never been another mount.
    pub(crate) fn has_always_been_alone(&self) -> bool {
        self.rule() == ALONE_FROM_THE_START
    }

    /// Returns whether tokens are requested.
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

    pub(crate) fn set_posts(&self, posts: Option<Arc<dyn PostedWrites>>) {
        *self.posts.lock() = posts;
    }

    fn posts(&self) -> Option<Arc<dyn PostedWrites>> {
        self.posts.lock().clone()
    }

    /// Called when postings may have to end.
    pub(crate) fn ring(&self) {
        self.posts().into_iter().for_each(|posts| posts.ring());
    }

    /// What programs have posted to the file in shared mode is in the cache, except writes that end where this says.
    pub(crate) fn take_posts(&self, file: &Inode) -> u64 {
        if !file.locks.are_posted_to() {
            return 0;
        }
        self.posts().map_or(0, |posts| posts.take(file.ino))
    }

    /// Number of operations that hold up the switch to shared mode.
    #[cfg(test)]
    pub(crate) fn begun(&self) -> u64 {
        self.under_way.load(SeqCst)
    }

    pub(crate) fn set(&self, alone: bool) {
        let rule = self.rule.fetch_add(1, SeqCst) + 1;
        debug_assert_eq!(rule & 1 == 1, alone);
    }

    /// The error of calls after the end of the session.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_lost() { Err(Errno::Io) } else { Ok(()) }
    }
}
