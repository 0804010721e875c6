//! The directories of the target, before anything is copied into them.
//!
//! Owns making them, and the comparison of the present target with the source: the remains of an earlier run in a new
//! tree, or the tree that is updated.

use crate::dest::{Dest, Naming, is_of_stage, temporary};
use crate::dirs::{DirId, chmod};
use crate::entries::{Source, kind};
use crate::error::Error;
use crate::remove;
use crate::report::lock;
use crate::walk::list;
use crate::work::{self, Stop};
use rustix::fs::{self, FileType, Mode, Stat};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The present entries of the target.
#[derive(Default)]
pub(crate) struct Found {
    /// The entries that were made, by number of the entry in the source.
    pub(crate) entries: BTreeMap<u32, Stat>,
    /// Entries that the source does not have.
    pub(crate) extras: Vec<(DirId, OsString)>,
}

/// Directories of the source by depth, the root first.
pub(crate) fn levels(source: &Source) -> Vec<Vec<DirId>> {
    let mut depth = vec![0usize; source.dirs.len()];
    let mut levels: Vec<Vec<DirId>> = Vec::new();
    for n in 0..source.dirs.len() {
        // A directory has a higher number than its parent.
        depth[n] = source.entries[source.dirs[n] as usize].dir.map_or(0, |parent| depth[parent.at()] + 1);
        if levels.len() <= depth[n] {
            levels.resize_with(depth[n] + 1, Vec::new);
        }
        levels[depth[n]].push(DirId(n as u32));
    }
    levels
}

/// Makes all directories and finds existing entries.
pub(crate) fn make(source: &Source, dest: &Dest, threads: usize, stop: &Stop) -> Result<Found, Error> {
    let found = Mutex::new(Found::default());
    let existed: Vec<AtomicBool> = source.dirs.iter().map(|_| AtomicBool::new(false)).collect();
    let root = &source.entries[0];
    if root.own.is_none()
        && let Ok(stat) = dest.place(source, root).and_then(|place| place.stat())
    {
        lock(&found).entries.insert(0, stat);
    }
    for level in levels(source) {
        work::each(threads, level.len(), stop, |n| {
            let id = level[n];
            let entry = &source.entries[source.dirs[id.at()] as usize];
            let may_exist = entry.dir.is_none_or(|parent| existed[parent.at()].load(Ordering::Acquire));
            let made = make_one(source, dest, id, may_exist).and_then(|was_there| {
                if !was_there {
                    return Ok(());
                }
                existed[id.at()].store(true, Ordering::Release);
                look(source, dest, id, &found)
            });
            if let Err(e) = made {
                stop.with(Error::target("make the directory", &source.path(entry), e));
            }
        });
        stop.check()?;
    }
    Ok(found.into_inner().unwrap_or_else(|e| e.into_inner()))
}

/// Makes a directory in which its owner can work; true means that it existed already.
fn make_one(source: &Source, dest: &Dest, id: DirId, may_exist: bool) -> Result<bool, Errno> {
    let entry = &source.entries[source.dirs[id.at()] as usize];
    let place = dest.place(source, entry)?;
    match fs::mkdirat(&place.dir, &*place.name, Mode::RWXU) {
        Ok(()) => return Ok(false),
        Err(Errno::EXIST) if may_exist => {}
        Err(e) => return Err(e),
    }
    let stat = place.stat()?;
    if kind(&stat) != FileType::Directory {
        remove::whatever(&place.dir, &place.name)?;
        fs::mkdirat(&place.dir, &*place.name, Mode::RWXU)?;
        return Ok(false);
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    if !mode.contains(Mode::RWXU) {
        chmod(&place.dir, &place.name, mode | Mode::RWXU)?;
    }
    Ok(true)
}

/// Compares the names in a directory with those that the source has there.
fn look(source: &Source, dest: &Dest, id: DirId, found: &Mutex<Found>) -> Result<(), Errno> {
    let children = &source.children[id.at()];
    let names: BTreeMap<&OsStr, u32> = children.iter().map(|n| (&*source.entries[*n as usize].name, *n)).collect();
    let working: BTreeSet<OsString> = match dest.naming {
        Naming::Whole => BTreeSet::new(),
        Naming::Each(stage) => names.keys().map(|name| temporary(name, stage)).collect(),
    };
    let dir = dest.tree.dir(&source.names, id)?;
    for (name, stat) in list(&*dir)? {
        match (names.get(name.as_os_str()), dest.naming) {
            (Some(n), Naming::Whole) if kind(&stat) != source.entries[*n as usize].kind() => {
                remove::whatever(&dir, &name)?;
            }
            (Some(n), _) => {
                lock(found).entries.insert(*n, stat);
            }
            (None, Naming::Each(_)) if working.contains(&name) => {}
            // Left by an earlier run of this stage, for something that is no longer in the source.
            (None, Naming::Whole) => remove::whatever(&dir, &name)?,
            (None, Naming::Each(stage)) if is_of_stage(&name, stage) => remove::whatever(&dir, &name)?,
            (None, Naming::Each(_)) => lock(found).extras.push((id, name)),
        }
    }
    Ok(())
}
