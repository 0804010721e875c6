//! Write-back: how dirty bytes reach the targets, and what becomes of those that cannot.
//!
//! Owns: flushing by size and age, batches of many small files, what follows the last close, what a file shows after a
//! loss. Does not own: the tables of that (`tables::writeback`), dirty ranges themselves (`cache`), whether a write is
//! buffered or direct (`policy`).

pub(crate) mod backlog;
pub(crate) mod batch;
pub(crate) mod flush;
pub(crate) mod grants;
pub(crate) mod release;
pub(crate) mod writeback_errors;
