//! Earlier generations: adding, restoring, listing and removing them.

use crate::error::{During, Error, Result, show};
use crate::place::{Place, Publication, id_of, sync_dir};
use crate::record::{self, Begun, ready_name};
use crate::tree;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// An earlier generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The higher, the younger.
    pub number: u64,
    /// The path of its tree.
    pub tree: PathBuf,
}

/// A publication that was begun and is not committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The tree of the generation.
    pub tree: PathBuf,
    /// Ranks; 0 if that is not known any more.
    pub ranks: u32,
    /// How many of them are ready.
    pub ready: u32,
    /// Since when nothing has changed in its folder and anywhere in its tree.
    pub idle: Duration,
}

/// The trees of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Publications.
    pub open: Vec<Open>,
    /// Earlier generations, the youngest first.
    pub generations: Vec<Generation>,
}

/// The publications under way for `dir`, and its earlier generations.
pub fn list(dir: &Path) -> Result<Listed> {
    let place = Place::of(&std::path::absolute(dir).during("find", dir)?)?;
    let mut open = Vec::new();
    for publication in place.publications()? {
        let folder = publication.folder();
        let ranks = record::read::<Begun>(&folder.join("begun"))?.map_or(0, |begun| begun.ranks);
        let ready = (0..ranks).filter(|rank| folder.join(ready_name(*rank)).exists()).count() as u32;
        let now = SystemTime::now();
        let idle = now.duration_since(tree::changed(&folder, now)?).unwrap_or_default();
        open.push(Open { tree: publication.tree(), ranks, ready, idle });
    }
    Ok(Listed { open, generations: generations(&place)? })
}

fn generations(place: &Place) -> Result<Vec<Generation>> {
    let old = place.old();
    let entries = match fs::read_dir(&old) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.during("list", &old)?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.during("list", &old)?;
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        all.extend(number.map(|number| Generation { number, tree: entry.path() }));
    }
    all.sort_by_key(|g| std::cmp::Reverse(g.number));
    Ok(all)
}

/// Completes a publication that has its name: the previous tree becomes a generation, and the records are removed.
/// `step` is called before each step.
pub(crate) fn complete(publication: &Publication, step: &dyn Fn(&'static str) -> Result<()>) -> Result<()> {
    let tree = publication.tree();
    // The exchange may not have been synced.
    sync_dir(&publication.place.parent)?;
    if tree.is_dir() && id_of(&tree)?.as_deref() != Some(publication.id.as_bytes()) {
        step("put away")?;
        put_away(&publication.place, &tree)?;
    }
    if !publication.folder().is_dir() {
        return Ok(());
    }
    step("remove records")?;
    tree::remove(&publication.folder())?;
    sync_dir(&publication.place.work())
}

/// Completes the publication that has the name, if that was interrupted. Afterwards the tree of no publication is one
/// that had the name. Needs the lock.
pub(crate) fn settle(place: &Place) -> Result<()> {
    let Some(id) = id_of(&place.dir())? else { return Ok(()) };
    let interrupted = place.publications()?.into_iter().find(|p| p.id.as_bytes() == id);
    interrupted.map_or(Ok(()), |publication| complete(&publication, &|_| Ok(())))
}

/// Makes `tree`, which had the name, the youngest generation.
fn put_away(place: &Place, tree: &Path) -> Result<()> {
    let old = place.old();
    match fs::create_dir(&old) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        made => made.during("make", &old)?,
    }
    let number = generations(place)?.first().map_or(1, |g| g.number + 1);
    let to = old.join(format!("{number}"));
    renameat_with(CWD, tree, CWD, &to, RenameFlags::NOREPLACE).during("move the tree before", &to)?;
    sync_dir(&old)?;
    sync_dir(&place.work())
}

/// Removes the oldest generations beyond `keep`.
pub(crate) fn trim(place: &Place, keep: usize) -> Result<()> {
    generations(place)?.iter().skip(keep).try_for_each(|g| tree::remove(&g.tree))
}

/// Gives the name back to an earlier generation: the youngest, or the one of this number. The tree that had the name
/// takes its place among the generations, so the same call with the same number undoes it. Stable on return.
///
/// Errors: there is no such generation.
pub fn rollback(dir: &Path, number: Option<u64>) -> Result<Generation> {
    let place = Place::of(&std::path::absolute(dir).during("find", dir)?)?;
    let none = || match number {
        Some(number) => Error::refused(format!("{}: has no generation {number}; `list` shows them", show(dir))),
        None => Error::refused(format!("{}: has no earlier generation", show(dir))),
    };
    if !place.work().is_dir() {
        return Err(none());
    }
    let _lock = place.lock()?;
    settle(&place)?;
    let to = generations(&place)?.into_iter().find(|g| number.is_none_or(|n| n == g.number)).ok_or_else(none)?;
    let name = place.dir();
    let exchanged = match name.is_dir() {
        true => renameat_with(CWD, &to.tree, CWD, &name, RenameFlags::EXCHANGE),
        false => renameat_with(CWD, &to.tree, CWD, &name, RenameFlags::NOREPLACE),
    };
    exchanged.during("give its name back", &name)?;
    sync_dir(&place.parent)?;
    sync_dir(&place.old())?;
    Ok(to)
}

/// Removes publications in which nothing has changed for `idle`, neither in their folder nor anywhere in their tree;
/// returns their trees.
pub fn clean(dir: &Path, idle: Duration) -> Result<Vec<PathBuf>> {
    clean_at(dir, idle, SystemTime::now())
}

/// The same at a given time.
pub(crate) fn clean_at(dir: &Path, idle: Duration, now: SystemTime) -> Result<Vec<PathBuf>> {
    let place = Place::of(&std::path::absolute(dir).during("find", dir)?)?;
    if !place.work().is_dir() {
        return Ok(Vec::new());
    }
    let _lock = place.lock()?;
    settle(&place)?;
    let mut removed = Vec::new();
    let latest = now.checked_sub(idle).unwrap_or(SystemTime::UNIX_EPOCH);
    for publication in place.publications()? {
        if tree::changed(&publication.folder(), latest)? <= latest {
            tree::remove(&publication.folder())?;
            removed.push(publication.tree());
        }
    }
    Ok(removed)
}
