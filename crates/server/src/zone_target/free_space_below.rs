//! `RoomBelow`: the space that the file system below the zones can still give to one target.
//!
//! Zone files are sparse: a block that was never written gets storage from the local file system when it is written.
//! Owns: when the free space of that file system is checked, and the consequence if little is left: the target uses
//! only blocks that have storage already. Also owns which write may use the reserved blocks of a full target. Does not
//! own: which blocks these are (`amphi_data`), how they are used (`ops::full`).
//!
//! Invariant: `MARGIN_BYTES` of the file system stay free for metadata, so that files can be deleted from a full
//! target. If a write finds the file system full nevertheless (other programs fill it too), it gets `NoSpace`, and
//! later writes are planned accordingly.
//!
//! The number: a check is one statvfs, 2 us. It is made every 100 ms, and when the writes planned since may have used
//! up the free space.

use crate::zone_target::Target;
use crate::zone_target::gate::Gate;
use amphi_env::{Disk, Env};
use amphi_types::limits::BLOCK;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Space that is left to other uses of the file system, including metadata of the zones.
const MARGIN_BYTES: u64 = 32 << 20;
/// How long the result of a check is used, in nanoseconds.
const LOOK_NS: u64 = 100_000_000;

/// How the free space of the file system below is read.
struct Below {
    free_bytes: Box<dyn Fn() -> Option<u64>>,
    now_ns: Box<dyn Fn() -> u64>,
    /// Number of targets of this server whose zones are in the same file system.
    sharing: u64,
}

/// The known state of the file system below the zone; nothing until `begin`.
#[derive(Default)]
pub struct RoomBelow {
    below: RefCell<Option<Below>>,
    /// When it was last checked, and the free space then, less the space of writes planned since.
    seen: Cell<Option<(u64, u64)>>,
    tight: Cell<bool>,
    /// Only one write at a time uses reserved blocks.
    pub turns: Gate<()>,
    /// A write is using the reserved blocks now, and no other write begins to use them meanwhile.
    alone: Rc<Cell<bool>>,
}

/// A write uses reserved blocks as long as it holds this value.
#[must_use = "others begin again when this is dropped"]
pub struct Alone(Rc<Cell<bool>>);

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl RoomBelow {
    /// From now on `free_bytes` returns the free space of the file system, for `sharing` targets. Informs the target
    /// which of its blocks have storage.
    pub fn begin<E: Env>(
        &self,
        target: &Target<E>,
        free_bytes: impl Fn() -> Option<u64> + 'static,
        now_ns: impl Fn() -> u64 + 'static,
        sharing: u64,
    ) {
        let (first, end) = (target.zone.data_offset(), target.zone.data_offset() + target.zone.data_blocks() * BLOCK);
        match target.storage.disk.backed() {
            Ok(ranges) => {
                let mut data = target.data.borrow_mut();
                for (from, to) in ranges {
                    // Only whole blocks count.
                    let (from, to) = (from.max(first).next_multiple_of(BLOCK), to.min(end) / BLOCK * BLOCK);
                    if from < to {
                        data.note_backed((from - first) / BLOCK, (to - from) / BLOCK);
                    }
                }
                let below =
                    Below { free_bytes: Box::new(free_bytes), now_ns: Box::new(now_ns), sharing: sharing.max(1) };
                drop(data);
                self.below.replace(Some(below));
            }
            Err(e) => tracing::info!(
                "{}: room below is not minded, as the storage of its zone cannot be told: {e}",
                target.id
            ),
        }
    }

    /// The write that has the turn begins.
    pub fn begin_alone(&self) -> Alone {
        assert!(!self.alone.replace(true), "one write has the turn at a time");
        Alone(self.alone.clone())
    }

    /// Returns whether a write without space has its turn. Other writes that need space wait until it has ended.
    pub fn is_anyone_alone(&self) -> bool {
        self.alone.get()
    }

    /// It has to be called before a write of `bytes` is planned.
    pub fn mind<E: Env>(&self, target: &Target<E>, bytes: u64) {
        let wanted = bytes + MARGIN_BYTES;
        let Some(left) = self.left(|left| left >= wanted || self.tight.get()) else { return };
        let planned = if left < wanted { 0 } else { bytes };
        self.seen.set(self.seen.get().map(|(at, left)| (at, left - planned)));
        self.set_tight(target, left < wanted);
    }

    /// A write found the file system below full.
    pub fn is_full<E: Env>(&self, target: &Target<E>) {
        if let Some(below) = &*self.below.borrow() {
            self.seen.set(Some(((below.now_ns)(), 0)));
            self.set_tight(target, true);
        }
    }

    fn set_tight<E: Env>(&self, target: &Target<E>, tight: bool) {
        if self.tight.replace(tight) != tight {
            let how = if tight { "no more room for data" } else { "room again" };
            tracing::info!("{}: the file system below its zone has {how}", target.id);
            target.data.borrow_mut().set_tight(tight);
        }
    }

    /// The free space as it was last checked, if that is `enough`.
    fn left(&self, enough: impl Fn(u64) -> bool) -> Option<u64> {
        let below = self.below.borrow();
        let below = below.as_ref()?;
        let now_ns = (below.now_ns)();
        if let Some((at, left)) = self.seen.get()
            && now_ns.saturating_sub(at) < LOOK_NS
            && enough(left)
        {
            return Some(left);
        }
        let left = (below.free_bytes)()?;
        self.seen.set(Some((now_ns, left)));
        Some(left)
    }

    /// Returns how many of `free` blocks of the zone can be written. `now`: by a new check instead of the last one.
    pub fn of<E: Env>(&self, target: &Target<E>, free: u64, now: bool) -> u64 {
        let Some(left) = self.left(|_| !now) else { return free };
        let sharing = self.below.borrow().as_ref().map_or(1, |below| below.sharing);
        let more = left.saturating_sub(MARGIN_BYTES) / BLOCK / sharing;
        free.min(target.data.borrow().backed_free_blocks() + more)
    }
}
