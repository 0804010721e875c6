//! When copied pieces are durable: every some hundred megabytes or seconds they are made stable and go into the
//! journal.
//!
//! Owns the bytes that are not durable yet and their bound: `reserve` waits while a kill would lose more than
//! `limit_bytes`. The thread that finds a checkpoint due writes it, while the others continue to copy. Invariant:
//! records of pieces are appended only after the bytes of all of them were made stable.

use crate::error::Error;
use crate::journal::Journal;
use crate::journal::record::Record;
use crate::report::lock;
use crate::stable::Stable;
use crate::work::Stop;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A checkpoint is due after this time at the latest.
const PERIOD: Duration = Duration::from_secs(5);
/// Records that wait for a checkpoint at most: small files have few bytes.
const RECORDS_MAX: usize = 16 << 10;
/// How often a waiting thread checks whether the stage was stopped.
const LOOK: Duration = Duration::from_millis(50);
/// Comparisons are recorded in the journal this often; if some are lost, they are only made again.
const COMPARED_PERIOD: Duration = Duration::from_millis(50);

/// A clock that only goes forward.
pub(crate) fn now() -> Duration {
    let t = clock_gettime(ClockId::Monotonic);
    Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0))
}

#[derive(Default)]
struct State {
    /// Reserved or written, and not in the journal.
    open_bytes: u64,
    /// Records of the written bytes, in order, with the bytes that they describe.
    done: Vec<Record>,
    done_bytes: u64,
    /// Some bytes of the file are not stable yet.
    unsynced: bool,
    /// A thread does a checkpoint.
    running: bool,
    last: Duration,
    /// Pieces that were compared.
    compared: Vec<Record>,
    compared_last: Duration,
}

/// See the head of the module.
pub(crate) struct Checkpoints<'a> {
    stable: &'a Stable,
    journal: Mutex<Journal>,
    journal_path: PathBuf,
    limit_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
    stop: &'a Stop,
}

impl<'a> Checkpoints<'a> {
    /// Into this journal. At most `limit_bytes` are copied again after a kill.
    pub(crate) fn new(
        stable: &'a Stable,
        journal: Journal,
        journal_path: PathBuf,
        limit_bytes: u64,
        stop: &'a Stop,
    ) -> Checkpoints<'a> {
        let state = Mutex::new(State { last: now(), ..State::default() });
        let journal = Mutex::new(journal);
        Checkpoints { stable, journal, journal_path, limit_bytes, state, changed: Condvar::new(), stop }
    }

    /// Waits until this many bytes may be written. Each reservation has to end with `finish` or `cancel`. False:
    /// stopped.
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        let mut state = lock(&self.state);
        loop {
            if self.stop.is_set() {
                return false;
            }
            if state.open_bytes == 0 || state.open_bytes + bytes <= self.limit_bytes {
                state.open_bytes += bytes;
                return true;
            }
            if !state.running && !state.done.is_empty() {
                drop(state);
                self.checkpoint();
                state = lock(&self.state);
                continue;
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Reserved bytes that are not durable and will not be.
    pub(crate) fn cancel(&self, bytes: u64) {
        lock(&self.state).open_bytes -= bytes;
        self.changed.notify_all();
    }

    /// Reserved bytes are written, and stable already if `synced`.
    pub(crate) fn finish(&self, record: Record, bytes: u64, synced: bool) {
        let mut state = lock(&self.state);
        state.done.push(record);
        state.done_bytes += bytes;
        state.unsynced |= !synced;
        let due = state.done_bytes >= self.limit_bytes / 2
            || state.done.len() >= RECORDS_MAX
            || now().saturating_sub(state.last) >= PERIOD;
        if due && !state.running {
            drop(state);
            self.checkpoint();
        }
    }

    /// A piece was compared.
    pub(crate) fn compared(&self, record: Record) {
        let mut state = lock(&self.state);
        state.compared.push(record);
        if now().saturating_sub(state.compared_last) < COMPARED_PERIOD {
            return;
        }
        state.compared_last = now();
        let records = std::mem::take(&mut state.compared);
        drop(state);
        self.tell(lock(&self.journal).append(&records));
    }

    /// Everything that is finished becomes durable.
    pub(crate) fn checkpoint(&self) {
        let mut state = lock(&self.state);
        while state.running {
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        let (records, bytes) = (std::mem::take(&mut state.done), std::mem::take(&mut state.done_bytes));
        let compared = std::mem::take(&mut state.compared);
        let unsynced = std::mem::take(&mut state.unsynced);
        if records.is_empty() && compared.is_empty() {
            return;
        }
        state.running = true;
        drop(state);
        let result = if unsynced { self.stable.sync_all() } else { Ok(()) };
        let result = result.and_then(|()| {
            let mut journal = lock(&self.journal);
            journal.append(&records)?;
            journal.append(&compared)?;
            journal.sync()
        });
        self.tell(result);
        let mut state = lock(&self.state);
        state.open_bytes -= bytes;
        state.running = false;
        state.last = now();
        drop(state);
        self.changed.notify_all();
    }

    /// Appends records and makes them durable at once.
    pub(crate) fn record(&self, records: &[Record]) {
        let mut journal = lock(&self.journal);
        self.tell(journal.append(records).and_then(|()| journal.sync()));
    }

    fn tell(&self, result: Result<(), Errno>) {
        if let Err(e) = result {
            self.stop.with(Error::target("make what was copied durable", &self.journal_path, e));
        }
    }
}
