//! Beginning, being ready, committing, aborting.

use crate::error::{During, Error, Result, show};
use crate::generations::{complete, settle, trim};
use crate::place::{Place, Publication, mark, sync_dir};
use crate::record::{self, Begun, Ready, ready_name};
use crate::tree;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

/// Time between two looks for ranks that are not ready.
const LOOK: Duration = Duration::from_millis(100);
/// Most ranks.
const RANKS_MAX: u32 = 1 << 24;
/// Ranks and files that an error names.
const NAMED_MAX: usize = 8;

/// How a tree is committed.
pub struct Options<'a> {
    /// Earlier generations that stay.
    pub keep: usize,
    /// How long to wait for ranks that are not ready.
    pub wait: Duration,
    /// Hears how many files of how many are stable.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
    /// Called before each step; an error ends the commit there, as a crash would. For tests.
    pub step: &'a dyn Fn(&'static str) -> Result<()>,
}

/// The result of a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The name.
    pub dir: PathBuf,
    /// Number of files in the tree; 0 if it had been published before.
    pub files: usize,
    /// The bytes of these files.
    pub bytes: u64,
    /// The tree had been published before, and only the remaining work is done now.
    pub before: bool,
}

/// Begins a publication at `dir` by `ranks` processes. Returns the path of the tree to write into: an empty directory
/// with owner and mode of the present one. The tree is stable on return.
///
/// Errors: `dir` is no directory, its folder is missing or may not be written.
pub fn begin(dir: &Path, ranks: u32) -> Result<PathBuf> {
    if !(1..=RANKS_MAX).contains(&ranks) {
        return Err(Error::refused(format!("{ranks} ranks: there can be 1 to {RANKS_MAX}")));
    }
    let dir = std::path::absolute(dir).during("find", dir)?;
    let place = Place::of(&dir)?;
    make(&place.work(), 0o700)?;
    let id = new_id();
    let publication = Publication { place, id };
    make(&publication.folder(), 0o755)?;
    let (tree, before) = (publication.tree(), fs::metadata(&dir).ok());
    // The tree has the permissions of the folder that it replaces: the same users may write here.
    let mode = before.as_ref().map_or(0o755, |meta| meta.permissions().mode() & 0o7777);
    make(&tree, mode)?;
    if let Some(meta) = before {
        // Only root may change the owner of the tree; for other users the error is reported here.
        std::os::unix::fs::chown(&tree, Some(meta.uid()), Some(meta.gid()))
            .during("give it the owner of what it replaces", &tree)?;
        fs::set_permissions(&tree, fs::Permissions::from_mode(mode)).during("set the mode of", &tree)?;
    }
    let at_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    record::write(&publication, "begun", &Begun { ranks, at_s })?;
    sync_dir(&publication.place.work())?;
    sync_dir(&publication.place.parent)?;
    Ok(tree)
}

/// Makes a directory; an existing one is fine.
fn make(path: &Path, mode: u32) -> Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        done => done.during("make", path),
    }
}

/// A unique id: the time in ns and the process.
fn new_id() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let mut random = [0; 4];
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    format!("{now:016x}{:08x}", u32::from_ne_bytes(random))
}

fn begun(publication: &Publication) -> Result<Begun> {
    let path = publication.folder().join("begun");
    record::read(&path)?.ok_or_else(|| {
        let text = "is no publication: it was committed or aborted, or never begun";
        Error::refused(format!("{}: {text}", show(&publication.tree())))
    })
}

/// Called when rank `rank` is done. On return, everything in `paths`, which are files and trees below `tree` that this
/// rank has written, is stable; a commit refuses when one of them has changed since. A repeated call replaces the
/// earlier list.
///
/// Errors: a rank that there is not; paths outside the tree.
pub fn ready(tree: &Path, rank: u32, paths: &[PathBuf]) -> Result<()> {
    let publication = Publication::of_tree(tree)?;
    let ranks = begun(&publication)?.ranks;
    if rank >= ranks {
        return Err(Error::refused(format!("rank {rank}: this publication has ranks 0 to {}", ranks - 1)));
    }
    let tree = publication.tree();
    let mut said = Ready::default();
    for path in paths {
        let path = if path.is_absolute() { path.clone() } else { tree.join(path) };
        tree::relative(&path, &tree)?;
        let all = tree::list(&path)?;
        tree::sync(&all, &|_| ())?;
        for file in &all.files {
            said.files.push(tree::finished(file, &tree)?);
        }
    }
    record::write(&publication, &ready_name(rank), &said)
}

/// Gives the tree its name, when all ranks are ready and everything in it is stable. The tree that had the name becomes
/// the youngest of the earlier generations.
///
/// Interrupted anywhere, the name leads to the old tree or the new one, and the same call again does the rest.
///
/// Errors: if ranks are not ready; if files have changed since their rank was ready; if another file system is mounted
/// in between.
pub fn commit(tree: &Path, options: &Options<'_>) -> Result<Committed> {
    let publication = Publication::of_tree(tree)?;
    let before = publication.is_published()?;
    if !before {
        begun(&publication)?;
    }
    let _lock = publication.place.lock()?;
    let before = before || publication.is_published()?;
    let (files, bytes) = if before { (0, 0) } else { put_in_place(&publication, options)? };
    complete(&publication, options.step)?;
    (options.step)("trim")?;
    trim(&publication.place, options.keep)?;
    Ok(Committed { dir: publication.place.dir(), files, bytes, before })
}

/// Up to the exchange of the names.
fn put_in_place(publication: &Publication, options: &Options<'_>) -> Result<(usize, u64)> {
    let finished = all_ready(publication, options.wait)?;
    let (tree, dir, parent) = (publication.tree(), publication.place.dir(), &publication.place.parent);
    (options.step)("sync")?;
    let all = tree::list(&tree)?;
    let count = all.files.len();
    let bytes = tree::sync(&all, &|done| (options.progress)(done, count))?;
    unchanged(&finished, &all, &tree)?;
    // The tree of an interrupted commit of another publication has had the name, and must not get it again.
    settle(&publication.place)?;
    (options.step)("mark")?;
    mark(&tree, &publication.id)?;
    sync_dir(&tree)?;
    (options.step)("exchange")?;
    match renameat_with(CWD, &tree, CWD, &dir, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => {
            renameat_with(CWD, &tree, CWD, &dir, RenameFlags::EXCHANGE)
                .during("give its name to the new tree", &dir)?;
        }
        done => done.during("give its name to the new tree", &dir)?,
    }
    (options.step)("sync the exchange")?;
    sync_dir(parent)?;
    sync_dir(&publication.folder())?;
    Ok((count, bytes))
}

/// The lists of all ranks, once they are complete.
fn all_ready(publication: &Publication, wait: Duration) -> Result<Vec<Ready>> {
    let ranks = begun(publication)?.ranks;
    let (mut said, mut waited) = (BTreeMap::new(), Duration::ZERO);
    loop {
        let mut missing = Vec::new();
        for rank in (0..ranks).filter(|rank| !said.contains_key(rank)).collect::<Vec<_>>() {
            match record::read::<Ready>(&publication.folder().join(ready_name(rank)))? {
                Some(ready) => drop(said.insert(rank, ready)),
                None => missing.push(rank.to_string()),
            }
        }
        if missing.is_empty() {
            return Ok(said.into_values().collect());
        }
        if waited >= wait {
            let more = missing.len().saturating_sub(NAMED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            missing.truncate(NAMED_MAX);
            let text = format!("of {ranks} ranks these are not ready: {}{more}", missing.join(", "));
            return Err(Error::refused(format!("{}: {text}", show(&publication.tree()))));
        }
        sleep(LOOK);
        waited += LOOK;
    }
}

/// Returns whether the files that ranks have named are unchanged.
fn unchanged(said: &[Ready], all: &tree::Listing, tree: &Path) -> Result<()> {
    if said.iter().all(|ready| ready.files.is_empty()) {
        return Ok(());
    }
    let mut now = BTreeMap::new();
    for file in &all.files {
        let finished = tree::finished(file, tree)?;
        now.insert(finished.path.clone(), finished);
    }
    let other = |was: &&record::Finished| now.get(&was.path) != Some(was);
    let changed: Vec<&str> = said.iter().flat_map(|r| &r.files).filter(other).map(|f| f.path.as_str()).collect();
    if changed.is_empty() {
        return Ok(());
    }
    let shown = changed.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    let text = format!("{} files changed or went after their rank was ready: {shown}", changed.len());
    Err(Error::refused(format!("{}: {text}; let the ranks say again that they are ready", show(tree))))
}

/// Ends a publication without publishing: its tree is removed. A publication that already has its name is not aborted.
pub fn abort(tree: &Path) -> Result<()> {
    let publication = Publication::of_tree(tree)?;
    begun(&publication)?;
    let _lock = publication.place.lock()?;
    if publication.is_published()? {
        settle(&publication.place)?;
        let text = "is published already; `rollback` gives the name back to the tree before";
        return Err(Error::refused(format!("{}: {text}", show(&publication.place.dir()))));
    }
    // From here on no commit can begin.
    let begun = publication.folder().join("begun");
    fs::remove_file(&begun).during("remove", &begun)?;
    tree::remove(&publication.folder())
}
