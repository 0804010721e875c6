//! Coherence: what this mount may keep, for how long, and what it gives back when another mount wants it.
//!
//! Owns: cached locks of the cluster, range locks among this mount's own requests, tokens for names and attributes,
//! the lease, group locks, locks of applications, and the rule for a mount that is alone. Does not own: the lock
//! protocol (`dlm`), the cached bytes (`cache`) and inodes (`inode`).

pub(crate) mod bare;
pub(crate) mod directories;
pub(crate) mod file_locks;
pub(crate) mod group_lock;
pub(crate) mod lease;
pub(crate) mod lent;
pub(crate) mod locks;
pub(crate) mod range_lock;
pub(crate) mod sharing;
pub(crate) mod tokens;
pub(crate) mod walks;

use crate::inode::unlinked::Unlinked;
use crate::telemetry::tunables::Tunables;
use bare::Bare;
use directories::Directories;
use file_locks::FileLockTable;
use group_lock::GroupNews;
use locks::Locks;
use sharing::Sharing;
use tokens::Tokens;
use walks::Walks;

/// What this mount holds of the cluster, and what it keeps by that.
pub(crate) struct Coherence {
    pub(crate) locks: Locks,
    pub(crate) tokens: Tokens,
    pub(crate) directories: Directories,
    /// Files without a name that are open here.
    pub(crate) unlinked: Unlinked,
    pub(crate) walks: Walks,
    pub(crate) bare: Bare,
    pub(crate) sharing: Sharing,
    pub(crate) file_locks: FileLockTable,
    pub(crate) group_news: GroupNews,
}

impl Coherence {
    /// Of a mount that holds nothing yet.
    pub(crate) fn new(tunables: &Tunables) -> Coherence {
        Coherence {
            locks: Locks::new(tunables),
            tokens: Tokens::new(),
            directories: Directories::default(),
            unlinked: Unlinked::default(),
            walks: Walks::default(),
            bare: Bare::default(),
            sharing: Sharing::new(),
            file_locks: FileLockTable::default(),
            group_news: GroupNews::default(),
        }
    }
}
