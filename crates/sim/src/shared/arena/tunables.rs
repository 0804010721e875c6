//! The settings that a test changes all the time: how requests are sent, the range of locks, and when files count as
//! contended.
//!
//! Owns: names and values. A value never changes results, only the way in which they are obtained.

use crate::dice::Dice;

/// The attribute that sets a tunable.
pub const SET: &[u8] = b"user.amphi.set";

/// The first values of an arena: two conflicts make a file contended.
pub const AT_FIRST: [&str; 3] =
    ["server.contended_conflicts=2", "server.contended_window_ms=2000", "server.contended_hold_ms=500"];

/// Tunables of the servers, which the master distributes, and those of the mount that sets them.
const CHOICES: [(&str, &[&str]); 30] = [
    ("server.contention", &["on", "on", "off"]),
    ("server.contended_conflicts", &["1", "2", "3", "16"]),
    ("server.contended_ping_pongs", &["0", "1", "4"]),
    ("server.write_back", &["on", "on", "off"]),
    ("server.write_through_bytes", &["8K", "64K"]),
    ("server.contended_window_ms", &["1", "100", "4000"]),
    ("server.contended_hold_ms", &["0", "20", "1000"]),
    ("server.lock_granularity_bytes", &["1", "1", "4K", "64K"]),
    ("server.lock_growth", &["on", "off"]),
    ("server.reuse_bytes", &["64K", "16M"]),
    ("server.disk_read_bytes", &["64K", "4M"]),
    ("hybrid.mode", &["auto", "auto", "auto", "buffered", "direct"]),
    ("hybrid.contention", &["on", "on", "off"]),
    ("hybrid.contended_ms", &["0", "1", "50", "4000"]),
    ("hybrid.small_bytes", &["0", "1K", "8K", "32K"]),
    ("hybrid.large_write_bytes", &["0", "4K", "64K", "2M"]),
    ("hybrid.large_read_bytes", &["0", "4K", "64K", "8M"]),
    ("hybrid.locality", &["on", "off"]),
    ("hybrid.locality_pages", &["16", "4096"]),
    ("hybrid.overcache_bytes", &["1M", "1G"]),
    ("locks.ahead", &["0", "2", "8"]),
    ("locks.max", &["16", "16384"]),
    ("locks.max_age_s", &["1", "600"]),
    ("server.write_back_age_ms", &["10", "5000"]),
    ("writeback.age_ms", &["10", "100", "5000"]),
    ("writeback.batch", &["on", "off"]),
    ("writeback.pipeline_bytes", &["0", "1M", "32M"]),
    ("writeback.run_bytes", &["64K", "1M"]),
    ("readahead.max_bytes", &["64M", "0"]),
    ("cache.dirty_percent", &["1", "10", "50"]),
];

/// A change, `NAME=VALUE`.
pub fn draw(dice: &mut Dice) -> String {
    let (name, values) = CHOICES[dice.below(CHOICES.len() as u64) as usize];
    format!("{name}={}", values[dice.below(values.len() as u64) as usize])
}
