//! Answers to calls that were given up.
//!
//! A server that cannot be reached for longer than `transport.give_up_s` makes calls fail, and keeps the session: an
//! open or a lock that it has granted meanwhile would be the session's for good, and a lock that nobody here knows
//! would be asked back in vain until the mount is evicted. So the link asks for these answers when there is a
//! connection again (`LinkEvents::late`).
//!
//! Owns: giving back what they bring. Does not own: tokens, which every revocation ends (`tokens`).

use crate::core::Core;
use crate::inode::Moment;
use crate::ops::open::release;
use amphi_types::TargetId;
use amphi_wire::{Access, Answer, Call, InodeView, Lane, Make, Reply, Request};
use std::sync::Arc;

/// A call that was given up has been answered.
pub(crate) fn answered(core: &Arc<Core>, call: Call, answer: Answer) {
    let Ok(reply) = answer.result else { return };
    match (call.op, reply) {
        (_, Reply::Locked { lock, .. } | Reply::LockWaits { lock }) => unlock(core, call.target, vec![lock]),
        (Request::Open { access, .. }, Reply::Inode(view)) => close(core, view, access),
        (
            Request::Make { make: Make::File { open: Some(access), .. }, .. } | Request::MakeTmp { open: access, .. },
            Reply::Made { inode, lock, .. },
        ) => {
            close(core, inode, access);
            unlock(core, inode.attr.ino.target(), lock.into_iter().collect());
        }
        (Request::ReadBatch { .. }, Reply::FilesAhead(files)) => {
            let mut locks = Vec::new();
            for file in files.into_iter().flatten() {
                close(core, file.inode, Access { read: true, write: false });
                locks.extend(file.lock.map(|(lock, _)| lock));
            }
            unlock(core, call.target, locks);
        }
        _ => {}
    }
}

fn unlock(core: &Core, target: TargetId, locks: Vec<u64>) {
    if !locks.is_empty() {
        drop(core.insist(Lane::Answer, target, Request::LockCancel { locks }));
    }
}

/// As for any open, so that a server that restarts hears of it before it hears the close.
fn close(core: &Arc<Core>, view: InodeView, access: Access) {
    let file = core.files.open(view, access, Moment::PAST);
    release(core, &file, access, false);
}
