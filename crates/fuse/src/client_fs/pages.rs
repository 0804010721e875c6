//! Pages that the kernel caches, and how they are taken back.
//!
//! Owns: the threads that tell the kernel to drop pages. Does not own: when (the client, before a lock goes and where a write
//! meets pages).
//! Invariants: the threads serve no request: the kernel writes dirty mapped pages back while the call blocks, and waits for reads of
//! them that are under way, and these requests are served by others. Pages that go with a lock have a thread of their own:
//! requests for those do not wait for locks of the cluster, while the other thread may wait for requests that do.

use crate::Notifier;
use amphi_client::KernelPages;
use amphi_types::{ByteRange, Errno, Ino};
use parking_lot::Mutex;
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;

struct Job {
    ino: Ino,
    range: ByteRange,
    done: Box<dyn FnOnce() + Send>,
}

/// The way to a thread.
struct Sender(Mutex<mpsc::Sender<Job>>);

impl Sender {
    fn send(&self, job: Job) {
        let sent = self.0.lock().send(job);
        if let Err(mpsc::SendError(job)) = sent {
            // The mount has ended, and its pages with it.
            (job.done)();
        }
    }
}

/// The ways to both threads.
struct Senders {
    with_locks: Sender,
    overwritten: Sender,
}

impl KernelPages for Senders {
    fn drop_pages(&self, ino: Ino, range: ByteRange, done: Box<dyn FnOnce() + Send>) {
        self.with_locks.send(Job { ino, range, done });
    }

    fn drop_overwritten(&self, ino: Ino, range: ByteRange, done: Box<dyn FnOnce() + Send>) {
        self.overwritten.send(Job { ino, range, done });
    }
}

/// The threads of a mount.
#[derive(Default)]
pub(super) struct Pages {
    started: Mutex<Option<Started>>,
}

struct Started {
    senders: Weak<Senders>,
    threads: [JoinHandle<()>; 2],
}

impl Pages {
    /// Starts the threads; they end when what is returned has been dropped.
    pub(super) fn start(&self, notifier: Notifier) -> Option<Arc<dyn KernelPages>> {
        let both = start("fuse pages", notifier.clone()).and_then(|one| Ok((one, start("fuse overwrites", notifier)?)));
        let ((with_locks, one), (overwritten, other)) = match both {
            Ok(both) => both,
            Err(e) => {
                tracing::error!("mapped pages will not follow changes of other mounts: no thread: {e}");
                return None;
            }
        };
        let senders = Arc::new(Senders { with_locks, overwritten });
        *self.started.lock() = Some(Started { senders: Arc::downgrade(&senders), threads: [one, other] });
        Some(senders)
    }

    /// Waits for the end of the threads, which begins when nobody holds what `start` returned.
    pub(super) fn stop(&self) {
        if let Some(started) = self.started.lock().take()
            && started.senders.strong_count() == 0
        {
            for thread in started.threads {
                let _ = thread.join();
            }
        }
    }
}

/// A thread that drops what it is told to.
fn start(name: &str, notifier: Notifier) -> std::io::Result<(Sender, JoinHandle<()>)> {
    let (sender, jobs) = mpsc::channel::<Job>();
    let run = move || {
        for job in jobs {
            let len = if job.range.end >= i64::MAX as u64 { 0 } else { job.range.len() };
            match notifier.inval_inode(job.ino, job.range.start, len) {
                Ok(()) | Err(Errno::NotConnected) => {}
                Err(e) => tracing::warn!(ino = %job.ino, "the kernel did not drop its pages: {e}"),
            }
            (job.done)();
        }
    };
    let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
    Ok((Sender(Mutex::new(sender)), thread))
}
