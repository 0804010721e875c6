//! Reads around bytes that a target answers with `EIO`: a block that is damaged, or cannot be read from the disk.
//!
//! Owns: finding, by ever smaller requests, which pages of a piece can be read. Does not own: how they are used, or how
//! a target detects damage. The target reports only that a whole request failed, so that a request without damage costs
//! nothing.
//!
//! Invariant: only bytes that a target has sent in an answer without an error are returned. Only errors in answers are
//! examined. If a server cannot be reached, nothing more is sent to it.

use super::read::{PAGE, Under, ask_piece};
use crate::api::Hints;
use crate::inode::Inode;
use crate::mount::Mount;
use amphi_env::Buf;
use amphi_pagecache::{Segments, scratch_for};
use amphi_types::{ByteRange, Errno, ObjectId, Result};
use std::sync::Arc;

/// Most requests into which one piece is divided: some 8 for each damaged page of a mebibyte.
const REQUESTS_MAX: usize = 64;

/// A part of a piece that can be served.
pub(crate) struct Part {
    pub range: ByteRange,
    pub bytes: Buf,
    /// How many zeros follow the bytes.
    pub zeros: u64,
}

/// The bytes of a piece up to the first page that cannot be read, and the error of that page.
pub(crate) async fn prefix(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    object: ObjectId,
    range: ByteRange,
    under: Under,
) -> (Segments, Option<Errno>) {
    let mut data = Segments::new();
    // The requested range, and the end of the part that failed; a page in that part cannot be read, unless it was
    // repaired since.
    let (mut part, mut failed_end) = (range, range.start);
    for _ in 0..REQUESTS_MAX {
        match ask_piece(mount, file, object, part, under).await {
            Ok(Ok((bytes, zeros))) => {
                data.push(bytes);
                if zeros > 0 {
                    data.push(Buf::zeroed(zeros as usize));
                }
                if part.end == range.end {
                    return (data, None);
                }
                part = match part.end < failed_end {
                    true => ByteRange::new(part.end, failed_end),
                    false => ByteRange::new(part.end, range.end),
                };
                if part.end <= failed_end {
                    match halves(part) {
                        Some((first, _)) => part = first,
                        None => return (data, Some(Errno::Io)),
                    }
                }
            }
            Ok(Err(Errno::Io)) => {
                failed_end = part.end;
                match halves(part) {
                    Some((first, _)) => part = first,
                    None => return (data, Some(Errno::Io)),
                }
            }
            Ok(Err(e)) | Err(e) => return (data, Some(e)),
        }
    }
    (data, Some(Errno::Io))
}

/// The parts of a piece with a damaged page that can be read. The caller holds a lock on the piece.
pub(crate) async fn good_parts(mount: &Arc<Mount>, file: &Arc<Inode>, object: ObjectId, range: ByteRange) -> Vec<Part> {
    let (mut good, mut left) = (Vec::new(), Vec::new());
    let cut = |left: &mut Vec<ByteRange>, range| {
        if let Some((first, second)) = halves(range) {
            left.extend([second, first]);
        }
    };
    cut(&mut left, range);
    for _ in 0..REQUESTS_MAX {
        let Some(part) = left.pop() else { break };
        match ask_piece(mount, file, object, part, Under::Lock).await {
            Ok(Ok((bytes, zeros))) => good.push(Part { range: part, bytes, zeros }),
            Ok(Err(Errno::Io)) => cut(&mut left, part),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    good
}

/// A front end's page cache would take missing bytes for zeros.
pub(crate) fn whole_for_pages(data: Result<Segments>, range: ByteRange, hints: Hints) -> Result<Segments> {
    data.and_then(|data| if hints.for_pages && (data.len() as u64) < range.len() { Err(Errno::Io) } else { Ok(data) })
}

/// The cached bytes at the start of `range`, if the rest cannot be read.
pub(crate) fn cached_prefix(mount: &Mount, file: &Arc<Inode>, range: ByteRange) -> Option<Segments> {
    let mut buf = scratch_for(range);
    let gaps = mount.copy_valid(file, range, &mut buf);
    let end = gaps.first().map_or(range.end, |gap| gap.start);
    buf.narrow(0..(end - range.start) as usize);
    (end > range.start).then(|| buf.into())
}

/// Two halves that meet at a page boundary, or `None` for a range within one page.
fn halves(range: ByteRange) -> Option<(ByteRange, ByteRange)> {
    let (first, end) = (range.start / PAGE, range.end.div_ceil(PAGE));
    if end - first < 2 {
        return None;
    }
    let middle = (first + (end - first) / 2) * PAGE;
    Some((ByteRange::new(range.start, middle), ByteRange::new(middle, range.end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: halves cover their range, meet at a page boundary, and end. Method: ranges at and near page boundaries.
    #[test]
    fn halves_meet_at_pages() {
        for (start, end) in [(0, 8192), (1, 4097), (100, 1 << 20), (4095, 12_289), (4096, 12_288)] {
            let (a, b) = halves(ByteRange::new(start, end)).expect("two pages at least");
            assert!(a.start == start && a.end == b.start && b.end == end && a.end % PAGE == 0, "{start}..{end}");
            assert!(!a.is_empty() && !b.is_empty(), "{start}..{end}");
        }
        for (start, end) in [(0, 4096), (1, 4096), (4096, 4097), (5000, 8192)] {
            assert!(halves(ByteRange::new(start, end)).is_none(), "{start}..{end}");
        }
    }
}
