//! Calls that wait for long, without a thread that waits with them.
//!
//! Whoever may read a file may have its reads wait for hours, for a group that has the file or for a mount that does not answer. If each of them kept one
//! of the mount's threads, some hundred of them would stop every call of every user. So a read, or a search for data, lets its thread go
//! after `THREAD_WAIT`, and is answered by a task.
//!
//! Owns: which calls may, and how many. Does not own: what they wait for, the table of requests without a thread (`Later`). What changes a file
//! waits on its thread: for those each user has a share of the threads (`session/pool`).
//! Bound: `DEFERRED_MAX` calls; beyond, they keep their threads. The number behind `THREAD_WAIT`: an answer by
//! a task copies its bytes on the thread that all connections share, so it should be rare, and 256 threads are free again after that time.

use super::ClientFs;
use crate::{Caller, Later};
use amphi_client::Pending;
use amphi_types::{Errno, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// How long a call waits on its thread.
const THREAD_WAIT: Duration = Duration::from_millis(50);
/// Most calls that wait without a thread; each takes some 2 KiB.
const DEFERRED_MAX: usize = 32768;

/// What waits without a thread.
#[derive(Default)]
pub(super) struct Deferred {
    calls: Arc<AtomicUsize>,
}

/// One of a bounded number, until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>, most: usize) -> Option<Counted> {
        count.fetch_update(SeqCst, SeqCst, |now| (now < most).then_some(now + 1)).ok()?;
        Some(Counted(count.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl ClientFs {
    /// Waits for `pending`. If that takes long, the thread is let go and `answer` gives the answer when it comes; what is returned then counts
    /// for nothing.
    pub(super) fn wait_long<T: Send + 'static>(
        &self,
        caller: &Caller<'_>,
        mut pending: Pending<T>,
        answer: impl FnOnce(Later, Result<T>) + Send + 'static,
    ) -> Result<T> {
        if let Some(result) = pending.try_take() {
            return result;
        }
        if caller.is_alone()
            && let Some(result) = pending.linger()
        {
            return result;
        }
        caller.will_block();
        let wait = self.patience.begin(caller);
        let pending = match wait.wait_for(pending, THREAD_WAIT) {
            Ok(result) => return result,
            Err(pending) => pending,
        };
        let counted = Counted::new(&self.deferred.calls, DEFERRED_MAX);
        let Some((counted, later)) = counted.and_then(|counted| Some((counted, caller.defer()?))) else {
            return wait.wait(pending);
        };
        self.client.spawn(async move {
            let result = wait.go_on(pending, &later).await;
            answer(later, result);
            drop(counted);
        });
        Err(Errno::Intr)
    }
}
