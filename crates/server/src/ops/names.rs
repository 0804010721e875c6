//! Looking up: names, parents, links, listings.

use crate::message::{Place, TargetReply, TargetRequest};
use crate::tx::two_phase;
use crate::worker::request::RequestCx;
use crate::zone_target::residency::HeldInodes;
use crate::zone_target::{NameKey, Target};
use amphi_env::Env;
use amphi_meta::{Inode, MetaStore, Outcome, perm};
use amphi_types::{Errno, Ino, Kind, Name, Result, TargetId};
use amphi_wire::{DirEntry, InodeView, Reply, Tokens};
use futures_util::future::join_all;
use std::collections::BTreeMap;

/// Most entries of one listing. With attributes and long names, this many entries fit into the body of a message.
const ENTRIES_MAX: usize = 1024;
/// How often a name is looked up again because its inode is gone; each time another client has replaced it.
const LOOKUP_TRIES: usize = 1000;

/// The view of an inode whose own item has the right size and times.
pub fn plain_view(meta: &MetaStore, ino: Ino, inode: &Inode) -> InodeView {
    InodeView {
        attr: inode.attr(ino),
        layout: inode.layout,
        advice: inode.advice,
        generation: inode.objects.generation,
        spread: inode.objects.spread,
        xattrs: meta.has_xattrs(ino),
        acl: meta.has_access_list(ino),
        flags: inode.flags.file_flags(),
        capability: meta.gives_capabilities(ino),
        sharded: inode.is_sharded(),
    }
}

/// The attributes of a directory for the listing of its parent.
pub fn directory_view(meta: &MetaStore, ino: Ino) -> Option<InodeView> {
    let inode = meta.inode(ino).ok().filter(|inode| inode.kind == Kind::Dir && !inode.objects.spread)?;
    Some(plain_view(meta, ino, &inode))
}

impl<E: Env> RequestCx<E> {
    /// The view of an inode of any target. Without `wait`, the inode is locked by this operation, so no glimpse is sent
    /// and no token is granted.
    pub async fn view_anywhere(&self, ino: Ino, wait: bool) -> Result<InodeView> {
        let asker = wait.then_some(self.session);
        let (view, token) = if ino.target() == self.target.id {
            if wait {
                self.target.settle(vec![NameKey::Inode(ino)]).await;
            }
            super::view(&self.worker, &self.target, ino, asker).await?
        } else {
            match self.worker.ask(ino.target(), TargetRequest::View { ino, asker }).await? {
                TargetReply::View(view, token) => (*view, token),
                _ => return Err(Errno::Proto),
            }
        };
        self.granted_attributes(token);
        Ok(view)
    }

    /// `Request::Lookup`.
    pub async fn lookup(&self, dir: Ino, name: &Name) -> Result<Reply> {
        for _ in 0..LOOKUP_TRIES {
            self.target.settle(vec![NameKey::Entry(dir, name.clone())]).await;
            if self.target.meta.borrow().is_sharded(dir) {
                return Err(Errno::Remote);
            }
            let found = self.target.meta.borrow().lookup(&self.cred, dir, name).map(|entry| entry.child);
            if matches!(found, Ok(_) | Err(Errno::NoEnt)) {
                self.grant_name(dir, name);
            }
            let child = found?;
            match self.leads_within(child).await {
                // The name is looked up again, as below.
                Err(Errno::Stale) => continue,
                other => other?,
            }
            match self.view_anywhere(child, true).await {
                // The inode was removed between reading the name and reading the inode.
                Err(Errno::Stale) => {}
                other => return other.map(Reply::Inode),
            }
        }
        Err(Errno::Stale)
    }

    /// `Request::Parent`.
    pub async fn parent(&self, dir: Ino) -> Result<Reply> {
        self.target.settle(vec![NameKey::Inode(dir)]).await;
        let parent = self.target.meta.borrow().parent(dir)?;
        Ok(Reply::Ino(self.shown_parent(dir, parent)))
    }

    /// `Request::ReadLink`.
    pub fn readlink(&self, ino: Ino) -> Result<Reply> {
        Ok(Reply::Bytes(self.target.meta.borrow().readlink(ino)?.into()))
    }

    /// `Request::ReadDir`.
    pub async fn readdir(&self, dir: Ino, cookie: u64, max: u32, plus: bool) -> Result<Reply> {
        self.target.settle(vec![NameKey::Inode(dir)]).await;
        two_phase::settle_names(&self.target, dir).await;
        // Inodes that cannot be read are listed without attributes.
        let _held = if plus { self.hold_listed(dir, cookie, max).await.ok() } else { None };
        self.check_list(dir, cookie).await?;
        let (parent, mut entries, end) = self.list(dir, cookie, max, plus)?;
        self.worker.send_revocations(&self.target);
        if plus && self.tree.is_none() && !self.target.coherence.tokens.on() {
            self.add_directories(&mut entries).await;
        }
        Ok(Reply::Entries { parent, entries, end })
    }

    /// Returns whether the user may list the directory from `cookie` on: by its permissions of now, or because this
    /// request continues a listing that they allowed (`session::listed`). The first request for a further shard
    /// continues the listing of the directory, which begins at the directory's own target.
    ///
    /// Errors: `Access`, `Stale`.
    async fn check_list(&self, dir: Ino, cookie: u64) -> Result<()> {
        self.alive()?;
        let facts = self.target.meta.borrow().facts(dir)?;
        if !facts.shards.is_empty() {
            // Nothing is listed: the names lie in the shards.
            return Ok(());
        }
        let known = (self.session, facts.directory(), self.cred.uid);
        let allowed = perm::access(&self.cred, &facts, perm::Want::READ);
        if allowed.is_ok() {
            self.target.files.note_listed(known.0, known.1, known.2);
            return Ok(());
        }
        if cookie == 0 || self.target.files.was_listed(known.0, known.1, known.2) {
            return if cookie == 0 { allowed } else { Ok(()) };
        }
        if known.1.target() == self.target.id {
            return allowed;
        }
        let question = TargetRequest::Listed { session: known.0, dir: known.1, uid: known.2 };
        match self.worker.ask(known.1.target(), question).await? {
            TargetReply::Outcome(true) => {
                self.alive()?;
                self.target.files.note_listed(known.0, known.1, known.2);
                Ok(())
            }
            TargetReply::Outcome(false) => allowed,
            _ => Err(Errno::Proto),
        }
    }

    /// Holds the inodes that the listing shows, if some are not in memory. Whichever come to the directory afterwards
    /// may be listed without attributes.
    async fn hold_listed(&self, dir: Ino, cookie: u64, max: u32) -> Result<HeldInodes> {
        let listed = {
            let meta = self.target.meta.borrow();
            let max = if meta.any_away() { (max as usize).clamp(1, ENTRIES_MAX) } else { 0 };
            let found = if max > 0 { meta.readdir(dir, cookie, max).ok() } else { None };
            found.map_or(Vec::new(), |(entries, _)| entries)
        };
        self.target.hold(listed.into_iter().map(|entry| entry.child)).await
    }

    /// The part of the answer from this target: the parent directory if the listing starts here, the entries, and
    /// whether they are the last.
    fn list(&self, dir: Ino, cookie: u64, max: u32, plus: bool) -> Result<(Option<Ino>, Vec<DirEntry>, bool)> {
        let meta = self.target.meta.borrow();
        let facts = meta.facts(dir)?;
        if !facts.shards.is_empty() {
            return Err(Errno::Remote);
        }
        let parent = if cookie == 0 { Some(self.shown_parent(dir, meta.parent(dir)?)) } else { None };
        let (found, end) = meta.readdir(dir, cookie, (max as usize).clamp(1, ENTRIES_MAX))?;
        // Sizes that other mounts are writing, and sizes that are spread over targets, are not available here.
        let known =
            |ino: &Ino| !self.target.coherence.tokens.on() || !self.target.written_elsewhere(self.session, *ino);
        let view = |ino: Ino| {
            if meta.is_away(ino) {
                return None;
            }
            let inode = meta.inode(ino).ok().filter(|i| !i.objects.spread && (i.kind == Kind::Dir || known(&ino)));
            let inode = inode.filter(|i| self.has_project(i.charged().project).is_ok());
            inode.map(|i| self.target.view_of(&meta, ino, &i))
        };
        let tokens = |name: &Name, inode: Option<&InodeView>| {
            if !plus || !self.target.coherence.tokens.on() {
                return Tokens::default();
            }
            let now_ns = self.worker.now_ns();
            let name = self.target.grant_name(now_ns, self.session, dir, name);
            let attributes = inode.and_then(|view| self.target.grant_attributes(now_ns, self.session, view));
            Tokens { changed: None, name, attributes }
        };
        let entries = found
            .into_iter()
            .map(|e| {
                let inode = if plus { view(e.child) } else { None };
                let tokens = tokens(&e.name, inode.as_ref());
                DirEntry { inode, name: e.name, cookie: e.cookie, ino: e.child, kind: e.kind, tokens }
            })
            .collect();
        Ok((parent, entries, end))
    }

    /// Adds the attributes of directories on other targets of this server, because a program that walks a tree reads
    /// them next.
    async fn add_directories(&self, entries: &mut [DirEntry]) {
        let mut places: BTreeMap<TargetId, Vec<usize>> = BTreeMap::new();
        for (at, entry) in entries.iter().enumerate() {
            let target = entry.ino.target();
            if entry.kind == Kind::Dir && target != self.target.id && self.worker.routes.is_local(target) {
                places.entry(target).or_default().push(at);
            }
        }
        let asked = places.iter().map(|(target, places)| {
            let inos = places.iter().map(|at| entries[*at].ino).collect();
            self.worker.ask(*target, TargetRequest::Directories(inos))
        });
        // If a target does not return attributes, the client requests them later.
        for (told, places) in join_all(asked).await.into_iter().zip(places.values()) {
            let Ok(TargetReply::Directories(views)) = told else { continue };
            for (at, view) in places.iter().zip(views) {
                entries[*at].inode = view;
            }
        }
    }
}

/// A directory of this target and where a name in it leads. Errors: `Remote` if its names lie in shards.
pub async fn place<E: Env>(target: &Target<E>, dir: Ino, name: &Name) -> Result<Place> {
    target.settle(vec![NameKey::Inode(dir), NameKey::Entry(dir, name.clone())]).await;
    let place = |meta: &MetaStore| {
        let facts = meta.facts(dir)?;
        if !facts.shards.is_empty() {
            return Err(Errno::Remote);
        }
        let child = meta.find(dir, name)?.map(|d| (d.child, d.kind));
        let child_facts = match child {
            Some((ino, _)) if ino.target() == target.id => Some(meta.facts(ino)?),
            _ => None,
        };
        Ok(Outcome::Done(Place { dir: facts, child, facts: child_facts }))
    };
    target.step(place).await
}
