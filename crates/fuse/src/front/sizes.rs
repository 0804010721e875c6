//! `Sizes`: the kernel goes by the sizes that it is told.
//!
//! Linux takes no answer to a question from before something has moved the version of an inode's attributes: another
//! answer, a write, a cut, an invalidation. Who asked with `stat` is shown the answer all the same. But a mapping,
//! `sendfile`, `splice`, `copy_file_range`, a `read` that the kernel serves and an `lseek` to the end go by the size
//! that the inode has, and that stays the one of before: of programs that set the size of a file, asked for it, mapped
//! it and touched its last byte, one of thirty was ended by SIGBUS; while another mount appended records, one of six
//! reads on this one ended before a record whose append had returned. So
//!
//! * an answer that something may cross which leaves the kernel with another size (`known`) is given only when the
//!   kernel has the size: a thread of the mount asks for the attributes itself, so that the kernel takes a newer
//!   answer, and looks what it goes by now, until the two agree. One program at a time, and any number that are shown
//!   the size that the kernel has already, cost no question;
//! * what would move the version is answered, and pages are taken back, only when the kernel goes by the last size that
//!   another thread was told: it may have it, and not have taken it yet;
//! * an answer that the kernel takes in any case (to a change of the mode, to a link, ...) shows nothing older than
//!   what was told while it was under way;
//! * attributes that were taken back are lent again only when an answer without a life has had the time to arrive
//!   (the client's rule), so that they need not be taken back while answers are on their way.
//!
//! Owns: what is known of each file (`known`), the threads that ask and look. Does not own: which calls show sizes
//! (`client_fs/sizes`), what is lent and taken back (the client), how an inode is found by its id (`system`), which
//! changes are under way (`kernel_view`).
//!
//! Bounds: nobody waits for the threads for longer than `ASK_WAIT`, `CHANGE_WAIT` while a change of the file by this
//! mount is under way, and `LOOK_WAIT`; beyond, and where the mount may not open an inode by its id, the kernel may go
//! by the size of before until it is asked for again. `SLOTS` slots, each for the inodes of one hash; of more than
//! `WAYS` that meet in one within the time that an answer takes, nothing is known of the first.

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

/// Slots of `WAYS` inodes, about 700 bytes each.
const SLOTS: usize = 1024;
/// Inodes of one slot.
const WAYS: usize = 4;
/// Threads that ask and look.
pub(crate) const THREADS: usize = 2;
/// Jobs that wait for them; beyond, they are left.
const JOBS_MAX: usize = 256;
/// A question may have waited for so long before it was read from the device.
const ASKED_NS: u64 = 100_000_000;
/// An answer has been taken by the kernel after this time.
const TAKEN_NS: u64 = 10_000_000;
/// Of two questions the one that is seen later by so much was read later.
const ORDER_NS: u64 = 500_000;
/// How long an answer waits until the kernel goes by the size.
const ASK_WAIT: Duration = Duration::from_millis(50);
/// The same while this mount changes the file: until that is answered the kernel takes no other answer.
const CHANGE_WAIT: Duration = Duration::from_secs(2);
/// How long pages wait until the kernel goes by the last answer.
const LOOK_WAIT: Duration = Duration::from_millis(10);
/// Pause between two looks.
const LOOK: Duration = Duration::from_micros(20);
/// Pause between two rounds of questions.
const PAUSE_NS: u64 = 200_000;
/// Questions of a round.
const QUESTIONS: usize = 16;
/// Behind so many of them a larger size will do: the file is being written here all the time.
const LARGER: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// The kernel has to take an answer.
    Ask,
    /// It may have to take one that it was given.
    Look,
    /// The same as `Ask`, when the kernel has taken the answer to a write by which the file ends there.
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
    /// Whom the threads are asking for.
    asked: [Option<Ino>; THREADS],
    /// Threads that take jobs up.
    threads: usize,
    ended: bool,
}

impl State {
    /// The next inode that nobody asks for yet, with all who wait for the same.
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

/// What is known of the inodes of a slot.
#[derive(Default)]
struct Slot([Known; WAYS]);

impl Slot {
    /// Of this inode; in place of the one that was used longest ago if there is nothing yet.
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

/// See the module's head.
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
    /// Does something with what is known of an inode.
    fn with<T>(&self, ino: Ino, act: impl FnOnce(&mut Known) -> T) -> T {
        let slot = &self.slots[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % SLOTS];
        act(slot.lock().of(ino))
    }

    /// Whether a thread asks so that the kernel takes the answer.
    fn asks(&self, tid: u32) -> bool {
        self.tids.iter().any(|own| own.load(SeqCst) == tid)
    }

    /// The answer to a write of this mount is about to be given. Whether another thread may have yet to take a size
    /// that this one does not bring.
    pub(crate) fn wrote(&self, ino: Ino, tid: u32, end: u64) -> bool {
        let now_ns = monotonic_ns();
        self.with(ino, |known| {
            known.wrote(tid, end, now_ns);
            known.is_on_its_way(tid, now_ns)
        })
    }

    /// The answer to a truncate is about to be given.
    pub(crate) fn has_cut(&self, tid: u32, attr: &Attr) {
        let (answer, now_ns) = (Answer::new(tid, attr, u64::MAX), monotonic_ns());
        self.with(attr.ino, |known| {
            known.fixes(answer, now_ns);
            known.cuts(tid, now_ns);
        });
    }

    /// The answer to what the kernel treats as a truncate is about to be given.
    pub(crate) fn cuts(&self, ino: Ino, tid: u32) {
        self.with(ino, |known| known.cuts(tid, monotonic_ns()));
    }

    /// The answer to a read is about to be given. One of pages that ends before the end of the request may be taken for
    /// the end of the file.
    pub(crate) fn has_read(&self, ino: Ino, how: &ReadHow, len: usize) {
        if how.into_page_cache && len < how.size {
            self.with(ino, |known| known.read_short(how.offset + len as u64, monotonic_ns()));
        }
    }

    /// Attributes are taken back: waits for nothing.
    pub(crate) fn takes_back(&self, ino: Ino) {
        self.with(ino, |known| known.takes_back(monotonic_ns()));
    }

    /// Pages are about to be taken back: waits until the kernel has taken what it was told.
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

    /// Waits until one of the threads has done it. Whether the kernel goes by what it should then; `None` if there is
    /// none to do it.
    fn wait_for(&self, ino: Ino, what: What, most: Duration) -> Option<bool> {
        Some(self.start(ino, what)?.recv_timeout(most) == Ok(true))
    }

    /// Has one of the threads do it. They have no descriptors of this process: they wake who waits, and nothing else.
    fn start(&self, ino: Ino, what: What) -> Option<Receiver<bool>> {
        let (done, is_done) = sync_channel(1);
        {
            let mut state = self.state.lock();
            if state.threads == 0 || state.ended || state.jobs.len() >= JOBS_MAX {
                return None;
            }
            state.jobs.push_back(Job { ino, what, done });
        }
        self.changed.notify_one();
        Some(is_done)
    }

    /// Waits until the kernel goes by the size that the file has now, `most` at the longest.
    pub(crate) fn tell_now(&self, ino: Ino, most: Duration) {
        self.wait_for(ino, What::Ask, most);
    }

    /// Has the kernel go by the size of the file when it has taken the answer to a write that is about to be given, and
    /// takes `end` for it. Waits for nothing.
    pub(crate) fn tell_behind(&self, ino: Ino, end: u64) {
        self.start(ino, What::AskBehind(end));
    }

    /// One of the threads; `root` is that of a clone of the mount.
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
                // One that had to wait for this one.
                self.changed.notify_one();
            }
        }
        state.threads -= 1;
        // Whoever waits is told.
        state.jobs.clear();
        self.tids[own].store(0, SeqCst);
    }

    /// Whether there are threads that see to it.
    pub(crate) fn are_followed(&self) -> bool {
        let state = self.state.lock();
        state.threads > 0 && !state.ended
    }

    /// The threads end.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// Looks until the kernel goes by what it was told last.
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

    /// Asks for the attributes until the kernel has taken the answer. Whether it has, or does not know the inode.
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

    /// A question for attributes, or for a name, that was read at `asked_ns` is about to be answered with those of a
    /// file. Whether it may be at once; otherwise `sees_to` comes first.
    pub(crate) fn tells(&self, tid: u32, attr: &Attr, asked_ns: u64, is_changing: impl FnOnce() -> bool) -> bool {
        let answer = Answer::new(tid, attr, asked_ns);
        if self.asks(tid) {
            self.with(attr.ino, |known| known.shows_own(answer, monotonic_ns()));
            return true;
        }
        self.with(attr.ino, |known| known.shows(answer, monotonic_ns(), is_changing))
    }

    /// It is given although the kernel may have another size behind it, or what `tells_aside` was asked for is not
    /// shown after all.
    pub(crate) fn tells_in_doubt(&self, tid: u32, attr: &Attr, asked_ns: u64) {
        let answer = Answer::new(tid, attr, asked_ns);
        self.with(attr.ino, |known| known.shows_in_doubt(answer, monotonic_ns()));
    }

    /// As `tells`, of an answer that shows its size to no program, and can be left out: false if it has to be.
    pub(crate) fn tells_aside(&self, tid: u32, attr: &Attr, asked_ns: u64, is_changing: impl FnOnce() -> bool) -> bool {
        let answer = Answer::new(tid, attr, asked_ns);
        self.with(attr.ino, |known| known.shows_aside(answer, monotonic_ns(), is_changing))
    }

    /// Waits until the kernel goes by the size of a file. Whether it does. `is_changing`: whether a change of it by
    /// this mount is under way.
    pub(crate) fn sees_to(&self, tid: u32, ino: Ino, is_changing: impl Fn() -> bool) -> bool {
        let began_ns = monotonic_ns();
        // What the kernel will take in any case comes first.
        let fixed_ns = self.with(ino, |known| known.fixed_ns(tid));
        if self.are_followed() {
            pause(fixed_ns.saturating_sub(monotonic_ns()));
        }
        loop {
            match self.wait_for(ino, What::Ask, ASK_WAIT) {
                Some(true) => return true,
                Some(false) => {}
                None => return false,
            }
            let most = if is_changing() { CHANGE_WAIT } else { ASK_WAIT };
            if monotonic_ns() - began_ns >= most.as_nanos() as u64 {
                return false;
            }
            pause(PAUSE_NS);
        }
    }

    /// Whether another thread than this one may have yet to take a size, which it loses if something crosses.
    pub(crate) fn is_on_its_way(&self, tid: u32, ino: Ino) -> bool {
        self.with(ino, |known| known.is_on_its_way(tid, monotonic_ns()))
    }

    /// Waits until it has arrived.
    pub(crate) fn arrives(&self, ino: Ino) {
        self.wait_for(ino, What::Look, LOOK_WAIT);
    }

    /// An answer is about to be given that the kernel takes whatever has come in between. False if it may be older than
    /// what was shown meanwhile.
    pub(crate) fn fixes(&self, tid: u32, attr: &Attr, asked_ns: u64) -> bool {
        let answer = Answer::new(tid, attr, asked_ns);
        self.with(attr.ino, |known| known.fixes(answer, monotonic_ns()))
    }

    /// The answer to an open that empties a file is about to be given.
    pub(crate) fn empties(&self, tid: u32, ino: Ino) {
        let answer = Answer { tid, size: 0, ctime: Timespec::default(), asked_ns: u64::MAX };
        self.with(ino, |known| known.fixes(answer, monotonic_ns()));
    }

    /// A thread has taken what it was told of a file: it asks for something else.
    pub(crate) fn has_taken(&self, tid: u32, ino: Ino) {
        self.with(ino, |known| known.asks_again(tid));
    }
}

/// Looks until the kernel goes by this size, for `LOOK_WAIT` at most.
fn await_size(root: &OwnedFd, ino: Ino, size: u64) {
    let end_ns = monotonic_ns() + LOOK_WAIT.as_nanos() as u64;
    let Ok(file) = system::by_handle(root, ino) else { return };
    while system::kept_size(&file).is_ok_and(|(kept, _)| kept != size) && monotonic_ns() < end_ns {
        std::thread::park_timeout(LOOK);
    }
}

/// Lets some time go by.
fn pause(ns: u64) {
    let end_ns = monotonic_ns() + ns;
    while let left @ 1.. = end_ns.saturating_sub(monotonic_ns()) {
        // What waits on this thread may have left it a wake-up.
        std::thread::park_timeout(Duration::from_nanos(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: without threads nobody waits, and pages are taken back at once, also in the first moments of a process.
    /// Method: a size on its way.
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

    /// Goal: of inodes that meet in a slot the one that was used longest ago makes room. Method: one too many.
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

    /// Goal: an inode is asked for by one thread at a time, for all who wait. Method: jobs by hand.
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
