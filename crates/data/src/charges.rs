//! The accounts to which the blocks of objects are charged.
//!
//! Owns: the owner of each object, and what a change of an object adds to its accounts. Does not own: the assignment of
//! owners (the inode's target), limits (`amphi_quota`).
//!
//! An object is charged for its mapped blocks, and for those that delayed bytes will get. Every change of an object
//! weighs it before and after, in the blocks that it touches.
//!
//! Owners are not stored, because the inode has them. They are known while the target counts (`set_counting`): if some
//! account of the cluster is limited, or on request. While it does not count, no blocks are counted.
//!
//! Invariant: while the target counts, the counts are the sums over all objects whose owner is known.

use crate::store::DataStore;
use amphi_quota::{OwnerIndex, Usage};
use amphi_types::limits::BLOCK;
use amphi_types::{Account, ByteRange, ObjectId, Owner};
use std::ops::Bound;

/// The blocks of an object before a change.
#[derive(Clone, Copy)]
pub(crate) struct Weighed {
    owner: OwnerIndex,
    blocks: u64,
}

impl DataStore {
    /// Begins to count, with no owner known yet, or ends counting.
    pub fn set_counting(&mut self, on: bool) {
        if on == self.usage.is_some() {
            return;
        }
        self.usage = on.then(Usage::default);
        for object in self.objects.iter_mut() {
            object.set_owner(OwnerIndex::NOBODY);
        }
    }

    /// Returns whether blocks are counted.
    pub fn is_counting(&self) -> bool {
        self.usage.is_some()
    }

    /// Blocks that an account uses here, as far as owners are known.
    pub fn used(&self, account: Account) -> u64 {
        self.usage.as_ref().map_or(0, |usage| usage.used(account))
    }

    /// All accounts that use blocks here, ascending.
    pub fn accounts(&self) -> impl Iterator<Item = (Account, u64)> {
        self.usage.iter().flat_map(Usage::all)
    }

    /// The owner of an object, if it is known.
    pub fn owner_of(&self, object: ObjectId) -> Option<Owner> {
        self.usage.as_ref()?.owner(self.objects.get(object)?.owner())
    }

    /// From now on an object is charged to this owner. Does nothing if there is no such object, or if nothing is
    /// counted.
    pub fn set_owner(&mut self, object: ObjectId, owner: Owner) {
        let Some(usage) = &mut self.usage else { return };
        let Some(before) = self.objects.get(object).map(|o| o.owner()) else { return };
        let after = usage.number(owner);
        if after == before {
            return;
        }
        let blocks = self.weight(object, ByteRange::ALL);
        if let (Some(usage), Some(o)) = (&mut self.usage, self.objects.get_mut(object)) {
            usage.charge(before, blocks, 0);
            usage.charge(after, 0, blocks);
            o.set_owner(after);
        }
    }

    /// Objects behind `after` whose owner is not known, at most `max`.
    pub fn objects_of_nobody(&self, after: Option<ObjectId>, max: usize) -> Vec<ObjectId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let unowned = self.objects.range(from).filter(|(_, o)| o.owner() == OwnerIndex::NOBODY);
        unowned.take(max).map(|(id, _)| id).collect()
    }

    /// Blocks that a write of `range` adds to what the owner of the object is charged.
    pub fn charge_of_write(&self, object: ObjectId, range: ByteRange) -> u64 {
        self.added_by(object, range)
    }

    /// Blocks of an object, and those that its delayed bytes in the blocks around `range` will get.
    fn weight(&self, object: ObjectId, range: ByteRange) -> u64 {
        let Some(o) = self.objects.get(object) else { return 0 };
        let Some((end, _)) = self.delayed.end_of(object) else { return o.blocks() };
        let (mut delayed, mut counted) = (0, 0);
        let (start, end) = (range.start / BLOCK * BLOCK, range.end.min(end).next_multiple_of(BLOCK));
        if start < end {
            let span = ByteRange::new(start, end);
            for run in self.delayed.runs(object, span) {
                let blocks = run.align_out(BLOCK);
                let (from, to) = ((blocks.start / BLOCK).max(counted), blocks.end / BLOCK);
                if from < to {
                    let mapped: u64 = o.mapped(from, to).map(|(_, e)| u64::from(e.blocks)).sum();
                    delayed += to - from - mapped;
                    counted = to;
                }
            }
        }
        o.blocks() + delayed
    }

    /// Weighs an object before a change in the blocks around `range`.
    pub(crate) fn weigh(&self, object: ObjectId, range: ByteRange) -> Weighed {
        let owner = match &self.usage {
            Some(_) => self.objects.get(object).map_or(OwnerIndex::NOBODY, |o| o.owner()),
            None => OwnerIndex::NOBODY,
        };
        let blocks = if owner == OwnerIndex::NOBODY { 0 } else { self.weight(object, range) };
        Weighed { owner, blocks }
    }

    /// Charges the owner with the blocks that the change has added, or has freed.
    pub(crate) fn charge(&mut self, object: ObjectId, range: ByteRange, before: Weighed) {
        if before.owner == OwnerIndex::NOBODY {
            return;
        }
        let after = self.weight(object, range);
        if let Some(usage) = &mut self.usage {
            usage.charge(before.owner, before.blocks, after);
        }
    }

    /// Checks the counts against the objects; for tests.
    pub(crate) fn check_charges(&self) -> Result<(), String> {
        let Some(usage) = &self.usage else { return Ok(()) };
        let mut fresh = Usage::default();
        for (id, o) in self.objects.iter() {
            if let Some(owner) = usage.owner(o.owner()) {
                let number = fresh.number(owner);
                fresh.charge(number, 0, self.weight(id, ByteRange::ALL));
            }
        }
        let (counted, own): (Vec<_>, Vec<_>) = (usage.all().collect(), fresh.all().collect());
        if counted == own { Ok(()) } else { Err(format!("{counted:?} is counted, objects have {own:?}")) }
    }
}
