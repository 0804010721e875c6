//! Reads in shared mode.
//!
//! Owns: at which size a read is cut, and the locks that make it atomic. Invariants: no bytes beyond the end of the
//! file are returned. The size at which a read is cut is either one that the file had at a moment at which all locks
//! were pinned, or one that an attributes token guarantees. The caller holds the range lock shared. Bytes that a target
//! sends for a read were inside the file when it was read (its object ends there), so an answer without zeros at its
//! end needs no size.

use super::{Fetch, count, decide, fetch, note_access, plan};
use crate::api::{Ctx, Hints};
use crate::coherence::attributes::size_now;
use crate::coherence::lease;
use crate::coherence::tokens;
use crate::inode::{Inode, OpenFile};
use crate::locks;
use crate::locks::group_lock;
use crate::mount::Mount;
use crate::objects::read::{PAGE, Under, ask_piece, direct_gaps, direct_pieces};
use crate::policy::decision::{Mode, Reason};
use crate::policy::throughput::Course;
use crate::telemetry::stats::{Count, Way};
use crate::writeback::flush;
use amphi_dlm::Mode as LockMode;
use amphi_env::Buf;
use amphi_pagecache::push_joined;
use amphi_pagecache::{Segments, scratch_for};
use amphi_types::{ByteRange, Errno, ObjectId, Result, limits};
use amphi_wire::LockExtent;
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Bytes that are read at once beyond the known end: a caller that requests everything must not lock everything.
const BEYOND_MAX: u64 = 64 << 20;

/// `None`: a group of this mount has requested the file meanwhile.
pub(super) async fn read(
    mount: &Arc<Mount>,
    ctx: &Ctx,
    open: &Arc<OpenFile>,
    asked: ByteRange,
    hints: Hints,
) -> Result<Option<Segments>> {
    let file = &open.file;
    lease::touch(mount, file, asked).await?;
    if asked.is_empty() {
        return Ok(Some(Segments::new()));
    }
    let past_cache = open.flags.direct || hints.direct;
    if !past_cache && let Some(hit) = cached(mount, file, asked) {
        if !hit.is_empty() {
            note_access(mount, open);
            count(mount, open, Reason::CacheHit, ByteRange::at(asked.start, hit.len() as u64));
            open.note_piece(Way::Read, ctx.tid, asked, hints.may_continue);
            super::read_ahead(mount, open, asked.intersect(&ByteRange::new(0, file.size())), file.size());
        }
        return Ok(Some(hit));
    }
    let asked = bounded(mount, file, asked).await?;
    note_access(mount, open);
    let mut measured = None;
    let (mode, reason) = if past_cache {
        (Mode::Direct, Reason::DirectUser)
    } else {
        let missing: u64 = mount.cache.gaps(file, asked).iter().map(ByteRange::len).sum();
        let before = open.request_bytes(Way::Read, ctx.tid, asked) - asked.len();
        open.note_piece(Way::Read, ctx.tid, asked, hints.may_continue);
        let decision = decide(&mount.input(ctx, open, Way::Read, (asked, before + missing)));
        measured = super::is_stream(decision.reason).then_some((Course::Direct(before + missing), missing));
        (decision.mode, decision.reason)
    };
    count(mount, open, reason, asked);
    if past_cache {
        flush::flush_and_forget(mount, file, asked).await;
    }
    let since_ns = mount.clock.now_ns();
    let by_target_alone = mode == Mode::Direct;
    let mut at_once = None;
    if by_target_alone {
        let (mount2, file2) = (mount.clone(), file.clone());
        let read = async move { by_target(&mount2, &file2, asked).await };
        match group_lock::unless_asked(mount, file, open.member(), read).await {
            Some(read) => at_once = read?,
            None => return Ok(None),
        }
    }
    let data = match at_once {
        Some(data) => data,
        None => match under_locks(mount, open, asked, mode).await? {
            Some(data) => data,
            None => return Ok(None),
        },
    };
    if let Some((course, bytes)) = measured {
        mount.policy.throughput.note_read(
            course,
            bytes,
            (since_ns, mount.clock.now_ns()),
            mount.prefetch.fills_are_calm(),
        );
    }
    if mode == Mode::Buffered && !data.is_empty() {
        mount.policy.throughput.note_cached_read(data.len() as u64, Some(since_ns), || mount.clock.now_ns());
        let size = file.size();
        let plan = plan(mount, open, asked.intersect(&ByteRange::new(0, size)), size);
        super::fetch_ahead(mount, open, plan);
    }
    Ok(Some(data))
}

/// All of the range from the cache, cut at the end of the file only if that is certain.
fn cached(mount: &Arc<Mount>, file: &Arc<Inode>, asked: ByteRange) -> Option<Segments> {
    let (token, turned) = (tokens::sure_until(mount, file), file.size.turned());
    let range = if token > 0 { asked.intersect(&ByteRange::new(0, file.size())) } else { asked };
    if range.is_empty() {
        return (token > 0).then(Segments::new);
    }
    let data = match super::lend_large(mount, file, range) {
        Some(loans) => loans,
        None => {
            let mut buf = scratch_for(range);
            if !mount.cache.read(file, range, &mut buf) {
                return None;
            }
            mount.stats.moved(Count::CopiedOut, range.len());
            buf.into()
        }
    };
    let same = file.size.turned() == turned && (token == 0 || file.size.token_end_ns.load(SeqCst) == token);
    same.then_some(data)
}

/// Bounds a request that reaches far beyond the end of the file.
async fn bounded(mount: &Arc<Mount>, file: &Arc<Inode>, asked: ByteRange) -> Result<ByteRange> {
    if asked.len() <= BEYOND_MAX {
        return Ok(asked);
    }
    let size = size_now(mount, file).await?;
    let end = size.max(asked.start).saturating_add(BEYOND_MAX);
    Ok(ByteRange::new(asked.start, asked.end.min(end)))
}

/// One direct request to one object under the target's own lock, if the object has all the bytes and none of them is
/// cached here.
async fn by_target(mount: &Arc<Mount>, file: &Arc<Inode>, asked: ByteRange) -> Result<Option<Segments>> {
    let mut pieces = file.layout().pieces(file.ino, asked);
    let (Some((object, piece)), None) = (pieces.next(), pieces.next()) else { return Ok(None) };
    let too_long = asked.len() > limits::PAYLOAD_MAX as u64 || asked.end > file.size();
    if too_long || mount.cache.gaps(file, asked) != [asked] {
        return Ok(None);
    }
    match ask_piece(mount, file, object, piece, Under::TargetsLock).await? {
        Ok((bytes, zeros)) => Ok((zeros == 0).then(|| bytes.into())),
        // A page of the piece cannot be served. The reads under one lock find out which page.
        Err(Errno::Io) if asked.len() > PAGE => Ok(None),
        Err(e) => Err(e),
    }
}

/// A piece that came from a target.
struct Got {
    range: ByteRange,
    bytes: Arc<Buf>,
    fetch: Fetch,
}

/// Reads under locks on the whole range. Cached bytes are used. The other bytes come from the targets, and enter the
/// cache if `mode` says so.
async fn under_locks(mount: &Arc<Mount>, open: &OpenFile, asked: ByteRange, mode: Mode) -> Result<Option<Segments>> {
    let pages = asked.align_out(PAGE).intersect(&ByteRange::new(0, limits::FILE_MAX));
    let extent = mount.extent(open, mode);
    let (mount2, file2) = (mount.clone(), open.file.clone());
    let locks = async move { locks::pin_spans(&mount2, &file2, LockMode::Read, pages, extent).await };
    let Some(pins) = group_lock::unless_asked(mount, &open.file, open.member(), locks).await else { return Ok(None) };
    let mut pins = pins?;
    let read = match unless_damaged(mount, &open.file, asked, pages, mode).await {
        Ok(None) => up_to_damage(mount, &open.file, asked).await,
        Ok(Some(data)) => Ok(data),
        Err(e) => Err(e),
    };
    if mode == Mode::Direct {
        pins.iter_mut().for_each(locks::Pin::used_once);
    }
    read.map(Some)
}

/// The bytes at the start of a range that can be read, under locks that the caller holds.
async fn up_to_damage(mount: &Arc<Mount>, file: &Arc<Inode>, asked: ByteRange) -> Result<Segments> {
    let range = asked.intersect(&ByteRange::new(0, size_now(mount, file).await?));
    if range.is_empty() {
        return Ok(Segments::new());
    }
    let mut buf = scratch_for(range);
    let gaps = mount.copy_valid(file, range, &mut buf);
    direct_gaps(mount, file, range, buf, &gaps, Under::Lock).await
}

/// Works as `under_locks`, but the caller guarantees the locks on all of `pages`. All of it, or an error.
pub(crate) async fn unlocked(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    asked: ByteRange,
    pages: ByteRange,
    mode: Mode,
) -> Result<Segments> {
    unless_damaged(mount, file, asked, pages, mode).await?.ok_or(Errno::Io)
}

/// Works as `unlocked`, or `None` if a target has answered that it cannot serve a page of the range.
async fn unless_damaged(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    asked: ByteRange,
    pages: ByteRange,
    mode: Mode,
) -> Result<Option<Segments>> {
    // This is assumed until an answer shows otherwise.
    let hint = file.size();
    let mut size = None;
    if asked.end > hint || tokens::is_sure(mount, file) {
        size = Some(size_now(mount, file).await?);
    }
    let range = asked.intersect(&ByteRange::new(0, size.unwrap_or(u64::MAX)));
    if range.is_empty() {
        return Ok(Some(Segments::new()));
    }
    let mut buf = scratch_for(range);
    let gaps = mount.copy_valid(file, range, &mut buf);
    if gaps.is_empty() {
        mount.cache.used(file, range);
        return Ok(Some(buf.into()));
    }
    let got = join_all(wanted(file, &gaps, pages, size.unwrap_or(hint), mode).into_iter().map(|(object, piece)| {
        // No lock is requested under this fetch.
        let fetch = fetch(mount.clone(), file.clone(), object, piece, false, LockExtent::Grown);
        async move {
            Ok(match ask_piece(mount, file, object, piece, Under::Lock).await? {
                Ok((bytes, zeros)) => Some((Got { range: piece, bytes: Arc::new(bytes), fetch }, zeros)),
                Err(Errno::Io) => None,
                Err(e) => return Err(e),
            })
        }
    }))
    .await;
    let got: Option<Vec<(Got, u64)>> = got.into_iter().collect::<Result<_>>()?;
    let Some(got) = got else { return Ok(None) };
    if size.is_none() && got.iter().any(|(_, zeros)| *zeros > 0) {
        // The file has become shorter than it was known to be, or has a hole there.
        size = Some(size_now(mount, file).await?);
    }
    let inside = ByteRange::new(0, size.unwrap_or(u64::MAX));
    let whole = mode == Mode::Direct && gaps == [range];
    let range = range.intersect(&inside);
    if whole {
        return Ok(Some(in_their_buffers(got, range)));
    }
    for (piece, _) in &got {
        if mode == Mode::Buffered {
            match piece.fetch.put(piece.range.intersect(&inside), &piece.bytes) {
                // The cache has no space, so this read bypasses it.
                Ok(()) | Err(Errno::NoSpace) => {}
                Err(e) => return Err(e),
            }
        }
    }
    for gap in &gaps {
        for (piece, _) in &got {
            let part = gap.intersect(&piece.range).intersect(&range);
            if !part.is_empty() {
                copy_part(
                    piece,
                    part,
                    &mut buf[(part.start - asked.start) as usize..(part.end - asked.start) as usize],
                );
            }
        }
    }
    mount.cache.used(file, range);
    buf.narrow(0..range.len() as usize);
    Ok(Some(buf.into()))
}

/// The bytes that arrived, up to the end of `range`, without a copy.
fn in_their_buffers(got: Vec<(Got, u64)>, range: ByteRange) -> Segments {
    let mut data = Segments::new();
    for (piece, _) in got {
        let part = piece.range.intersect(&range);
        let Some(mut bytes) = Arc::into_inner(piece.bytes).filter(|_| !part.is_empty()) else { continue };
        if bytes.len() as u64 > part.len() {
            bytes.narrow(0..part.len() as usize);
        }
        let zeros = part.len() - bytes.len() as u64;
        data.push(bytes);
        if zeros > 0 {
            data.push(Buf::zeroed(zeros as usize));
        }
    }
    assert_eq!(data.len() as u64, range.len(), "the pieces of a read of {range:?} are all of it");
    data
}

/// Copies bytes of `part` from the bytes that arrived, and zeros after their end.
fn copy_part(piece: &Got, part: ByteRange, into: &mut [u8]) {
    assert_eq!(into.len() as u64, part.len(), "{part:?} is copied to its place");
    let at = (part.start - piece.range.start) as usize;
    let there = piece.bytes.get(at..).unwrap_or_default();
    let n = there.len().min(into.len());
    into[..n].copy_from_slice(&there[..n]);
    into[n..].fill(0);
}

/// The ranges to request: whole pages for the cache, otherwise only missing bytes.
fn wanted(file: &Inode, gaps: &[ByteRange], pages: ByteRange, size: u64, mode: Mode) -> Vec<(ObjectId, ByteRange)> {
    let mut wanted: Vec<ByteRange> = Vec::new();
    for gap in gaps {
        let whole = match mode {
            Mode::Buffered => gap.align_out(PAGE).intersect(&pages).intersect(&ByteRange::new(0, size)),
            Mode::Direct => *gap,
        };
        let start = wanted.last().map_or(whole.start, |w| whole.start.max(w.end));
        push_joined(&mut wanted, ByteRange::new(start, whole.end));
    }
    let cut = |part: ByteRange| match mode {
        Mode::Buffered => super::pieces(file, part),
        Mode::Direct => direct_pieces(file, part),
    };
    wanted.into_iter().flat_map(cut).collect()
}
