//! `Lender`: the threads that walk over the mount's own names.
//!
//! Owns: what is to be lent and taken back, which call is under way, and the order of the two. Does not own: which
//! names may be lent (the client, by tokens), which are asked for often (`asked`), the answers (`names`).
//!
//! Threads: the *walker* lends, one component of a path with each call; the *taker* takes back; the third one tells
//! who waits that a name is taken back, and looks whether the file system is still mounted. Walker and taker share a
//! table of descriptors that nobody else has (`system::leave_descriptors`), so they do nothing but their own calls: no
//! line in a log, no call into the client, no handler of a signal (`system::leave_signals`).
//!
//! Invariants:
//! * The walker may wait for the lock of a directory, as any walk that finds no entry. It holds nothing then that
//!   others wait for: nothing was lent in the call under way, since an answer with a life is in force when the call
//!   returns, and between the two it waits for nothing. There is one exception: where the kernel has another directory
//!   under the name than the answer shows, it drops the answer and walks anew. So whoever takes the name back waits for
//!   the end of the call, or until the walker is seen to wait for something else after its answer was written.
//! * The taker waits for no lock and, but for an inode that the kernel does not know, asks the mount for nothing.
//! * The root of the clone is open as long as the file system is mounted somewhere in this process's mount table. It is
//!   no user of the mount that people see, so that can be unmounted at any moment; when it is gone, names are taken
//!   back, the root is closed, and the file system ends as it would have without.

use super::system;
use amphi_types::Ino;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno as Raw;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

/// Paths that wait to be walked; beyond, they are left.
const WALKS_MAX: usize = 256;
/// How much later than its answer a call may return; the client counts on it.
const LATE_NS: u64 = 400_000_000;
/// How often the taker looks at a walker that does not come back.
const LOOK: Duration = Duration::from_millis(1);
/// Looks in a row at which the walker has to wait for the same thing.
const LOOKS: u32 = 3;
/// How often what could not be taken back is tried again.
const AGAIN: Duration = Duration::from_millis(10);
/// Longest wait for the threads at the beginning.
const START: Duration = Duration::from_secs(5);
/// Least time between two looks at the mount table, which may be long and change often; also how often it is looked
/// whether the taker has ended.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// How often the mount table is looked at, should the kernel not say that it has changed.
const TABLE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A name on the way from the root, and the directory that it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) dir: Ino,
    pub(crate) name: Box<[u8]>,
    pub(crate) ino: Ino,
}

/// What is told when a name is taken back.
type Done = Box<dyn FnOnce() + Send>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// The kernel is being tried.
    #[default]
    Starting,
    On,
    /// What was lent is being taken back, for good.
    Ending,
    Ended,
}

/// The walker's call under way.
struct Walking {
    step: Step,
    /// When it was answered with a life.
    lent_ns: Option<u64>,
    /// That answer has been written.
    written: bool,
}

#[derive(Default)]
struct State {
    phase: Phase,
    /// Why nothing is lent.
    refused: Option<String>,
    probe: Probe,
    walks: VecDeque<Vec<Step>>,
    walking: Option<Walking>,
    takes: VecDeque<(Vec<Ino>, Option<Done>)>,
    taken: Vec<Done>,
    /// The taker takes up nothing any more.
    is_taker_over: bool,
}

/// The look-ups of the trial at the beginning.
#[derive(Default)]
pub(super) struct Probe {
    pub(super) lookups: u32,
    pub(super) life: Duration,
    pub(super) is_there: bool,
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct Lender {
    /// Ids of walker and taker, or 0.
    threads: [AtomicU32; 2],
    state: Mutex<State>,
    to_walk: Condvar,
    to_take: Condvar,
    /// The walker's call has ended, or the phase is another one.
    changed: Condvar,
}

const WALKER: usize = 0;
const TAKER: usize = 1;

impl Lender {
    /// Whether requests of a thread are the mount's own.
    #[inline]
    pub(super) fn is_own(&self, tid: u32) -> bool {
        tid != 0 && self.threads.iter().any(|own| own.load(SeqCst) == tid)
    }

    fn in_phase(&self, phase: Phase) -> bool {
        self.state.lock().phase == phase
    }

    /// Whether the trial is under way.
    pub(super) fn is_starting(&self) -> bool {
        self.in_phase(Phase::Starting)
    }

    /// Whether names are lent.
    pub(super) fn is_on(&self) -> bool {
        self.in_phase(Phase::On)
    }

    /// Has a path lent.
    pub(super) fn walk(&self, path: Vec<Step>) {
        let mut state = self.state.lock();
        if state.phase == Phase::On && state.walks.len() < WALKS_MAX && !state.walks.contains(&path) {
            state.walks.push_back(path);
            self.to_walk.notify_one();
        }
    }

    /// What the walker asks for now, if it is this name.
    pub(super) fn asks(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        let state = self.state.lock();
        let step = &state.walking.as_ref()?.step;
        (step.dir == dir && *step.name == *name).then_some(step.ino)
    }

    /// The walker's call is about to be answered with a life: from here on whoever takes the name back waits for its
    /// end. False if nothing is lent any more.
    pub(super) fn lends(&self, now_ns: u64) -> bool {
        let state = &mut *self.state.lock();
        let Some(walking) = state.walking.as_mut().filter(|_| state.phase == Phase::On) else { return false };
        (walking.lent_ns, walking.written) = (Some(now_ns), false);
        true
    }

    /// It is answered without.
    pub(super) fn lends_not(&self) {
        if let Some(walking) = &mut self.state.lock().walking {
            walking.lent_ns = None;
        }
        self.changed.notify_all();
    }

    /// Its answer has been written.
    pub(super) fn has_written(&self) {
        if let Some(walking) = &mut self.state.lock().walking {
            walking.written = true;
        }
    }

    /// The answer to a look-up of the trial: for how long the name is kept, or that it is not there.
    pub(super) fn probed(&self) -> Option<Duration> {
        let probe = &mut self.state.lock().probe;
        probe.lookups += 1;
        probe.is_there.then_some(probe.life)
    }

    /// Takes names back; `done` is told on any thread.
    pub(crate) fn take(&self, nodes: Vec<Ino>, done: Done) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::On | Phase::Ending) {
            state.takes.push_back((nodes, Some(done)));
            self.to_take.notify_one();
        } else {
            // Nothing has been lent yet, or all has been taken back.
            drop(state);
            done();
        }
    }

    fn set_phase(&self, state: &mut MutexGuard<'_, State>, phase: Phase) {
        state.phase = phase;
        self.to_walk.notify_all();
        self.to_take.notify_all();
        self.changed.notify_all();
    }

    /// Nothing is lent from now on. The directory that is being lent now, if any.
    fn begin_to_end(&self) -> Option<Ino> {
        let mut state = self.state.lock();
        if state.phase != Phase::On {
            return None;
        }
        self.set_phase(&mut state, Phase::Ending);
        state.walking.as_ref().filter(|walking| walking.lent_ns.is_some()).map(|walking| walking.step.ino)
    }

    /// The threads end.
    fn end(&self) {
        let mut state = self.state.lock();
        self.set_phase(&mut state, Phase::Ended);
    }
}

/// The walker.
impl Lender {
    fn run_walker(&self, root: &OwnedFd, now_ns: fn() -> u64) {
        let mut state = self.state.lock();
        while matches!(state.phase, Phase::On | Phase::Ending) {
            match state.walks.pop_front().filter(|_| state.phase == Phase::On) {
                Some(path) => {
                    drop(state);
                    self.walk_path(root, path, now_ns);
                    state = self.state.lock();
                }
                None => self.to_walk.wait(&mut state),
            }
        }
    }

    fn walk_path(&self, root: &OwnedFd, path: Vec<Step>, now_ns: fn() -> u64) {
        let mut at: Option<OwnedFd> = None;
        for step in path {
            let ino = step.ino;
            let name = step.name.clone();
            self.state.lock().walking = Some(Walking { step, lent_ns: None, written: false });
            let opened = system::step(at.as_ref().unwrap_or(root), &name);
            self.walked(now_ns());
            match opened {
                Ok(dir) if system::inode(&dir) == Some(ino) => at = Some(dir),
                _ => return,
            }
        }
    }

    /// The walker's call has ended at `now_ns`.
    fn walked(&self, now_ns: u64) {
        let mut state = self.state.lock();
        if let Some(Walking { step, lent_ns: Some(lent_ns), .. }) = state.walking.take()
            && now_ns > lent_ns + LATE_NS
        {
            // Its life began late.
            state.takes.push_back((vec![step.ino], None));
            self.to_take.notify_one();
        }
        self.changed.notify_all();
    }
}

/// The taker.
impl Lender {
    fn run_taker(&self, root: &OwnedFd, wake: &OwnedFd) {
        let mut state = self.state.lock();
        loop {
            if let Some((nodes, done)) = state.takes.pop_front() {
                drop(state);
                nodes.into_iter().for_each(|node| self.take_node(root, node));
                state = self.state.lock();
                if let Some(done) = done {
                    state.taken.push(done);
                    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
                }
            } else if matches!(state.phase, Phase::On | Phase::Ending) {
                self.to_take.wait(&mut state);
            } else {
                return;
            }
        }
    }

    fn take_node(&self, root: &OwnedFd, node: Ino) {
        self.wait_for_walker(node);
        loop {
            match system::by_handle(root, node) {
                // What the kernel does not know it has no name of; without a connection it has nothing.
                Ok(_) | Err(Raw::STALE | Raw::NOENT | Raw::NOTCONN | Raw::CONNABORTED) => return,
                Err(_) if self.in_phase(Phase::Ended) => return,
                Err(_) => {
                    let mut state = self.state.lock();
                    self.changed.wait_for(&mut state, AGAIN);
                }
            }
        }
    }

    /// Waits until what the walker was answered about `node` is in force, or dropped.
    fn wait_for_walker(&self, node: Ino) {
        let (mut seen, mut looks) = (None, 0);
        let mut state = self.state.lock();
        while let Some(Walking { step, lent_ns: Some(_), written }) = &state.walking
            && step.ino == node
        {
            let is_written = *written;
            if self.changed.wait_for(&mut state, LOOK).timed_out() && is_written {
                let waits = MutexGuard::unlocked(&mut state, || system::waits(self.threads[WALKER].load(SeqCst)));
                looks = match waits {
                    Some((true, _)) if waits == seen => looks + 1,
                    _ => 0,
                };
                if looks >= LOOKS {
                    return;
                }
                seen = waits;
            }
        }
    }
}

/// The threads of a mount.
pub(super) struct Threads {
    taker: JoinHandle<()>,
    teller: JoinHandle<()>,
    wake: Arc<OwnedFd>,
}

/// What the threads need of the file system.
pub(super) struct Surroundings {
    /// Where it is mounted.
    pub(super) at: PathBuf,
    /// Whether it is still mounted somewhere.
    pub(super) is_mounted: Box<dyn Fn() -> bool + Send>,
    /// Directories whose names are lent.
    pub(super) lent: Box<dyn Fn() -> Vec<Ino> + Send>,
    /// A clock that goes on.
    pub(super) now_ns: fn() -> u64,
    /// Tries on the root of the clone whether the kernel does what is counted on.
    pub(super) probe: fn(&Lender, &OwnedFd) -> Result<(), String>,
}

impl Threads {
    /// Starts them and waits until names can be lent; otherwise tells why they cannot.
    ///
    /// Errors: why there are no threads.
    pub(super) fn start(lender: &Arc<Lender>, surroundings: Surroundings) -> Result<(Threads, Option<String>), String> {
        let Surroundings { at, is_mounted, lent, now_ns, probe } = surroundings;
        let say = |what: &'static str| move |e: Raw| format!("{what}: {e}");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let table = rustix::fs::open(c"/proc/self/mountinfo", flags, Mode::empty()).map_err(say("mount table"))?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(say("eventfd"))?);
        let builder = |name: &str| std::thread::Builder::new().name(name.into());
        let (own, own_wake) = (lender.clone(), wake.clone());
        let taker = builder("fuse names take").spawn(move || {
            own.run(&at, &own_wake, now_ns, probe);
            // Not a descriptor of this thread's table.
            drop(own);
        });
        let taker = taker.map_err(|e| e.to_string())?;
        let (own, own_wake) = (lender.clone(), wake.clone());
        let tell = move || own.tell(&own_wake, &table, &*is_mounted, &*lent);
        let teller = match builder("fuse names").spawn(tell) {
            Ok(teller) => teller,
            Err(e) => {
                lender.end();
                let _ = taker.join();
                return Err(e.to_string());
            }
        };
        let threads = Threads { taker, teller, wake };
        let mut state = lender.state.lock();
        while state.phase == Phase::Starting {
            if lender.changed.wait_for(&mut state, START).timed_out() {
                // It ends when its call returns.
                state.refused = Some("the kernel does not answer".into());
                lender.set_phase(&mut state, Phase::Ended);
            }
        }
        let refused = state.refused.take();
        drop(state);
        if refused.is_some() {
            let _ = rustix::io::write(&*threads.wake, &1u64.to_ne_bytes());
        }
        Ok((threads, refused))
    }

    /// Ends them and waits for them. The connection has ended.
    pub(super) fn stop(self, lender: &Lender) {
        lender.end();
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        let _ = self.taker.join();
        let _ = self.teller.join();
    }
}

impl Lender {
    /// The taker's thread, which starts the walker.
    fn run(
        self: &Arc<Self>,
        at: &Path,
        wake: &OwnedFd,
        now_ns: fn() -> u64,
        probe: fn(&Lender, &OwnedFd) -> Result<(), String>,
    ) {
        self.threads[TAKER].store(rustix::thread::gettid().as_raw_nonzero().get() as u32, SeqCst);
        match self.prepare(at, wake, probe) {
            Ok((root, wake)) => self.serve(root, &wake, now_ns),
            Err(why) => {
                let mut state = self.state.lock();
                state.refused.get_or_insert(why);
                self.set_phase(&mut state, Phase::Ended);
            }
        }
        self.taker_ends();
        self.threads[TAKER].store(0, SeqCst);
    }

    /// The taker takes up nothing any more: all that was lent has ended.
    fn taker_ends(&self) {
        let state = &mut *self.state.lock();
        state.is_taker_over = true;
        state.taken.extend(state.takes.drain(..).filter_map(|(_, done)| done));
    }

    fn prepare(
        &self,
        at: &Path,
        wake: &OwnedFd,
        probe: fn(&Lender, &OwnedFd) -> Result<(), String>,
    ) -> Result<(OwnedFd, OwnedFd), String> {
        system::leave_signals().map_err(|e| format!("signals left to others: {e}"))?;
        let wake = system::leave_descriptors(wake).map_err(|e| format!("descriptors of its own: {e}"))?;
        let root = system::root_of_clone(at).map_err(|e| format!("a clone of the mount: {e}"))?;
        probe(self, &root)?;
        Ok((root, wake))
    }

    fn serve(self: &Arc<Self>, root: OwnedFd, wake: &OwnedFd, now_ns: fn() -> u64) {
        let root = Arc::new(root);
        let (own, own_root) = (self.clone(), root.clone());
        let walker = std::thread::Builder::new().name("fuse names lend".into()).spawn(move || {
            own.threads[WALKER].store(rustix::thread::gettid().as_raw_nonzero().get() as u32, SeqCst);
            own.run_walker(&own_root, now_ns);
            own.threads[WALKER].store(0, SeqCst);
        });
        let mut state = self.state.lock();
        if state.phase == Phase::Starting {
            match &walker {
                Ok(_) => self.set_phase(&mut state, Phase::On),
                Err(e) => {
                    state.refused = Some(e.to_string());
                    self.set_phase(&mut state, Phase::Ended);
                }
            }
        }
        drop(state);
        self.run_taker(&root, wake);
        self.taker_ends();
        // What ends the file system is no request of the mount's own.
        self.threads.iter().for_each(|thread| thread.store(0, SeqCst));
        drop(root);
        if let Ok(walker) = walker {
            let _ = walker.join();
        }
    }

    /// Tells that names are taken back, and ends everything when the file system is mounted nowhere any more.
    fn tell(
        self: &Arc<Self>,
        wake: &OwnedFd,
        table: &OwnedFd,
        is_mounted: &dyn Fn() -> bool,
        lent: &dyn Fn() -> Vec<Ino>,
    ) {
        let mut looked = false;
        loop {
            let mut fds = [PollFd::new(wake, PollFlags::IN), PollFd::new(table, PollFlags::PRI)];
            let (watched, most) = match self.in_phase(Phase::Ended) || looked {
                true => (1, &PAUSE),
                false => (2, &TABLE),
            };
            let polled = poll(&mut fds[..watched], Some(most));
            let woken = polled.is_ok() && fds[0].revents().contains(PollFlags::IN);
            if woken {
                let _ = rustix::io::read(wake, &mut [0u8; 8]);
            }
            let paused = std::mem::replace(&mut looked, false) && !woken;
            let only_woken = paused || (woken && fds[1].revents().is_empty());
            let (taken, is_over) = {
                let state = &mut *self.state.lock();
                (std::mem::take(&mut state.taken), state.phase == Phase::Ended && state.is_taker_over)
            };
            taken.into_iter().for_each(|done| done());
            if is_over {
                return;
            }
            looked = !only_woken;
            if looked && self.is_on() && !is_mounted() {
                let last = self.begin_to_end();
                let nodes = lent().into_iter().chain(last).collect();
                let own = self.clone();
                self.take(nodes, Box::new(move || own.end()));
            }
        }
    }
}

/// Runs the trial: `name` shows `node`, with `life` or without.
pub(super) fn probe(lender: &Lender, root: &OwnedFd, name: &[u8], node: Ino) -> Result<(), String> {
    let set = |is_there, life| {
        let probe = &mut lender.state.lock().probe;
        (probe.is_there, probe.life) = (is_there, life);
    };
    let look = |what: &str, asked: u32| {
        let before = lender.state.lock().probe.lookups;
        let found = system::step(root, name).map_err(|e| format!("{what}: {e}"))?;
        let asks = lender.state.lock().probe.lookups - before;
        let is_it = system::inode(&found) == Some(node) && asks == asked;
        is_it.then_some(()).ok_or_else(|| format!("{what}: it was asked for {asks} times"))
    };
    let tried = (|| {
        set(true, Duration::ZERO);
        look("a new name", 1)?;
        look("a name without life", 1)?;
        set(true, Duration::from_secs(1000));
        look("a name that is being lent", 1)?;
        look("a name that was lent", 0)?;
        set(true, Duration::ZERO);
        system::by_handle(root, node).map_err(|e| format!("a directory by its handle: {e}"))?;
        look("a name that was taken back", 1)
    })();
    set(false, Duration::ZERO);
    let left = system::step(root, name);
    tried?;
    if left.is_ok() { Err("a name that is gone is still there".into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn lender(phase: Phase) -> Arc<Lender> {
        let lender = Arc::<Lender>::default();
        lender.state.lock().phase = phase;
        lender
    }

    fn step() -> Step {
        Step { dir: Ino(1), name: Box::from(&b"d"[..]), ino: Ino(7) }
    }

    fn walking(lender: &Lender) {
        lender.state.lock().walking = Some(Walking { step: step(), lent_ns: None, written: false });
    }

    /// Goal: before names are lent and after they have ended whoever takes one back is told at once; in between, what
    /// the taker leaves is told with its end. Method: each phase by hand.
    #[test]
    fn whoever_takes_back_is_told() {
        let told = Arc::new(AtomicUsize::new(0));
        let take = |lender: &Lender| {
            let told = told.clone();
            lender.take(
                vec![Ino(7)],
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
        assert_eq!(told.load(SeqCst), 2, "the taker has not come yet");
        on.end();
        on.taker_ends();
        std::mem::take(&mut on.state.lock().taken).into_iter().for_each(|done| done());
        assert_eq!(told.load(SeqCst), 3);
    }

    /// Goal: whoever takes back what a call under way lends waits for the end of the call, and for no other; a call
    /// that returns late has what it lent taken back. Method: calls by hand, the taker's wait on a thread.
    #[test]
    fn the_taker_waits_for_the_call_that_lends() {
        let lender = lender(Phase::On);
        assert!(lender.asks(Ino(1), b"d").is_none() && !lender.lends(5), "no call");
        walking(&lender);
        assert_eq!(lender.asks(Ino(1), b"d"), Some(Ino(7)));
        assert!(lender.asks(Ino(1), b"e").is_none() && lender.asks(Ino(2), b"d").is_none());
        lender.wait_for_walker(Ino(7));
        assert!(lender.lends(5));
        lender.wait_for_walker(Ino(8));
        lender.lends_not();
        lender.wait_for_walker(Ino(7));
        assert!(lender.lends(5));
        std::thread::scope(|s| {
            let waiter = s.spawn(|| lender.wait_for_walker(Ino(7)));
            lender.has_written();
            assert!(!waiter.is_finished());
            lender.walked(5 + LATE_NS);
        });
        assert!(lender.state.lock().takes.is_empty());
        walking(&lender);
        assert!(lender.lends(5));
        lender.walked(6 + LATE_NS);
        assert_eq!(lender.state.lock().takes.pop_front().map(|(nodes, _)| nodes), Some(vec![Ino(7)]));
        assert_eq!(lender.begin_to_end(), None);
        walking(&lender);
        assert!(!lender.lends(9), "nothing is lent any more");
    }

    /// Goal: paths that wait are bounded, and each waits once. Method: more of them than there is room for.
    #[test]
    fn paths_that_wait_are_bounded() {
        let lender = lender(Phase::On);
        (0..2).for_each(|_| lender.walk(vec![step()]));
        assert_eq!(lender.state.lock().walks.len(), 1);
        for n in 0..2 * WALKS_MAX as u64 {
            lender.walk(vec![Step { ino: Ino(n), ..step() }]);
        }
        assert_eq!(lender.state.lock().walks.len(), WALKS_MAX);
    }

    /// Goal: a thread that runs is not taken for one that waits in the kernel. Method: this one, and none.
    #[test]
    fn what_waits_is_told_apart() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_eq!(system::waits(tid).map(|(waits, _)| waits), Some(false));
        assert_eq!(system::waits(u32::MAX), None);
    }
}
