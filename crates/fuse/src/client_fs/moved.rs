//! Directories that another mount has moved, while this kernel still has them where they were.
//!
//! The kernel keeps one place for each directory. Shown at another place it moves the directory there, and cannot while
//! the caller holds the locks of a rename between two directories: the look-up then fails with ESTALE, and so does the
//! walk that Linux repeats; where the new place lies below the directory's old one it fails with ELOOP at once. In
//! these cases the directory is shown under a second node id, of which the kernel knows nothing yet, so there is
//! nothing to be moved. Both ids mean the same inode from then on; the kernel drops what it has at the old place when
//! it looks there next.
//!
//! Owns: where each directory was shown last, which threads were shown one at a new place and have done nothing with it
//! yet. Does not own: names.
//!
//! Invariants: a directory is shown under its second id only to a thread whose look-up has just failed in the kernel,
//! or would close a circle there. What this mount moves itself is moved here too. Bounds: `DIRECTORIES_MAX` directories
//! of two generations, about 150 bytes each; beyond, a directory may be taken for one that was not shown. `THREADS_MAX`
//! threads.

use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Directories of each of two generations.
const DIRECTORIES_MAX: usize = 16_384;
/// Threads that were shown a moved directory; beyond, all are forgotten.
const THREADS_MAX: usize = 256;
/// Directories between a place and the root that are looked at.
const DEPTH_MAX: usize = 128;
/// In a second node id: no target has made so many inodes.
const SECOND: u64 = 1 << 47;

/// The second node id of a directory.
fn second(ino: Ino) -> Ino {
    Ino(ino.0 | SECOND)
}

/// The inode that a node id of the kernel means.
#[inline]
pub(crate) fn inode_of(node: u64) -> Ino {
    Ino(node & !SECOND)
}

/// A name in a directory.
type Place = (Ino, Box<[u8]>);

#[derive(Default)]
struct Shown {
    young: BTreeMap<Ino, Place>,
    old: BTreeMap<Ino, Place>,
    by_place: BTreeMap<Place, Ino>,
}

impl Shown {
    fn place(&self, ino: Ino) -> Option<&Place> {
        self.young.get(&ino).or_else(|| self.old.get(&ino))
    }

    fn put(&mut self, ino: Ino, place: Place) {
        if let Some(before) = self.place(ino).cloned() {
            self.leave(ino, &before);
        }
        if self.young.len() >= DIRECTORIES_MAX {
            let gone = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
            for (ino, place) in gone {
                if self.place(ino).is_none() {
                    self.leave(ino, &place);
                }
            }
        }
        self.by_place.insert(place.clone(), ino);
        self.young.insert(ino, place);
    }

    fn leave(&mut self, ino: Ino, place: &Place) {
        if self.by_place.get(place) == Some(&ino) {
            self.by_place.remove(place);
        }
    }

    /// Whether `above` is `dir` or above it, as the kernel was shown.
    fn is_above(&self, above: Ino, dir: Ino) -> bool {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return true;
            }
            match self.place(at) {
                Some((parent, _)) => at = *parent,
                None => return false,
            }
        }
        false
    }
}

/// A directory that a thread was shown at a new place.
struct Moving {
    ino: Ino,
    place: Place,
    /// Look-ups of that place, one after the other: the kernel asks a second time where it knew something else there.
    asked: u32,
    /// The thread has looked something else up since: the walk in which it was shown this has ended.
    came_back: bool,
}

/// Most look-ups of one place in one walk: one for what the kernel has there, one for what is there.
const ASKED_MAX: u32 = 2;

/// What the kernel was shown of directories.
#[derive(Default)]
pub(super) struct Moved {
    shown: Mutex<Shown>,
    moving: Mutex<BTreeMap<u32, Moving>>,
    threads: AtomicUsize,
}

impl Moved {
    /// A look-up of `thread` finds a directory. The node id under which it is shown.
    pub(super) fn looked_up(&self, thread: u32, ino: Ino, dir: Ino, name: &[u8]) -> Ino {
        let place: Place = (dir, name.into());
        let mut shown = self.shown.lock();
        match shown.place(ino) {
            Some(at) if *at == place => return ino,
            None => {
                shown.put(ino, place);
                return ino;
            }
            Some(_) => {}
        }
        if shown.is_above(ino, dir) {
            return second(ino);
        }
        drop(shown);
        let mut moving = self.moving.lock();
        if let Some(one) = moving.get_mut(&thread).filter(|one| one.ino == ino && one.place == place) {
            one.asked += 1;
            // It has come back without having used what it was shown: the kernel could not move it.
            return if one.came_back || one.asked > ASKED_MAX { second(ino) } else { ino };
        }
        if moving.len() >= THREADS_MAX {
            moving.clear();
        }
        moving.insert(thread, Moving { ino, place, asked: 1, came_back: false });
        self.threads.store(moving.len(), SeqCst);
        ino
    }

    /// `thread` looks a name up.
    #[inline]
    pub(super) fn walks(&self, thread: u32, dir: Ino, name: &[u8]) {
        if self.threads.load(SeqCst) > 0 {
            // A directory in which something is looked up is where it was shown.
            self.settle(thread, |moving| moving.ino == dir);
            if let Some(one) = self.moving.lock().get_mut(&thread) {
                one.came_back |= one.place.0 != dir || *one.place.1 != *name;
            }
        }
    }

    /// A listing shows a directory; false if the kernel should not take it from there.
    pub(super) fn listed(&self, ino: Ino, dir: Ino, name: &[u8]) -> bool {
        let place: Place = (dir, name.into());
        let mut shown = self.shown.lock();
        match shown.place(ino) {
            Some(at) => *at == place,
            None => {
                shown.put(ino, place);
                true
            }
        }
    }

    /// A directory was made here.
    pub(super) fn made(&self, ino: Ino, dir: Ino, name: &[u8]) {
        self.shown.lock().put(ino, (dir, name.into()));
    }

    /// This mount has moved a name, or exchanged two: the kernel moves what it has there itself.
    pub(super) fn renamed(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), exchanged: bool) {
        let mut shown = self.shown.lock();
        let (from, to): (Place, Place) = ((from.0, from.1.into()), (to.0, to.1.into()));
        let (moved, other) = (shown.by_place.get(&from).copied(), shown.by_place.get(&to).copied());
        if let Some(ino) = moved {
            shown.put(ino, to);
        }
        if let Some(ino) = other.filter(|_| exchanged) {
            shown.put(ino, from);
        }
    }

    /// `thread` does something with `ino`: if it was shown that at a new place, the kernel has it there now.
    #[inline]
    pub(super) fn used(&self, thread: u32, ino: Ino) {
        if self.threads.load(SeqCst) > 0 {
            self.settle(thread, |moving| moving.ino == ino);
        }
    }

    /// `thread` does something else than to walk: whatever it was shown the kernel has taken.
    #[inline]
    pub(super) fn ended(&self, thread: u32) {
        if self.threads.load(SeqCst) > 0 {
            self.settle(thread, |_| true);
        }
    }

    fn settle(&self, thread: u32, is_it: impl FnOnce(&Moving) -> bool) {
        let mut moving = self.moving.lock();
        if moving.get(&thread).is_some_and(is_it)
            && let Some(Moving { ino, place, .. }) = moving.remove(&thread)
        {
            self.threads.store(moving.len(), SeqCst);
            drop(moving);
            self.shown.lock().put(ino, place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Ino = Ino(1);
    const A: Ino = Ino(2);
    const D: Ino = Ino(3);

    /// Goal: a directory at a new place keeps its node id, unless the thread comes back to it with nothing done, and
    /// until it was used there. Method: one directory that others move.
    #[test]
    fn second_ids_only_when_the_kernel_could_not_move_it() {
        let moved = Moved::default();
        assert_eq!(moved.looked_up(7, D, A, b"d"), D);
        assert_eq!(moved.looked_up(7, D, A, b"d"), D);
        assert_eq!(moved.looked_up(7, D, ROOT, b"d"), D, "the kernel may be able to move it");
        assert_eq!(moved.looked_up(8, D, ROOT, b"d"), D, "so for another thread");
        moved.walks(7, ROOT, b"d");
        assert_eq!(moved.looked_up(7, D, ROOT, b"d"), D, "it had something else there");
        moved.walks(7, ROOT, b"a");
        let id = moved.looked_up(7, D, ROOT, b"d");
        assert!(id != D && inode_of(id.0) == D);
        assert_eq!(moved.looked_up(8, D, ROOT, b"d"), D);
        assert_eq!(moved.looked_up(8, D, ROOT, b"d"), id, "no walk asks three times");
        moved.used(8, D);
        assert_eq!(moved.looked_up(7, D, ROOT, b"d"), D, "the kernel has it there by now");
        assert_eq!(moved.looked_up(9, D, A, b"e"), D);
        moved.used(9, A);
        moved.ended(9);
        assert_eq!((moved.looked_up(9, D, A, b"e"), moved.looked_up(9, D, A, b"e")), (D, D));
    }

    /// Goal: what this mount moves itself is where it says; a listing moves nothing; a directory is never shown below
    /// itself. Method: by hand.
    #[test]
    fn own_moves_and_circles() {
        let moved = Moved::default();
        moved.made(A, ROOT, b"a");
        moved.made(D, A, b"d");
        moved.renamed((A, b"d"), (ROOT, b"d"), false);
        assert_eq!((moved.looked_up(7, D, ROOT, b"d"), moved.looked_up(7, D, ROOT, b"d")), (D, D));
        moved.renamed((ROOT, b"d"), (ROOT, b"a"), true);
        assert!(moved.listed(D, ROOT, b"a") && moved.listed(A, ROOT, b"d") && !moved.listed(D, ROOT, b"d"));
        moved.renamed((ROOT, b"a"), (A, b"x"), false);
        assert!(moved.looked_up(7, A, D, b"y") != A, "the kernel has one below the other");
        for n in 0..3 * DIRECTORIES_MAX as u64 {
            moved.made(Ino(100 + n), ROOT, &n.to_le_bytes());
        }
        let shown = moved.shown.lock();
        assert!(shown.young.len() + shown.old.len() <= 2 * DIRECTORIES_MAX);
        assert_eq!(shown.by_place.len(), shown.young.len() + shown.old.len());
    }
}
