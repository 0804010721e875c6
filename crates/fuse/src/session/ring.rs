//! `Ring`: requests that come through io_uring, each to a thread on the core of its caller.
//!
//! Owns: the queues, one for each core the machine may have, how many threads serve each, and their end. Does not own: an entry's memory and the
//! words it exchanges with the kernel (`entry`), what a thread does with a request (`serve`), what the kernel forgets (`watch`).
//!
//! The number behind it: who reads the device sleeps on some core, and the one who calls on another; to wake a sleeping core takes 30 to 60 us. The
//! kernel gives a request of this kind to a thread that is bound to the core of the caller: one core goes from one to the
//! other in 3.5 us, always. A thread has one entry, and the kernel takes the entry that came back last: a lone caller is served by one thread.
//!
//! Invariants: an entry of each queue waits for a request, or is about to, unless no further thread can be had: so a handler may block
//! without a word, and for as long as it likes. What the kernel sends otherwise than by the ring (forgets, interrupts) is read from the device.
//! Bounds: as many threads as callers waited at once, and one more for each core; `threads_max` is about those that read the device. A limit
//! would hang up processes that end: the kernel lets them wait for the answer to their last FLUSH, come what may.

mod entry;
mod serve;
mod watch;

use super::Shared;
pub(super) use entry::Entry;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use watch::Watch;

/// Payload of the largest request, bytes: it is copied once more on its way and has to stay in the processor's cache meanwhile. Reads of 1 MiB
/// come at 2.3 GB/s in such pieces, in larger ones at 1.7; smaller ones slow reads past the cache.
pub(super) const REQUEST_MAX_BYTES: usize = 512 << 10;
const PAGE: usize = 4096;

/// One queue of requests: those of callers on one core.
#[derive(Debug, Default)]
struct Queue {
    /// Entries that wait for a request.
    waiting: AtomicUsize,
    /// How many new entries it has got, if none has come back since and found nothing (`watch`); else 0.
    short: AtomicU64,
}

/// The queues of a session.
#[derive(Debug)]
pub(super) struct Ring {
    queues: Box<[Queue]>,
    /// Handlers at work.
    busy: AtomicUsize,
    payload_bytes: usize,
    threads: Mutex<usize>,
    empty: Condvar,
    ended: AtomicBool,
    watch: Watch,
    /// Threads that call only to make an entry come back, and how many there are.
    nudgers: Mutex<Vec<u32>>,
    nudging: AtomicUsize,
    /// Entries that came later.
    later: AtomicU64,
    /// That there will be no more threads was said.
    warned: AtomicBool,
}

/// Entries for all queues, before the kernel is told that they will come: from then on it sends nothing until it has them.
pub(super) fn prepare(payload_bytes: usize) -> io::Result<Vec<Entry>> {
    (0..cores()).map(|queue| Entry::new(queue, payload_bytes)).collect()
}

/// Cores that the machine may ever have: the kernel wants a queue for each.
fn cores() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit([',', '-']).next().and_then(|n| n.parse::<usize>().ok());
    last.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), |last| last + 1)
}

impl Ring {
    pub(super) fn new(entries: &[Entry]) -> Ring {
        Ring {
            queues: entries.iter().map(|_| Queue::default()).collect(),
            busy: AtomicUsize::new(0),
            payload_bytes: entries.first().map_or(0, Entry::payload_bytes),
            threads: Mutex::new(0),
            empty: Condvar::new(),
            ended: AtomicBool::new(false),
            watch: Watch::default(),
            nudgers: Mutex::default(),
            nudging: AtomicUsize::new(0),
            later: AtomicU64::new(0),
            warned: AtomicBool::new(false),
        }
    }

    /// Threads at present.
    pub(super) fn threads(&self) -> usize {
        *self.threads.lock()
    }

    /// Waits until all threads have ended.
    pub(super) fn wait_empty(&self) {
        let mut threads = self.threads.lock();
        while *threads > 0 {
            self.empty.wait(&mut threads);
        }
    }

    /// A thread has taken a request of `queue`.
    fn begin(&self, queue: usize) {
        self.queues[queue].waiting.fetch_sub(1, SeqCst);
        self.busy.fetch_add(1, SeqCst);
    }

    fn short_queues(&self) -> Vec<usize> {
        (0..self.queues.len()).filter(|&queue| self.queues[queue].short.load(SeqCst) != 0).collect()
    }

    /// Waits until the watch has had its turn, and none of its calls is under way: those need the mount.
    pub(super) fn rests(&self) {
        self.watch.rests(self);
    }

    /// Whether `tid` calls only to make an entry come back.
    fn is_nudge(&self, tid: u32) -> bool {
        self.nudging.load(SeqCst) > 0 && self.nudgers.lock().contains(&tid)
    }

    fn is_alone(&self) -> bool {
        self.busy.load(SeqCst) <= 1
    }
}

/// Starts a thread for each of `entries`, and the watch over what is mounted at `mount`.
pub(super) fn start(shared: &Arc<Shared>, ring: &Arc<Ring>, entries: Vec<Entry>, mount: &Path) -> io::Result<()> {
    *ring.threads.lock() += 1;
    let (for_watch, counted, mount) = (shared.clone(), Counted(ring.clone()), mount.to_path_buf());
    let watch = move || {
        counted.0.watch.run(&counted.0, &for_watch.in_hand, &mount);
        drop(for_watch);
    };
    std::thread::Builder::new().name("amphi-fuse-ring".into()).spawn(watch)?;
    entries.into_iter().try_for_each(|entry| start_one(shared, ring, entry, Since::Begin))
}

/// Whether an entry was there before the first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Begin,
    Later,
}

fn start_one(shared: &Arc<Shared>, ring: &Arc<Ring>, entry: Entry, since: Since) -> io::Result<()> {
    let queue = entry.queue();
    *ring.threads.lock() += 1;
    ring.queues[queue].waiting.fetch_add(1, SeqCst);
    let (shared, for_thread) = (shared.clone(), ring.clone());
    let spawned = std::thread::Builder::new().name(format!("amphi-fuse-{queue}")).spawn(move || {
        // Last of all, when the file system is let go of.
        let _counted = Counted(for_thread.clone());
        serve::run(&shared, &for_thread, entry, since);
        drop(shared);
    });
    spawned.map(drop).inspect_err(|_| {
        ring.queues[queue].waiting.fetch_sub(1, SeqCst);
        drop(Counted(ring.clone()));
    })
}

/// If no entry of `queue` waits for a request, another one will.
fn ensure_waiting(shared: &Arc<Shared>, ring: &Arc<Ring>, queue: usize) {
    if ring.queues[queue].waiting.load(SeqCst) > 0 || ring.ended.load(SeqCst) {
        return;
    }
    let started = Entry::new(queue, ring.payload_bytes).and_then(|entry| start_one(shared, ring, entry, Since::Later));
    if let Err(e) = started
        && !ring.warned.swap(true, SeqCst)
    {
        tracing::warn!(error = %e, "no further thread for requests; callers may wait for each other");
    }
}

/// Counts a thread out.
struct Counted(Arc<Ring>);

impl Drop for Counted {
    fn drop(&mut self) {
        let mut threads = self.0.threads.lock();
        *threads -= 1;
        if *threads == 0 {
            self.0.empty.notify_all();
        }
    }
}

/// The device's number, for commands.
fn raw(device: &OwnedFd) -> i32 {
    device.as_raw_fd()
}
