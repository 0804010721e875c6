//! `History`: which directories are changed by several clients (concurrently changed).
//!
//! Owns: which session changed each directory last, and until when its listing is not worth a token. Does not own: the
//! tokens.
//!
//! Invariants: at most `max_dirs` directories are remembered, and the one whose last change is the oldest is forgotten
//! first. Forgetting costs a revocation from time to time, never coherence.
//!
//! The number behind this: if each create by other clients revoked a listing token, each create would cost a round trip
//! to every holder. So 2 changes by different sessions within 2 s end listing tokens of the directory for 5 s.

use amphi_types::{Ino, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// Tunables of the history.
#[derive(Clone, Copy, Debug, Hash)]
pub struct HistoryLimits {
    /// Most directories that are remembered.
    pub max_dirs: usize,
    /// Two changes by different sessions within this time make a directory concurrently changed.
    pub window_ns: u64,
    /// After the last such pair of changes of a directory, no listing token is granted for the directory for this long.
    pub hold_ns: u64,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        HistoryLimits { max_dirs: 16_384, window_ns: 2_000_000_000, hold_ns: 5_000_000_000 }
    }
}

#[cfg_attr(test, derive(Clone, Hash))]
struct Dir {
    last: SessionId,
    changed_ns: u64,
    shared_until_ns: u64,
}

/// The history of one target's directories.
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct History {
    limits: HistoryLimits,
    dirs: BTreeMap<Ino, Dir>,
    by_time: BTreeSet<(u64, Ino)>,
}

impl History {
    pub fn new(limits: HistoryLimits) -> History {
        History { limits, dirs: BTreeMap::new(), by_time: BTreeSet::new() }
    }

    /// The session changes names of the directory.
    pub fn changed(&mut self, now_ns: u64, dir: Ino, by: SessionId) {
        if self.limits.max_dirs == 0 {
            return;
        }
        let new = Dir { last: by, changed_ns: now_ns, shared_until_ns: 0 };
        let known = self.dirs.entry(dir).or_insert(new);
        self.by_time.remove(&(known.changed_ns, dir));
        if known.last != by && now_ns.saturating_sub(known.changed_ns) <= self.limits.window_ns {
            known.shared_until_ns = now_ns.saturating_add(self.limits.hold_ns);
        }
        (known.last, known.changed_ns) = (by, now_ns);
        self.by_time.insert((now_ns, dir));
        if self.dirs.len() > self.limits.max_dirs
            && let Some((_, oldest)) = self.by_time.pop_first()
        {
            self.dirs.remove(&oldest);
        }
    }

    /// Returns whether several sessions changed the directory lately.
    pub fn is_shared(&self, now_ns: u64, dir: Ino) -> bool {
        self.dirs.get(&dir).is_some_and(|known| now_ns < known.shared_until_ns)
    }

    #[cfg(test)]
    pub fn len(&self) -> (usize, usize) {
        (self.dirs.len(), self.by_time.len())
    }
}
