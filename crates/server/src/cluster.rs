//! The cluster: which servers belong to it, which servers and clients are admitted, and which server decides about
//! both.
//!
//! Owns: what the master and its followers do, the lease under which a follower serves, connections between servers,
//! tunables of the whole cluster, the registry of keys, admission and end of client sessions, unresponsive clients, and
//! sole mode. Does not own: the plain state and rules of all that (`membership`), the record of a session at a target
//! (`session`), and the contents of targets (`zone_target`).

pub(crate) mod follower;
pub(crate) mod keys;
pub(crate) mod master;
pub(crate) mod master_lease;
pub(crate) mod peers;
pub(crate) mod sessions;
