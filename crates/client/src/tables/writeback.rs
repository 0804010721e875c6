//! State of write-back: which bytes are dirty or under way to the targets, and the results of sending them.
//!
//! Owns: the tables of write-back, and how much is under way. Does not own: sending (`writeback`), the dirty ranges
//! themselves (`cache`).

pub(crate) mod backlog;
pub(crate) mod closes;
pub(crate) mod errors;
pub(crate) mod free_space;
pub(crate) mod grants;
pub(crate) mod limited_files;
pub(crate) mod loads;
pub(crate) mod small_files;
pub(crate) mod spreading;

use crate::inode::Signal;
use backlog::Backlog;
use closes::Closes;
use errors::WritebackErrors;
use free_space::FreeSpace;
use grants::Grants;
use loads::TargetLoads;
use small_files::SmallFiles;
use spreading::Spreading;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// Most runs under way, for all files, in separate requests or in batches.
pub(crate) const FLIGHT_PARTS_MAX: usize = 4096;

/// State of write-back.
#[derive(Default)]
pub(crate) struct WriteBack {
    pub(crate) spreading: Spreading,
    /// Small files that wait for others to share a request with.
    pub(crate) small_files: SmallFiles,
    pub(crate) closes: Closes,
    /// Bytes that are under way.
    pub(crate) flight_bytes: AtomicU64,
    /// Runs that are under way.
    pub(crate) flight_parts: AtomicUsize,
    /// Memory of direct writes that have returned and are still under way.
    pub(crate) piped_bytes: AtomicU64,
    /// The part of all that for each target.
    pub(crate) loads: TargetLoads,
    /// Targets that are known to have free space for writes.
    pub(crate) free_space: FreeSpace,
    /// Free blocks that targets keep for dirty bytes.
    pub(crate) grants: Arc<Grants>,
    /// The bytes that could not be written back.
    pub(crate) errors: WritebackErrors,
    pub(crate) backlog: Backlog,
    /// Number of requests that have ended, and the tasks that wait for one.
    pub(crate) landings: AtomicU64,
    pub(crate) landed: Signal,
    /// Number of programs that wait until much of the dirty data is written back.
    pub(crate) drains: AtomicU64,
}
