//! Tests of the store: a random model check against a reference, replay of logs and fuzzy checkpoints, rules by
//! table.

mod acl;
mod formats;
mod harness;
mod index;
mod inodes;
mod listing;
mod model;
mod permissions;
mod projects;
mod reference;
mod replay;
mod rules;
mod shards;

use crate::MetaStore;
use crate::codec::ItemKey;
use amphi_types::Kind;

/// Planted bugs that the tests must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Unlinking a fifo keeps its link count.
    KeptLink,
    /// Changes of directory inodes are not logged.
    UnloggedDirectory,
}

impl MetaStore {
    pub(crate) fn is_directory_key(&self, key: &ItemKey) -> bool {
        matches!(key, ItemKey::Inode(local) if self.inodes.get(*local).is_some_and(|i| i.kind == Kind::Dir))
    }
}
