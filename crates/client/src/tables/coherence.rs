//! The rights that servers have granted to this mount, and the values that it caches under them.
//!
//! Owns: the tables of coherence. Does not own: messages (`coherence`, `locks`).

pub(crate) mod bare;
pub(crate) mod directories;
pub(crate) mod file_locks;
pub(crate) mod group_news;
pub(crate) mod leases;
pub(crate) mod lent;
pub(crate) mod lent_names;
pub(crate) mod lock_walks;
pub(crate) mod locks;
pub(crate) mod new_directories;
pub(crate) mod shards;
pub(crate) mod sharing;
pub(crate) mod tokens;
pub(crate) mod walks;

use crate::inode::unlinked::Unlinked;
use crate::telemetry::tunables::Tunables;
use bare::Bare;
use directories::Directories;
use file_locks::FileLockTable;
use group_news::GroupNews;
use locks::Locks;
use new_directories::NewDirectories;
use shards::Shards;
use sharing::Sharing;
use std::sync::Arc;
use tokens::Tokens;
use walks::Walks;

/// The grants of this mount, and its cached data under them.
pub(crate) struct Coherence {
    pub(crate) locks: Locks,
    pub(crate) tokens: Tokens,
    pub(crate) directories: Directories,
    /// Directories that this mount has made.
    pub(crate) new_directories: NewDirectories,
    /// Files without a name that are open on this mount.
    pub(crate) unlinked: Unlinked,
    pub(crate) walks: Walks,
    pub(crate) bare: Bare,
    /// Directories whose names lie in shards.
    pub(crate) shards: Shards,
    pub(crate) sharing: Sharing,
    pub(crate) file_locks: Arc<FileLockTable>,
    pub(crate) group_news: GroupNews,
}

impl Coherence {
    /// The tables of a mount to which nothing has been granted yet.
    pub(crate) fn new(tunables: &Tunables) -> Coherence {
        Coherence {
            locks: Locks::new(tunables),
            tokens: Tokens::new(),
            directories: Directories::default(),
            new_directories: NewDirectories::default(),
            unlinked: Unlinked::default(),
            walks: Walks::default(),
            bare: Bare::default(),
            shards: Shards::default(),
            sharing: Sharing::new(),
            file_locks: Arc::default(),
            group_news: GroupNews::default(),
        }
    }
}
