//! The thread that touches memory of buffers ahead of its use.
//!
//! Owns: the thread and when it works: at its start, and again whenever more buffers are in use than at its last check,
//! so that an idle process returns unused memory. Does not own: the memory and its bounds (`buf::memory`).

use crate::buf;
use std::time::Duration;

/// How often it looks whether more buffers are in use.
const PAUSE: Duration = Duration::from_millis(20);

/// Keeps `goal` bytes of touched memory available, which is called before each 4 MiB, on a thread of its own with the
/// lowest priority. `None` ends the thread.
///
/// Errors: those of making a thread.
#[expect(clippy::disallowed_methods, reason = "page faults take longer than any task of a reactor may")]
pub fn keep_populated(goal: impl Fn() -> Option<usize> + Send + 'static) -> std::io::Result<()> {
    let run = move || {
        // The priority of a thread is its own on Linux. Without it the thread works as well.
        let _ = rustix::process::setpriority_process(None, 19);
        let mut seen = None;
        while let Some(bytes) = goal() {
            let in_use = buf::in_use_bytes();
            let grew = seen.is_none_or(|seen| in_use > seen);
            if !grew || !buf::populate(bytes) {
                // If memory is taken while this works, it is replaced, too.
                seen = Some(in_use);
                std::thread::sleep(PAUSE);
            }
        }
    };
    std::thread::Builder::new().name("amphi-memory".into()).spawn(run).map(drop)
}
