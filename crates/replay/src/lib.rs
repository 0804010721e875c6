//! Replay: makes the calls of a trace again, in any directory.
//!
//! Owns: what has to be there before (`plan`), which call waits for which other one (`plan::order`), the bytes that
//! files have (`stamp`), and the threads that make the calls (`run`). Does not own: the trace (`amphi_trace`), clusters
//! for it, and the output. Uses POSIX calls alone, so it replays on any file system.
//!
//! Invariants: each recorded thread has one thread here, and its calls keep their order. A call waits for calls of
//! other threads that it followed on the same name, open file or bytes. Such calls began before it, so no cycle of
//! waits is possible. A call that fails does not stop the others. Each byte that is written is a function of its file
//! and place, so any read can be checked.
#![forbid(unsafe_code)]

mod plan;
mod run;
mod stamp;

pub use plan::{Plan, Skipped, plan};
pub use run::{Options, Report, Times, clear, make, replay};
