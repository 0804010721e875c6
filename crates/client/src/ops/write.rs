//! write: into the cache, or straight to the targets.

use crate::api::{Ctx, Hints};
use crate::cache::{Put, UNIT};
use crate::core::Core;
use crate::decision::{Mode, Reason, decide};
use crate::files::{File, OpenFile};
use crate::locks;
use crate::ops::{attr, sync};
use crate::rangelock::Hold;
use crate::stats::Way;
use crate::writeback::{self, WriteKind, write_piece};
use amphi_dlm::Mode as LockMode;
use amphi_env::Buf;
use amphi_types::{ByteRange, Cred, Errno, ObjectId, Result, SetAttr, limits};
use amphi_wire::Request;
use futures_util::future::join_all;
use std::sync::Arc;

pub(crate) fn try_write(
    core: &Arc<Core>,
    ctx: &Ctx,
    open: &OpenFile,
    offset: u64,
    bytes: &[u8],
    hints: Hints,
) -> Option<usize> {
    let flags = open.flags;
    let special = flags.append || flags.direct || flags.sync || flags.dsync || hints.direct || hints.kill_suidgid;
    if special || !flags.write || bytes.is_empty() {
        return None;
    }
    let file = &open.file;
    let range = ByteRange::at(offset, bytes.len() as u64);
    if range.end > limits::FILE_MAX {
        return None;
    }
    let decision = decide(&core.input(open, Way::Write, open.request_bytes(Way::Write, ctx.tid, range)));
    let fits = decision.mode == Mode::Buffered && !core.dirty_is_full(range.len()) && core.make_room(room_for(range));
    let stripes = if fits { locks::stripe_bits(file, range) } else { 0 };
    if !locks::covered(file, stripes) {
        return None;
    }
    let one_unit = offset / UNIT == (range.end - 1) / UNIT;
    let guard =
        if one_unit && file.range.idle() { None } else { Some(file.range.try_acquire(range, Hold::Exclusive)?) };
    let check = || locks::covered(file, stripes) && (guard.is_some() || file.range.idle());
    file.touch(core.wall());
    match core.cache.write(file, offset, bytes, || core.clock.now_ns(), check) {
        Put::Done { full_chunk, rewritten } => {
            file.extend(range.end);
            drop(guard);
            count(core, open, decision.reason, range.len());
            open.note_piece(Way::Write, ctx.tid, range, hints.may_continue);
            if let Some(chunk) = full_chunk {
                writeback::chunk_is_full(core, file, chunk, rewritten);
            }
            Some(bytes.len())
        }
        // The slow way writes all of it again.
        Put::Refused(_) => None,
    }
}

fn count(core: &Core, open: &OpenFile, reason: Reason, bytes: u64) {
    core.stats.io(Way::Write, reason, bytes);
    open.file.stats.io(Way::Write, reason, bytes);
}

/// Memory that a write may need at most.
fn room_for(range: ByteRange) -> u64 {
    range.align_out(UNIT).len()
}

pub(crate) async fn write(
    core: Arc<Core>,
    ctx: Ctx,
    open: Arc<OpenFile>,
    offset: u64,
    data: Buf,
    hints: Hints,
) -> Result<usize> {
    if !open.flags.write {
        return Err(Errno::BadFd);
    }
    if data.is_empty() {
        return Ok(0);
    }
    let file = open.file.clone();
    let len = data.len() as u64;
    if hints.kill_suidgid {
        drop_suid(&core, &file).await?;
    }
    // An append takes the whole file, so that the end stays where it is until all its bytes are there.
    let (guard, range) = if open.flags.append {
        let guard = file.range.acquire(ByteRange::ALL, Hold::Exclusive).await;
        (guard, ByteRange::at(file.size(), len))
    } else {
        let range = ByteRange::at(offset, len);
        (file.range.acquire(range, Hold::Exclusive).await, range)
    };
    if range.end > limits::FILE_MAX {
        return Err(Errno::FileTooBig);
    }
    let bytes = open.request_bytes(Way::Write, ctx.tid, range);
    open.note_piece(Way::Write, ctx.tid, range, hints.may_continue);
    let mut decision = decide(&core.input(&open, Way::Write, bytes));
    if hints.direct && decision.mode == Mode::Buffered {
        decision = crate::decision::Decision { mode: Mode::Direct, reason: Reason::DirectUser };
    }
    count(&core, &open, decision.reason, len);
    let written = match decision.mode {
        Mode::Buffered => buffered(&core, &file, range, &data).await?,
        Mode::Direct => direct(&core, &file, range, data, hints).await?,
    };
    drop(guard);
    if open.flags.sync || open.flags.dsync {
        writeback::flush(&core, &file, range).await;
        sync::sync_file(&core, &file).await?;
        open.take_error()?;
    }
    Ok(written)
}

/// Clears setuid and setgid at once, where there are any: a buffered write reaches the server too late for that.
async fn drop_suid(core: &Arc<Core>, file: &Arc<File>) -> Result<()> {
    if file.view().attr.perm & 0o6000 == 0 {
        return Ok(());
    }
    let epoch = file.epoch.load(std::sync::atomic::Ordering::SeqCst);
    let set = SetAttr { kill_suidgid: true, open_for_write: true, ..SetAttr::default() };
    let reply = core.call(file.ino.target(), &Cred::root(), Request::SetAttr { ino: file.ino, set }).await?;
    file.adopt(super::inode_reply(reply)?, epoch);
    Ok(())
}

/// Writes into the cache. The caller holds the range lock.
async fn buffered(core: &Arc<Core>, file: &Arc<File>, range: ByteRange, data: &Buf) -> Result<usize> {
    // In steps, so that a write larger than the dirty share of the cache gets through.
    const STEP: u64 = 4 << 20;
    let mut at = range.start;
    while at < range.end {
        let part = ByteRange::at(at, STEP).intersect(&range);
        let pins = locks::pin_all(core, file, LockMode::Write, part).await?;
        writeback::throttle(core, part.len(), room_for(part)).await;
        file.touch(core.wall());
        let span = (part.start - range.start) as usize..(part.end - range.start) as usize;
        let put = core.cache.write(file, part.start, &data[span], || core.clock.now_ns(), || true);
        file.extend(part.end);
        drop(pins);
        if let Put::Done { full_chunk: Some(chunk), rewritten } = put {
            writeback::chunk_is_full(core, file, chunk, rewritten);
        }
        at = part.end;
    }
    Ok(data.len())
}

/// Writes to the targets: all pieces in flight at once, one wait (FEATURES H7). The caller holds the range lock.
async fn direct(core: &Arc<Core>, file: &Arc<File>, range: ByteRange, data: Buf, hints: Hints) -> Result<usize> {
    file.mark_epoch();
    writeback::flush_and_forget(core, file, range).await;
    let old_size = file.size();
    let layout = file.layout();
    let mut pieces: Vec<(ObjectId, ByteRange)> = Vec::new();
    for (object, piece) in layout.pieces(file.ino, range) {
        let mut at = piece.start;
        while at < piece.end {
            let part = ByteRange::at(at, limits::PAYLOAD_MAX as u64).intersect(&piece);
            pieces.push((object, part));
            at = part.end;
        }
    }
    let len = data.len();
    let kind = WriteKind::Direct { kill_suidgid: hints.kill_suidgid };
    let cut = split(data, &pieces);
    let sends =
        pieces.iter().zip(cut).map(|((object, part), buf)| write_piece(core, file, *object, part.start, buf, kind));
    let results = join_all(sends.collect::<Vec<_>>()).await;
    // What failed may be on the target or not: nobody may think to know.
    core.cache.forget(file, range, crate::cache::drop::Dirty::Keep);
    let mut good_to = range.start;
    let mut error = None;
    let mut written_to = range.start;
    for ((_, part), result) in pieces.iter().zip(results) {
        match result {
            Ok(()) => {
                written_to = part.end;
                if error.is_none() {
                    good_to = part.end;
                }
            }
            Err(e) => error = error.or(Some(e)),
        }
    }
    file.extend(good_to.max(if good_to > range.start { good_to } else { 0 }));
    file.mark_epoch();
    let Some(e) = error else { return Ok(len) };
    if written_to > good_to.max(old_size) {
        trim(core, file, good_to.max(old_size)).await;
    }
    if good_to > range.start { Ok((good_to - range.start) as usize) } else { Err(e) }
}

/// Cuts off what pieces behind a failed one have extended.
async fn trim(core: &Arc<Core>, file: &Arc<File>, size: u64) {
    let set = SetAttr { size: Some(size), open_for_write: true, ..SetAttr::default() };
    let reply = core.call(file.ino.target(), &Cred::root(), Request::SetAttr { ino: file.ino, set }).await;
    match reply.and_then(super::inode_reply) {
        Ok(view) => {
            file.adopt(view, u64::MAX);
        }
        Err(e) => tracing::warn!(ino = %file.ino, size, "cannot trim after a failed write: {e}"),
    }
    let _ = attr::reload(core, file).await;
}

/// One buffer per piece: parts of the one that all bytes came in.
fn split(mut data: Buf, pieces: &[(ObjectId, ByteRange)]) -> Vec<Buf> {
    let mut bufs: Vec<Buf> = Vec::with_capacity(pieces.len());
    if let Some((_, rest)) = pieces.split_last() {
        bufs.extend(rest.iter().map(|(_, part)| data.split_to(part.len() as usize)));
        bufs.push(data);
    }
    bufs
}
