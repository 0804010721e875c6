//! A point of the log: its position, and the group before it.
//!
//! Owns: the point and the link by which a group names its predecessor. Does not own: how groups are written (`group`,
//! `commit`) or followed (`log_reader`).

/// The link to a group: the group behind it must contain this link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The opening that wrote the group.
    pub opening: u64,
    /// The checksum of the group.
    pub crc: u32,
}

/// The beginning or the end of the log.
#[derive(Clone, Copy, Debug)]
pub struct LogPoint {
    /// Block position, counted without wrapping.
    pub position: u64,
    /// The number of the last group before this place.
    pub seq: u64,
    /// The number of the last record before this place.
    pub lsn: u64,
    /// The link of the last group before this place.
    pub link: Link,
}
