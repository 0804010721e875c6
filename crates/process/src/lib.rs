//! The parts of a process of this binary: servers with or without a client, mounts, their start and their end.
//!
//! Owns: embedded clusters (`cluster`), FUSE mounts (`mount`, `mount_words`), the key that a first server makes
//! (`own_key`), the files of the audit log (`audit_file`), launchers of MPI programs (`launch`). Does not own: a client
//! without a server (`amphi_host`), the command line (`amphi`).

pub mod audit_file;
pub mod cluster;
pub mod launch;
pub mod mount;
pub mod mount_words;
pub mod own_key;
