//! Byte-range lock of a file: orders the requests of this mount on overlapping bytes.
//!
//! Owns: which requests hold which bytes, shared or exclusively, and the queue. The order is first come, first served:
//! a request waits for every earlier conflicting request, also for those that are still waiting, so no request starves.
//! Waiting is a future, so threads and async tasks use the same lock. Does not own: locks between clients (`locks`).
//!
//! Counters let cache hits run without the lock (`marks`).
//!
//! A *posting* (`ops::posts`) keeps all callers that wait from the whole file, and is told to end by the first one. It
//! waits for nobody itself. Callers that do not wait (`try_acquire`) hold bytes beside it.

mod marks;

use super::exported::Exported;
use amphi_shm::export::Export;
use amphi_types::ByteRange;
use marks::Marks;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// How bytes are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Shared,
    Exclusive,
}

#[derive(Clone, Copy)]
struct Entry {
    id: u64,
    range: ByteRange,
    hold: Hold,
}

impl Entry {
    fn conflicts(&self, other: &Entry) -> bool {
        (self.hold == Hold::Exclusive || other.hold == Hold::Exclusive) && self.range.overlaps(&other.range)
    }
}

#[derive(Default)]
struct State {
    next_id: u64,
    held: Vec<Entry>,
    waiting: VecDeque<(Entry, Option<Waker>)>,
    /// Holders that keep programs from reading without calls, in addition to the exclusive holders.
    hidden: usize,
    /// Called when a request begins to wait for the posting that has the file.
    posting: Option<Arc<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    marks: Marks,
    exported: Exported,
}

/// The lock. Clones refer to the same lock.
#[derive(Clone, Default)]
pub(crate) struct RangeLock(Arc<Shared>);

impl RangeLock {
    /// A lock that no request holds. While bytes are held exclusively, programs that read from `exported` make system
    /// calls.
    pub(super) fn new(exported: Exported) -> RangeLock {
        RangeLock(Arc::new(Shared { exported, ..Shared::default() }))
    }

    /// The export in which this lock blocks programs.
    #[inline]
    pub(super) fn exported(&self) -> &Exported {
        &self.0.exported
    }

    /// Gives the file another export, or none.
    pub(super) fn export(&self, export: Option<Arc<Export>>) {
        // Nothing is granted or released while this lock is held.
        let s = self.0.state.lock();
        if let Some(export) = &export {
            let exclusive = s.held.iter().filter(|held| held.hold == Hold::Exclusive).count();
            (0..exclusive + s.hidden).for_each(|_| export.block());
        }
        self.0.exported.set(export);
    }

    /// From now on until the result is dropped, programs that read the file make calls.
    pub(crate) fn hide(&self) -> Hidden {
        let mut s = self.0.state.lock();
        s.hidden += 1;
        self.0.exported.block();
        Hidden(self.clone())
    }

    /// Returns whether nobody holds anything.
    pub(crate) fn idle(&self) -> bool {
        self.0.marks.idle()
    }

    /// A stamp of a moment without an exclusive holder, to be compared with a later stamp.
    pub(crate) fn stamp(&self) -> Option<u64> {
        self.0.marks.stamp()
    }

    /// A caller writes without the range lock. It has to be called under the lock of the cache that readers of the
    /// bytes take. Then a reader that sees a later write has either read these bytes before, or finds that this write
    /// was counted.
    #[inline]
    pub(crate) fn wrote_unguarded(&self) {
        self.0.marks.wrote_unguarded();
    }

    /// Number of writes without the lock so far.
    #[inline]
    pub(crate) fn unguarded(&self) -> u64 {
        self.0.marks.unguarded()
    }

    /// Takes the bytes if no other request conflicts.
    pub(crate) fn try_acquire(&self, range: ByteRange, hold: Hold) -> Option<Guard> {
        let mut s = self.0.state.lock();
        let entry = self.entry(&mut s, range, hold);
        let free = !s.held.iter().any(|h| h.conflicts(&entry)) && !s.waiting.iter().any(|(w, _)| w.conflicts(&entry));
        free.then(|| {
            self.grant(&mut s, entry);
            Guard { lock: self.clone(), id: entry.id }
        })
    }

    /// Takes the bytes when it is this request's turn. Dropping the future gives up the place in the queue.
    pub(crate) fn acquire(&self, range: ByteRange, hold: Hold) -> Acquire {
        let mut s = self.0.state.lock();
        let entry = self.entry(&mut s, range, hold);
        s.waiting.push_back((entry, None));
        self.advance(&mut s);
        let posting = s.posting.clone();
        drop(s);
        if let Some(wanted) = posting {
            wanted();
        }
        Acquire { lock: self.clone(), id: entry.id, done: false }
    }

    /// Gives the whole file to a posting, if nobody holds or awaits any of it. From now on until the result is dropped,
    /// every request that would wait does wait, and calls `wanted`, on any thread, which must not wait.
    pub(crate) fn try_post(&self, wanted: Arc<dyn Fn() + Send + Sync>) -> Option<PostingHold> {
        let mut s = self.0.state.lock();
        if !s.held.is_empty() || !s.waiting.is_empty() || s.posting.is_some() {
            return None;
        }
        s.posting = Some(wanted);
        Some(PostingHold(self.clone()))
    }

    /// Takes the bytes exclusively for the posting that has the file: requests that wait for the posting do not count.
    /// `None`: another caller holds some of the bytes; it waits for nothing meanwhile.
    pub(crate) fn try_within_posting(&self, range: ByteRange) -> Option<Guard> {
        let mut s = self.0.state.lock();
        let entry = self.entry(&mut s, range, Hold::Exclusive);
        let free = !s.held.iter().any(|held| held.conflicts(&entry));
        free.then(|| {
            self.grant(&mut s, entry);
            Guard { lock: self.clone(), id: entry.id }
        })
    }

    fn entry(&self, s: &mut State, range: ByteRange, hold: Hold) -> Entry {
        s.next_id += 1;
        Entry { id: s.next_id, range, hold }
    }

    fn grant(&self, s: &mut State, entry: Entry) {
        if entry.hold == Hold::Exclusive {
            self.0.exported.block();
        }
        self.0.marks.granted(entry.hold);
        s.held.push(entry);
    }

    /// Grants every waiting request that conflicts with no earlier one.
    fn advance(&self, s: &mut State) {
        if s.posting.is_some() {
            return;
        }
        let mut i = 0;
        while i < s.waiting.len() {
            let entry = s.waiting[i].0;
            let blocked = s.held.iter().any(|h| h.conflicts(&entry))
                || s.waiting.iter().take(i).any(|(w, _)| w.conflicts(&entry));
            if blocked {
                i += 1;
                continue;
            }
            if let Some((_, Some(waker))) = s.waiting.remove(i) {
                waker.wake();
            }
            self.grant(s, entry);
        }
    }

    fn release(&self, id: u64) {
        let mut s = self.0.state.lock();
        if let Some(i) = s.held.iter().position(|h| h.id == id) {
            let entry = s.held.swap_remove(i);
            self.0.marks.released(entry.hold);
            if entry.hold == Hold::Exclusive {
                self.0.exported.unblock();
            }
        } else {
            s.waiting.retain(|(w, _)| w.id != id);
        }
        if !s.waiting.is_empty() {
            self.advance(&mut s);
        }
    }
}

/// A request that waits for its turn.
pub(crate) struct Acquire {
    lock: RangeLock,
    id: u64,
    done: bool,
}

impl Future for Acquire {
    type Output = Guard;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Guard> {
        let mut s = self.lock.0.state.lock();
        if let Some((_, waker)) = s.waiting.iter_mut().find(|(w, _)| w.id == self.id) {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        drop(s);
        self.done = true;
        Poll::Ready(Guard { lock: self.lock.clone(), id: self.id })
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if !self.done {
            self.lock.release(self.id);
        }
    }
}

/// The whole file, for a posting.
pub(crate) struct PostingHold(RangeLock);

impl Drop for PostingHold {
    fn drop(&mut self) {
        let PostingHold(lock) = self;
        let mut s = lock.0.state.lock();
        let before = s.posting.take();
        lock.advance(&mut s);
        drop((s, before));
    }
}

/// Keeps programs from reading the file without calls.
pub(crate) struct Hidden(RangeLock);

impl Drop for Hidden {
    fn drop(&mut self) {
        let Hidden(RangeLock(shared)) = self;
        let mut s = shared.state.lock();
        s.hidden -= 1;
        shared.exported.unblock();
    }
}

/// Bytes that are held; dropping it releases them.
pub(crate) struct Guard {
    lock: RangeLock,
    id: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.lock.release(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    fn r(a: u64, b: u64) -> ByteRange {
        ByteRange::new(a, b)
    }

    /// Goal: conflicting requests wait in order, and other requests do not wait for them. Method: a story with a
    /// reader, a waiting writer and a late reader.
    #[test]
    fn first_come_first_served() {
        let lock = RangeLock::default();
        let reader = lock.try_acquire(r(0, 10), Hold::Shared).unwrap();
        assert!(lock.try_acquire(r(5, 15), Hold::Shared).is_some());
        let mut writer = lock.acquire(r(5, 15), Hold::Exclusive);
        assert!((&mut writer).now_or_never().is_none());
        assert!(lock.try_acquire(r(12, 13), Hold::Shared).is_none(), "the waiting writer comes first");
        let mut late = lock.acquire(r(14, 20), Hold::Shared);
        assert!((&mut late).now_or_never().is_none());
        let beside = lock.acquire(r(30, 40), Hold::Exclusive).now_or_never().unwrap();
        assert_eq!(lock.stamp(), None, "somebody writes");
        drop((reader, beside));
        let stamp = lock.stamp();
        assert_eq!(stamp, None, "the waiting writer was granted the bytes");
        let held = (&mut writer).now_or_never().expect("granted when the reader left");
        assert!((&mut late).now_or_never().is_none());
        drop(held);
        assert!((&mut late).now_or_never().is_some());
    }

    /// Goal: a request that is given up blocks no other one, whether it was granted or not. Method: futures are dropped
    /// in both states.
    #[test]
    fn giving_up_frees_the_place() {
        let lock = RangeLock::default();
        let held = lock.try_acquire(ByteRange::ALL, Hold::Exclusive).unwrap();
        let waiting = lock.acquire(r(0, 1), Hold::Exclusive);
        let behind = lock.acquire(r(0, 1), Hold::Shared);
        drop(waiting);
        drop(held);
        drop(behind);
        assert!(lock.idle());
        assert!(lock.try_acquire(ByteRange::ALL, Hold::Exclusive).is_some());
    }

    /// Goal: a posting has the file only if nobody holds or awaits any of it; callers that wait ask it to end, and
    /// are granted then; those that do not wait, and its own writes, go on. Method: a story.
    #[test]
    fn a_posting_ends_for_those_who_wait() {
        let (lock, asked) = (RangeLock::default(), Arc::new(AtomicU32::new(0)));
        let told = asked.clone();
        let wanted: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            told.fetch_add(1, SeqCst);
        });
        let held = lock.try_acquire(r(0, 1), Hold::Shared).unwrap();
        assert!(lock.try_post(wanted.clone()).is_none(), "somebody holds a byte");
        drop(held);
        let posting = lock.try_post(wanted.clone()).unwrap();
        assert!(lock.try_post(wanted).is_none() && lock.idle() && lock.stamp().is_some());
        drop(lock.try_acquire(r(0, 10), Hold::Exclusive).expect("it does not wait"));
        assert_eq!(asked.load(SeqCst), 0);
        let mut reader = lock.acquire(r(0, 10), Hold::Shared);
        assert!((&mut reader).now_or_never().is_none() && asked.load(SeqCst) == 1);
        assert!(lock.try_acquire(r(5, 6), Hold::Exclusive).is_none(), "the reader comes first");
        let own = lock.try_within_posting(r(0, 10)).expect("the reader waits for this");
        assert!(lock.try_within_posting(r(9, 11)).is_none());
        drop(own);
        assert!((&mut reader).now_or_never().is_none());
        drop(posting);
        assert!(reader.now_or_never().is_some());
        assert!(lock.idle());
    }

    /// Goal: at no time do two conflicting requests hold bytes, and every request is granted. Method: threads add to
    /// plain cells under the lock. Nothing else guards the cells but a check of the count.
    #[test]
    fn threads_exclude_each_other() {
        let lock = RangeLock::default();
        let inside: Arc<Vec<AtomicU32>> = Arc::new((0..8).map(|_| AtomicU32::new(0)).collect());
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                let (lock, inside) = (lock.clone(), inside.clone());
                scope.spawn(move || {
                    for i in 0..500u64 {
                        let a = (i * 7 + t * 3) % 7;
                        let guard = crate::tests::block_on(lock.acquire(r(a, a + 2), Hold::Exclusive));
                        for c in &inside[a as usize..a as usize + 2] {
                            assert_eq!(c.fetch_add(1, SeqCst), 0);
                        }
                        for c in &inside[a as usize..a as usize + 2] {
                            c.fetch_sub(1, SeqCst);
                        }
                        drop(guard);
                    }
                });
            }
        });
        assert!(lock.idle());
    }
}
