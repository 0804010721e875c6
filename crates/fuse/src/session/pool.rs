//! `Pool`: which threads read the device, which sleep, and which requests wait for a thread.
//!
//! A request whose handler does not wait is served best by one hot thread, which answers and reads on without waking
//! another thread. Measured: 4 KiB in 3.5 us with brief polling, against 26 us when threads take turns. So one thread
//! reads and handles what it reads. When its handler is about to wait (`will_block`), another thread takes over
//! reading. If a handler waits without saying so, the watch notices within two ticks. The number of threads that read
//! at a time follows the load. `pressure` rises with requests that queue or wait at the same time, and falls when the
//! device is empty. If only one caller is active, one thread reads for it, however long its calls wait. With two, each
//! call would wake the thread that has slept longest, and a create would take 270 us instead of 120.
//!
//! Owns: the counts of threads, the backlog, and each user's share. Does not own: reading and handling (`reader`).
//!
//! Invariants: while the backlog has room, a thread reads the device or will within two ticks, so interrupts get
//! through. For that, the last thread that may exist never works but puts what it reads into the backlog. Requests for
//! the kernel's own pages wait for no other request. All others may wait until pages are dropped, and before the kernel
//! drops any, it waits for page requests. So `PAGE_THREADS` threads are reserved for them, and they come first in the
//! backlog.

use crate::front::pages::DROPPERS_MAX;
use crate::kernel::structs::InHeader;
use amphi_client::Buf;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::FromBytes;

/// Most requests in the backlog when all threads are blocked. If there are more, the last reader handles requests too,
/// and interrupts wait.
const BACKLOG_MAX: usize = 16384;
/// Most bytes in the backlog, so that writes of 16 MiB do not pile up.
const BACKLOG_MAX_BYTES: usize = 64 << 20;
/// Threads beyond `threads_max` for requests of the kernel's own pages, when all others are blocked. There are more of
/// them than the kernel waits for at a time. The kernel drops pages of `DROPPERS_MAX` files and one more
/// (`front::pages`), and waits for one read or write of each file at a time.
const PAGE_THREADS: usize = 64;
const _: () = assert!(PAGE_THREADS > DROPPERS_MAX + 1, "a page request finds a thread");
/// How often the watch checks whether any thread reads.
const WATCH_TICK: Duration = Duration::from_millis(5);
/// Ticks without a request after which the watch sleeps until the next one, so that an idle mount uses no CPU.
const WATCH_IDLE_TICKS: u32 = 200;
/// Pressure at which one more thread should read.
const PRESSURE_STEP: usize = 4;

/// A request in the backlog.
pub(super) struct Parked {
    /// The device from which it was read and on which it must be answered.
    pub device: Arc<OwnedFd>,
    /// Id of the request.
    pub unique: u64,
    /// The bytes of the request, either the window of a receive buffer or a copy.
    pub bytes: Buf,
    /// Whether the request is about the kernel's own pages.
    pub urgent: bool,
    /// The user whose share of threads the request counts against, if any.
    pub share: Option<u32>,
}

/// The place where one sleeping thread waits.
#[derive(Default)]
struct Sleeper {
    condvar: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of threads, without the watch.
    threads: usize,
    /// Threads that read the device, or are about to.
    reading: usize,
    /// How often a thread has begun to read.
    reads: u64,
    pressure: usize,
    /// Last in, first out: the thread that has slept least has the warmest caches.
    sleepers: Vec<Arc<Sleeper>>,
    /// Threads whose handlers wait, by the user of their requests.
    blocked: BTreeMap<u32, usize>,
    blocked_in_all: usize,
    backlog: VecDeque<Parked>,
    backlog_bytes: usize,
    watch_running: bool,
    watch_asleep: bool,
    ended: bool,
    end_told: bool,
}

/// The next action of a thread that has read a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Handle the request.
    Work,
    /// Start another reader, which is counted already, then handle the request.
    SpawnThenWork,
    /// Put the request into the backlog and read on.
    Park,
}

/// The next action of a thread that found the device empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    /// Wait for a request on the device.
    Read,
    /// The thread slept, and was woken to read.
    Woken,
    /// End. The thread is not counted as reading any more.
    Leave,
}

/// Which threads sleep, read and wait.
pub(super) struct Pool {
    state: Mutex<State>,
    empty: Condvar,
    watch: Condvar,
    threads_max: usize,
    sleepers_max: usize,
    readers_max: usize,
}

impl Pool {
    /// A pool. `readers_max` is the number of cores: more threads that read at a time gain nothing.
    pub(super) fn new(threads_max: usize, sleepers_max: usize, readers_max: usize) -> Pool {
        let (state, empty, watch) = (Mutex::default(), Condvar::new(), Condvar::new());
        Pool { state, empty, watch, threads_max, sleepers_max, readers_max: readers_max.max(1) }
    }

    pub(super) fn threads(&self) -> usize {
        self.state.lock().threads
    }

    /// Counts a thread that is about to be started as a reader.
    pub(super) fn thread_starts(&self) {
        let mut s = self.state.lock();
        s.count_new_reader();
    }

    /// Called when a counted thread has ended, or could not be started.
    pub(super) fn thread_ended(&self, counted_as_reading: bool) {
        let mut s = self.state.lock();
        s.threads -= 1;
        s.reading -= usize::from(counted_as_reading);
        self.tell_if_empty(&mut s);
    }

    /// Called when a thread has read a request of `bytes` bytes. `queued`: a request of another caller was waiting when
    /// the last one was done. `urgent`: the request is about the kernel's own pages. `share`: the request counts
    /// against this user's share.
    pub(super) fn request_read(&self, bytes: usize, queued: bool, urgent: bool, share: Option<u32>) -> Next {
        let mut s = self.state.lock();
        if s.watch_asleep {
            s.watch_asleep = false;
            self.watch.notify_one();
        }
        assert!(s.reading > 0, "a request was read, and none of {} threads reads", s.threads);
        s.reading -= 1;
        let room = s.backlog.len() < BACKLOG_MAX && s.backlog_bytes + bytes <= BACKLOG_MAX_BYTES;
        if room && !(self.may_work(&s, urgent) && self.has_share(&s, share)) {
            s.begin_reading();
            return Next::Park;
        }
        if urgent && s.reading == 0 && !self.may_work(&s, false) {
            return self.promote(&mut s);
        }
        if queued {
            s.raise(1, self.readers_max);
            if s.reading == 0 && s.target(self.readers_max) > 1 {
                return self.promote(&mut s);
            }
        }
        Next::Work
    }

    /// Returns whether one more working thread would leave a thread that can read.
    fn may_work(&self, s: &State, urgent: bool) -> bool {
        s.working() < self.threads_max + if urgent { PAGE_THREADS } else { 0 }
    }

    /// Returns whether one more request of this user may wait. One user may occupy half of the threads that are not
    /// occupied by waiting requests of other users. So there are always some left for the next user.
    fn has_share(&self, s: &State, share: Option<u32>) -> bool {
        let Some(uid) = share else { return true };
        let own = s.blocked.get(&uid).copied().unwrap_or_default();
        own < (self.threads_max.saturating_sub(s.blocked_in_all - own) / 2).max(1)
    }

    /// A thread no longer waits for a request of this user.
    pub(super) fn unblocked(&self, uid: u32) {
        let mut s = self.state.lock();
        assert!(s.blocked_in_all > 0, "a thread goes on that did not wait, for user {uid}");
        s.blocked_in_all -= 1;
        if let Some(count) = s.blocked.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                s.blocked.remove(&uid);
            }
        }
    }

    /// Called when the handler of a thread is about to wait, so another thread has to read. `user`: the user of its
    /// request, when it waits for the first time.
    pub(super) fn will_block(&self, user: Option<u32>) -> Next {
        let mut s = self.state.lock();
        if let Some(uid) = user {
            s.blocked_in_all += 1;
            *s.blocked.entry(uid).or_default() += 1;
        }
        // If only one caller is active, it sends nothing more while it waits. Another thread has to read meanwhile, but
        // not together with this one afterwards.
        if s.working() > 1 || !s.backlog.is_empty() {
            s.raise(PRESSURE_STEP, self.readers_max);
        }
        if s.reading > 0 || s.ended { Next::Work } else { self.promote(&mut s) }
    }

    /// Returns whether only one thread works, no requests queue, and no other thread reads.
    pub(super) fn is_calm(&self) -> bool {
        let s = self.state.lock();
        s.reading == 0 && s.backlog.is_empty() && s.pressure < PRESSURE_STEP
    }

    /// Returns whether exactly one thread works, no other thread reads, and no request waits.
    pub(super) fn works_alone(&self) -> bool {
        let s = self.state.lock();
        s.working() == 1 && s.reading == 0 && s.backlog.is_empty()
    }

    /// Adds a thread that reads requests: a sleeping one if there is one, otherwise a new one.
    fn promote(&self, s: &mut State) -> Next {
        if let Some(sleeper) = s.sleepers.pop() {
            s.begin_reading();
            sleeper.condvar.notify_one();
            return Next::Work;
        }
        // If all threads exist, there is one reading thread for each working thread.
        if s.threads >= self.threads_max.max((s.working() + 1).min(self.threads_max + PAGE_THREADS)) {
            return Next::Work;
        }
        s.count_new_reader();
        Next::SpawnThenWork
    }

    /// Puts a request into the backlog. If no working thread remains that would handle it later, it is returned to the
    /// thread that read it, which then handles it.
    pub(super) fn park(&self, parked: Parked) -> Option<Parked> {
        let mut s = self.state.lock();
        if s.working() == 0 {
            s.reading -= 1;
            return Some(parked);
        }
        s.backlog_bytes += parked.bytes.len();
        let behind = if parked.urgent { s.backlog.iter().take_while(|p| p.urgent).count() } else { s.backlog.len() };
        s.backlog.insert(behind, parked);
        None
    }

    /// The thread whose request `unique` is in the backlog.
    pub(super) fn parked_by(&self, unique: u64) -> Option<u32> {
        let s = self.state.lock();
        let parked = s.backlog.iter().find(|p| p.unique == unique)?;
        InHeader::read_from_prefix(&parked.bytes).ok().map(|(header, _)| header.pid)
    }

    /// Removes the request `unique` from the backlog.
    pub(super) fn unpark(&self, unique: u64) -> Option<Parked> {
        let mut s = self.state.lock();
        let at = s.backlog.iter().position(|p| p.unique == unique)?;
        let parked = s.backlog.remove(at)?;
        assert!(s.backlog_bytes >= parked.bytes.len(), "{} bytes are in the backlog", s.backlog_bytes);
        s.backlog_bytes -= parked.bytes.len();
        Some(parked)
    }

    /// Called when a working thread has finished. Returns another request to handle. With `None` the thread counts as
    /// reading.
    pub(super) fn work_done(&self) -> Option<Parked> {
        let mut s = self.state.lock();
        // A thread beyond the bound accepts only page requests, so that it is not kept from them for long.
        let at = s.backlog.iter().position(|p| self.may_work(&s, p.urgent) && self.has_share(&s, p.share));
        let parked = at.and_then(|at| s.backlog.remove(at));
        match &parked {
            Some(p) => s.backlog_bytes -= p.bytes.len(),
            None => s.begin_reading(),
        }
        parked
    }

    /// A reading thread found the device empty. The thread sleeps if enough others read, and ends if enough others
    /// sleep.
    pub(super) fn device_empty(&self) -> Idle {
        let mut s = self.state.lock();
        s.pressure = s.pressure.saturating_sub(1);
        if s.reading <= s.target(self.readers_max) || s.ended {
            return Idle::Read;
        }
        assert!(s.reading > 0, "a thread found the device empty that is not counted as reading");
        s.reading -= 1;
        if s.sleepers.len() >= self.sleepers_max {
            return Idle::Leave;
        }
        let me = Arc::<Sleeper>::default();
        s.sleepers.push(me.clone());
        while s.sleepers.iter().any(|o| Arc::ptr_eq(o, &me)) {
            me.condvar.wait(&mut s);
        }
        Idle::Woken
    }

    /// Called when the mount has ended: wakes all threads, so that they find out.
    pub(super) fn end(&self) {
        let mut s = self.state.lock();
        s.ended = true;
        s.backlog.clear();
        s.backlog_bytes = 0;
        for sleeper in std::mem::take(&mut s.sleepers) {
            s.begin_reading();
            sleeper.condvar.notify_one();
        }
        self.watch.notify_one();
    }

    /// Runs until the mount ends. Calls `start_reader` when no thread has read for a tick although requests are being
    /// handled.
    pub(super) fn watch(&self, start_reader: impl Fn()) {
        let mut s = self.state.lock();
        let (mut seen, mut idle_ticks) = (s.reads, 0);
        while !s.ended {
            if s.reads != seen {
                idle_ticks = 0;
            } else if s.reading == 0 {
                if self.promote(&mut s) == Next::SpawnThenWork {
                    drop(s);
                    start_reader();
                    s = self.state.lock();
                }
            } else {
                idle_ticks += 1;
            }
            seen = s.reads;
            if idle_ticks >= WATCH_IDLE_TICKS {
                s.watch_asleep = true;
                self.watch.wait(&mut s);
                s.watch_asleep = false;
                idle_ticks = 0;
            } else {
                self.watch.wait_for(&mut s, WATCH_TICK);
            }
        }
    }

    /// Counts the thread of the watch, before it is started.
    pub(super) fn watch_starts(&self) {
        self.state.lock().watch_running = true;
    }

    /// Called when the watch has ended, or could not be started.
    pub(super) fn watch_ended(&self) {
        let mut s = self.state.lock();
        s.watch_running = false;
        self.tell_if_empty(&mut s);
    }

    fn tell_if_empty(&self, s: &mut State) {
        if s.threads == 0 {
            s.ended = true;
            self.watch.notify_one();
            if !s.watch_running {
                self.empty.notify_all();
            }
        }
    }

    /// Returns whether the mount has ended.
    pub(super) fn ended(&self) -> bool {
        self.state.lock().ended
    }

    /// Waits until all threads have ended.
    pub(super) fn wait_empty(&self) {
        let mut s = self.state.lock();
        while s.threads > 0 || s.watch_running {
            self.empty.wait(&mut s);
        }
    }

    /// Runs `f` at the first call only.
    pub(super) fn once_at_end(&self, f: impl FnOnce()) {
        if !std::mem::replace(&mut self.state.lock().end_told, true) {
            f();
        }
    }
}

impl State {
    fn count_new_reader(&mut self) {
        self.threads += 1;
        self.begin_reading();
    }

    fn begin_reading(&mut self) {
        self.reading += 1;
        self.reads += 1;
    }

    fn raise(&mut self, by: usize, readers_max: usize) {
        self.pressure = (self.pressure + by).min(readers_max * PRESSURE_STEP);
    }

    /// Number of threads that handle a request.
    fn working(&self) -> usize {
        self.threads.saturating_sub(self.reading + self.sleepers.len())
    }

    /// Returns how many threads should read.
    fn target(&self, readers_max: usize) -> usize {
        (1 + self.pressure / PRESSURE_STEP).min(readers_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a thread works alone while no other works or reads. Method: one working thread, then two, then one again.
    #[test]
    fn one_thread_works_alone() {
        let pool = Pool::new(3, 1, 2);
        pool.thread_starts();
        assert!(!pool.works_alone(), "it reads");
        assert_eq!(pool.request_read(100, false, false, Some(0)), Next::Work);
        assert!(pool.works_alone());
        assert_eq!(pool.will_block(None), Next::SpawnThenWork);
        assert!(!pool.works_alone(), "the other reads");
        assert_eq!(pool.request_read(100, false, false, Some(0)), Next::Work);
        assert!(!pool.works_alone(), "both work");
        assert!(pool.work_done().is_none());
        pool.thread_ended(true);
        assert!(pool.works_alone());
    }

    /// Goal: the last thread stays a reader until the backlog is full. Method: three threads at most, requests that
    /// never end.
    #[test]
    fn the_last_thread_keeps_reading() {
        let pool = Pool::new(3, 1, 2);
        pool.thread_starts();
        for _ in 0..2 {
            assert_eq!(pool.request_read(100, false, false, Some(0)), Next::Work, "it might be short");
            assert_eq!(pool.will_block(None), Next::SpawnThenWork);
        }
        let device = Arc::new(rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, 0.into()).expect("null"));
        for unique in 0..BACKLOG_MAX as u64 {
            assert_eq!(pool.request_read(100, false, false, Some(0)), Next::Park);
            assert!(
                pool.park(Parked {
                    device: device.clone(),
                    unique,
                    bytes: Buf::zeroed(100),
                    urgent: false,
                    share: Some(0)
                })
                .is_none()
            );
        }
        assert_eq!(pool.unpark(5).map(|p| p.unique), Some(5));
        assert!(pool.unpark(5).is_none());
        assert_eq!(
            pool.request_read(BACKLOG_MAX_BYTES, false, false, Some(0)),
            Next::Work,
            "a backlog of too many bytes"
        );
        assert!(pool.work_done().is_none(), "it reads again");
        assert_eq!(pool.work_done().map(|p| p.unique), Some(0), "oldest first");
        while pool.work_done().is_some() {}
        // Between the decision to put a request aside and the moment when this is done, the last working thread has
        // ended.
        let late = Parked { device, unique: 9, bytes: Buf::zeroed(100), urgent: false, share: Some(0) };
        while pool.state.lock().working() > 0 {
            assert!(pool.work_done().is_none());
        }
        assert_eq!(pool.park(late).map(|p| p.unique), Some(9), "nobody would take it up");
        assert!(pool.work_done().is_none(), "whoever read it works");
    }

    /// Goal: waiting requests of one user leave threads for the requests of other users, however many they are. They
    /// continue when one of the same user's requests is done. Method: at most nine threads. First one user's requests
    /// wait, then another's, then a third one's.
    #[test]
    fn each_user_has_a_share() {
        let pool = Pool::new(9, 1, 2);
        pool.thread_starts();
        let works = |uid| {
            let next = pool.request_read(100, false, false, Some(uid));
            if next != Next::Park {
                pool.will_block(Some(uid));
            }
            next != Next::Park
        };
        let device = Arc::new(rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, 0.into()).expect("null"));
        let park = |unique, uid| {
            let parked =
                Parked { device: device.clone(), unique, bytes: Buf::zeroed(100), urgent: false, share: Some(uid) };
            assert!(pool.park(parked).is_none());
        };
        assert_eq!((0..4).map(|_| works(1)).collect::<Vec<_>>(), [true; 4]);
        assert!(!works(1));
        park(7, 1);
        assert!(works(2) && works(2), "another user's do");
        assert!(!works(2));
        park(8, 2);
        assert!(works(3), "and a third one's");
        assert_eq!(pool.request_read(100, false, false, None), Next::Work, "what ends waits is let through");
        assert!(pool.work_done().is_none(), "it was nobody's turn");
        pool.unblocked(2);
        assert_eq!(pool.work_done().map(|p| p.unique), Some(8), "whose request is done has the next one");
    }

    /// Goal: requests for pages find a thread while all others wait; waiting requests for pages are served first; and
    /// the threads for them serve no other requests. Method: at most three threads, of which two wait. Then come more
    /// requests for pages than there are threads for them, and then these end.
    #[test]
    fn pages_wait_for_no_other_request() {
        let pool = Pool::new(3, 1, 2);
        pool.thread_starts();
        for _ in 0..2 {
            assert_eq!(pool.request_read(100, false, false, Some(0)), Next::Work);
            assert_eq!(pool.will_block(None), Next::SpawnThenWork);
        }
        let device = Arc::new(rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, 0.into()).expect("null"));
        let park = |unique, urgent| {
            assert_eq!(pool.request_read(100, false, urgent, None), Next::Park, "{unique}");
            let bytes = Buf::zeroed(100);
            assert!(pool.park(Parked { device: device.clone(), unique, bytes, urgent, share: None }).is_none());
        };
        park(1, false);
        for _ in 0..PAGE_THREADS {
            assert_eq!(pool.request_read(100, false, true, None), Next::SpawnThenWork);
            assert_eq!(pool.will_block(None), Next::Work, "the next one reads");
        }
        assert_eq!(pool.threads(), 3 + PAGE_THREADS);
        park(2, false);
        park(3, true);
        park(4, true);
        assert_eq!(pool.work_done().map(|p| p.unique), Some(3));
        assert_eq!(pool.work_done().map(|p| p.unique), Some(4));
        for at in 0..PAGE_THREADS {
            assert!(pool.work_done().is_none(), "thread {at} was for pages");
            pool.thread_ended(true);
        }
        assert_eq!((pool.threads(), pool.state.lock().working()), (3, 2));
        assert_eq!(pool.work_done().map(|p| p.unique), Some(1), "a thread as any");
        assert_eq!(pool.work_done().map(|p| p.unique), Some(2));
    }

    /// Goal: a single caller that waits repeatedly causes no second reader, but two callers that wait at the same time
    /// do. Method: the test changes the counts directly.
    #[test]
    fn a_lone_caller_gets_one_reader() {
        let pool = Pool::new(8, 8, 2);
        pool.thread_starts();
        for _ in 0..10 {
            assert_eq!(pool.request_read(100, false, false, Some(0)), Next::Work);
            assert!(pool.is_calm(), "a lone caller's wait");
            assert_eq!(pool.will_block(None), Next::SpawnThenWork);
            // The new reader takes over for good, the old one has nothing to read and ends.
            assert!(pool.work_done().is_none());
            let mut s = pool.state.lock();
            assert_eq!(s.target(2), 1);
            s.reading -= 1;
            s.threads -= 1;
        }
        assert_eq!(pool.request_read(100, false, false, Some(0)), Next::Work);
        assert_eq!(pool.will_block(None), Next::SpawnThenWork);
        assert_eq!(pool.request_read(100, false, false, Some(0)), Next::Work);
        assert_eq!(pool.will_block(None), Next::SpawnThenWork);
        assert_eq!(pool.state.lock().target(2), 2, "two wait at a time");
    }

    /// Goal: short requests are left to one thread. If requests queue, a second thread reads, and if the device is
    /// empty, it stops. Method: the test changes the counts directly.
    #[test]
    fn readers_follow_the_pressure() {
        let pool = Pool::new(8, 0, 2);
        pool.thread_starts();
        for _ in 0..100 {
            assert_eq!(pool.request_read(100, false, false, Some(0)), Next::Work);
            assert!(pool.work_done().is_none());
            assert_eq!(pool.device_empty(), Idle::Read);
        }
        let queued: Vec<_> = (0..PRESSURE_STEP)
            .map(|_| {
                let next = pool.request_read(100, true, false, Some(0));
                assert!(pool.work_done().is_none());
                next
            })
            .collect();
        assert_eq!(queued.last(), Some(&Next::SpawnThenWork));
        assert_eq!(pool.threads(), 2);
        assert_eq!(pool.device_empty(), Idle::Leave);
        pool.thread_ended(false);
        assert_eq!(pool.device_empty(), Idle::Read, "the last reader stays");
    }
}
