//! Prefetching: data that is requested before the program requests it.
//!
//! Owns: read-ahead of one open file, and of several open files that form one sequence; large direct reads that follow
//! each other; small files of a directory that a program opens one after the other. Does not own: the cache that the
//! bytes enter (`cache`), the locks that cover them (`coherence`).

pub(crate) mod large_reads;
pub(crate) mod small_files;
