//! Repair of the names of a whole cluster at rest: what `verify_cluster` finds is changed so that it holds again.
//!
//! Owns: which names are removed, and what is put into `lost+found`. Does not own: whether that is allowed, and the
//! log.
//!
//! Rules: no existing inode is ever removed. A name is removed only if it leads to nothing, if it is a second name of a
//! directory, or if it lies where no lookup searches (`shards`). An inode that is not reachable from the root gets a
//! name in `lost+found`. A second run changes nothing more, so the next run finishes a run that was cut short.

mod shards;

use crate::codec::ItemKey;
use crate::inode::InodeFlags;
use crate::{Dentry, MetaStore, Named, NodeSpec};
use amphi_types::item::Txn;
use amphi_types::{Acls, Cred, Ino, Kind, Name, Result, TargetId, Timespec};
use std::collections::{BTreeMap, BTreeSet};

/// Most components of a path in a message.
const DEPTH_MAX: usize = 64;
/// Name of the directory, in the root, for inodes without a name.
const LOST_FOUND: &str = "lost+found";
/// Most variants of that name that are tried.
const NAMES_MAX: u32 = 100;

/// The changes of a repair.
#[derive(Debug, Default)]
pub struct Repair {
    /// One sentence for each change.
    pub steps: Vec<String>,
    /// The changed items of each target: absolute, in any order.
    pub changes: BTreeMap<TargetId, Txn>,
}

/// An entry, identified by its directory and cookie.
type Place = (Ino, u64);
/// The names that have had the cookie of a directory entry; none for other items.
type EntryNames = BTreeSet<Box<[u8]>>;

/// Changes the stores of all targets of a cluster, with no operation under way between them. Afterwards each name leads
/// to an inode, each live inode has a name, and counts are right.
///
/// Errors: `NoEnt` if there is no root directory, or a store has no state, which nothing can replace. `NoSpace` if no
/// inode numbers are left for `lost+found`.
pub fn repair_cluster(stores: &mut [&mut MetaStore], now: Timespec) -> Result<Repair> {
    let mut work = Work { stores, touched: BTreeMap::new(), steps: Vec::new(), now };
    if work.inode(Ino::ROOT).is_none_or(|root| root.kind != Kind::Dir) {
        return Err(amphi_types::Errno::NoEnt);
    }
    if work.stores.iter().any(|store| store.reserved == 0) {
        return Err(amphi_types::Errno::NoEnt);
    }
    work.agree_shards();
    work.remove_names();
    work.name_the_nameless()?;
    work.break_circles()?;
    work.count();
    work.remove_attributes();
    work.agree_lists();
    Ok(work.end())
}

struct Work<'a, 'b> {
    stores: &'a mut [&'b mut MetaStore],
    /// Keys of changed items.
    touched: BTreeMap<TargetId, BTreeMap<ItemKey, EntryNames>>,
    steps: Vec<String>,
    now: Timespec,
}

impl Work<'_, '_> {
    fn inode(&self, ino: Ino) -> Option<crate::Inode> {
        self.stores.iter().find(|s| s.target == ino.target())?.inode(ino).ok()
    }

    fn store(&mut self, target: TargetId) -> Option<&mut MetaStore> {
        self.stores.iter_mut().find(|s| s.target == target).map(|s| &mut **s)
    }

    fn touch(&mut self, target: TargetId, key: ItemKey) {
        self.touched.entry(target).or_default().entry(key).or_default();
    }

    fn touch_entry(&mut self, (dir, cookie): Place, name: &[u8]) {
        let key = ItemKey::Dentry { dir: dir.local(), cookie };
        self.touched.entry(dir.target()).or_default().entry(key).or_default().insert(name.into());
    }

    /// All entries: place, child, kind and name.
    fn entries(&self) -> Vec<(Place, Dentry)> {
        self.stores.iter().flat_map(|s| s.dentries()).map(|(dir, cookie, e)| ((dir, cookie), e)).collect()
    }

    fn path(&self, names: &BTreeMap<Ino, (Ino, String)>, dir: Ino, name: &[u8]) -> String {
        let (mut at, mut path) = (dir, format!("/{}", String::from_utf8_lossy(name).escape_debug()));
        let mut passed = BTreeSet::new();
        while passed.len() < DEPTH_MAX && passed.insert(at) {
            if at == Ino::ROOT {
                return path;
            }
            let Some((above, name)) = names.get(&at) else { break };
            path.insert_str(0, &format!("/{name}"));
            at = *above;
        }
        format!("...{path} (below directory {at})")
    }

    fn drop_entry(&mut self, place: Place, name: &[u8]) {
        let dir = place.0;
        if let Some(store) = self.store(dir.target()) {
            store.index.remove(dir.local(), name);
        }
        self.touch_entry(place, name);
    }

    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut crate::Inode)) {
        if self.store(ino.target()).is_some_and(|store| store.inodes.edit(ino.local(), change)) {
            self.touch(ino.target(), ItemKey::Inode(ino.local()));
        }
    }

    /// Removes names that lead to nothing, that show another kind, or that are a second name of a directory.
    fn remove_names(&mut self) {
        let entries = self.entries();
        let shown = |e: &Dentry| String::from_utf8_lossy(&e.name).escape_debug().to_string();
        let names: BTreeMap<Ino, (Ino, String)> =
            entries.iter().map(|((dir, _), e)| (e.child, (*dir, shown(e)))).collect();
        // Directories that have a name. If there are several, the one in the directory's own parent counts.
        let mut kept: BTreeMap<Ino, Place> = BTreeMap::new();
        let is_directory = |ino: Ino| self.inode(ino).is_some_and(|inode| inode.kind == Kind::Dir);
        for (place, e) in entries.iter().filter(|(place, e)| is_directory(e.child) && is_directory(place.0)) {
            let is_parent = self.inode(e.child).is_some_and(|inode| inode.dir.parent == place.0);
            if is_parent || !kept.contains_key(&e.child) {
                kept.insert(e.child, *place);
            }
        }
        if self.inode(Ino::ROOT).is_some_and(|root| root.dir.parent != Ino::ROOT) {
            self.steps.push("the root directory gets itself as its parent".into());
            self.change(Ino::ROOT, |root| root.dir.parent = Ino::ROOT);
        }
        for (place, e) in entries {
            let path = self.path(&names, place.0, &e.name);
            if !self.inode(place.0).is_some_and(|dir| dir.kind == Kind::Dir) {
                self.steps.push(format!("the name {path} is removed: its directory is gone"));
                self.drop_entry(place, &e.name);
                continue;
            }
            let Some(inode) = self.inode(e.child).filter(|inode| !inode.pending.destroy) else {
                self.steps.push(format!("the name {path} is removed: inode {} is gone, and what it had", e.child));
                self.drop_entry(place, &e.name);
                continue;
            };
            let (kind, parent) = (inode.kind, inode.dir.parent);
            if kind == Kind::Dir && (e.child == Ino::ROOT || kept.get(&e.child).is_some_and(|k| *k != place)) {
                self.steps.push(format!("the name {path} is removed: directory {} has another", e.child));
                self.drop_entry(place, &e.name);
                continue;
            }
            if kind != e.kind {
                self.steps.push(format!("the name {path} says {:?}, and will say {kind:?}", e.kind));
                if let Some(store) = self.store(place.0.target()) {
                    store.index.insert(place.0.local(), place.1, &e.name, Named { kind, ..e.named() });
                }
                self.touch_entry(place, &e.name);
            }
            if kind == Kind::Dir && parent != place.0 {
                self.steps.push(format!("directory {path} gets {} as its parent, not {parent}", place.0));
                self.change(e.child, |inode| inode.dir.parent = place.0);
            }
        }
    }

    /// Gives live inodes without a name one in `lost+found`.
    fn name_the_nameless(&mut self) -> Result<()> {
        let named: BTreeSet<Ino> = self.stores.iter().flat_map(|s| s.dentries()).map(|(_, _, e)| e.child).collect();
        let nameless: Vec<(Ino, Kind)> = self
            .stores
            .iter()
            .flat_map(|s| s.inodes())
            .filter(|(ino, inode)| {
                // A shard can be reached only from its directory.
                *ino != Ino::ROOT
                    && !ino.is_shard()
                    && inode.nlink > 0
                    && !inode.pending.destroy
                    && !named.contains(ino)
            })
            .map(|(ino, inode)| (ino, inode.kind))
            .collect();
        nameless.into_iter().try_for_each(|(ino, kind)| self.put_into_lost_found(ino, kind))
    }

    fn put_into_lost_found(&mut self, ino: Ino, kind: Kind) -> Result<()> {
        let dir = self.lost_found()?;
        let name: Box<[u8]> = format!("#{}", ino.0).into_bytes().into();
        self.steps.push(format!("{kind:?} {ino}, which has no name that leads to it, gets /{LOST_FOUND}/#{}", ino.0));
        let Some(store) = self.store(dir.target()) else { return Ok(()) };
        let cookie = store.index.free_cookie(dir.local(), &name).ok_or(amphi_types::Errno::NoSpace)?;
        store.index.insert(dir.local(), cookie, &name, Named { child: ino, kind });
        self.touch_entry((dir, cookie), &name);
        if kind == Kind::Dir {
            self.change(ino, |inode| inode.dir.parent = dir);
        }
        Ok(())
    }

    /// The directory for inodes without a name, which is made if there is none.
    fn lost_found(&mut self) -> Result<Ino> {
        let now = self.now;
        for n in 0..NAMES_MAX {
            let name = if n == 0 { LOST_FOUND.to_string() } else { format!("{LOST_FOUND}.{n}") };
            let name = Name::new(name.into_bytes())?;
            let Some(store) = self.store(Ino::ROOT.target()) else { break };
            match store.find(Ino::ROOT, &name)?.map(|e| (e.kind, e.child)) {
                Some((Kind::Dir, dir)) => return Ok(dir),
                Some(_) => continue,
                None => {}
            }
            let mut txn = Txn::default();
            let dir = store.make(&Cred::root(), Ino::ROOT, &name, &NodeSpec::dir(0o700), now, &mut txn)?;
            for change in txn.changes() {
                match ItemKey::decode(change.key()).map_err(|_| amphi_types::Errno::Io)? {
                    ItemKey::Dentry { cookie, .. } => self.touch_entry((Ino::ROOT, cookie), name.as_bytes()),
                    key => self.touch(Ino::ROOT.target(), key),
                }
            }
            return Ok(dir);
        }
        Err(amphi_types::Errno::NoSpace)
    }

    /// Directories that contain each other and are not below the root: one directory of each cycle moves to
    /// `lost+found`.
    fn break_circles(&mut self) -> Result<()> {
        loop {
            let mut below: BTreeMap<Ino, Vec<Ino>> = BTreeMap::new();
            let mut places: BTreeMap<Ino, (Place, Box<[u8]>)> = BTreeMap::new();
            for (dir, cookie, e) in self.stores.iter().flat_map(|s| s.dentries()).filter(|(.., e)| e.kind == Kind::Dir)
            {
                below.entry(dir).or_default().push(e.child);
                places.insert(e.child, ((dir, cookie), e.name));
            }
            let (mut seen, mut todo) = (BTreeSet::from([Ino::ROOT]), vec![Ino::ROOT]);
            while let Some(dir) = todo.pop() {
                let shards = self.stores.iter().find(|s| s.target == dir.target()).map(|s| s.shards(dir));
                todo.extend(shards.into_iter().flatten().filter(|shard| seen.insert(*shard)));
                todo.extend(below.get(&dir).into_iter().flatten().filter(|child| seen.insert(**child)));
            }
            // Walking up from a directory that cannot be reached ends in a cycle.
            let Some(mut at) = places.keys().copied().find(|dir| !seen.contains(dir)) else { return Ok(()) };
            let mut passed = BTreeSet::new();
            while passed.insert(at) {
                at = places.get(&at).map_or(at, |(place, _)| place.0);
            }
            let Some((place, name)) = places.remove(&at) else { return Ok(()) };
            self.steps.push(format!("directory {at} is in a circle of directories, of which {} has its name", place.0));
            self.drop_entry(place, &name);
            self.put_into_lost_found(at, Kind::Dir)?;
        }
    }

    /// Sets the link counts of inodes and the entry counts of directories to what is found.
    fn count(&mut self) {
        let (mut names, mut subdirs, mut entries) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (dir, _, e) in self.stores.iter().flat_map(|s| s.dentries()) {
            *names.entry(e.child).or_insert(0u32) += 1;
            *entries.entry(dir).or_insert(0u64) += 1;
            *subdirs.entry(dir).or_insert(0u32) += u32::from(e.kind == Kind::Dir);
        }
        let count = |ino: Ino, inode: &crate::Inode| {
            let named = names.get(&ino).copied().unwrap_or(0);
            let links = match inode.kind {
                Kind::Dir if ino == Ino::ROOT || named > 0 || (ino.is_shard() && inode.nlink > 0) => {
                    2 + subdirs.get(&ino).copied().unwrap_or(0)
                }
                Kind::Dir => 0,
                _ => named,
            };
            (links, entries.get(&ino).copied().unwrap_or(0))
        };
        let wrong: Vec<(Ino, u32, u64)> = self
            .stores
            .iter()
            .flat_map(|s| s.inodes())
            .map(|(ino, inode)| (ino, count(ino, &inode), (inode.nlink, inode.dir.entries)))
            .filter(|(_, wanted, has)| wanted != has)
            .map(|(ino, wanted, _)| (ino, wanted.0, wanted.1))
            .collect();
        for (ino, links, entries) in wrong {
            self.steps.push(format!("inode {ino} gets {links} links and {entries} entries"));
            self.change(ino, |inode| {
                inode.nlink = links;
                let linkable = links == 0 && inode.flags.has(InodeFlags::LINKABLE);
                inode.flags.set(InodeFlags::LINKABLE, linkable);
                inode.dir.entries = entries;
            });
        }
    }

    /// Removes extended attributes without an inode.
    fn remove_attributes(&mut self) {
        for at in 0..self.stores.len() {
            let store = &mut self.stores[at];
            let target = store.target;
            let gone: Vec<(u64, Box<[u8]>)> =
                store.xattrs.keys().filter(|(local, _)| !store.inodes.contains(*local)).cloned().collect();
            for (local, name) in gone {
                self.stores[at].xattrs.remove(local, &name);
                let ino = self.stores[at].ino(local);
                self.steps.push(format!("an extended attribute of inode {ino}, which is gone, is removed"));
                self.touch(target, ItemKey::Xattr { local, name });
            }
        }
    }

    /// Lets inodes agree with their access control lists, which count.
    fn agree_lists(&mut self) {
        let mut wrong = Vec::new();
        for store in &*self.stores {
            for (ino, inode) in store.inodes() {
                let acls = store.acls(ino);
                let any = acls != Acls::default();
                let perm = acls.access.as_ref().map_or(inode.perm, |list| inode.perm & !0o777 | list.perm());
                if inode.flags.has(InodeFlags::LISTS) != any || inode.perm != perm {
                    wrong.push((ino, any, perm));
                }
            }
        }
        for (ino, any, perm) in wrong {
            self.steps.push(format!("inode {ino} gets the permissions {perm:o} of its access control list"));
            self.change(ino, |inode| {
                inode.perm = perm;
                inode.flags.set(InodeFlags::LISTS, any);
            });
        }
    }

    fn end(self) -> Repair {
        let mut changes = BTreeMap::new();
        for (target, keys) in self.touched {
            let Some(store) = self.stores.iter().find(|s| s.target == target) else { continue };
            let mut txn = Txn::default();
            for (key, names) in keys {
                let value = match key {
                    ItemKey::Dentry { dir, cookie } => names.iter().find_map(|name| {
                        let mut value = Vec::new();
                        store.encode_dentry(dir, cookie, name, &mut value).then_some(value)
                    }),
                    _ => store.item_value(&key),
                };
                match value {
                    Some(value) => txn.put(key.encode(), value),
                    None => txn.delete(key.encode()),
                }
            }
            changes.insert(target, txn);
        }
        Repair { steps: self.steps, changes }
    }
}
