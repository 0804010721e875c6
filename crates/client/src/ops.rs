//! Operations: one file for each family, each an `async fn` over the shared state.
//!
//! Owns: the steps of each operation. Does not own: the machinery below (`cache`, `locks`, `writeback`, `readahead`).

pub(crate) mod attr;
pub(crate) mod copy;
pub(crate) mod fallocate;
pub(crate) mod input;
pub(crate) mod known;
pub(crate) mod name;
pub(crate) mod open;
pub(crate) mod pages;
pub(crate) mod read;
pub(crate) mod readdir;
pub(crate) mod seek;
pub(crate) mod statfs;
pub(crate) mod sync;
pub(crate) mod write;
pub(crate) mod xattr;

use amphi_types::Result;
use amphi_wire::{InodeView, Reply};

/// The inode in a reply.
pub(crate) fn inode_reply(reply: Reply) -> Result<InodeView> {
    match reply {
        Reply::Inode(view) => Ok(view),
        other => Err(crate::mount::unexpected(&other)),
    }
}

/// A reply that says just that it is done.
pub(crate) fn done_reply(reply: Reply) -> Result<()> {
    match reply {
        Reply::Done => Ok(()),
        other => Err(crate::mount::unexpected(&other)),
    }
}
