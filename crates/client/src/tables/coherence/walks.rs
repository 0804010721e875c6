//! `Walks`: path walks that the kernel repeats because an inode was removed during the walk.
//!
//! The kernel looks a name up, and then sends the operation with the inode that it was shown. Another program may have
//! renamed a file over that name in between, so the inode no longer exists. A local file system would keep it for the
//! walking thread, but the server does not know that thread, and answers ESTALE. Linux then walks the path once more
//! and requests each name again (`LOOKUP_REVAL`), but only once. A second replacement at the wrong moment would reach
//! the program. So in this second walk, each inode that is looked up is opened at its server and held until the
//! operation has come. So the inode exists, whatever happens to the name.
//!
//! Owns: which threads walk a path again, and which inodes are held for each. Does not own: who reports that a walk
//! failed (the front end, which knows its threads), the lookups (`ops::walks`).
//!
//! If the operation after the walk is the kernel's own, such as the open of a pipe, no message shows that the walk has
//! ended. So a thread may be taken to repeat a walk when it makes the first walk of another call. So an answer that
//! must not be given twice in one call depends on the inode or name that the operation concerns (`repeats_at`).
//!
//! Invariants: in a repeated walk, a lookup of anything but a directory is answered after the inode was opened (as by
//! `O_PATH`), so the operation that follows finds it. Directories need no hold, because a removed directory contains no
//! names, and `removed` has its last attributes.
//!
//! Cost: one check of a counter while no walk is repeated, and two messages for each look-up of a repeated walk.
//!
//! Bounds: `THREADS_MAX` threads; `HOLDS_MAX` inodes for each of them (a walk needs only the last one, but `link` makes
//! two walks); `WALK_NS`.

use crate::inode::OpenFile;
use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A walk counts as ended this long after its last lookup. The operation comes directly after the walk, unless the
/// thread has to wait for a processor.
const WALK_NS: u64 = 5_000_000_000;
/// Most look-ups of one walk for which inodes are held. This is more than the number of names in the longest path.
const LOOKUPS_MAX: u32 = 4096;
/// Most inodes that are held for one thread.
const HOLDS_MAX: usize = 8;
/// Most inodes that are held for all threads which the front end cannot tell apart.
const HOLDS_UNKNOWN_MAX: usize = 64;
/// Most threads that walk again at the same time. If there are more, the one whose last look-up is the oldest is
/// forgotten.
const THREADS_MAX: usize = 1024;
/// An inode that a repeated walk was shown, and that is held open.
pub(crate) struct Held {
    pub(crate) dir: Ino,
    pub(crate) name: Vec<u8>,
    pub(crate) ino: Ino,
    pub(crate) _open: Arc<OpenFile>,
}

#[derive(Default)]
struct Walk {
    /// The inode or directory of the operation that failed, if the operation may be answered in this way only once.
    at: Option<Ino>,
    until_ns: u64,
    lookups: u32,
    held: VecDeque<Held>,
}

/// The repeated walks of a mount.
#[derive(Default)]
pub(crate) struct Walks {
    count: AtomicUsize,
    by_thread: Mutex<BTreeMap<u32, Walk>>,
}

impl Walks {
    /// Changes the table. The values that `change` removes are dropped outside the lock, because dropping them closes
    /// files.
    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<u32, Walk>) -> T) -> T {
        let mut by_thread = self.by_thread.lock();
        let out = change(&mut by_thread);
        self.count.store(by_thread.len(), SeqCst);
        out
    }

    /// Returns whether `thread` repeats a walk.
    #[inline]
    pub(crate) fn repeats(&self, thread: u32) -> bool {
        self.count.load(SeqCst) > 0 && self.by_thread.lock().contains_key(&thread)
    }

    /// Returns whether `thread` repeats a walk after an operation on `at`.
    pub(crate) fn repeats_at(&self, thread: u32, at: Ino) -> bool {
        self.count.load(SeqCst) > 0 && self.by_thread.lock().get(&thread).is_some_and(|walk| walk.at == Some(at))
    }

    /// An operation of `thread` was answered that its inode is gone, so the thread will walk again. `at`: see
    /// `repeats_at`.
    pub(crate) fn failed(&self, thread: u32, at: Option<Ino>, now_ns: u64) {
        let _passed_over = self.change(|all| {
            let oldest = all.iter().min_by_key(|(_, walk)| walk.until_ns).map(|(thread, _)| *thread);
            let full = all.len() >= THREADS_MAX && !all.contains_key(&thread);
            let passed_over = oldest.filter(|_| full).and_then(|oldest| all.remove(&oldest));
            let walk = all.entry(thread).or_default();
            (walk.at, walk.until_ns, walk.lookups) = (at, now_ns + WALK_NS, 0);
            assert!(all.len() <= THREADS_MAX, "{} threads repeat a walk, at most {THREADS_MAX}", all.len());
            passed_over
        });
    }

    /// Called when the operation of `thread` has found its inode, so its walk has ended. For threads that cannot be
    /// distinguished, only time ends a walk.
    #[inline]
    pub(crate) fn ended(&self, thread: u32) {
        if self.count.load(SeqCst) > 0 && thread != 0 {
            let _ended = self.change(|all| all.remove(&thread));
        }
    }

    /// The place (directory and name) at which a repeated walk of `thread` was last shown `ino`.
    pub(crate) fn place(&self, thread: u32, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let all = self.by_thread.lock();
        let held = all.get(&thread)?.held.iter().rev().find(|held| held.ino == ino)?;
        Some((held.dir, held.name.clone()))
    }

    pub(crate) fn hold(&self, thread: u32, held: Held, now_ns: u64) {
        let _surplus = self.change(|all| {
            let walk = all.get_mut(&thread)?;
            walk.until_ns = now_ns + WALK_NS;
            walk.held.push_back(held);
            let max = if thread == 0 { HOLDS_UNKNOWN_MAX } else { HOLDS_MAX };
            if walk.held.len() > max { walk.held.pop_front() } else { None }
        });
    }

    /// Returns whether a lookup by `thread` belongs to a repeated walk.
    pub(crate) fn looks_up(&self, thread: u32) -> bool {
        let mut ended = None;
        let is_one = self.change(|all| {
            let Some(walk) = all.get_mut(&thread) else { return false };
            walk.lookups += 1;
            let is_one = walk.lookups <= LOOKUPS_MAX;
            if !is_one {
                ended = all.remove(&thread);
            }
            is_one
        });
        drop(ended);
        is_one
    }

    /// Ends walks whose operation did not come.
    pub(crate) fn tick(&self, now_ns: u64) {
        if self.count.load(SeqCst) > 0 {
            let _ended = self.change(|all| {
                let ended: Vec<u32> =
                    all.iter().filter(|(_, walk)| walk.until_ns <= now_ns).map(|(thread, _)| *thread).collect();
                ended.into_iter().filter_map(|thread| all.remove(&thread)).collect::<Vec<Walk>>()
            });
        }
    }

    /// Ends all walks, because the client stops.
    pub(crate) fn clear(&self) {
        let _ended = self.change(std::mem::take);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a thread repeats a walk from its failure until its operation has ended, or until the time is over. Threads
    /// are independent, and tables are bounded. Method: single calls of several threads.
    #[test]
    fn threads_repeat_walks() {
        let walks = Walks::default();
        assert!(!walks.repeats(7) && !walks.looks_up(7));
        walks.failed(7, Some(Ino(3)), 100);
        assert!(walks.repeats_at(7, Ino(3)) && !walks.repeats_at(7, Ino(4)) && !walks.repeats_at(8, Ino(3)));
        walks.failed(7, None, 100);
        assert!(
            !walks.repeats_at(7, Ino(3))
                && walks.repeats(7)
                && !walks.repeats(8)
                && walks.looks_up(7)
                && !walks.looks_up(8)
        );
        walks.ended(8);
        assert!(walks.repeats(7));
        walks.ended(7);
        assert!(!walks.repeats(7));
        walks.failed(0, None, 100);
        walks.ended(0);
        assert!(walks.repeats(0), "whose operation it was that ended is not known");
        walks.tick(100 + WALK_NS - 1);
        assert!(walks.repeats(0));
        walks.tick(100 + WALK_NS);
        assert!(!walks.repeats(0));
        (1..=THREADS_MAX as u32 + 1).for_each(|thread| walks.failed(thread, None, u64::from(thread)));
        assert!(!walks.repeats(1) && walks.repeats(2) && walks.by_thread.lock().len() == THREADS_MAX);
        (0..LOOKUPS_MAX).for_each(|_| assert!(walks.looks_up(2)));
        assert!(!walks.looks_up(2) && !walks.repeats(2), "no path is as long");
        walks.clear();
        assert!(!walks.repeats(3));
    }
}
