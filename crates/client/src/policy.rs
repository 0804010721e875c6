//! Policy: whether a request is buffered or direct, decided by settings and measurements.
//!
//! Owns: the hybrid decision, and the choice who serves reads, as pure functions. Also their inputs: access locality of
//! a file, measured throughput of buffered and direct requests and the resulting thresholds, the cost of new memory,
//! memory groups of the mount and of the calling processes, and rotational storage. Also the distance by which one
//! stream is read ahead, which records follow each other at equal distances, and the pieces in which programs read.
//! Does not own: carrying a decision out (`ops`).

pub(crate) mod caller_memory;
pub mod decision;
pub(crate) mod growth;
pub(crate) mod kernel_reads;
pub mod readahead;
pub(crate) mod readers;
pub(crate) mod records;
pub(crate) mod rotational;
pub(crate) mod thresholds;
pub(crate) mod throughput;

use amphi_env::memory_groups::Trees;
use caller_memory::CallerMemory;
use growth::Growth;
use readers::Readers;
use rotational::Rotational;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use throughput::Throughput;

/// The inputs of the decision in addition to the request itself.
#[derive(Default)]
pub(crate) struct Policy {
    /// The memory group is above its share; measured by the I/O half.
    pub(crate) group_short: AtomicBool,
    /// The trees of memory groups, for the I/O half.
    pub(crate) memory_trees: OnceLock<Trees>,
    /// Memory pressure of the groups of the processes that call.
    pub(crate) caller_memory: CallerMemory,
    /// Targets on rotating storage.
    pub(crate) rotational: Rotational,
    /// The measured throughput of direct and buffered requests.
    pub(crate) throughput: Throughput,
    /// Whether the cache evicts pages instead of taking more memory.
    pub(crate) growth: Growth,
    /// The habits of programs: in which sizes of pieces they read.
    pub(crate) readers: Readers,
    /// Writes to all files may land after they have returned (docs/SEMANTICS.md, "Commit consistency").
    pub(crate) commit: bool,
}

impl Policy {
    /// Compares the cost of new memory with the speed of the disks, for the bound of the cache.
    pub(crate) fn look_at_memory(&self) {
        self.growth.look(amphi_env::buf::new_page_ns(), self.throughput.fastest_direct());
    }
}
