//! Remains of other stages beside the target.
//!
//! Owns finding and removing such remains. An entry is removed only if it has a journal of this crate that no process
//! holds; other entries with such a name are reported and stay.

use crate::dest::{JOURNAL, StageId, is_of_stage, stage_of, temporary};
use crate::ends::End;
use crate::error::{Error, reason, show};
use crate::journal::{Journal, NoJournal};
use crate::remove;
use crate::report::Progress;
use crate::walk;
use crate::whereabouts::{self, Whereabouts};
use rustix::fs::{self, AtFlags, FileType};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Stages other than `own` that left files next to the target.
pub(crate) fn find(target: &End, own: Option<StageId>) -> Result<Vec<StageId>, Error> {
    let names = walk::names(&*target.base)
        .map_err(|e| Error::refused(format!("{}: cannot list its folder: {}", show(&target.path), reason(e))))?;
    let mut ids: Vec<StageId> = names.iter().filter_map(|(_, name)| stage_of(&target.name, name)).collect();
    ids.retain(|id| Some(*id) != own);
    ids.sort_unstable_by_key(|id| id.0);
    ids.dedup();
    Ok(ids)
}

/// The name of a stage's journal.
pub(crate) fn journal(target: &OsStr, id: StageId) -> OsString {
    let mut name = temporary(target, id);
    name.push(JOURNAL);
    name
}

/// Names the files that other stages left.
pub(crate) fn tell(target: &End, ids: &[StageId], progress: &Progress) {
    for id in ids {
        let path = target.path.with_file_name(temporary(&target.name, *id));
        let about = match Journal::open(&*target.base, &journal(&target.name, *id), false) {
            Ok((_, known)) => match known.begin {
                Some(begin) => {
                    let source = show(Path::new(OsStr::from_bytes(&begin.source)));
                    format!("was left by an unfinished stage of {source}; --clean removes it")
                }
                None => "was left by an unfinished stage; --clean removes it".to_string(),
            },
            Err(NoJournal::InUse) => "belongs to another stage that is at work".to_string(),
            Err(_) => "has the name of an unfinished stage, but no journal of one".to_string(),
        };
        progress.remarks.add(&path, about);
    }
}

/// Removes remains of stages on which no process works.
pub(crate) fn clean(target: &End, ids: &[StageId], progress: &Progress) -> Result<(), Error> {
    for id in ids {
        let (tree, journal_name) = (temporary(&target.name, *id), journal(&target.name, *id));
        let path = target.path.with_file_name(&tree);
        // Held until its name is gone.
        let (_journal, known) = match Journal::open(&*target.base, &journal_name, false) {
            Ok(opened) => opened,
            Err(NoJournal::InUse) => {
                progress.remarks.add(&path, "belongs to a stage that is at work; it stays");
                continue;
            }
            Err(NoJournal::NotOne | NoJournal::Failed(Errno::NOENT)) => {
                let why =
                    "has the name of an unfinished stage, but no journal of one; it stays: look at it and remove it";
                progress.remarks.add(&path, why);
                continue;
            }
            Err(NoJournal::Failed(e)) => return Err(Error::target("read the journal", &path, e)),
        };
        if let Some(ino) = known.publish
            && whereabouts::look(target, *id, ino)? == Whereabouts::Lost
        {
            progress.remarks.add(&path, format!("stays: it {}", whereabouts::advice(target, *id)));
            continue;
        }
        if known.begin.is_some_and(|begin| begin.mode == 1) {
            clean_update(target, *id)?;
        }
        remove::whatever(&*target.base, &tree).map_err(|e| Error::target("remove what a stage left", &path, e))?;
        fs::unlinkat(&*target.base, &*journal_name, AtFlags::empty())
            .map_err(|e| Error::target("remove the journal", &path, e))?;
        progress.remarks.add(&path, "was left by an unfinished stage and is removed");
    }
    Ok(())
}

/// Removes the temporary names that an unfinished update left in the tree of the target.
///
/// Errors: the tree cannot be listed whole, so that some of them may be left.
fn clean_update(target: &End, id: StageId) -> Result<(), Error> {
    if target.stat.is_none_or(|s| FileType::from_raw_mode(s.st_mode) != FileType::Directory) {
        return Ok(());
    }
    let progress = Progress::default();
    let tree = walk::walk(target.tree(), &target.path, 1, &progress)?;
    for entry in tree.entries.iter().filter(|e| e.own.is_none() && is_of_stage(&e.name, id)) {
        let removed = tree.place(entry).and_then(|place| remove::whatever(&place.dir, &place.name));
        removed.map_err(|e| Error::target("remove what a stage left", &tree.path(entry), e))?;
    }
    match progress.failed.first().into_iter().next() {
        None => Ok(()),
        Some(note) => Err(Error::failed(format!(
            "{}: {}, so what a stage left there is not removed; clean again as a user who may list it",
            note.path, note.reason
        ))),
    }
}
