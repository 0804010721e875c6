//! Where the tree is that an interrupted stage had finished.
//!
//! Owns the comparison with the inode number that the journal has recorded, and the advice for people if the tree is
//! nowhere. Does not own what is done then (`stage`, `leftovers`).

use crate::dest::{JOURNAL, StageId, temporary};
use crate::ends::End;
use crate::error::{Error, reason, show};
use rustix::fs::{self, AtFlags};
use rustix::io::Errno;

/// Where a tree is now that was about to get the name of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// Under its temporary name: the rename was not done.
    Beside,
    /// Under the name of the target: only what it replaced is still to be removed.
    Named,
    /// Neither. The tree under the temporary name is what was replaced, or nobody knows what.
    Lost,
    /// Neither, and there is no tree under the temporary name.
    Gone,
}

/// Looks for the tree with this inode number. Both names are in one folder, so numbers of devices, which file systems
/// change with each mount, are not needed.
pub(crate) fn look(target: &End, id: StageId, ino: u64) -> Result<Whereabouts, Error> {
    let failed = |e| Error::refused(format!("{}: cannot look at the target: {}", show(&target.path), reason(e)));
    let beside = match fs::statat(&target.base, &*temporary(&target.name, id), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Some(stat.st_ino),
        Err(Errno::NOENT) => None,
        Err(e) => return Err(failed(e)),
    };
    let named = target.look().map_err(failed)?.map(|stat| stat.st_ino);
    Ok(match (beside, named) {
        (Some(beside), _) if beside == ino => Whereabouts::Beside,
        (_, Some(named)) if named == ino => Whereabouts::Named,
        (Some(_), _) => Whereabouts::Lost,
        (None, _) => Whereabouts::Gone,
    })
}

/// What to do about a tree that is lost.
pub(crate) fn advice(target: &End, id: StageId) -> String {
    let mut journal = temporary(&target.name, id);
    journal.push(JOURNAL);
    format!(
        "is not the copy that an earlier run finished, but probably what that copy replaced, and {} is not the copy \
         either; look at both, give the right one the name, remove the other one and {}",
        show(&target.path),
        show(&target.path.with_file_name(journal))
    )
}
