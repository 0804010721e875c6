//! Write-back: how dirty bytes reach the targets, and what happens to those that cannot be written.
//!
//! Owns: flushing by size and age, batches of many small files, the work after the last close, and the state of a file
//! after a loss. Does not own: the tables of that (`tables::writeback`), dirty ranges themselves (`cache`), whether a
//! write is buffered or direct (`policy`).

pub(crate) mod backlog;
pub(crate) mod batch;
pub(crate) mod flush;
pub(crate) mod grants;
pub(crate) mod release;
pub(crate) mod writeback_errors;
