//! Inodes without extended attributes, while this mount is alone.
//!
//! Programs ask for attributes of every file that they show or copy (`ls -l` for `security.selinux`), and most have
//! none. In company an inode's token says so (`tokens`); alone nobody but this mount sets attributes, so what an answer
//! has shown stays true until it does.
//!
//! Owns: which inodes were shown to have none, and which calls that set one are under way. Does not own: requests
//! (`coherence::bare`), the rule (`sharing`).
//!
//! Invariants: noted is only what was asked for and answered under one alone rule, if no call that sets an attribute
//! began or ended meanwhile. Such a call is forgotten for before it is sent; if its answer is lost, it may still
//! happen, and nothing is noted for as long (`OPEN_END_NS`). Bounds: `INODES_MAX` inodes of each of two generations,
//! about 30 bytes each.

use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

/// Inodes of a generation.
const INODES_MAX: usize = 32_768;

#[derive(Default)]
pub(crate) struct State {
    /// The rule under which an inode was shown.
    pub(crate) young: BTreeMap<Ino, u64>,
    pub(crate) old: BTreeMap<Ino, u64>,
    pub(crate) under_way: usize,
    /// Until when a call may still happen whose answer was lost, boot ns.
    pub(crate) unsure_until_ns: u64,
}

impl State {
    pub(crate) fn note(&mut self, ino: Ino, rule: u64) {
        if self.young.len() >= INODES_MAX && !self.young.contains_key(&ino) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(ino, rule);
    }

    pub(crate) fn forget(&mut self, ino: Ino) {
        self.young.remove(&ino);
        self.old.remove(&ino);
    }

    pub(crate) fn rule_of(&self, ino: Ino) -> Option<u64> {
        self.young.get(&ino).or_else(|| self.old.get(&ino)).copied()
    }
}

/// What is known.
#[derive(Default)]
pub(crate) struct Bare {
    pub(crate) state: Mutex<State>,
    /// Calls that set an attribute which began or ended.
    pub(crate) events: AtomicU64,
}
