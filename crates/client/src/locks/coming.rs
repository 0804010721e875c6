//! Locks that come with the answer to another request.
//!
//! Owns: entering such a lock before the request is sent. So a callback that overtakes the answer is remembered, and no
//! other call requests the same lock meanwhile. Does not own: the rules (`dlm`).

use super::{Pin, note_uses, pump};
use crate::mount::Mount;
use amphi_dlm::{Granted, LockId, Mode, RequestId};
use amphi_types::{ByteRange, ObjectId, TargetId};
use std::sync::Arc;

/// A read lock that may come with an answer. If it is dropped without a grant, no call waits for it any more.
pub(crate) struct Coming {
    mount: Arc<Mount>,
    target: TargetId,
    request: Option<RequestId>,
}

impl Coming {
    /// A lock on stripe 0 of a file, which is on the target of its inode.
    pub(crate) fn new(mount: &Arc<Mount>, object: ObjectId) -> Coming {
        let target = object.ino.target();
        let request = mount.coherence.locks.with(target, |cache| cache.ask(object, Mode::Read, ByteRange::ALL));
        Coming { mount: mount.clone(), target, request: Some(request) }
    }

    /// Called when the lock has come, and is pinned. Returns `None` if it was lost with the session.
    pub(crate) fn granted(mut self, lock: u64, range: ByteRange) -> Option<Pin> {
        let (mount, request) = (&self.mount, self.request.take()?);
        let granted = mount.coherence.locks.with(self.target, |cache| {
            if cache.len() >= mount.coherence.locks.limits.lock().max_locks {
                note_uses(mount, cache);
            }
            cache.granted(mount.clock.now_ns(), request, LockId(lock), range)
        });
        match granted {
            Granted::Pinned(lock) => {
                Some(Pin { mount: mount.clone(), target: self.target, lock, own: false, once: false })
            }
            Granted::Unwanted => None,
        }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.mount.coherence.locks.with(self.target, |cache| cache.withdraw(request));
        }
        self.mount.coherence.locks.answered.notify();
        pump(&self.mount, self.target);
    }
}
