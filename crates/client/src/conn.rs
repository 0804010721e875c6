//! The way from a caller's thread to the thread that owns the connections.
//!
//! Owns: the queue to the I/O half, operations under way, short waits, and the knowledge about the cluster. Does not
//! own: the links to the servers (`io`), the requests that are sent over them (`ops`, `writeback`, `prefetch`).

pub(crate) mod cluster;
pub(crate) mod messages;
pub(crate) mod pauses;
pub(crate) mod pending;
pub(crate) mod queue;
pub(crate) mod replies;
