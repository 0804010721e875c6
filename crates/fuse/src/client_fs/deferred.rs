//! Calls that wait long give their thread back, and a task answers them later.
//!
//! Owns: when a call releases its thread, and the task that waits in its place. Does not own: the bounds on such calls
//! (`front/deferred`).

use super::ClientFs;
use crate::front::deferred::THREAD_WAIT;
use crate::front::patience::Wait;
use crate::later::Later;
use crate::request::Caller;
use amphi_client::Pending;
use amphi_types::{Errno, Result};

impl ClientFs {
    /// Waits for `pending`. If that takes long, the caller's thread is released and a task calls `answer` when the
    /// result is there. The value that this function returns is then ignored.
    pub(super) fn wait_long<T: Send + 'static>(
        &self,
        caller: &Caller<'_>,
        pending: Pending<T>,
        answer: impl FnOnce(Later, Result<T>) + Send + 'static,
    ) -> Result<T> {
        self.wait_or_defer(caller, pending, 0, answer).unwrap_or(Err(Errno::Intr))
    }

    /// Works as `wait_long`, for a request that keeps `bytes` in memory. `None`: the thread has been returned.
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

    /// Works as `wait_long`, for small reads. If many of them already wait on threads, the thread is released at once.
    pub(super) fn wait_briefly<T: Send + 'static>(
        &self,
        caller: &Caller<'_>,
        mut pending: Pending<T>,
        answer: impl FnOnce(Later, Result<T>) + Send + 'static,
    ) -> Result<T> {
        if let Some(result) = pending.try_take() {
            return result;
        }
        let brief = self.deferred.brief();
        if !self.deferred.are_many_brief() {
            return self.wait_long(caller, pending, answer);
        }
        let answer = move |later: Later, result| {
            drop(brief);
            answer(later, result);
        };
        match self.leave(caller, self.patience.begin(caller), pending, 0, answer) {
            // A task answers, so this value is ignored.
            Ok(()) => Err(Errno::Intr),
            Err((wait, pending)) => {
                caller.will_block();
                wait.wait(pending)
            }
        }
    }

    /// Gives the thread back: a task waits for `pending` and calls `answer`. If too many calls wait in this way
    /// already, the operation is returned as the error.
    fn leave<T: Send + 'static>(
        &self,
        caller: &Caller<'_>,
        wait: Wait,
        pending: Pending<T>,
        bytes: usize,
        answer: impl FnOnce(Later, Result<T>) + Send + 'static,
    ) -> std::result::Result<(), (Wait, Pending<T>)> {
        let Some((counted, later)) = self.deferred.call(bytes).and_then(|counted| Some((counted, caller.defer()?)))
        else {
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
