//! write: into the cache, or straight to the targets.
//!
//! In shared mode a write is atomic for all mounts. Either it holds one lock on its part of each object from before the
//! first byte until the last byte is in the cache or on the target, or it is sent to one object under the target's own
//! lock.

pub(crate) mod posted;
mod refused;

use crate::api::{Ctx, Hints, WriteTo};
use crate::coherence::attributes;
use crate::coherence::lease;
use crate::coherence::sharing;
use crate::coherence::tokens;
use crate::conn::replies::inode_reply;
use crate::inode::overwrite::Overwrite;
use crate::inode::range_lock::Hold;
use crate::inode::{Inode, OpenFile};
use crate::locks::group_lock;
use crate::locks::{self, Pin};
use crate::mount::Mount;
use crate::objects::read::direct_pieces;
use crate::objects::write::{Sent, WriteKind, learn, send_all};
use crate::ops::pages;
use crate::ops::write_behind::{self, Kept};
use crate::ops::{attr, sync, xattr};
use crate::policy::decision::{Decision, Input, Mode, Reason, decide};
use crate::telemetry::stats::{Copied, Count, Way};
use crate::writeback::flush;
use crate::writeback::grants;
use crate::writeback::writeback_errors;
use amphi_dlm::Mode as LockMode;
use amphi_env::Buf;
use amphi_pagecache::{Put, Source, UNIT};
use amphi_types::{ByteRange, Cred, Errno, Result, SetAttr, limits};
use amphi_wire::Cover;
use refused::Attempt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// If this many bytes of other units were written since a unit was last written, the unit is no longer in the
/// processor's cache. The unit is then written past that cache, without loading it. 16 MiB: up to there the exchanged
/// memory is found in the cache (docs/LESSONS.md).
const COLD_AFTER: u64 = 16 << 20;

pub(crate) fn try_write(
    mount: &Arc<Mount>,
    ctx: &Ctx,
    open: &OpenFile,
    offset: u64,
    source: Source<'_>,
    hints: Hints,
) -> Option<usize> {
    let flags = open.flags;
    let special = flags.direct || is_stable(open, hints) || hints.direct;
    let (file, len) = (&open.file, source.len());
    if special || !flags.write || len == 0 || !file.group.admits(open.member()) {
        return None;
    }
    if holds_privileges(mount, file, hints.kill_suidgid) {
        return None;
    }
    let aim = aim(mount, open, offset, hints);
    // The end of the file does not move until all bytes are there.
    let mut guard = match aim {
        Aim::Offset | Aim::ToldEnd => None,
        Aim::End | Aim::OffsetAtEnd => Some(file.range.try_acquire(ByteRange::ALL, Hold::Exclusive)?),
    };
    let offset = if aim == Aim::End { file.size() } else { offset };
    let range = ByteRange::at(offset, len);
    if range.end > limits::FILE_MAX {
        return None;
    }
    let aims_well = || match aim {
        Aim::Offset => true,
        Aim::ToldEnd => mount.coherence.sharing.has_always_been_alone(),
        Aim::End | Aim::OffsetAtEnd => {
            (attributes::knows_end(mount, file) || tokens::is_sure(mount, file)) && file.size() == offset
        }
    };
    if !aims_well() {
        return None;
    }
    let decision = decide(&mount.input(ctx, open, Way::Write, (range, open.request_bytes(Way::Write, ctx.tid, range))));
    let fits = decision.mode == Mode::Buffered && !mount.dirty_is_full(file, range) && mount.make_room(room_for(range));
    let stripes = if fits { file.stripe_bits(range) } else { 0 };
    if !file.locks.cover_stripes(stripes) {
        return None;
    }
    let one_unit = offset / UNIT == (range.end - 1) / UNIT;
    // Without a pin, other mounts could see the units of a larger write one by one; pages are handled separately.
    let unpinned = one_unit && !hints.write_back && !hints.for_pages;
    let in_touch = || mount.coherence.sharing.leases.in_touch_for(mount.clock.boot_ns(), file, range);
    if !mount.coherence.sharing.is_alone() && (!unpinned || !in_touch()) {
        return None;
    }
    if guard.is_none() && !(one_unit && file.range.idle()) {
        guard = Some(file.range.try_acquire(range, Hold::Exclusive)?);
    }
    let is_free = || file.group.admits(open.member()) && !meets_pages(file, range, hints);
    // With the range lock, readers never see the first units without the others. (An exception is the return of an
    // extent lock, when a second mount has joined a mount in sole mode.)
    if guard.is_some() && !is_free() {
        return None;
    }
    let in_order = || guard.is_some() || (file.range.idle() && is_free());
    let check = || file.locks.cover_stripes(stripes) && in_order() && aims_well();
    let now = mount.wall();
    let taken = || {
        file.touch(now);
        if guard.is_none() {
            file.range.wrote_unguarded();
        }
        if one_unit {
            // This is done under the unit's lock, and so before a flush that a callback has requested.
            file.size.extend_own(range.end);
        }
    };
    // Bytes without space on their targets are written through, and the call waits until they are written.
    match put(mount, file, offset, source, true, (check, taken)) {
        Put::Done { full_chunk, rewritten, adopted, .. } => {
            if !one_unit {
                file.size.extend_own(range.end);
            }
            drop(guard);
            open.note_write(appends(aim), offset);
            let copied = if adopted == 0 { Copied::Along } else { Copied::Apart };
            count(mount, open, decision.reason, range, copied);
            open.note_piece(Way::Write, ctx.tid, range, hints.may_continue);
            if let Some(chunk) = full_chunk {
                flush::chunk_is_full(mount, file, chunk, rewritten);
            }
            Some(len as usize)
        }
        // The slow path writes all bytes again.
        Put::Refused(_) => None,
    }
}

/// The place to which a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    Offset,
    /// The front end has found the end of the file, or the write is to go to its offset. So the write is made at its
    /// offset; but if another mount has ever existed, it is made at the end of the file.
    ToldEnd,
    /// The write goes to the end of the file.
    End,
    /// The write is made at the offset of the call if that is the end of the file.
    OffsetAtEnd,
}

/// Returns whether a write goes where the file ends.
fn appends(aim: Aim) -> bool {
    matches!(aim, Aim::End | Aim::ToldEnd)
}

/// The place of a write, as far as it is known now.
fn aim(mount: &Mount, open: &OpenFile, offset: u64, hints: Hints) -> Aim {
    match hints.to {
        // Pages are always written back to their own offset, through whatever open file the kernel sends them.
        _ if hints.write_back => Aim::Offset,
        WriteTo::Offset => Aim::Offset,
        WriteTo::AsOpened if !open.flags.append => Aim::Offset,
        WriteTo::KnownEnd if mount.coherence.sharing.has_always_been_alone() && is_within(&open.file, offset) => {
            Aim::ToldEnd
        }
        WriteTo::OffsetAtEnd => Aim::OffsetAtEnd,
        WriteTo::AsOpened | WriteTo::End | WriteTo::KnownEnd => Aim::End,
    }
}

/// Returns whether a front end that assumes that `offset` is the end may be right. It may be wrong if the client has
/// lost written bytes.
fn is_within(file: &Inode, offset: u64) -> bool {
    file.failures.count() == 0 || offset <= file.size()
}

/// Returns whether a write returns only when its data is on stable storage.
fn is_stable(open: &OpenFile, hints: Hints) -> bool {
    open.flags.sync || open.flags.dsync || hints.stable
}

/// Returns whether a write has to take pages into account: pages whose bytes it may replace or, for the write-back of a
/// page, writes that replaced some of its bytes.
fn meets_pages(file: &Inode, range: ByteRange, hints: Hints) -> bool {
    if hints.write_back { file.pages.is_overwritten(range) } else { !hints.for_pages && file.pages.touches(range) }
}

/// `bytes` for `offset` in the form in which the cache takes them: together with their memory, if they are whole units.
pub(crate) fn source<'a>(offset: u64, bytes: &'a mut Buf) -> Source<'a> {
    Source::whole_units(offset, bytes)
}

/// Puts `source` into the cache, and counts the write if its memory was kept. `covered_only`: only bytes for which the
/// targets have granted space.
fn put(
    mount: &Mount,
    file: &Arc<Inode>,
    offset: u64,
    source: Source<'_>,
    covered_only: bool,
    hooks: (impl Fn() -> bool, impl Fn()),
) -> Put {
    let is_copied = matches!(source, Source::Copied(_));
    let now_ns = || mount.clock.now_ns();
    let put = match covered_only {
        true => mount.cache.write_covered(file, offset, source, COLD_AFTER, now_ns, hooks),
        false => mount.cache.write(file, offset, source, COLD_AFTER, now_ns, hooks),
    };
    if let Put::Refused(end) = put
        && is_copied
    {
        mount.stats.moved(Count::CopiedIn, end - offset);
    }
    if let Put::Done { adopted: bytes @ 1.., .. } = put {
        mount.stats.bytes(Count::Adopted, bytes);
    }
    put
}

fn count(mount: &Mount, open: &OpenFile, reason: Reason, range: ByteRange, copied: Copied) {
    open.file.locks.note_use(mount.host.coarse_ns.load(Relaxed));
    mount.count_io(open, Way::Write, reason, range, copied);
}

/// Memory that a write may need at most.
fn room_for(range: ByteRange) -> u64 {
    range.align_out(UNIT).len()
}

pub(crate) async fn write(
    mount: Arc<Mount>,
    ctx: Ctx,
    open: Arc<OpenFile>,
    offset: u64,
    data: Buf,
    hints: Hints,
) -> Result<usize> {
    if !hints.write_back {
        return carry_out(mount, ctx, open, offset, data, hints).await;
    }
    let len = data.len() as u64;
    let written = carry_out(mount.clone(), ctx, open.clone(), offset, data, hints).await;
    if let Err(e) = written {
        writeback_errors::lost_pages(&mount, &open.file, ByteRange::at(offset, len), e);
    }
    written
}

async fn carry_out(
    mount: Arc<Mount>,
    ctx: Ctx,
    open: Arc<OpenFile>,
    offset: u64,
    mut data: Buf,
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
    if holds_privileges(&mount, &file, hints.kill_suidgid) {
        drop_privileges(&mount, &file, hints.kill_suidgid.then_some(&ctx.cred)).await?;
    }
    let aim = aim(&mount, &open, offset, hints);
    let append = aim == Aim::End;
    let through_pages = hints.write_back || (hints.for_pages && !append);
    // The kernel writes a page back through any handle that may write, independently of the handle that changed it.
    let member = if hints.write_back { file.group.id() } else { open.member() };
    if through_pages && !mount.coherence.sharing.is_alone() {
        return under_pages(&mount, &open, member, ByteRange::at(offset, len), data, hints).await;
    }
    // An append locks the whole file, so that the end does not move until all its bytes are there.
    let local = if append { ByteRange::ALL } else { ByteRange::at(offset, len) };
    let whole = move |mount: Arc<Mount>, file: Arc<Inode>| async move {
        if !append {
            return Ok(Vec::new());
        }
        lease::touch(&mount, &file, ByteRange::ALL).await?;
        locks::pin_objects(&mount, &file, LockMode::Write, ByteRange::ALL).await
    };
    let (mut guard, mut begun, held) =
        group_lock::enter_pinned(&mount, &file, member, (local, Hold::Exclusive), whole).await?;
    if aim == Aim::ToldEnd && !(begun.is_some() && mount.coherence.sharing.has_always_been_alone()) {
        drop((guard, begun, held));
        return Box::pin(carry_out(mount, ctx, open, offset, data, Hints { to: WriteTo::End, ..hints })).await;
    }
    let mut pins = Some(held).filter(|held| !held.is_empty());
    let range =
        if append { ByteRange::at(attributes::end_now(&mount, &file, pins.is_some()).await?, len) } else { local };
    if range.end > limits::FILE_MAX {
        return Err(Errno::FileTooBig);
    }
    open.note_write(appends(aim), range.start);
    let bytes = open.request_bytes(Way::Write, ctx.tid, range);
    open.note_piece(Way::Write, ctx.tid, range, hints.may_continue);
    let o_direct = open.flags.direct || hints.direct;
    if o_direct {
        mount.may_pass_cache(range)?;
    }
    let decision = decide(&Input { o_direct, ..mount.input(&ctx, &open, Way::Write, (range, bytes)) });
    count(&mount, &open, decision.reason, range, Copied::Apart);
    if begun.is_none() && pins.is_none() {
        let kept = Kept { guard, begun, pins };
        Kept { guard, begun, pins } = lock(&mount, &open, (range, member), decision, hints, kept).await?;
    }
    if hints.write_back && meets_pages(&file, range, hints) {
        for (part, mut bytes) in pages::parts(&file, range, data, true) {
            buffered(&mount, &open, part, &mut bytes, pins.is_some(), None).await?;
        }
        return Ok(len as usize);
    }
    let overwrite = if through_pages { None } else { Overwrite::begin(&file, range) };
    let mut stored = Ok(len as usize);
    let written = match decision.mode {
        Mode::Buffered => {
            stored = cached(&mount, &open, (range, local), &mut data, hints.write_back, pins.is_some()).await?;
            len as usize
        }
        Mode::Direct => {
            // If locks keep other readers away, the pieces of the write are seen as one event.
            let held = (begun.is_some() || pins.is_some()).then_some(local);
            let is_free = overwrite.is_none() && (held.is_some() || mount.is_commit(&file));
            let may_be_early = is_free && write_behind::may_be_early(&mount, &open, decision.reason, hints);
            if may_be_early && mount.writeback.free_space.is_ample(&file, range) {
                let kept = Kept { guard, begun, pins };
                match write_behind::write(&mount, &open, range, data, (decision.reason, bytes), kept).await {
                    Ok(written) => return Ok(written),
                    Err((back, kept)) => (data, Kept { guard, begun, pins }) = (back, kept),
                }
            }
            let written = direct(&mount, &file, (range, held), data, (hints, may_be_early), pins.as_deref()).await;
            learn(&mount, decision.reason, bytes, len, written.is_ok());
            written.inspect(|_| pins.iter_mut().flatten().for_each(locks::Pin::used_once))?
        }
    };
    overwrite.iter().for_each(|o| o.in_place(written));
    drop((pins, begun, guard));
    after_overwrite(&mount, &file, (append && hints.for_pages).then(|| ByteRange::at(offset, len)), overwrite).await;
    let stored = refused::shown(&file, len, stored).await?;
    if is_stable(&open, hints) {
        make_stable(&mount, &open, range).await?;
    }
    Ok(written.min(stored))
}

/// Updates the kernel's pages whose bytes a write has replaced. `told`: the offset at which the front end keeps a copy
/// of the appended bytes, if it has one.
async fn after_overwrite(mount: &Arc<Mount>, file: &Arc<Inode>, told: Option<ByteRange>, overwrite: Option<Overwrite>) {
    if let Some(told) = told {
        // The offset is where the front end assumed the end, and is reported only after the answer.
        let (here, kept) = (mount.clone(), file.clone());
        mount.spawn(async move { pages::misplaced(&here, &kept, told, overwrite).await });
    } else if let Some(overwrite) = overwrite {
        overwrite.settle(mount.coherence.sharing.pages()).await;
    }
}

/// Takes the locks that a write of `range` by `member` needs. The write takes no lock itself if its target is to lock,
/// or, under commit consistency, each of its targets. `kept`: the guard of this mount's own range lock, which is
/// replaced if a group requests the file meanwhile.
async fn lock(
    mount: &Arc<Mount>,
    open: &Arc<OpenFile>,
    (range, member): (ByteRange, u64),
    decision: Decision,
    hints: Hints,
    mut kept: Kept,
) -> Result<Kept> {
    let file = &open.file;
    lease::touch(mount, file, range).await?;
    let pieces = direct_pieces(file, range);
    if decision.mode == Mode::Direct && mount.is_commit(file) {
        return Ok(kept);
    }
    let early =
        decision.reason == Reason::DirectContention && write_behind::admits(mount, open, range, decision.reason, hints);
    if early {
        locks::ahead::follow(mount, open, range);
    }
    let by_target = pieces.len() == 1;
    if decision.mode == Mode::Direct && by_target && !early {
        return Ok(kept);
    }
    let extent = mount.extent(open, decision.mode);
    while kept.begun.is_none() && kept.pins.is_none() {
        let (mount2, file2) = (mount.clone(), file.clone());
        let locks = async move { locks::pin_spans(&mount2, &file2, LockMode::Write, range, extent).await };
        match group_lock::unless_asked(mount, file, member, locks).await {
            // The target has no room for another lock, so it locks by itself while it writes.
            Some(Err(Errno::NoMem)) if early && pieces.len() == 1 => break,
            Some(held) => kept.pins = Some(held?),
            None => {
                drop(kept.guard);
                kept.guard = group_lock::enter(file, member, range, Hold::Exclusive).await?;
                kept.begun = sharing::begin(mount);
            }
        }
    }
    Ok(kept)
}

/// A write in shared mode to a file of which the kernel has pages: it runs under locks on these pages.
async fn under_pages(
    mount: &Arc<Mount>,
    open: &Arc<OpenFile>,
    member: u64,
    range: ByteRange,
    data: Buf,
    hints: Hints,
) -> Result<usize> {
    let write_back = hints.write_back;
    count(mount, open, Reason::BufferedDefault, range, Copied::Apart);
    let mut stored = Ok(range.len() as usize);
    if let Some((_held, range, mut data)) = pages::write(mount, &open.file, member, range, data, write_back).await? {
        if write_back {
            for (part, mut bytes) in pages::parts(&open.file, range, data, write_back) {
                buffered(mount, open, part, &mut bytes, true, None).await?;
            }
        } else {
            stored = cached(mount, open, (range, range), &mut data, write_back, true).await?;
        }
    }
    let stored = refused::shown(&open.file, range.len(), stored).await?;
    // Pages that are written back become stable by `fsync` and `msync`.
    if !write_back && is_stable(open, hints) {
        make_stable(mount, open, range).await?;
    }
    Ok(stored)
}

/// Makes the bytes of a cached write stable before the write returns, if it has to (`is_stable`).
async fn make_stable(mount: &Arc<Mount>, open: &OpenFile, range: ByteRange) -> Result<()> {
    flush::flush(mount, &open.file, range).await;
    sync::sync_file(mount, &open.file).await?;
    open.tell_failures().await
}

/// Returns whether a write may have to remove privileges first: capabilities, and with `kill_suidgid` setuid and
/// setgid.
#[inline]
fn holds_privileges(mount: &Mount, file: &Inode, kill_suidgid: bool) -> bool {
    file.gives_capabilities() || (kill_suidgid && (file.has_set_id() || !tokens::is_sure(mount, file)))
}

/// Removes capabilities of the file, and setuid and setgid bits that `writer` may not leave, if the file has any. It
/// does so at once, because a buffered write reaches the server too late for that. `writer`: none may leave both.
pub(super) async fn drop_privileges(mount: &Arc<Mount>, file: &Arc<Inode>, writer: Option<&Cred>) -> Result<()> {
    if !tokens::is_sure(mount, file) {
        attributes::reload(mount, file).await?;
    }
    let view = file.view();
    if let Some(writer) = writer
        && (view.capability || view.attr.has_set_id())
    {
        let set = SetAttr { kill_suidgid: true, open_for_write: true, ..SetAttr::default() };
        let mut told = attr::change(mount, writer, file.ino, set).await?;
        let view = inode_reply(told.take()?)?;
        told.keep_view(view);
        file.lose_capability(told.asked_at);
    } else if view.capability {
        xattr::drop_capability(mount, file).await?;
    }
    Ok(())
}

/// Writes into the cache, and waits for the result if no room is set aside for all of the write. The caller holds the
/// range lock on `held`. The inner error says that the bytes were cached and then lost.
async fn cached(
    mount: &Arc<Mount>,
    open: &OpenFile,
    (range, held): (ByteRange, ByteRange),
    data: &mut Buf,
    write_back: bool,
    pinned: bool,
) -> Result<Result<usize>> {
    let len = range.len() as usize;
    if write_back {
        // `msync` and `fsync` report the error of a store through a mapping: pages without space wait for nothing.
        buffered(mount, open, range, data, pinned, None).await?;
        return Ok(Ok(len));
    }
    let attempt = Attempt::begin(mount, &open.file, range).await;
    let is_covered = buffered(mount, open, range, data, pinned, Some(&attempt)).await?;
    Ok(if is_covered { Ok(len) } else { attempt.stored(mount, held, pinned).await })
}

/// Writes into the cache. The caller holds the range lock. If it has `pinned` locks on all of the range, others see the
/// write as one event. It may keep the memory of `data` and leave other memory there. Returns whether room is set aside
/// for all of the write. If it is not, the writer has to wait for `attempt`, if there is one.
async fn buffered(
    mount: &Arc<Mount>,
    open: &OpenFile,
    range: ByteRange,
    data: &mut Buf,
    pinned: bool,
    attempt: Option<&Attempt<'_>>,
) -> Result<bool> {
    let file = &open.file;
    assert_eq!(data.len() as u64, range.len(), "{}: a write of {range:?} comes with its bytes", file.ino);
    grants::ask(mount, file, range).await;
    let mut all_covered = true;
    // The write goes in steps, so that a write larger than the dirty share of the cache can succeed.
    const STEP: u64 = 4 << 20;
    let mut at = range.start;
    while at < range.end {
        let part = ByteRange::at(at, STEP).intersect(&range);
        let pins: Vec<Pin> = match pinned {
            true => Vec::new(),
            false => {
                let extent = mount.extent(open, Mode::Buffered);
                locks::pin_spans(mount, file, LockMode::Write, part, extent).await?
            }
        };
        flush::throttle(mount, open, part, room_for(part)).await;
        let now = mount.wall();
        let span = (part.start - range.start) as usize..(part.end - range.start) as usize;
        let source = if part == range { source(range.start, data) } else { Source::Copied(&data[span]) };
        let put = put(mount, file, part.start, source, false, (|| true, || file.touch(now)));
        // Other mounts may request the size between two steps.
        file.size.extend_own(if pinned { range.end } else { part.end });
        drop(pins);
        if let Put::Done { adopted, covered, .. } = put {
            mount.stats.moved(Count::CopiedIn, part.len() - adopted);
            all_covered &= covered;
            if !covered {
                // From here on, write-back may find that there is no space for these bytes.
                attempt.into_iter().for_each(Attempt::wait);
            }
        }
        if let Put::Done { full_chunk: Some(chunk), rewritten, .. } = put {
            flush::chunk_is_full(mount, file, chunk, rewritten);
        }
        at = part.end;
    }
    Ok(all_covered)
}

/// Writes to the targets. All pieces are in flight at once, and there is one wait for all of them. The caller holds the
/// range lock, and has `held` if the locks keep other mounts away. If there are no `pins`, the targets lock for each
/// piece. `may_be_early`: with free space on the targets the write could have returned early. So the answers should
/// also report how much space there is for the next write.
async fn direct(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    (range, held): (ByteRange, Option<ByteRange>),
    data: Buf,
    (hints, may_be_early): (Hints, bool),
    pins: Option<&[Pin]>,
) -> Result<usize> {
    file.size.turn();
    tokens::outdated(mount, file.ino);
    flush::flush_and_forget(mount, file, range).await;
    let under_way = file.size.begin_direct();
    let old_size = file.size();
    let len = data.len();
    let cover = if may_be_early { Cover::Wanted } else { Cover::None };
    let kind = WriteKind::Direct { kill_suidgid: hints.kill_suidgid, server_lock: pins.is_none(), cover };
    // If another mount requests the size of the file meanwhile, it gets the old end or the new one, and no size in
    // between.
    let end_first = pins.is_some() && (range.end > old_size || !tokens::is_sure(mount, file));
    let Sent { good_to, written_to, error } = send_all(mount, file, range, data, kind, end_first).await;
    assert!(good_to <= range.end, "{}: of {range:?} all up to {good_to} was written", file.ino);
    if good_to > range.start {
        file.extend(good_to);
    }
    file.size.turn();
    tokens::outdated(mount, file.ino);
    drop(under_way);
    let Some(e) = error else { return Ok(len) };
    let end = good_to.max(old_size);
    // Under commit consistency other mounts may have written there meanwhile.
    if let Some(held) = held.filter(|_| written_to > end) {
        refused::trim(mount, file, held, (end, written_to), pins.is_some()).await;
    }
    if good_to > range.start { Ok((good_to - range.start) as usize) } else { Err(e) }
}
