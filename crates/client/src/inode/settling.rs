//! `Settling`: what follows from bytes of a file that could not be written back.
//!
//! Owns: the lost bytes whose consequences are not drawn yet, and whether a task is at it. Does not own: what that task
//! does (`writeback::writeback_errors`), who was told of failures (`failures`).

use amphi_types::ByteRange;
use parking_lot::Mutex;

#[derive(Debug, Default)]
struct State {
    /// A task is at it.
    running: bool,
    /// What has come since it looked.
    pending: Option<ByteRange>,
}

/// Lost bytes of a file whose consequences are not drawn yet.
#[derive(Debug, Default)]
pub(crate) struct Settling(Mutex<State>);

impl Settling {
    /// Enters lost bytes. Whether nobody is at it, so that the caller has to begin a task.
    pub(crate) fn enter(&self, lost: ByteRange) -> bool {
        let mut state = self.0.lock();
        let hull = |p: ByteRange| ByteRange::new(p.start.min(lost.start), p.end.max(lost.end));
        state.pending = Some(state.pending.map_or(lost, hull));
        !std::mem::replace(&mut state.running, true)
    }

    /// What the task has to look at next; without anything the task has ended.
    pub(crate) fn next(&self) -> Option<ByteRange> {
        let mut state = self.0.lock();
        state.running = state.pending.is_some();
        state.pending.take()
    }

    pub(super) fn is_running(&self) -> bool {
        self.0.lock().running
    }
}
