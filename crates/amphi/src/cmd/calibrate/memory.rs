//! The rate at which one core copies memory that is in no cache of the processor.

use amphi_client::Clock;
use amphi_host::clock::Machine as Clocks;
use std::time::Duration;

/// Bytes that are copied in one measurement: far more than a core's caches hold.
const BYTES: usize = 128 << 20;
/// Bytes of one copy, as a large request has them.
const PIECE: usize = 1 << 20;

/// Measures the rate of copies, in bytes per second.
pub(super) fn copy_bytes_per_s(long: Duration) -> f64 {
    let (from, mut to) = (vec![1u8; BYTES], vec![2u8; BYTES]);
    let begun = Clocks.now_ns();
    let (mut copied, mut at) = (0u64, 0);
    loop {
        to[at..at + PIECE].copy_from_slice(std::hint::black_box(&from[at..at + PIECE]));
        std::hint::black_box(&to[at..at + PIECE]);
        copied += PIECE as u64;
        at = (at + PIECE) % BYTES;
        let passed = Clocks.now_ns().saturating_sub(begun);
        // The first round takes pages.
        if copied >= BYTES as u64 && passed >= long.as_nanos() as u64 {
            return copied as f64 / (passed as f64 / 1e9);
        }
    }
}

/// The memory of the machine; 0 if it is not known.
pub(super) fn machine_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}
