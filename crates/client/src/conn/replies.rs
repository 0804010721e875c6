//! The result in a reply, or an error if the reply is not one that the request may get.

use amphi_types::{Errno, Result};
use amphi_wire::{InodeView, Reply};

/// A reply of another kind than the request promises.
pub(crate) fn unexpected(reply: &Reply) -> Errno {
    tracing::error!(?reply, "a reply does not fit its request");
    Errno::Proto
}

/// The inode in a reply.
pub(crate) fn inode_reply(reply: Reply) -> Result<InodeView> {
    match reply {
        Reply::Inode(view) => Ok(view),
        other => Err(unexpected(&other)),
    }
}

/// A reply that says just that it is done.
pub(crate) fn done_reply(reply: Reply) -> Result<()> {
    match reply {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}
