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
//! Owns: which calls may, and how many. Does not own: what they wait for, the table of requests without a thread
//! (`Later`), what is noted when a change is done (`writes`). What opens or makes files waits on its thread: for those
//! each user has a share of the threads (`session/pool`).
//!
//! Bounds: `DEFERRED_MAX` calls with `DEFERRED_BYTES_MAX` bytes to write; beyond, they keep their threads. The number
//! behind `THREAD_WAIT`: an answer by a task copies its bytes on the thread that all connections share, so it should be
//! rare, and 256 threads are free again after that time.

use super::ClientFs;
use super::patience::Wait;
use crate::{Caller, Later};
use amphi_client::Pending;
use amphi_types::{Errno, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// How long a call waits on its thread.
const THREAD_WAIT: Duration = Duration::from_millis(50);
/// So many small reads wait on threads; those beyond let theirs go at once.
const BRIEF_THREADS: usize = 12;
/// Most calls that wait without a thread; each takes some 2 KiB.
const DEFERRED_MAX: usize = 32768;
/// Most bytes of writes that wait so.
const DEFERRED_BYTES_MAX: usize = 64 << 20;

/// What waits without a thread.
#[derive(Default)]
pub(super) struct Deferred {
    calls: Arc<AtomicUsize>,
    /// Small reads under way.
    brief: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
}

/// A part of a bound, until it is dropped.
struct Counted(Arc<AtomicUsize>, usize);

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

impl ClientFs {
    /// Waits for `pending`. If that takes long, the thread is let go and `answer` gives the answer when it
    /// comes; what is returned then counts for nothing.
    pub(super) fn wait_long<T: Send + 'static>(
        &self,
        caller: &Caller<'_>,
        pending: Pending<T>,
        answer: impl FnOnce(Later, Result<T>) + Send + 'static,
    ) -> Result<T> {
        self.wait_or_defer(caller, pending, 0, answer).unwrap_or(Err(Errno::Intr))
    }

    /// The same, of what keeps `bytes` of a request in memory; `None` when the thread is let go.
    pub(super) fn wait_or_defer<T: Send + 'static>(
        &self,
        caller: &Caller<'_>,
        mut pending: Pending<T>,
        bytes: usize,
        answer: impl FnOnce(Later, Result<T>) + Send + 'static,
    ) -> Option<Result<T>> {
        if let Some(result) = pending.try_take() {
            return Some(result);
        }
        if caller.is_alone()
            && let Some(result) = pending.linger()
        {
            return Some(result);
        }
        caller.will_block();
        let wait = self.patience.begin(caller);
        let pending = match wait.wait_for(pending, THREAD_WAIT) {
            Ok(result) => return Some(result),
            Err(pending) => pending,
        };
        self.leave(caller, wait, pending, bytes, answer).err().map(|(wait, pending)| wait.wait(pending))
    }

    /// As `wait_long`, for few bytes: if many wait so already, the thread is let go at once.
    pub(super) fn wait_briefly<T: Send + 'static>(
        &self,
        caller: &Caller<'_>,
        mut pending: Pending<T>,
        answer: impl FnOnce(Later, Result<T>) + Send + 'static,
    ) -> Result<T> {
        if let Some(result) = pending.try_take() {
            return result;
        }
        let brief = Counted::new(&self.deferred.brief, 1, usize::MAX);
        if self.deferred.brief.load(SeqCst) <= BRIEF_THREADS {
            return self.wait_long(caller, pending, answer);
        }
        let answer = move |later: Later, result| {
            drop(brief);
            answer(later, result);
        };
        match self.leave(caller, self.patience.begin(caller), pending, 0, answer) {
            // It counts for nothing.
            Ok(()) => Err(Errno::Intr),
            Err((wait, pending)) => {
                caller.will_block();
                wait.wait(pending)
            }
        }
    }

    /// Lets the thread go: a task waits instead, and `answer` gives the answer. The operation comes back if too many
    /// calls wait so already.
    fn leave<T: Send + 'static>(
        &self,
        caller: &Caller<'_>,
        wait: Wait,
        pending: Pending<T>,
        bytes: usize,
        answer: impl FnOnce(Later, Result<T>) + Send + 'static,
    ) -> std::result::Result<(), (Wait, Pending<T>)> {
        let counted = Counted::new(&self.deferred.calls, 1, DEFERRED_MAX).zip(Counted::new(
            &self.deferred.bytes,
            bytes,
            DEFERRED_BYTES_MAX,
        ));
        let Some((counted, later)) = counted.and_then(|counted| Some((counted, caller.defer()?))) else {
            return Err((wait, pending));
        };
        self.client.spawn(async move {
            let result = wait.go_on(pending, &later).await;
            answer(later, result);
            drop(counted);
        });
        Ok(())
    }
}
