//! The cluster: which servers belong to it, who may come in, and who says so.
//!
//! Owns: what the master and its followers do, the lease that lets a follower serve, connections between servers,
//! tunables of the whole cluster, the registry of keys, sessions of clients: their admission and end, deaf clients, the
//! rule for a client that is alone. Does not own: the plain state and rules of all that (`membership`), what a target
//! knows of a session (`session`), what targets store (`zone_target`).

pub(crate) mod follower;
pub(crate) mod keys;
pub(crate) mod master;
pub(crate) mod master_lease;
pub(crate) mod peers;
pub(crate) mod sessions;
