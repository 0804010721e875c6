//! `KernelView`: which attributes the kernel of this mount may be caching, and which inodes this mount is changing.
//!
//! Owns: which inodes are being changed by requests of this mount, and which have attributes with a running timeout in
//! the kernel. No inode is both at once. It also owns the last ends of files that the kernel was shown. Does not own:
//! the rule by which an answer gets a timeout (`lent`).
//!
//! In sole mode the kernel caches attributes. Suppose a `stat` is answered from before a write, and the kernel caches
//! that answer. Another program may have been shown the new size already. Until the write is answered, the next `stat`
//! shows the old size again. In a test with one writer and four readers, 1 to 10 of 100 calls of `stat` showed a
//! smaller size than an earlier call. Linux itself drops answers to questions from before a change, but it learns of a
//! change only when that is answered. Therefore:
//!
//! * An answer gets a timeout only if no change of the inode is under way, and none has ended since the attributes were
//!   requested.
//! * A change that finds attributes with a running timeout invalidates them before it begins. The invalidation costs a
//!   notification of 1 to 2 us for the first write after a `stat`, and nothing for other writes.
//!
//! In shared mode these rules do not apply. The kernel writes appended bytes at the end that it knows, which may be out
//! of date. `may_be_end` says whether an offset may be such an end.
//!
//! Bound: `SLOTS` slots, each for all inodes with one hash value. Two inodes in one slot may cause an unnecessary
//! notification or an unnecessary look at a thread. They never suppress a necessary one.

use super::appended::Appended;
use crate::clock::monotonic_ns;
use crate::notify::Notifier;
use amphi_types::{Errno, Ino, Result};
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Number of slots, about 100 bytes each.
const SLOTS: usize = 8192;
/// The longest time that a thread needs from the answer to the moment from which the kernel counts the timeout.
const LATE: Duration = Duration::from_millis(50);
/// This many of the last ends of a file are remembered, because requests may have crossed.
const ENDS: usize = 4;

#[derive(Default)]
struct Slot {
    /// Number of changes under way.
    changes: u32,
    /// Number of inodes to which programs may write without the kernel.
    posted_to: u32,
    /// Programs have written without the kernel, so the kernel may not know the ends of these inodes.
    was_posted_to: bool,
    /// Number of the change that ended last.
    changed: u64,
    /// When the timeout of cached attributes ends at the latest.
    lent_until_ns: u64,
    /// The inode whose attributes were invalidated, if none were answered with a timeout since.
    forgotten: Ino,
    /// The kernel may not know the end of the file, because the answer to a change reported a failure.
    missed: bool,
    /// The inode whose ends `ends` records.
    told: Ino,
    ends: [u64; ENDS],
    next_end: usize,
}

/// The facts about the mount's inodes that the kernel may have cached. The knowledge of the mount about the kernel's
/// caches of inodes.
pub(crate) struct KernelView {
    slots: Box<[Mutex<Slot>]>,
    /// Files that are open to append.
    pub(crate) appended: Appended,
    /// Number of the change that ended last, over all inodes.
    ended: AtomicU64,
    notifier: OnceLock<Notifier>,
}

/// A moment, to be compared with the ends of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Since(u64);

/// A change of an inode under way, which ends when this value is dropped. The view is borrowed, or shared with an
/// answer that may come later.
pub(crate) struct Changing<V: Deref<Target = KernelView>> {
    view: V,
    ino: Ino,
    since: Since,
    /// Whether another change of the inode was under way when this one began.
    beside: bool,
    is_over: bool,
}

/// A change with several holders. The change ends when one of the holders says so, or when the last one is dropped.
#[derive(Clone)]
pub(crate) struct SharedChange(Arc<Mutex<Changing<Arc<KernelView>>>>);

impl Default for KernelView {
    fn default() -> KernelView {
        KernelView {
            slots: (0..SLOTS).map(|_| Mutex::default()).collect(),
            appended: Appended::default(),
            ended: AtomicU64::new(0),
            notifier: OnceLock::new(),
        }
    }
}

impl KernelView {
    /// Called when the mount is served from now on.
    pub(crate) fn mounted(&self, notifier: Notifier) {
        let _ = self.notifier.set(notifier);
    }

    fn slot(&self, ino: Ino) -> &Mutex<Slot> {
        &self.slots[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51) as usize % SLOTS]
    }

    /// The present moment, to be noted before attributes are requested.
    pub(crate) fn now(&self) -> Since {
        Since(self.ended.load(SeqCst))
    }

    /// Returns whether an answer with attributes of `ino`, requested at `since`, may carry a timeout of `life`. If so,
    /// the timeout is noted.
    pub(crate) fn lend(&self, ino: Ino, since: Since, life: Duration) -> bool {
        let mut slot = self.slot(ino).lock();
        if slot.changes > 0 || slot.posted_to > 0 || slot.changed > since.0 {
            return false;
        }
        slot.lent_until_ns = slot.lent_until_ns.max(monotonic_ns() + (life + LATE).as_nanos() as u64);
        slot.forgotten = Ino(0);
        true
    }

    /// Begins a change of `ino`. Attributes in the kernel are invalidated now, and until the change ends no answer gets
    /// a timeout.
    pub(crate) fn change(&self, ino: Ino) -> Changing<&KernelView> {
        let mut slot = self.slot(ino).lock();
        let since = self.now();
        let beside = slot.changes > 0;
        slot.changes += 1;
        // Under the mutex, so another change waits until this is done. The notification waits for nothing
        // (`Notifier::inval_attr`).
        if slot.lent_until_ns > 0 && slot.forgotten != ino {
            if slot.lent_until_ns <= monotonic_ns() {
                slot.lent_until_ns = 0;
            } else if let Some(notifier) = self.notifier.get() {
                if let Err(e) = notifier.inval_attr(ino) {
                    tracing::debug!(%ino, "the kernel did not forget attributes: {e}");
                }
                slot.forgotten = ino;
            }
        }
        Changing { view: self, ino, since, beside, is_over: false }
    }

    /// From now on programs may write to `ino` without the kernel: its attributes are invalidated, and get no timeout
    /// until `posts_end`.
    pub(crate) fn posts_begin(&self, ino: Ino) {
        self.slot(ino).lock().posted_to += 1;
        self.slot(ino).lock().was_posted_to = true;
        drop(self.change(ino));
        if let Err(e) = self.forgets(ino) {
            tracing::debug!(%ino, "the kernel did not forget attributes: {e}");
        }
    }

    /// Ends `posts_begin`.
    pub(crate) fn posts_end(&self, ino: Ino) {
        let mut slot = self.slot(ino).lock();
        assert!(slot.posted_to > 0 || std::thread::panicking(), "{ino}: posts end that did not begin");
        slot.posted_to = slot.posted_to.saturating_sub(1);
        slot.changed = self.ended.fetch_add(1, SeqCst) + 1;
    }

    /// Returns whether programs have written to `ino` without the kernel, so that the kernel may use an older end.
    pub(crate) fn was_posted_to(&self, ino: Ino) -> bool {
        self.slot(ino).lock().was_posted_to
    }

    /// Returns whether a change of `ino` is under way.
    pub(crate) fn is_changing(&self, ino: Ino) -> bool {
        self.slot(ino).lock().changes > 0
    }

    /// Invalidates the attributes of `ino`, and makes the kernel drop answers to earlier questions. Returns whether the
    /// kernel knows the inode.
    pub(crate) fn forgets(&self, ino: Ino) -> Result<bool> {
        self.notifier.get().map_or(Err(Errno::NotConnected), |notifier| notifier.inval_attr(ino))
    }

    /// Notes that the kernel is shown that a file ends at `end`, or that a write has ended there.
    pub(crate) fn tell_end(&self, ino: Ino, end: u64) {
        let slot = &mut *self.slot(ino).lock();
        if slot.told != ino {
            (slot.told, slot.ends, slot.next_end) = (ino, [end; ENDS], 0);
        } else if !slot.ends.contains(&end) {
            slot.ends[slot.next_end] = end;
            slot.next_end = (slot.next_end + 1) % ENDS;
        }
    }

    /// Returns whether the kernel may believe that the file ends at `offset`.
    pub(crate) fn may_be_end(&self, ino: Ino, offset: u64) -> bool {
        let slot = self.slot(ino).lock();
        slot.told != ino || slot.ends.contains(&offset)
    }

    /// Notes that a change of the file was answered with less than it may have done.
    pub(crate) fn misses_end(&self, ino: Ino) {
        self.slot(ino).lock().missed = true;
    }

    /// Returns whether the kernel knows where the file ends, which is so in a mount that was always the only one.
    pub(crate) fn knows_end(&self, ino: Ino) -> bool {
        !self.slot(ino).lock().missed
    }
}

impl Changing<&KernelView> {
    /// Makes this a shared change, for an answer that may come when the request has no thread any more.
    pub(crate) fn shared(mut self, view: &Arc<KernelView>) -> SharedChange {
        let Changing { ino, since, beside, .. } = self;
        // The change continues in the shared value.
        let is_over = std::mem::replace(&mut self.is_over, true);
        SharedChange(Arc::new(Mutex::new(Changing { view: view.clone(), ino, since, beside, is_over })))
    }
}

impl SharedChange {
    /// Ends the change. Returns the moment at which the attributes of its answer count as requested.
    pub(crate) fn ends(&self) -> Since {
        self.0.lock().end()
    }
}

impl<V: Deref<Target = KernelView>> Changing<V> {
    /// Ends the change. Returns the moment at which the attributes of its answer count as requested.
    pub(crate) fn ends(mut self) -> Since {
        self.end()
    }

    fn end(&mut self) -> Since {
        if std::mem::replace(&mut self.is_over, true) {
            return self.since;
        }
        let mut slot = self.view.slot(self.ino).lock();
        let alone = !self.beside && slot.changes == 1 && slot.changed <= self.since.0;
        slot.changes -= 1;
        slot.changed = self.view.ended.fetch_add(1, SeqCst) + 1;
        // No other change was made in between, so the answer is as good as one that is requested now.
        if alone { Since(slot.changed) } else { self.since }
    }
}

impl<V: Deref<Target = KernelView>> Drop for Changing<V> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_secs(3600);

    /// Goal: an answer whose request was sent before the end of a change gets no timeout. The answer to a change that
    /// no other change overlapped gets one. Method: the possible orders of a request, a change and another change.
    #[test]
    fn nothing_is_lent_beside_a_change() {
        let (view, ino, other) = (KernelView::default(), Ino(7), Ino(8));
        let before = view.now();
        assert!(view.lend(ino, before, LIFE));
        let change = view.change(ino);
        assert!(!view.lend(ino, before, LIFE) && !view.lend(ino, view.now(), LIFE), "under way");
        assert!(view.lend(other, before, LIFE), "another inode");
        let after = change.ends();
        assert!(!view.lend(ino, before, LIFE), "asked for before");
        assert!(view.lend(ino, after, LIFE) && view.lend(ino, view.now(), LIFE));
        let (first, second) = (view.change(ino), view.change(ino));
        let answer = first.ends();
        assert!(!view.lend(ino, answer, LIFE));
        let answer = second.ends();
        assert!(!view.lend(ino, answer, LIFE), "another change has ended in between");
        assert!(view.lend(ino, view.now(), LIFE));
    }

    /// Goal: a change invalidates attributes with a timeout of its own inode, and of no other. Method: the marks of two
    /// inodes in one slot.
    #[test]
    fn what_was_lent_is_forgotten() {
        let view = KernelView::default();
        view.mounted(Notifier::detached());
        let ino = Ino(5);
        let twin = (6..).map(Ino).find(|other| std::ptr::eq(view.slot(*other), view.slot(ino))).expect("a twin");
        let forgotten = || view.slot(ino).lock().forgotten;
        drop(view.change(ino));
        assert_eq!(forgotten(), Ino(0), "nothing was lent");
        assert!(view.lend(ino, view.now(), LIFE) && view.lend(twin, view.now(), LIFE));
        drop(view.change(ino));
        assert_eq!(forgotten(), ino);
        drop(view.change(twin));
        assert_eq!(forgotten(), twin, "that of its twin does not stand for it");
        drop(view.change(ino));
        assert_eq!(forgotten(), ino);
        assert!(view.lend(ino, view.now(), LIFE));
        assert_eq!(forgotten(), Ino(0), "lent anew");
    }

    /// Goal: a change with a delayed answer counts as one change. It ends once, when the first holder ends it, or when
    /// the last holder is dropped. Method: shared changes that are ended and dropped.
    #[test]
    fn shared_changes_end_once() {
        let (view, ino) = (Arc::new(KernelView::default()), Ino(7));
        let change = view.change(ino).shared(&view);
        let later = change.clone();
        drop(change);
        assert!(!view.lend(ino, view.now(), LIFE), "under way");
        let since = later.ends();
        assert!(view.lend(ino, since, LIFE));
        let ended = view.now();
        drop(later);
        assert_eq!(view.now(), ended, "it has ended before");
        drop(view.change(ino).shared(&view));
        assert!(view.now() != ended && view.lend(ino, view.now(), LIFE));
    }

    /// Goal: ends that the kernel was shown lately are known; if none is known, any offset may be the end. Method: more
    /// ends than are remembered.
    #[test]
    fn ends_that_were_told() {
        let (view, ino) = (KernelView::default(), Ino(5));
        assert!(view.may_be_end(ino, 3) && view.knows_end(ino));
        view.tell_end(ino, 10);
        assert!(view.may_be_end(ino, 10) && !view.may_be_end(ino, 3));
        (0..ENDS as u64).for_each(|i| view.tell_end(ino, 20 + i));
        assert!(view.may_be_end(ino, 20) && view.may_be_end(ino, 23) && !view.may_be_end(ino, 10));
        view.misses_end(ino);
        let other =
            (6..).map(Ino).find(|other| !std::ptr::eq(view.slot(*other), view.slot(ino))).expect("another slot");
        assert!(!view.knows_end(ino) && view.knows_end(other));
    }
}
