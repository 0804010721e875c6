//! The assignment of targets to servers.
//!
//! Owns: the cluster map as clients and servers pass it on. Does not own: the right to change it (the master).

use amphi_types::TargetId;
use serde::{Deserialize, Serialize};

/// A server of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// Random number of the server, kept with its zones.
    pub id: u64,
    /// For people.
    pub name: String,
    /// The addresses on which the server listens; empty for a server without listeners, which only its own process
    /// uses.
    pub addrs: Vec<String>,
    /// The targets of the server.
    pub targets: Vec<TargetId>,
}

/// Which server has which targets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// Grows with each change.
    pub epoch: u64,
    /// Id of the cluster.
    pub cluster: u64,
    /// All servers; the master, which has target 0, first. Every target in `0..pool` is on one of them.
    pub servers: Vec<ServerInfo>,
}

impl ClusterMap {
    /// Number of targets.
    pub fn pool(&self) -> u16 {
        self.servers.iter().map(|s| s.targets.len()).sum::<usize>() as u16
    }

    /// Place in `servers` of the server that has `target`.
    pub fn server_of(&self, target: TargetId) -> Option<usize> {
        self.servers.iter().position(|s| s.targets.contains(&target))
    }
}
