//! The last steps of the copy, other than bytes: links, special files, attributes, and the last names.
//!
//! Owns the order: attributes of a file before it gets its name, names before the attributes of their directory,
//! deepest directories first.

use crate::attributes::{self, Applied, Trouble};
use crate::dest::{Dest, Naming};
use crate::dirs::{DIRECTORY, Place};
use crate::entries::{Entry, Identity, Source, kind};
use crate::error::{Error, reason};
use crate::files::{FileState, Verdict};
use crate::remove;
use crate::report::Progress;
use crate::skeleton::{Found, levels};
use crate::stable::Stable;
use crate::work::{self, Stop};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;

/// See the head of the module.
pub(crate) struct Assembler<'a> {
    pub(crate) source: &'a Source,
    pub(crate) dest: &'a Dest,
    pub(crate) found: &'a Found,
    pub(crate) stable: &'a Stable,
    pub(crate) progress: &'a Progress,
    pub(crate) stop: &'a Stop,
    pub(crate) threads: usize,
}

impl Assembler<'_> {
    /// Makes symbolic links and special files, with their attributes and names.
    pub(crate) fn others(&self, others: &[u32]) {
        work::each(self.threads, others.len(), self.stop, |n| {
            let entry = &self.source.entries[others[n] as usize];
            match self.other(others[n], entry) {
                Ok(true) => self.attributes_of_other(entry),
                Ok(false) => {}
                Err(Trouble::Source(e)) => self.failed(entry, &format!("cannot be read: {}", reason(e))),
                Err(Trouble::Target(e)) => self.broken("make it", entry, e),
            }
        });
    }

    /// Makes one; returns false if it cannot be made on this file system.
    fn other(&self, n: u32, entry: &Entry) -> Result<bool, Trouble> {
        let from = self.source.place(entry).map_err(Trouble::Source)?;
        let place = self.dest.place(self.source, entry).map_err(Trouble::Target)?;
        let has = self.found.entries.get(&n);
        let to = self.dest.working(self.source, entry).map_err(Trouble::Target)?;
        match entry.kind() {
            FileType::Symlink => {
                let text = fs::readlinkat(&from.dir, &*from.name, Vec::new()).map_err(Trouble::Source)?;
                let is_same = |old: std::ffi::CString| old == text;
                if has.is_some_and(|s| kind(s) == FileType::Symlink)
                    && fs::readlinkat(&place.dir, &*place.name, Vec::new()).is_ok_and(is_same)
                {
                    return Ok(true);
                }
                remove::whatever(&to.dir, &to.name).map_err(Trouble::Target)?;
                fs::symlinkat(&text, &to.dir, &*to.name).map_err(Trouble::Target)?;
            }
            what => {
                if has.is_some_and(|s| kind(s) == what && s.st_rdev == entry.stat.st_rdev) {
                    return Ok(true);
                }
                remove::whatever(&to.dir, &to.name).map_err(Trouble::Target)?;
                let mode = Mode::RUSR | Mode::WUSR;
                match fs::mknodat(&to.dir, &*to.name, what, mode, entry.stat.st_rdev) {
                    Ok(()) => {}
                    Err(e @ (Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS)) => {
                        let path = self.source.path(entry);
                        self.progress.not_kept.add(&path, format!("a {} cannot be made: {}", word(what), reason(e)));
                        return Ok(false);
                    }
                    Err(e) => return Err(Trouble::Target(e)),
                }
            }
        }
        self.take_name(&to, &place).map_err(Trouble::Target)?;
        Ok(true)
    }

    fn attributes_of_other(&self, entry: &Entry) {
        let before = Identity::of(&entry.stat);
        let places = self
            .source
            .place(entry)
            .map_err(Trouble::Source)
            .and_then(|from| self.dest.place(self.source, entry).map_err(Trouble::Target).map(|to| (from, to)));
        let applied = places.and_then(|(from, to)| attributes::apply(&from, &to, |now| Identity::of(now) == before));
        if let Some(Applied::Changed) = self.applied(entry, applied) {
            self.failed(entry, "changed while it was copied");
        }
    }

    /// Gives complete files their attributes; if a file of the source is no longer the one that was copied, it is
    /// copied again.
    pub(crate) fn files(&self, files: &[FileState]) {
        work::each(self.threads, files.len(), self.stop, |n| {
            let (verdict, identity) = {
                let state = files[n].state();
                (state.verdict.clone(), state.identity)
            };
            let entry = &self.source.entries[files[n].entry as usize];
            let to = match verdict {
                Verdict::Whole => self.dest.working(self.source, entry),
                Verdict::Unchanged => self.dest.place(self.source, entry),
                _ => return,
            };
            let applied = to.map_err(Trouble::Target).and_then(|to| {
                // Opened before its mode may keep even its owner out.
                let synced = match self.stable.is_each() && verdict == Verdict::Whole {
                    true => Some(to.open_own(OFlags::RDONLY).map_err(Trouble::Target)?),
                    false => None,
                };
                let from = self.source.place(entry).map_err(Trouble::Source)?;
                let is_same = |now: &fs::Stat| kind(now) == FileType::RegularFile && Identity::of(now) == identity;
                let applied = attributes::apply(&from, &to, is_same)?;
                synced.map_or(Ok(()), fs::fsync).map_err(Trouble::Target)?;
                Ok(applied)
            });
            if let Some(Applied::Changed) = self.applied(entry, applied) {
                let mut state = files[n].state();
                state.verdict = Verdict::Again("changed after it was copied".into());
                self.progress.verified_bytes.sub(state.verified_bytes);
                state.verified_bytes = 0;
            }
        });
    }

    /// Records the attributes that were not kept; returns the remaining work.
    fn applied(&self, entry: &Entry, applied: Result<Applied, Trouble>) -> Option<Applied> {
        match applied {
            Ok(Applied::Done(lost)) => {
                let path = self.source.path(entry);
                lost.into_iter().for_each(|what| self.progress.not_kept.add(&path, what));
                None
            }
            Err(Trouble::Source(Errno::NOENT)) => Some(Applied::Changed),
            Err(Trouble::Source(e)) => {
                self.failed(entry, &format!("its attributes cannot be read: {}", reason(e)));
                None
            }
            Err(Trouble::Target(e)) => {
                self.broken("set attributes", entry, e);
                None
            }
            Ok(Applied::Changed) => Some(Applied::Changed),
        }
    }

    /// Gives the files of an update that were copied their names.
    pub(crate) fn names(&self, files: &[FileState]) {
        if self.dest.naming == Naming::Whole {
            return;
        }
        work::each(self.threads, files.len(), self.stop, |n| {
            if files[n].state().verdict != Verdict::Whole {
                return;
            }
            let entry = &self.source.entries[files[n].entry as usize];
            let renamed = self.dest.working(self.source, entry).and_then(|from| {
                let to = self.dest.place(self.source, entry)?;
                self.take_name(&from, &to)
            });
            if let Err(e) = renamed {
                self.broken("give the copy its name", entry, e);
            }
        });
    }

    /// Renames a finished entry of an update; in a new tree it has its name already.
    fn take_name(&self, from: &Place<'_>, to: &Place<'_>) -> Result<(), Errno> {
        if self.dest.naming == Naming::Whole {
            return Ok(());
        }
        match fs::renameat(&from.dir, &*from.name, &to.dir, &*to.name) {
            Err(Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY) => {
                remove::whatever(&to.dir, &to.name)?;
                fs::renameat(&from.dir, &*from.name, &to.dir, &*to.name)
            }
            other => other,
        }
    }

    /// Makes the additional names of entries with several names. Each pair has the entry to link and the entry that was
    /// made first.
    pub(crate) fn links(&self, links: &[(u32, u32)]) {
        work::each(self.threads, links.len(), self.stop, |n| {
            let (entry, first) = (&self.source.entries[links[n].0 as usize], &self.source.entries[links[n].1 as usize]);
            match self.link(entry, first) {
                Ok(()) => {}
                Err(Errno::NOENT) => {} // The first one failed and is named.
                Err(e @ (Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK | Errno::NOSYS)) => {
                    let other = self.source.shown(first);
                    self.failed(entry, &format!("cannot be linked to {other}: {}", reason(e)));
                }
                Err(e) => self.broken("link it", entry, e),
            }
        });
    }

    fn link(&self, entry: &Entry, first: &Entry) -> Result<(), Errno> {
        let (from, to) = (self.dest.place(self.source, first)?, self.dest.place(self.source, entry)?);
        let made = from.stat()?;
        if to.stat().is_ok_and(|s| (s.st_dev, s.st_ino) == (made.st_dev, made.st_ino)) {
            return Ok(());
        }
        let working = self.dest.working(self.source, entry)?;
        remove::whatever(&working.dir, &working.name)?;
        fs::linkat(&from.dir, &*from.name, &working.dir, &*working.name, AtFlags::empty())?;
        self.take_name(&working, &to)
    }

    /// Removes what the source does not have. If anything of the source failed, nothing is removed: what could not be
    /// listed may be there.
    pub(crate) fn extras(&self) {
        let extras = self.found.extras.len();
        if extras > 0 && self.progress.failed.count() > 0 {
            let path = self.source.path(&self.source.entries[0]);
            let why = format!(
                "nothing is removed from the target, as not all of the source could be read; {extras} entries that were \
                 not found in the source stay"
            );
            self.progress.remarks.add(&path, why);
            return;
        }
        work::each(self.threads, self.found.extras.len(), self.stop, |n| {
            let (dir, name) = &self.found.extras[n];
            let removed = self.dest.tree.dir(&self.source.names, *dir).and_then(|dir| remove::whatever(&dir, name));
            match removed {
                Ok(()) => self.progress.deleted.add(1),
                Err(e) => {
                    let path = self.source.path(&self.source.entries[self.source.dirs[dir.at()] as usize]).join(name);
                    self.progress
                        .failed
                        .add(&path, format!("is gone in the source and cannot be removed: {}", reason(e)));
                }
            }
        });
    }

    /// Gives directories their attributes, deepest first, and makes their names durable.
    pub(crate) fn directories(&self) {
        for level in levels(self.source).into_iter().rev() {
            work::each(self.threads, level.len(), self.stop, |n| {
                let entry = &self.source.entries[self.source.dirs[level[n].at()] as usize];
                let before = Identity::of(&entry.stat);
                let applied = self.dest.place(self.source, entry).map_err(Trouble::Target).and_then(|to| {
                    let own = fs::openat(&to.dir, &*to.name, DIRECTORY, Mode::empty()).map_err(Trouble::Target)?;
                    let from = self.source.place(entry).map_err(Trouble::Source)?;
                    let is_same = |now: &fs::Stat| {
                        let now = Identity::of(now);
                        (now.ino, now.mtime_ns, now.ctime_ns) == (before.ino, before.mtime_ns, before.ctime_ns)
                    };
                    let applied = attributes::apply(&from, &to, is_same)?;
                    if self.stable.is_each() {
                        self.stable.sync_dir(&own).map_err(Trouble::Target)?;
                    }
                    Ok(applied)
                });
                if let Some(Applied::Changed) = self.applied(entry, applied) {
                    self.failed(entry, "names in the directory changed while it was copied");
                }
            });
        }
    }

    fn failed(&self, entry: &Entry, why: &str) {
        self.progress.failed.add(&self.source.path(entry), why);
    }

    fn broken(&self, what: &str, entry: &Entry, e: Errno) {
        self.stop.with(Error::target(what, &self.source.path(entry), e));
    }
}

fn word(what: FileType) -> &'static str {
    match what {
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        _ => "device",
    }
}

/// Entries by how they are made.
#[derive(Default)]
pub(crate) struct Kinds {
    /// Regular files, each of them once.
    pub(crate) files: Vec<u32>,
    /// Symbolic links and special files.
    pub(crate) others: Vec<u32>,
    /// Further names, with the entry of the first.
    pub(crate) links: Vec<(u32, u32)>,
}

impl Kinds {
    /// Finds the kinds of the entries of a source. Among the names of a file, a name that the target `has` already
    /// comes first.
    pub(crate) fn of(source: &Source, has: impl Fn(u32, &Entry) -> bool) -> Kinds {
        let mut firsts: BTreeMap<(u64, u64), u32> = BTreeMap::new();
        let several = |entry: &Entry| entry.own.is_none() && entry.stat.st_nlink > 1;
        for (n, entry) in source.entries.iter().enumerate().filter(|(_, entry)| several(entry)) {
            let inode = (entry.stat.st_dev, entry.stat.st_ino);
            if !firsts.contains_key(&inode) || has(n as u32, entry) {
                firsts.insert(inode, n as u32);
            }
        }
        let mut kinds = Kinds::default();
        for (n, entry) in source.entries.iter().enumerate() {
            let n = n as u32;
            match firsts.get(&(entry.stat.st_dev, entry.stat.st_ino)).filter(|_| several(entry)) {
                Some(first) if *first != n => kinds.links.push((n, *first)),
                _ => match entry.kind() {
                    FileType::Directory => {}
                    FileType::RegularFile => kinds.files.push(n),
                    _ => kinds.others.push(n),
                },
            }
        }
        kinds
    }
}
