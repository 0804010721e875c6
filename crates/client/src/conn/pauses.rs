//! `Pauses`: waiting for some milliseconds, for operations that have no environment of their own.
//!
//! Owns: which tasks wait until when; the I/O half lets the time pass. Invariant: a pause is never shorter than
//! requested, and ends at most `STEP` later while the I/O half runs; a pause that is dropped is removed within the same
//! time. Bound: one entry for each lock that is being returned with pages under it, each read of such pages, and each
//! call that waits for names. Without pauses no timer runs.

use crate::api::Clock;
use crate::inode::Signal;
use amphi_env::Env;
use futures_channel::oneshot;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// How finely time passes.
const STEP: Duration = Duration::from_millis(1);

/// The tasks that wait.
pub(crate) struct Pauses {
    clock: Arc<dyn Clock>,
    waiting: Mutex<Vec<(u64, oneshot::Sender<()>)>>,
    begun: Signal,
    /// The I/O half has ended, so time does not pass any more.
    ended: AtomicBool,
}

impl Pauses {
    /// A state in which no task waits.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Pauses {
        Pauses { clock, waiting: Mutex::default(), begun: Signal::default(), ended: AtomicBool::new(false) }
    }

    /// Returns whether nobody waits.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// Waits for this many nanoseconds, or until the client has stopped.
    pub(crate) async fn pause(&self, ns: u64) {
        if ns == 0 {
            return;
        }
        let (sender, over) = oneshot::channel();
        self.waiting.lock().push((self.clock.now_ns().saturating_add(ns), sender));
        self.begun.notify();
        if !self.ended.load(SeqCst) {
            let _ = over.await;
        }
    }

    /// Ends pauses when their time has come, until the client has stopped.
    pub(crate) async fn run<E: Env>(&self, env: E) {
        let ended = || self.ended.load(SeqCst);
        while !ended() {
            self.begun.until(|| ended() || !self.waiting.lock().is_empty()).await;
            env.sleep(STEP).await;
            let now_ns = self.clock.now_ns();
            // No task waits any more for a pause that was dropped.
            let is_over = |(due_ns, sender): &mut (u64, oneshot::Sender<()>)| *due_ns <= now_ns || sender.is_canceled();
            let over: Vec<_> = self.waiting.lock().extract_if(.., is_over).collect();
            for (_, sender) in over {
                let _ = sender.send(());
            }
        }
    }

    /// Called when the client has stopped: all pauses end.
    pub(crate) fn end(&self) {
        self.ended.store(true, SeqCst);
        self.waiting.lock().clear();
        self.begun.notify();
    }
}
