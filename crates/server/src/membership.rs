//! Members of the cluster: servers, their map, and the begins and ends of sessions, as plain state and rules.
//!
//! Owns: the map and which servers may join, how servers identify themselves and the messages between them, the answers
//! that callers got, the state of sessions and tunables at the master and its followers, the rules of the registry of
//! keys, and the lease of a follower. Does not own: sending requests and waiting (`cluster`). No code in this folder
//! uses a worker or a target.

pub(crate) mod beats;
pub(crate) mod callers;
pub(crate) mod ended;
pub(crate) mod eviction;
pub(crate) mod follower_state;
pub(crate) mod keys;
pub(crate) mod lease;
pub(crate) mod map;
pub(crate) mod master_state;
pub(crate) mod peer_link;
pub(crate) mod peer_message;
pub(crate) mod tuned;
