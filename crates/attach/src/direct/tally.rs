//! Counts of the large requests in named folders, for `AMPHI_PRELOAD=report`.

use super::file::{KINDS, Kind, Left};
use crate::report::is_counting;
use amphi_policy::decision::{Reason, Way};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

const REASONS: usize = Reason::ALL.len();
const LEFT: [&str; 8] = [
    "kernel: file system without direct I/O",
    "kernel: opened with O_DIRECT",
    "kernel: O_APPEND",
    "kernel: RLIMIT_FSIZE",
    "kernel: the file has a lease",
    "kernel: mapped for writing",
    "kernel: unusual, or no memory",
    "kernel: refused",
];

/// Requests and bytes.
#[derive(Debug)]
struct Count([AtomicU64; 2]);

impl Count {
    const fn new() -> Count {
        Count([const { AtomicU64::new(0) }; 2])
    }
}

type Counts<const N: usize> = [[Count; N]; 2];
static DECIDED: [Counts<REASONS>; KINDS.len()] =
    [const { [const { [const { Count::new() }; REASONS] }; 2] }; KINDS.len()];
static LEFT_TO_KERNEL: Counts<{ LEFT.len() }> = [const { [const { Count::new() }; LEFT.len()] }; 2];

/// Counts a request about which was decided.
pub(crate) fn decided(kind: Kind, way: Way, reason: Reason, bytes: u64) {
    add(DECIDED.get(kind as usize).and_then(|ways| ways.get(way as usize)?.get(reason as usize)), bytes);
}

/// Counts a request that was left to the kernel.
pub(crate) fn left(way: Way, why: Left, bytes: u64) {
    add(LEFT_TO_KERNEL.get(way as usize).and_then(|all| all.get(why as usize)), bytes);
}

fn add(count: Option<&Count>, bytes: u64) {
    if is_counting()
        && let Some(Count([requests, sum])) = count
    {
        requests.fetch_add(1, Relaxed);
        sum.fetch_add(bytes, Relaxed);
    }
}

/// A line of the report: the file system, reads or writes, the way and why, requests, bytes.
pub type Line = (&'static str, &'static str, &'static str, u64, u64);

/// The counters that are not 0.
pub fn direct_counts() -> impl Iterator<Item = Line> {
    const WAYS: [&str; 2] = ["reads", "writes"];
    let line = |system, way, name, Count([requests, bytes]): &'static Count| {
        (system, way, name, requests.load(Relaxed), bytes.load(Relaxed))
    };
    let decided = KINDS.iter().zip(&DECIDED).flat_map(move |((_, system, _), ways)| {
        WAYS.iter().zip(ways).flat_map(move |(way, reasons)| {
            Reason::ALL.iter().zip(reasons).map(move |(reason, count)| line(*system, *way, reason.name(), count))
        })
    });
    let left = WAYS
        .iter()
        .zip(&LEFT_TO_KERNEL)
        .flat_map(move |(way, all)| LEFT.iter().zip(all).map(move |(name, count)| line("files", *way, *name, count)));
    decided.chain(left).filter(|(.., requests, _)| *requests > 0)
}
