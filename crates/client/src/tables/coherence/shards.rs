//! `Shards`: directories whose names lie in shards, as far as this mount has used them.
//!
//! Owns: the table from a directory to its shards. Does not own: asking for them (`coherence::shards`).
//!
//! A directory never loses its shards, so an entry of the table is never outdated. If an entry is missing, the client
//! requests the shards: a server refuses a name in the directory itself (`Remote`), and a view of the directory says
//! that it has shards.

use amphi_types::{Ino, Name};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Most directories, about 100 bytes each with four shards. If the table is full, a new directory replaces another one.
const DIRECTORIES_MAX: usize = 65_536;

#[derive(Default)]
pub(crate) struct Shards {
    any: AtomicBool,
    /// Shards by directory; the list is empty if it is only known that the directory has some.
    lists: RwLock<BTreeMap<Ino, Arc<[Ino]>>>,
}

impl Shards {
    /// Returns whether the names of a directory are known to lie in shards.
    #[inline]
    pub(crate) fn has(&self, dir: Ino) -> bool {
        self.any.load(Relaxed) && self.lists.read().contains_key(&dir)
    }

    /// The shards of a directory, if they are known.
    #[inline]
    pub(crate) fn of(&self, dir: Ino) -> Option<Arc<[Ino]>> {
        if !self.any.load(Relaxed) {
            return None;
        }
        self.lists.read().get(&dir).filter(|list| !list.is_empty()).cloned()
    }

    /// The directory in which a name of `dir` lies: its shard, or `dir` itself as far as is known.
    #[inline]
    pub(crate) fn place(&self, dir: Ino, name: &Name) -> Ino {
        self.of(dir).map_or(dir, |shards| shards[name.shard(shards.len())])
    }

    /// Notes that a directory has shards.
    pub(crate) fn note(&self, dir: Ino) {
        if !self.has(dir) {
            self.insert(dir, Arc::from([]));
        }
    }

    /// Notes the shards of a directory.
    pub(crate) fn insert(&self, dir: Ino, shards: Arc<[Ino]>) {
        let mut lists = self.lists.write();
        if lists.len() >= DIRECTORIES_MAX && !lists.contains_key(&dir) {
            lists.pop_first();
        }
        lists.insert(dir, shards);
        self.any.store(true, Relaxed);
    }

    /// Called when the directory was removed.
    pub(crate) fn removed(&self, dir: Ino) {
        if self.has(dir) {
            self.lists.write().remove(&dir);
        }
    }
}
