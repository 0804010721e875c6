//! Policy: which way a request takes, from what is known and measured.
//!
//! Owns: the hybrid decision and who serves reads, as pure functions, and their inputs: access locality of a file,
//! measured throughput of the two ways, memory of the calling processes, rotational storage. Does not own: carrying a
//! decision out (`ops`).

pub(crate) mod caller_memory;
pub mod decision;
pub(crate) mod kernel_reads;
pub(crate) mod locality;
pub(crate) mod rotational;
pub(crate) mod throughput;
