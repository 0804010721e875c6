//! Answers to calls that were given up.
//!
//! If a server cannot be reached for longer than `transport.give_up_s`, calls fail, but the session continues. So an
//! open or a lock that the server grants later would remain until the end of the session. The server would call back
//! such a lock, which this client does not know, until it evicts the mount. So the link requests these answers when
//! there is a connection again (`LinkEvents::late`).
//!
//! Owns: the return of the locks and opens that these replies grant. Does not own: tokens, which every revocation ends
//! (`tokens`).

use crate::inode::AskedAt;
use crate::mount::Mount;
use crate::writeback::release::release;
use amphi_types::TargetId;
use amphi_wire::{Access, Answer, Call, InodeView, Lane, Make, Reply, Request};
use std::sync::Arc;

/// Called when a call that was given up has been answered.
pub(crate) fn answered(mount: &Arc<Mount>, call: Call, answer: Answer) {
    let Ok(reply) = answer.result else { return };
    match (call.op, reply) {
        (_, Reply::Locked { lock, .. } | Reply::LockWaits { lock }) => unlock(mount, call.target, vec![lock]),
        (Request::Open { access, .. }, Reply::Inode(view)) => close(mount, view, access),
        (
            Request::Make { make: Make::File { open: Some(access), .. }, .. } | Request::MakeTmp { open: access, .. },
            Reply::Made { inode, lock, .. },
        ) => {
            close(mount, inode, access);
            unlock(mount, inode.attr.ino.target(), lock.into_iter().collect());
        }
        (Request::ReadBatch { .. }, Reply::FilesAhead(files)) => {
            let mut locks = Vec::new();
            for file in files.into_iter().flatten() {
                close(mount, file.inode, Access { read: true, write: false });
                locks.extend(file.lock.map(|(lock, _)| lock));
            }
            unlock(mount, call.target, locks);
        }
        _ => {}
    }
}

fn unlock(mount: &Mount, target: TargetId, locks: Vec<u64>) {
    if !locks.is_empty() {
        drop(mount.insist(Lane::Answer, target, Request::LockCancel { locks }));
    }
}

/// A late open is handled like any other open, so that a restarted server gets the open before it gets the close.
fn close(mount: &Arc<Mount>, view: InodeView, access: Access) {
    let file = mount.files.open(view, access, AskedAt::PAST);
    release(mount, &file, access, false);
}
