//! Listing of directories, many at a time.
//!
//! Owns the walk of the source and how a directory is read. Names are looked at in the order of their inode numbers,
//! which on ext4 is the order on the disk.

use crate::dirs::{DIRECTORY, DirId, Names, Tree};
use crate::entries::{Entry, Source};
use crate::error::{Error, reason, show};
use crate::report::{Progress, lock};
use crate::work::{self, Queue, Stop};
use rustix::fs::{self, AtFlags, FileType, Mode, RawDir, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;

/// Bytes of one `getdents`.
const LISTING_BYTES: usize = 64 << 10;

/// Names in a directory with their inode numbers. The descriptor's position stays.
pub(crate) fn names(dir: impl AsFd) -> Result<Vec<(u64, OsString)>, Errno> {
    let own = fs::openat(dir, ".", DIRECTORY, Mode::empty())?;
    let mut memory = Vec::with_capacity(LISTING_BYTES);
    let mut reader = RawDir::new(&own, memory.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = reader.next() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push((entry.ino(), name.to_os_string()));
        }
    }
    Ok(names)
}

/// Names in a directory with their attributes from `stat`.
pub(crate) fn list(dir: impl AsFd) -> Result<Vec<(OsString, Stat)>, Errno> {
    let mut names = names(&dir)?;
    names.sort_unstable();
    let mut found = Vec::with_capacity(names.len());
    for (_, name) in names {
        match fs::statat(&dir, &*name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => found.push((name, stat)),
            // The entry was removed meanwhile. The end of the listing detects the change of the directory.
            Err(Errno::NOENT) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

/// Lists the whole source. Directories that cannot be listed are failures by name.
pub(crate) fn walk(tree: Tree, shown: &Path, threads: usize, progress: &Progress) -> Result<Source, Error> {
    let stop = Stop::default();
    let stat = fs::statat(tree.base(), tree.root(), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|e| Error::refused(format!("{}: cannot look at the source: {}", show(shown), reason(e))))?;
    let names = Names::default();
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let own = is_dir.then(|| names.add(DirId::ROOT, OsStr::new("")));
    let root_name = shown.file_name().unwrap_or(OsStr::new("/"));
    let entries = Mutex::new(vec![Entry { dir: None, name: root_name.into(), stat, own }]);
    progress.entries.add(1);
    work::run(
        threads,
        own,
        &stop,
        || (),
        |queue: &Queue<DirId>, id, ()| {
            let listed = tree.dir(&names, id).and_then(|fd| list(&fd));
            let path = || Path::new(root_name).join(names.below_root(id));
            match listed {
                Ok(found) => {
                    progress.entries.add(found.len() as u64);
                    let mut entries = lock(&entries);
                    for (name, stat) in found {
                        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                        let own = is_dir.then(|| names.add(id, &name));
                        // Depth first, so that what waits is bounded by depth and width, not by the whole tree.
                        own.into_iter().for_each(|own| queue.push_first(own));
                        entries.push(Entry { dir: Some(id), name: name.into(), stat, own });
                    }
                }
                Err(e) => progress.failed.add(&path(), format!("cannot be listed: {}", reason(e))),
            }
        },
    );
    stop.check()?;
    let entries = entries.into_inner().unwrap_or_else(|e| e.into_inner());
    let mut children = vec![Vec::new(); names.len()];
    let mut dirs = vec![0; names.len()];
    for (n, entry) in entries.iter().enumerate() {
        let n = u32::try_from(n)
            .map_err(|_| Error::refused(format!("{}: has more than 4 billion entries", show(shown))))?;
        if let Some(dir) = entry.dir {
            children[dir.at()].push(n);
        }
        if let Some(own) = entry.own {
            dirs[own.at()] = n;
        }
    }
    Ok(Source { tree, names, entries, children, dirs })
}
