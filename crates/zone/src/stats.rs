//! The counters of a zone.
//!
//! Owns: their names and meaning. Does not own: the counting (`state`, `commit`, `checkpoint`).

/// Counters of a zone since it was opened, and its present fill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneStats {
    /// Records appended.
    pub appends: u64,
    /// Records that were in kept memory before they were on the disk.
    pub kept: u64,
    /// Groups written.
    pub groups: u64,
    /// Empty groups among the groups written: they only carry the mark.
    pub marks: u64,
    /// Bytes of groups written.
    pub log_bytes: u64,
    /// Syncs of the disk.
    pub syncs: u64,
    /// Checkpoints finished.
    pub checkpoints: u64,
    /// Bytes of segments written by checkpoints.
    pub segment_bytes: u64,
    /// Blocks of the log ring in use.
    pub log_used_blocks: u64,
    /// Blocks of the log ring.
    pub log_blocks: u64,
    /// Bytes of changes that wait for a checkpoint.
    pub dirty_bytes: u64,
    /// Upper bound of the bytes of items.
    pub item_bytes: u64,
    /// Bytes of items at which growth is refused.
    pub item_bytes_max: u64,
    /// The number of damaged blocks of metadata that were rebuilt, by the opening and since.
    pub rebuilt_blocks: u64,
}
