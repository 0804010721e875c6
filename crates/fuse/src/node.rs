//! Node ids: the numbers by which the kernel knows inodes.
//!
//! An inode's node id is its inode number. A directory that another mount has moved may be shown under other node ids
//! as well (`front/moved`).

use amphi_types::Ino;

/// Lowest bit of the counter that distinguishes other node ids. No target has made this many inodes.
const OTHER_SHIFT: u32 = 40;
/// Number of other ids that a directory has.
pub(crate) const OTHERS: u64 = 255;

/// The inode that a node id means.
#[inline]
pub(crate) fn inode_of(node: u64) -> Ino {
    Ino(node & !(OTHERS << OTHER_SHIFT))
}

/// Whether a node id is not the inode's own.
#[inline]
pub(crate) fn is_other(node: u64) -> bool {
    node >> OTHER_SHIFT & OTHERS != 0
}

/// The next id of a directory after `node`, one that the kernel has not seen for a long time.
pub(crate) fn next(node: Ino) -> Ino {
    let number = (node.0 >> OTHER_SHIFT & OTHERS) % OTHERS + 1;
    Ino(inode_of(node.0).0 | number << OTHER_SHIFT)
}
