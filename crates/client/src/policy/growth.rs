//! `Growth`: how much memory the cache may take where new memory is expensive.
//!
//! Owns: whether new memory is expensive, and the resulting bound. Does not own: measuring what a page costs
//! (`amphi_env::buf`) and how fast the disks are (`throughput`), eviction (`pagecache`).
//!
//! A page that a process touches for the first time costs a third of a microsecond on bare metal. On a virtual machine
//! whose host takes free memory back, a new page costs ten microseconds: 0.4 GB/s, which is slower than the disks of
//! most servers. A stream through the cache then waits for memory rather than for storage, although the bytes that it
//! wrote 256 MiB earlier are clean and could be evicted. So if a new page costs more than the disk needs for a page,
//! the cache evicts instead of growing. When evicted bytes are read again, keeping them would have been better. So the
//! cache may then grow by the same amount once. So a data set that is read repeatedly costs one more pass over the
//! disk.
//!
//! Invariants: the bound is never below the memory with which the cache starts (`cache.populate_bytes`), nor above
//! `cache.bytes`. Where memory is cheap, or nothing was measured, it is `cache.bytes`.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Throughput of the disk that is assumed until something was measured, in bytes per second.
const UNKNOWN_PER_S: u64 = 1_500_000_000;
/// Bytes of a page.
const PAGE: u64 = 4096;
const SECOND_NS: u64 = 1_000_000_000;

/// Whether new memory is expensive, as the I/O half has measured it.
#[derive(Default)]
pub(crate) struct Growth {
    dear: AtomicBool,
}

/// The inputs of the bound, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// The most that the cache may ever take.
    pub(crate) most: u64,
    /// The memory with which the cache starts.
    pub(crate) first: u64,
    /// The memory that the cache uses.
    pub(crate) used: u64,
    /// Memory that was touched before and is free for the next use.
    pub(crate) waiting: u64,
    /// Bytes that were evicted and read again.
    pub(crate) returned: u64,
}

impl Growth {
    /// Compares the cost of a new page with what the disks carry.
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

/// Returns how much memory the cache may take if new memory is expensive.
pub(crate) fn bound(memory: Memory) -> u64 {
    let Memory { most, first, used, waiting, returned } = memory;
    first.saturating_add(returned).max(used.saturating_add(waiting)).max(first).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    /// Goal: memory is dear where a page of it costs more than one of the disk. Method: a machine without
    /// virtualisation, and a virtual one whose host takes memory back; each with a slow disk and with a fast one.
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

    /// Goal: a cache uses what it has, grows as freed memory returns, and never exceeds its bounds. Method: the inputs
    /// of each case are given directly.
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
