//! Files that are in the table without being open, for as long as a call needs them.

use crate::inode::Use;
use crate::inode::{AskedAt, Inode};
use crate::mount::Mount;
use amphi_types::Ino;
use amphi_wire::InodeView;
use std::sync::Arc;

/// A file that was known, in use without being open. When it is dropped and nothing else uses the file, the file is
/// forgotten.
pub(crate) struct InUse {
    mount: Arc<Mount>,
    used: Option<Use>,
    /// The file stays known.
    stays: bool,
}

impl InUse {
    pub(crate) fn file(&self) -> &Arc<Inode> {
        &self.used.as_ref().expect("there until it is dropped").0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if let Some(used) = self.used.take() {
            let file = used.0.clone();
            drop(used);
            if !self.stays {
                self.mount.files.reap(&file);
            }
        }
    }
}

/// The file, if it is in the table. The file stays in the table as long as the result exists, so no second `Inode` of
/// it is made meanwhile. This is for callers that wait while they use the file, since `get` alone does not keep it in
/// the table.
pub(crate) fn use_known(mount: &Arc<Mount>, ino: Ino) -> Option<InUse> {
    let used = mount.files.use_known(ino)?;
    Some(InUse { mount: mount.clone(), used: Some(used), stays: false })
}

/// The file, which stays in the table as long as the result lives, although it is not open. In shared mode it stays in
/// the table afterwards too. If it were dropped at once in shared mode, a size that was requested during a truncate
/// could be one that the file never had (seed 4000069 of contention).
pub(crate) fn know(mount: &Arc<Mount>, view: InodeView, asked_at: AskedAt) -> InUse {
    let stays = mount.coherence.sharing.rule() & 1 == 0;
    InUse { mount: mount.clone(), used: Some(mount.files.know(view, asked_at)), stays }
}
