//! `FileSize`: the size of a file as this mount sees it, and which answers are too old to determine it.
//!
//! Owns: the size, the end of what this mount has written itself, and the moments of changes that answers may not
//! include. Does not own: taking the size from an answer (`file`), whether it is certain (`coherence::tokens`).

use super::exported::Exported;
use super::map_stamp::MapStamp;
use super::ticks::tick;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The end of a file, and since when it is known.
pub(crate) struct FileSize {
    pub(crate) bytes: AtomicU64,
    /// When the file entered the table.
    pub(super) born: u64,
    /// The last begin or end of a change of the size or of the server's content.
    pub(super) epoch: AtomicU64,
    /// The last change that earlier answers cannot include although this client no longer knows the resulting size
    /// itself: truncates, direct writes, returned locks.
    pub(super) turned: AtomicU64,
    /// End of what this mount wrote into its cache under locks that it still holds. The file has at least this length
    /// (`own_end()`).
    own_end: AtomicU64,
    /// The previous value of `own_end` while the new one is being determined; 0 otherwise.
    own_before: AtomicU64,
    finding_own: Mutex<()>,
    /// How many writes without a lock have returned whose bytes are not on their target yet (`write_behind`), and where
    /// the last of them ends.
    unfinished: Mutex<(u32, u64)>,
    /// The end of the last such write, for callers that take no lock; 0 if there is none.
    unfinished_end: AtomicU64,
    /// Writes past the cache that are under way.
    pub(super) direct_writes: AtomicU64,
    /// Memory of direct writes that have returned to their callers and are not answered (`write_behind`).
    pub(crate) piped_bytes: AtomicU64,
    /// The number of the caching mode in which the size was last taken from an answer.
    pub(crate) sure_rule: AtomicU64,
    /// Until this time the size is certain under an attributes token; 0 if the mount holds none.
    pub(crate) token_end_ns: AtomicU64,
    /// The stamp of the map of the file's data.
    pub(crate) map: MapStamp,
    /// The shared memory that shows the size to programs.
    exported: Exported,
}

/// A direct write under way.
pub(crate) struct DirectWrite<'a>(&'a FileSize);

impl Drop for DirectWrite<'_> {
    fn drop(&mut self) {
        self.0.direct_writes.fetch_sub(1, SeqCst);
    }
}

impl FileSize {
    /// The size in an answer to a request that was sent under `rule`.
    pub(super) fn new(bytes: u64, rule: u64, exported: Exported) -> FileSize {
        let born = tick();
        FileSize {
            bytes: AtomicU64::new(bytes),
            born,
            epoch: AtomicU64::new(born),
            turned: AtomicU64::new(1),
            own_end: AtomicU64::new(0),
            own_before: AtomicU64::new(0),
            finding_own: Mutex::default(),
            unfinished: Mutex::default(),
            unfinished_end: AtomicU64::new(0),
            direct_writes: AtomicU64::new(0),
            piped_bytes: AtomicU64::new(0),
            sure_rule: AtomicU64::new(rule),
            token_end_ns: AtomicU64::new(0),
            map: MapStamp::new(born),
            exported,
        }
    }

    /// Returns whether this mount has changed the file since it entered the table.
    pub(super) fn has_changed(&self) -> bool {
        self.epoch.load(SeqCst) > self.born
    }

    /// Marks the begin or end of a change that answers under way may or may not include.
    pub(crate) fn mark_epoch(&self) {
        self.epoch.fetch_max(tick(), SeqCst);
    }

    /// The moment of the last turn: a number that is never 0.
    pub(crate) fn turned(&self) -> u64 {
        self.turned.load(SeqCst)
    }

    /// Marks a change of the size that `own_end` does not show, or no longer shows.
    pub(crate) fn turn(&self) {
        self.exported.while_all_changes(|| {
            let now = tick();
            // Another thread may have got a later number and stored it before this thread stores its own.
            self.turned.fetch_max(now, SeqCst);
            self.epoch.fetch_max(now, SeqCst);
            self.map.change(tick);
        });
    }

    /// Called when storage of the file is about to be allocated or freed, or was.
    pub(crate) fn storage_changes(&self) {
        self.mark_epoch();
        self.map.change(tick);
    }

    /// Called when a direct write begins. Until the returned guard is dropped, answers may show some of its pieces.
    pub(crate) fn begin_direct(&self) -> DirectWrite<'_> {
        self.direct_writes.fetch_add(1, SeqCst);
        DirectWrite(self)
    }

    /// A write into the cache extends the file to `end`. It has to be called under the extent lock that permits the
    /// write.
    pub(crate) fn extend_own(&self, end: u64) {
        self.own_end.fetch_max(end, SeqCst);
        self.grow(end);
    }

    /// The file has at least the length `end`.
    pub(super) fn grow(&self, end: u64) {
        if end > self.bytes.load(SeqCst) {
            self.exported.while_size_changes(|| self.bytes.fetch_max(end, SeqCst));
        }
    }

    /// Sets the length to `bytes`, as an answer says.
    pub(super) fn set(&self, bytes: u64) {
        self.exported.while_size_changes(|| self.bytes.store(bytes, SeqCst));
    }

    /// The size is certain under an attributes token until `end_ns`. With 0 the size is no longer certain.
    pub(crate) fn set_token_end(&self, end_ns: u64) {
        if end_ns != 0 {
            self.token_end_ns.store(end_ns, SeqCst);
        } else {
            self.exported.while_size_changes(|| self.token_end_ns.store(0, SeqCst));
        }
    }

    /// End of what this mount wrote into its cache under locks that it still holds. The file has at least this length.
    pub(crate) fn own_end(&self) -> u64 {
        // With this order of loads, at least one of the two values is right at every moment of `own_is_at_least`.
        let first = self.own_end.load(SeqCst);
        first.max(self.own_before.load(SeqCst)).max(self.own_end.load(SeqCst))
    }

    /// A write without a lock that ends at `end` is about to return before it has landed. Until `finished`, this mount
    /// assumes that the file has at least this length, whatever its server says.
    pub(crate) fn begin_unfinished(&self, end: u64) {
        let mut unfinished = self.unfinished.lock();
        unfinished.0 += 1;
        unfinished.1 = unfinished.1.max(end);
        self.unfinished_end.store(unfinished.1, SeqCst);
    }

    /// Called when the write has landed or failed. Answers to questions from before this no longer count (`turn`, by
    /// the caller, before).
    pub(crate) fn finished(&self) {
        let mut unfinished = self.unfinished.lock();
        assert!(unfinished.0 > 0, "a write has landed that was not under way");
        unfinished.0 -= 1;
        if unfinished.0 == 0 {
            unfinished.1 = 0;
            self.unfinished_end.store(0, SeqCst);
        }
    }

    /// The end of the last write that has returned without a lock and whose bytes are not on their target yet; 0 if
    /// there is none.
    pub(crate) fn unfinished_end(&self) -> u64 {
        self.unfinished_end.load(SeqCst)
    }

    /// From now on `own_end` is at least `end`.
    pub(crate) fn own_reaches(&self, end: u64) {
        self.own_end.fetch_max(end, SeqCst);
    }

    /// `own_end` is at most `end` from now on: the file was truncated, or none of the mount's bytes lies beyond `end`.
    pub(crate) fn own_ends_by(&self, end: u64) {
        let _finding = self.finding_own.lock();
        self.own_end.fetch_min(end, SeqCst);
    }

    /// Forgets the end of earlier cached writes, and takes what `found` finds in the cache instead. Concurrent writes
    /// are taken into account, and at no moment is the end lower than that of the bytes in the cache.
    pub(crate) fn own_is_at_least(&self, found: impl FnOnce() -> u64) {
        self.turn();
        let _finding = self.finding_own.lock();
        // Later writes are entered anew, and `found` finds the earlier ones.
        let mut before = self.own_end.load(SeqCst);
        loop {
            self.own_before.store(before, SeqCst);
            match self.own_end.compare_exchange(before, 0, SeqCst, SeqCst) {
                Ok(_) => break,
                Err(raised) => before = raised,
            }
        }
        self.own_end.fetch_max(found(), SeqCst);
        self.own_before.store(0, SeqCst);
    }
}
