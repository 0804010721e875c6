//! The cluster: which servers belong to it, who may come in, and who says so.
//!
//! Owns: the cluster map, the master and its followers, the lease that lets a follower serve, connections between
//! servers, tunables of the whole cluster, sessions of clients: their admission and end, deaf clients, the rule for a
//! client that is alone. Does not own: what a target knows of a session (`session`), what targets store (`target`).

pub(crate) mod ended;
pub(crate) mod follower;
pub(crate) mod follower_state;
pub(crate) mod map;
pub(crate) mod master;
pub(crate) mod master_lease;
pub(crate) mod master_state;
pub(crate) mod peers;
pub(crate) mod sessions;
pub(crate) mod tuned;
