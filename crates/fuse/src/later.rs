//! `Later`: the answer to a request whose caller may wait for very long, while no thread waits.
//!
//! Owns: the table of such requests, and the delivery of INTERRUPT to them. Does not own: the events for which these
//! requests wait.
//!
//! Invariants: every request is answered, at the latest when its `Later` is dropped. An interrupt that came while the
//! request was still handled by its reader thread is not lost.
//!
//! Bound: one entry for each process that waits.
//!
//! The number behind it: a mount has 256 threads, and a lock may have thousands of waiters. A waiter can continue only
//! when another process's unlock request is read.

use crate::clock::monotonic_ns;
use crate::interrupt::Interrupt;
use crate::kernel::structs::IoctlOut;
use crate::recorded::Recorded;
use crate::reply::ReplyTo;
use amphi_client::{CallKind, CallTimes, Served};
use amphi_types::{Errno, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use zerocopy::IntoBytes;

#[derive(Default)]
struct Entry {
    interrupted: bool,
    waker: Option<Waker>,
}

/// Requests that are answered later.
#[derive(Default)]
pub(crate) struct LateTable {
    entries: Mutex<BTreeMap<u64, Entry>>,
    /// The counters for the times of these requests.
    pub(crate) times: OnceLock<Arc<CallTimes>>,
}

impl LateTable {
    /// Interrupts `unique`. Returns whether it is a request that is answered later.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let waker = match self.entries.lock().get_mut(&unique) {
            None => return false,
            Some(entry) => {
                entry.interrupted = true;
                entry.waker.take()
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Interrupts all requests that are answered later.
    pub(crate) fn interrupt_all(&self) {
        let all: Vec<u64> = self.entries.lock().keys().copied().collect();
        for unique in all {
            self.interrupt(unique);
        }
    }
}

/// An answer that is still owed. If it is dropped unanswered, the call ends as interrupted.
pub struct Later {
    device: Arc<OwnedFd>,
    unique: u64,
    table: Arc<LateTable>,
    answered: bool,
    recorded: Option<Box<Recorded>>,
    /// The kind of the call, and when the mount began with it; `None` if its time is not counted.
    timed: Option<(CallKind, u64)>,
}

impl Later {
    /// Takes a request from its reader thread. `interrupt` is the state that the reader's table has for the request.
    pub(crate) fn new(device: Arc<OwnedFd>, to: &ReplyTo<'_>, table: Arc<LateTable>, interrupt: &Interrupt) -> Later {
        let (unique, recorded) = (to.unique, to.take_recorded());
        table.entries.lock().insert(unique, Entry::default());
        // From here on the table receives interrupts. An interrupt that came before is passed on.
        if interrupt.is_interrupted() {
            table.interrupt(unique);
        }
        Later { device, unique, table, answered: false, recorded, timed: to.timed() }
    }

    /// Wakes `waker` once when the caller gets a signal, or at once if it already did. Only the waker that was
    /// registered last is woken.
    pub fn wake_on_interrupt(&self, waker: Waker) {
        if let Some(entry) = self.table.entries.lock().get_mut(&self.unique)
            && !entry.interrupted
        {
            entry.waker = Some(waker);
            return;
        }
        waker.wake();
    }

    /// Answers the request.
    pub fn answer(mut self, result: Result<()>) {
        self.send(result.map(|()| &[][..]));
    }

    /// Answers a device control with the result of `ioctl`.
    pub fn answer_control(mut self, result: Result<i32>) {
        let head = result.map(|result| IoctlOut { result, ..IoctlOut::default() });
        self.send(head.as_ref().map(|head| head.as_bytes()).map_err(|e| *e));
    }

    /// Answers with a structure of the protocol.
    pub(crate) fn answer_struct<T: IntoBytes + zerocopy::Immutable>(mut self, result: Result<T>) {
        self.send(result.as_ref().map(IntoBytes::as_bytes).map_err(|e| *e));
    }

    /// Answers a READ with bytes from several places.
    pub(crate) fn answer_data(mut self, parts: &[&[u8]]) {
        self.answered = true;
        self.table.entries.lock().remove(&self.unique);
        self.record(0, parts);
        let to = ReplyTo::new(self.device.as_fd(), self.unique, 0);
        to.ok(parts);
    }

    fn send(&mut self, result: Result<&[u8]>) {
        self.answered = true;
        self.table.entries.lock().remove(&self.unique);
        self.record(result.err().map_or(0, |e| -e.raw()), &[result.unwrap_or_default()]);
        let to = ReplyTo::new(self.device.as_fd(), self.unique, 0);
        match result {
            Ok([]) => to.ok(&[]),
            Ok(body) => to.ok(&[body]),
            Err(e) => to.error(e),
        }
    }

    /// Tells a recording of the answer, and counts its time.
    fn record(&mut self, error: i32, parts: &[&[u8]]) {
        if let (Some((kind, began_ns)), Some(times)) = (self.timed, self.table.times.get()) {
            times.add(kind, Served::Waited, monotonic_ns().saturating_sub(began_ns));
        }
        if let Some(mut recorded) = self.recorded.take() {
            recorded.answered(error, parts);
            recorded.ends();
        }
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        if !self.answered {
            self.send(Err(Errno::Intr));
        }
    }
}

impl std::fmt::Debug for Later {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Later({})", self.unique)
    }
}
