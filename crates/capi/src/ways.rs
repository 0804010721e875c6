//! Both kinds of open objects: those of a client in this process, and those over a mount.

use crate::cluster::{Cluster, ClusterDir, ClusterFile};
use crate::node::{Node, NodeDir, NodeFile};
use std::sync::Arc;

/// A file system: by a client in this process, or over a mount.
#[derive(Clone)]
pub(crate) enum Fs {
    Cluster(Arc<Cluster>),
    Node(Arc<Node>),
}

/// An open file.
#[derive(Clone)]
pub(crate) enum File {
    Cluster(Arc<ClusterFile>),
    Node(Arc<NodeFile>),
}

/// An open directory.
#[derive(Clone)]
pub(crate) enum Dir {
    Cluster(Arc<ClusterDir>),
    Node(Arc<NodeDir>),
}
