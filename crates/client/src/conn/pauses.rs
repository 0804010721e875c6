//! `Pauses`: waiting for some milliseconds, for operations that have no environment of their own.
//!
//! Owns: who waits until when; the I/O half lets the time pass. Invariant: a pause is never shorter than asked for, and
//! ends at most `STEP` later while the I/O half runs. Bound: one entry for each lock that is given back with pages
//! under it and each read of such pages. Without pauses nothing wakes.

use crate::core::Core;
use crate::inode::Signal;
use amphi_env::Env;
use futures_channel::oneshot;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

/// How finely time passes.
const STEP: Duration = Duration::from_millis(1);

/// Who waits.
#[derive(Default)]
pub(crate) struct Pauses {
    waiting: Mutex<Vec<(u64, oneshot::Sender<()>)>>,
    begun: Signal,
}

impl Pauses {
    /// The client has stopped.
    pub(crate) fn end(&self) {
        self.waiting.lock().clear();
        self.begun.notify();
    }
}

/// Waits for so many nanoseconds, or until the client has stopped.
pub(crate) async fn pause(core: &Core, ns: u64) {
    if ns == 0 {
        return;
    }
    let (sender, over) = oneshot::channel();
    core.pauses.waiting.lock().push((core.clock.now_ns().saturating_add(ns), sender));
    core.pauses.begun.notify();
    if !core.stopped.load(Acquire) {
        let _ = over.await;
    }
}

/// Ends pauses when their time has come.
pub(crate) async fn run<E: Env>(env: E, core: Arc<Core>) {
    let (pauses, stopped) = (&core.pauses, || core.stopped.load(Acquire));
    while !stopped() {
        pauses.begun.until(|| stopped() || !pauses.waiting.lock().is_empty()).await;
        env.sleep(STEP).await;
        let now_ns = core.clock.now_ns();
        let over: Vec<_> = pauses.waiting.lock().extract_if(.., |(due_ns, _)| *due_ns <= now_ns).collect();
        for (_, sender) in over {
            let _ = sender.send(());
        }
    }
}
