//! Deadlock detection: whether a wait would close a cycle of owners (`EDEADLK` of `fcntl`).
//!
//! Owns: the search for a cycle in the graph of owners that wait for each other. Does not own: the tables.
//!
//! An owner waits for every other owner that holds a lock in conflict with one of its requests. Waiting behind an
//! earlier request does not count, because such a wait ends by itself. As on Linux, the search distinguishes owners,
//! not threads. So a process with several threads may be refused although another of its threads could still unlock.
//! The search stops at OFD owners, for which Linux does not search either. It also stops when it has looked at its
//! bounded number of locks, and then assumes that there is no cycle. Cycles over several servers are not found.

use super::{File, FileLock, FileLocks, LockFamily, LockKind, Party, WaitId, conflicting, exempt};
use crate::tree::Search;
use amphi_types::ByteRange;
use std::collections::BTreeSet;

/// The state of a search.
struct Walk {
    steps_left: usize,
    seen: BTreeSet<Party>,
    unvisited: Vec<Party>,
}

impl FileLocks {
    /// Returns whether any owner that this request would wait for waits for the request's owner.
    pub(super) fn closes_cycle(&self, party: Option<Party>, lock: &FileLock, file: &File, range: ByteRange) -> bool {
        // An unknown owner has no locks, so no owner waits for it.
        let (Some(party), LockFamily::Posix) = (party, lock.owner.family) else { return false };
        #[cfg(test)]
        if self.planted == Some(super::tests::PlantedBug::NoCycles) {
            return false;
        }
        let steps_left = self.limits.max_cycle_steps;
        let mut walk = Walk { steps_left, seen: BTreeSet::new(), unvisited: Vec::new() };
        self.visit_holders(&mut walk, file, party, lock.kind, range);
        while let Some(next) = walk.unvisited.pop() {
            if next == party {
                return true;
            }
            if self.parties.get(&next).is_none_or(|state| state.owner.family != LockFamily::Posix) {
                continue;
            }
            for &(_, id) in self.waits_of.range((next, WaitId(0))..=(next, WaitId(u64::MAX))) {
                let (Some(wait), true) = (self.waits.get(&id), walk.steps_left > 0) else { break };
                walk.steps_left -= 1;
                let Some(file) = self.files.get(&(wait.ino, wait.table)) else { continue };
                self.visit_holders(&mut walk, file, next, wait.kind, wait.range);
            }
        }
        false
    }

    /// Adds the owners of all held locks that conflict with a request of `party`.
    fn visit_holders(&self, walk: &mut Walk, file: &File, party: Party, kind: LockKind, range: ByteRange) {
        for tree in conflicting(kind) {
            let mut found = Vec::new();
            self.forest.first(
                file.held[tree],
                &Search::overlap(range, exempt(Some(party))),
                walk.steps_left,
                &mut found,
            );
            walk.steps_left -= found.len();
            for holder in found.iter().map(|entry| Party(entry.session.0)) {
                if walk.seen.insert(holder) {
                    walk.unvisited.push(holder);
                }
            }
        }
    }
}
