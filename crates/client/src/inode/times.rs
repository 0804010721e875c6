//! Times of a file that this mount itself has set, and when reads renew the access time.
//!
//! Owns: the rules for access times and modification times. Does not own: the times (`known`), the times in an answer
//! (`file`).

use super::Inode;
use super::known::Known;
use super::ticks::tick;
use amphi_types::Timespec;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};

/// Age of an access time from which on any read renews it, in seconds: a day.
pub(super) const ATIME_AGE_S: i64 = 86_400;

impl Inode {
    /// Time of the last write that is only in the cache, if there is such a write.
    pub(crate) fn own_mtime(&self) -> Timespec {
        let known = self.known.lock();
        if known.mtime_local { known.write_time() } else { Timespec::default() }
    }

    /// Notes the time of a write that is only in the cache.
    pub(crate) fn touch(&self, now: Timespec) {
        let mut known = self.known.lock();
        known.mtime = now;
        (known.mtime_local, known.mtime_set) = (true, false);
        self.access_may_be_due(&known);
        self.size.map.change(tick);
    }

    /// Called when something became known that may make the next read renew the access time.
    pub(super) fn access_may_be_due(&self, known: &Known) {
        self.hints.atime_due.store(true, Relaxed);
        let (atime, changed) = Self::accessed_and_changed(known);
        if atime <= changed {
            self.exported().access_is_due();
        }
    }

    /// Notes a read at `now`, by the rule of relatime: the access time is renewed only if it is not later than the last
    /// change or is older than a day. This is called only for the first read after a change, so that other reads cost
    /// one check of a flag.
    #[cold]
    pub(crate) fn note_access(&self, now: Timespec) {
        self.hints.atime_due.store(false, Relaxed);
        let mut known = self.known.lock();
        let (atime, changed) = Self::accessed_and_changed(&known);
        if atime <= changed || now.sec - atime.sec >= ATIME_AGE_S {
            known.accessed = Some(now);
            known.accessed_due = true;
        }
    }

    /// Returns whether a read now would renew the access time (`note_access`). If not, no read does before the next
    /// change.
    pub(crate) fn access_is_due(&self, now: Timespec) -> bool {
        if !self.hints.atime_due.load(Relaxed) {
            return false;
        }
        let known = self.known.lock();
        let (atime, changed) = Self::accessed_and_changed(&known);
        atime <= changed || now.sec - atime.sec >= ATIME_AGE_S
    }

    fn accessed_and_changed(known: &Known) -> (Timespec, Timespec) {
        let attr = &known.view.attr;
        let atime = attr.atime.max(known.accessed.unwrap_or(attr.atime));
        (atime, attr.mtime.max(attr.ctime).max(known.mtime))
    }

    /// The modification time was set explicitly: the dirty bytes were written before that, so their write-back does not
    /// change it.
    pub(crate) fn time_was_set(&self, mtime: Timespec) {
        let mut known = self.known.lock();
        (known.mtime, known.mtime_set) = (mtime, true);
    }

    /// Called when everything of this client has been written back, and other mounts may write from now on: the
    /// server's times are right.
    pub(crate) fn times_told(&self) {
        let mut known = self.known.lock();
        if self.cached.dirty_bytes.load(SeqCst) == 0 {
            known.mtime_local = false;
        }
    }

    /// Notes the time of a direct write: what the cache still contains was written before.
    pub(crate) fn touched_past_cache(&self, at: Timespec) {
        let mut known = self.known.lock();
        if known.mtime_local {
            known.mtime = if known.mtime_set { at } else { known.mtime.max(at) };
            known.mtime_set = false;
        }
    }
}
