//! Writes to objects: all pieces in flight at once, one wait.
//!
//! Owns: one request to one object, informing the inode's target that a file gets data on further targets, the results
//! of the pieces of a write. Does not own: dirty ranges (`cache`), write-back (`writeback`), when a write is direct
//! (`ops::write`).

use super::read::direct_pieces;
use crate::coherence::tokens;
use crate::conn::replies::unexpected;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::policy::decision::Reason;
use crate::policy::throughput::{CALM_FLIGHT_BYTES, Course};
use crate::telemetry::stats::{Count, Way};
use amphi_env::Buf;
use amphi_pagecache::Dirty;
use amphi_types::{ByteRange, Cred, Errno, ObjectId, Result};
use amphi_wire::{Cover, Lane, Reply, Request};
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The reason for which a piece is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// Write-back under a lock of this client: of bytes that are covered, or not.
    Back(Cover),
    /// A direct request.
    Direct {
        /// The target locks for its duration; otherwise this client pins a lock.
        server_lock: bool,
        /// Setuid and setgid are cleared.
        kill_suidgid: bool,
        /// Whether the answer should report the space that is granted to this mount.
        cover: Cover,
    },
    /// A direct request that has returned to its caller: with the time of that moment. All its blocks are covered by a
    /// grant.
    Piped {
        /// Whether the target locks for the request's duration, as in `Direct`.
        server_lock: bool,
    },
    /// Pages that are written back after their lock was returned, by the target's note of this number.
    Left(u64),
}

/// Writes one piece of an object and waits until it is on the disk.
pub(crate) async fn write_piece(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    object: ObjectId,
    offset: u64,
    buf: Buf,
    kind: WriteKind,
) -> Result<()> {
    if object.stripe > 0 {
        spread(mount, file).await?;
    }
    send_piece(mount, file, object, offset, buf, kind).await
}

async fn send_piece(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    object: ObjectId,
    offset: u64,
    buf: Buf,
    kind: WriteKind,
) -> Result<()> {
    let (layout, generation, mtime, checksums) = {
        let known = file.known.lock();
        (known.view.layout, known.view.generation, known.write_time(), known.view.advice.checksums())
    };
    let (lane, server_lock, mtime, kill_suidgid) = match kind {
        WriteKind::Back(_) => (Lane::Urgent, false, mtime, false),
        WriteKind::Direct { kill_suidgid, server_lock, .. } => {
            (Mount::lane(server_lock), server_lock, mount.wall(), kill_suidgid)
        }
        WriteKind::Piped { server_lock } => (Mount::lane(server_lock), server_lock, mtime, false),
        WriteKind::Left(_) => (Lane::Locking, true, mount.wall(), false),
    };
    let cover = match kind {
        WriteKind::Back(cover) | WriteKind::Direct { cover, .. } => cover,
        WriteKind::Piped { .. } => Cover::Granted,
        WriteKind::Left(_) => Cover::None,
    };
    let op = match kind {
        WriteKind::Left(left) => Request::PagesWrite { object, offset, generation, mtime, left, checksums },
        _ => Request::Write { object, offset, generation, mtime, server_lock, kill_suidgid, checksums, cover },
    };
    let target = layout.target(file.ino, object.stripe);
    let start_ns = mount.clock.now_ns();
    let sent = mount.send(lane, target, &Cred::root(), op, Some(buf), 0).await;
    if cover != Cover::None {
        mount.writeback.grants.answered(target, &sent);
    }
    let (answer, _) = sent?;
    mount.stats.bytes(Count::WriteCall, mount.clock.now_ns().saturating_sub(start_ns));
    mount.note_contention(file, answer.contended);
    if answer.result == Err(Errno::NoSpace) {
        mount.writeback.free_space.said(target, false);
    }
    match answer.result? {
        Reply::Written { roomy } => {
            mount.writeback.free_space.said(target, roomy);
            if let WriteKind::Direct { .. } | WriteKind::Left(_) = kind {
                file.touched_past_cache(mtime);
            }
            Ok(())
        }
        other => Err(unexpected(&other)),
    }
}

/// Informs the inode's target, once, that the file has data beyond stripe 0.
pub(crate) async fn spread(mount: &Arc<Mount>, file: &Arc<Inode>) -> Result<()> {
    let is_spread = || file.known.lock().spread;
    let _turn = loop {
        if is_spread() {
            return Ok(());
        }
        if let Some(turn) = mount.writeback.spreading.begin(file.ino) {
            break turn;
        }
        mount.writeback.spreading.signal.until(|| is_spread() || mount.writeback.spreading.may_begin(file.ino)).await;
    };
    if is_spread() {
        return Ok(());
    }
    match tokens::spread(mount, file.ino).await? {
        Reply::Inode(_) => {
            file.known.lock().spread = true;
            Ok(())
        }
        other => Err(unexpected(&other)),
    }
}

/// The results of the pieces of a write.
pub(crate) struct Sent {
    /// All bytes before this offset are on the targets.
    pub(crate) good_to: u64,
    /// The end of the last piece that is on its target.
    pub(crate) written_to: u64,
    /// The error of the first piece that failed.
    pub(crate) error: Option<Errno>,
}

/// Sends all pieces of `range` to the targets and drops what is cached of them. `end_first`: the last piece is sent
/// before the others.
pub(crate) async fn send_all(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    range: ByteRange,
    data: Buf,
    kind: WriteKind,
    end_first: bool,
) -> Sent {
    assert_eq!(data.len() as u64, range.len(), "{}: a write of {range:?} comes with its bytes", file.ino);
    let pieces = direct_pieces(file, range);
    let mut cut = split(data, &pieces);
    let send = |at: usize, buf| write_piece(mount, file, pieces[at].0, pieces[at].1.start, buf, kind);
    let end = if end_first && pieces.len() > 1 { cut.pop() } else { None };
    let last = match end {
        Some(buf) => Some(send(pieces.len() - 1, buf).await),
        None => None,
    };
    let mut results = Vec::with_capacity(pieces.len());
    if !matches!(last, Some(Err(_))) {
        results.extend(join_all(cut.into_iter().enumerate().map(|(at, buf)| send(at, buf))).await);
    }
    results.extend(last);
    // Bytes that failed may be on the target or not, so they must not stay in the cache.
    mount.cache.forget(file, range, Dirty::Keep);
    let mut sent = Sent { good_to: range.start, written_to: range.start, error: None };
    for ((_, part), result) in pieces.iter().zip(results) {
        match result {
            Ok(()) => {
                sent.written_to = part.end;
                if sent.error.is_none() {
                    sent.good_to = part.end;
                }
            }
            Err(e) => sent.error = sent.error.or(Some(e)),
        }
    }
    sent
}

/// Records the speed of a direct request that could have been buffered, when it has ended.
pub(crate) fn learn(mount: &Mount, reason: Reason, request: u64, len: u64, good: bool) {
    if matches!(reason, Reason::DirectLocality | Reason::DirectLarge) {
        let calm = mount.writeback.flight_bytes.load(SeqCst) <= CALM_FLIGHT_BYTES;
        mount.policy.throughput.note(Way::Write, Course::Direct(request), len, mount.clock.now_ns(), calm && good);
    }
}

/// One buffer per piece. Each buffer is a part of the buffer in which all bytes arrived.
fn split(mut data: Buf, pieces: &[(ObjectId, ByteRange)]) -> Vec<Buf> {
    let mut bufs: Vec<Buf> = Vec::with_capacity(pieces.len());
    if let Some((_, rest)) = pieces.split_last() {
        bufs.extend(rest.iter().map(|(_, part)| data.split_to(part.len() as usize)));
        bufs.push(data);
    }
    assert_eq!(bufs.len(), pieces.len(), "each piece of a write has its bytes");
    bufs
}
