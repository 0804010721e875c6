//! `FileLockTable`: which file locks (`flock`, `fcntl`) this mount's owners hold, and which request is sent next.
//!
//! Owns: the table, the order of requests, and requests that wait for `FileLockNews`. Does not own: requests, closes
//! and interruptions (`coherence::file_locks`, whose head has the invariants of all of it), the rules
//! (`dlm::FileLocks`, on the server).
//!
//! Invariant: one request at a time is under way for an owner and a file ([`Turn`]), so the table changes in the order
//! of the server.

mod pieces;

use crate::api::Closes;
use crate::conn::pending::Interrupt;
use crate::inode::Signal;
use amphi_types::{Errno, Ino, Result};
use amphi_wire::FileLockOwner;
#[cfg(test)]
use amphi_wire::FileLockSpec;
use futures_channel::oneshot;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
pub(crate) use pieces::Pieces;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::Poll;

/// An owner on a file.
pub(crate) type Key = (Ino, FileLockOwner);

/// The state of an owner on a file.
#[derive(Default)]
pub(crate) struct OwnerState {
    pub(crate) held: Pieces,
    /// The part that was held exclusively before the request under way, which converts it to shared; if the request is
    /// refused, it is held exclusively again.
    pub(crate) converted: Pieces,
    /// A request is under way.
    pub(crate) busy: bool,
    /// The requests that wait for their turn.
    queue: VecDeque<oneshot::Sender<Turn>>,
    /// A request failed without an answer, so the server may hold more for the owner than this table.
    pub(crate) unsure: bool,
    /// Locks were lost with a restart or with the session, and no call of the owner has failed for that yet.
    pub(crate) lost: bool,
}

impl OwnerState {
    fn is_idle(&self) -> bool {
        self.held.is_empty() && !self.busy && !self.unsure && !self.lost
    }
}

/// A waiting request, which is woken when it has to be sent again.
#[derive(Default)]
pub(crate) struct Asking {
    news: AtomicBool,
    waiter: AtomicWaker,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) last_number: u64,
    pub(crate) owners: BTreeMap<Key, OwnerState>,
    pub(crate) asking: BTreeMap<u64, Arc<Asking>>,
}

/// The file locks of this mount.
#[derive(Default)]
pub(crate) struct FileLockTable {
    pub(crate) state: Mutex<State>,
    /// Number of entries in `owners`; if it is 0, callers need not take the lock.
    known: AtomicUsize,
    /// The front end, which reports closes that are under way.
    pub(crate) closes: Mutex<Option<Arc<dyn Closes>>>,
    /// Number of servers' questions that wait for closes.
    pub(crate) questions: AtomicUsize,
    /// Number of servers without a connection.
    pub(crate) down: AtomicUsize,
    pub(crate) went_down: Signal,
}

impl FileLockTable {
    /// Called when the server has news of a waiting request.
    pub(crate) fn news(&self, number: u64) {
        let asking = self.state.lock().asking.get(&number).cloned();
        if let Some(asking) = asking {
            asking.ring();
        }
    }

    /// Called when a connection to a server was made or lost. `FileLockNews` may have been lost with the connection, so
    /// all waiting requests are sent again.
    pub(crate) fn state_changed(&self, was_down: bool, is_down: bool) {
        match (was_down, is_down) {
            (false, true) => drop(self.down.fetch_add(1, SeqCst)),
            (true, false) => drop(self.down.fetch_sub(1, SeqCst)),
            _ => {}
        }
        if !is_down {
            let asking: Vec<_> = self.state.lock().asking.values().cloned().collect();
            asking.iter().for_each(|a| a.ring());
        } else {
            self.went_down.notify();
        }
    }

    pub(crate) fn set_closes(&self, closes: Option<Arc<dyn Closes>>) {
        *self.closes.lock() = closes;
    }

    /// Number of locks that are held, and of requests that wait or are under way.
    pub(crate) fn count(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.owners.values().map(|o| o.held.len()).sum(), state.asking.len())
    }

    /// The locks that would be presented to a restarted server.
    #[cfg(test)]
    pub(crate) fn specs(&self) -> Vec<FileLockSpec> {
        let state = self.state.lock();
        state.owners.iter().flat_map(|((ino, owner), state)| state.held.specs(*ino, *owner)).collect()
    }

    pub(crate) fn with<T>(&self, key: Key, f: impl FnOnce(&mut OwnerState) -> T) -> T {
        let mut state = self.state.lock();
        let owner = state.owners.entry(key).or_default();
        let result = f(owner);
        if owner.is_idle() {
            state.owners.remove(&key);
        }
        self.known.store(state.owners.len(), SeqCst);
        result
    }

    /// Returns whether the server may hold a lock for the owner, now or after the request under way.
    pub(crate) fn is_known(&self, key: &Key) -> bool {
        self.known.load(SeqCst) > 0 && self.state.lock().owners.contains_key(key)
    }
}

impl Asking {
    fn ring(&self) {
        self.news.store(true, SeqCst);
        self.waiter.wake();
    }

    /// Waits for news. `false`: the caller was interrupted.
    pub(crate) async fn news(&self, interrupt: Option<&Interrupt>) -> bool {
        poll_fn(|cx| {
            self.waiter.register(cx.waker());
            if let Some(interrupt) = interrupt {
                interrupt.watch(cx.waker());
                if interrupt.has_fired() {
                    return Poll::Ready(false);
                }
            }
            if self.news.swap(false, SeqCst) { Poll::Ready(true) } else { Poll::Pending }
        })
        .await
    }
}

/// The number by which the server refers to a waiting request.
pub(crate) struct Number {
    table: Arc<FileLockTable>,
    pub(crate) number: u64,
    pub(crate) asking: Arc<Asking>,
}

impl Number {
    pub(crate) fn new(table: &Arc<FileLockTable>) -> Number {
        let mut state = table.state.lock();
        state.last_number += 1;
        let (number, asking) = (state.last_number, Arc::<Asking>::default());
        state.asking.insert(number, asking.clone());
        drop(state);
        Number { table: table.clone(), number, asking }
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.table.state.lock().asking.remove(&self.number);
    }
}

/// The right to have a request under way for an owner and a file. Dropping it passes it on, first come, first served.
pub(crate) struct Turn {
    table: Arc<FileLockTable>,
    pub(crate) key: Key,
}

impl Turn {
    pub(crate) async fn new(table: &Arc<FileLockTable>, key: Key) -> Result<Turn> {
        let wait = table.with(key, |owner| {
            if !std::mem::replace(&mut owner.busy, true) {
                return None;
            }
            let (sender, receiver) = oneshot::channel();
            owner.queue.push_back(sender);
            Some(receiver)
        });
        match wait {
            None => Ok(Turn { table: table.clone(), key }),
            Some(turn) => turn.await.map_err(|_| Errno::NotConnected),
        }
    }

    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut OwnerState) -> T) -> T {
        self.table.with(self.key, f)
    }

    /// Fails once if locks of the owner were lost.
    pub(crate) fn check_lost(&self) -> Result<()> {
        if self.with(|owner| std::mem::take(&mut owner.lost)) { Err(Errno::Io) } else { Ok(()) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = self.table.with(self.key, |owner| {
            let next = owner.queue.pop_front();
            owner.busy = next.is_some();
            next
        });
        if let Some(next) = next {
            // If the receiver has gone, the turn is dropped there, which lets the next request begin.
            let _ = next.send(Turn { table: self.table.clone(), key: self.key });
        }
    }
}
