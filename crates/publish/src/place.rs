//! The place of all files: beside the published name, in `.NAME.publish`.
//!
//! ```text
//! PARENT/NAME                          what is published; its attribute user.publish.id says which publication it was
//! PARENT/.NAME.publish/lock            one commit, rollback or clean at a time
//! PARENT/.NAME.publish/ID/tree         what the ranks write
//! PARENT/.NAME.publish/ID/begun        how many ranks
//! PARENT/.NAME.publish/ID/ready.RANK   that a rank is done, and with which files
//! PARENT/.NAME.publish/old/NUMBER      earlier generations, the highest number the youngest
//! ```

use crate::error::{During, Error, Result, show};
use rustix::fs::{FlockOperation, XattrFlags, flock};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Name of the tree of a publication.
const TREE: &str = "tree";
/// Earlier generations.
const OLD: &str = "old";
/// The extended attribute with the ID of the publication that made a tree.
const ID: &str = "user.publish.id";
/// Longest ID, bytes.
const ID_MAX: usize = 64;

/// The name that is published.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) parent: PathBuf,
    name: OsString,
}

impl Place {
    /// The place under a name; the folder that contains the name has to exist.
    pub(crate) fn of(dir: &Path) -> Result<Place> {
        let bad = || Error::refused(format!("{}: is no name that a tree can get", show(dir)));
        let name = dir.file_name().ok_or_else(bad)?.to_os_string();
        let parent = match dir.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => return Err(bad()),
        };
        if !parent.is_dir() {
            return Err(Error::refused(format!("{}: no such folder; make it first", show(parent))));
        }
        match fs::symlink_metadata(dir) {
            Ok(there) if !there.is_dir() => {
                Err(Error::refused(format!("{}: is there and is no directory; name another", show(dir))))
            }
            _ => Ok(Place { parent: parent.to_path_buf(), name }),
        }
    }

    /// The published name itself.
    pub(crate) fn dir(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// The folder of unpublished trees and earlier generations.
    pub(crate) fn work(&self) -> PathBuf {
        let mut name = OsString::from(".");
        name.push(&self.name);
        name.push(".publish");
        self.parent.join(name)
    }

    pub(crate) fn old(&self) -> PathBuf {
        self.work().join(OLD)
    }

    /// Excludes other changes of the publication, as long as the value lives, on all mounts.
    pub(crate) fn lock(&self) -> Result<File> {
        let path = self.work().join("lock");
        let file = File::options().create(true).append(true).open(&path).during("open", &path)?;
        flock(&file, FlockOperation::LockExclusive).during("lock", &path)?;
        Ok(file)
    }

    /// Publications that were begun, in the order of their names.
    pub(crate) fn publications(&self) -> Result<Vec<Publication>> {
        let work = self.work();
        let entries = match fs::read_dir(&work) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.during("list", &work)?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let name = entry.during("list", &work)?.file_name();
            let known = name.to_str().filter(|id| is_id(id) && work.join(&name).is_dir());
            all.extend(known.map(|id| Publication { place: self.clone(), id: id.to_string() }));
        }
        all.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }
}

fn is_id(id: &str) -> bool {
    id != OLD && !id.is_empty() && id.len() <= ID_MAX && id.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// A tree that is being written.
#[derive(Clone, Debug)]
pub(crate) struct Publication {
    pub(crate) place: Place,
    pub(crate) id: String,
}

impl Publication {
    /// The publication whose tree has the path that `begin` returned.
    pub(crate) fn of_tree(tree: &Path) -> Result<Publication> {
        let tree = std::path::absolute(tree).during("find", tree)?;
        let bad = || {
            let text = "is not the path that `begin` printed, which ends in .NAME.publish/ID/tree";
            Error::refused(format!("{}: {text}", show(&tree)))
        };
        let mut up = tree.ancestors().map(|at| at.file_name().unwrap_or(OsStr::new("")));
        let (last, id, work) = (up.next(), up.next(), up.next());
        let id = id.and_then(OsStr::to_str).filter(|id| is_id(id)).ok_or_else(bad)?;
        let name = work.map(OsStr::as_bytes).and_then(|w| w.strip_prefix(b".")?.strip_suffix(b".publish"));
        let name = name.filter(|name| !name.is_empty() && last == Some(OsStr::new(TREE))).ok_or_else(bad)?;
        let parent = tree.ancestors().nth(3).ok_or_else(bad)?.to_path_buf();
        let place = Place { parent, name: OsStr::from_bytes(name).to_os_string() };
        Ok(Publication { place, id: id.to_string() })
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.place.work().join(&self.id)
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.folder().join(TREE)
    }

    /// Returns true if it is the tree that the name shows.
    pub(crate) fn is_published(&self) -> Result<bool> {
        Ok(id_of(&self.place.dir())?.as_deref() == Some(self.id.as_bytes()))
    }
}

/// The publication that made a tree; `None` if none did, or if the tree does not exist.
pub(crate) fn id_of(dir: &Path) -> Result<Option<Vec<u8>>> {
    let mut value = [0; ID_MAX];
    match rustix::fs::getxattr(dir, ID, &mut value) {
        Ok(len) => Ok(Some(value[..len].to_vec())),
        Err(Errno::NODATA | Errno::NOENT | Errno::RANGE) => Ok(None),
        Err(e) => Err(e).during("read its attribute user.publish.id", dir),
    }
}

/// Marks a tree with its publication.
pub(crate) fn mark(tree: &Path, id: &str) -> Result<()> {
    rustix::fs::setxattr(tree, ID, id.as_bytes(), XattrFlags::empty()).during("set its attribute user.publish.id", tree)
}

/// Makes a directory's entries stable.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).during("open", dir)?.sync_all().during("sync", dir)
}
