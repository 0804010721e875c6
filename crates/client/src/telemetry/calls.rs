//! Notes about a call that is being recorded: the reason why the hybrid decision chose its way, and the events for
//! which it waited.
//!
//! Owns: these notes, and how they follow a call from the thread that serves it to the task that finishes it. Does not
//! own: the recording (`record`), and the places that decide or wait and write these notes.
//!
//! The notes of the call that runs on a thread belong to that thread. An operation that continues on another thread
//! takes them along (`Noted`). If nothing is recorded there are no notes, which costs one read of a thread-local
//! variable.

use crate::policy::decision::Reason;
use amphi_trace::Course;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

/// The event for which a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A lock of the cluster.
    Lock,
    /// Bytes on their way into the cache.
    Fill,
    /// An answer of a server to any other request.
    Server,
}

/// Notes of one call.
#[derive(Debug, Default)]
pub struct CallNotes {
    /// Number of the reason plus 1; 0 means that nothing was decided.
    reason: AtomicU8,
    lock_ns: AtomicU64,
    fill_ns: AtomicU64,
    server_ns: AtomicU64,
}

impl CallNotes {
    /// The content of the notes: the number of the last reason in [`Reason::ALL`], and the waits in parts that do not
    /// overlap. Fills and locks consist of answers too, but are counted as fills and locks.
    pub fn course(&self) -> Course {
        let reason = self.reason.load(Relaxed).checked_sub(1);
        let lock_ns = self.lock_ns.load(Relaxed);
        let fill_ns = self.fill_ns.load(Relaxed).saturating_sub(lock_ns);
        let server_ns = self.server_ns.load(Relaxed).saturating_sub(lock_ns.saturating_add(fill_ns));
        Course { reason, lock_ns, fill_ns, server_ns }
    }

    /// Returns whether nothing was noted.
    pub fn is_empty(&self) -> bool {
        self.reason.load(Relaxed) == 0
            && [&self.lock_ns, &self.fill_ns, &self.server_ns].into_iter().all(|ns| ns.load(Relaxed) == 0)
    }

    fn add(&self, wait: Wait, ns: u64) {
        let of = match wait {
            Wait::Lock => &self.lock_ns,
            Wait::Fill => &self.fill_ns,
            Wait::Server => &self.server_ns,
        };
        of.fetch_add(ns, Relaxed);
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<CallNotes>>> = const { RefCell::new(None) };
}

/// Calls that run on this thread are noted in `notes` until the returned value is dropped.
pub fn noting(notes: Arc<CallNotes>) -> Noting {
    Noting(CURRENT.replace(Some(notes)))
}

/// Ends the noting of a thread.
pub struct Noting(Option<Arc<CallNotes>>);

impl Drop for Noting {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// The notes of the call that runs on this thread, if it is recorded.
pub(crate) fn current() -> Option<Arc<CallNotes>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Called when the request of the call on this thread was decided.
pub(crate) fn note_reason(reason: Reason) {
    CURRENT.with_borrow(|notes| {
        if let Some(notes) = notes {
            notes.reason.store(reason as u8 + 1, Relaxed);
        }
    });
}

/// Called when the call on this thread has waited.
pub(crate) fn note_wait(wait: Wait, ns: u64) {
    CURRENT.with_borrow(|notes| {
        if let Some(notes) = notes {
            notes.add(wait, ns);
        }
    });
}

/// An operation whose steps are noted wherever they run.
pub(crate) struct Noted<F> {
    run: F,
    notes: Option<Arc<CallNotes>>,
}

impl<F: Future + Unpin> Noted<F> {
    /// `run` with the notes of this thread's call.
    pub(crate) fn here(run: F) -> Noted<F> {
        Noted { run, notes: current() }
    }
}

impl<F: Future + Unpin> Future for Noted<F> {
    type Output = F::Output;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _noting = self.notes.clone().map(noting);
        Pin::new(&mut self.run).poll(cx)
    }
}
