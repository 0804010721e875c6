//! `MetaStore`: the metadata of one target in memory, and reading it.
//!
//! Owns: the state. Does not own: changes, which are in `part` (names and links), `setattr`, `xattr` and `file_state`.
//! Each of them collects the keys that it touched in a `Dirty`, and ends with `emit`, which writes the present value of
//! each to the `Txn`.
//!
//! Invariant: inode numbers are never reused. Numbers below `reserved` may have been given out. `reserved` moves in
//! steps of 4096 and is logged only then, and recovery continues at `reserved`. So a crash skips up to 4095 of 2^48
//! numbers.

use crate::attributes::Attributes;
use crate::codec::{self, ItemKey, StoreRecord};
use crate::early_names::EarlyNames;
use crate::index::DentryIndex;
use crate::inode::{DirState, InodeFlags, InodeOwner, InodeTimes, ObjectsState};
use crate::inodes::{Brief, Inodes};
use crate::part::NewInode;
use crate::perm::{self, Want};
use crate::{Dentry, Facts, Inode, Named, Outcome, Pending};
use amphi_types::item::{Key, Txn};
use amphi_types::{Account, Attr, Cred, Errno, Ino, Kind, Layout, Name, Owner, Result, TargetId, Timespec};

/// Step in which inode numbers are reserved.
pub(crate) const RESERVE_STEP: u64 = 4096;
/// Most steps of `ancestors`. The longest path that Linux accepts has 2048 components, and relative calls can make
/// deeper trees. Beyond this bound a directory counts as its own ancestor.
const DEPTH_MAX: usize = 1 << 20;

/// Keys of items that a change has touched.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    keys: Vec<ItemKey>,
    /// The names of the entries among them, by directory and cookie. A cookie may have had two names in one change.
    names: Vec<(u64, u64, Box<[u8]>)>,
    /// Changed inodes that exist, as the store has them, so that they are decoded once in a change.
    inodes: Vec<(u64, Inode)>,
}

impl Dirty {
    pub(crate) fn mark(&mut self, key: ItemKey) {
        if !self.keys.contains(&key) {
            self.keys.push(key);
        }
    }

    /// Called when an inode was made or changed, with its present value.
    pub(crate) fn inode(&mut self, local: u64, inode: Inode) {
        self.mark(ItemKey::Inode(local));
        self.inodes.push((local, inode));
    }

    /// The inode, if it was made or changed.
    pub(crate) fn known_inode(&mut self, local: u64) -> Option<&mut Inode> {
        self.inodes.iter_mut().find(|(of, _)| *of == local).map(|(_, inode)| inode)
    }

    /// Called when an inode was removed.
    pub(crate) fn removed_inode(&mut self, local: u64) {
        self.mark(ItemKey::Inode(local));
        self.inodes.retain(|(of, _)| *of != local);
    }

    /// Called when an entry with this cookie and name was made, changed or removed.
    pub(crate) fn dentry(&mut self, dir: u64, cookie: u64, name: &[u8]) {
        self.mark(ItemKey::Dentry { dir, cookie });
        self.names.push((dir, cookie, name.into()));
    }
}

/// An entry as readdir returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadDirEntry {
    /// Name.
    pub name: Name,
    /// Cookie to continue after this entry.
    pub cookie: u64,
    /// Inode.
    pub child: Ino,
    /// Kind.
    pub kind: Kind,
}

/// All metadata of one target, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaStore {
    pub(crate) target: TargetId,
    pub(crate) next_local: u64,
    /// 0 until the store was formatted, or its `tag::META` item was loaded.
    pub(crate) reserved: u64,
    pub(crate) inodes: Inodes,
    pub(crate) xattrs: Attributes,
    pub(crate) index: DentryIndex,
    /// Entries that were loaded before the store's own item.
    pub(crate) early_names: EarlyNames,
    /// Number of targets of the cluster, if it may have grown. 0: the layouts determine it.
    pub(crate) pool: u16,
    #[cfg(test)]
    pub(crate) planted: Option<crate::tests::Bug>,
}

impl MetaStore {
    /// An empty store that waits for its items (`ItemStore::load`, then `loaded`).
    pub fn empty(target: TargetId) -> MetaStore {
        MetaStore {
            target,
            next_local: 0,
            reserved: 0,
            inodes: Inodes::default(),
            xattrs: Attributes::default(),
            index: DentryIndex::new(target),
            early_names: EarlyNames::default(),
            pool: 0,
            #[cfg(test)]
            planted: None,
        }
    }

    /// A new store. `seed` is a random secret. With `root` it contains the root directory, owned by that user and
    /// group, with mode 0755 and the growing default layout over `pool` targets. The `Txn` has all items of the new
    /// store.
    pub fn format(target: TargetId, seed: u64, now: Timespec, root: Option<(u32, u32)>, pool: u16) -> (MetaStore, Txn) {
        let mut store = MetaStore::empty(target);
        let mut dirty = Dirty::default();
        store.index.set_seed(seed);
        // Local number 1 is the root's on target 0 and is unused elsewhere; 0 is never an inode.
        store.next_local = Ino::ROOT.local() + 1;
        store.reserved = RESERVE_STEP;
        dirty.mark(ItemKey::Root);
        if let Some((uid, gid)) = root {
            let ino = Ino::new(target, Ino::ROOT.local());
            let new = NewInode {
                ino,
                kind: Kind::Dir,
                perm: 0o755,
                uid,
                gid,
                rdev: 0,
                symlink: Vec::new(),
                parent: ino,
                layout: Layout::growing(pool),
                advice: Default::default(),
                linked: true,
            };
            store.insert_inode(&new, now, &mut dirty);
        }
        let mut txn = Txn::default();
        store.emit(dirty, &mut txn);
        (store, txn)
    }

    /// Sets how many targets the cluster has. Files that are made from now on use all of them.
    pub fn set_pool(&mut self, pool: u16) {
        self.pool = pool;
    }

    /// The target to which this metadata belongs.
    pub fn target(&self) -> TargetId {
        self.target
    }

    /// Number of inodes, including those without a name.
    pub fn inode_count(&self) -> u64 {
        self.inodes.len() as u64
    }

    /// Bytes of memory for inodes.
    pub fn inode_bytes(&self) -> usize {
        self.inodes.bytes()
    }

    /// Bounds the memory of inodes; without a bound all of them are in memory. Directories are in any case, and so are
    /// inodes without a name, with unfinished work or access control lists, or whose size is gathered from objects.
    pub fn set_inodes_max(&mut self, bytes: usize) {
        self.inodes.set_bytes_max(bytes);
    }

    /// Lets inodes leave memory if they take more than their bound, except for those that are to stay. To be called
    /// when the records of all changes have been appended.
    /// Returns whether any has left.
    pub fn let_inodes_go(&mut self, stays: impl Fn(Ino) -> bool) -> bool {
        let target = self.target;
        self.inodes.let_go(|local| stays(Ino::new(target, local)))
    }

    /// Whether all inodes are in memory, and take less than half of what they may.
    pub fn holds_all_inodes(&self) -> bool {
        !self.inodes.any_away() && !self.inodes.is_near_bound()
    }

    /// Number of inodes that are not in memory.
    pub fn away_count(&self) -> u64 {
        self.inodes.away_count() as u64
    }

    /// Whether any inode is not in memory.
    pub fn any_away(&self) -> bool {
        self.inodes.any_away()
    }

    /// Whether an inode exists and is not in memory.
    pub fn is_away(&self, ino: Ino) -> bool {
        ino.target() == self.target && self.inodes.is_away(ino.local())
    }

    /// The key of an inode's item, which `load_absent` takes.
    pub fn inode_key(&self, ino: Ino) -> Key {
        ItemKey::Inode(ino.local()).encode()
    }

    /// The number of an inode's block. The inodes of a block are read together (`absent_beside`).
    pub fn inode_block(&self, ino: Ino) -> u64 {
        Inodes::block_of(ino.local())
    }

    /// To whom an inode is charged that is not in memory, if this is known without reading it.
    pub fn owner_away(&self, ino: Ino) -> Option<Owner> {
        if self.is_away(ino) { self.inodes.owner_away(ino.local()) } else { None }
    }

    /// The keys of inodes that are not in memory and were made at about the time of this one, ascending. Whoever reads
    /// one of them reads the others with it.
    pub fn absent_beside(&self, ino: Ino) -> Vec<Key> {
        self.inodes.away_beside(ino.local()).map(|local| ItemKey::Inode(local).encode()).collect()
    }

    /// An inode that was asked for since the last call and is not in memory: what was answered is wrong.
    pub fn take_missed(&self) -> Option<Ino> {
        self.inodes.take_missed().map(|local| self.ino(local))
    }

    /// Takes a step that changes nothing. If it asks for an inode that is not in memory, its result is dropped.
    pub fn attempt<T>(&self, step: impl FnOnce(&MetaStore) -> T) -> Outcome<T> {
        self.inodes.take_missed();
        self.inodes.set_attempt(true);
        let done = step(self);
        self.inodes.set_attempt(false);
        self.inodes.take_missed().map_or(Outcome::Done(done), |local| Outcome::Absent(ItemKey::Inode(local).encode()))
    }

    /// Takes a step that may make a change. If it asks for an inode that is not in memory, its result is dropped.
    ///
    /// Panics if such a step has made a change.
    pub fn attempt_change<T>(&mut self, txn: &mut Txn, step: impl FnOnce(&mut MetaStore, &mut Txn) -> T) -> Outcome<T> {
        self.inodes.take_missed();
        let before = (self.inodes.changes(), txn.len());
        self.inodes.set_attempt(true);
        let done = step(self, txn);
        self.inodes.set_attempt(false);
        let Some(local) = self.inodes.take_missed() else { return Outcome::Done(done) };
        assert!(before == (self.inodes.changes(), txn.len()), "a step without inode {local} has made a change");
        Outcome::Absent(ItemKey::Inode(local).encode())
    }

    /// Bytes of memory for directory entries and their names, without windows of directories that are being listed.
    pub fn dentry_bytes(&self) -> usize {
        self.index.bytes()
    }

    /// Begins to count inodes by account, or ends to. The beginning visits all inodes: 0.2 us for each.
    pub fn set_counting(&mut self, on: bool) {
        self.inodes.set_counting(on);
    }

    /// Inodes that an account has here, while they are counted.
    pub fn used(&self, account: Account) -> u64 {
        self.inodes.usage().map_or(0, |usage| usage.used(account))
    }

    /// All accounts that have inodes here, ascending.
    pub fn accounts(&self) -> impl Iterator<Item = (Account, u64)> {
        self.inodes.usage().into_iter().flat_map(|usage| usage.all())
    }

    /// The account to which an inode is charged. Errors: `Stale`.
    pub fn charged(&self, ino: Ino) -> Result<Owner> {
        self.inode(ino).map(|inode| inode.charged())
    }

    /// An inode.
    ///
    /// Errors: `Stale` if it does not exist (any more) on this target.
    pub fn inode(&self, ino: Ino) -> Result<Inode> {
        if ino.target() != self.target {
            return Err(Errno::Stale);
        }
        self.inodes.get(ino.local()).ok_or(Errno::Stale)
    }

    /// The facts for plans and permission checks. Errors: `Stale`.
    pub fn facts(&self, ino: Ino) -> Result<Facts> {
        let inode = self.inode(ino)?;
        let facts = Facts { layout: inode.layout.in_pool(self.pool), ..inode.facts(ino) };
        let facts = match inode.flags.has(InodeFlags::SHARDED) {
            true => Facts { shards: self.shards(ino), ..facts },
            false => facts,
        };
        if !inode.flags.has(InodeFlags::LISTS) {
            return Ok(facts);
        }
        Ok(Facts { acls: Some(Box::new(self.acls(ino))), ..facts })
    }

    /// Attributes from the inode's own copy. For files that are being written see `Inode::attr_with`. Errors: `Stale`.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.inode(ino).map(|inode| inode.attr(ino))
    }

    /// The inode that a name leads to, without permission checks; `None` if there is none.
    ///
    /// Errors: `Stale`, `NotDir`.
    pub fn find(&self, dir: Ino, name: &Name) -> Result<Option<Named>> {
        self.check_dir(dir)?;
        Ok(self.index.find(dir.local(), name.as_bytes()))
    }

    /// The inode that a name leads to, for a caller.
    ///
    /// Errors: `Stale`, `NotDir`, `Access` without search permission, `NoEnt`.
    pub fn lookup(&self, cred: &Cred, dir: Ino, name: &Name) -> Result<Named> {
        perm::search(cred, &self.facts(dir)?)?;
        self.find(dir, name)?.ok_or(Errno::NoEnt)
    }

    /// Up to `max` entries with cookies greater than `cookie` (0 is the start), in the order of cookies, and whether
    /// the directory ends there. `.` and `..` are left out. Permissions are not checked, because the open has checked
    /// them.
    ///
    /// Errors: `Stale`, `NotDir`.
    pub fn readdir(&self, dir: Ino, cookie: u64, max: usize) -> Result<(Vec<ReadDirEntry>, bool)> {
        self.check_dir(dir)?;
        let mut entries = Vec::new();
        let mut bad = None;
        let end =
            self.index.page(dir.local(), cookie, max, |cookie, name, Named { child, kind }| match Name::new(name) {
                Ok(name) => entries.push(ReadDirEntry { name, cookie, child, kind }),
                Err(e) => bad = Some(e),
            });
        bad.map_or(Ok((entries, end)), Err)
    }

    /// Calls `visit` for the entries of a directory, in no order that matters, until it returns `false`. Permissions
    /// are not checked.
    ///
    /// Errors: `Stale`, `NotDir`.
    pub fn visit_entries(&self, dir: Ino, visit: impl FnMut(&[u8], Named) -> bool) -> Result<()> {
        self.check_dir(dir)?;
        self.index.visit(dir.local(), visit);
        Ok(())
    }

    /// Parent of a directory. Errors: `Stale`, `NotDir`.
    pub fn parent(&self, dir: Ino) -> Result<Ino> {
        let inode = self.inode(dir)?;
        if inode.kind == Kind::Dir { Ok(inode.dir.parent) } else { Err(Errno::NotDir) }
    }

    /// Walks upward from directory `from`, which is the first of the result, as long as this target owns the
    /// directories. Calls `visit` for each. `Ok(Some(next))` is the first directory of another target, and `Ok(None)`
    /// means that the root was reached.
    ///
    /// Errors: `Stale`, `NotDir`, what `visit` returns, `Loop` beyond 2^20 steps.
    pub fn ancestors(&self, from: Ino, mut visit: impl FnMut(Ino) -> Result<()>) -> Result<Option<Ino>> {
        let mut at = from;
        for _ in 0..DEPTH_MAX {
            if at.target() != self.target {
                return Ok(Some(at));
            }
            visit(at)?;
            let parent = self.parent(at)?;
            if parent == at {
                return Ok(None);
            }
            at = parent;
        }
        Err(Errno::Loop)
    }

    /// Target of a symbolic link. Errors: `Stale`, `Inval` for other kinds.
    pub fn readlink(&self, ino: Ino) -> Result<Box<[u8]>> {
        let inode = self.inode(ino)?;
        if inode.kind == Kind::Symlink { Ok(inode.symlink) } else { Err(Errno::Inval) }
    }

    /// Returns whether a caller may open the inode for `want`. Errors: `Stale`, `IsDir`, `Loop`, `Access`.
    pub fn check_open(&self, cred: &Cred, ino: Ino, want: Want) -> Result<()> {
        perm::open(cred, &self.facts(ino)?, want)
    }

    /// Inodes without a name, for recovery. Those that no session has open are removed.
    pub fn orphans(&self) -> Vec<Ino> {
        self.inodes().filter(|(_, inode)| inode.nlink == 0).map(|(ino, _)| ino).collect()
    }

    /// Inodes with unfinished work on their objects, for recovery.
    pub fn pending(&self) -> Vec<(Ino, Pending)> {
        self.inodes().filter(|(_, i)| i.pending != Pending::default()).map(|(ino, i)| (ino, i.pending)).collect()
    }

    /// All inodes in memory, ascending.
    pub fn inodes(&self) -> impl Iterator<Item = (Ino, Inode)> {
        self.inodes.iter(0).map(|(local, inode)| (self.ino(local), inode))
    }

    /// All entries with their directory and cookie, in that order. Holds one directory after the other in memory, so
    /// that it is for checks of stopped zones.
    pub fn dentries(&self) -> impl Iterator<Item = (Ino, u64, Dentry)> {
        self.index.from(0, 0).map(|(dir, cookie, d)| (self.ino(dir), cookie, d))
    }

    /// The number that the next `MakeInode` on this target can use. Applying the part takes the number.
    ///
    /// Errors: `NoSpace` when all 2^48 have been used.
    pub fn next_ino(&self) -> Result<Ino> {
        if self.next_local > Ino::MAX_LOCAL { Err(Errno::NoSpace) } else { Ok(self.ino(self.next_local)) }
    }

    /// Takes a number for a `MakeInode` that another target coordinates. `txn` must be logged before the intent that
    /// names the number. Errors: `NoSpace`.
    pub fn alloc_ino(&mut self, txn: &mut Txn) -> Result<Ino> {
        let ino = self.next_ino()?;
        let mut dirty = Dirty::default();
        self.take_local(ino.local(), &mut dirty);
        self.emit(dirty, txn);
        Ok(ino)
    }

    pub(crate) fn ino(&self, local: u64) -> Ino {
        Ino::new(self.target, local & Ino::MAX_LOCAL)
    }

    /// The attributes of an inode for checks. Errors: `Stale`.
    pub(crate) fn brief(&self, ino: Ino) -> Result<Brief> {
        if ino.target() != self.target {
            return Err(Errno::Stale);
        }
        self.inodes.brief(ino.local()).ok_or(Errno::Stale)
    }

    /// Errors: `Stale`, `NotDir`.
    fn check_dir(&self, dir: Ino) -> Result<()> {
        if self.brief(dir)?.kind == Kind::Dir { Ok(()) } else { Err(Errno::NotDir) }
    }

    /// Ensures that `local` is never given out again.
    pub(crate) fn take_local(&mut self, local: u64, dirty: &mut Dirty) {
        self.next_local = self.next_local.max(local + 1);
        if self.next_local > self.reserved {
            self.reserved = (self.next_local.div_ceil(RESERVE_STEP) * RESERVE_STEP).min(Ino::MAX_LOCAL + 1);
            dirty.mark(ItemKey::Root);
        }
        assert!(self.next_local <= self.reserved, "number {} is beyond {}", self.next_local, self.reserved);
    }

    pub(crate) fn insert_inode(&mut self, new: &NewInode, now: Timespec, dirty: &mut Dirty) {
        let local = new.ino.local();
        let mut flags = InodeFlags::default();
        flags.set(InodeFlags::LINKABLE, !new.linked);
        let inode = Inode {
            kind: new.kind,
            perm: new.perm,
            nlink: match (new.linked, new.kind) {
                (false, _) => 0,
                (true, Kind::Dir) => 2,
                (true, _) => 1,
            },
            owner: InodeOwner { uid: new.uid, gid: new.gid, project: 0 },
            rdev: new.rdev,
            size: new.symlink.len() as u64,
            blocks: 0,
            // A shard has an mtime when its names have changed.
            times: match new.ino.is_shard() {
                true => InodeTimes { mtime: Timespec::default(), ..InodeTimes::of(now) },
                false => InodeTimes::of(now),
            },
            layout: new.layout,
            advice: new.advice,
            objects: ObjectsState::default(),
            flags,
            pending: Pending::default(),
            dir: DirState { parent: new.parent, entries: 0 },
            symlink: new.symlink.as_slice().into(),
        };
        self.take_local(new.ino.given(), dirty);
        self.put_inode(local, inode, dirty);
    }

    /// The present value of an item.
    pub(crate) fn item_value(&self, key: &ItemKey) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        self.encode_item(key, &mut value).then_some(value)
    }

    /// Appends the present value of an item to `out`, and returns whether it has one.
    fn encode_item(&self, key: &ItemKey, out: &mut Vec<u8>) -> bool {
        match key {
            ItemKey::Dentry { dir, cookie } => {
                self.index.get(*dir, *cookie).map(|entry| codec::encode_dentry(&entry, out)).is_some()
            }
            ItemKey::Inode(local) => self.inodes.get(*local).map(|inode| codec::encode_inode(&inode, out)).is_some(),
            ItemKey::Xattr { local, name } => {
                let Some(value) = self.xattrs.get(*local, name) else { return false };
                // If this returned false, the value would be logged as deleted.
                let bytes = value.bytes().expect("a value that is logged is in memory");
                codec::encode_xattr(bytes, out);
                true
            }
            ItemKey::Root if self.reserved == 0 => false,
            ItemKey::Root => {
                let (seed, reserved) = (self.index.seed(), self.reserved);
                codec::encode_store(&StoreRecord { target: self.target, seed, reserved }, out);
                true
            }
        }
    }

    /// Appends the present value of the item of an entry to `out`, if the entry of this name has this cookie, and
    /// returns whether it has.
    pub(crate) fn encode_dentry(&self, dir: u64, cookie: u64, name: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(Named { child, kind }) = self.index.find(dir, name) else { return false };
        let is_it = self.index.cookie(dir, name) == cookie;
        if is_it {
            codec::encode_dentry(&Dentry { child, kind, name: name.into() }, out);
        }
        is_it
    }

    /// Ends a change: appends the present value of every touched item to `txn`.
    pub(crate) fn emit(&self, dirty: Dirty, txn: &mut Txn) {
        debug_assert!(dirty.inodes.iter().all(|(local, inode)| self.inodes.get(*local).as_ref() == Some(inode)));
        let mut encoded = Vec::new();
        for key in dirty.keys {
            #[cfg(test)]
            if self.planted == Some(crate::tests::Bug::UnloggedDirectory) && self.is_directory_key(&key) {
                continue;
            }
            encoded.clear();
            key.encode_to(&mut encoded);
            txn.put_or_delete(&encoded, |value| match &key {
                ItemKey::Dentry { dir, cookie } => {
                    let names = dirty.names.iter().filter(|(at, of, _)| (*at, *of) == (*dir, *cookie));
                    names.rev().any(|(.., name)| self.encode_dentry(*dir, *cookie, name, value))
                }
                ItemKey::Inode(local) => {
                    let changed = dirty.inodes.iter().find(|(of, _)| of == local);
                    changed.map(|(_, inode)| codec::encode_inode(inode, value)).is_some()
                }
                key => self.encode_item(key, value),
            });
        }
    }
}
