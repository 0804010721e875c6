//! `Sizes`: the kernel goes by the sizes that it is told.
//!
//! Linux takes no answer to a question from before an invalidation (`fuse_reverse_inval_inode` counts up the version of
//! an inode's attributes). Who asked with `stat` is shown the answer all the same. But a `read` that the kernel serves,
//! an `lseek` to the end and `sendfile` go by the size that the inode has, and that stays the one of before: while
//! another mount appended records, one of six reads on this one ended before a record whose append had returned. So
//!
//! * an answer to a question that may be from before an invalidation is given only when the kernel has the size: a
//!   thread of the mount asks for the attributes itself, so that the kernel takes a newer answer, and looks what it
//!   goes by now, until the two agree;
//! * pages are taken back only when the kernel goes by the last answer that it was given: it may have it, and not have
//!   taken it yet;
//! * attributes that were taken back are lent again only when an answer without a life has had the time to arrive
//!   (the client's rule), so that they need not be taken back while answers are on their way.
//!
//! Owns: when what was taken back, which size was told last, the threads that ask and look. Does not own: what is lent
//! and taken back (the client), how an inode is found by its id (`system`).
//!
//! Bounds: nobody waits for the threads for longer than `ASK_WAIT` and `LOOK_WAIT`; beyond, and where the mount may not
//! open an inode by its id, the kernel may go by the size of before until it asks again. So it may, too, if a program
//! of this mount changes the file just then, since that invalidates as well.
//!
//! `SLOTS` slots, each for the inodes of one hash. Inodes that meet in one cost a question or a look too many.

use super::ClientFs;
use super::names::system;
use crate::Caller;
use crate::session::monotonic_ns;
use amphi_types::{Attr, Ino, Kind, Timespec};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno as Raw;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// Slots, about 60 bytes each.
const SLOTS: usize = 4096;
/// Threads that ask and look.
pub(super) const THREADS: usize = 2;
/// Jobs that wait for them; beyond, they are left.
const JOBS_MAX: usize = 256;
/// A question may have waited for so long before it was read from the device.
const ASKED_NS: u64 = 100_000_000;
/// An answer has been taken by the kernel after this time.
const TAKEN_NS: u64 = 10_000_000;
/// How long an answer waits until the kernel goes by the size.
const ASK_WAIT: Duration = Duration::from_millis(50);
/// How long pages wait until the kernel goes by the last answer.
const LOOK_WAIT: Duration = Duration::from_millis(10);
/// Pause between two looks.
const LOOK: Duration = Duration::from_micros(20);
/// Questions for one answer.
const QUESTIONS: usize = 16;

/// What the kernel was told of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    ino: Ino,
    size: u64,
    ctime: Timespec,
    at_ns: u64,
}

#[derive(Default)]
struct Slot {
    /// When attributes or pages were taken back last.
    taken_back_ns: u64,
    told: Option<Told>,
}

#[derive(Clone, Copy)]
enum What {
    /// The kernel has to take an answer.
    Ask,
    /// It may have to take one that it was given.
    Look,
}

struct Job {
    ino: Ino,
    what: What,
    done: SyncSender<bool>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that take jobs up.
    threads: usize,
    ended: bool,
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
    fn slot(&self, ino: Ino) -> &Mutex<Slot> {
        &self.slots[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % SLOTS]
    }

    /// Whether a thread asks so that the kernel takes the answer.
    fn asks(&self, tid: u32) -> bool {
        self.tids.iter().any(|own| own.load(SeqCst) == tid)
    }

    /// An answer to a question that was read at `asked_ns` is about to be given. False if the kernel may not take it.
    fn tell(&self, attr: &Attr, asked_ns: u64, now_ns: u64) -> bool {
        let mut slot = self.slot(attr.ino).lock();
        if slot.taken_back_ns + ASKED_NS >= asked_ns {
            return false;
        }
        slot.tell(attr, now_ns);
        true
    }

    /// The same, of an answer to one of the own threads.
    fn tell_own(&self, attr: &Attr, now_ns: u64) {
        self.slot(attr.ino).lock().tell(attr, now_ns);
    }

    /// A program of this mount begins to change a file: the kernel will go by what comes of that.
    pub(super) fn changes(&self, ino: Ino) {
        self.slot(ino).lock().told = None;
    }

    /// Attributes are taken back: waits for nothing.
    pub(super) fn takes_back(&self, ino: Ino) {
        self.slot(ino).lock().taken_back_ns = monotonic_ns();
    }

    /// Pages are about to be taken back: waits until the kernel has taken what it was told.
    pub(super) fn takes_pages_back(&self, ino: Ino) {
        let mut looked = false;
        loop {
            let now_ns = monotonic_ns();
            {
                let mut slot = self.slot(ino).lock();
                if looked || !slot.is_on_its_way(ino, now_ns) {
                    slot.taken_back_ns = now_ns;
                    return;
                }
            }
            self.wait_for(ino, What::Look, LOOK_WAIT);
            looked = true;
        }
    }

    fn told(&self, ino: Ino) -> Option<Told> {
        self.slot(ino).lock().told.filter(|told| told.ino == ino)
    }

    /// Waits until one of the threads has done it. Whether the kernel goes by what it should then.
    fn wait_for(&self, ino: Ino, what: What, most: Duration) -> bool {
        let (done, is_done) = sync_channel(1);
        {
            let mut state = self.state.lock();
            if state.threads == 0 || state.ended || state.jobs.len() >= JOBS_MAX {
                return false;
            }
            state.jobs.push_back(Job { ino, what, done });
        }
        self.changed.notify_one();
        is_done.recv_timeout(most) == Ok(true)
    }

    /// One of the threads; `root` is that of a clone of the mount.
    pub(super) fn run(&self, root: &OwnedFd) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let free = |own: &&AtomicU32| own.compare_exchange(0, tid, SeqCst, SeqCst).is_ok();
        let Some(own) = self.tids.iter().find(free) else { return };
        let mut state = self.state.lock();
        state.threads += 1;
        while !state.ended {
            let Some(Job { ino, what, done }) = state.jobs.pop_front() else {
                self.changed.wait(&mut state);
                continue;
            };
            drop(state);
            let is_right = match what {
                What::Ask => ask(root, ino),
                What::Look => self.look(root, ino),
            };
            let _ = done.try_send(is_right);
            state = self.state.lock();
        }
        state.threads -= 1;
        // Whoever waits is told.
        state.jobs.clear();
        own.store(0, SeqCst);
    }

    /// Whether there are threads that see to it.
    pub(super) fn are_followed(&self) -> bool {
        let state = self.state.lock();
        state.threads > 0 && !state.ended
    }

    /// The threads end.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// Looks until the kernel goes by what it was told last.
    fn look(&self, root: &OwnedFd, ino: Ino) -> bool {
        let end_ns = monotonic_ns() + LOOK_WAIT.as_nanos() as u64;
        let Ok(file) = system::by_handle(root, ino) else { return true };
        loop {
            let Some(told) = self.told(ino) else { return true };
            match system::kept_size(&file) {
                Ok((size, ctime)) if size != told.size && ctime <= told.ctime => {}
                _ => return true,
            }
            if monotonic_ns() > end_ns {
                return false;
            }
            std::thread::park_timeout(LOOK);
        }
    }
}

impl Slot {
    fn tell(&mut self, attr: &Attr, now_ns: u64) {
        let Attr { ino, size, ctime, .. } = *attr;
        // Of two answers that are given at the same time the older one may come last.
        if self.told.is_none_or(|told| told.ino != ino || told.ctime <= ctime) {
            self.told = Some(Told { ino, size, ctime, at_ns: now_ns });
        }
    }

    fn is_on_its_way(&self, ino: Ino, now_ns: u64) -> bool {
        self.told.is_some_and(|told| told.ino == ino && now_ns < told.at_ns + TAKEN_NS)
    }
}

/// Asks for the attributes until the kernel has taken the answer. Whether it has, or does not know the inode.
fn ask(root: &OwnedFd, ino: Ino) -> bool {
    let file = match system::by_handle(root, ino) {
        Ok(file) => file,
        Err(e) => return e == Raw::STALE,
    };
    for _ in 0..QUESTIONS {
        let Ok(answer) = system::asked_size(&file) else { return false };
        match system::kept_size(&file) {
            Ok((size, _)) if size == answer => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
    false
}

impl ClientFs {
    /// A question for attributes, or for a name, is about to be answered with those of a file; it was read at
    /// `asked_ns`. Waits until the kernel goes by the size, if it might not take the answer.
    pub(super) fn tells_size(&self, caller: &Caller<'_>, attr: &Attr, asked_ns: u64) {
        if attr.kind != Kind::File {
            return;
        }
        let sizes = &self.names.lender.sizes;
        if sizes.asks(caller.tid) {
            sizes.tell_own(attr, monotonic_ns());
        } else if !sizes.tell(attr, asked_ns, monotonic_ns()) {
            caller.will_block();
            sizes.wait_for(attr.ino, What::Ask, ASK_WAIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(ino: u64, size: u64, changed: i64) -> Attr {
        let time = |sec| Timespec { sec, nsec: 0 };
        Attr {
            ino: Ino(ino),
            kind: Kind::File,
            perm: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: 0,
            atime: time(0),
            mtime: time(changed),
            ctime: time(changed),
            btime: time(0),
        }
    }

    /// Goal: an answer is given at once unless its question may be from before something was taken back; what was told
    /// last is the newest, until a program of this mount changes the file. Method: the orders by hand.
    #[test]
    fn answers_that_the_kernel_takes() {
        let (sizes, ino) = (Sizes::default(), Ino(7));
        let now = 10 * ASKED_NS;
        assert!(sizes.tell(&attr(7, 5, 2), now, now));
        assert!(sizes.tell(&attr(7, 4, 1), now, now), "an older answer that was slower");
        assert_eq!(sizes.told(ino).map(|told| told.size), Some(5));
        assert_eq!(sizes.told(Ino(8)), None);
        sizes.slot(ino).lock().taken_back_ns = now;
        assert!(!sizes.tell(&attr(7, 6, 3), now - 1, now + 1), "asked before");
        assert!(!sizes.tell(&attr(7, 6, 3), now + ASKED_NS, now), "it may have waited to be read");
        assert!(sizes.tell(&attr(7, 6, 3), now + ASKED_NS + 1, now));
        sizes.changes(ino);
        assert_eq!(sizes.told(ino), None);
    }

    /// Goal: without threads nobody waits, and pages are taken back at once. Method: an answer on its way.
    #[test]
    fn nobody_waits_without_threads() {
        let (sizes, ino) = (Sizes::default(), Ino(7));
        assert!(!sizes.are_followed() && !sizes.wait_for(ino, What::Ask, Duration::from_secs(600)));
        sizes.tell_own(&attr(7, 5, 2), monotonic_ns());
        sizes.takes_pages_back(ino);
        assert!(sizes.slot(ino).lock().taken_back_ns > 0);
    }
}
