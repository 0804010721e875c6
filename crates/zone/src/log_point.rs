//! A point of the log: where it lies, and what comes before it.
//!
//! Owns: the point and the link by which a group names its predecessor. Does not own: how groups are written (`group`,
//! `commit`) or followed (`log_reader`).

/// Link to the group before: the next one must name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Opening that wrote it.
    pub opening: u64,
    /// Its checksum.
    pub crc: u32,
}

/// Where the log begins, or ends.
#[derive(Clone, Copy, Debug)]
pub struct LogPoint {
    /// Block position, counted without wrapping.
    pub position: u64,
    /// Number of the last group before.
    pub seq: u64,
    /// Last record before.
    pub lsn: u64,
    /// Link of the last group before.
    pub link: Link,
}
