//! The monotonic clock of the machine, for measuring how long ago something was.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since a fixed moment of this boot, the same for all processes.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
