//! The metadata store as items: loading at recovery, and checkpoints.
//!
//! Owns: the two directions. Does not own: the log and its order (`zone`).
//!
//! Loading is idempotent and accepts items in any order; a later value of a key replaces an earlier one. So recovery
//! may load a checkpoint and then the log over it, or the merged items once. It is cheaper to load the item
//! `tag::META` first, because it has the key of the hash that places entries.

use crate::MetaStore;
use crate::attributes::Value;
use crate::codec::{self, ItemKey};
use amphi_types::item::{ItemStore, Key, tag};

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
                self.xattrs.remove(local, &name);
            }
            ItemKey::Root => return Err("the metadata store item was deleted".into()),
        }
        Ok(())
    }
}

impl MetaStore {
    /// Bounds the memory for values of extended attributes; without a bound all of them are in memory. Values of up to
    /// 64 bytes and access control lists are in memory anyway.
    pub fn set_values_max(&mut self, bytes: usize) {
        self.xattrs.set_bytes_max(bytes);
    }

    /// Bytes of values of extended attributes in memory that count for this bound.
    pub fn value_bytes(&self) -> usize {
        self.xattrs.held_bytes()
    }

    /// Takes an item that a step has found to be absent, with its present value; `None` means that it does not exist.
    /// The step has to be repeated at once, before anything else is done.
    ///
    /// Errors: a sentence that names the item: it does not decode, or is not as long as it is known to be.
    pub fn load_absent(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), String> {
        let (local, name) = match ItemKey::decode(key)? {
            ItemKey::Xattr { local, name } => (local, name),
            ItemKey::Inode(local) => return self.load_inode(local, key, value),
            _ => return Err(format!("item {key:02x?} is never absent from memory")),
        };
        // If the value is not absent any more, another task has loaded, changed or removed it meanwhile.
        let Some(len) = self.xattrs.get(local, &name).filter(|known| known.is_absent()).map(Value::len) else {
            return Ok(());
        };
        let bytes = value.map(|value| codec::decode_xattr(key, value)).transpose()?;
        let Some(bytes) = bytes.filter(|bytes| bytes.len() == len) else {
            let (name, ino) = (String::from_utf8_lossy(&name), self.ino(local));
            return Err(format!("attribute {name} of inode {ino} does not have the {len} bytes that it had"));
        };
        // The value stays until the next change or load.
        self.xattrs.trim();
        self.xattrs.insert(local, &name, bytes);
        Ok(())
    }

    fn load_inode(&mut self, local: u64, key: &[u8], value: Option<&[u8]>) -> Result<(), String> {
        // If the inode is not away any more, another task has loaded it, and perhaps changed it.
        if self.inodes.is_away(local) {
            let Some(value) = value else { return Err(format!("inode {} has no item", self.ino(local))) };
            self.inodes.restore(local, &codec::decode_inode(key, value)?);
        }
        Ok(())
    }

    /// Places the entries that were loaded before the store's own item. For a checker, where that item is missing: as
    /// if the key of the hash were the one of an empty store.
    pub fn place_early_names(&mut self) {
        let index = &mut self.index;
        self.early_names.drain(|dir, cookie, value| {
            // The entries were decoded when they arrived.
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
                self.xattrs.insert(local, &name, codec::decode_xattr(key, value)?);
                self.xattrs.trim();
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
            let more = self.xattrs.keys_after(local, name).cloned();
            let more = more.map(|(local, name)| ItemKey::Xattr { local, name }.encode());
            keys.extend(more.take(max.saturating_sub(keys.len())));
        }
        keys
    }
}
