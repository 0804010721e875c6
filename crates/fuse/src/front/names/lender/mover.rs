//! Move threads: they make the kernel look up directories that another mount has moved or removed.
//!
//! The kernel keeps one place for each directory. It uses that place for `..`, and for the paths of working directories
//! and open directories, without asking. The kernel moves a directory when a program looks it up at its new place,
//! which may not happen for a long time. So a move thread opens, by its handle, the directory that now contains the
//! moved one, and looks the name up. The move thread is answered like any program, from the server. When a directory
//! was removed, the answer is ENOENT, and the kernel drops its dentry. A program that works in the directory then finds
//! that it has no path.
//!
//! Owns: directories that are to be shown to the kernel, the threads for this, and how long a caller waits for one.
//! Does not own: where the kernel has each directory (`moved`).
//!
//! Invariants: a move thread may wait for the lock of a directory, as any walk that finds no entry, and holds nothing
//! then. That lock may be held by a call that waits for the other mount's rename, which itself waits for this move
//! thread. So if a move thread is seen waiting for a directory, no answer waits for it any more. An idle one watches,
//! as with invalidation threads. The same is done for a lookup that the kernel refuses because it could not get the
//! locks of the old place. The lookup is repeated. A directory that this kernel does not know is not shown.
//!
//! Bounds: `MOVERS_MAX` threads. At most `MOVES_MAX` directories wait for a move thread. If there are more, they are
//! not looked up. `TRIES` tries, which take some seconds. After `TRIES` failures the kernel keeps the directory at its
//! old place until a program looks it up.

use super::super::system;
use super::{AGAIN, Done, LOOK, LOOKS, Lender, Phase, State};
use amphi_types::Ino;
use parking_lot::MutexGuard;
use rustix::io::Errno as Raw;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Most move threads.
const MOVERS_MAX: usize = 8;
/// Most directories that wait for a move thread.
const MOVES_MAX: usize = 1024;
/// How often a move thread tries to make the kernel move a directory.
const TRIES: usize = 300;
/// The first attempts, for which the other mount waits, and the pause between two of them.
const QUICK_TRIES: usize = 3;
const QUICK_AGAIN: Duration = Duration::from_millis(1);

/// The present place of a directory.
pub(crate) struct NewPlace {
    pub(crate) ino: Ino,
    /// The parent directory, by the kernel's node id.
    pub(crate) dir: Ino,
    pub(crate) name: Box<[u8]>,
}

struct Move {
    place: NewPlace,
    placed: Done,
    done: Done,
}

/// The work of a move thread.
#[derive(Default)]
struct UnderWay {
    /// Called when no caller has to wait any longer.
    done: Option<Done>,
    /// The thread's count of waits when it was seen waiting for a directory, and how often it was seen so.
    seen: Option<u64>,
    looks: u32,
}

/// Directories that are being shown, by thread, and those that wait for a thread.
#[derive(Default)]
pub(super) struct Moves {
    waiting: VecDeque<Move>,
    under_way: BTreeMap<u32, UnderWay>,
    movers: usize,
    idle: usize,
}

impl Lender {
    /// Has the kernel look up a directory at its new place. `placed` is called when the kernel has it there. `placed`
    /// is called when the kernel has it there.
    pub(crate) fn show(&self, place: NewPlace, placed: Done, done: Done) {
        let mut state = self.state.lock();
        if state.phase != Phase::On || state.moves.movers == 0 || state.moves.waiting.len() >= MOVES_MAX {
            drop(state);
            return done();
        }
        state.moves.waiting.push_back(Move { place, placed, done });
        assert!(state.moves.waiting.len() <= MOVES_MAX, "{} directories wait", state.moves.waiting.len());
        self.to_move.notify_one();
    }

    /// Returns whether a thread is a move thread.
    pub(crate) fn is_mover(&self, tid: u32) -> bool {
        self.state.lock().moves.under_way.contains_key(&tid)
    }

    /// Counts a move thread that is about to be started.
    pub(super) fn begins_mover(&self) {
        self.state.lock().moves.movers += 1;
    }

    /// Notes that no move thread can be started.
    pub(super) fn end_movers(&self) {
        self.state.lock().moves.movers = 0;
    }

    /// Returns whether any move thread is still running.
    pub(super) fn has_movers(&self, state: &State) -> bool {
        state.moves.movers > 0
    }

    /// The loop of a move thread. The first one ends with the mount, others when they are not needed.
    pub(super) fn run_mover(self: &Arc<Self>, root: &Arc<OwnedFd>, wake: &Arc<OwnedFd>, is_first: bool) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let mut state = self.state.lock();
        while matches!(state.phase, Phase::Starting | Phase::On) {
            if let Some(Move { place, placed, done }) = state.moves.waiting.pop_front() {
                self.has_another_mover(&mut state, root, wake);
                state.moves.under_way.insert(tid, UnderWay { done: Some(done), ..UnderWay::default() });
                drop(state);
                if self.place(root, wake, tid, &place) {
                    placed();
                }
                state = self.state.lock();
                let done = state.moves.under_way.remove(&tid).and_then(|one| one.done);
                self.is_done(&mut state, wake, done);
                if !is_first && state.moves.idle > 0 && state.moves.waiting.is_empty() {
                    break;
                }
            } else {
                state.moves.idle += 1;
                if state.moves.under_way.values().all(|one| one.done.is_none()) {
                    self.to_move.wait(&mut state);
                } else if self.to_move.wait_for(&mut state, LOOK).timed_out() {
                    self.look_after_movers(&mut state, wake);
                }
                state.moves.idle -= 1;
            }
        }
        state.moves.movers -= 1;
        if state.phase != Phase::On {
            let waiting = std::mem::take(&mut state.moves.waiting);
            waiting.into_iter().for_each(|one| self.is_done(&mut state, wake, Some(one.done)));
        }
        self.changed.notify_all();
    }

    /// Ensures that another move thread watches the one that begins to work.
    fn has_another_mover(
        self: &Arc<Self>,
        state: &mut MutexGuard<'_, State>,
        root: &Arc<OwnedFd>,
        wake: &Arc<OwnedFd>,
    ) {
        if state.moves.idle > 0 {
            self.to_move.notify_one();
        } else if state.moves.movers < MOVERS_MAX {
            let (own, root, wake) = (self.clone(), root.clone(), wake.clone());
            let run = move || own.run_mover(&root, &wake, false);
            let another = std::thread::Builder::new().name("fuse names move".into()).spawn(run);
            state.moves.movers += usize::from(another.is_ok());
        }
    }

    /// Returns whether the kernel has the directory at its place now.
    fn place(&self, root: &OwnedFd, wake: &OwnedFd, tid: u32, place: &NewPlace) -> bool {
        // The parent directory may be gone.
        let Ok(dir) = system::by_handle(root, self.top.node(place.dir)) else { return false };
        for tries in 1..=TRIES {
            match system::look(&dir, &place.name) {
                Ok(found) => return system::inode(&found) == Some(place.ino),
                // The kernel could not take a lock, or still has one of the directories above it below this one.
                Err(Raw::STALE | Raw::LOOP) => {}
                // The directory was moved on, or removed.
                Err(_) => return false,
            }
            let state = &mut self.state.lock();
            if state.phase != Phase::On {
                return false;
            }
            if tries >= QUICK_TRIES {
                let done = state.moves.under_way.get_mut(&tid).and_then(|one| one.done.take());
                self.is_done(state, wake, done);
            }
            self.changed.wait_for(state, if tries < QUICK_TRIES { QUICK_AGAIN } else { AGAIN });
        }
        false
    }

    /// Has the notifying thread call `done`.
    fn is_done(&self, state: &mut MutexGuard<'_, State>, wake: &OwnedFd, done: Option<Done>) {
        if let Some(done) = done {
            state.taken.push(done);
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    /// Ends the wait for move threads that wait for a directory.
    fn look_after_movers(&self, state: &mut MutexGuard<'_, State>, wake: &OwnedFd) {
        let awaited = state.moves.under_way.iter().filter(|(_, one)| one.done.is_some());
        let tids: Vec<u32> = awaited.map(|(tid, _)| *tid).collect();
        for tid in tids {
            let seen = MutexGuard::unlocked(state, || system::waits_for_directory(tid));
            let Some(one) = state.moves.under_way.get_mut(&tid) else { continue };
            one.looks = if seen.is_some() && seen == one.seen { one.looks + 1 } else { 0 };
            one.seen = seen;
            if one.looks >= LOOKS {
                let done = one.done.take();
                self.is_done(state, wake, done);
            }
        }
    }
}
