//! Write-back: how dirty bytes reach the targets, and what becomes of those that cannot.
//!
//! Owns: flushing by size and age, batches of many small files, large writes that return while they are on their way,
//! deferred closes, errors that a later call has to report, what is known of the targets' free space. Does not own:
//! dirty ranges themselves (`cache`), the decision which way a write takes (`policy`).

pub(crate) mod backlog;
pub(crate) mod batch;
pub(crate) mod deferred_close;
pub(crate) mod flush;
pub(crate) mod free_space;
pub(crate) mod write_behind;
pub(crate) mod writeback_errors;

use crate::inode::Signal;
use backlog::Backlog;
use batch::SmallFiles;
use deferred_close::Closes;
use flush::Spreading;
use free_space::FreeSpace;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use writeback_errors::WritebackErrors;

/// What is dirty or under way to the targets, and what became of it.
#[derive(Default)]
pub(crate) struct WriteBack {
    pub(crate) spreading: Spreading,
    /// Small files that wait for others to share a request with.
    pub(crate) small_files: SmallFiles,
    pub(crate) closes: Closes,
    /// Bytes under way.
    pub(crate) flight_bytes: AtomicU64,
    /// Runs under way.
    pub(crate) flight_parts: AtomicUsize,
    /// Memory of direct writes under way that have returned.
    pub(crate) piped_bytes: AtomicU64,
    /// Targets that writes will not find full.
    pub(crate) free_space: FreeSpace,
    /// What could not be written back.
    pub(crate) errors: WritebackErrors,
    pub(crate) backlog: Backlog,
    /// Requests that have ended, and who waits for one.
    pub(crate) landings: AtomicU64,
    pub(crate) landed: Signal,
    /// Programs that wait for much of it.
    pub(crate) drains: AtomicU64,
}
