//! The start of a client: configuration, clock, session, link, signals. It contains no server code, so that a library
//! that is loaded into a program links none.
//!
//! Owns: the preparations that a process needs before it has a mount or a session. Does not own: servers and mounts
//! (`amphi_process`).

pub mod client;
pub mod clock;
pub mod cluster_key;
pub mod control;
pub mod failure;
pub mod identity_file;
pub mod idle;
pub mod link;
pub mod notify;
pub mod say;
pub mod signals;
pub mod size;
pub mod suggest;
