//! Space for what an operation will add: in the log, and among the items.
//!
//! Owns: the decision whether an operation may be planned, and the steps before it if it may not: more of the region
//! gets storage (`backing`), a checkpoint merges segments, the log frees space. Does not own: how a group that is
//! written waits for log space (`commit`), or how many bytes the items take (`state`).

use crate::ZoneErrorKind;
use crate::layout::SLOT_BYTES;
use crate::state::{ITEMS_PERCENT, Shared, State};
use amphi_env::Env;
use amphi_types::Errno;
use amphi_types::limits::BLOCK;

/// Queued bytes at which `reserve` waits.
const QUEUE_BYTES_MAX: u64 = 4 << 20;
/// Share that changes in the log may take before operations that add nothing have them merged: a merge of that size,
/// and as much again, still fits. Operations that add items cannot use the rest.
const CHANGES_PERCENT: u64 = 46;
/// Least share that must be won back by a merge for what adds nothing.
const MERGE_PERCENT: u64 = 2;

impl<E: Env> Shared<E> {
    fn has_log_room(&self, st: &State) -> bool {
        let used = st.log.head.position - st.log.start_position + st.waiting.bytes.div_ceil(BLOCK);
        used * 4 < self.geometry.log_blocks * 3 && st.waiting.bytes < QUEUE_BYTES_MAX
    }

    /// Bytes of items that a full merge could win back, at most.
    fn unmerged_bytes(st: &State) -> u64 {
        let newer: u64 = st.medium.segments.iter().skip(1).map(|s| s.bytes).sum();
        newer + st.changes.dirty.cost() + st.changes.frozen_bytes() + st.waiting.bytes
    }

    /// Returns whether `growth` bytes have room among the items and, if not, whether a full merge may make room.
    fn items_room(&self, st: &State, growth: u64) -> (bool, bool) {
        let bytes = Self::item_bytes(st) + growth;
        if growth == 0 {
            // The number of deletions is bounded only by the log, which may be larger than the rest of the region.
            let worth = Self::unmerged_bytes(st) * 100 > self.geometry.meta_slots * SLOT_BYTES * MERGE_PERCENT;
            return (bytes <= Self::backed_bytes(st) / 100 * CHANGES_PERCENT, worth);
        }
        // A merge is worth its cost if something was overwritten or deleted.
        let unseen = st.reached.written_lsn < st.waiting.appended_lsn || st.changes.frozen.is_some();
        let worth = unseen
            || st.medium.segments.len() > 1
            || st.changes.dirty.cost() > SLOT_BYTES
            || st.changes.deletions >= 16;
        (bytes <= Self::backed_bytes(st) / 100 * ITEMS_PERCENT, worth)
    }

    /// See `Zone::reserve`.
    pub async fn reserve(&self, growth: u64) -> Result<(), Errno> {
        let (mut merged, mut backed) = (false, false);
        loop {
            let (room, fits, worth, appended) = {
                let st = self.state.borrow();
                if st.life.failed.is_some() {
                    return Err(Errno::Io);
                }
                let (fits, worth) = self.items_room(&st, growth);
                (self.has_log_room(&st), fits, worth, st.waiting.appended_lsn)
            };
            if !fits && growth > 0 && !backed {
                // This step is repeated as long as the region can be given more storage.
                backed = !self.back_more(growth).await;
                continue;
            }
            if !fits && !merged && worth {
                merged = true;
                // A checkpoint sees what is written; deletions may still be queued.
                self.wait_written(appended).await?;
                match self.request_checkpoint(true).await {
                    Err(e) if growth == 0 && e.kind == ZoneErrorKind::NoSpace => {}
                    other => other?,
                }
                continue;
            }
            if !fits && growth > 0 {
                return Err(Errno::NoSpace);
            }
            if room {
                return Ok(());
            }
            self.wait_log_room(|st| self.has_log_room(st)).await;
        }
    }
}
