//! Node ids: under which numbers the kernel knows inodes.
//!
//! An inode's id is its number. A directory that another mount has moved may be shown under others beside it
//! (`front/moved`).

use amphi_types::Ino;

/// Where the number of an other id lies in it: no target has made so many inodes.
const OTHER_SHIFT: u32 = 40;
/// Other ids of a directory.
pub(crate) const OTHERS: u64 = 255;

/// The inode that a node id of the kernel means.
#[inline]
pub(crate) fn inode_of(node: u64) -> Ino {
    Ino(node & !(OTHERS << OTHER_SHIFT))
}

/// Whether a node id is not the inode's own.
#[inline]
pub(crate) fn is_other(node: u64) -> bool {
    node >> OTHER_SHIFT & OTHERS != 0
}

/// The id of a directory that comes after `node`: one of which the kernel has had nothing for long.
pub(crate) fn next(node: Ino) -> Ino {
    let number = (node.0 >> OTHER_SHIFT & OTHERS) % OTHERS + 1;
    Ino(inode_of(node.0).0 | number << OTHER_SHIFT)
}
