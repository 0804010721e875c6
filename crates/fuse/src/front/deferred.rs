//! Calls that wait for long, without a thread that waits with them.
//!
//! Whoever may read a file may have its reads wait for hours, for a group that has the file or for a mount that does
//! not answer, and whoever may write it the same of writes and truncates. If each of them kept one of the mount's
//! threads, some hundred of them would stop every call of every user. So a call on a file's bytes (read, write,
//! truncate, reservation, copy, search for holes) lets its thread go after `THREAD_WAIT`, and is answered by a task.
//!
//! Of many small reads that wait for a disk at the same time some wait without a thread from the start: waking a thread
//! for each, and another one to read the device meanwhile, costs more than the task. With few it is the other way round
//! (measured: a lone 4 KiB read by a task takes three times as long, eight at a time take a quarter longer, of 32 at a
//! time a tenth to a third more are done in a second).
//!
//! Owns: how many calls may. Does not own: which do and how they are let go (`client_fs/deferred`), what they wait for,
//! the table of requests without a thread (`Later`), what is noted when a change is done (`client_fs/writes`). What
//! opens or makes files waits on its thread: for those each user has a share of the threads (`session/pool`).
//!
//! Bounds: `DEFERRED_MAX` calls with `DEFERRED_BYTES_MAX` bytes to write; beyond, they keep their threads. The number
//! behind `THREAD_WAIT`: an answer by a task copies its bytes on the thread that all connections share, so it should be
//! rare, and 256 threads are free again after that time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// How long a call waits on its thread.
pub(crate) const THREAD_WAIT: Duration = Duration::from_millis(50);
/// So many small reads wait on threads; those beyond let theirs go at once.
const BRIEF_THREADS: usize = 12;
/// Most calls that wait without a thread; each takes some 2 KiB.
const DEFERRED_MAX: usize = 32768;
/// Most bytes of writes that wait so.
const DEFERRED_BYTES_MAX: usize = 64 << 20;

/// What waits without a thread.
#[derive(Default)]
pub(crate) struct Deferred {
    calls: Arc<AtomicUsize>,
    /// Small reads under way.
    brief: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
}

/// A part of a bound, until it is dropped.
pub(crate) struct Counted(Arc<AtomicUsize>, usize);

impl Counted {
    fn new(count: &Arc<AtomicUsize>, by: usize, most: usize) -> Option<Counted> {
        let more = |now: usize| now.checked_add(by).filter(|sum| *sum <= most);
        count.fetch_update(SeqCst, SeqCst, more).ok()?;
        Some(Counted(count.clone(), by))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, SeqCst);
    }
}

impl Deferred {
    /// A call is about to wait without a thread, with so many bytes of its request in memory. None if too many do.
    pub(crate) fn call(&self, bytes: usize) -> Option<[Counted; 2]> {
        let call = Counted::new(&self.calls, 1, DEFERRED_MAX)?;
        Some([call, Counted::new(&self.bytes, bytes, DEFERRED_BYTES_MAX)?])
    }

    /// A small read waits.
    pub(crate) fn brief(&self) -> Option<Counted> {
        Counted::new(&self.brief, 1, usize::MAX)
    }

    /// Whether so many small reads wait that the next ones let their threads go at once.
    pub(crate) fn are_many_brief(&self) -> bool {
        self.brief.load(SeqCst) > BRIEF_THREADS
    }
}
