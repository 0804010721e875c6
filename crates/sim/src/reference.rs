//! `Reference`: a small file system in memory that determines what every call must return.
//!
//! Owns: names, links, attributes, content, open files and the errno of every refusal, in the order in which Linux
//! checks. Does not own: what may be lost in a crash (`survive`), concurrency (a reference belongs to one program,
//! whose calls follow one another).
//!
//! Inode numbers are those of the file system under test: a call that makes an inode gets the number from the result.
//! Times are checked as ranges: a time stamp has to lie between the begin and the end of the call. Every change is also
//! reported as `Effect`s.

mod data;
mod names;
#[cfg(test)]
mod tests;

pub use names::UNKNOWN;

use crate::op::{Handle, Name, Op, Outcome, Seen};
use amphi_client::OpenFlags;
use amphi_types::{Cred, Errno, Ino, Kind, Result, Timespec};
use std::collections::BTreeMap;

/// Earliest and latest value of a time stamp.
pub type Window = (Timespec, Timespec);

/// The contents of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Bytes of a file.
    File(Vec<u8>),
    /// Entries of a directory, and its parent.
    Dir(BTreeMap<Name, Ino>, Ino),
    /// Target of a symbolic link.
    Symlink(Vec<u8>),
    /// Fifos and sockets hold nothing.
    Node,
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Kind.
    pub kind: Kind,
    /// Permissions.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names; for directories 2 and one for each sub-directory.
    pub nlink: u32,
    /// Content.
    pub body: Body,
    /// Extended attributes.
    pub xattrs: BTreeMap<Name, Vec<u8>>,
    /// Last change of content.
    pub mtime: Window,
    /// Last change.
    pub ctime: Window,
    /// Made by O_TMPFILE and never linked: it may still get a name.
    linkable: bool,
}

/// An open file.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// The inode that is open.
    pub ino: Ino,
    /// The flags with which it was opened.
    pub flags: OpenFlags,
}

/// How far written bytes got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Perhaps no further than the cache of the mount.
    Cache,
    /// The server has acknowledged the bytes.
    Server,
    /// The data is on stable storage.
    Disk,
}

/// A change, from which the possible states after a crash are derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A name now leads to this inode, or to none.
    Bind(Ino, Name, Option<Ino>),
    /// The inode now has this many names (directories: 1 or 0).
    Links(Ino, u32),
    /// Permissions or owner changed.
    Attr(Ino),
    /// An extended attribute changed.
    Xattr(Ino, Name),
    /// A file was made, without bytes.
    Empty(Ino),
    /// Bytes were written at an offset, and how far they got before the call returned.
    Write(Ino, u64, Vec<u8>, Reach),
    /// The length was set.
    Cut(Ino, u64),
    /// These bytes became zeros; the length stayed.
    Zero(Ino, u64, u64),
    /// The file is on stable storage.
    Synced(Ino),
    /// The metadata to find the file is on stable storage, its content separately.
    Findable(Ino),
    /// The directory is on stable storage.
    SyncedDir(Ino),
    /// Everything is on stable storage.
    SyncedAll,
}

/// The file system.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Every inode that has a name or is open.
    pub nodes: BTreeMap<Ino, Inode>,
    /// Open files.
    pub opens: BTreeMap<Handle, Open>,
    /// The top.
    pub root: Ino,
    effects: Vec<Effect>,
    /// The time is between the beginning and the end of the present call.
    span: Window,
}

impl Reference {
    /// A file system whose top is an empty directory `root`.
    pub fn new(root: Ino, perm: u16, uid: u32, gid: u32) -> Reference {
        let span = (Timespec::default(), Timespec { sec: i64::MAX, nsec: 0 });
        let mut r = Reference { nodes: BTreeMap::new(), opens: BTreeMap::new(), root, effects: Vec::new(), span };
        let top = Inode {
            kind: Kind::Dir,
            perm,
            uid,
            gid,
            nlink: 2,
            body: Body::Dir(BTreeMap::new(), root),
            xattrs: BTreeMap::new(),
            mtime: span,
            ctime: span,
            linkable: false,
        };
        r.nodes.insert(root, top);
        r
    }

    /// The required result of `op` by `cred`; `made` is the number of the inode that the call made, if it made one.
    pub fn apply(&mut self, cred: &Cred, op: &Op, span: Window, made: Option<Ino>) -> Result<Outcome> {
        self.effects.clear();
        self.span = span;
        match op {
            Op::Read { .. } | Op::Write { .. } | Op::Fallocate { .. } | Op::Copy { .. } | Op::Truncate { .. } => {
                self.data_op(cred, op)
            }
            Op::Fsync { handle, .. } => {
                let ino = self.open_file(*handle)?.ino;
                self.effects.push(Effect::Synced(ino));
                Ok(Outcome::Done)
            }
            Op::FsyncDir { dir } => {
                self.dir(*dir)?;
                self.effects.push(Effect::SyncedDir(*dir));
                Ok(Outcome::Done)
            }
            Op::SyncAll => {
                self.effects.push(Effect::SyncedAll);
                Ok(Outcome::Done)
            }
            Op::StatFs => Ok(Outcome::Done),
            Op::SetLayout { ino, .. } => {
                self.node(*ino)?;
                self.may_stamp(*ino, false);
                Ok(Outcome::Done)
            }
            _ => self.name_op(cred, op, made),
        }
    }

    /// Open files without a name that may get one.
    pub fn linkable(&self) -> impl Iterator<Item = Ino> + '_ {
        self.nodes.iter().filter(|(_, n)| n.linkable).map(|(ino, _)| *ino)
    }

    /// The changes that the last call made.
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// An inode.
    ///
    /// Errors: `NoEnt` if there is none.
    pub fn node(&self, ino: Ino) -> Result<&Inode> {
        self.nodes.get(&ino).ok_or(Errno::NoEnt)
    }

    fn node_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.nodes.get_mut(&ino).ok_or(Errno::NoEnt)
    }

    /// Entries and parent of a directory.
    ///
    /// Errors: `NoEnt`, `NotDir`.
    pub fn dir(&self, ino: Ino) -> Result<(&BTreeMap<Name, Ino>, Ino)> {
        match &self.node(ino)?.body {
            Body::Dir(entries, parent) => Ok((entries, *parent)),
            _ => Err(Errno::NotDir),
        }
    }

    /// An open file.
    ///
    /// Errors: `BadFd`.
    pub fn open_file(&self, handle: Handle) -> Result<Open> {
        self.opens.get(&handle).copied().ok_or(Errno::BadFd)
    }

    /// Bytes of a file.
    ///
    /// Errors: `Inval` if it is none.
    pub fn bytes(&self, ino: Ino) -> Result<&Vec<u8>> {
        match &self.node(ino)?.body {
            Body::File(bytes) => Ok(bytes),
            _ => Err(Errno::Inval),
        }
    }

    /// The required result of stat; the times are the latest possible ones.
    ///
    /// Errors: `NoEnt`.
    pub fn seen(&self, ino: Ino) -> Result<Seen> {
        let n = self.node(ino)?;
        let size = match &n.body {
            Body::File(bytes) => bytes.len() as u64,
            Body::Symlink(to) => to.len() as u64,
            _ => 0,
        };
        let (kind, perm, nlink, uid, gid) = (n.kind, n.perm, n.nlink, n.uid, n.gid);
        Ok(Seen { ino, kind, perm, nlink, uid, gid, size, mtime: n.mtime.1, ctime: n.ctime.1 })
    }

    /// Names of the way from the top to a directory, top first; empty for the top.
    pub fn path_of(&self, dir: Ino) -> Vec<(Ino, Name)> {
        let mut way = Vec::new();
        let mut at = dir;
        while at != self.root {
            let Ok((_, parent)) = self.dir(at) else { break };
            let name = self.dir(parent).ok().and_then(|(e, _)| e.iter().find(|(_, i)| **i == at)).map(|(n, _)| n);
            let Some(name) = name else { break };
            way.push((parent, name.clone()));
            at = parent;
        }
        way.reverse();
        way
    }

    /// All names that lead to an inode, as (directory, name).
    pub fn names_of(&self, ino: Ino) -> Vec<(Ino, Name)> {
        let mut names = Vec::new();
        for (dir, node) in &self.nodes {
            if let Body::Dir(entries, _) = &node.body {
                names.extend(entries.iter().filter(|(_, i)| **i == ino).map(|(n, _)| (*dir, n.clone())));
            }
        }
        names
    }

    /// Returns whether `cred` may do what the bits `want` (4 read, 2 write, 1 execute or search) say.
    pub fn may(&self, cred: &Cred, ino: Ino, want: u16) -> Result<()> {
        let n = self.node(ino)?;
        if cred.uid == 0 {
            let runs = want & 1 == 0 || n.kind == Kind::Dir || n.perm & 0o111 != 0;
            return if runs { Ok(()) } else { Err(Errno::Access) };
        }
        let bits = if cred.uid == n.uid {
            n.perm >> 6
        } else if cred.in_group(n.gid) {
            n.perm >> 3
        } else {
            n.perm
        };
        if bits & want == want { Ok(()) } else { Err(Errno::Access) }
    }

    /// Stamps a change of content (`m`) and of anything (`c`).
    fn stamp(&mut self, ino: Ino, m: bool, c: bool) {
        let span = self.span;
        if let Some(n) = self.nodes.get_mut(&ino) {
            if m {
                n.mtime = span;
            }
            if c {
                n.ctime = span;
            }
        }
    }

    /// Works as `stamp`, where POSIX leaves it open whether the time changes.
    fn may_stamp(&mut self, ino: Ino, m: bool) {
        let end = self.span.1;
        if let Some(n) = self.nodes.get_mut(&ino) {
            n.ctime.1 = n.ctime.1.max(end);
            if m {
                n.mtime.1 = n.mtime.1.max(end);
            }
        }
    }

    /// Takes an inode as it was found; its times are taken for granted.
    pub(crate) fn adopt(&mut self, seen: &Seen, body: Body, xattrs: BTreeMap<Name, Vec<u8>>) {
        let node = Inode {
            kind: seen.kind,
            perm: seen.perm,
            uid: seen.uid,
            gid: seen.gid,
            nlink: seen.nlink,
            body,
            xattrs,
            mtime: (seen.mtime, seen.mtime),
            ctime: (seen.ctime, seen.ctime),
            linkable: false,
        };
        self.nodes.insert(seen.ino, node);
    }

    /// Sets the parent of every directory.
    pub(crate) fn find_parents(&mut self) {
        let mut parents = Vec::new();
        for (dir, node) in &self.nodes {
            if let Body::Dir(entries, _) = &node.body {
                parents.extend(entries.values().map(|child| (*child, *dir)));
            }
        }
        for (child, dir) in parents {
            if let Some(Body::Dir(_, parent)) = self.nodes.get_mut(&child).map(|n| &mut n.body) {
                *parent = dir;
            }
        }
    }

    /// An open that its caller never got ends.
    pub(crate) fn forget_open(&mut self, handle: Handle) {
        if let Some(open) = self.opens.remove(&handle) {
            self.reap(open.ino);
        }
    }

    /// Forgets an inode without names that is not open.
    fn reap(&mut self, ino: Ino) {
        let open = self.opens.values().any(|o| o.ino == ino);
        if !open && self.nodes.get(&ino).is_some_and(|n| n.nlink == 0) {
            self.nodes.remove(&ino);
        }
    }
}
