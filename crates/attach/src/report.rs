//! Counts of calls by the way they went, for `AMPHI_PRELOAD=report`.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The way of a call, or why it went to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Served from shared memory.
    Shared,
    /// One of the first reads of a descriptor.
    First,
    /// The descriptor is no file of a mount, or belongs to a file that the kernel serves.
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
    /// A write was posted.
    Posted,
    /// A write that might have been posted went to the kernel because the ring was full: the mount had not yet taken
    /// earlier writes out of it.
    Full,
    /// A write that might have been posted went to the kernel for any other reason.
    NotPosted,
}

const WAYS: usize = 13;
static COUNTS: [AtomicU64; WAYS] = [const { AtomicU64::new(0) }; WAYS];
static COUNTING: AtomicBool = AtomicBool::new(false);
const NAMES: [&str; WAYS] = [
    "reads from shared memory",
    "reads kernel: first reads of a descriptor",
    "reads kernel: not shared by a mount",
    "reads kernel: a descriptor of the file was closed",
    "reads kernel: the mount was silent",
    "reads kernel: the file was changing",
    "reads kernel: bytes not shared",
    "reads kernel: at the end of the file",
    "reads kernel: access time",
    "reads kernel: unusual arguments",
    "writes posted",
    "writes kernel: the ring was full",
    "writes kernel: not allowed to post",
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
