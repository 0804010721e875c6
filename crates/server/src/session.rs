//! A target's state of each session: its open files, and the answers for requests that are sent again.
//!
//! Owns: open inodes, reply slots, rights on files of other targets, and changes that are on their way to the disk.
//! Does not own: locks and tokens of a session (`coherence`), which sessions exist (`cluster::sessions`).

pub(crate) mod in_flight;
pub(crate) mod listed;
pub(crate) mod open_files;
pub(crate) mod opens;
pub(crate) mod reach;
pub(crate) mod reclaim;
pub(crate) mod rights;
pub(crate) mod slots;
