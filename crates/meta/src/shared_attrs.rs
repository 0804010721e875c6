//! `SharedAttrs`: the attributes that a directory and its shards have in common.
//!
//! Owns: which attributes these are, and the name of the hidden attribute with the list of shards. Does not own:
//! changes of them (`shards`).

use crate::inode::InodeTimes;
use amphi_types::{Acls, Advice, FileFlags, Layout, Owner};
use serde::{Deserialize, Serialize};

/// Name of the attribute with the numbers of the shards, 8 bytes each. No program can name it.
pub(crate) const LIST: &[u8] = b"amphi.shards";

/// The attributes of a directory that its shards have as well, and its times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedAttrs {
    pub(crate) perm: u16,
    pub(crate) owner: Owner,
    pub(crate) flags: FileFlags,
    pub(crate) layout: Layout,
    pub(crate) advice: Advice,
    pub(crate) acls: Acls,
    pub(crate) times: InodeTimes,
    /// A change that sets the mtime: from then on, the earlier mtimes of the shards do not count.
    pub(crate) sets_mtime: bool,
}

impl SharedAttrs {
    /// Bytes of items that a record may add when it sets these attributes.
    pub fn growth(&self) -> u64 {
        if self.acls == Acls::default() { 0 } else { self.acls.stored_bytes() + 128 }
    }

    /// Returns whether a shard with the attributes `other` agrees with this directory.
    pub(crate) fn agrees(&self, other: &SharedAttrs) -> bool {
        let shared = |attrs: &SharedAttrs| SharedAttrs { times: self.times, sets_mtime: false, ..attrs.clone() };
        shared(self) == shared(other)
    }
}
