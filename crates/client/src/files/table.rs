//! The table of files: which inodes the client knows something about.

use super::{File, Moment};
use amphi_types::Ino;
use amphi_wire::{Access, InodeView};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const TABLE_SHARDS: usize = 16;

/// A file in use without being open; `FileTable::reap` afterwards.
pub(crate) struct Use(pub(crate) Arc<File>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.uses.fetch_sub(1, SeqCst);
    }
}

/// All files the client knows something about.
pub(crate) struct FileTable {
    shards: Vec<Mutex<BTreeMap<Ino, Arc<File>>>>,
}

impl FileTable {
    pub(crate) fn new() -> FileTable {
        FileTable { shards: (0..TABLE_SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, ino: Ino) -> &Mutex<BTreeMap<Ino, Arc<File>>> {
        &self.shards[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % TABLE_SHARDS]
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<File>> {
        self.shard(ino).lock().get(&ino).cloned()
    }

    /// The file, known from now on; `open` is counted in the same step, so that nobody forgets it in between.
    pub(crate) fn open(&self, view: InodeView, access: Access, moment: Moment) -> Arc<File> {
        let mut shard = self.shard(view.attr.ino).lock();
        let file = Self::entry(&mut shard, view, moment);
        let mut known = file.known.lock();
        known.opens.push(access);
        // Only an answer to a writer's open stays true while that writer has the file open; others may be from before
        // the last writer closed.
        known.spread |= access.write && view.spread;
        drop(known);
        file
    }

    /// The file, known as long as the result lives although it is not open here.
    pub(crate) fn know(&self, view: InodeView, moment: Moment) -> Use {
        let mut shard = self.shard(view.attr.ino).lock();
        let file = Self::entry(&mut shard, view, moment);
        file.uses.fetch_add(1, SeqCst);
        Use(file)
    }

    fn entry(shard: &mut BTreeMap<Ino, Arc<File>>, view: InodeView, moment: Moment) -> Arc<File> {
        if let Some(file) = shard.get(&view.attr.ino) {
            file.adopt(view, moment);
            return file.clone();
        }
        let file = Arc::new(File::new(view, moment));
        shard.insert(view.attr.ino, file.clone());
        file
    }

    /// Forgets a file that nobody needs any more.
    pub(crate) fn reap(&self, file: &Arc<File>) {
        let mut shard = self.shard(file.ino).lock();
        let unused = file.access_count() == 0
            && file.uses.load(SeqCst) == 0
            && file.cached_bytes.load(SeqCst) == 0
            && file.dirty_bytes.load(SeqCst) == 0
            && file.fills_under_way.load(SeqCst) == 0;
        if unused && shard.get(&file.ino).is_some_and(|f| Arc::ptr_eq(f, file)) {
            shard.remove(&file.ino);
        }
    }

    /// All files, in order of inodes.
    pub(crate) fn all(&self) -> Vec<Arc<File>> {
        let mut all: Vec<_> = self.shards.iter().flat_map(|s| s.lock().values().cloned().collect::<Vec<_>>()).collect();
        all.sort_by_key(|f| f.ino);
        all
    }
}
