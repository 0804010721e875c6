//! `Lender`: the threads that make system calls on the mount's own names (docs/design/kernel_names.md).
//!
//! Owns: which names are to be cached and invalidated, which calls are under way, and the order of the two. Does not
//! own: which names may be cached (the client, by tokens), which are looked up often (`asked`), the answers
//! (`client_fs/names`).
//!
//! Threads:
//!
//! * The *lookup thread* (`walker`) makes the kernel cache names, one component of a path with each call.
//! * *Invalidation threads* (`takers`) end these timeouts. One invalidation thread is always idle and watches the
//!   others.
//! * The *notifying thread* (`teller`) reports finished invalidations, and checks whether the file system is still
//!   mounted.
//! * *Move threads* (`movers`) make the kernel look up directories that another mount has moved.
//! * Two more threads see to sizes (`front/sizes`).
//!
//! The lookup thread, the invalidation threads, the move threads and those for sizes share a table of descriptors of
//! their own (`system::leave_descriptors`). So they do nothing but their own calls: they write no log, do not call the
//! client, and handle no signal (`system::leave_signals`).
//!
//! Invariants:
//!
//! * The lookup thread may wait for the lock of a directory, as any walk that finds no entry. It has cached nothing in
//!   its present call then: an answer with a timeout is in force when the call returns, and between answer and return
//!   the call waits for no such lock. There is one exception. If the kernel has another inode under the name than the
//!   answer shows, it drops the answer and walks again. So an invalidation of the name waits for the end of the call,
//!   or until the lookup thread is seen waiting for a directory after its answer was written.
//! * An invalidation thread waits for the lock of a directory only where the kernel has no entry with a running
//!   timeout, so nothing is cached. Then no change waits for this thread any more, and another invalidation thread
//!   continues.
//! * The root of the clone is open as long as the file system is mounted somewhere in this process's mount table. The
//!   clone does not count as a user of that mount, which can be unmounted at any moment. When it is unmounted, all
//!   names are invalidated and the root is closed, and the file system ends as it would have without the clone.

mod mover;
mod taker;
mod threads;
mod trial;
mod walker;

pub(crate) use mover::NewPlace;
pub(crate) use taker::Answer;
pub(crate) use threads::{Surroundings, Threads};
pub(crate) use trial::{Trial, trial};

use crate::front::sizes::Sizes;
use crate::node::Top;
use amphi_client::{LentName, NameShows};
use amphi_types::Ino;
use mover::Moves;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use taker::{Take, Taking};
use walker::Walking;

/// Most paths that wait for the lookup thread, of some hundred bytes each. Further paths are dropped.
const WALKS_MAX: usize = 8192;
/// How much later than its answer a call may return, in nanoseconds. The client relies on it.
const LATE_NS: u64 = 400_000_000;
/// Pause between two checks of a thread whose call does not return.
const LOOK: Duration = Duration::from_micros(500);
/// The thread must be seen waiting for the same lock this many times in a row.
const LOOKS: u32 = 3;
/// Pause before an invalidation that failed is repeated.
const AGAIN: Duration = Duration::from_millis(10);
/// Most invalidation threads. Each thread that was left behind waits for a directory in which this mount changes
/// something.
const TAKERS_MAX: usize = 256;
/// With more invalidation threads than this, only names of directories are cached, because invalidating those waits for
/// nothing.
const TAKERS_MANY: usize = TAKERS_MAX / 2;

/// Called when a name is invalidated.
type Done = Box<dyn FnOnce() + Send>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// The trial of the kernel is under way.
    #[default]
    Starting,
    On,
    /// All cached names are being invalidated, for good.
    Ending,
    Ended,
}

#[derive(Default)]
struct State {
    phase: Phase,
    /// The reason why no names are cached.
    refused: Option<String>,
    trial: Trial,
    walks: VecDeque<Vec<LentName>>,
    walking: Option<Walking>,
    takes: VecDeque<Take>,
    /// Invalidation threads that are at work, by thread id.
    taking: BTreeMap<u32, Taking>,
    /// Number of invalidation threads, and how many of them are idle.
    takers: usize,
    idle_takers: usize,
    moves: Moves,
    taken: Vec<Done>,
    /// The invalidation threads accept no more work.
    are_takers_over: bool,
}

/// Ids of the threads whose requests are the mount's own.
struct Own {
    tids: [AtomicU32; TAKERS_MAX + 4],
    /// Number of places up to the last one in use. A thread that starts or ends holds the lock.
    used: AtomicUsize,
    turn: Mutex<()>,
}

/// The threads of a mount and their work; see the head of the module.
#[derive(Default)]
pub(crate) struct Lender {
    own: Own,
    top: Top,
    /// Sizes of files, which further threads observe through the root of the clone.
    pub(crate) sizes: Sizes,
    walker: AtomicU32,
    state: Mutex<State>,
    to_walk: Condvar,
    to_take: Condvar,
    to_move: Condvar,
    /// Signalled when the lookup thread's call has ended, when an invalidation thread has finished, and when the phase
    /// changes.
    changed: Condvar,
}

impl Default for Own {
    fn default() -> Own {
        Own { tids: std::array::from_fn(|_| AtomicU32::new(0)), used: AtomicUsize::new(0), turn: Mutex::new(()) }
    }
}

impl Own {
    #[inline]
    fn has(&self, tid: u32) -> bool {
        tid != 0 && self.tids[..self.used.load(SeqCst)].iter().any(|own| own.load(SeqCst) == tid)
    }

    /// Registers this thread as one of the mount's own. Returns its id.
    fn enter(&self) -> u32 {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let _turn = self.turn.lock();
        let free = |own: &AtomicU32| own.load(SeqCst) == 0;
        let place = self.tids.iter().position(free).expect("no more threads than places");
        self.tids[place].store(tid, SeqCst);
        self.used.fetch_max(place + 1, SeqCst);
        tid
    }

    fn leave(&self, tid: u32) {
        self.leave_if(|own| own == tid);
    }

    fn leave_all(&self) {
        self.leave_if(|_| true);
    }

    fn leave_if(&self, is_it: impl Fn(u32) -> bool) {
        let _turn = self.turn.lock();
        self.tids.iter().filter(|own| is_it(own.load(SeqCst))).for_each(|own| own.store(0, SeqCst));
        let last = self.tids.iter().rposition(|own| own.load(SeqCst) != 0);
        self.used.store(last.map_or(0, |place| place + 1), SeqCst);
    }
}

fn is_directory(lent: &LentName) -> bool {
    matches!(lent.shows, NameShows::Directory(_))
}

impl Lender {
    /// The state for a mount with this root.
    pub(crate) fn below(top: Top) -> Lender {
        Lender { top, ..Lender::default() }
    }

    /// Returns whether requests of a thread are the mount's own.
    #[inline]
    pub(crate) fn is_own(&self, tid: u32) -> bool {
        self.own.has(tid)
    }

    fn in_phase(&self, phase: Phase) -> bool {
        self.state.lock().phase == phase
    }

    /// Returns whether the trial of the kernel is under way.
    pub(crate) fn is_starting(&self) -> bool {
        self.in_phase(Phase::Starting)
    }

    /// Returns whether names are cached.
    pub(crate) fn is_on(&self) -> bool {
        self.in_phase(Phase::On)
    }

    /// Has the lookup thread walk a path, from a name in the root to the last one. Returns false if too many paths are
    /// waiting.
    pub(crate) fn walk(&self, path: Vec<LentName>) -> bool {
        let mut state = self.state.lock();
        let is_taken = state.phase == Phase::On && state.walks.len() < WALKS_MAX;
        if is_taken {
            state.walks.push_back(path);
            assert!(state.walks.len() <= WALKS_MAX, "{} paths wait, at most {WALKS_MAX}", state.walks.len());
            self.to_walk.notify_one();
        }
        is_taken
    }

    /// The name that the lookup thread is looking up, if it is this one.
    pub(crate) fn asks(&self, tid: u32, dir: Ino, name: &[u8]) -> Option<LentName> {
        if tid != self.walker.load(SeqCst) {
            return None;
        }
        let state = self.state.lock();
        let step = &state.walking.as_ref()?.step;
        (step.dir == dir && *step.name == *name).then(|| step.clone())
    }

    /// It has to be called before the lookup thread's call is answered with a timeout. From here on, an invalidation of
    /// the name waits for the end of the call. Returns false if the mount does not cache names any more.
    pub(crate) fn lends(&self, now_ns: u64) -> bool {
        let state = &mut *self.state.lock();
        let is_crowded = state.takers > TAKERS_MANY;
        let is_on = state.phase == Phase::On;
        let Some(walking) = state.walking.as_mut().filter(|_| is_on) else { return false };
        if is_crowded && !is_directory(&walking.step) {
            return false;
        }
        (walking.lent_ns, walking.written) = (Some(now_ns), false);
        true
    }

    /// Called when the call is answered without a timeout.
    pub(crate) fn lends_not(&self) {
        if let Some(walking) = &mut self.state.lock().walking {
            walking.lent_ns = None;
        }
        self.changed.notify_all();
    }

    /// Called when the answer to the lookup thread's call was written.
    pub(crate) fn has_written(&self) {
        if let Some(walking) = &mut self.state.lock().walking {
            walking.written = true;
        }
    }

    /// Invalidates names. `done` is called on any thread.
    pub(crate) fn take(&self, names: Vec<LentName>, done: Done) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::On | Phase::Ending) {
            state.takes.push_back(Take { names: names.into(), done: Some(done) });
            self.to_take.notify_one();
        } else {
            // Nothing was cached yet, or everything was invalidated.
            drop(state);
            done();
        }
    }

    fn set_phase(&self, state: &mut MutexGuard<'_, State>, phase: Phase) {
        state.phase = phase;
        self.to_walk.notify_all();
        self.to_take.notify_all();
        self.to_move.notify_all();
        self.changed.notify_all();
    }

    /// From now on no name is cached. Returns the name that is being cached at this moment, if any.
    fn begin_to_end(&self) -> Option<LentName> {
        let mut state = self.state.lock();
        if state.phase != Phase::On {
            return None;
        }
        self.set_phase(&mut state, Phase::Ending);
        state.walking.as_ref().filter(|walking| walking.lent_ns.is_some()).map(|walking| walking.step.clone())
    }

    /// Ends the threads.
    fn end(&self) {
        self.sizes.end();
        let mut state = self.state.lock();
        self.set_phase(&mut state, Phase::Ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    fn lender(phase: Phase) -> Arc<Lender> {
        let lender = Arc::<Lender>::default();
        lender.state.lock().phase = phase;
        lender.walker.store(WALKER, SeqCst);
        lender
    }

    const WALKER: u32 = 77;

    fn step(n: u64) -> LentName {
        LentName { dir: Ino(1), name: Box::from(&b"d"[..]), shows: NameShows::Directory(Ino(n)) }
    }

    fn other(name: &[u8]) -> LentName {
        LentName { name: name.into(), ..step(7) }
    }

    fn walking(lender: &Lender) {
        lender.state.lock().walking = Some(Walking { step: step(7), lent_ns: None, written: false });
    }

    /// Goal: before names are cached, and after the end, an invalidation is complete at once. In between, an
    /// invalidation that the threads do not finish is reported when they end. Method: each phase in single calls.
    #[test]
    fn whoever_takes_back_is_told() {
        let told = Arc::new(AtomicUsize::new(0));
        let take = |lender: &Lender| {
            let told = told.clone();
            lender.take(
                vec![step(7)],
                Box::new(move || {
                    told.fetch_add(1, SeqCst);
                }),
            );
        };
        take(&lender(Phase::Starting));
        take(&lender(Phase::Ended));
        assert_eq!(told.load(SeqCst), 2);
        let on = lender(Phase::On);
        take(&on);
        assert_eq!(told.load(SeqCst), 2, "no taker has come yet");
        on.end();
        on.takers_end();
        std::mem::take(&mut on.state.lock().taken).into_iter().for_each(|done| done());
        assert_eq!(told.load(SeqCst), 3);
    }

    /// Goal: if a call under way caches a name, an invalidation of that name waits for the end of that call, and of no
    /// other. A name that a late call has cached is invalidated. Method: single calls, with the invalidation on a
    /// thread of its own.
    #[test]
    fn the_taker_waits_for_the_call_that_lends() {
        let lender = lender(Phase::On);
        assert!(lender.asks(WALKER, Ino(1), b"d").is_none() && !lender.lends(5), "no call");
        walking(&lender);
        assert_eq!(lender.asks(WALKER, Ino(1), b"d"), Some(step(7)));
        assert!(lender.asks(WALKER, Ino(1), b"e").is_none() && lender.asks(WALKER, Ino(2), b"d").is_none());
        assert!(lender.asks(WALKER + 1, Ino(1), b"d").is_none(), "another thread");
        lender.wait_for_walker(&step(7));
        assert!(lender.lends(5));
        lender.wait_for_walker(&other(b"e"));
        lender.lends_not();
        lender.wait_for_walker(&step(7));
        assert!(lender.lends(5));
        std::thread::scope(|s| {
            let waiter = s.spawn(|| lender.wait_for_walker(&step(7)));
            lender.has_written();
            assert!(!waiter.is_finished());
            lender.walked(5 + LATE_NS);
        });
        assert!(lender.state.lock().takes.is_empty());
        walking(&lender);
        assert!(lender.lends(5));
        lender.walked(6 + LATE_NS);
        assert_eq!(lender.state.lock().takes.pop_front().map(|take| Vec::from(take.names)), Some(vec![step(7)]));
        assert_eq!(lender.begin_to_end(), None);
        walking(&lender);
        assert!(!lender.lends(9), "nothing is lent any more");
    }

    /// Goal: the number of waiting paths is bounded. If many invalidation threads were left behind, only names of
    /// directories are cached. Method: more paths and more such threads than the bounds permit.
    #[test]
    fn paths_and_takers_are_bounded() {
        let lender = lender(Phase::On);
        (0..2 * WALKS_MAX as u64).for_each(|n| assert_eq!(lender.walk(vec![step(n)]), n < WALKS_MAX as u64));
        assert_eq!(lender.state.lock().walks.len(), WALKS_MAX);
        let file = LentName { shows: NameShows::Nothing, ..step(7) };
        for (takers, step, lends) in
            [(TAKERS_MANY, &file, true), (TAKERS_MANY + 1, &file, false), (TAKERS_MANY + 1, &step(7), true)]
        {
            let mut state = lender.state.lock();
            state.takers = takers;
            state.walking = Some(Walking { step: step.clone(), lent_ns: None, written: false });
            drop(state);
            assert_eq!(lender.lends(5), lends, "{takers} takers, {step:?}");
        }
    }

    /// Goal: a lookup thread that starts before names can be cached caches them later. Method: the thread waits in the
    /// first phase, and then gets a path to a name that does not exist.
    #[test]
    fn the_walker_may_come_early() {
        let lender = lender(Phase::Starting);
        let root = tempfile::tempdir().expect("a directory");
        let root = rustix::fs::open(root.path(), OFlags::DIRECTORY, Mode::empty()).expect("its descriptor");
        std::thread::scope(|s| {
            let walker = s.spawn(|| lender.run_walker(&root, || 0));
            // It is true when the walker has been woken from its wait.
            while !lender.to_walk.notify_one() {
                assert!(!walker.is_finished(), "it has ended");
                std::thread::yield_now();
            }
            let mut state = lender.state.lock();
            lender.set_phase(&mut state, Phase::On);
            drop(state);
            assert!(lender.walk(vec![step(7)]));
            while !lender.state.lock().walks.is_empty() {
                assert!(!walker.is_finished(), "it has ended");
                std::thread::yield_now();
            }
            lender.end();
        });
    }

    /// Goal: threads of the mount are recognised as long as they exist. Method: this thread registers and then leaves.
    #[test]
    fn own_threads_are_known() {
        let lender = lender(Phase::On);
        let tid = lender.own.enter();
        assert!(lender.is_own(tid) && !lender.is_own(0) && !lender.is_own(tid + 1));
        lender.own.leave(tid);
        assert!(!lender.is_own(tid));
    }
}
