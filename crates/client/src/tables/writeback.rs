//! What is dirty or under way to the targets, and what became of it.
//!
//! Owns: the tables that write-back goes by, and how much is under way. Does not own: sending (`writeback`), dirty
//! ranges themselves (`cache`).

pub(crate) mod backlog;
pub(crate) mod closes;
pub(crate) mod errors;
pub(crate) mod free_space;
pub(crate) mod grants;
pub(crate) mod small_files;
pub(crate) mod spreading;

use crate::inode::Signal;
use backlog::Backlog;
use closes::Closes;
use errors::WritebackErrors;
use free_space::FreeSpace;
use grants::Grants;
use small_files::SmallFiles;
use spreading::Spreading;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// Runs under way, for all files, in requests of their own or in batches.
pub(crate) const FLIGHT_PARTS_MAX: usize = 4096;

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
    /// What targets keep for what is dirty.
    pub(crate) grants: Arc<Grants>,
    /// What could not be written back.
    pub(crate) errors: WritebackErrors,
    pub(crate) backlog: Backlog,
    /// Requests that have ended, and who waits for one.
    pub(crate) landings: AtomicU64,
    pub(crate) landed: Signal,
    /// Programs that wait for much of it.
    pub(crate) drains: AtomicU64,
}
