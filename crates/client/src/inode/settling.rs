//! `Settling`: the work that remains after bytes of a file could not be written back.
//!
//! Owns: the lost bytes that were not processed yet, and the mark that a task is processing them. Does not own: the
//! work of that task (`writeback::writeback_errors`), and the record of reports (`failures`).

use amphi_types::ByteRange;
use parking_lot::Mutex;

#[derive(Debug, Default)]
struct State {
    /// A task is processing lost bytes.
    running: bool,
    /// The range lost since that task last checked.
    pending: Option<ByteRange>,
}

/// Lost bytes of a file that were not processed yet.
#[derive(Debug, Default)]
pub(crate) struct Settling(Mutex<State>);

impl Settling {
    /// Adds lost bytes. Returns whether no task is running, so that the caller has to start one.
    pub(crate) fn enter(&self, lost: ByteRange) -> bool {
        let mut state = self.0.lock();
        let hull = |p: ByteRange| ByteRange::new(p.start.min(lost.start), p.end.max(lost.end));
        state.pending = Some(state.pending.map_or(lost, hull));
        !std::mem::replace(&mut state.running, true)
    }

    /// The bytes that the task has to process next; if there are none, the task has ended.
    pub(crate) fn next(&self) -> Option<ByteRange> {
        let mut state = self.0.lock();
        state.running = state.pending.is_some();
        state.pending.take()
    }

    pub(super) fn is_running(&self) -> bool {
        self.0.lock().running
    }
}
