//! `Gate`: queues on names and inodes that an operation is changing.
//!
//! Owns: which tasks may read or change a key now, in order of arrival. Does not own what the key protects.
//!
//! An operation on several targets holds its keys from its first check to its last write, so no other operation sees it
//! half done. An operation on one target takes its keys, checks, changes and releases them in one step. Keys are always
//! taken in ascending order (and targets in ascending order before that), so there is no cycle to wait in.
//!
//! Invariants: a queue is served first come, first served, and readers together. A `take` that is dropped has no
//! effect. The number of queued waiters is bounded by the credits of the sessions.

use futures_channel::oneshot;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// How a key is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Hold {
    /// Together with other tasks that share the key.
    Shared,
    /// Alone.
    Exclusive,
}

struct Queue<K: Ord + Clone> {
    shared: usize,
    exclusive: bool,
    waiting: VecDeque<(Hold, oneshot::Sender<Held<K>>)>,
}

impl<K: Ord + Clone> Queue<K> {
    fn admits(&self, hold: Hold) -> bool {
        match hold {
            Hold::Shared => !self.exclusive,
            Hold::Exclusive => !self.exclusive && self.shared == 0,
        }
    }

    fn enter(&mut self, hold: Hold) {
        assert!(self.admits(hold), "{} tasks hold a key, exclusive: {}", self.shared, self.exclusive);
        match hold {
            Hold::Shared => self.shared += 1,
            Hold::Exclusive => self.exclusive = true,
        }
    }

    fn leave(&mut self, hold: Hold) {
        debug_assert!(if hold == Hold::Shared { self.shared > 0 } else { self.exclusive }, "who leaves was in");
        match hold {
            Hold::Shared => self.shared -= 1,
            Hold::Exclusive => self.exclusive = false,
        }
    }
}

type Queues<K> = Rc<RefCell<BTreeMap<K, Queue<K>>>>;

/// Queues of one target, by key.
pub struct Gate<K: Ord + Clone> {
    queues: Queues<K>,
}

impl<K: Ord + Clone> Clone for Gate<K> {
    fn clone(&self) -> Self {
        Gate { queues: self.queues.clone() }
    }
}

impl<K: Ord + Clone> Default for Gate<K> {
    fn default() -> Self {
        Gate { queues: Rc::default() }
    }
}

/// One key that is held. Dropping it admits the next waiting tasks.
struct Held<K: Ord + Clone> {
    queues: Queues<K>,
    key: K,
    hold: Hold,
}

impl<K: Ord + Clone> Drop for Held<K> {
    fn drop(&mut self) {
        let mut granted = Vec::new();
        {
            let mut queues = self.queues.borrow_mut();
            let Some(queue) = queues.get_mut(&self.key) else { return };
            queue.leave(self.hold);
            while let Some((hold, _)) = queue.waiting.front() {
                let hold = *hold;
                if !queue.admits(hold) {
                    break;
                }
                let (_, waiter) = queue.waiting.pop_front().expect("a front was seen");
                queue.enter(hold);
                granted.push((hold, waiter));
            }
            if queue.shared == 0 && !queue.exclusive && queue.waiting.is_empty() {
                queues.remove(&self.key);
            }
        }
        for (hold, waiter) in granted {
            // If a waiter has ended, its grant is returned as an error; dropping that gives the grant to the next one.
            drop(waiter.send(Held { queues: self.queues.clone(), key: self.key.clone(), hold }));
        }
    }
}

/// Keys that are held together. Dropping this value releases all of them.
#[must_use = "dropping the guard lets go of its keys"]
pub struct Guard<K: Ord + Clone> {
    held: Vec<Held<K>>,
}

impl<K: Ord + Clone> Guard<K> {
    /// Holds nothing.
    pub fn none() -> Guard<K> {
        Guard { held: Vec::new() }
    }

    /// Returns whether `key` is held, alone if `hold` is `Exclusive`.
    #[cfg(test)]
    pub fn covers(&self, key: &K, hold: Hold) -> bool {
        self.held.iter().any(|h| h.key == *key && h.hold >= hold)
    }
}

impl<K: Ord + Clone> Gate<K> {
    /// Waits for all of `keys`, one after the other in ascending order. If a key is named twice, it is taken once, in
    /// the stronger mode. Dropping the future releases the keys that were taken.
    pub async fn take(&self, mut keys: Vec<(K, Hold)>) -> Guard<K> {
        // The stronger hold first, so that the duplicate that stays is the stronger one.
        keys.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        keys.dedup_by(|later, earlier| later.0 == earlier.0);
        let mut guard = Guard { held: Vec::with_capacity(keys.len()) };
        for (key, hold) in keys {
            guard.held.push(self.take_one(key, hold).await);
        }
        guard
    }

    async fn take_one(&self, key: K, hold: Hold) -> Held<K> {
        loop {
            let receiver = {
                let mut queues = self.queues.borrow_mut();
                let queue = queues.entry(key.clone()).or_insert_with(|| Queue {
                    shared: 0,
                    exclusive: false,
                    waiting: VecDeque::new(),
                });
                if queue.waiting.is_empty() && queue.admits(hold) {
                    queue.enter(hold);
                    return Held { queues: self.queues.clone(), key, hold };
                }
                let (sender, receiver) = oneshot::channel();
                queue.waiting.push_back((hold, sender));
                receiver
            };
            if let Ok(held) = receiver.await {
                return held;
            }
        }
    }

    /// Returns whether a task holds `key` exclusively.
    pub fn is_held_alone(&self, key: &K) -> bool {
        self.queues.borrow().get(key).is_some_and(|queue| queue.exclusive)
    }

    /// Returns whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.queues.borrow().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::task::noop_waker;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    type Taking = Pin<Box<dyn Future<Output = Guard<u32>>>>;

    fn start(gate: &Gate<u32>, keys: Vec<(u32, Hold)>) -> Taking {
        let gate = gate.clone();
        async move { gate.take(keys).await }.boxed_local()
    }

    fn poll(f: &mut Taking) -> Option<Guard<u32>> {
        match f.as_mut().poll(&mut Context::from_waker(&noop_waker())) {
            Poll::Ready(g) => Some(g),
            Poll::Pending => None,
        }
    }

    /// Goal: writers exclude, readers share, order of arrival holds. Method: the test polls the waiting futures itself.
    #[test]
    fn first_come_first_served() {
        let gate = Gate::default();
        let first = poll(&mut start(&gate, vec![(1, Hold::Shared)])).expect("free");
        let mut writer = start(&gate, vec![(1, Hold::Exclusive)]);
        assert!(poll(&mut writer).is_none());
        let mut reader = start(&gate, vec![(1, Hold::Shared)]);
        assert!(poll(&mut reader).is_none(), "a reader does not overtake a waiting writer");
        assert!(!gate.is_held_alone(&1));
        drop(first);
        let held = poll(&mut writer).expect("the writer is next");
        assert!(gate.is_held_alone(&1) && !gate.is_held_alone(&2));
        assert!(poll(&mut reader).is_none());
        drop(held);
        drop(poll(&mut reader).expect("then the reader"));
        assert!(gate.is_empty(), "nothing is left behind");
    }

    /// Goal: a dropped wait leaves nothing. Method: one waiter is dropped before its grant and one after it.
    #[test]
    fn dropped_waits_leave_nothing() {
        let gate = Gate::default();
        let first = poll(&mut start(&gate, vec![(1, Hold::Exclusive), (2, Hold::Exclusive)])).expect("free");
        let mut a = start(&gate, vec![(1, Hold::Exclusive)]);
        let mut b = start(&gate, vec![(1, Hold::Exclusive)]);
        let mut c = start(&gate, vec![(1, Hold::Exclusive), (2, Hold::Shared)]);
        assert!(poll(&mut a).is_none() && poll(&mut b).is_none() && poll(&mut c).is_none());
        drop(a);
        drop(first);
        drop(b); // granted, never polled again
        let guard = poll(&mut c).expect("passed on");
        assert!(guard.covers(&1, Hold::Exclusive) && !guard.covers(&2, Hold::Exclusive));
        drop(guard);
        assert!(gate.is_empty());
    }

    /// Goal: a key that is named twice is taken once, in the stronger mode.
    #[test]
    fn duplicates_are_joined() {
        let gate = Gate::default();
        let keys = vec![(1, Hold::Shared), (1, Hold::Exclusive), (1, Hold::Shared)];
        let guard = poll(&mut start(&gate, keys)).expect("free");
        assert!(guard.covers(&1, Hold::Exclusive));
    }
}
