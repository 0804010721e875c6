//! Dropping file pages, attributes and names that the kernel caches.
//!
//! Owns: the threads that tell the kernel to drop pages. Does not own: when that happens (the client decides, before it
//! returns a lock and where a write meets pages).
//!
//! Invariants:
//!
//! * The threads that drop pages serve no request. While a drop blocks, the kernel writes back dirty mapped pages and
//!   waits for reads of pages that are under way. Other threads have to serve these requests.
//! * Pages that go with a lock have threads of their own. Requests for those pages wait for no lock of the cluster.
//!   Such requests may delay the thread for overwritten pages.
//! * A drop may wait for as long as a truncate of its file is unanswered. Drops of other files do not wait behind it,
//!   unless `DROPPERS_MAX` drops are waiting.

use super::kept_listings::KeptListings;
use super::moved::Moved;
use super::names::lender::{Lender, NewPlace};
use crate::notify::Notifier;
use amphi_client::{KernelPages, LentName, NameShows};
use amphi_types::{ByteRange, Errno, Ino};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most files whose pages are dropped at a time because their lock is being returned.
pub(crate) const DROPPERS_MAX: usize = 48;
/// Threads for such drops that are kept while there is nothing to drop.
const DROPPERS_IDLE: usize = 1;

struct Job {
    ino: Ino,
    range: ByteRange,
    done: Box<dyn FnOnce() + Send>,
}

/// The sending end of a thread's queue.
struct Sender(Mutex<mpsc::Sender<Job>>);

impl Sender {
    fn send(&self, job: Job) {
        let sent = self.0.lock().send(job);
        if let Err(mpsc::SendError(job)) = sent {
            // The mount has ended, and its pages have gone with it.
            (job.done)();
        }
    }
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    ended: bool,
}

/// Threads that drop pages; their number follows the number of jobs.
struct Droppers {
    notifier: Notifier,
    names: Arc<Lender>,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Droppers {
    fn send(self: &Arc<Self>, job: Job) {
        let mut waiting = self.waiting.lock();
        waiting.jobs.push_back(job);
        if waiting.idle >= waiting.jobs.len() || waiting.threads >= DROPPERS_MAX {
            drop(waiting);
            self.changed.notify_one();
            return;
        }
        waiting.threads += 1;
        assert!(waiting.threads <= DROPPERS_MAX, "{} threads drop pages, at most {DROPPERS_MAX}", waiting.threads);
        drop(waiting);
        if let Err(e) = self.start() {
            tracing::warn!("no further thread for pages of the kernel: {e}");
            self.waiting.lock().threads -= 1;
        }
    }

    /// Starts a thread that was counted already.
    fn start(self: &Arc<Self>) -> std::io::Result<()> {
        let own = self.clone();
        std::thread::Builder::new().name("fuse pages".into()).spawn(move || own.run()).map(drop)
    }

    fn run(&self) {
        let mut waiting = self.waiting.lock();
        loop {
            while let Some(job) = waiting.jobs.pop_front() {
                drop(waiting);
                drop_now(&self.notifier, &self.names, job);
                waiting = self.waiting.lock();
            }
            if waiting.ended || waiting.idle >= DROPPERS_IDLE {
                break;
            }
            waiting.idle += 1;
            self.changed.wait(&mut waiting);
            waiting.idle -= 1;
        }
        assert!(waiting.threads > waiting.idle, "{} threads, {} of them idle", waiting.threads, waiting.idle);
        waiting.threads -= 1;
        drop(waiting);
        self.changed.notify_all();
    }

    /// No more jobs will be added. Waits until the jobs that are queued are done.
    fn end(&self) {
        let mut waiting = self.waiting.lock();
        waiting.ended = true;
        self.changed.notify_all();
        while waiting.threads > 0 {
            self.changed.wait(&mut waiting);
        }
    }
}

/// The sending ends of the threads' queues.
struct Senders {
    with_locks: Arc<Droppers>,
    overwritten: Sender,
    listings: Arc<KeptListings>,
    moved: Arc<Moved>,
    names: Arc<Lender>,
}

impl KernelPages for Senders {
    fn drop_pages(&self, ino: Ino, range: ByteRange, done: Box<dyn FnOnce() + Send>) {
        self.with_locks.send(Job { ino, range, done });
    }

    fn drop_overwritten(&self, ino: Ino, range: ByteRange, done: Box<dyn FnOnce() + Send>) {
        self.overwritten.send(Job { ino, range, done });
    }

    fn drop_attributes(&self, ino: Ino) -> bool {
        self.forget(ino)
    }

    fn follows_sizes(&self) -> bool {
        self.names.sizes.are_followed()
    }

    fn take_names(&self, names: Vec<LentName>, done: Box<dyn FnOnce() + Send>) {
        // An invalidation thread's walk has to begin with a request for the directory's attributes, so the kernel is
        // made to drop these first.
        let others = names.iter().filter(|lent| !matches!(lent.shows, NameShows::Directory(_)));
        for dir in others.map(|lent| lent.dir).collect::<BTreeSet<Ino>>() {
            self.forget(dir);
        }
        self.names.take(names, done);
    }

    fn show_directory(&self, ino: Ino, dir: Ino, name: &[u8], done: Box<dyn FnOnce() + Send>) {
        let (node, dir) = (self.moved.node(ino), self.moved.node(dir));
        // If the kernel does not know the inode, it has no place for it either.
        if self.with_locks.notifier.inval_attr(node) != Ok(true) {
            return done();
        }
        let (moved, name): (_, Box<[u8]>) = (self.moved.clone(), name.into());
        let place = NewPlace { ino, dir, name: name.clone() };
        self.names.show(place, Box::new(move || moved.placed(ino, dir, &name, node)), done);
    }

    fn drop_listings(&self) {
        let whole = ByteRange::new(0, u64::MAX);
        for ino in self.listings.open() {
            // The caller does not wait for this drop.
            self.with_locks.send(Job { ino, range: whole, done: Box::new(|| {}) });
        }
    }
}

impl Senders {
    /// Makes the kernel drop the attributes of an inode. Returns whether it knows the inode.
    fn forget(&self, ino: Ino) -> bool {
        self.names.sizes.takes_back(ino);
        self.with_locks.notifier.inval_attr(ino).unwrap_or_else(|e| {
            // Without a mount there is nothing to drop.
            if e != Errno::NotConnected {
                tracing::warn!(%ino, "the kernel did not forget attributes: {e}");
            }
            true
        })
    }
}

/// The threads of a mount.
#[derive(Default)]
pub(crate) struct Pages {
    started: Mutex<Option<Started>>,
}

struct Started {
    senders: Weak<Senders>,
    droppers: Arc<Droppers>,
    overwrites: JoinHandle<()>,
}

impl Pages {
    /// Starts the threads. They end when the returned value has been dropped.
    pub(crate) fn start(
        &self,
        notifier: Notifier,
        listings: Arc<KeptListings>,
        moved: Arc<Moved>,
        names: Arc<Lender>,
    ) -> Option<Arc<dyn KernelPages>> {
        let waiting = Mutex::new(Waiting { threads: 1, ..Waiting::default() });
        let droppers =
            Arc::new(Droppers { notifier: notifier.clone(), names: names.clone(), waiting, changed: Condvar::new() });
        let started = droppers.start().and_then(|()| start("fuse overwrites", notifier, names.clone()));
        let (overwritten, overwrites) = match started {
            Ok(started) => started,
            Err(e) => {
                tracing::error!("mapped pages will not follow changes of other mounts: no thread: {e}");
                return None;
            }
        };
        let senders = Arc::new(Senders { with_locks: droppers.clone(), overwritten, listings, moved, names });
        *self.started.lock() = Some(Started { senders: Arc::downgrade(&senders), droppers, overwrites });
        Some(senders)
    }

    /// Drops the kernel's pages of an open directory, and waits for that, `most` at the longest.
    pub(crate) fn drop_listing(&self, ino: Ino, most: Duration) {
        let droppers = self.started.lock().as_ref().map(|started| started.droppers.clone());
        let Some(droppers) = droppers else { return };
        let (done, is_done) = mpsc::channel();
        let done = Box::new(move || {
            // The waiting thread may have given up.
            let _ = done.send(());
        });
        droppers.send(Job { ino, range: ByteRange::new(0, u64::MAX), done });
        let _ = is_done.recv_timeout(most);
    }

    /// Waits for the end of the threads, which begins when what `start` returned has been dropped.
    pub(crate) fn stop(&self) {
        if let Some(started) = self.started.lock().take()
            && started.senders.strong_count() == 0
        {
            started.droppers.end();
            let _ = started.overwrites.join();
        }
    }
}

/// Starts a thread that carries out the jobs of its queue.
fn start(name: &str, notifier: Notifier, names: Arc<Lender>) -> std::io::Result<(Sender, JoinHandle<()>)> {
    let (sender, jobs) = mpsc::channel::<Job>();
    let run = move || jobs.into_iter().for_each(|job| drop_now(&notifier, &names, job));
    let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
    Ok((Sender(Mutex::new(sender)), thread))
}

fn drop_now(notifier: &Notifier, names: &Lender, job: Job) {
    names.sizes.takes_pages_back(job.ino);
    let len = if job.range.end >= i64::MAX as u64 { 0 } else { job.range.len() };
    match notifier.inval_inode(job.ino, job.range.start, len) {
        Ok(()) | Err(Errno::NotConnected) => {}
        Err(e) => tracing::warn!(ino = %job.ino, "the kernel did not drop its pages: {e}"),
    }
    (job.done)();
}
