//! `NewDirectories`: which names exist in directories that this mount has made, in sole mode.
//!
//! A program that makes a file makes the kernel look its name up first. In a directory that this mount has made, and
//! that only this mount can change, this mount made every name. So a name that it has never sent for that directory
//! does not exist, and the look-up needs no message. This saves one of three messages for each file of a tree that is
//! unpacked or copied.
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
//! * Only answers to requests of the same time of sole mode count (`rule`). Nothing is kept if the mode changes or if a
//!   server has lost its record of the rights that it granted (`forget_all`).
//!
//! Bound: 1,024 directories and 131,072 names, about 3 MiB. The oldest directories are dropped first.

use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most directories that are recorded.
const DIRECTORIES_MAX: usize = 1024;
/// Most names of all directories together.
const NAMES_MAX: usize = 131_072;
/// Most directories that are noted while others are being made.
const MEANWHILE_MAX: usize = 4096;

struct Names {
    rule: u64,
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
}

impl State {
    fn forget(&mut self, dir: Ino) {
        if let Some(gone) = self.directories.remove(&dir) {
            self.names -= gone.hashes.len();
        }
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
            if state.directories.len() >= DIRECTORIES_MAX {
                state.forget_oldest();
            }
            // Names that were removed from the middle of the record leave their places in the order.
            if state.order.len() >= 2 * DIRECTORIES_MAX {
                let directories = &state.directories;
                state.order.retain(|dir| directories.contains_key(dir));
            }
            // A server may report twice that it has made this inode.
            state.forget(dir);
            state.directories.insert(dir, Names { rule, hashes: BTreeSet::new() });
            state.order.push_back(dir);
        }
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
