//! Which directories are changed by several clients.
//!
//! Owns: the last changer of each directory and until when its listing is not worth a token. Does not own: the tokens.
//!
//! Invariants: at most `max_dirs` directories are remembered, the one changed longest ago is forgotten first;
//! forgetting costs a revocation now and then, never coherence.
//!
//! The number: a listing token that is revoked by each create of the others costs every one of them a round trip to
//! every holder, so 2 changes by different sessions within 2 s end listing tokens of the directory for 5 s.

use amphi_types::{Ino, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// Tunables of the history.
#[derive(Clone, Copy, Debug, Hash)]
pub struct HistoryLimits {
    /// Directories remembered.
    pub max_dirs: usize,
    /// Two changes by different sessions within this time make a directory shared.
    pub window_ns: u64,
    /// A shared directory grants no listing token for this long after its last change that made it so.
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

    /// Whether several sessions changed the directory lately.
    pub fn is_shared(&self, now_ns: u64, dir: Ino) -> bool {
        self.dirs.get(&dir).is_some_and(|known| now_ns < known.shared_until_ns)
    }

    #[cfg(test)]
    pub fn len(&self) -> (usize, usize) {
        (self.dirs.len(), self.by_time.len())
    }
}
