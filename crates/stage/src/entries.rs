//! The entries of the source, each with its attributes from `stat`.
//!
//! Owns the list of entries, which lies in memory (about 250 bytes for each), and the identity by which a file is
//! recognised. Does not own how they are found (`walk`).

use crate::dirs::{DirId, Names, Place, Tree};
use crate::error::show;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::PathBuf;

/// The attributes by which a file of the source is recognised as the one that was copied: every write to a file changes
/// one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) ino: u64,
    pub(crate) size: u64,
    /// Nanoseconds since 1970.
    pub(crate) mtime_ns: i128,
    /// Nanoseconds since 1970.
    pub(crate) ctime_ns: i128,
}

impl Identity {
    /// The identity as `stat` returned it.
    pub(crate) fn of(stat: &Stat) -> Identity {
        let ns = |seconds: i64, ns| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        Identity {
            ino: stat.st_ino,
            size: size(stat),
            mtime_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
            ctime_ns: ns(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// The size of a file.
pub(crate) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Kind of an entry.
pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// A name in the source.
pub(crate) struct Entry {
    /// The directory that has it; none: the root of the tree.
    pub(crate) dir: Option<DirId>,
    /// The root's name is that of the source.
    pub(crate) name: Box<OsStr>,
    pub(crate) stat: Stat,
    /// The number of the directory, if the entry is a directory.
    pub(crate) own: Option<DirId>,
}

impl Entry {
    /// Kind of the entry.
    pub(crate) fn kind(&self) -> FileType {
        kind(&self.stat)
    }
}

/// The tree of the source, with all of its entries.
pub(crate) struct Source {
    pub(crate) tree: Tree,
    pub(crate) names: Names,
    /// A directory comes before its entries.
    pub(crate) entries: Vec<Entry>,
    /// Entries of each directory, by `DirId`.
    pub(crate) children: Vec<Vec<u32>>,
    /// The entry of each directory, by `DirId`.
    pub(crate) dirs: Vec<u32>,
}

impl Source {
    /// The place of an entry in the source.
    pub(crate) fn place<'a>(&'a self, entry: &'a Entry) -> Result<Place<'a>, Errno> {
        match entry.dir {
            Some(id) => Ok(Place { dir: self.tree.dir(&self.names, id)?, name: Cow::Borrowed(&entry.name) }),
            None => Ok(Place { dir: self.tree.base().clone(), name: Cow::Borrowed(self.tree.root()) }),
        }
    }

    /// The path of an entry below the root; empty for the root.
    pub(crate) fn below_root(&self, entry: &Entry) -> PathBuf {
        match entry.dir {
            Some(id) => self.names.below_root(id).join(&*entry.name),
            None => PathBuf::new(),
        }
    }

    /// The path of an entry for people, the source's name first.
    pub(crate) fn path(&self, entry: &Entry) -> PathBuf {
        let root = self.entries.first().map(|e| PathBuf::from(&*e.name)).unwrap_or_default();
        match entry.dir {
            Some(_) => root.join(self.below_root(entry)),
            None => root,
        }
    }

    /// The same as text.
    pub(crate) fn shown(&self, entry: &Entry) -> String {
        show(&self.path(entry))
    }
}
