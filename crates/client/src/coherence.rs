//! Coherence: which data this mount may cache and for how long, and the steps when another mount needs the same data.
//!
//! Owns: sole mode, tokens for names and attributes, the lease, file locks of applications, the pages that a front end
//! caches, and opens and closes that the servers count. Does not own: the tables of all that (`tables::coherence`),
//! cached extent locks, which need write-back (`locks`), the protocol (`dlm`), cached bytes (`cache`) and inodes
//! (`inode`).

pub(crate) mod attributes;
pub(crate) mod bare;
pub(crate) mod closes;
pub(crate) mod directories;
pub(crate) mod file_locks;
pub(crate) mod front_pages;
pub(crate) mod lease;
pub(crate) mod lent_names;
pub(crate) mod moved;
pub(crate) mod new_directories;
pub(crate) mod opened_ahead;
pub(crate) mod shards;
pub(crate) mod sharing;
pub(crate) mod tokens;
