//! Directories of a tree, reached by descriptors.
//!
//! Owns the names of all directories, which source and target have in common, and for each side a bounded number of
//! open descriptors. A directory is opened from its parent's descriptor and never through a symbolic link, so that a
//! program that renames or replaces things meanwhile cannot lead the copy out of the tree.

use crate::report::lock;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};

/// Open directories of one side. When more are open, all are closed, and the next ones are opened from the top again.
const OPEN_MAX: usize = 256;
/// How a directory is opened.
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DirId(pub(crate) u32);

impl DirId {
    /// The directory at the top of the tree, where there is one.
    pub(crate) const ROOT: DirId = DirId(0);

    /// The number as an index.
    pub(crate) fn at(self) -> usize {
        self.0 as usize
    }
}

struct Name {
    parent: DirId,
    name: Box<OsStr>,
}

/// The names of all directories; the root has no name here, since its name differs between the two sides.
#[derive(Default)]
pub(crate) struct Names {
    list: RwLock<Vec<Name>>,
}

impl Names {
    /// Adds a directory. The first one is the root.
    pub(crate) fn add(&self, parent: DirId, name: &OsStr) -> DirId {
        let mut list = self.list.write().unwrap_or_else(|e| e.into_inner());
        list.push(Name { parent, name: name.into() });
        DirId(u32::try_from(list.len() - 1).expect("fewer directories than fit into memory"))
    }

    /// Number of directories.
    pub(crate) fn len(&self) -> usize {
        self.list.read().unwrap_or_else(|e| e.into_inner()).len()
    }

    /// Names on the way up from `id`, the nearest first, to a directory for which `is_end` holds or to the root.
    fn way_up(&self, id: DirId, is_end: impl Fn(DirId) -> bool) -> (DirId, Vec<(DirId, Box<OsStr>)>) {
        let list = self.list.read().unwrap_or_else(|e| e.into_inner());
        let (mut at, mut way) = (id, Vec::new());
        while at != DirId::ROOT && !is_end(at) {
            let entry = &list[at.at()];
            way.push((at, entry.name.clone()));
            at = entry.parent;
        }
        (at, way)
    }

    /// The path of a directory below the root.
    pub(crate) fn below_root(&self, id: DirId) -> PathBuf {
        self.way_up(id, |_| false).1.into_iter().rev().map(|(_, name)| PathBuf::from(name.into_os_string())).collect()
    }
}

/// One side: the folder that holds the root of the tree, and the root's name there.
pub(crate) struct Tree {
    base: Arc<OwnedFd>,
    root: OsString,
    open: Mutex<BTreeMap<DirId, Arc<OwnedFd>>>,
}

/// A name in an open directory.
pub(crate) struct Place<'a> {
    pub(crate) dir: Arc<OwnedFd>,
    pub(crate) name: Cow<'a, OsStr>,
}

impl Place<'_> {
    /// The attributes of the name now; a symbolic link itself.
    pub(crate) fn stat(&self) -> Result<Stat, Errno> {
        fs::statat(&self.dir, &*self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Opens a file that this stage has made, also if an earlier run has given it its last mode already.
    pub(crate) fn open_own(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match fs::openat(&self.dir, &*self.name, flags, Mode::empty()) {
            Err(Errno::ACCESS) => {
                chmod(&self.dir, &self.name, Mode::RUSR | Mode::WUSR)?;
                fs::openat(&self.dir, &*self.name, flags, Mode::empty())
            }
            other => other,
        }
    }
}

impl Tree {
    /// The tree `root` in the folder `base`.
    pub(crate) fn new(base: Arc<OwnedFd>, root: impl Into<OsString>) -> Tree {
        Tree { base, root: root.into(), open: Mutex::default() }
    }

    /// The folder of the root.
    pub(crate) fn base(&self) -> &Arc<OwnedFd> {
        &self.base
    }

    /// The name of the root in its folder.
    pub(crate) fn root(&self) -> &OsStr {
        &self.root
    }

    /// A descriptor of a directory. Its position is shared, so a listing opens it again.
    pub(crate) fn dir(&self, names: &Names, id: DirId) -> Result<Arc<OwnedFd>, Errno> {
        let mut open = lock(&self.open);
        if let Some(fd) = open.get(&id) {
            return Ok(fd.clone());
        }
        let (top, way) = names.way_up(id, |at| open.contains_key(&at));
        let known = open.get(&top).cloned();
        drop(open);
        let mut fd = match known {
            Some(fd) => fd,
            None => Arc::new(fs::openat(&self.base, &*self.root, DIRECTORY, Mode::empty())?),
        };
        let mut found = vec![(top, fd.clone())];
        for (at, name) in way.into_iter().rev() {
            fd = Arc::new(fs::openat(&fd, &*name, DIRECTORY, Mode::empty())?);
            found.push((at, fd.clone()));
            // The lowest directories of a very deep path are kept open.
            if found.len() > OPEN_MAX / 4 {
                found.remove(0);
            }
        }
        open = lock(&self.open);
        if open.len() + found.len() > OPEN_MAX {
            open.clear();
        }
        open.extend(found);
        Ok(fd)
    }

    /// Forgets descriptors: directories were replaced.
    pub(crate) fn forget(&self) {
        lock(&self.open).clear();
    }
}

/// The path by which calls that take only paths reach exactly the file that the descriptor has open.
pub(crate) fn by_descriptor(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Sets the mode of the entry with just this name, never of the target of a symbolic link.
pub(crate) fn chmod(dir: impl AsFd, name: &OsStr, mode: Mode) -> Result<(), Errno> {
    let fd = fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(fs::fstat(&fd)?.st_mode) == FileType::Symlink {
        return Err(Errno::LOOP);
    }
    fs::chmod(by_descriptor(&fd), mode)
}
