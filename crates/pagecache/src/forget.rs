//! Dropping cached bytes: for truncates, punches, direct writes and revoked locks.
//!
//! Owns: the drop. Does not own: when it is due (the owner of the cache).

use super::{CHUNK, CHUNK_UNITS, CachedFile, PageCache, SHARDS, Shard, UNIT};
use amphi_types::ByteRange;
use parking_lot::RwLock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The treatment of the dirty bytes of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dirty {
    /// Dirty bytes stay, and the call reports that.
    Keep,
    /// Dirty bytes are dropped, except for those in flight.
    Discard,
}

impl<F: CachedFile> PageCache<F> {
    /// Drops the valid bytes of `range`. Returns whether any of these bytes are left: dirty bytes that were kept, or
    /// bytes in flight.
    pub fn forget(&self, file: &F, range: ByteRange, dirty: Dirty) -> bool {
        if range.is_empty() {
            return false;
        }
        // Every shard that can contain bytes of the range is locked once, even if nothing is cached. So a write that
        // passed its check before the caller took the range lock has ended by then.
        let chunks = range.start / CHUNK..range.end.div_ceil(CHUNK);
        let mut left = false;
        if chunks.end - chunks.start < SHARDS as u64 {
            for c in chunks {
                let part = ByteRange::at(c * CHUNK, CHUNK).intersect(&range);
                left |= self.forget_in(self.shard(file.id(), c * CHUNK_UNITS), file, part, dirty);
            }
        } else {
            for shard in &self.shards {
                left |= self.forget_in(shard, file, range, dirty);
            }
        }
        left
    }

    fn forget_in(&self, shard: &RwLock<Shard<F>>, file: &F, range: ByteRange, dirty: Dirty) -> bool {
        let mut shard = shard.write();
        file.changes(range);
        let keys = (file.id(), range.start / UNIT)..(file.id(), range.end.div_ceil(UNIT));
        let mut left = false;
        let mut emptied: smallvec::SmallVec<[super::Key; 16]> = smallvec::SmallVec::new();
        for (key, unit) in shard.units.range_mut(keys) {
            let part = unit.range().intersect(&range);
            let gone = if dirty == Dirty::Discard { unit.dirty.within(part).map(|r| r.len()).sum() } else { 0 };
            let was_dirty = !unit.dirty.is_empty();
            let mut kept: smallvec::SmallVec<[ByteRange; 4]> = unit.flight.within(part).collect();
            let flights = kept.len();
            if dirty == Dirty::Keep {
                kept.extend(unit.dirty.within(part));
            }
            left |= !kept.is_empty();
            let dirty_kept: smallvec::SmallVec<[ByteRange; 4]> = kept[flights..].iter().copied().collect();
            unit.forget(part);
            for (i, r) in kept.into_iter().enumerate() {
                unit.valid.insert(r);
                if i < flights {
                    unit.flight.insert(r);
                }
            }
            dirty_kept.into_iter().for_each(|r| unit.dirty.insert(r));
            self.uncover(file, unit);
            if gone > 0 {
                file.cached().dirty_bytes.fetch_sub(gone, SeqCst);
                self.dirty.fetch_sub(gone, Relaxed);
            }
            if was_dirty && unit.dirty.is_empty() {
                file.cached().dirty.lock().units.remove(&key.1);
            }
            if unit.valid.is_empty() {
                emptied.push(*key);
            }
        }
        for key in emptied {
            if let Some(unit) = shard.units.remove(&key) {
                self.account_gone(unit);
            }
        }
        // Under the shard's lock, so that no fill begins between the drop and the note.
        file.spoil(range);
        left
    }
}
