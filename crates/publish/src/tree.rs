//! Walking a tree: making all of it stable, and removing it.

use crate::error::{During, Error, Result, show};
use crate::place::sync_dir;
use crate::record::Finished;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// Files that are synced at the same time.
const THREADS: usize = 8;

/// Files and directories below a path and the path itself; directories come before their contents. Symbolic links are
/// not followed.
#[derive(Default)]
pub(crate) struct Listing {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) dirs: Vec<PathBuf>,
}

/// Lists a tree, or a single file.
pub(crate) fn list(path: &Path) -> Result<Listing> {
    let mut all = Listing::default();
    let kind = fs::symlink_metadata(path).during("look at", path)?.file_type();
    if kind.is_file() {
        all.files.push(path.to_path_buf());
        return Ok(all);
    }
    all.dirs.push(path.to_path_buf());
    let mut next = 0;
    while let Some(dir) = all.dirs.get(next).cloned() {
        next += 1;
        for entry in fs::read_dir(&dir).during("list", &dir)? {
            let entry = entry.during("list", &dir)?;
            let kind = entry.file_type().during("look at", &entry.path())?;
            if kind.is_dir() {
                all.dirs.push(entry.path());
            } else if kind.is_file() {
                all.files.push(entry.path());
            }
        }
    }
    Ok(all)
}

/// Makes files stable, whichever process wrote them, then directories; returns the bytes of the files. `done` is called
/// with the number of files that are stable.
pub(crate) fn sync(all: &Listing, done: &(dyn Fn(usize) + Sync)) -> Result<u64> {
    let (next, bytes, failed) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(None));
    let one = |path: &Path| -> Result<()> {
        let file = File::open(path).during("open", path)?;
        file.sync_all().during("sync", path)?;
        bytes.fetch_add(file.metadata().during("look at", path)?.len(), Relaxed);
        Ok(())
    };
    std::thread::scope(|s| {
        for _ in 0..THREADS.min(all.files.len()) {
            s.spawn(|| {
                while let Some(path) = all.files.get(next.fetch_add(1, Relaxed)) {
                    if let Err(e) = one(path) {
                        failed.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(e);
                        next.store(all.files.len(), Relaxed);
                    }
                    done(next.load(Relaxed).min(all.files.len()));
                }
            });
        }
    });
    if let Some(e) = failed.into_inner().unwrap_or_else(|e| e.into_inner()) {
        return Err(e);
    }
    all.dirs.iter().rev().try_for_each(|dir| sync_dir(dir))?;
    Ok(bytes.into_inner())
}

/// A path within a tree as text: bytes that are no UTF-8, and `%`, as `%XX`.
pub(crate) fn relative(path: &Path, tree: &Path) -> Result<String> {
    let inside =
        path.strip_prefix(tree).map_err(|_| Error::refused(format!("{}: is not in {}", show(path), show(tree))))?;
    let bytes = inside.as_os_str().as_bytes();
    let plain = |b: &u8| b.is_ascii_graphic() && *b != b'%';
    Ok(bytes.iter().map(|b| if plain(b) { char::from(*b).to_string() } else { format!("%{b:02X}") }).collect())
}

/// The present state of a file.
pub(crate) fn finished(path: &Path, tree: &Path) -> Result<Finished> {
    let meta = fs::symlink_metadata(path).during("look at", path)?;
    Ok(Finished { path: relative(path, tree)?, bytes: meta.len(), mtime_ns: mtime_ns(&meta) })
}

fn mtime_ns(meta: &Metadata) -> i128 {
    i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec())
}

/// When a tree last changed: the latest time of modification or change of anything in it, itself included. The walk
/// ends at the first entry that changed later than `enough`. An entry that goes while it is looked at changes now.
pub(crate) fn changed(tree: &Path, enough: SystemTime) -> Result<SystemTime> {
    let (mut latest, mut stack) = (SystemTime::UNIX_EPOCH, vec![tree.to_path_buf()]);
    while let Some(path) = stack.pop() {
        let meta = match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(SystemTime::now()),
            meta => meta.during("look at", &path)?,
        };
        latest = latest.max(change_of(&meta));
        if latest > enough {
            return Ok(latest);
        }
        if !meta.is_dir() {
            continue;
        }
        match fs::read_dir(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(SystemTime::now()),
            entries => {
                for entry in entries.during("list", &path)? {
                    stack.push(entry.during("list", &path)?.path());
                }
            }
        }
    }
    Ok(latest)
}

/// The later one of the times of modification, which programs set, and of change, which they do not.
fn change_of(meta: &Metadata) -> SystemTime {
    let at = |seconds: i64, ns: i64| {
        let since = Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(ns).unwrap_or(0));
        SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
    };
    at(meta.mtime(), meta.mtime_nsec()).max(at(meta.ctime(), meta.ctime_nsec()))
}

/// Removes a tree. One that is not there is removed.
pub(crate) fn remove(tree: &Path) -> Result<()> {
    match fs::remove_dir_all(tree) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => done.during("remove", tree),
    }
}
