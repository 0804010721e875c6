//! Storage of the file system below for the metadata region.
//!
//! Owns: how much of the region has storage, and when it gets more. Does not own: which slots a segment takes
//! (`segment`), or how many bytes items may take of it (`state`, `room`).
//!
//! A zone file is sparse. If the local file system had no space for a checkpoint, no log space could be freed, and then
//! not even deletions would be possible. So the beginning of the metadata region gets storage before items need it, no
//! slot behind it is used, and operations that add items are refused when there is no more storage. Invariant: the
//! slots that may be used can hold twice the items and the changes in the log, as the whole region can on a disk of its
//! own.

use crate::layout::SLOT_BYTES;
use crate::state::{ITEMS_PERCENT, Shared, State};
use amphi_env::{Disk, Env};

/// Slots of the metadata region that have storage of the file system below from the first start on: 8 MiB.
const BACKED_SLOTS_MIN: u64 = 128;

impl<E: Env> Shared<E> {
    /// Bytes of the metadata region that have storage of the file system below.
    pub fn backed_bytes(st: &State) -> u64 {
        st.medium.slots.backed() * SLOT_BYTES
    }

    /// Returns the number of slots that should have storage for this many bytes of items: enough to merge them, for the
    /// segments that the merge replaces, and for the same amount again.
    fn slots_for(&self, item_bytes: u64) -> u64 {
        let wanted = (item_bytes * 100 / ITEMS_PERCENT).saturating_mul(2).div_ceil(SLOT_BYTES);
        wanted.max(BACKED_SLOTS_MIN).min(self.geometry.meta_slots)
    }

    /// Gives storage to the beginning of the metadata region when the zone is opened. If the local file system below
    /// has no space for that, the existing storage has to suffice.
    pub async fn back_region(&self) {
        let (wanted, used) = {
            let st = self.state.borrow();
            (self.slots_for(Self::item_bytes(&st)).max(st.medium.slots.end()), st.medium.slots.end())
        };
        self.state.borrow_mut().medium.slots.set_backed(used);
        self.back_slots(wanted, 0).await;
    }

    /// Gives storage to the slots up to `wanted`, beginning at `from`. Returns whether they have it.
    async fn back_slots(&self, wanted: u64, from: u64) -> bool {
        let (at, len) = (self.geometry.meta_offset + from * SLOT_BYTES, (wanted - from) * SLOT_BYTES);
        let backed = match self.disk.reserve(at, len).await {
            Ok(()) => wanted,
            Err(e) if is_full(&e) => {
                tracing::warn!(zone = %self.path, "the file system below has no room for more metadata: {e}");
                return false;
            }
            // The storage below cannot report its space: a checkpoint that finds none is tried again.
            Err(e) => {
                tracing::info!(zone = %self.path, "storage for metadata cannot be reserved: {e}");
                self.geometry.meta_slots
            }
        };
        self.state.borrow_mut().medium.slots.set_backed(backed);
        true
    }

    /// Gives storage to more of the metadata region after a checkpoint that found no free slot: the file system below
    /// may have room again.
    pub async fn back_after_refusal(&self) {
        let backed = self.state.borrow().medium.slots.backed();
        let wanted = (backed + BACKED_SLOTS_MIN).min(self.geometry.meta_slots);
        if wanted > backed && !self.backing.replace(true) {
            self.back_slots(wanted, backed).await;
            self.backing.set(false);
            self.events.room.notify();
        }
    }

    /// Gives more of the metadata region storage, ahead of items that grow by `growth`. Returns whether anything has
    /// changed.
    pub async fn back_more(&self, growth: u64) -> bool {
        if self.backing.replace(true) {
            self.events.room.wait_until(|| !self.backing.get()).await;
            return true;
        }
        let (wanted, backed) = {
            let st = self.state.borrow();
            (self.slots_for(Self::item_bytes(&st) + growth), st.medium.slots.backed())
        };
        let more = wanted > backed && self.back_slots(wanted, backed).await;
        self.backing.set(false);
        self.events.room.notify();
        more
    }
}

/// Returns whether the file system below has no room.
pub fn is_full(e: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(e.kind(), StorageFull | QuotaExceeded)
}
