//! Numbers of files, directories and open files, and the places of names.

/// A file or directory, by its place in `Plan::nodes`.
pub(crate) type NodeId = usize;
/// An open file.
pub(crate) type Slot = usize;
/// A name in a directory.
pub(crate) type Place = (NodeId, Box<[u8]>);
