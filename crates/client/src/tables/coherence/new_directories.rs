//! `NewDirectories`: which names exist in directories whose names were all made by this mount.
//!
//! A program that makes a file makes the kernel look its name up first. In a directory that this mount has made, and
//! that only this mount can change, every name was made by this mount. So a name that it has never sent for that
//! directory does not exist, and the look-up needs no message. This saves one of two or three messages for each file of
//! a tree that is unpacked or copied.
//!
//! In shared mode other mounts can change every directory. The server grants the token of a directory's names to a
//! mount that has made the only one, and revokes it before another mount changes a name (docs/locking/directories.md).
//! As long as the mount holds it without a break, the same holds as in sole mode.
//!
//! Shards (`coherence::shards`) that this mount has given to a directory count as such directories as well.
//!
//! Owns: the hashes of names that requests may have made. Does not own: requests (`coherence::new_directories`), the
//! caching mode (`sharing`).
//!
//! Invariants:
//!
//! * The hash of a name is added before the request that may make the name is sent, and never taken out. So it does not
//!   matter whether the request succeeds, when its answer comes, or whether the name is removed later: for a name whose
//!   hash is recorded, the mount asks the server.
//! * A directory is recorded when the answer to its mkdir arrives. Another thread may have found the directory before
//!   that answer and made names in it. Therefore the directories of all names that are sent while any directory is
//!   being made are noted, and a directory that is among them is not recorded.
//! * Only answers to requests of the same time of a mode count (`rule`), and nothing is kept over a change of the mode
//!   or a server that has forgotten what it granted (`forget_all`).
//! * In shared mode a directory is recorded with the answer that grants its token for the first time. Its names are
//!   then that of the request, and those of other requests of this mount that the server has carried out since. These
//!   were under way at some moment between that request and its answer. So for each directory the names of all requests
//!   are noted from the first one that is sent until none is under way. A request whose answer is lost may be carried
//!   out later: until that is impossible, no directory is recorded (`unsure_until_ns`).
//!
//! Bound: 1,024 directories and 131,072 names, about 3 MiB. The oldest directories are dropped first. Of names under
//! way, 4,096 for each directory that has requests under way.

use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most directories that are recorded.
const DIRECTORIES_MAX: usize = 1024;
/// Most names of all directories together.
const NAMES_MAX: usize = 131_072;
/// Most names of requests under way in one directory.
const UNDER_WAY_MAX: usize = 4096;
/// Most directories that are noted while others are being made.
const MEANWHILE_MAX: usize = 4096;

struct Names {
    rule: u64,
    hashes: BTreeSet<u64>,
}

/// Names of requests of shared mode in one directory, since there were none under way.
#[derive(Default)]
struct UnderWay {
    requests: usize,
    hashes: BTreeSet<u64>,
}

#[derive(Default)]
struct State {
    directories: BTreeMap<Ino, Names>,
    /// The directories in the order in which they were made.
    order: VecDeque<Ino>,
    /// Number of hashes of names in all directories together.
    names: usize,
    /// Directories that are being made.
    making: usize,
    /// Directories that got names while the request was under way. `None`: too many to say.
    meanwhile: Option<BTreeSet<Ino>>,
    /// How often all records were dropped.
    generation: u64,
    under_way: BTreeMap<Ino, UnderWay>,
    /// Until then, a request whose answer was lost may still be carried out.
    unsure_until_ns: u64,
}

impl State {
    fn forget(&mut self, dir: Ino) {
        if let Some(gone) = self.directories.remove(&dir) {
            self.names -= gone.hashes.len();
        }
    }

    fn insert(&mut self, dir: Ino, rule: u64, hashes: BTreeSet<u64>) {
        if self.directories.len() >= DIRECTORIES_MAX {
            self.forget_oldest();
        }
        // Names that were removed from the middle of the record leave their places in the order.
        if self.order.len() >= 2 * DIRECTORIES_MAX {
            let directories = &self.directories;
            self.order.retain(|dir| directories.contains_key(dir));
        }
        // A server may say twice that it has made this inode.
        self.forget(dir);
        self.names += hashes.len();
        self.directories.insert(dir, Names { rule, hashes });
        self.order.push_back(dir);
    }

    fn forget_oldest(&mut self) {
        while let Some(oldest) = self.order.pop_front() {
            if self.directories.contains_key(&oldest) {
                return self.forget(oldest);
            }
        }
    }
}

/// The record.
#[derive(Default)]
pub(crate) struct NewDirectories {
    state: Mutex<State>,
}

impl NewDirectories {
    /// Called when a request that makes a directory is about to be sent. The result goes to `made`.
    pub(crate) fn making(&self) -> u64 {
        let state = &mut *self.state.lock();
        if state.making == 0 {
            state.meanwhile = Some(BTreeSet::new());
        }
        state.making += 1;
        state.generation
    }

    /// The request has ended. It has made these directories in this time of sole mode, or none.
    pub(crate) fn made(&self, generation: u64, rule: u64, made: &[Ino]) {
        let state = &mut *self.state.lock();
        state.making -= 1;
        if generation != state.generation {
            return;
        }
        for &dir in made {
            if state.meanwhile.as_ref().is_none_or(|dirs| dirs.contains(&dir)) {
                continue;
            }
            state.insert(dir, rule, BTreeSet::new());
        }
    }

    /// In shared mode: a request that may make a name is about to be sent. `ended` has to follow.
    pub(crate) fn begins(&self, dir: Ino, hash: u64) {
        let state = &mut *self.state.lock();
        let under_way = state.under_way.entry(dir).or_default();
        under_way.requests += 1;
        if under_way.hashes.len() <= UNDER_WAY_MAX {
            under_way.hashes.insert(hash);
        }
    }

    /// The request has ended. `unsure_until_ns`: its answer is lost, and until then it may be carried out.
    pub(crate) fn ended(&self, dir: Ino, unsure_until_ns: Option<u64>) {
        let state = &mut *self.state.lock();
        state.unsure_until_ns = state.unsure_until_ns.max(unsure_until_ns.unwrap_or(0));
        if unsure_until_ns.is_some() {
            state.forget(dir);
        }
        let Some(under_way) = state.under_way.get_mut(&dir) else { return };
        under_way.requests -= 1;
        if under_way.requests == 0 {
            state.under_way.remove(&dir);
        }
    }

    /// In shared mode: the answer to a request under way says that the request has made the only name of `dir`. Returns
    /// whether the names are known from now on.
    pub(crate) fn first(&self, dir: Ino, rule: u64, now_ns: u64) -> bool {
        let state = &mut *self.state.lock();
        state.forget(dir);
        let Some(under_way) = state.under_way.get(&dir) else { return false };
        if under_way.hashes.len() > UNDER_WAY_MAX || now_ns < state.unsure_until_ns {
            return false;
        }
        let hashes = under_way.hashes.clone();
        state.insert(dir, rule, hashes);
        true
    }

    /// Whether the names of `dir` are recorded.
    pub(crate) fn has(&self, dir: Ino, rule: u64) -> bool {
        self.state.lock().directories.get(&dir).is_some_and(|names| names.rule == rule)
    }

    /// Called when a request that may make a name in `dir` is about to be sent.
    pub(crate) fn name(&self, dir: Ino, hash: u64) {
        let state = &mut *self.state.lock();
        if let Some(names) = state.directories.get_mut(&dir) {
            state.names += usize::from(names.hashes.insert(hash));
            while state.names > NAMES_MAX {
                assert!(!state.directories.is_empty(), "{} names are noted of no directory", state.names);
                state.forget_oldest();
            }
        } else if state.making > 0
            && let Some(dirs) = &mut state.meanwhile
        {
            dirs.insert(dir);
            if dirs.len() > MEANWHILE_MAX {
                state.meanwhile = None;
            }
        }
    }

    /// Returns whether `dir` certainly has no name with this hash.
    pub(crate) fn lacks(&self, dir: Ino, hash: u64, rule: u64) -> bool {
        let state = self.state.lock();
        state.directories.get(&dir).is_some_and(|names| names.rule == rule && !names.hashes.contains(&hash))
    }

    /// Called when the directory was removed.
    pub(crate) fn removed(&self, dir: Ino) {
        self.state.lock().forget(dir);
    }

    /// Forgets everything, also what is being made.
    pub(crate) fn forget_all(&self) {
        let state = &mut *self.state.lock();
        state.generation += 1;
        state.directories.clear();
        state.order.clear();
        state.names = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only names that were never sent count as absent, and only in directories that no other thread can have
    /// found before they were recorded. Method: single calls in each order.
    #[test]
    fn absent_names() {
        let new = NewDirectories::default();
        let asked = new.making();
        new.name(Ino(7), 1);
        new.made(asked, 3, &[Ino(5)]);
        assert!(new.lacks(Ino(5), 1, 3) && !new.lacks(Ino(5), 1, 5), "another time of sole mode");
        assert!(!new.lacks(Ino(7), 2, 3), "not made here");
        new.name(Ino(5), 1);
        assert!(!new.lacks(Ino(5), 1, 3) && new.lacks(Ino(5), 2, 3));
        // Another thread finds the directory before the answer has come.
        let asked = new.making();
        new.name(Ino(6), 9);
        new.made(asked, 3, &[Ino(6)]);
        assert!(!new.lacks(Ino(6), 1, 3));
        // All records are dropped while a directory is being made.
        let asked = new.making();
        new.forget_all();
        new.made(asked, 3, &[Ino(8)]);
        assert!(!new.lacks(Ino(8), 1, 3) && !new.lacks(Ino(5), 2, 3));
        let asked = new.making();
        new.made(asked, 1, &[]);
    }

    /// Goal: in shared mode, a directory is known from the answer that has made its only name, with the names of all
    /// requests that were under way meanwhile. Method: by hand.
    #[test]
    fn names_of_shared_mode() {
        let new = NewDirectories::default();
        let dir = Ino(5);
        // An older request is under way, and a later one ends before the answer comes.
        for hash in [1, 2, 3] {
            new.begins(dir, hash);
        }
        new.ended(dir, None);
        assert!(!new.lacks(dir, 9, 2) && new.first(dir, 2, 0) && new.has(dir, 2));
        assert_eq!([1, 2, 3, 4].map(|hash| new.lacks(dir, hash, 2)), [false, false, false, true]);
        assert!(!new.lacks(dir, 4, 4), "another time of shared mode");
        new.name(dir, 4);
        assert!(!new.lacks(dir, 4, 2));
        new.removed(dir);
        assert!(!new.has(dir, 2) && !new.lacks(dir, 9, 2));
        new.ended(dir, None);
        new.ended(dir, None);
        assert!(!new.first(dir, 2, 0), "nothing is under way");
        // The answer to one of the requests is lost.
        new.begins(dir, 1);
        new.begins(dir, 2);
        new.ended(dir, Some(100));
        assert!(!new.first(dir, 2, 99) && new.first(dir, 2, 100) && !new.lacks(dir, 1, 2));
        new.ended(dir, None);
        (0..=UNDER_WAY_MAX as u64).for_each(|hash| new.begins(dir, hash));
        assert!(!new.first(dir, 2, 200), "too many to remember");
        (0..=UNDER_WAY_MAX).for_each(|_| new.ended(dir, None));
        assert!(new.state.lock().under_way.is_empty());
    }

    /// Goal: the record stays within its bounds. Method: more directories and names than the table can contain.
    #[test]
    fn bounds() {
        let new = NewDirectories::default();
        let make = |dir: u64| new.made(new.making(), 1, &[Ino(dir)]);
        (0..3 * DIRECTORIES_MAX as u64).for_each(|dir| {
            make(dir);
            if dir % 3 == 0 {
                new.removed(Ino(dir));
            }
        });
        assert!(new.lacks(Ino(3 * DIRECTORIES_MAX as u64 - 1), 1, 1) && !new.lacks(Ino(1), 1, 1));
        (0..2 * NAMES_MAX as u64).for_each(|hash| new.name(Ino(3 * DIRECTORIES_MAX as u64 - 1), hash));
        let state = new.state.lock();
        assert!(state.names <= NAMES_MAX && state.order.len() <= 2 * DIRECTORIES_MAX);
        assert_eq!(state.names, state.directories.values().map(|names| names.hashes.len()).sum::<usize>());
        drop(state);
        // While a directory is being made, too many others get names.
        let asked = new.making();
        (0..2 * MEANWHILE_MAX as u64).for_each(|dir| new.name(Ino(1_000_000 + dir), 1));
        new.made(asked, 1, &[Ino(5_000_000)]);
        assert!(!new.lacks(Ino(5_000_000), 1, 1));
        make(5_000_001);
        assert!(new.lacks(Ino(5_000_001), 1, 1), "later ones count again");
    }
}
