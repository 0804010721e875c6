//! Pages that the kernel caches, and how they are taken back.
//!
//! Owns: a thread that tells the kernel to drop pages. Does not own: when (the client, before a lock goes).
//! Invariant: the thread serves no request: the kernel writes dirty mapped pages back while the call blocks, and these
//! writes are served by others.

use crate::Notifier;
use amphi_client::KernelPages;
use amphi_types::{ByteRange, Errno, Ino};
use parking_lot::Mutex;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

struct Job {
    ino: Ino,
    range: ByteRange,
    done: Box<dyn FnOnce() + Send>,
}

/// The way to the thread.
struct Sender(Mutex<mpsc::Sender<Job>>);

impl KernelPages for Sender {
    fn drop_pages(&self, ino: Ino, range: ByteRange, done: Box<dyn FnOnce() + Send>) {
        let sent = self.0.lock().send(Job { ino, range, done });
        if let Err(mpsc::SendError(job)) = sent {
            // The mount has ended, and its pages with it.
            (job.done)();
        }
    }
}

/// The thread of a mount.
#[derive(Default)]
pub(super) struct Pages {
    thread: Mutex<Option<(std::sync::Weak<Sender>, JoinHandle<()>)>>,
}

impl Pages {
    /// Starts the thread; it ends when what is returned has been dropped.
    pub(super) fn start(&self, notifier: Notifier) -> Option<Arc<dyn KernelPages>> {
        let (sender, jobs) = mpsc::channel::<Job>();
        let sender = Arc::new(Sender(Mutex::new(sender)));
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
        let thread = match std::thread::Builder::new().name("fuse pages".into()).spawn(run) {
            Ok(thread) => thread,
            Err(e) => {
                tracing::error!("mapped pages will not follow changes of other mounts: no thread: {e}");
                return None;
            }
        };
        *self.thread.lock() = Some((Arc::downgrade(&sender), thread));
        Some(sender)
    }

    /// Waits for the end of the thread, which begins when nobody holds what `start` returned.
    pub(super) fn stop(&self) {
        if let Some((sender, thread)) = self.thread.lock().take()
            && sender.strong_count() == 0
        {
            let _ = thread.join();
        }
    }
}
