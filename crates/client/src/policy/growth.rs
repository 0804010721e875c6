//! How much memory the cache may take, where new memory is dear.
//!
//! Owns: when new memory is dear, and the bound that follows. Does not own: measuring what a page costs
//! (`amphi_env::buf`) or what the disks carry (`throughput`), eviction (`pagecache`).
//!
//! A page that a process touches for the first time costs a third of a microsecond on bare metal. On a virtual machine
//! whose host takes free memory back it costs ten: 0.4 GB/s, less than the disks of most servers carry. A stream that
//! goes through the cache then waits for memory rather than for storage, although what it wrote 256 MiB ago is clean
//! and in the way. So where a new page costs more than the disk takes for one, the cache turns round in the memory that
//! it has: it evicts instead of growing. What was evicted and is read again shows that more would have been kept with
//! profit; so much more it may take, once: a set that is read again costs one more pass of the disk.
//!
//! Invariants: the bound is never below the memory that the cache starts with (`cache.populate_bytes`), nor above
//! `cache.bytes`; where memory is cheap, or nothing was measured, it is `cache.bytes`.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What the disk is taken to carry as long as nothing was measured, bytes per second.
const UNKNOWN_PER_S: u64 = 1_500_000_000;
/// Bytes of a page.
const PAGE: u64 = 4096;
const SECOND_NS: u64 = 1_000_000_000;

/// Whether new memory is dear, as the I/O half has found it.
#[derive(Default)]
pub(crate) struct Growth {
    dear: AtomicBool,
}

/// What the bound is made of, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// The most that the cache may ever take.
    pub(crate) most: u64,
    /// What it starts with.
    pub(crate) first: u64,
    /// What it has.
    pub(crate) used: u64,
    /// Touched memory that waits for its next use.
    pub(crate) waiting: u64,
    /// What was evicted and read again.
    pub(crate) returned: u64,
}

impl Growth {
    /// Compares what a new page costs with what the disks carry.
    pub(crate) fn look(&self, new_page_ns: Option<u64>, disk_per_s: Option<u64>) {
        self.dear.store(new_page_ns.is_some_and(|ns| is_dear(ns, disk_per_s)), Relaxed);
    }

    #[inline]
    pub(crate) fn is_dear(&self) -> bool {
        self.dear.load(Relaxed)
    }
}

fn is_dear(new_page_ns: u64, disk_per_s: Option<u64>) -> bool {
    new_page_ns > PAGE * SECOND_NS / disk_per_s.unwrap_or(UNKNOWN_PER_S).max(1)
}

/// How much the cache may take where new memory is dear.
pub(crate) fn bound(memory: Memory) -> u64 {
    let Memory { most, first, used, waiting, returned } = memory;
    first.saturating_add(returned).max(used.saturating_add(waiting)).max(first).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    /// Goal: memory is dear where a page of it costs more than one of the disk. Method: bare metal and a host that
    /// takes memory back, each beside a slow disk and a quick one.
    #[test]
    fn memory_is_dear_beside_quicker_disks() {
        let (metal, host) = (300, 10_000);
        assert!(!is_dear(metal, None) && is_dear(host, None));
        assert!(!is_dear(host, Some(100_000_000)), "a single rotating disk");
        assert!(is_dear(host, Some(600_000_000)) && is_dear(metal, Some(20_000_000_000)));
        let growth = Growth::default();
        assert!(!growth.is_dear());
        growth.look(Some(host), None);
        assert!(growth.is_dear());
        growth.look(None, None);
        assert!(!growth.is_dear(), "nothing was measured");
    }

    /// Goal: a cache uses what it has, grows by what comes back, and never beyond its bounds. Method: by hand.
    #[test]
    fn the_bound_follows_what_comes_back() {
        let memory = Memory { most: 4096 * M, first: 256 * M, used: 0, waiting: 0, returned: 0 };
        assert_eq!(bound(memory), 256 * M);
        assert_eq!(bound(Memory { used: 200 * M, waiting: 200 * M, ..memory }), 400 * M, "it is there already");
        assert_eq!(bound(Memory { used: 256 * M, returned: 100 * M, ..memory }), 356 * M);
        assert_eq!(bound(Memory { returned: u64::MAX, ..memory }), 4096 * M);
        assert_eq!(bound(Memory { most: 64 * M, ..memory }), 64 * M);
    }
}
