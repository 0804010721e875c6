//! Repair of directories in shards: each shard is one of its directory, and has its attributes.
//!
//! Owns: lists of shards, and shards that are missing or belong to no directory. Does not own: names in shards, which
//! are those of any directory.
//!
//! Names that no lookup would find are removed: names in a directory that has shards, and names in a wrong shard. So
//! the inodes to which they lead get names in `lost+found`.

use super::Work;
use crate::codec::ItemKey;
use crate::inode::InodeFlags;
use crate::shared_attrs::{LIST, SharedAttrs};
use amphi_types::item::Txn;
use amphi_types::{Ino, Kind, Name};
use std::collections::{BTreeMap, BTreeSet};

impl Work<'_, '_> {
    /// Lets directories, their lists of shards and the shards agree.
    pub(super) fn agree_shards(&mut self) {
        // Directories with shards, and the place of each shard among how many.
        let (mut dirs, mut listed) = (BTreeSet::new(), BTreeMap::new());
        for (dir, is_marked, list) in self.directories_in_shards() {
            let fits = |(place, shard): (usize, &Ino)| {
                shard.shard_place().map(usize::from) == Some(place)
                    && !listed.contains_key(shard)
                    && self.stores.iter().any(|store| store.target == shard.target())
                    && self.inode(*shard).is_none_or(|inode| inode.kind == Kind::Dir)
            };
            if list.is_empty() || !list.iter().enumerate().all(fits) {
                self.steps
                    .push(format!("directory {dir} has no list of its shards, and has its names itself from now on"));
                self.change(dir, |inode| inode.flags.set(InodeFlags::SHARDED, false));
                if let Some(store) = self.store(dir.target()) {
                    store.xattrs.remove(dir.local(), LIST);
                }
                self.touch(dir.target(), ItemKey::Xattr { local: dir.local(), name: LIST.into() });
                continue;
            }
            if !is_marked {
                self.steps.push(format!("directory {dir} has its names in its shards"));
                self.change(dir, |inode| inode.flags.set(InodeFlags::SHARDED, true));
            }
            dirs.insert(dir);
            for (place, &shard) in list.iter().enumerate() {
                listed.insert(shard, (place, list.len()));
                self.agree_shard(dir, shard);
            }
        }
        let is_lost = |ino: &Ino| ino.is_shard() && !listed.contains_key(ino);
        let live = self.stores.iter().flat_map(|store| store.inodes()).filter(|(_, inode)| inode.nlink > 0);
        let lost: Vec<Ino> = live.map(|(ino, _)| ino).filter(is_lost).collect();
        for shard in lost {
            self.steps.push(format!("{shard}, which is a shard of no directory, is removed"));
            self.change(shard, |inode| inode.nlink = 0);
        }
        self.drop_unfound(&dirs, &listed);
    }

    /// Live directories that have a list of shards or are said to have one.
    fn directories_in_shards(&self) -> Vec<(Ino, bool, Vec<Ino>)> {
        let mut found = Vec::new();
        for store in &*self.stores {
            for (dir, inode) in store.inodes().filter(|(_, inode)| inode.kind == Kind::Dir && inode.nlink > 0) {
                let list = store.shards(dir);
                if inode.is_sharded() || !list.is_empty() {
                    found.push((dir, inode.is_sharded(), list));
                }
            }
        }
        found
    }

    /// Removes the names that no lookup would find: those in directories that have shards, and those in a wrong shard.
    fn drop_unfound(&mut self, dirs: &BTreeSet<Ino>, listed: &BTreeMap<Ino, (usize, usize)>) {
        let is_unfound = |dir: &Ino, name: &[u8]| match listed.get(dir) {
            Some((place, count)) => Name::new(name).is_ok_and(|name| name.shard(*count) != *place),
            None => dir.is_shard() || dirs.contains(dir),
        };
        let all = self.stores.iter().flat_map(|store| store.dentries());
        let unfound: Vec<_> = all.filter(|(dir, _, entry)| is_unfound(dir, &entry.name)).collect();
        for (dir, cookie, entry) in unfound {
            let name = String::from_utf8_lossy(&entry.name).escape_debug().to_string();
            self.steps.push(format!("the name {name} is removed from directory {dir}, where nobody looks for it"));
            self.drop_entry((dir, cookie), &entry.name);
        }
    }

    fn shared_attrs(&self, ino: Ino) -> Option<SharedAttrs> {
        self.stores.iter().find(|store| store.target == ino.target())?.shared_attrs(ino)
    }

    fn agree_shard(&mut self, dir: Ino, shard: Ino) {
        let Some(wanted) = self.shared_attrs(dir) else { return };
        let found = self.inode(shard);
        match &found {
            None => self.steps.push(format!("directory {dir} gets its shard {shard}, which was gone")),
            Some(inode) if inode.dir.parent != dir || inode.nlink == 0 => {
                self.steps.push(format!("{shard} is a shard of directory {dir}, not of {}", inode.dir.parent));
                self.change(shard, |inode| (inode.dir.parent, inode.nlink) = (dir, inode.nlink.max(2)));
            }
            Some(_) => {}
        }
        if found.is_some() && self.shared_attrs(shard).is_some_and(|attrs| wanted.agrees(&attrs)) {
            return;
        }
        if found.is_some() {
            self.steps.push(format!("shard {shard} gets the permissions and settings of its directory {dir}"));
        }
        let (now, mut txn) = (self.now, Txn::default());
        let Some(store) = self.store(shard.target()) else { return };
        store.mend_shard(dir, shard, &wanted, now, &mut txn);
        for key in txn.changes().filter_map(|change| ItemKey::decode(change.key()).ok()) {
            self.touch(shard.target(), key);
        }
    }
}
