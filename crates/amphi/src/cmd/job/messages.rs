//! The messages between `amphi job run` and the keepers of its nodes: one JSON object a line, orders on a keeper's
//! standard input, reports on its standard output.
//!
//! Invariants: an order may reach all keepers, so it says for which node it is, and each report says which node sent
//! it. The key of a job passes here alone, never through arguments or the environment, which other users can see.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The nodes that an order is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum To {
    /// Every node.
    All,
    /// Only this node.
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

    /// Returns the numbers of those of `count` nodes that are meant.
    pub fn nodes(self, count: usize) -> Vec<usize> {
        (0..count).filter(|node| self.means(*node)).collect()
    }
}

/// The description of a job that its keepers need.
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
    /// Port of this node's server; 0: any that is free.
    #[serde(default)]
    pub port: u16,
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
    /// The nodes that the order is for.
    pub to: To,
    /// The task.
    pub what: Task,
}

/// Tasks of keepers.
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
        /// Whether the targets of the copies may exist already.
        may_exist: bool,
    },
    /// Copy with `amphi stage`; answered by `Staged`.
    Stage(Copy),
    /// Note the copies out of the file system that are not complete; answered by `Unstaged`, with those whose source
    /// exists.
    Keep(Vec<Copy>),
    /// Try the copies that were noted again. Not answered.
    Retry,
    /// Tell which of the copies that were noted are still not complete; answered by `Unstaged`.
    Unstaged,
    /// Remove what there is of a job, of which this is not the keeper, and end; answered by `Ended`.
    Clean(Box<Plan>),
    /// Remove everything and end; answered by `Ended`.
    End,
}

/// A copy into the file system or out of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// The file or directory that is copied.
    pub source: Place,
    /// The target of the copy.
    pub target: Place,
    /// Options of `amphi stage`.
    pub options: Vec<String>,
}

impl Copy {
    /// For people.
    pub fn text(&self) -> String {
        let (Place::Outside(from) | Place::Inside(from)) = &self.source;
        let (Place::Outside(to) | Place::Inside(to)) = &self.target;
        format!("{from} to {to}")
    }
}

/// A place of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// A path of the node.
    Outside(String),
    /// A path below the mount.
    Inside(String),
}

impl Place {
    /// The path on the node that has this mount.
    pub fn at(&self, mount: &Path) -> PathBuf {
        match self {
            Place::Outside(path) => PathBuf::from(path),
            Place::Inside(path) => mount.join(path),
        }
    }
}

/// A report of a keeper.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The node that sends the report.
    pub node: usize,
    /// The event that is reported.
    pub said: Said,
}

/// Reports of keepers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Said {
    /// The folder is made.
    Prepared {
        /// The folder.
        folder: String,
        /// The mount point in the folder.
        mount: String,
    },
    /// The server serves.
    Serving {
        /// Addresses of the server.
        addresses: Vec<String>,
    },
    /// The mount is ready.
    Mounted,
    /// The reason why files could not be copied out; none if they can.
    Checked(Option<String>),
    /// The last object of `amphi stage --json`.
    Staged(Value),
    /// The copies that are not complete; none if somebody copies them just now.
    Unstaged(Option<Vec<Copy>>),
    /// An order failed.
    Failed(String),
    /// The keeper has received a signal: the job shall end.
    Signal(i32),
    /// The server or the mount has ended without an order.
    Lost(String),
    /// Everything is removed, except what is named.
    Ended {
        /// The files and folders that the keeper could not remove.
        left: Vec<String>,
    },
}
