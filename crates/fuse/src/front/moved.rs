//! `Moved`: where the kernel has each directory, and second node ids for directories that another mount has moved.
//!
//! The kernel keeps one place for each directory. When a lookup shows the directory at another place, the kernel moves
//! it there. For that it tries to get two locks without waiting: the lock of the old place, and the lock of renames
//! between directories, which the caller itself may hold. If the kernel does not get these locks, the lookup fails with
//! ESTALE. Linux then walks once more, but a rename may meet a second such name in that walk. For the names that
//! `mkdir`, `mknod`, `symlink` and `link` are about to make, Linux does not walk again. If the new place is below the
//! old one, the lookup fails with ELOOP at once.
//!
//! In these cases the mount shows the directory under another node id that the kernel does not know, so that nothing
//! has to be moved. The directory keeps this id at this place. Both ids mean the same inode, and the kernel drops the
//! old place when it looks the name up there next. The kernel takes the two ids for two directories, and the entries
//! that it has in one are not in the other. So if the kernel knows a child below the old id, the child has to be moved
//! when it is shown below the new one. Therefore a place is a name in a directory *by node id*.
//!
//! Owns: where and under which id each directory was shown last, and which threads were shown a directory at a new
//! place and have not used it yet. Does not own: names of other inodes.
//!
//! Invariants:
//!
//! * A directory gets another id in three cases only. The thread's lookup has just failed in the kernel. Or the thread
//!   is in a call that makes or moves a name (`syscall`). Or the new place would close a cycle. The id is bound to the
//!   place at once, because nothing can keep the kernel from using it.
//! * A directory that this mount moves is moved in this table too.
//! * Nothing is cached under another id than the inode's own (`is_other`), because invalidations use the inode's own
//!   id.
//!
//! Bounds: two generations of `DIRECTORIES_MAX` directories, about 150 bytes each. A forgotten directory counts as
//! never shown. `THREADS_MAX` threads. Each directory has `OTHERS` ids, which are used in turn.

use crate::node::{Top, inode_of, next};
use amphi_client::{LentName, NameShows};
use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Most directories in each of two generations.
const DIRECTORIES_MAX: usize = 16_384;
/// Most threads that are remembered because they were shown a moved directory. If there are more, all are forgotten.
const THREADS_MAX: usize = 256;
/// Most directories that are visited on the way from a place to the root.
const DEPTH_MAX: usize = 128;
/// A name in a directory, which is given by its node id.
type Place = (Ino, Box<[u8]>);

/// The place where a directory was shown last.
#[derive(Clone)]
struct Spot {
    place: Place,
    /// The node id that was shown.
    node: Ino,
}

#[derive(Default)]
struct Shown {
    young: BTreeMap<Ino, Spot>,
    old: BTreeMap<Ino, Spot>,
    by_place: BTreeMap<Place, Ino>,
}

impl Shown {
    fn spot(&self, ino: Ino) -> Option<&Spot> {
        self.young.get(&ino).or_else(|| self.old.get(&ino))
    }

    /// The node id under which the kernel has the directory.
    fn node(&self, ino: Ino) -> Ino {
        self.spot(ino).map_or(ino, |spot| spot.node)
    }

    fn put(&mut self, ino: Ino, place: Place, node: Ino) {
        debug_assert_eq!(inode_of(node.0), ino, "an id of this directory");
        if let Some(before) = self.spot(ino).cloned() {
            self.leave(ino, &before.place);
        }
        if self.young.len() >= DIRECTORIES_MAX {
            let gone = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
            for (ino, spot) in gone {
                if self.spot(ino).is_none() {
                    self.leave(ino, &spot.place);
                }
            }
        }
        self.by_place.insert(place.clone(), ino);
        self.young.insert(ino, Spot { place, node });
        assert!(self.young.len() <= DIRECTORIES_MAX, "{} directories of one generation", self.young.len());
    }

    fn leave(&mut self, ino: Ino, place: &Place) {
        if self.by_place.get(place) == Some(&ino) {
            self.by_place.remove(place);
        }
    }

    /// Returns whether the kernel was shown `above` as `dir` or as one of its ancestors. `dir` is a node id.
    fn is_above(&self, above: Ino, dir: Ino) -> bool {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if inode_of(at.0) == above {
                return true;
            }
            match self.spot(inode_of(at.0)) {
                Some(spot) => at = spot.place.0,
                None => return false,
            }
        }
        false
    }
}

/// A directory that a thread was shown at a new place and has not used yet.
struct Moving {
    ino: Ino,
    place: Place,
    /// The node id that was shown.
    node: Ino,
    /// Lookups of that place in a row. The kernel looks up the place a second time if it knew another directory there.
    asked: u32,
    /// The thread has looked up something else since, so the walk in which it was shown this has ended.
    came_back: bool,
}

/// Most lookups of one place in one walk: one for the entry that the kernel has there, and one for the present one.
const ASKED_MAX: u32 = 2;

/// The directories and places that the kernel was shown.
#[derive(Default)]
pub(crate) struct Moved {
    shown: Mutex<Shown>,
    moving: Mutex<BTreeMap<u32, Moving>>,
    threads: AtomicUsize,
    top: Top,
}

impl Moved {
    /// The table for a mount with this root.
    pub(crate) fn below(top: Top) -> Moved {
        Moved { top, ..Moved::default() }
    }

    /// A lookup by `thread` in `dir` (a node id) finds a directory. `moves`: whether this is a move thread.
    /// `changes_names`: whether the thread is in a call that makes or moves names. Returns the node id under which the
    /// directory is shown.
    pub(crate) fn looked_up(
        &self,
        thread: u32,
        ino: Ino,
        (dir, name): (Ino, &[u8]),
        moves: impl FnOnce() -> bool,
        changes_names: impl FnOnce() -> bool,
    ) -> Ino {
        let place: Place = (dir, name.into());
        let mut shown = self.shown.lock();
        let node = match shown.spot(ino) {
            Some(spot) if spot.place == place => return spot.node,
            Some(spot) => spot.node,
            None => {
                shown.put(ino, place, ino);
                return ino;
            }
        };
        let is_circle = shown.is_above(ino, dir);
        drop(shown);
        if moves() {
            return node;
        }
        let in_the_way = is_circle || self.has_failed(thread, ino, &place) || changes_names();
        if in_the_way {
            let mut shown = self.shown.lock();
            if let Some(spot) = shown.spot(ino).filter(|spot| spot.place == place) {
                // Another thread has recorded a new place of the directory meanwhile.
                return spot.node;
            }
            let node = next(shown.node(ino));
            shown.put(ino, place, node);
            return node;
        }
        let mut moving = self.moving.lock();
        let is_there = moving.get(&thread).is_some_and(|one| one.ino == ino && one.place == place);
        if !is_there {
            if moving.len() >= THREADS_MAX {
                moving.clear();
            }
            moving.insert(thread, Moving { ino, place, node, asked: 1, came_back: false });
            assert!(moving.len() <= THREADS_MAX, "{} threads were shown a moved directory", moving.len());
            self.threads.store(moving.len(), SeqCst);
        }
        node
    }

    /// Returns whether a thread was shown a directory at this place before and has returned without using it. This
    /// means that the kernel was unable to move the directory.
    fn has_failed(&self, thread: u32, ino: Ino, place: &Place) -> bool {
        let mut moving = self.moving.lock();
        let Some(one) = moving.get_mut(&thread).filter(|one| one.ino == ino && one.place == *place) else {
            return false;
        };
        one.asked += 1;
        let has_failed = one.came_back || one.asked > ASKED_MAX;
        if has_failed {
            moving.remove(&thread);
            self.threads.store(moving.len(), SeqCst);
        }
        has_failed
    }

    /// The root of the mount.
    #[inline]
    pub(crate) fn top(&self) -> Top {
        self.top
    }

    /// The node id under which the kernel has a directory.
    pub(crate) fn node(&self, ino: Ino) -> Ino {
        self.shown.lock().node(ino)
    }

    /// Notes that the kernel has a directory, under the id `node`, at this place.
    pub(crate) fn placed(&self, ino: Ino, dir: Ino, name: &[u8], node: Ino) {
        self.shown.lock().put(ino, (dir, name.into()), node);
    }

    /// The path from the root to a name, if the kernel has been shown all of it there under the inodes' own ids.
    pub(crate) fn path(&self, last: LentName) -> Option<Vec<LentName>> {
        let shown = self.shown.lock();
        let mut at = last.dir;
        let mut steps = vec![last];
        while at != self.top.0 {
            let spot = shown.spot(at).filter(|spot| spot.node == at && steps.len() < DEPTH_MAX)?;
            let (dir, name) = spot.place.clone();
            steps.push(LentName { dir, name, shows: NameShows::Directory(at) });
            at = dir;
        }
        steps.reverse();
        Some(steps)
    }

    /// Returns whether the kernel was last shown the directory by this name and under the inode's own id.
    pub(crate) fn is_shown(&self, dir: Ino, name: &[u8], ino: Ino) -> bool {
        let shown = self.shown.lock();
        shown.spot(ino).is_some_and(|spot| spot.node == ino && spot.place.0 == dir && *spot.place.1 == *name)
    }

    /// Notes that `thread` looks a name up.
    #[inline]
    pub(crate) fn walks(&self, thread: u32, dir: Ino, name: &[u8]) {
        if self.threads.load(SeqCst) > 0 {
            // A lookup in a directory shows that the kernel has the directory where it was shown.
            self.settle(thread, |moving| moving.node == dir);
            if let Some(one) = self.moving.lock().get_mut(&thread) {
                one.came_back |= one.place.0 != dir || *one.place.1 != *name;
            }
        }
    }

    /// A listing shows a directory. Returns false if the listing must not carry its attributes, because the kernel
    /// would move it.
    pub(crate) fn listed(&self, ino: Ino, dir: Ino, name: &[u8]) -> bool {
        let place: Place = (dir, name.into());
        let mut shown = self.shown.lock();
        match shown.spot(ino) {
            Some(spot) => spot.place == place && spot.node == ino,
            None => {
                shown.put(ino, place, ino);
                true
            }
        }
    }

    /// Notes that this mount has made a directory here.
    pub(crate) fn made(&self, ino: Ino, dir: Ino, name: &[u8]) {
        self.shown.lock().put(ino, (dir, name.into()), ino);
    }

    /// Notes that this mount has moved a name, or exchanged two. The kernel itself moves what it has there.
    pub(crate) fn renamed(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), exchanged: bool) {
        let mut shown = self.shown.lock();
        let (from, to): (Place, Place) = ((from.0, from.1.into()), (to.0, to.1.into()));
        let (moved, other) = (shown.by_place.get(&from).copied(), shown.by_place.get(&to).copied());
        if let Some(ino) = moved {
            let node = shown.node(ino);
            shown.put(ino, to, node);
        }
        if let Some(ino) = other.filter(|_| exchanged) {
            let node = shown.node(ino);
            shown.put(ino, from, node);
        }
    }

    /// Notes that `thread` works on `node`. If the thread was shown this directory at a new place, the kernel has moved
    /// it there by now.
    #[inline]
    pub(crate) fn used(&self, thread: u32, node: Ino) {
        if self.threads.load(SeqCst) > 0 {
            self.settle(thread, |moving| moving.node == node);
        }
    }

    /// Notes that `thread` does something other than a walk. So the kernel has taken everything that the thread was
    /// shown.
    #[inline]
    pub(crate) fn ended(&self, thread: u32) {
        if self.threads.load(SeqCst) > 0 {
            self.settle(thread, |_| true);
        }
    }

    fn settle(&self, thread: u32, is_it: impl FnOnce(&Moving) -> bool) {
        let mut moving = self.moving.lock();
        if moving.get(&thread).is_some_and(is_it)
            && let Some(Moving { ino, place, node, .. }) = moving.remove(&thread)
        {
            self.threads.store(moving.len(), SeqCst);
            drop(moving);
            let mut shown = self.shown.lock();
            // Meanwhile a program may have been shown the directory at this place under another node id.
            if shown.spot(ino).is_none_or(|spot| spot.place != place) {
                shown.put(ino, place, node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{OTHERS, is_other};

    const ROOT: Ino = Ino(1);
    const A: Ino = Ino(2);
    const D: Ino = Ino(3);

    /// The thread is in no call that changes names.
    fn no() -> bool {
        false
    }

    /// Goal: a directory at a new place keeps its node id, unless the thread returns without having used it, or itself
    /// holds the locks that the kernel needs. A new id stays until the directory is moved again. Method: one directory
    /// that other mounts move.
    #[test]
    fn other_ids_only_when_the_kernel_could_not_move_it() {
        let moved = Moved::default();
        assert_eq!(moved.looked_up(7, D, (A, b"d"), no, no), D);
        assert_eq!(moved.looked_up(7, D, (A, b"d"), no, || true), D, "where it was shown nothing has to be moved");
        assert_eq!(moved.looked_up(7, D, (ROOT, b"d"), no, no), D, "the kernel may be able to move it");
        assert_eq!(moved.looked_up(8, D, (ROOT, b"d"), no, no), D, "so for another thread");
        moved.walks(7, ROOT, b"d");
        assert_eq!(moved.looked_up(7, D, (ROOT, b"d"), no, no), D, "it had something else there");
        moved.walks(7, ROOT, b"a");
        let id = moved.looked_up(7, D, (ROOT, b"d"), no, no);
        assert!(id != D && inode_of(id.0) == D && is_other(id.0) && !is_other(D.0));
        assert_eq!(moved.looked_up(7, D, (ROOT, b"d"), no, no), id, "asked a second time");
        assert_eq!(moved.looked_up(8, D, (ROOT, b"d"), no, no), id, "the kernel has nothing of it elsewhere");
        moved.walks(8, ROOT, b"a");
        assert_eq!(moved.looked_up(8, D, (ROOT, b"d"), no, no), id, "and so has it there");
        for _ in 0..ASKED_MAX {
            assert_eq!(moved.looked_up(8, D, (A, b"d"), no, no), id, "moved by others again");
        }
        let again = moved.looked_up(8, D, (A, b"d"), no, no);
        assert!(again != id && again != D && inode_of(again.0) == D, "no walk asks three times");
        moved.ended(8);
        let rename = moved.looked_up(9, D, (A, b"e"), no, || true);
        assert!(rename != D && rename != id && inode_of(rename.0) == D, "one that the kernel has nowhere");
        assert_eq!(moved.looked_up(9, D, (A, b"e"), no, || true), rename);
        moved.used(9, A);
        moved.ended(9);
        assert_eq!(moved.looked_up(9, D, (A, b"e"), no, no), rename);
        moved.renamed((A, b"e"), (ROOT, b"f"), false);
        assert_eq!(moved.looked_up(9, D, (ROOT, b"f"), no, no), rename, "the kernel moves what it has");
        assert!(!moved.listed(D, ROOT, b"f"), "a listing has the inode's own id");
        let mut node = D;
        for _ in 0..OTHERS {
            node = next(node);
            assert!(inode_of(node.0) == D && is_other(node.0));
        }
        assert_eq!(next(node), next(D), "they come round");
    }

    /// Goal: a directory that the kernel knows below another one has to be moved when the upper one is shown under
    /// another id. Method: a directory inside one that other mounts move, shown to a thread that renames. (Promise S5)
    #[test]
    fn children_of_another_id_are_elsewhere() {
        let (moved, child) = (Moved::default(), Ino(4));
        assert_eq!(
            (moved.looked_up(7, D, (A, b"d"), no, no), moved.looked_up(7, child, (D, b"in"), no, no)),
            (D, child)
        );
        let id = moved.looked_up(7, D, (ROOT, b"d"), no, || true);
        assert!(is_other(id.0) && !moved.listed(child, id, b"in"));
        let below = moved.looked_up(7, child, (id, b"in"), no, || true);
        assert!(is_other(below.0) && inode_of(below.0) == child, "the kernel has the child below the old id");
        assert_eq!(moved.looked_up(8, child, (id, b"in"), no, no), below);
        assert_eq!(
            moved.looked_up(8, child, (D, b"in"), no, no),
            below,
            "by whoever still is in the old one: it moves back"
        );
        moved.used(8, below);
        assert_eq!(moved.path(LentName { dir: child, name: b"x"[..].into(), shows: NameShows::Nothing }), None);
        assert!(moved.looked_up(8, D, (below, b"y"), no, no) != id, "one below the other in the kernel");
    }

    /// Goal: a directory that this mount itself moves is recorded at its new place. A listing moves nothing. A
    /// directory is never shown below itself. Method: a sequence of moves and listings that the test chooses.
    #[test]
    fn own_moves_and_circles() {
        let moved = Moved::default();
        moved.made(A, ROOT, b"a");
        moved.made(D, A, b"d");
        moved.renamed((A, b"d"), (ROOT, b"d"), false);
        assert_eq!((moved.looked_up(7, D, (ROOT, b"d"), no, no), moved.looked_up(7, D, (ROOT, b"d"), no, no)), (D, D));
        moved.renamed((ROOT, b"d"), (ROOT, b"a"), true);
        assert!(moved.listed(D, ROOT, b"a") && moved.listed(A, ROOT, b"d") && !moved.listed(D, ROOT, b"d"));
        moved.renamed((ROOT, b"a"), (A, b"x"), false);
        assert!(moved.looked_up(7, A, (D, b"y"), no, no) != A, "the kernel has one below the other");
        for n in 0..3 * DIRECTORIES_MAX as u64 {
            moved.made(Ino(100 + n), ROOT, &n.to_le_bytes());
        }
        let shown = moved.shown.lock();
        assert!(shown.young.len() + shown.old.len() <= 2 * DIRECTORIES_MAX);
        assert_eq!(shown.by_place.len(), shown.young.len() + shown.old.len());
    }
}
