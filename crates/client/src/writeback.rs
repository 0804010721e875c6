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
