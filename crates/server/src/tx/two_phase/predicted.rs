//! Directories that will be removed next, as operations meet them.
//!
//! Owns: which changes count, and the sync that begins ahead of need. Does not own: the rule
//! (`zone_target::predicted`).

use crate::worker::request::RequestCx;
use amphi_env::Env;
use amphi_meta::Part;
use amphi_types::{Ino, Kind};
use amphi_zone::Lsn;

/// Returns whether the change is a participant's in the removal of a directory.
pub(in crate::tx) fn removes_directory(part: &Part) -> bool {
    matches!(part, Part::Unlink { kind: Kind::Dir, .. })
}

/// The directory that loses a name.
pub(in crate::tx) fn losing_directory(parts: &[Part]) -> Option<Ino> {
    parts.iter().find_map(|part| match part {
        Part::RemoveDentry { dir, .. } => Some(*dir),
        _ => None,
    })
}

impl<E: Env> RequestCx<E> {
    /// Record `lsn`, which is written, removed a name from `dir`. If that was the last name and the removal of the
    /// directory is expected, begins to make the record stable. No operation waits for this sync.
    pub(in crate::tx) fn foresee_removal(&self, dir: Ino, lsn: Lsn) {
        let parent = {
            let meta = self.target.meta.borrow();
            if !meta.inode(dir).is_ok_and(|inode| inode.dir.entries == 0) {
                return;
            }
            meta.parent(dir)
        };
        let apart = parent.is_ok_and(|p| p.target() != self.target.id && self.worker.routes.is_local(p.target()));
        if !apart || !self.target.txs.borrow_mut().predicted.emptied() {
            return;
        }
        let target = self.target.clone();
        self.worker.env.clone().spawn(async move {
            // An error ends the zone, and the next request that needs the zone gets the error.
            let _ = target.zone.stable(lsn).await;
        });
    }
}
