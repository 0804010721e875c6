//! Bytes that could not be written back: what this mount shows afterwards, and who is told.
//!
//! Owns: `WritebackErrors`, for whoever asks about all files (`amphi sync`); that a file shows what the servers have as
//! soon as bytes of it were lost. Does not own: who was told of one file's failures (`files::failures`).
//!
//! The cache forgets lost bytes when they are lost, so that this mount and others show the same. Its size, and what a
//! front end caches of the bytes, follow in a task of the file; whoever is told of a failure waits for that.
//!
//! Invariant: each loss is told once to who syncs all files, as `syncfs` of Linux does, however many were told by
//! `fsync` before.

use crate::coherence::sharing;
use crate::coherence::tokens;
use crate::inode::{Inode, OpenFile};
use crate::mount::Mount;
use crate::ops::attr;
use crate::telemetry::stats::Count;
use amphi_types::{ByteRange, Errno, Ino, Result};
use parking_lot::Mutex;
use std::sync::Arc;

/// Lost bytes of a file whose consequences are not drawn yet.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    /// A task is at it.
    running: bool,
    /// What has come since it looked.
    pending: Option<ByteRange>,
}

/// Bytes of `range` were lost, and are no longer in the cache: the file ends where the server says, and a front end
/// drops its copy.
pub(crate) fn settle(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange) {
    file.own_is_at_least(|| mount.cache.dirty_end(file));
    tokens::outdated(mount, file.ino);
    {
        let mut settling = file.settling.lock();
        settling.pending =
            Some(settling.pending.map_or(range, |p| ByteRange::new(p.start.min(range.start), p.end.max(range.end))));
        if std::mem::replace(&mut settling.running, true) {
            return;
        }
    }
    let (mount2, file) = (mount.clone(), file.clone());
    mount.spawn(async move {
        loop {
            let next = {
                let mut settling = file.settling.lock();
                settling.running = settling.pending.is_some();
                settling.pending.take()
            };
            let Some(range) = next else { break };
            sharing::drop_overwritten(&mount2, file.ino, range).await;
            if let Err(e) = attr::reload(&mount2, &file).await {
                tracing::debug!(ino = %file.ino, "attributes after a failed write-back: {e}");
            }
        }
        file.signal.notify();
    });
}

/// A server cannot write to its disk what it has accepted of a file into memory, and what this mount wrote. It has the
/// bytes still, and shows them; whoever has the file open is told all the same, as is who opens it next if nobody has.
pub(crate) fn refused(mount: &Arc<Mount>, ino: Ino) {
    if let Some(silent) = mount.writeback.errors.note(Errno::Io, mount.clock.now_ns()) {
        tracing::error!(%ino, silent, "a server cannot write to its disk what it has accepted; it keeps it in memory");
    }
    mount.stats.count(Count::WriteRefused);
    match mount.files.get(ino) {
        Some(file) => file.failures.note(Errno::Io, ByteRange::new(0, 0)),
        None => mount.files.note_refused(ino, Errno::Io),
    }
}

/// Waits until the file shows what the servers have.
pub(crate) async fn settled(file: &Inode) {
    file.signal.until(|| !file.settling.lock().running).await;
}

/// Tells an open file of failures that it was not told of.
///
/// Errors: the latest of them. The file shows what the servers have then, unless they could not be reached anyway.
pub(crate) async fn tell(open: &OpenFile) -> Result<()> {
    let told = open.take_error();
    if told == Err(Errno::NoSpace) {
        // The failed request may still be about to enter what follows.
        let upto = open.file.flights.lock().last();
        open.file.signal.until(|| !open.file.in_flight_upto(ByteRange::ALL, upto)).await;
        settled(&open.file).await;
    }
    told
}

/// A full target refuses thousands of runs a second: the log hears of one.
const LOG_EVERY_NS: u64 = 1_000_000_000;

#[derive(Debug)]
struct State {
    count: u64,
    told: u64,
    last: Errno,
    /// When the log heard of one, and how many it did not hear of since.
    logged_ns: Option<u64>,
    silent: u64,
}

/// What was lost so far.
#[derive(Debug)]
pub(crate) struct WritebackErrors(Mutex<State>);

impl Default for WritebackErrors {
    fn default() -> WritebackErrors {
        WritebackErrors(Mutex::new(State { count: 0, told: 0, last: Errno::Io, logged_ns: None, silent: 0 }))
    }
}

impl WritebackErrors {
    /// Bytes of some file could not be written back, `now_ns`. If the log should hear of it, how many it did not hear
    /// of before.
    pub(crate) fn note(&self, why: Errno, now_ns: u64) -> Option<u64> {
        let mut state = self.0.lock();
        (state.count, state.last) = (state.count + 1, why);
        if state.logged_ns.is_some_and(|at| now_ns < at + LOG_EVERY_NS) {
            state.silent += 1;
            return None;
        }
        state.logged_ns = Some(now_ns);
        Some(std::mem::take(&mut state.silent))
    }

    /// Errors: that of the last loss, if there was one since this was asked last.
    pub(crate) fn tell(&self) -> Result<()> {
        let mut state = self.0.lock();
        let news = state.count > state.told;
        state.told = state.count;
        if news { Err(state.last) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each loss is told once, the last with its reason, and the log hears of one in a second. Method: losses by
    /// hand.
    #[test]
    fn each_loss_is_told_once() {
        let errors = WritebackErrors::default();
        assert_eq!(errors.tell(), Ok(()));
        assert_eq!([0, 1, 2].map(|ms| errors.note(Errno::Io, ms * 1_000_000)), [Some(0), None, None]);
        assert_eq!(errors.note(Errno::NoSpace, 2_000_000_000), Some(2));
        assert_eq!((errors.tell(), errors.tell()), (Err(Errno::NoSpace), Ok(())));
    }
}
