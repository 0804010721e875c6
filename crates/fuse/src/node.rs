//! Node ids: the numbers by which the kernel knows inodes.
//!
//! An inode's node id is its inode number. A directory that another mount has moved may be shown under other node ids
//! as well (`front/moved`). The kernel knows the root of each mount by the number of the file system's root, even if
//! the mount has another directory as its root (`Top`).

use amphi_types::Ino;

/// Lowest bit of the counter that distinguishes other node ids. No target has made this many inodes.
const OTHER_SHIFT: u32 = 40;
/// Number of other ids that a directory has.
pub(crate) const OTHERS: u64 = 255;

/// The directory that is the root of a mount, which the kernel knows by the id 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Top(pub(crate) Ino);

impl Default for Top {
    fn default() -> Top {
        Top(Ino::ROOT)
    }
}

impl Top {
    /// The id by which the kernel knows an inode.
    #[inline]
    pub(crate) fn node(self, ino: Ino) -> Ino {
        if ino == self.0 { Ino::ROOT } else { ino }
    }

    /// The inode for which an id, or an inode number in a request, stands.
    #[inline]
    pub(crate) fn named(self, node: Ino) -> Ino {
        if node == Ino::ROOT { self.0 } else { node }
    }
}

/// The inode that a node id means.
#[inline]
pub(crate) fn inode_of(node: u64) -> Ino {
    Ino(node & !(OTHERS << OTHER_SHIFT))
}

/// Returns whether a node id is not the inode's own.
#[inline]
pub(crate) fn is_other(node: u64) -> bool {
    node >> OTHER_SHIFT & OTHERS != 0
}

/// The next id of a directory after `node`, one that the kernel has not seen for a long time.
pub(crate) fn next(node: Ino) -> Ino {
    let number = (node.0 >> OTHER_SHIFT & OTHERS) % OTHERS + 1;
    Ino(inode_of(node.0).0 | number << OTHER_SHIFT)
}
