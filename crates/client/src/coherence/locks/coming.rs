//! Locks that come with the answer to a request for something else.
//!
//! Owns: entering them before that request is sent, so that a callback which overtakes the answer is remembered and
//! nobody asks for the same lock meanwhile. Does not own: the rules (`dlm`).

use super::{Pin, note_uses, pump};
use crate::core::Core;
use amphi_dlm::{Granted, LockId, Mode, RequestId};
use amphi_types::{ByteRange, ObjectId, TargetId};
use std::sync::Arc;

/// A read lock that may come. Dropped without, nobody waits for it any more.
pub(crate) struct Coming {
    core: Arc<Core>,
    target: TargetId,
    request: Option<RequestId>,
}

impl Coming {
    /// On stripe 0 of a file, which lies with its inode.
    pub(crate) fn new(core: &Arc<Core>, object: ObjectId) -> Coming {
        let target = object.ino.target();
        let request = core.locks.with(target, |cache| cache.ask(object, Mode::Read, ByteRange::ALL));
        Coming { core: core.clone(), target, request: Some(request) }
    }

    /// It has come; pinned. `None` if the session has lost it.
    pub(crate) fn granted(mut self, lock: u64, range: ByteRange) -> Option<Pin> {
        let (core, request) = (&self.core, self.request.take()?);
        let granted = core.locks.with(self.target, |cache| {
            if cache.len() >= core.locks.limits.lock().max_locks {
                note_uses(core, cache);
            }
            cache.granted(core.clock.now_ns(), request, LockId(lock), range)
        });
        match granted {
            Granted::Pinned(lock) => {
                Some(Pin { core: core.clone(), target: self.target, lock, own: false, once: false })
            }
            Granted::Unwanted => None,
        }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.core.locks.with(self.target, |cache| cache.withdraw(request));
        }
        self.core.locks.answered.notify();
        pump(&self.core, self.target);
    }
}
