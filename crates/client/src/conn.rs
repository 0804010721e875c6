//! Connections: one to each server of the cluster, and the way from a caller's thread to the thread that owns them.
//!
//! Owns: links and the choice among them, the queue to the I/O half, operations that are under way or were given up,
//! short waits. Does not own: what is asked over a link (`ops`, `writeback`, `prefetch`), reconnecting (`transport`).

pub(crate) mod late_replies;
pub(crate) mod links;
pub(crate) mod pauses;
pub(crate) mod pending;
pub(crate) mod queue;
