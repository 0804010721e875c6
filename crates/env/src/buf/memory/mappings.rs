//! Used mappings of more than a chunk: which is taken again, and which go back to the system.
//!
//! Owns: unused mappings. Does not own: mapping and unmapping (`memory`).
//!
//! A program that streams has as many mappings under way as the write pipeline permits, and needs them again at once.
//! Unmapping one and mapping it again costs a worker 40 us for 4 MiB, during which the disk waits. So up to
//! `keep_bytes` are kept, and those that were not used lately are unmapped.
//!
//! Invariants: a mapping is either in this list or has one owner. `bytes` is the sum of those in the list.

use super::{MAPPINGS_KEPT_BYTES, Unowned};

/// Each `decay` unmaps this part of the mappings that were not needed.
const DECAY: usize = 8;
/// Calls of `decay` in a stretch. Memory that was needed in this stretch or the previous one stays.
const STRETCH: usize = 12;

/// A mapping and its size in bytes.
pub(super) type Mapping = (Unowned, usize);

/// The store of used mappings.
pub(super) struct Mappings {
    /// The mappings, the last ones returned at the end.
    kept: Vec<Mapping>,
    bytes: usize,
    max: usize,
    /// The smallest number of bytes that were kept at any moment of this series of `decay`s and of the one before.
    least: [usize; 2],
    decays: usize,
}

impl Mappings {
    /// A store without mappings.
    pub(super) const fn new() -> Mappings {
        Mappings { kept: Vec::new(), bytes: 0, max: MAPPINGS_KEPT_BYTES, least: [0; 2], decays: 0 }
    }

    /// Sets how many bytes may wait for their next use, or 52 MiB if that is more.
    pub(super) fn keep_bytes(&mut self, max: usize) {
        self.max = max.max(MAPPINGS_KEPT_BYTES);
    }

    /// A mapping of exactly `size` bytes.
    pub(super) fn take(&mut self, size: usize) -> Option<Unowned> {
        let at = self.kept.iter().rposition(|(_, s)| *s == size)?;
        self.bytes -= size;
        self.least = self.least.map(|least| least.min(self.bytes));
        Some(self.kept.remove(at).0)
    }

    /// Keeps the mapping; returns it if there is no space, to be unmapped.
    pub(super) fn keep(&mut self, mapping: Mapping) -> Option<Mapping> {
        if self.bytes + mapping.1 > self.max {
            return Some(mapping);
        }
        self.bytes += mapping.1;
        self.kept.push(mapping);
        None
    }

    /// The mappings to be unmapped as time passes: a part of those kept beyond 52 MiB that were not needed lately, or
    /// with `all` everything beyond that.
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

    /// Goal: mappings that are used repeatedly stay, up to the bound. Unused ones are unmapped step by step down to 52
    /// MiB, or at once when memory is short. Method: 40 mappings of 4 MiB are used for some series of `decay`s, and
    /// then left unused.
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
