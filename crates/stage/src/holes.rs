//! The data and the holes of a file.
//!
//! Owns the questions to the kernel (SEEK_DATA, SEEK_HOLE). A file system that cannot answer them has no holes.

use crate::buffer::ALIGN;
use rustix::fs::{self, SeekFrom, Stat};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::AsFd;

/// Returns whether a file has fewer blocks than its size needs, so that it is worth requesting holes.
pub(crate) fn may_have(stat: &Stat) -> bool {
    let blocks = i128::from(stat.st_blocks);
    blocks * 512 < i128::from(stat.st_size)
}

/// The first data in a range of a file, its ends at multiples of `ALIGN` or at those of the range; `None` if there are
/// only holes.
pub(crate) fn next_data(file: impl AsFd, range: Range<u64>, asks: bool) -> Result<Option<Range<u64>>, Errno> {
    if range.is_empty() {
        return Ok(None);
    }
    if !asks {
        return Ok(Some(range));
    }
    let start = match fs::seek(&file, SeekFrom::Data(range.start)) {
        Ok(start) if start >= range.end => return Ok(None),
        Ok(start) => start - start % ALIGN,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Some(range)),
        Err(e) => return Err(e),
    };
    let start = start.max(range.start);
    let end = match fs::seek(&file, SeekFrom::Hole(start.max(range.start))) {
        // Data began behind the rounded start, so the hole that was found is the one before it.
        Ok(end) if end <= start => range.end.min(start + ALIGN),
        Ok(end) => end.next_multiple_of(ALIGN),
        // The file became shorter; the reading code finds that out.
        Err(Errno::NXIO) => range.end,
        Err(e) => return Err(e),
    };
    Ok(Some(start..end.min(range.end)))
}
