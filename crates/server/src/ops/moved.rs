//! Directories that were moved or removed: other mounts are informed, so that their kernels find them at their new
//! places.
//!
//! A kernel keeps one place for each directory that it knows. It uses this place for `..` and for the path of a working
//! directory, without a request to its mount. The kernel moves a directory when a look-up shows it at its new place,
//! and drops it when a look-up finds that it does not exist. But it may take long until any program makes such a
//! look-up. So each other mount is informed of the name, and makes its kernel look the name up. The change is answered
//! when all have done so, or after a short time (`coherence::questions`).
//!
//! Owns: the choice of the mounts that are notified. Does not own: how a mount makes its kernel look the name up.
//! Invariant: nothing that a mount may need to look is held meanwhile, neither names nor tokens nor the lock on moving
//! directories.

use crate::counters::add;
use crate::worker::request::RequestCx;
use amphi_env::Env;
use amphi_types::{Ino, Name, Result};
use amphi_wire::{Push, Reply};

/// A directory, its parent and its name now, or those that it had when it was removed.
pub type Changed = (Ino, Ino, Name);

impl<E: Env> RequestCx<E> {
    /// Makes other mounts look up directories that have been moved or removed.
    pub async fn show_changed(&self, changed: Vec<Changed>) {
        let others = self.target.sessions.alive().into_iter().map(|(session, _)| session);
        let others: Vec<_> = others.filter(|session| *session != self.session).collect();
        if others.is_empty() {
            return;
        }
        // The directories are looked up one after the other: a kernel that looks up both directories of an exchange at
        // the same time may drop one of them.
        for (ino, dir, name) in changed {
            let asked = self.target.coherence.changed_directories.ask(self.worker.now_ns(), others.iter().copied());
            for &(session, id) in asked.sessions.iter().chain(&asked.not_awaited) {
                let place = Some((dir, name.clone()));
                let push = Push::DirectoryChanged { target: self.target.id, id, ino, place };
                add(&self.worker.counters.directories_changed, 1);
                self.worker.push(session, push);
            }
            asked.wait(&self.worker.env).await;
        }
    }

    /// `Request::DirectoryShown`.
    pub fn directory_shown(&self, id: u64) -> Result<Reply> {
        self.target.coherence.changed_directories.answered(self.session, id);
        Ok(Reply::Done)
    }
}
