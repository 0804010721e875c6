//! What `amphi job run` and the keepers of its nodes say to each other: one JSON object a line, orders on a keeper's
//! standard input, reports on its standard output.
//!
//! Invariants: an order may reach all keepers, so it says whom it is for, and each report says whose it is. The key of
//! a job passes here alone, never through arguments or the environment, which other users can see.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Whom an order is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum To {
    /// Every node.
    All,
    /// This node.
    Node(usize),
    /// Every node but the first.
    Others,
}

impl To {
    /// Whether it is for a node.
    pub fn means(self, node: usize) -> bool {
        match self {
            To::All => true,
            To::Node(one) => one == node,
            To::Others => node != 0,
        }
    }

    /// The nodes of so many.
    pub fn nodes(self, count: usize) -> Vec<usize> {
        (0..count).filter(|node| self.means(*node)).collect()
    }
}

/// What a keeper has to know of its job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The job: part of the names of its folders.
    pub id: String,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// Which of them the keeper is, where only this one hears the order.
    pub node: Option<usize>,
    /// Folder on each node in which the folder of the job is made; `{host}` stands for the name of the node.
    pub scratch: String,
    /// Host of the address of each server, `{host}` as above.
    pub address: String,
    /// A random number by which the processes of the program are known.
    pub token: String,
    /// The batch system's numbers of the job, by their variables.
    pub batch: BTreeMap<String, String>,
    /// The cluster key, in hexadecimal digits; only of several nodes.
    pub key: String,
    /// Options of each server.
    pub server: Vec<String>,
    /// Options of each mount.
    pub mount: Vec<String>,
}

impl Plan {
    /// The same for one node.
    pub fn of(&self, node: usize) -> Box<Plan> {
        Box::new(Plan { node: Some(node), ..self.clone() })
    }
}

/// An order to keepers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Whom it is for.
    pub to: To,
    /// What to do.
    pub what: Task,
}

/// What keepers do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Make the folder of the job; answered by `Prepared`.
    Prepare(Box<Plan>),
    /// Start a server, beside this one; of one node with the mount in the same process; answered by `Serving`.
    Serve {
        /// Addresses of the first server.
        join: Vec<String>,
    },
    /// Mount what is at these addresses; answered by `Mounted`.
    Mount {
        /// Addresses of servers.
        cluster: Vec<String>,
    },
    /// Look whether the files can be brought out; answered by `Checked`.
    Check {
        /// The last places of the files.
        targets: Vec<String>,
        /// Whether they may be there.
        may_exist: bool,
    },
    /// Copy with `amphi stage`; answered by `Staged`.
    Stage {
        /// What is copied, an absolute path or one below the mount.
        source: Place,
        /// The copy.
        target: Place,
        /// Further options of `amphi stage`.
        options: Vec<String>,
    },
    /// Remove what there is of a job, of which this is not the keeper, and end; answered by `Ended`.
    Clean(Box<Plan>),
    /// Remove everything and end; answered by `Ended`.
    End,
}

/// A place of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// A path of the node.
    Outside(String),
    /// A path below the mount.
    Inside(String),
}

/// A report of a keeper.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Whose.
    pub node: usize,
    /// What has happened.
    pub said: Said,
}

/// What keepers report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Said {
    /// The folder is made.
    Prepared {
        /// The folder.
        folder: String,
        /// The mount point in it.
        mount: String,
    },
    /// The server serves.
    Serving {
        /// Its addresses.
        addresses: Vec<String>,
    },
    /// The mount is there.
    Mounted,
    /// Why files could not be brought out; none if they can.
    Checked(Option<String>),
    /// The last object of `amphi stage --json`.
    Staged(Value),
    /// An order failed.
    Failed(String),
    /// The keeper has received a signal: the job shall end.
    Signal(i32),
    /// The server or the mount has ended by itself.
    Lost(String),
    /// Everything is removed, except what is named.
    Ended {
        /// What could not be removed.
        left: Vec<String>,
    },
}
