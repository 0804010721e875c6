//! `SharedBlocks`: writes that share a block at their edges. They follow each other without waiting for each other's
//! disk write.
//!
//! Owns: the order of writes of one block, and the copy of the block that each of them makes. Does not own: which bytes
//! a write may change (spans and locks: they do not overlap), and where the block is written (each of these writes puts
//! it into a new place).
//!
//! Records of a file that are adjacent without a gap share blocks. Each writer takes a place in the queue of each such
//! block. It bases its copy on the previous writer's copy of the block as soon as that is known, and writes its own new
//! copy while the others write theirs. It commits when the previous writers have committed. So the last copy contains
//! the bytes of all, and records enter the log in the same order. If a writer whose bytes are in the copy has failed by
//! then, the copy is made again from the stored block. So a failed write leaves no bytes in blocks of others.
//!
//! Invariants: places in both edge blocks of a write are taken in one step, so all writes have one order and there is
//! no deadlock. A writer shows its copy only after it was permitted to write (`RequestCx::land`). If a writer fails,
//! the next writer uses the copies of the earlier ones.

use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, ObjectId};
use futures_channel::oneshot;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// 4096 bytes.
pub type Image = Rc<[u8]>;

#[derive(Default)]
struct State {
    image: Option<Image>,
    /// Committed, or failed.
    over: bool,
    failed: bool,
    /// The writer before, until this one has committed.
    before: Option<Rc<Place>>,
    waiting: Vec<oneshot::Sender<()>>,
}

#[derive(Default)]
struct Place(RefCell<State>);

impl Place {
    async fn until(&self, done: impl Fn(&State) -> bool) {
        loop {
            let receiver = {
                let mut state = self.0.borrow_mut();
                if done(&state) {
                    return;
                }
                let (sender, receiver) = oneshot::channel();
                state.waiting.push(sender);
                receiver
            };
            // The sender goes with every change.
            let _ = receiver.await;
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let waiting = {
            let mut state = self.0.borrow_mut();
            change(&mut state);
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
    }
}

type Tails = Rc<RefCell<BTreeMap<(ObjectId, u64), Rc<Place>>>>;

/// Queues of one target, by block.
#[derive(Clone, Default)]
pub struct SharedBlocks {
    tails: Tails,
}

/// A place in the queue of one block. Dropping it before `finish` gives the write up.
pub struct Edge {
    tails: Tails,
    key: (ObjectId, u64),
    place: Rc<Place>,
    before: Option<Rc<Place>>,
}

impl SharedBlocks {
    /// Takes a place for each block that `range` covers in part, ascending.
    pub fn enter(&self, object: ObjectId, range: ByteRange) -> Vec<Edge> {
        assert!(!range.is_empty(), "{object:?}: a write without bytes");
        let (first, last) = (range.start / BLOCK, range.end / BLOCK);
        let head = !range.start.is_multiple_of(BLOCK);
        let tail = !(range.end.is_multiple_of(BLOCK) || (head && last == first));
        let blocks = [head.then_some(first), tail.then_some(last)];
        let mut tails = self.tails.borrow_mut();
        let enter = |block: u64| {
            let (key, place) = ((object, block), Rc::<Place>::default());
            let before = tails.insert(key, place.clone());
            place.0.borrow_mut().before.clone_from(&before);
            Edge { tails: self.tails.clone(), key, place, before }
        };
        blocks.into_iter().flatten().map(enter).collect()
    }

    /// Returns whether no write is under way.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.tails.borrow().is_empty()
    }
}

impl Edge {
    /// Block of the file.
    pub fn block(&self) -> u64 {
        self.key.1
    }

    /// Returns whether another writer was under way when this one was added.
    pub fn follows(&self) -> bool {
        self.before.is_some()
    }

    /// The content of the block before this write, as soon as the previous writers know it. `None` means the stored
    /// block. A previous writer may fail afterwards: see `is_outdated`.
    pub async fn base(&self) -> Option<Image> {
        let mut at = self.before.clone();
        while let Some(place) = at {
            place.until(|s| s.image.is_some() || s.over).await;
            let state = place.0.borrow();
            if state.image.is_some() && !state.failed {
                return state.image.clone();
            }
            let next = state.before.clone();
            drop(state);
            at = next;
        }
        None
    }

    /// Shows the copy of the block that this write makes.
    pub fn publish(&self, image: Image) {
        assert_eq!(image.len() as u64, BLOCK, "{:?}: a copy of a block that is none", self.key);
        self.place.change(|s| s.image = Some(image));
    }

    /// Returns when the writers before have committed or failed.
    pub async fn turn(&self) {
        let mut at = self.before.clone();
        while let Some(place) = at {
            place.until(|s| s.over).await;
            let state = place.0.borrow();
            let next = if state.failed { state.before.clone() } else { None };
            drop(state);
            at = next;
        }
    }

    /// Returns whether `used`, a result of `base`, is no longer the content of the block before this write. The writer
    /// that showed it has failed, or has made another copy for the same reason. It has to be called when the turn of
    /// this write has come. Then the stored block is right.
    pub fn is_outdated(&self, used: Option<&Image>) -> bool {
        let mut at = self.before.clone();
        while let Some(place) = at {
            let state = place.0.borrow();
            if !state.failed {
                return match (used, &state.image) {
                    (Some(used), Some(now)) => !Rc::ptr_eq(used, now),
                    (used, now) => used.is_some() || now.is_some(),
                };
            }
            let next = state.before.clone();
            drop(state);
            at = next;
        }
        used.is_some()
    }

    /// The write has been committed.
    pub fn finish(self) {
        self.place.change(|s| {
            s.over = true;
            s.before = None;
        });
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        if !self.place.0.borrow().over {
            self.place.change(|s| {
                s.over = true;
                s.failed = true;
            });
        }
        let mut tails = self.tails.borrow_mut();
        if tails.get(&self.key).is_some_and(|tail| Rc::ptr_eq(tail, &self.place)) {
            tails.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_types::Ino;
    use futures_util::FutureExt;

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };

    fn one(edges: &SharedBlocks) -> Edge {
        let mut all = edges.enter(OBJECT, ByteRange::new(10, 20));
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    fn image(byte: u8) -> Image {
        Rc::from(vec![byte; BLOCK as usize])
    }

    /// Goal: blocks that are covered in part, and no others, have queues. Method: ranges of all kinds.
    #[test]
    fn partly_covered_blocks() {
        let edges = SharedBlocks::default();
        for (start, end, blocks) in [
            (0, 4096, vec![]),
            (0, 4097, vec![1]),
            (1, 4096, vec![0]),
            (1, 2, vec![0]),
            (4000, 9000, vec![0, 2]),
            (4096, 8193, vec![2]),
            (4095, 4097, vec![0, 1]),
        ] {
            let found: Vec<u64> = edges.enter(OBJECT, ByteRange::new(start, end)).iter().map(Edge::block).collect();
            assert_eq!(found, blocks, "{start} {end}");
        }
        assert!(edges.is_empty());
    }

    /// Goal: the next writer bases its copy on that of the previous one, and commits after it. Method: three writers
    /// that the test polls one by one.
    #[test]
    fn writers_follow() {
        let edges = SharedBlocks::default();
        let (a, b, c) = (one(&edges), one(&edges), one(&edges));
        assert!(!a.follows() && b.follows());
        assert_eq!(a.base().now_or_never(), Some(None));
        assert_eq!(b.base().now_or_never(), None, "not known yet");
        a.publish(image(1));
        assert_eq!(b.base().now_or_never().flatten().map(|i| i[0]), Some(1));
        b.publish(image(2));
        assert_eq!(c.base().now_or_never().flatten().map(|i| i[0]), Some(2));
        assert_eq!(c.turn().now_or_never(), None);
        assert_eq!(b.turn().now_or_never(), None);
        a.finish();
        assert_eq!(b.turn().now_or_never(), Some(()));
        b.finish();
        assert_eq!(c.turn().now_or_never(), Some(()));
        c.finish();
        assert!(edges.is_empty());
    }

    /// Goal: if a writer fails, before or after it has shown its copy, the next one neither waits for it nor commits
    /// too early, and the copy is not used. Method: the middle one of three writers is dropped.
    #[test]
    fn failed_writers_are_passed() {
        for shown in [false, true] {
            let edges = SharedBlocks::default();
            let (a, b, c) = (one(&edges), one(&edges), one(&edges));
            a.publish(image(1));
            if shown {
                b.publish(image(2));
            }
            drop(b);
            let base = c.base().now_or_never().flatten();
            assert_eq!(base.as_ref().map(|i| i[0]), Some(1), "{shown}");
            assert!(!c.is_outdated(base.as_ref()));
            assert_eq!(c.turn().now_or_never(), None, "the first has not committed");
            a.finish();
            assert_eq!(c.turn().now_or_never(), Some(()));
            drop(c);
            assert!(edges.is_empty());
        }
    }

    /// Goal: a writer that based its copy on that of a failed writer detects this when its turn has come; so does a
    /// further writer that based its copy on the copy of the former. Method: four writers, each based on the previous
    /// one. The first or the second fails.
    #[test]
    fn what_failed_writers_showed_is_outdated() {
        for first in [true, false] {
            let edges = SharedBlocks::default();
            let (a, b, c, d) = (one(&edges), one(&edges), one(&edges), one(&edges));
            let (mut a, mut b) = (Some(a), Some(b));
            let mut used = Vec::new();
            for (i, edge) in [a.as_ref(), b.as_ref(), Some(&c), Some(&d)].into_iter().flatten().enumerate() {
                used.push(edge.base().now_or_never().expect("known"));
                edge.publish(image(i as u8 + 1));
            }
            let (one, other) = if first { (a.take(), b.take()) } else { (b.take(), a.take()) };
            drop(one);
            let other = other.expect("one is left");
            assert_eq!(other.turn().now_or_never(), Some(()));
            assert_eq!(other.is_outdated(used[usize::from(first)].as_ref()), first);
            if first {
                other.publish(image(20));
            }
            other.finish();
            assert_eq!(c.turn().now_or_never(), Some(()));
            assert!(c.is_outdated(used[2].as_ref()));
            c.publish(image(30));
            c.finish();
            assert_eq!(d.turn().now_or_never(), Some(()));
            assert!(d.is_outdated(used[3].as_ref()) && !d.is_outdated(d.base().now_or_never().flatten().as_ref()));
            d.finish();
            assert!(edges.is_empty());
        }
    }
}
