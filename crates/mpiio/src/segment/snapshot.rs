//! The state of a cache for an observer that has not mapped it: `amphi mpiio stats` reads it from the memory of a job.
//!
//! Owns the reading of a header whose every number is doubted, and the sums of the counters.

use super::{COUNTERS_BYTES, Geometry, Header, MAGIC};
use crate::stats::NAMES;
use std::mem::offset_of;

/// The state of a cache for an outside observer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Device and inode of the file.
    pub file: (u64, u64),
    /// Process of the first rank of the node.
    pub pid: u64,
    /// Ranks of the node.
    pub ranks: u32,
    /// Ranks of other nodes.
    pub clients: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Pages that the node can keep.
    pub pages: u32,
    /// Length of the file as the ranks see it.
    pub size: u64,
    /// errno value of a failed write for which no rank waited; 0 means none.
    pub late_error: i32,
    /// Sums over all ranks, in the order of [`NAMES`].
    pub counters: [u64; NAMES.len()],
}

impl Snapshot {
    /// Reads a cache of `length` bytes that begins with this header; `read` fetches further parts of it. `None`: the
    /// memory is no cache.
    pub fn read(header: &[u8], length: u64, read: impl Fn(&mut [u8], u64) -> bool) -> Option<Snapshot> {
        let u32_at = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(header.get(at..at + 8)?.try_into().ok()?));
        if u64_at(offset_of!(Header, origin.magic))? != MAGIC {
            return None;
        }
        let number = |index: usize| u32_at(offset_of!(Header, origin.geometry) + 4 * index);
        let geometry = Geometry {
            ranks: number(0)?,
            page_bytes: number(1)?,
            frames_per_rank: number(2)?,
            spans: number(3)?,
            dir_slots: number(4)?,
            chunk_entries: number(5)?,
        };
        if geometry.check().is_err() || geometry.total() > length {
            return None;
        }
        let mut counters = [0u64; NAMES.len()];
        for rank in 0..u64::from(geometry.ranks) {
            let mut bytes = [0; COUNTERS_BYTES as usize];
            if !read(&mut bytes, geometry.counters_at() + rank * COUNTERS_BYTES) {
                return None;
            }
            for (sum, value) in counters.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *sum = sum.wrapping_add(u64::from_ne_bytes(*value));
            }
        }
        let file = offset_of!(Header, file);
        let ranks = u32_at(offset_of!(Header, own_ranks))?.min(geometry.ranks);
        Some(Snapshot {
            file: (u64_at(file)?, u64_at(file + 8)?),
            pid: u64_at(file + 16)?,
            ranks,
            clients: geometry.ranks - ranks,
            page_bytes: geometry.page_bytes,
            pages: geometry.frames(),
            size: u64_at(offset_of!(Header, size))?,
            late_error: u32_at(offset_of!(Header, late_error))? as i32,
            counters,
        })
    }
}
