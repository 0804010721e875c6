//! The layer below the cache: one small trait. Its implementations are `posix` and, for tests, `memory`.
//!
//! Owns nothing but the contract. Offsets are absolute; no implementation has a file position. All calls may come from
//! several threads and processes at once: the page locks in the layers above order calls that overlap.

use crate::error::{Error, Outcome};
use std::io::IoSlice;
use std::os::fd::RawFd;

pub mod memory;
pub mod posix;

/// The error of a file system without group locks.
const NO_GROUPS: Error = Error::Refused("the file system has no group locks");

/// A file below the cache.
pub trait Backend: Send {
    /// Reads until the buffer is full or the file ends; returns how much came.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Outcome<usize>;
    /// Writes all of the parts one after the other from `offset` on, as one request if the system permits it.
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Outcome;
    /// Called when a small part of the range was written and many more are about to be. The file system may then
    /// prepare for all of these parts at once. The call is repeated from time to time while the parts are written.
    fn expect_parts(&self, _offset: u64, _bytes: u64) {}
    /// The length of the file as it is on the file system.
    fn size(&self) -> Outcome<u64>;
    /// Cuts or extends the file.
    fn set_size(&self, size: u64) -> Outcome;
    /// Allocates the space of the first `size` bytes, and extends a shorter file to that length.
    fn allocate(&self, size: u64) -> Outcome;
    /// Makes stable what was written.
    fn sync(&self) -> Outcome;
    /// Device and inode of the file; zeros if it has none.
    fn identity(&self) -> Outcome<(u64, u64)> {
        Ok((0, 0))
    }
    /// The descriptors with which other processes may also do I/O; -1 means none.
    fn descriptors(&self) -> [RawFd; 2] {
        [-1; 2]
    }
    /// Makes the descriptors members of a group, which excludes all others (docs/IOCTL.md), without waiting for another
    /// group.
    fn group_join(&self, _: u64) -> Outcome {
        Err(NO_GROUPS)
    }
    /// Leaves the group; at that moment everything is on the file system.
    fn group_leave(&self, _: u64) -> Outcome {
        Err(NO_GROUPS)
    }
    /// Returns whether another program waits for the end of the group.
    fn group_wanted(&self) -> Outcome<bool> {
        Err(NO_GROUPS)
    }
    /// Returns how many requests went past the caches of the system.
    fn direct_requests(&self) -> u64 {
        0
    }
}
