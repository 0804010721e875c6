//! Looking up: names, parents, links, listings.

use crate::cx::Cx;
use crate::message::{Question, Told};
use crate::target::NameKey;
use amphi_env::Env;
use amphi_meta::{Inode, MetaStore, perm};
use amphi_types::{Errno, Ino, Name, Result};
use amphi_wire::{DirEntry, InodeView, Reply};

/// Most entries of one listing: with attributes and long names they fit the body of a message.
const ENTRIES_MAX: usize = 1024;
/// How often a name is looked up again whose inode has just gone.
const LOOKUP_TRIES: usize = 16;

/// What a client sees of an inode whose own copy of size and time is right.
pub fn plain_view(meta: &MetaStore, ino: Ino, inode: &Inode) -> InodeView {
    InodeView {
        attr: inode.attr(ino),
        layout: inode.layout,
        io_mode: inode.io_mode,
        generation: inode.generation,
        spread: inode.spread,
        xattrs: meta.xattrs(ino).next().is_some(),
    }
}

impl<E: Env> Cx<E> {
    /// An inode of any target.
    pub async fn view_anywhere(&self, ino: Ino, wait: bool) -> Result<InodeView> {
        if ino.target() == self.target.id {
            if wait {
                self.target.settle(vec![NameKey::Inode(ino)]).await;
            }
            return super::view(&self.worker, &self.target, ino).await;
        }
        match self.worker.ask(ino.target(), Question::View { ino, wait }).await? {
            Told::View(view) => Ok(*view),
            _ => Err(Errno::Proto),
        }
    }

    /// `Request::Lookup`.
    pub async fn lookup(&self, dir: Ino, name: &Name) -> Result<Reply> {
        for _ in 0..LOOKUP_TRIES {
            self.target.settle(vec![NameKey::Entry(dir, name.clone())]).await;
            let child = self.target.meta.borrow().lookup(&self.cred, dir, name)?.child;
            match self.view_anywhere(child, true).await {
                // Removed between the look at the name and the look at the inode.
                Err(Errno::Stale) => {}
                other => return other.map(Reply::Inode),
            }
        }
        Err(Errno::Stale)
    }

    /// `Request::Parent`.
    pub async fn parent(&self, dir: Ino) -> Result<Reply> {
        self.target.settle(vec![NameKey::Inode(dir)]).await;
        Ok(Reply::Ino(self.target.meta.borrow().parent(dir)?))
    }

    /// `Request::ReadLink`.
    pub fn readlink(&self, ino: Ino) -> Result<Reply> {
        Ok(Reply::Bytes(self.target.meta.borrow().readlink(ino)?.to_vec()))
    }

    /// `Request::ReadDir`.
    pub async fn readdir(&self, dir: Ino, cookie: u64, max: u32, plus: bool) -> Result<Reply> {
        self.target.settle(vec![NameKey::Inode(dir)]).await;
        let meta = self.target.meta.borrow();
        let facts = meta.facts(dir)?;
        if cookie == 0 {
            perm::access(&self.cred, &facts, perm::Want::READ)?;
        }
        let (found, end) = meta.readdir(dir, cookie, (max as usize).clamp(1, ENTRIES_MAX))?;
        let view = |ino: Ino| meta.inode(ino).ok().filter(|i| !i.spread).map(|i| plain_view(&meta, ino, i));
        let entries = found
            .into_iter()
            .map(|e| DirEntry {
                inode: if plus { view(e.child) } else { None },
                name: e.name,
                cookie: e.cookie,
                ino: e.child,
                kind: e.kind,
            })
            .collect();
        Ok(Reply::Entries { entries, end })
    }
}
