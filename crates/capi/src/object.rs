//! What numbers stand for.
//!
//! Owns: the kinds. Does not own: what the objects do, the numbers (`registry`).

use crate::cluster::{Cluster, ClusterDir, ClusterFile};
use crate::node::{Node, NodeDir, NodeFile};
use crate::queue::Queue;
use std::sync::Arc;

/// The kind of an object, as in its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Fs = 1,
    File = 2,
    Dir = 3,
    Queue = 4,
}

/// A file system: one of two ways to it.
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

/// What a number stands for.
pub(crate) enum Object {
    Fs(Fs),
    File(File),
    Dir(Dir),
    Queue(Arc<Queue>),
}

impl Object {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Object::Fs(_) => Kind::Fs,
            Object::File(_) => Kind::File,
            Object::Dir(_) => Kind::Dir,
            Object::Queue(_) => Kind::Queue,
        }
    }
}
