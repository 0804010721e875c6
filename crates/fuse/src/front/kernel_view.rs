//! `KernelView`: what the kernel of this mount may take for the attributes of an inode.
//!
//! Owns: which inodes are being changed by requests of this mount and whose attributes were lent to the kernel, so that
//! the two never go together; the last ends of files that the kernel was told. Does not own: the rule under which
//! anything is lent (`lent`).
//!
//! While a mount is alone its kernel keeps attributes for a while. An answer to `stat` that is computed before a write,
//! and kept, hides what an answer computed after it has shown to another program until the write is answered: of one
//! writer and four that looked, 1 to 10 of 100 looks showed a smaller size than one before. The kernel itself takes no
//! answer that was asked for before a change that it knows of, but it knows of a change only when that is answered. So
//!
//! * an answer is lent only if no change of the inode is under way, and none has ended since the answer was asked for;
//! * a change that finds the attributes lent has the kernel forget them before it begins: that costs a notification of
//!   1 to 2 us for the first write behind a `stat`, and nothing for others.
//!
//! With other mounts nothing is lent. Then the kernel's idea of the end of a file, where it writes what a program
//! appends, may be an old one: `may_be_end` says whether an offset may come from there.
//!
//! Bound: `SLOTS` slots, each for the inodes of one hash. Inodes that meet in a slot cost a notification too many, or a
//! look at the calling thread, never one too few.

use super::appended::Appended;
use crate::clock::monotonic_ns;
use crate::notify::Notifier;
use amphi_types::{Errno, Ino, Result};
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Slots, about 100 bytes each.
const SLOTS: usize = 8192;
/// A thread takes so long at most from the answer to the moment from which the kernel counts the life of what it shows.
const LATE: Duration = Duration::from_millis(50);
/// Last ends of a file that are remembered: answers to requests that crossed.
const ENDS: usize = 4;

#[derive(Default)]
struct Slot {
    /// Changes under way.
    changes: u32,
    /// Number of the last one that has ended.
    changed: u64,
    /// Until when the kernel may go by attributes that it was lent.
    lent_until_ns: u64,
    /// The kernel has forgotten those of this inode, and none were lent since.
    forgotten: Ino,
    /// The kernel may have missed where a file ends: the answer to a change said that it failed.
    missed: bool,
    /// Whose ends these are.
    told: Ino,
    ends: [u64; ENDS],
    next_end: usize,
}

/// See the module's head.
pub(crate) struct KernelView {
    slots: Box<[Mutex<Slot>]>,
    /// Files that are open to append.
    pub(crate) appended: Appended,
    /// Numbers changes in the order in which they end.
    ended: AtomicU64,
    notifier: OnceLock<Notifier>,
}

/// A moment, to be compared with the ends of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Since(u64);

/// A change of an inode under way; it is over when this is dropped. The view is borrowed, or shared with an answer that
/// may come later.
pub(crate) struct Changing<V: Deref<Target = KernelView>> {
    view: V,
    ino: Ino,
    since: Since,
    /// Another one was under way when it began.
    beside: bool,
    is_over: bool,
}

/// A change that ends with the first of those who hold it that says so, or with the last of them.
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
    /// The mount is there.
    pub(crate) fn mounted(&self, notifier: Notifier) {
        let _ = self.notifier.set(notifier);
    }

    fn slot(&self, ino: Ino) -> &Mutex<Slot> {
        &self.slots[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51) as usize % SLOTS]
    }

    /// Now: to be noted before attributes are asked for.
    pub(crate) fn now(&self) -> Since {
        Since(self.ended.load(SeqCst))
    }

    /// Whether attributes of `ino` that were asked for at `since` may be lent for `life` from now on. If so, it is
    /// noted.
    pub(crate) fn lend(&self, ino: Ino, since: Since, life: Duration) -> bool {
        let mut slot = self.slot(ino).lock();
        if slot.changes > 0 || slot.changed > since.0 {
            return false;
        }
        slot.lent_until_ns = slot.lent_until_ns.max(monotonic_ns() + (life + LATE).as_nanos() as u64);
        slot.forgotten = Ino(0);
        true
    }

    /// A change of `ino` begins. Until it ends nothing is lent, and what was lent is forgotten now.
    pub(crate) fn change(&self, ino: Ino) -> Changing<&KernelView> {
        let mut slot = self.slot(ino).lock();
        let since = self.now();
        let beside = slot.changes > 0;
        slot.changes += 1;
        // Under the lock: another change waits until it is done. The kernel waits for nothing here
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

    /// Whether a change of `ino` is under way.
    pub(crate) fn is_changing(&self, ino: Ino) -> bool {
        self.slot(ino).lock().changes > 0
    }

    /// Has the kernel forget the attributes of `ino`, and take none of an answer to a question from before. Whether it
    /// knows the inode.
    pub(crate) fn forgets(&self, ino: Ino) -> Result<bool> {
        self.notifier.get().map_or(Err(Errno::NotConnected), |notifier| notifier.inval_attr(ino))
    }

    /// The kernel is told that a file ends at `end`, or that a write has ended there.
    pub(crate) fn tell_end(&self, ino: Ino, end: u64) {
        let slot = &mut *self.slot(ino).lock();
        if slot.told != ino {
            (slot.told, slot.ends, slot.next_end) = (ino, [end; ENDS], 0);
        } else if !slot.ends.contains(&end) {
            slot.ends[slot.next_end] = end;
            slot.next_end = (slot.next_end + 1) % ENDS;
        }
    }

    /// Whether the kernel may take `offset` for the end of the file.
    pub(crate) fn may_be_end(&self, ino: Ino, offset: u64) -> bool {
        let slot = self.slot(ino).lock();
        slot.told != ino || slot.ends.contains(&offset)
    }

    /// The answer to a change of the file said less than what may have become of it.
    pub(crate) fn misses_end(&self, ino: Ino) {
        self.slot(ino).lock().missed = true;
    }

    /// Whether the kernel of a mount that was always alone knows where the file ends.
    pub(crate) fn knows_end(&self, ino: Ino) -> bool {
        !self.slot(ino).lock().missed
    }
}

impl Changing<&KernelView> {
    /// The same change, for an answer that may come when the request has no thread any more.
    pub(crate) fn shared(mut self, view: &Arc<KernelView>) -> SharedChange {
        let Changing { ino, since, beside, .. } = self;
        // It goes on in the other one.
        let is_over = std::mem::replace(&mut self.is_over, true);
        SharedChange(Arc::new(Mutex::new(Changing { view: view.clone(), ino, since, beside, is_over })))
    }
}

impl SharedChange {
    /// It is over. From when on attributes that its answer shows count as asked for.
    pub(crate) fn ends(&self) -> Since {
        self.0.lock().end()
    }
}

impl<V: Deref<Target = KernelView>> Changing<V> {
    /// It is over. From when on attributes that its answer shows count as asked for.
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
        // Nothing else came in between: the answer is as good as one that is asked for now.
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

    /// Goal: nothing is lent that was asked for before the end of a change; the answer to a change that was alone is.
    /// Method: the orders of a question, a change and another one.
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

    /// Goal: a change has forgotten what was lent of its inode, and of no other. Method: the marks; two inodes of one
    /// slot.
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

    /// Goal: a change whose answer may come later is one change: it ends once, with whoever says so first, or with the
    /// last who holds it. Method: shared ones, ended and dropped.
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

    /// Goal: ends that the kernel was told lately are known, and where nothing is known everything may be. Method: more
    /// than are kept.
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
