//! The benchmarks' clock: real time on the calling thread, outside any environment.

use std::time::{Duration, Instant};

/// Now.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time on threads that have no environment")]
pub fn now() -> Instant {
    Instant::now()
}

/// Pauses the calling thread: to let an idle cluster be idle, or to pace requests.
#[expect(clippy::disallowed_methods, reason = "a benchmark paces real requests")]
pub fn pause(d: Duration) {
    std::thread::sleep(d);
}

/// Seconds since 1970, for the record of a run.
#[expect(clippy::disallowed_methods, reason = "the date of a run is part of its record")]
pub fn unix_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
