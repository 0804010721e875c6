//! The table of files: which inodes the client knows something about.

use super::failures::Unreported;
use super::untold::Untold;
use super::{AskedAt, Inode, Use, ticks::tick};
use crate::telemetry::stats::ClosedFiles;
use amphi_pagecache::Locality;
use amphi_types::{ByteRange, Errno, Ino};
use amphi_wire::{Access, InodeView};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const TABLE_SHARDS: usize = 16;
/// Most changed files that a shard remembers after it has dropped them. While one answer is on its way, no more files
/// than these are dropped, unless the answer takes long.
const FORGOTTEN_MAX: usize = 256;

/// When files were dropped that this mount had changed. An answer to an older request may be from before the change,
/// and the file, which would show this, is no longer in the table.
#[derive(Default)]
struct Forgotten {
    at: BTreeMap<Ino, u64>,
    /// The same as `at`, for all other inodes.
    others: u64,
}

impl Forgotten {
    fn note(&mut self, ino: Ino) {
        let now = tick();
        if self.at.len() == FORGOTTEN_MAX {
            self.at.clear();
            self.others = now;
        }
        self.at.insert(ino, now);
        assert!(self.at.len() <= FORGOTTEN_MAX, "{} dropped files are remembered", self.at.len());
    }

    /// Answers for `ino` may be from before a change if their request was sent before this moment.
    fn until(&self, ino: Ino) -> u64 {
        self.at.get(&ino).copied().unwrap_or(self.others)
    }
}

#[derive(Default)]
struct Shard {
    files: BTreeMap<Ino, Arc<Inode>>,
    forgotten: Forgotten,
}

/// All files that the client knows.
pub(crate) struct InodeTable {
    shards: Vec<Mutex<Shard>>,
    /// The locality of requests to all files.
    locality: Arc<Locality>,
    /// Lost bytes of files that are not in the table.
    untold: Untold,
    /// Counters of files that were dropped.
    pub(crate) closed: ClosedFiles,
}

impl InodeTable {
    /// The file, if it is in the table. The file stays in the table as long as the result exists. This is for callers
    /// that wait while they use the file, since `get` alone does not keep it in the table.
    pub(crate) fn use_known(&self, ino: Ino) -> Option<Use> {
        let shard = self.shard(ino).lock();
        let file = shard.files.get(&ino)?.clone();
        file.life.uses.fetch_add(1, SeqCst);
        Some(Use(file))
    }

    pub(crate) fn new() -> InodeTable {
        let shards = (0..TABLE_SHARDS).map(|_| Mutex::default()).collect();
        let (locality, closed, untold) = (Arc::default(), ClosedFiles::default(), Untold::default());
        InodeTable { shards, locality, closed, untold }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % TABLE_SHARDS]
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).lock().files.get(&ino).cloned()
    }

    /// Lets `f` note something in the file, if it is in the table.
    pub(crate) fn note(&self, ino: Ino, f: impl FnOnce(&Inode)) {
        if let Some(file) = self.shard(ino).lock().files.get(&ino) {
            f(file);
        }
    }

    /// The file, which is added if necessary. The open is counted in the same step, so that the file cannot be dropped
    /// in between.
    pub(crate) fn open(&self, view: InodeView, access: Access, asked_at: AskedAt) -> Arc<Inode> {
        let mut shard = self.shard(view.attr.ino).lock();
        let file = self.entry(&mut shard, view, asked_at);
        let mut known = file.known.lock();
        file.opens_as(&mut known, access);
        // `spread` in the answer to a writer's open stays right while that writer has the file open; other answers may
        // be from before the last writer closed.
        known.spread |= access.write && view.spread;
        drop(known);
        file
    }

    /// Works as `open`, for a file that is opened ahead of its reader. If the file was not in the table from before
    /// `asked_at` until now, so that this mount did nothing with it in between, a fill of `range` is entered in the
    /// same step; returns its id.
    pub(crate) fn open_ahead(
        &self,
        view: InodeView,
        access: Access,
        asked_at: AskedAt,
        range: ByteRange,
    ) -> (Arc<Inode>, Option<u64>) {
        let ino = view.attr.ino;
        let mut shard = self.shard(ino).lock();
        let unknown = !shard.files.contains_key(&ino) && shard.forgotten.until(ino) < asked_at.at;
        let file = self.entry(&mut shard, view, asked_at);
        file.opens_as(&mut file.known.lock(), access);
        let fill = unknown.then(|| file.fills.begin(range));
        (file, fill)
    }

    pub(crate) fn know(&self, view: InodeView, asked_at: AskedAt) -> Use {
        let mut shard = self.shard(view.attr.ino).lock();
        let file = self.entry(&mut shard, view, asked_at);
        file.life.uses.fetch_add(1, SeqCst);
        Use(file)
    }

    fn entry(&self, shard: &mut Shard, view: InodeView, asked_at: AskedAt) -> Arc<Inode> {
        let ino = view.attr.ino;
        if let Some(file) = shard.files.get(&ino) {
            file.adopt(view, asked_at);
            return file.clone();
        }
        let until = shard.forgotten.until(ino);
        let is_fresh = until < asked_at.at;
        let mut file = Inode::new(view, if is_fresh { asked_at } else { AskedAt::PAST }, &self.locality);
        if is_fresh {
            // The view is of a moment since which this mount has not changed the file.
            file.size.epoch.store(asked_at.at, SeqCst);
        }
        if let Some(stats) = self.closed.take(ino) {
            file.stats = stats;
        }
        let file = Arc::new(file);
        if let Some(left) = self.untold.take(ino) {
            file.failures.restore(left);
        }
        file.size.turned.fetch_max(until, SeqCst);
        let before = shard.files.insert(ino, file.clone());
        assert!(before.is_none(), "{ino} is twice in the table");
        file
    }

    /// Drops a file that nobody uses any more.
    pub(crate) fn reap(&self, file: &Arc<Inode>) {
        let mut shard = self.shard(file.ino).lock();
        let unused = file.access_count() == 0
            && file.life.uses.load(SeqCst) == 0
            && file.cached.bytes.load(SeqCst) == 0
            && file.cached.dirty_bytes.load(SeqCst) == 0
            && file.fills.entered.load(SeqCst) == 0
            && !file.pages.keep_known();
        if unused && shard.files.get(&file.ino).is_some_and(|f| Arc::ptr_eq(f, file)) {
            shard.files.remove(&file.ino);
            self.closed.keep(file.ino, &file.stats);
            if file.size.has_changed() {
                shard.forgotten.note(file.ino);
            }
            if let Some(left) = file.unreported() {
                self.untold.note(file.ino, left);
            }
        }
    }

    /// The server cannot write bytes that it accepted from this mount, of a file that is no longer in the table; it
    /// still has the bytes. The next program that opens the file gets the failure.
    pub(crate) fn note_refused(&self, ino: Ino, errno: Errno) {
        self.untold.note(ino, Unreported { errno, is_owed: true, is_secret: false });
    }

    /// The last name of a file that is not in the table is gone, so no program misses its lost bytes.
    pub(crate) fn nameless(&self, ino: Ino) {
        self.untold.take(ino);
    }

    /// Called when all losses so far are being reported to a caller that syncs all files.
    pub(crate) fn told_to_all(&self) {
        self.all().iter().for_each(|file| file.failures.told_to_all());
        self.untold.told_to_all();
    }

    /// The error of a file whose lost bytes were reported neither to an open file nor to a caller that syncs all files,
    /// if there is one.
    pub(crate) fn secret_loss(&self) -> Option<Errno> {
        let known = self.all().into_iter().filter_map(|file| file.unreported()).find(|left| left.is_secret);
        known.map(|left| left.errno).or_else(|| self.untold.secret())
    }

    /// Files that are open or have bytes to write back, at most `most`. If there are more, each call begins elsewhere.
    pub(crate) fn busy(&self, most: usize) -> Vec<Arc<Inode>> {
        let begin = tick() as usize;
        let mut busy = Vec::new();
        for shard in (0..TABLE_SHARDS).map(|at| &self.shards[(begin + at) % TABLE_SHARDS]) {
            let shard = shard.lock();
            let works = |file: &&Arc<Inode>| file.open_count() > 0 || file.cached.dirty_bytes.load(SeqCst) > 0;
            busy.extend(shard.files.values().filter(works).take(most - busy.len()).cloned());
        }
        busy
    }

    /// All files, in order of inode numbers.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        let mut all: Vec<_> =
            self.shards.iter().flat_map(|s| s.lock().files.values().cloned().collect::<Vec<_>>()).collect();
        all.sort_by_key(|f| f.ino);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: answers whose request is older than the dropping of a changed file are recognised, also when the table of
    /// dropped files was full. Method: first one file is dropped, and then as many as the table can remember.
    #[test]
    fn forgotten_files_are_remembered() {
        let mut forgotten = Forgotten::default();
        assert!(forgotten.until(Ino(1)) < AskedAt::now(1).at);
        let before = AskedAt::now(1);
        forgotten.note(Ino(1));
        let after = AskedAt::now(1);
        let allowed = |f: &Forgotten, ino| [before, after].map(|m| f.until(Ino(ino)) < m.at);
        assert_eq!((allowed(&forgotten, 1), allowed(&forgotten, 2)), ([false, true], [true, true]));
        (0..FORGOTTEN_MAX as u64).for_each(|i| forgotten.note(Ino(10 + i)));
        assert_eq!((allowed(&forgotten, 1), allowed(&forgotten, 2)), ([false, false], [false, false]));
        assert!(forgotten.until(Ino(1)) < AskedAt::now(1).at && forgotten.at.len() <= FORGOTTEN_MAX);
    }
}
