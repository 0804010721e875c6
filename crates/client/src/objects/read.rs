//! Reads of objects: all pieces at once, without the cache.
//!
//! Owns: direct reads of a range, and one request to one object. Does not own: when a read is direct (`ops::read`),
//! which reads are requested ahead (`prefetch::large_reads`).

use super::damaged;
use crate::conn::replies::unexpected;
use crate::inode::Inode;
use crate::mount::Mount;
use amphi_env::Buf;
use amphi_pagecache::Segments;
use amphi_types::{ByteRange, Cred, ObjectId, Result, limits};
use amphi_wire::{Reply, Request};
use futures_util::future::join_all;
use std::sync::Arc;

/// Bytes of a page of the servers' storage.
pub(crate) const PAGE: u64 = 4096;

/// Bytes from the targets, in the buffers in which they arrived: those that are contiguous from the start.
pub(crate) async fn direct(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange) -> Result<Segments> {
    direct_under(mount, file, range, Under::TargetsLock).await
}

async fn direct_under(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange, under: Under) -> Result<Segments> {
    let pieces = direct_pieces(file, range).into_iter();
    // All pieces are sent at once.
    let parts = join_all(pieces.map(|(object, part)| damaged::prefix(mount, file, object, part, under))).await;
    let mut data = Segments::new();
    let mut error = None;
    for (bytes, end) in parts {
        data.append(bytes);
        if end.is_some() {
            error = end;
            break;
        }
    }
    match error {
        Some(e) if data.is_empty() => Err(e),
        _ => Ok(data),
    }
}

/// Splits `range` into requests of the largest possible size.
pub(crate) fn direct_pieces(file: &Inode, range: ByteRange) -> Vec<(ObjectId, ByteRange)> {
    let mut pieces = Vec::new();
    for (object, piece) in file.layout().pieces(file.ino, range) {
        let mut at = piece.start;
        while at < piece.end {
            let part = ByteRange::at(at, limits::PAYLOAD_MAX as u64).intersect(&piece);
            pieces.push((object, part));
            at = part.end;
        }
    }
    pieces
}

/// Bytes of `range`, of which `buf` holds all but `gaps`.
pub(crate) async fn direct_gaps(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    range: ByteRange,
    mut buf: Buf,
    gaps: &[ByteRange],
    under: Under,
) -> Result<Segments> {
    assert_eq!(buf.len() as u64, range.len(), "{}: a read of {range:?} has a buffer of its length", file.ino);
    mount.cache.used(file, range);
    let parts = join_all(gaps.iter().map(|gap| direct_under(mount, file, *gap, under))).await;
    for (gap, part) in gaps.iter().zip(parts) {
        let at = (gap.start - range.start) as usize;
        let got = match part {
            Ok(data) => data.copy_to(&mut buf[at..at + gap.len() as usize]),
            Err(e) if at == 0 => return Err(e),
            Err(_) => 0,
        };
        if (got as u64) < gap.len() {
            buf.narrow(0..at + got);
            break;
        }
    }
    Ok(buf.into())
}

/// The protection of the bytes of a request from other mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Under {
    /// A lock of this mount.
    Lock,
    /// A lock that the target takes for the request.
    TargetsLock,
    /// No lock. Instead the target notes, under this number, which bytes below the pages other mounts change.
    Note(u64),
}

/// Reads one piece of an object: returns its bytes, and how many zeros follow them.
pub(crate) async fn read_piece(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    object: ObjectId,
    range: ByteRange,
    under: Under,
) -> Result<(Buf, u64)> {
    ask_piece(mount, file, object, range, under).await?
}

/// Works as `read_piece`. The inner error is the target's answer; the outer error means that no answer arrived.
pub(crate) async fn ask_piece(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    object: ObjectId,
    range: ByteRange,
    under: Under,
) -> Result<Result<(Buf, u64)>> {
    let target = file.layout().target(file.ino, object.stripe);
    let (pad, advice) = ((range.start % PAGE) as usize, file.hints.read_advice());
    let op = match under {
        Under::Lock => Request::Read { object, range, server_lock: false, advice },
        Under::TargetsLock => Request::Read { object, range, server_lock: true, advice },
        Under::Note(left) => Request::PagesRead { object, range, left },
    };
    let lane = Mount::lane(under == Under::TargetsLock);
    let (answer, payload) = mount.send(lane, target, &Cred::root(), op, None, pad).await?;
    mount.note_contention(file, answer.contended);
    Ok(match answer.result {
        Ok(Reply::Data) => {
            let mut bytes = payload.unwrap_or_default();
            if bytes.len() as u64 > range.len() {
                bytes.narrow(0..range.len() as usize);
            }
            let zeros = range.len() - bytes.len() as u64;
            Ok((bytes, zeros))
        }
        Ok(other) => return Err(unexpected(&other)),
        Err(e) => Err(e),
    })
}
