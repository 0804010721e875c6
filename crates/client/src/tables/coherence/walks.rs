//! Path walks that the kernel repeats because an inode was removed while it walked.
//!
//! The kernel looks a name up and then sends the operation with the inode that it was shown. Somebody may have renamed
//! another file over that name in between, and the inode is gone: a local file system keeps it for the walker, whom the
//! server does not know. The operation is answered with ESTALE. Linux then walks the path once more and asks for each
//! name anew (`LOOKUP_REVAL`), but only once, so a second replacement at the wrong moment would reach the program. In
//! this second walk the inode of each name that is looked up is therefore held open at its server until the operation
//! has come: whatever becomes of the name, the inode lives.
//!
//! Owns: which threads walk again, and what is held for each. Does not own: who tells that a walk failed (the front
//! end, which knows its threads), the look-ups (`ops::walks`).
//!
//! No message says when the walk has ended if its operation is the kernel's own, as the open of a pipe is. So a thread
//! may be taken to repeat a walk that is another call's first one. What must not be told twice in one call is therefore
//! asked by what the operation is about (`repeats_at`).
//!
//! Invariants: in a repeated walk the answer to a look-up of anything but a directory is given after the inode was
//! opened for nothing (as by `O_PATH`), so the operation that follows finds it. Directories need no hold: nothing can
//! be in one that was removed, and `removed` knows what it was. Cost: nothing but one look at a counter while no walk
//! is repeated; two messages for each look-up of a repeated walk. Bounds: `THREADS_MAX` threads, `HOLDS_MAX` inodes
//! each (a walk needs the last one; link has a second walk behind it), `WALK_NS`.

use crate::inode::OpenFile;
use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A walk is taken for ended so long after its last look-up: its operation comes at once unless the thread has to wait
/// for a processor.
const WALK_NS: u64 = 5_000_000_000;
/// Look-ups of one walk that are held: more than the longest path has names.
const LOOKUPS_MAX: u32 = 4096;
/// Inodes held for one thread.
const HOLDS_MAX: usize = 8;
/// Inodes held for all threads that the front end cannot tell apart.
const HOLDS_UNKNOWN_MAX: usize = 64;
/// Threads that walk again at the same time; of more the one that looked up longest ago is passed over.
const THREADS_MAX: usize = 1024;
/// An inode that a repeated walk was shown.
pub(crate) struct Held {
    pub(crate) dir: Ino,
    pub(crate) name: Vec<u8>,
    pub(crate) ino: Ino,
    pub(crate) _open: Arc<OpenFile>,
}

#[derive(Default)]
struct Walk {
    /// The inode or directory of the operation that failed, if it was one that may be told so once only.
    at: Option<Ino>,
    until_ns: u64,
    lookups: u32,
    held: VecDeque<Held>,
}

/// Walks that are repeated.
#[derive(Default)]
pub(crate) struct Walks {
    count: AtomicUsize,
    by_thread: Mutex<BTreeMap<u32, Walk>>,
}

impl Walks {
    /// Changes the table. What `change` takes out is dropped without the lock, since that closes files.
    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<u32, Walk>) -> T) -> T {
        let mut by_thread = self.by_thread.lock();
        let out = change(&mut by_thread);
        self.count.store(by_thread.len(), SeqCst);
        out
    }

    /// Whether `thread` repeats a walk.
    #[inline]
    pub(crate) fn repeats(&self, thread: u32) -> bool {
        self.count.load(SeqCst) > 0 && self.by_thread.lock().contains_key(&thread)
    }

    /// Whether `thread` repeats a walk after an operation on `at`.
    pub(crate) fn repeats_at(&self, thread: u32, at: Ino) -> bool {
        self.count.load(SeqCst) > 0 && self.by_thread.lock().get(&thread).is_some_and(|walk| walk.at == Some(at))
    }

    /// An operation of `thread` was told that its inode has gone: it will walk again. `at`: see `repeats_at`.
    pub(crate) fn failed(&self, thread: u32, at: Option<Ino>, now_ns: u64) {
        let _passed_over = self.change(|all| {
            let oldest = all.iter().min_by_key(|(_, walk)| walk.until_ns).map(|(thread, _)| *thread);
            let full = all.len() >= THREADS_MAX && !all.contains_key(&thread);
            let passed_over = oldest.filter(|_| full).and_then(|oldest| all.remove(&oldest));
            let walk = all.entry(thread).or_default();
            (walk.at, walk.until_ns, walk.lookups) = (at, now_ns + WALK_NS, 0);
            passed_over
        });
    }

    /// The operation of `thread` has found its inode. Threads that cannot be told apart end by time alone.
    #[inline]
    pub(crate) fn ended(&self, thread: u32) {
        if self.count.load(SeqCst) > 0 && thread != 0 {
            let _ended = self.change(|all| all.remove(&thread));
        }
    }

    /// Where a repeated walk of `thread` was last shown `ino`.
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

    /// Whether a look-up of `thread` is of a repeated walk.
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

    /// Ends all walks: the client stops.
    pub(crate) fn clear(&self) {
        let _ended = self.change(std::mem::take);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a thread repeats a walk from its failure until its operation has ended, or for a while; each thread for
    /// itself; tables are bounded. Method: by hand.
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
