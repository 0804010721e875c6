//! Calls that wait long, without occupying a thread.
//!
//! Any user who may read a file can make its reads wait for hours, for a group that holds the file or for a mount that
//! does not answer. The same holds for writes and truncates. If each such call kept one of the mount's threads, some
//! hundred of them would stop every call of every user. So a call on a file's bytes (read, write, truncate,
//! reservation, copy, search for holes) releases its thread after `THREAD_WAIT`, and a task answers it.
//!
//! If many small reads wait for a disk at the same time, some of them wait without a thread from the start. Waking a
//! thread for each of them, and another one to read the device meanwhile, would cost more than the task. For a few
//! reads the opposite is better. Reads of 4 KiB by tasks instead of threads were measured: a single one takes three
//! times as long, and eight at a time take a quarter longer. With 32 reads at a time, a tenth to a third more reads are
//! done in a second.
//!
//! Owns: how many calls may wait in this way. Does not own: which calls do so and how they release their threads
//! (`client_fs/deferred`), what they wait for, the table of requests without a thread (`Later`), and the updates when a
//! change is done (`client_fs/writes`). Calls that open or make files wait on their threads, of which each user has a
//! share (`session/pool`).
//!
//! Bounds: `DEFERRED_MAX` calls with `DEFERRED_BYTES_MAX` bytes to write. Further calls keep their threads. The number
//! behind `THREAD_WAIT`: a task copies the bytes of its answer on the thread that all connections share, so this should
//! be rare. After that time all 256 threads are free again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// How long a call waits on its thread before it gives the thread back.
pub(crate) const THREAD_WAIT: Duration = Duration::from_millis(50);
/// This many small reads wait on threads. Further small reads release their threads at once.
const BRIEF_THREADS: usize = 12;
/// Most calls that wait without a thread, at some 2 KiB each.
const DEFERRED_MAX: usize = 32768;
/// Most bytes of writes that wait without a thread.
const DEFERRED_BYTES_MAX: usize = 64 << 20;

/// Counters of calls that wait without a thread.
#[derive(Default)]
pub(crate) struct Deferred {
    calls: Arc<AtomicUsize>,
    /// Small reads that are waiting.
    brief: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
}

/// A share of a bound, held until it is dropped.
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
    /// Registers a call that is about to wait without a thread, with `bytes` of its request in memory. `None`: too many
    /// calls do already.
    pub(crate) fn call(&self, bytes: usize) -> Option<[Counted; 2]> {
        let call = Counted::new(&self.calls, 1, DEFERRED_MAX)?;
        Some([call, Counted::new(&self.bytes, bytes, DEFERRED_BYTES_MAX)?])
    }

    /// Registers a small read that waits.
    pub(crate) fn brief(&self) -> Option<Counted> {
        Counted::new(&self.brief, 1, usize::MAX)
    }

    /// Returns whether the number of waiting small reads is so high that further ones release their threads at once.
    pub(crate) fn are_many_brief(&self) -> bool {
        self.brief.load(SeqCst) > BRIEF_THREADS
    }
}
