//! The metadata store as items: loading at recovery, and checkpoints.
//!
//! Owns: the two directions. Does not own: the log and its order (`zone`).
//!
//! Loading is idempotent and accepts items in any order; a later value of a key replaces an earlier one. So recovery
//! may load a checkpoint and then the log over it, or the merged items once. It is cheaper to load the item
//! `tag::META` first, because it has the key of the hash that places entries.

use crate::MetaStore;
use crate::codec::{self, ItemKey};
use amphi_types::item::{ItemStore, Key, tag};
use std::ops::Bound;

impl MetaStore {
    /// Applies the deletion of an item that was found at recovery. It is no error if the item is absent.
    pub fn unload(&mut self, key: &[u8]) -> Result<(), String> {
        match ItemKey::decode(key)? {
            ItemKey::Dentry { dir, cookie } => {
                self.early_names.remove(dir, cookie);
                if let Some(entry) = self.index.get(dir, cookie) {
                    self.index.remove(dir, &entry.name);
                }
            }
            ItemKey::Inode(local) => {
                self.inodes.remove(local);
            }
            ItemKey::Xattr { local, name } => {
                self.xattrs.remove(&(local, name));
            }
            ItemKey::Root => return Err("the metadata store item was deleted".into()),
        }
        Ok(())
    }
}

impl MetaStore {
    /// Places the entries that were loaded before the store's own item. For a checker, where that item is missing: as
    /// if the key of the hash were the one of an empty store.
    pub fn place_early_names(&mut self) {
        let index = &mut self.index;
        self.early_names.drain(|dir, cookie, value| {
            // They were decoded when they arrived.
            if let Ok(entry) = codec::decode_dentry(&[], value) {
                index.insert(dir, cookie, &entry.name, entry.named());
            }
        });
    }
}

impl ItemStore for MetaStore {
    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        match ItemKey::decode(key)? {
            ItemKey::Dentry { dir, cookie } => {
                let entry = codec::decode_dentry(key, value)?;
                if self.reserved == 0 {
                    self.early_names.push(dir, cookie, value);
                } else {
                    self.index.insert(dir, cookie, &entry.name, entry.named());
                }
            }
            ItemKey::Inode(local) => {
                self.inodes.insert(local, &codec::decode_inode(key, value)?);
            }
            ItemKey::Xattr { local, name } => {
                self.xattrs.insert((local, name), codec::decode_xattr(key, value)?);
            }
            ItemKey::Root => {
                let record = codec::decode_store(key, value)?;
                if record.target != self.target {
                    return Err(format!("metadata of {} found on {}", record.target, self.target));
                }
                self.index.set_seed(record.seed);
                self.reserved = record.reserved;
                self.next_local = record.reserved;
                self.place_early_names();
            }
        }
        Ok(())
    }

    fn value_of(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.item_value(&ItemKey::decode(key).ok()?)
    }

    fn keys_after(&self, after: &[u8], max: usize) -> Vec<Key> {
        let mut keys = Vec::new();
        // The tags in the order of their bytes: D, I, M, X.
        if let Some((dir, cookie)) = codec::lower_bound(tag::DENTRY, after) {
            let more = self.index.from(dir, cookie).take(max);
            keys.extend(more.map(|(dir, cookie, _)| ItemKey::Dentry { dir, cookie }.encode()));
        }
        if let Some((local, _)) = codec::lower_bound(tag::INODE, after) {
            let more = self.inodes.numbers(local).map(|local| ItemKey::Inode(local).encode());
            keys.extend(more.filter(|key| key.as_slice() > after).take(max.saturating_sub(keys.len())));
        }
        if after < [tag::META].as_slice() && self.reserved > 0 && keys.len() < max {
            keys.push(ItemKey::Root.encode());
        }
        if let Some((local, _)) = codec::lower_bound(tag::XATTR, after) {
            let name = if after.len() > 9 && after[0] == tag::XATTR { &after[9..] } else { &[] };
            let from = Bound::Excluded((local, Box::from(name)));
            let more = self.xattrs.range((from, Bound::Unbounded)).map(|((local, name), _)| (*local, name.clone()));
            let more = more.map(|(local, name)| ItemKey::Xattr { local, name }.encode());
            keys.extend(more.take(max.saturating_sub(keys.len())));
        }
        keys
    }
}
