//! The share of a machine's limits that is used.
//!
//! Owns: which rates a calibration limits. Does not own: the calibration (`calibration`).

use crate::change::Change;

/// A rate together with the highest one that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// The name of the rate that is limited.
    pub what: &'static str,
    /// Now, a second.
    pub rate: f64,
    /// The highest rate that was measured, per second.
    pub limit: f64,
}

/// The rates that are limited, the one nearest to its limit first.
pub fn limits(change: &Change<'_>) -> Vec<Limit> {
    let measured = &change.after.limits;
    let at = |names: &[&str]| names.iter().map(|name| change.at_servers(name)).sum::<f64>();
    let much = |names: &[&str]| names.iter().map(|name| change.much(name)).sum::<f64>();
    // Bytes that the servers had in memory needed no disk.
    let read = at(&["read_bytes"]) - at(&["read_cache_hit_bytes", "read_write_back_bytes"]);
    // Accepted writes go to the disk when they are flushed.
    let written = at(&["write_bytes", "flush_bytes", "log_bytes", "checkpoint_bytes"]) - at(&["write_back_bytes"]);
    let mut all: Vec<Limit> = [
        ("memory copies", much(&["cache_copied_in", "cache_copied_out"]), measured.copy_bytes),
        ("disk read bytes", read, measured.disk_read_bytes),
        ("disk written bytes", written, measured.disk_write_bytes),
        ("disk reads", at(&["data_disk_reads"]), measured.disk_reads),
        ("disk writes", at(&["data_disk_writes"]), measured.disk_writes),
        ("messages", change.often("server_calls"), measured.messages),
        ("payload to and from servers", much(&["payload_passed", "payload_inline"]), measured.stream_bytes),
    ]
    .into_iter()
    .filter(|(_, _, limit)| *limit > 0.0)
    .map(|(what, rate, limit)| Limit { what, rate: rate.max(0.0), limit })
    .collect();
    all.sort_by(|a, b| (b.rate / b.limit).total_cmp(&(a.rate / a.limit)));
    all
}
