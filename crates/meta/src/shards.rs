//! Directories in shards: a directory whose names lie in several hidden directories, which may be on other targets.
//!
//! Owns: the list of a directory's shards, and changes of the attributes that a directory and its shards have in common
//! (`shared_attrs`). Does not own: which shard has a name (`Name::shard`), and making them on several targets
//! (`server`).
//!
//! A *shard* is a directory without a name, whose number contains its place (`Ino::shard`). Entries, link count and
//! times of changes are its own. Everything that permission checks and new inodes use of a directory is a copy of the
//! directory's values, and one operation changes all copies. So every operation on names works on a shard as on any
//! other directory.
//!
//! Invariants: a directory with shards has no entries itself, and never becomes one without shards. It has the flag
//! `InodeFlags::SHARDED` and the list as a hidden extended attribute. Its shards have it as their parent, and have its
//! attributes. The mtime of a shard is that of its last change of names since an mtime of the directory was set
//! explicitly, or 0. So the mtime of the directory is the latest of its shards, or its own if all are 0.

use crate::codec::ItemKey;
use crate::inode::InodeFlags;
use crate::shared_attrs::{LIST, SharedAttrs};
use crate::store::Dirty;
use crate::{MetaStore, NewInode, Part};
use amphi_types::item::Txn;
use amphi_types::{Acls, Ino, Kind, Result, Timespec};

impl MetaStore {
    /// The shards of a directory, in their order; an empty list if its names lie in itself.
    pub fn shards(&self, dir: Ino) -> Vec<Ino> {
        let list = self.xattrs.list(dir.local(), LIST);
        let numbers = list.into_iter().flat_map(|list| list.as_chunks::<8>().0);
        numbers.map(|number| Ino(u64::from_le_bytes(*number))).collect()
    }

    /// Returns whether the names of a directory lie in shards.
    pub fn is_sharded(&self, dir: Ino) -> bool {
        self.brief(dir).is_ok_and(|inode| inode.flags.has(InodeFlags::SHARDED))
    }

    /// The parts that make `change` of a directory with shards, which is tried on a copy of the directory. Returns the
    /// copy as well.
    ///
    /// Errors: `Stale`, and those of `change`.
    pub fn plan_shared(
        &self,
        dir: Ino,
        change: impl FnOnce(&mut MetaStore) -> Result<()>,
    ) -> Result<(Vec<Part>, MetaStore)> {
        let mut copy = MetaStore::empty(self.target);
        copy.pool = self.pool;
        copy.inodes.insert(dir.local(), &self.inode(dir)?);
        let local = dir.local();
        self.xattrs.of(local).for_each(|(name, value)| copy.xattrs.insert_as(local, name, value));
        change(&mut copy)?;
        let (Some(was), Some(mut now)) = (self.shared_attrs(dir), copy.shared_attrs(dir)) else {
            return Err(amphi_types::Errno::Stale);
        };
        now.sets_mtime = now.times.mtime_set_ctime != was.times.mtime_set_ctime;
        let now = Box::new(now);
        let shards = self.shards(dir).into_iter().map(|ino| Part::SetShared { ino, was: None, now: now.clone() });
        let own = Part::SetShared { ino: dir, was: Some(Box::new(was)), now: now.clone() };
        Ok((std::iter::once(own).chain(shards).collect(), copy))
    }

    /// What a directory has in common with its shards, or would have. `None` if it does not exist.
    pub fn shared_attrs(&self, ino: Ino) -> Option<SharedAttrs> {
        let inode = self.inode(ino).ok()?;
        Some(SharedAttrs {
            perm: inode.perm,
            owner: inode.charged(),
            flags: inode.flags.file_flags(),
            layout: inode.layout,
            advice: inode.advice,
            acls: if inode.flags.has(InodeFlags::LISTS) { self.acls(ino) } else { Acls::default() },
            times: inode.times,
            sets_mtime: false,
        })
    }

    /// Lets a shard of a damaged store have the attributes of its directory, and makes it if it is gone.
    pub(crate) fn mend_shard(&mut self, dir: Ino, shard: Ino, wanted: &SharedAttrs, now: Timespec, txn: &mut Txn) {
        if !self.inodes.contains(shard.local()) {
            let new = NewInode {
                ino: shard,
                kind: Kind::Dir,
                perm: wanted.perm,
                uid: wanted.owner.uid,
                gid: wanted.owner.gid,
                rdev: 0,
                symlink: Vec::new(),
                parent: dir,
                layout: wanted.layout,
                advice: wanted.advice,
                linked: true,
            };
            self.apply_parts(&[Part::MakeInode(new)], now, txn);
        }
        let mut dirty = Dirty::default();
        self.put_shared(shard, wanted, &mut dirty);
        self.emit(dirty, txn);
    }

    pub(crate) fn put_shards(&mut self, dir: Ino, shards: &[Ino], dirty: &mut Dirty) {
        let list: Vec<u8> = shards.iter().flat_map(|shard| shard.0.to_le_bytes()).collect();
        self.xattrs.insert(dir.local(), LIST, list.into());
        dirty.mark(ItemKey::Xattr { local: dir.local(), name: LIST.into() });
        self.edit(dir, dirty, |inode| inode.flags.set(InodeFlags::SHARDED, true));
    }

    pub(crate) fn put_shared(&mut self, ino: Ino, now: &SharedAttrs, dirty: &mut Dirty) {
        if now.acls != self.acls(ino) {
            self.put_acls(ino, &now.acls, dirty);
        }
        self.edit(ino, dirty, |inode| {
            inode.perm = now.perm;
            (inode.owner.uid, inode.owner.gid, inode.owner.project) = (now.owner.uid, now.owner.gid, now.owner.project);
            inode.flags.set_file_flags(now.flags);
            inode.layout = now.layout;
            inode.advice = now.advice;
            if !ino.is_shard() {
                inode.times = now.times;
                return;
            }
            inode.times.ctime = inode.times.ctime.max(now.times.ctime);
            if now.sets_mtime {
                inode.times.mtime = Timespec::default();
            }
        });
    }
}
