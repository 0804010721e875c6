//! `Bare`: inodes that are known to have no extended attributes, in sole mode.
//!
//! Programs request attributes of every file that they show or copy (`ls -l` requests `security.selinux`), and most
//! files have none. In shared mode an inode's token says so (`tokens`). In sole mode only this mount sets attributes,
//! so an answer stays true until this mount sets an attribute.
//!
//! Owns: which inodes were shown to have no attributes, and which calls under way are setting one. Does not own:
//! requests (`coherence::bare`) and the caching mode (`sharing`).
//!
//! Invariants: an inode is recorded only if request and answer fell into the same time of sole mode, and no call that
//! sets an attribute began or ended between them. Before such a call is sent, its inode is removed from the record. If
//! its answer is lost, the server may still carry it out, so nothing is recorded for `OPEN_END_NS`.
//!
//! Bound: `INODES_MAX` inodes in each of two generations, about 30 bytes each.

use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

/// Most inodes of a generation.
const INODES_MAX: usize = 32_768;

#[derive(Default)]
pub(crate) struct State {
    /// For each inode, the number of the caching mode (`Sharing::rule`) in which the inode was shown.
    pub(crate) young: BTreeMap<Ino, u64>,
    pub(crate) old: BTreeMap<Ino, u64>,
    pub(crate) under_way: usize,
    /// The time until which the server may still carry out a call whose answer was lost, in boot ns.
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

/// The record of a mount.
#[derive(Default)]
pub(crate) struct Bare {
    pub(crate) state: Mutex<State>,
    /// Number of calls that set an attribute and have begun or ended.
    pub(crate) events: AtomicU64,
}
