//! Prefetching: data that is asked for before the program does.
//!
//! Owns: read-ahead of one open file and of several that are one sequence, large direct reads in a row, small files of
//! a directory that a program opens one after the other. Does not own: the cache that the bytes land in (`cache`), the
//! locks they lie under (`coherence`).

pub(crate) mod large_reads;
pub(crate) mod small_files;
