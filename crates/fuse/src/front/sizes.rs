//! `Sizes`: makes the kernel use the sizes that programs were shown.
//!
//! Linux gives an inode's attributes a version. Another answer, a write, a truncate or an invalidation increases the
//! version, and Linux then does not cache an answer to an earlier request. The program that called `stat` gets the
//! answer nevertheless. But mappings, `sendfile`, `splice`, `copy_file_range`, reads that the kernel serves and `lseek`
//! to the end use the size that the kernel has cached. In a test, programs set the size of a file, requested it, mapped
//! the file and touched its last byte. In one of thirty programs this caused SIGBUS. While another mount appended
//! records, one of six reads on this mount ended before a record whose append had returned. Therefore the following
//! holds:
//!
//! * Some answers may be crossed by an event that leaves the kernel with another size (`known`). Such an answer is
//!   given only when the kernel has its size. To achieve that, a thread of the mount calls `statx` on its own mount, so
//!   that the kernel takes a newer answer. The thread repeats this until the kernel keeps the size in the answer. A
//!   single program causes no such call of `statx`, and neither do any number of programs that are shown the size that
//!   the kernel already has.
//! * An operation that would advance the version is answered, and pages are dropped, only when the kernel uses the last
//!   size that another thread was shown.
//! * An answer that the kernel caches in any case (to a change of the mode, to a link) shows nothing older than what
//!   was shown while it was under way.
//! * After an invalidation, attributes get a timeout again only when an answer without one has had time to arrive (the
//!   client's rule). So they need not be invalidated again while answers are on their way.
//!
//! Owns: the knowledge of each file (`known`), and the threads that request attributes and check the kernel's size.
//! Does not own: which calls show sizes (`client_fs/sizes`), which timeouts are given and ended (the client), how an
//! inode is opened by its id (`system`), which changes are under way (`kernel_view`).
//!
//! Bounds: an answer waits until the kernel was asked `ROUNDS` times within at least `ASK_WAIT`. It waits longer while
//! this mount changes the file, and while a program may not have received the answer to its change, but never longer
//! than `CHANGE_WAIT`. A check takes `LOOK_WAIT`. If this is not sufficient, and where the mount may not open inodes by
//! their ids, the kernel may use the older size until it requests the size again. There are `SLOTS` slots, each for the
//! inodes of one hash value. If more than `WAYS` inodes of a slot are in use within the time that an answer takes, the
//! oldest is forgotten.

mod known;

use super::names::system;
use crate::calls::ReadHow;
use crate::clock::monotonic_ns;
use amphi_types::{Attr, Ino, Timespec};
use known::{Answer, Known};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno as Raw;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Number of slots of `WAYS` inodes, about 700 bytes each.
const SLOTS: usize = 1024;
const _: () = assert!(SLOTS == 1 << (u64::BITS - SLOT_SHIFT), "each slot has inodes");
/// The bits of the hash of an inode above this one choose its slot.
const SLOT_SHIFT: u32 = 54;
/// Inodes in one slot.
const WAYS: usize = 4;
/// Number of threads that request attributes and check the kernel's size.
pub(crate) const THREADS: usize = 2;
/// Most jobs that wait for the threads; further jobs are not done.
const JOBS_MAX: usize = 256;
/// How long a question may have waited before it was read from the device.
const ASKED_NS: u64 = 100_000_000;
/// After this time since an answer was given, the kernel has certainly taken it. The thread that gets the answer only
/// needs a processor for that. Where 15 threads wanted each processor, some threads took more than 10 ms.
const TAKEN_NS: u64 = 500_000_000;
/// The same for an answer that the kernel keeps in any case. Other answers wait for this time, so it is shorter.
const FIXED_NS: u64 = 10_000_000;
/// How long a thread may need to receive the answer to its truncate, or to a write that made the file longer, unless it
/// is seen to have received it.
const UNTAKEN_NS: u64 = 2_000_000_000;
/// If the mount notices one request this much later than another request, it also read the first one later from the
/// device.
const ORDER_NS: u64 = 500_000;
/// How long an answer waits at least for the kernel to go by its size, before it is given in doubt.
const ASK_WAIT: Duration = Duration::from_millis(50);
/// How many times a thread has to have tried in this time, each time with `QUESTIONS` questions. On a machine that has
/// no processor free, a single request may take longer than `ASK_WAIT`.
const ROUNDS: usize = 8;
/// How long an answer waits at most. It waits as long while this mount changes the file, because the kernel caches no
/// other answer until the change is answered and its program has received the answer.
const CHANGE_WAIT: Duration = Duration::from_secs(2);
/// How long a drop of pages waits for the kernel to go by the last answer.
const LOOK_WAIT: Duration = Duration::from_millis(200);
/// How long a question after a write waits for the kernel to take the answer to that write.
const WRITE_WAIT: Duration = Duration::from_millis(10);
/// Pause between two checks of the kernel's size.
const LOOK: Duration = Duration::from_micros(20);
/// Pause between two rounds of questions.
const PAUSE_NS: u64 = 200_000;
/// Questions in one round.
const QUESTIONS: usize = 16;
/// After this many questions a larger size is accepted too, because the file is being written here all the time.
const LARGER: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Request the attributes, until the kernel has taken the answer.
    Ask,
    /// Check whether the kernel has taken an answer that was given already.
    Look,
    /// As `Ask`, after the kernel has taken the answer to a write that ends at this offset.
    AskBehind(u64),
}

struct Job {
    ino: Ino,
    what: What,
    done: SyncSender<bool>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// The inode that each thread is requesting.
    asked: [Option<Ino>; THREADS],
    /// Number of threads that take jobs.
    threads: usize,
    ended: bool,
}

impl State {
    /// Takes the next inode that no thread is requesting, with all tasks that wait for it.
    fn take(&mut self) -> Option<(Ino, What, Vec<SyncSender<bool>>)> {
        let free = |job: &Job| !self.asked.contains(&Some(job.ino));
        let at = self.jobs.iter().position(free)?;
        let Job { ino, what, done } = self.jobs.remove(at)?;
        let mut all = vec![done];
        self.jobs.retain(|job| {
            let is_same = job.ino == ino && job.what == what;
            if is_same {
                all.push(job.done.clone());
            }
            !is_same
        });
        Some((ino, what, all))
    }
}

/// Knowledge of the inodes of a slot.
#[derive(Default)]
struct Slot([Known; WAYS]);

impl Slot {
    /// The entry of this inode. If there is none yet, it replaces the one that was used longest ago.
    fn of(&mut self, ino: Ino) -> &mut Known {
        let found = self.0.iter().position(|known| known.ino == ino);
        let at = found.unwrap_or_else(|| {
            let oldest = (0..WAYS).min_by_key(|at| self.0[*at].used_ns()).unwrap_or(0);
            self.0[oldest] = Known::new(ino);
            oldest
        });
        &mut self.0[at]
    }
}

/// The sizes of all files that the kernel uses; see the head of the module.
pub(crate) struct Sizes {
    slots: Box<[Mutex<Slot>]>,
    tids: [AtomicU32; THREADS],
    state: Mutex<State>,
    changed: Condvar,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes {
            slots: (0..SLOTS).map(|_| Mutex::default()).collect(),
            tids: std::array::from_fn(|_| AtomicU32::new(0)),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }
}

impl Sizes {
    /// Runs `act` on the knowledge of an inode.
    fn with<T>(&self, ino: Ino, act: impl FnOnce(&mut Known) -> T) -> T {
        let slot = &self.slots[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> SLOT_SHIFT) as usize % SLOTS];
        act(slot.lock().of(ino))
    }

    /// Returns whether a thread is one of those that request attributes so that the kernel takes the answer.
    fn asks(&self, tid: u32) -> bool {
        self.tids.iter().any(|own| own.load(SeqCst) == tid)
    }

    /// It has to be called before a write of this mount is answered. Returns whether another thread was shown another
    /// size and may not have taken that answer yet.
    pub(crate) fn wrote(&self, ino: Ino, tid: u32, end: u64) -> bool {
        let now_ns = monotonic_ns();
        self.with(ino, |known| {
            known.wrote(tid, end, now_ns);
            known.is_on_its_way(tid, now_ns)
        })
    }

    /// It has to be called before a truncate is answered.
    pub(crate) fn has_cut(&self, tid: u32, attr: &Attr) {
        let (answer, now_ns) = (Answer::new(tid, attr, u64::MAX), monotonic_ns());
        self.with(attr.ino, |known| {
            known.fixes(answer, now_ns);
            known.cuts(tid, now_ns);
        });
    }

    /// It has to be called before the answer to a request that the kernel treats as a truncate.
    pub(crate) fn cuts(&self, ino: Ino, tid: u32) {
        self.with(ino, |known| known.cuts(tid, monotonic_ns()));
    }

    /// It has to be called before a read is answered. A read of pages that ends early may tell the kernel that the file
    /// ends there.
    pub(crate) fn has_read(&self, ino: Ino, how: &ReadHow, len: usize) {
        if how.into_page_cache && len < how.size {
            self.with(ino, |known| known.read_short(how.offset + len as u64, monotonic_ns()));
        }
    }

    /// Notes that the attributes of the inode are being invalidated. Waits for nothing.
    pub(crate) fn takes_back(&self, ino: Ino) {
        self.with(ino, |known| known.takes_back(monotonic_ns()));
    }

    /// It has to be called before pages are dropped. Waits until the kernel has taken the answers that were given.
    pub(crate) fn takes_pages_back(&self, ino: Ino) {
        let mut looked = false;
        loop {
            let now_ns = monotonic_ns();
            let goes_on = self.with(ino, |known| {
                let goes_on = looked || !known.is_on_its_way(0, now_ns);
                if goes_on {
                    known.takes_back(now_ns);
                }
                goes_on
            });
            if goes_on {
                return;
            }
            self.wait_for(ino, What::Look, LOOK_WAIT);
            looked = true;
        }
    }

    /// Waits until one of the threads has done a job. Returns whether the kernel then uses the right size, or `None` if
    /// no thread can make it do so.
    fn wait_for(&self, ino: Ino, what: What, most: Duration) -> Option<bool> {
        Some(self.start(ino, what)?.recv_timeout(most) == Ok(true))
    }

    /// Gives a job to the threads. The threads have no descriptors of this process, so all they can do is wake the
    /// thread that waits.
    fn start(&self, ino: Ino, what: What) -> Option<Receiver<bool>> {
        let (done, is_done) = sync_channel(1);
        {
            let mut state = self.state.lock();
            if state.threads == 0 || state.ended || state.jobs.len() >= JOBS_MAX {
                return None;
            }
            state.jobs.push_back(Job { ino, what, done });
            assert!(state.jobs.len() <= JOBS_MAX, "{} jobs wait for the threads", state.jobs.len());
        }
        self.changed.notify_one();
        Some(is_done)
    }

    /// Waits until the kernel uses the present size of the file, `most` at the longest.
    pub(crate) fn tell_now(&self, ino: Ino, most: Duration) {
        self.wait_for(ino, What::Ask, most);
    }

    /// Makes the kernel take the size of the file after the answer to a write that is about to be given. From that
    /// answer the kernel concludes that the file ends at `end`. Waits for nothing.
    pub(crate) fn tell_behind(&self, ino: Ino, end: u64) {
        self.start(ino, What::AskBehind(end));
    }

    /// The loop of one of the threads. `root` is the root of a clone of the mount.
    pub(crate) fn run(&self, root: &OwnedFd) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let free = |own: &AtomicU32| own.compare_exchange(0, tid, SeqCst, SeqCst).is_ok();
        let Some(own) = self.tids.iter().position(free) else { return };
        let mut state = self.state.lock();
        state.threads += 1;
        while !state.ended {
            let Some((ino, what, waiting)) = state.take() else {
                self.changed.wait(&mut state);
                continue;
            };
            assert!(state.asked[own].is_none(), "{ino}: thread {own} is requesting another inode");
            state.asked[own] = Some(ino);
            drop(state);
            let is_right = match what {
                What::Ask => self.ask(root, ino),
                What::Look => self.look(root, ino),
                What::AskBehind(end) => {
                    await_size(root, ino, end);
                    self.ask(root, ino)
                }
            };
            for done in waiting {
                let _ = done.try_send(is_right);
            }
            state = self.state.lock();
            state.asked[own] = None;
            if !state.jobs.is_empty() {
                // A job of another thread may have been waiting for this inode.
                self.changed.notify_one();
            }
        }
        assert!(state.threads > 0, "a thread ends that was not counted");
        state.threads -= 1;
        // Dropping the senders wakes those who wait.
        state.jobs.clear();
        self.tids[own].store(0, SeqCst);
    }

    /// Returns whether there are threads that request attributes and observe the kernel.
    pub(crate) fn are_followed(&self) -> bool {
        let state = self.state.lock();
        state.threads > 0 && !state.ended
    }

    /// Ends the threads.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// Checks until the kernel uses the size of its last answer.
    fn look(&self, root: &OwnedFd, ino: Ino) -> bool {
        let end_ns = monotonic_ns() + LOOK_WAIT.as_nanos() as u64;
        let Ok(file) = system::by_handle(root, ino) else { return true };
        loop {
            let Known { size, ctime, moves, .. } = self.with(ino, |known| *known);
            match (system::kept_size(&file), size) {
                (Ok((kept, changed)), Some(size)) if kept != size && changed <= ctime => {}
                (Ok((kept, _)), Some(size)) if kept == size => {
                    self.with(ino, |known| known.has_arrived(moves));
                    return true;
                }
                _ => return true,
            }
            if monotonic_ns() > end_ns {
                return false;
            }
            std::thread::park_timeout(LOOK);
        }
    }

    /// Requests the attributes until the kernel has taken the answer. Returns whether the kernel has taken it, or does
    /// not know the inode.
    fn ask(&self, root: &OwnedFd, ino: Ino) -> bool {
        let file = match system::by_handle(root, ino) {
            Ok(file) => file,
            Err(e) => {
                self.with(ino, |known| *known = Known::new(ino));
                return e == Raw::STALE;
            }
        };
        for turn in 0..QUESTIONS {
            let moves = self.with(ino, |known| known.moves);
            let Ok(answer) = system::asked_size(&file) else { return false };
            let Ok(kept) = system::kept_size(&file) else { return false };
            let is_seen = kept.0 == answer && self.with(ino, |known| known.is_seen(moves, kept, monotonic_ns()));
            if is_seen || (turn >= LARGER && kept.0 >= answer) {
                return true;
            }
        }
        false
    }

    /// Called before a GETATTR or LOOKUP that was read at `asked_ns` is answered with the attributes of a file. Returns
    /// whether the answer may be given at once. If not, call `sees_to` first.
    pub(crate) fn tells(&self, tid: u32, attr: &Attr, asked_ns: u64, is_changing: impl FnOnce() -> bool) -> bool {
        let answer = Answer::new(tid, attr, asked_ns);
        if self.asks(tid) {
            self.with(attr.ino, |known| known.shows_own(answer, monotonic_ns()));
            return true;
        }
        self.with(attr.ino, |known| known.shows(answer, monotonic_ns(), is_changing))
    }

    /// Notes an answer that is given although the kernel may end up with another size, or that an answer of
    /// `tells_aside` is not given after all.
    pub(crate) fn tells_in_doubt(&self, tid: u32, attr: &Attr, asked_ns: u64) {
        let answer = Answer::new(tid, attr, asked_ns);
        self.with(attr.ino, |known| known.shows_in_doubt(answer, monotonic_ns()));
    }

    /// Works as `tells`, for an answer that shows no size to a program and that may be left out. False means that it
    /// has to be left out.
    pub(crate) fn tells_aside(&self, tid: u32, attr: &Attr, asked_ns: u64, is_changing: impl FnOnce() -> bool) -> bool {
        let answer = Answer::new(tid, attr, asked_ns);
        self.with(attr.ino, |known| known.shows_aside(answer, monotonic_ns(), is_changing))
    }

    /// Waits until the kernel uses the size of a file, and returns whether it does. `is_changing`: whether a change of
    /// the file by this mount is under way.
    pub(crate) fn sees_to(&self, tid: u32, ino: Ino, is_changing: impl Fn() -> bool) -> bool {
        let began_ns = monotonic_ns();
        // Answers that the kernel keeps in any case have to arrive first.
        let fixed_ns = self.with(ino, |known| known.fixed_ns(tid));
        if self.are_followed() {
            pause(fixed_ns.saturating_sub(monotonic_ns()));
        }
        for round in 1.. {
            let left = CHANGE_WAIT.saturating_sub(Duration::from_nanos(monotonic_ns() - began_ns));
            match self.wait_for(ino, What::Ask, left) {
                Some(true) => return true,
                Some(false) => {}
                None => return false,
            }
            let now_ns = monotonic_ns();
            let waited = Duration::from_nanos(now_ns - began_ns);
            let holds_back = || is_changing() || self.with(ino, |known| known.is_cut(tid, now_ns));
            if waited >= CHANGE_WAIT || (waited >= ASK_WAIT && round >= ROUNDS && !holds_back()) {
                break;
            }
            pause(PAUSE_NS);
        }
        false
    }

    /// Returns whether an answer with a size may still be on its way to another thread. The kernel loses that size if
    /// something crosses the answer.
    pub(crate) fn is_on_its_way(&self, tid: u32, ino: Ino) -> bool {
        self.with(ino, |known| known.is_on_its_way(tid, monotonic_ns()))
    }

    /// Waits until the size on its way to another thread has arrived in the kernel.
    pub(crate) fn arrives(&self, ino: Ino) {
        self.wait_for(ino, What::Look, LOOK_WAIT);
    }

    /// Called before an answer that the kernel keeps in any case. The result is false if the answer may be older than
    /// what a program was shown meanwhile.
    pub(crate) fn fixes(&self, tid: u32, attr: &Attr, asked_ns: u64) -> bool {
        let answer = Answer::new(tid, attr, asked_ns);
        self.with(attr.ino, |known| known.fixes(answer, monotonic_ns()))
    }

    /// Called before the answer to an open that truncates a file to zero.
    pub(crate) fn empties(&self, tid: u32, ino: Ino) {
        let answer = Answer { tid, size: 0, ctime: Timespec::default(), asked_ns: u64::MAX };
        self.with(ino, |known| known.fixes(answer, monotonic_ns()));
    }

    /// Notes that a thread has taken its answer about a file, because it sends another request.
    pub(crate) fn has_taken(&self, tid: u32, ino: Ino) {
        self.with(ino, |known| known.asks_again(tid));
    }
}

/// Checks repeatedly until the kernel uses this size, for `WRITE_WAIT` at most.
fn await_size(root: &OwnedFd, ino: Ino, size: u64) {
    let end_ns = monotonic_ns() + WRITE_WAIT.as_nanos() as u64;
    let Ok(file) = system::by_handle(root, ino) else { return };
    while system::kept_size(&file).is_ok_and(|(kept, _)| kept != size) && monotonic_ns() < end_ns {
        std::thread::park_timeout(LOOK);
    }
}

/// Waits for `ns` nanoseconds.
fn pause(ns: u64) {
    let end_ns = monotonic_ns() + ns;
    while let left @ 1.. = end_ns.saturating_sub(monotonic_ns()) {
        // A wait on this thread may have left a wake-up behind.
        std::thread::park_timeout(Duration::from_nanos(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: without threads no answer waits, and pages are dropped at once, also in the first moments of a process.
    /// Method: a size whose answer is on its way.
    #[test]
    fn nobody_waits_without_threads() {
        let (sizes, ino) = (Sizes::default(), Ino(7));
        assert!(!sizes.are_followed() && sizes.wait_for(ino, What::Ask, Duration::from_secs(600)).is_none());
        let now_ns = monotonic_ns();
        let answer = Answer { tid: 1, size: 5, ctime: Timespec::default(), asked_ns: now_ns };
        assert!(sizes.with(ino, |known| known.shows(answer, now_ns, || false)));
        assert!(sizes.with(ino, |known| known.is_on_its_way(0, now_ns)));
        sizes.takes_pages_back(ino);
        assert!(sizes.with(ino, |known| !known.shows(answer, now_ns, || false)));
    }

    /// Goal: of inodes in the same slot, the one that was used longest ago is replaced. Method: one inode more than the
    /// slot can contain.
    #[test]
    fn inodes_that_meet() {
        let mut slot = Slot::default();
        let size = |slot: &mut Slot, n: u64| slot.of(Ino(n)).size;
        for n in 1..=WAYS as u64 {
            slot.of(Ino(n)).wrote(1, n, 1000 + n);
            let answer = Answer { tid: 1, size: n, ctime: Timespec::default(), asked_ns: u64::MAX };
            assert!(slot.of(Ino(n)).shows(answer, 1000 + n, || false));
        }
        slot.of(Ino(1)).takes_back(2000);
        assert_eq!(size(&mut slot, 77), None);
        assert_eq!((size(&mut slot, 1), size(&mut slot, 3)), (Some(1), Some(3)));
        assert_eq!(size(&mut slot, 2), None, "it has made room");
    }

    /// Goal: only one thread at a time requests an inode, for all tasks that wait for it. Method: the test adds and
    /// takes the jobs itself.
    #[test]
    fn one_thread_asks_for_all() {
        let mut state = State::default();
        let (done, _is_done) = sync_channel(9);
        let push = |state: &mut State, n, what| state.jobs.push_back(Job { ino: Ino(n), what, done: done.clone() });
        [(7, What::Ask), (8, What::Ask), (7, What::Look), (7, What::Ask)]
            .into_iter()
            .for_each(|(n, what)| push(&mut state, n, what));
        let (ino, what, waiting) = state.take().expect("a job");
        assert!((ino, what, waiting.len()) == (Ino(7), What::Ask, 2));
        state.asked[0] = Some(ino);
        assert!(state.take().is_some_and(|(ino, ..)| ino == Ino(8)) && state.take().is_none());
        state.asked[0] = None;
        assert!(state.take().is_some_and(|(_, what, waiting)| what == What::Look && waiting.len() == 1));
    }
}
