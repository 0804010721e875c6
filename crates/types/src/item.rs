//! Items: the unit of logging and checkpointing of a target.
//!
//! All durable state of a target, file data apart, is a set of items (key, value). A log record is a `Txn`:
//! absolute puts and deletes of items, applied together or not at all. Because puts are absolute, replaying
//! any suffix of the log over any fuzzy image of the items gives the same state.
//! The first byte of a key is its tag and says who owns the item.

use serde::{Deserialize, Serialize};

/// Tags: first byte of an item's key.
pub mod tag {
    /// `meta`: an inode.
    pub const INODE: u8 = b'I';
    /// `meta`: a directory entry.
    pub const DENTRY: u8 = b'D';
    /// `meta`: one extended attribute of an inode.
    pub const XATTR: u8 = b'X';
    /// `meta`: small state of the metadata store (next inode number, ...).
    pub const META: u8 = b'M';
    /// `data`: an object's size, times and truncation generation.
    pub const OBJECT: u8 = b'B';
    /// `data`: an extent of an object.
    pub const EXTENT: u8 = b'E';
    /// `data`: bytes of an object that lie in memory which outlives the process, and the name of that memory.
    pub const DELAYED: u8 = b'W';
    /// `data`: bytes of an object that were synced before they had blocks.
    pub const LOGGED: u8 = b'L';
    /// `data`: checksums of neighbouring data blocks.
    pub const CHECKSUM: u8 = b'K';
    /// `data`: blocks that a session has been granted.
    pub const GRANT: u8 = b'G';
    /// `server`: a session.
    pub const SESSION: u8 = b'S';
    /// `server`: the last reply of a session's slot.
    pub const REPLY: u8 = b'R';
    /// `server`: an intent of an operation that spans targets.
    pub const INTENT: u8 = b'T';
    /// `server`: configuration kept with the target.
    pub const CONFIG: u8 = b'C';
}

/// Key of an item: tag, then the owner's own order-preserving (big-endian) encoding. At most 300 bytes.
pub type Key = Vec<u8>;

/// One absolute change: `value` put, or the item deleted when `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Which item.
    #[serde(with = "serde_bytes")]
    pub key: Key,
    /// Its new value, or `None` to delete it.
    #[serde(with = "serde_bytes")]
    pub value: Option<Vec<u8>>,
}

/// Changes that become durable together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Txn {
    /// In order; a later change of the same key wins.
    pub changes: Vec<Change>,
}

impl Txn {
    /// Adds a put.
    pub fn put(&mut self, key: Key, value: Vec<u8>) {
        self.changes.push(Change { key, value: Some(value) });
    }

    /// Adds a delete.
    pub fn delete(&mut self, key: Key) {
        self.changes.push(Change { key, value: None });
    }

    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// A store whose state is a set of items: `meta`, `data` and the server's own tables.
pub trait ItemStore {
    /// Takes an item found at recovery. Errors: a sentence that names what does not decode.
    fn load(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<(), String>;
    /// The present value of an item, `None` if there is none. Used by checkpoints.
    fn value_of(&self, key: &[u8]) -> Option<Vec<u8>>;
    /// Up to `max` keys of this store greater than `after` (all when `after` is empty), ascending.
    fn keys_after(&self, after: &[u8], max: usize) -> Vec<Key>;
}
