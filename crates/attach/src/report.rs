//! Counts of calls by the way they went, for `AMPHI_PRELOAD=report`.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The way of a call, or why it went to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Served from shared memory.
    Shared,
    /// One of the first reads of a descriptor.
    First,
    /// The descriptor is no file of a mount, or one that the kernel serves.
    Kernel,
    /// A descriptor of the open file was closed somewhere, so it is identified again.
    Closed,
    /// The mount's lease is over.
    Lease,
    /// The file changed, or a call held it.
    Busy,
    /// The bytes were not shared.
    Absent,
    /// The read may reach behind the end of the file.
    End,
    /// The read renews the access time.
    Due,
    /// A buffer is bad, or arguments are that only the kernel judges.
    Unusual,
}

const WAYS: usize = 10;
static COUNTS: [AtomicU64; WAYS] = [const { AtomicU64::new(0) }; WAYS];
static COUNTING: AtomicBool = AtomicBool::new(false);
const NAMES: [&str; WAYS] = [
    "from shared memory",
    "kernel: first reads of a descriptor",
    "kernel: not shared by a mount",
    "kernel: a descriptor of the file was closed",
    "kernel: the mount was silent",
    "kernel: the file was changing",
    "kernel: bytes not shared",
    "kernel: at the end of the file",
    "kernel: access time",
    "kernel: unusual arguments",
];

/// Counts from now on.
pub fn set_counting() {
    COUNTING.store(true, Relaxed);
}

/// Whether calls are counted.
#[inline]
pub fn is_counting() -> bool {
    COUNTING.load(Relaxed)
}

/// Counts a call.
#[inline]
pub fn count(way: Way) {
    if is_counting()
        && let Some(count) = COUNTS.get(way as usize)
    {
        count.fetch_add(1, Relaxed);
    }
}

/// The counters, with words for people.
pub fn counts() -> impl Iterator<Item = (&'static str, u64)> {
    NAMES.iter().zip(&COUNTS).map(|(name, count)| (*name, count.load(Relaxed)))
}
