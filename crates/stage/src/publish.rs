//! The appearance of the target: as a whole, by one rename.
//!
//! Owns the last steps of a stage into a new tree, and finishing them when they were interrupted. The journal first
//! names the tree that is about to get the name. A later run that finds this tree under the name therefore knows that
//! only the replaced tree has to be removed. Invariant: once the journal names a tree, only that tree is continued as a
//! copy; another one under the temporary name is what the copy replaced, and may be the only one of its kind.

use crate::ends::Ends;
use crate::error::{Error, show};
use crate::leftovers;
use crate::options::Existing;
use crate::remove;
use crate::stable::Stable;
use rustix::fs::{self, AtFlags, RenameFlags};
use rustix::io::Errno;

/// Gives the finished tree the name of the target.
pub(crate) fn rename(ends: &Ends, existing: Existing) -> Result<(), Error> {
    let (base, temporary, name) = (&*ends.target.base, ends.temporary(), ends.target.name.as_os_str());
    let path = show(&ends.target.path);
    let failed = |e| Error::target("give the copy its name", &ends.target.path, e);
    for _ in 0..2 {
        match fs::renameat_with(base, &*temporary, base, name, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) if existing == Existing::Replace => {}
            Err(Errno::EXIST) => {
                return Err(Error::failed(format!(
                    "{path}: came into being while the copy was made, and stays; the copy is finished: give the same \
                     command with --replace"
                )));
            }
            // If the file system lacks this flag, a check before the rename has to be sufficient.
            Err(Errno::INVAL | Errno::NOSYS) if ends.target.look().map_err(failed)?.is_none() => {
                return fs::renameat(base, &*temporary, base, name).map_err(failed);
            }
            Err(e) => return Err(failed(e)),
        }
        match fs::renameat_with(base, &*temporary, base, name, RenameFlags::EXCHANGE) {
            Ok(()) => return Ok(()),
            // The entry was removed between the two calls.
            Err(Errno::NOENT) => {}
            Err(Errno::INVAL | Errno::NOSYS) => {
                return Err(Error::failed(format!(
                    "{path}: its file system cannot exchange two names; the copy is finished: remove the old target and \
                     give the same command again"
                )));
            }
            Err(e) => return Err(failed(e)),
        }
    }
    Err(Error::failed(format!("{path}: appears and goes again and again; the copy is finished: try once more")))
}

/// Removes what was replaced, and the journal.
pub(crate) fn tidy_up(ends: &Ends, stable: &Stable) -> Result<(), Error> {
    let base = &*ends.target.base;
    let failed = |e| Error::target("remove what was replaced", &ends.beside(&ends.temporary()), e);
    stable.sync_dir(base).map_err(failed)?;
    remove::whatever(base, &ends.temporary()).map_err(failed)?;
    fs::unlinkat(base, &*leftovers::journal(&ends.target.name, ends.id), AtFlags::empty()).map_err(failed)?;
    stable.sync_dir(base).map_err(failed)
}
