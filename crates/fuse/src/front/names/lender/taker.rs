//! Invalidation threads (`takers`): end the timeouts of names that the kernel caches.
//!
//! Owns: the loop of these threads, the state of each, the rule by which a thread that waits for a directory is left
//! behind, and the answers to their requests. Does not own: which names are cached (the client).
//!
//! **The name of a directory.** A directory has one name. When the directory is opened by its handle, the kernel ends
//! the timeout of that name. No request is sent, and the thread waits for nothing.
//!
//! **Any other name** is looked at in its directory. The mount first has the kernel drop the directory's attributes, so
//! the kernel requests them and is answered ESTALE. The kernel then walks once more, and in that walk trusts no entry.
//! For an entry that shows a file it sends a LOOKUP. The answer shows the same file without a timeout. The kernel drops
//! a negative entry before it sends a LOOKUP. So once the kernel requests the name, nothing is cached. If the kernel
//! has no entry with a running timeout, it takes the lock of the directory to ask. The thread may have to wait for that
//! lock, but nobody needs to wait for the thread. The attributes in these answers must not be used, so the kernel is
//! made to drop them between question and answer (`Answer::Any`).

use super::super::system;
use super::{AGAIN, Done, LOOK, LOOKS, Lender, Phase, State, TAKERS_MAX, is_directory};
use amphi_client::{LentName, NameShows};
use amphi_types::Ino;
use parking_lot::MutexGuard;
use rustix::io::Errno as Raw;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Names that are to be invalidated.
pub(super) struct Take {
    pub(super) names: VecDeque<LentName>,
    pub(super) done: Option<Done>,
}

/// The work of an invalidation thread. The first of the names is under way.
pub(super) struct Taking {
    take: Take,
    look: Look,
    /// This thread was left behind, and another one continues with the remaining names.
    is_left: bool,
}

impl Taking {
    pub(super) fn new(take: Take) -> Taking {
        Taking { take, look: Look::default(), is_left: false }
    }
}

/// A check of a name that is under way.
#[derive(Default)]
struct Look {
    is_under_way: bool,
    /// The thread is making the kernel request the directory's attributes.
    prepares: bool,
    /// The kernel was answered ESTALE and walks once more.
    refused: bool,
    /// The kernel has requested the name.
    asked: bool,
    /// The thread's count of waits when it was seen waiting for a directory, and how often it was seen so.
    seen: Option<u64>,
    looks: u32,
}

/// How a request of an invalidation thread is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The LOOKUP is answered with ESTALE, so that the kernel walks the path once more.
    Refused,
    /// The LOOKUP is answered with arbitrary attributes, which the kernel drops.
    Any,
    /// The LOOKUP is answered with the inode that the kernel has under this name, and no timeout.
    Same(NameShows),
    /// The LOOKUP is answered with EINTR, which changes nothing.
    None,
}

impl Lender {
    /// The answer to a GETATTR of this thread. `None`: it is no invalidation thread.
    pub(crate) fn taker_asks_attributes(&self, tid: u32, ino: Ino) -> Option<Answer> {
        let mut state = self.state.lock();
        let Taking { take, look, is_left } = state.taking.get_mut(&tid)?;
        let is_dir = take.names.front().is_some_and(|lent| lent.dir == ino);
        Some(match is_dir && !*is_left {
            false => Answer::None,
            true if look.prepares => Answer::Any,
            true if !std::mem::replace(&mut look.refused, true) => Answer::Refused,
            true => Answer::Any,
        })
    }

    /// The answer to a LOOKUP of this thread. `None`: it is no invalidation thread.
    pub(crate) fn taker_asks(&self, tid: u32, dir: Ino, name: &[u8]) -> Option<Answer> {
        let state = self.state.lock();
        let Taking { take, is_left, .. } = state.taking.get(&tid)?;
        let lent = take.names.front().filter(|lent| !is_left && lent.dir == dir && *lent.name == *name);
        Some(lent.map_or(Answer::None, |lent| Answer::Same(lent.shows)))
    }

    /// It has to be called before that LOOKUP is answered.
    pub(crate) fn taker_was_answered(&self, tid: u32) {
        if let Some(Taking { look, .. }) = self.state.lock().taking.get_mut(&tid) {
            look.asked = true;
        }
    }
}

impl Lender {
    /// The loop of an invalidation thread. The first thread ends when all of them end. Other threads end when they are
    /// not needed.
    pub(super) fn run_taker(self: &Arc<Self>, root: &Arc<OwnedFd>, wake: &Arc<OwnedFd>, tid: u32, is_first: bool) {
        let mut state = self.state.lock();
        loop {
            if let Some(take) = self.next_take(&mut state, root, wake) {
                state.taking.insert(tid, Taking::new(take));
                drop(state);
                self.carry_out(root, wake, tid);
                state = self.state.lock();
                if !is_first && state.idle_takers > 0 && state.takes.is_empty() {
                    break;
                }
            } else if matches!(state.phase, Phase::On | Phase::Ending) {
                state.idle_takers += 1;
                // Threads that were left behind are not watched, and nobody could take over the names that wait here.
                if state.taking.values().all(|taking| taking.is_left) && state.takes.is_empty() {
                    self.to_take.wait(&mut state);
                } else if self.to_take.wait_for(&mut state, LOOK).timed_out() {
                    self.look_after_others(&mut state);
                }
                state.idle_takers -= 1;
            } else {
                break;
            }
        }
        self.own.leave(tid);
        state.takers -= 1;
        self.changed.notify_all();
    }

    /// The next names to invalidate. The last free invalidation thread takes only names of directories, for which it
    /// never waits, because no thread could watch it.
    fn next_take(
        self: &Arc<Self>,
        state: &mut MutexGuard<'_, State>,
        root: &Arc<OwnedFd>,
        wake: &Arc<OwnedFd>,
    ) -> Option<Take> {
        let waits_for_nothing = |take: &Take| take.names.iter().all(is_directory);
        if waits_for_nothing(state.takes.front()?) || self.has_another(state, root, wake) {
            return state.takes.pop_front();
        }
        let place = state.takes.iter().position(waits_for_nothing)?;
        state.takes.remove(place)
    }

    /// Returns whether another invalidation thread is idle and watches the one that begins to work.
    fn has_another(
        self: &Arc<Self>,
        state: &mut MutexGuard<'_, State>,
        root: &Arc<OwnedFd>,
        wake: &Arc<OwnedFd>,
    ) -> bool {
        if state.idle_takers > 0 {
            // The idle thread has to wake up from time to time, to watch.
            self.to_take.notify_one();
            return true;
        }
        if state.takers >= TAKERS_MAX {
            return false;
        }
        let (own, root, wake) = (self.clone(), root.clone(), wake.clone());
        let another = std::thread::Builder::new().name("fuse names take".into()).spawn(move || {
            let tid = own.own.enter();
            own.run_taker(&root, &wake, tid, false);
        });
        state.takers += usize::from(another.is_ok());
        another.is_ok()
    }

    /// Invalidates the names of this thread, until the thread is left behind.
    fn carry_out(&self, root: &OwnedFd, wake: &OwnedFd, tid: u32) {
        let mut state = self.state.lock();
        while let Some(taking) = state.taking.get(&tid)
            && !taking.is_left
            && let Some(lent) = taking.take.names.front().cloned()
        {
            drop(state);
            self.take_name(root, tid, &lent);
            state = self.state.lock();
            if let Some(taking) = state.taking.get_mut(&tid)
                && !taking.is_left
            {
                taking.take.names.pop_front();
            }
        }
        if let Some(Taking { take: Take { done: Some(done), .. }, .. }) = state.taking.remove(&tid) {
            state.taken.push(done);
            drop(state);
            tell(wake);
        }
    }

    /// Invalidates one name. `tid` is this thread's id.
    pub(super) fn take_name(&self, root: &OwnedFd, tid: u32, lent: &LentName) {
        self.wait_for_walker(lent);
        match lent.shows {
            NameShows::Directory(node) => drop(self.by_handle(root, node)),
            NameShows::Other(..) | NameShows::Nothing => {
                let Some(dir) = self.by_handle(root, lent.dir) else { return };
                let mut prepares = false;
                while !self.look_at(&dir, tid, lent, prepares) {
                    prepares = true;
                    let mut state = self.state.lock();
                    self.changed.wait_for(&mut state, AGAIN);
                }
            }
        }
    }

    /// Opens a directory by its node id. `None`: the kernel does not have the directory, and so no name in it.
    fn by_handle(&self, root: &OwnedFd, node: Ino) -> Option<OwnedFd> {
        loop {
            match system::by_handle(root, self.top.node(node)) {
                Ok(dir) => return Some(dir),
                // When the connection is gone, the kernel has no names either.
                Err(Raw::STALE | Raw::NOENT | Raw::NOTCONN | Raw::CONNABORTED) => return None,
                Err(_) if self.in_phase(Phase::Ended) => return None,
                Err(_) => {
                    let mut state = self.state.lock();
                    self.changed.wait_for(&mut state, AGAIN);
                }
            }
        }
    }

    /// Looks at a name. Returns whether the kernel caches nothing under it now. `prepares`: whether the kernel may have
    /// got attributes of the directory since they were invalidated.
    fn look_at(&self, dir: &OwnedFd, tid: u32, lent: &LentName, prepares: bool) -> bool {
        let set = |look: Look| {
            if let Some(taking) = self.state.lock().taking.get_mut(&tid) {
                taking.look = look;
            }
        };
        if prepares {
            set(Look { prepares, ..Look::default() });
            // The answer is noted in `look`, which is checked below.
            let _ = system::ask_attributes(dir);
        }
        set(Look { is_under_way: true, ..Look::default() });
        let found = system::look(dir, &lent.name);
        let state = &mut *self.state.lock();
        let Some(Taking { look, is_left, .. }) = state.taking.get_mut(&tid) else { return true };
        look.is_under_way = false;
        let is_gone = match found {
            // In a directory that was removed, the kernel requests no name.
            Err(Raw::NOENT | Raw::STALE) => look.refused,
            Err(Raw::NOTCONN | Raw::CONNABORTED) => true,
            _ => state.phase == Phase::Ended,
        };
        look.asked || *is_left || is_gone
    }

    /// Leaves invalidation threads behind that wait for a directory.
    fn look_after_others(&self, state: &mut MutexGuard<'_, State>) {
        let waits = |taking: &Taking| taking.look.is_under_way && !taking.look.asked && !taking.is_left;
        let tids: Vec<u32> = state.taking.iter().filter(|(_, taking)| waits(taking)).map(|(tid, _)| *tid).collect();
        for tid in tids {
            let seen = MutexGuard::unlocked(state, || system::waits_for_directory(tid));
            let State { taking, takes, .. } = &mut **state;
            let Some(one) = taking.get_mut(&tid).filter(|taking| waits(taking)) else { continue };
            one.look.looks = if seen.is_some() && seen == one.look.seen { one.look.looks + 1 } else { 0 };
            one.look.seen = seen;
            if one.look.looks >= LOOKS {
                one.is_left = true;
                let mut rest = Take { names: std::mem::take(&mut one.take.names), done: one.take.done.take() };
                rest.names.pop_front();
                takes.push_front(rest);
            }
        }
    }

    /// The invalidation threads accept no more work: every cached name is invalidated.
    pub(super) fn takers_end(&self) {
        let state = &mut *self.state.lock();
        state.are_takers_over = true;
        state.taken.extend(state.takes.drain(..).filter_map(|take| take.done));
    }
}

/// Wakes the notifying thread.
fn tell(wake: &OwnedFd) {
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}
