//! Used mappings of more than a chunk: which is taken again, and which go back to the system.
//!
//! Owns: mappings that nobody uses. Does not own: mapping and unmapping (`memory`).
//!
//! Who streams has as much of them under way as the write pipeline lets him, and takes them again at once; to unmap one
//! and map it anew costs a worker 40 us for 4 MiB, in which the disk waits. So as many stay as `keep_bytes` allows, and
//! those that nobody wanted lately go.
//!
//! Invariants: a mapping is here or has one owner; `bytes` is the sum of those here.

use super::{MAPPINGS_KEPT_BYTES, Unowned};

/// Each `decay` gives back this part of what was not wanted.
const DECAY: usize = 8;
/// Calls of `decay` in a stretch: what was wanted in this one or the one before stays.
const STRETCH: usize = 12;

/// A mapping and its size in bytes.
pub(super) type Mapping = (Unowned, usize);

/// The store of used mappings.
pub(super) struct Mappings {
    /// Those that came back last are behind.
    kept: Vec<Mapping>,
    bytes: usize,
    max: usize,
    /// The fewest bytes there were in this stretch of `decay`s and in the one before.
    least: [usize; 2],
    decays: usize,
}

impl Mappings {
    /// Nothing is kept.
    pub(super) const fn new() -> Mappings {
        Mappings { kept: Vec::new(), bytes: 0, max: MAPPINGS_KEPT_BYTES, least: [0; 2], decays: 0 }
    }

    /// How many bytes may wait for their next use, or 52 MiB if that is more.
    pub(super) fn keep_bytes(&mut self, max: usize) {
        self.max = max.max(MAPPINGS_KEPT_BYTES);
    }

    /// One of just `size` bytes.
    pub(super) fn take(&mut self, size: usize) -> Option<Unowned> {
        let at = self.kept.iter().rposition(|(_, s)| *s == size)?;
        self.bytes -= size;
        self.least = self.least.map(|least| least.min(self.bytes));
        Some(self.kept.remove(at).0)
    }

    /// Keeps it; gives it back if there is no room, to be unmapped.
    pub(super) fn keep(&mut self, mapping: Mapping) -> Option<Mapping> {
        if self.bytes + mapping.1 > self.max {
            return Some(mapping);
        }
        self.bytes += mapping.1;
        self.kept.push(mapping);
        None
    }

    /// What is to be unmapped as time goes by: a part of what is kept beyond 52 MiB and was not wanted lately, or `all`
    /// beyond.
    pub(super) fn decay(&mut self, all: bool) -> Vec<Mapping> {
        self.decays += 1;
        let beyond = self.bytes.saturating_sub(MAPPINGS_KEPT_BYTES);
        let unwanted = self.least[0].min(self.least[1]).min(beyond);
        let back = if all { beyond } else { unwanted.div_ceil(DECAY) };
        let (mut bytes, mut count) = (0, 0);
        while let Some((_, size)) = self.kept.get(count).filter(|_| bytes < back) {
            bytes += size;
            count += 1;
        }
        let gone: Vec<Mapping> = self.kept.drain(..count).collect();
        self.bytes -= bytes;
        self.least = self.least.map(|least| least.saturating_sub(bytes));
        if self.decays.is_multiple_of(STRETCH) {
            self.least = [self.bytes, self.least[0]];
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::NonNull;

    const MIB: usize = 1 << 20;

    fn of(size: usize) -> Mapping {
        (Unowned(NonNull::dangling()), size)
    }

    /// Goal: what is wanted again and again stays, up to the bound; what is not wanted any more goes step by step down
    /// to 52 MiB, at once when memory is short. Method: 40 mappings of 4 MiB, taken and kept for some stretches, then
    /// let alone.
    #[test]
    fn what_nobody_wants_goes() {
        let mut m = Mappings::new();
        m.keep_bytes(128 * MIB);
        let refused = (0..40).filter_map(|_| m.keep(of(4 * MIB))).count();
        assert_eq!((refused, m.bytes), (8, 128 * MIB));
        for _ in 0..4 * STRETCH {
            let taken: Vec<_> = (0..32).filter_map(|_| m.take(4 * MIB)).collect();
            assert_eq!(taken.len(), 32);
            assert!(m.take(4 * MIB).is_none());
            assert!(taken.into_iter().all(|t| m.keep((t, 4 * MIB)).is_none()));
            assert!(m.decay(false).is_empty(), "all is wanted");
        }
        assert!((0..STRETCH).all(|_| m.decay(false).is_empty()), "wanted in the stretch before");
        let first = m.decay(false).len();
        assert!((1..=4).contains(&first), "a part of it, not {first}");
        (0..6 * STRETCH).for_each(|_| drop(m.decay(false)));
        assert_eq!(m.bytes, 52 * MIB);
        assert!(m.keep(of(8 * MIB)).is_none());
        assert_eq!(m.decay(true).len(), 2, "the oldest of 4 MiB");
        assert_eq!(m.bytes, 52 * MIB);
        assert!(m.take(4 * MIB).is_some() && m.take(5 * MIB).is_none());
    }
}
