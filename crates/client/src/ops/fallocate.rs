//! fallocate: reserve, punch, zero.
//!
//! The order is that of a direct write: the call takes the range lock, flushes and drops the cached bytes, sends the
//! request to the targets, and then drops the bytes that fills of whole pages have read meanwhile.
//!
//! Each of them changes the time of the file even if there is nothing to do, as on local file systems. The targets take
//! it with the request.

use crate::api::{Ctx, Fallocate};
use crate::coherence::attributes;
use crate::coherence::lease;
use crate::coherence::tokens;
use crate::conn::replies::unexpected;
use crate::inode::range_lock::Hold;
use crate::inode::{Inode, OpenFile};
use crate::locks;
use crate::locks::group_lock;
use crate::mount::Mount;
use crate::objects::write::spread;
use crate::ops::{attr, write};
use crate::telemetry::stats::Count;
use crate::writeback::flush;
use amphi_dlm::Mode;
use amphi_pagecache::Dirty;
use amphi_types::{ByteRange, Cred, Errno, FileFlags, ObjectId, Result, SetAttr, TimeSet, limits};
use amphi_wire::{Reply, Request};
use futures_util::future::join_all;
use std::sync::Arc;

/// Number of reservations under way at once.
const BATCH: usize = 64;

pub(crate) async fn fallocate(
    mount: Arc<Mount>,
    ctx: Ctx,
    open: Arc<OpenFile>,
    mode: Fallocate,
    offset: u64,
    len: u64,
) -> Result<()> {
    mount.stats.count(Count::Fallocate);
    if !open.flags.write {
        return Err(Errno::BadFd);
    }
    if len == 0 {
        return Err(Errno::Inval);
    }
    let end = offset.checked_add(len).filter(|end| *end <= limits::FILE_MAX).ok_or(Errno::FileTooBig)?;
    let file = &open.file;
    let flags = file.view().flags;
    let only_adds = matches!(mode, Fallocate::Allocate | Fallocate::KeepSize);
    if flags.has(FileFlags::IMMUTABLE) || (flags.has(FileFlags::APPEND) && !only_adds) {
        return Err(Errno::Perm);
    }
    if file.gives_capabilities() {
        write::drop_privileges(&mount, file, None).await?;
    }
    let range = ByteRange::new(offset, end);
    let extends = matches!(mode, Fallocate::Allocate | Fallocate::ZeroRange { keep_size: false });
    {
        let several = file.layout().stripes() > 1;
        let locks = move |mount: Arc<Mount>, file: Arc<Inode>| async move {
            if !several {
                return Ok(Vec::new());
            }
            // Other programs see the operation as one event, although it consists of several requests.
            lease::touch(&mount, &file, range).await?;
            locks::pin_objects(&mount, &file, Mode::Write, range).await
        };
        let exclusive = (range, Hold::Exclusive);
        let (_guard, begun, pins) = group_lock::enter_pinned(&mount, file, open.member(), exclusive, locks).await?;
        file.size.storage_changes();
        let done = change(&mount, file, mode, range, begun.is_some() || !several).await;
        // A concurrent read may have cached a page that overlaps this range.
        mount.cache.forget(file, range, Dirty::Keep);
        drop((pins, begun));
        file.size.storage_changes();
        tokens::outdated(&mount, file.ino);
        done?;
    }
    if extends && end > attributes::size_now(&mount, file).await? {
        extend(&mount, &ctx.cred, file, open.member(), end).await?;
    }
    Ok(())
}

/// With `server_lock` the targets take the locks. Otherwise the caller has pinned locks on all of the range.
async fn change(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    mode: Fallocate,
    range: ByteRange,
    server_lock: bool,
) -> Result<()> {
    match mode {
        Fallocate::Allocate | Fallocate::KeepSize => allocate(mount, file, range, server_lock).await,
        Fallocate::PunchHole => {
            flush::flush_and_forget(mount, file, range).await;
            punch(mount, file, range, server_lock).await
        }
        Fallocate::ZeroRange { .. } => {
            flush::flush_and_forget(mount, file, range).await;
            punch(mount, file, range, server_lock).await?;
            allocate(mount, file, range, server_lock).await
        }
    }
}

/// Grows the file to `end` unless it has become that long meanwhile.
async fn extend(mount: &Arc<Mount>, cred: &Cred, file: &Arc<Inode>, member: u64, end: u64) -> Result<()> {
    let locks = move |mount: Arc<Mount>, file: Arc<Inode>| async move { attr::beyond(&mount, &file, end).await };
    let all = (ByteRange::ALL, Hold::Exclusive);
    let (_guard, _begun, pins) = group_lock::enter_pinned(mount, file, member, all, locks).await?;
    if end <= attributes::size_now(mount, file).await? {
        return Ok(());
    }
    let set = SetAttr { size: Some(end), mtime: Some(TimeSet::Now), open_for_write: true, ..SetAttr::default() };
    attr::resize(mount, cred, file, end, set, pins).await?;
    Ok(())
}

async fn punch(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange, server_lock: bool) -> Result<()> {
    let size = attributes::size_now(mount, file).await?;
    let view = file.view();
    // Beyond the existing stripes there are no bytes; the inode's target may not know the latest size.
    let stripes = view.layout.stripes_below(range.end.min(size.max(view.attr.size)).max(1));
    let now = mount.wall();
    let calls = (0..stripes).map(|stripe| {
        let object = ObjectId { ino: file.ino, stripe };
        let op = Request::Punch { object, range, generation: view.generation, mtime: now, server_lock };
        mount.call_for_io(file, view.layout.target(file.ino, stripe), op, server_lock)
    });
    for reply in join_all(calls.collect::<Vec<_>>()).await {
        match reply {
            Ok(Reply::Done) | Err(Errno::NoEnt) => {}
            Ok(other) => return Err(unexpected(&other)),
            Err(e) => return Err(e),
        }
    }
    file.touched_past_cache(now);
    Ok(())
}

async fn allocate(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange, server_lock: bool) -> Result<()> {
    attributes::size_now(mount, file).await?;
    let view = file.view();
    let now = mount.wall();
    let mut pieces = view.layout.pieces(file.ino, range);
    loop {
        let batch: Vec<_> = pieces.by_ref().take(BATCH).collect();
        if batch.is_empty() {
            file.touched_past_cache(now);
            return Ok(());
        }
        let mut calls = Vec::with_capacity(batch.len());
        for (object, range) in batch {
            if object.stripe > 0 {
                spread(mount, file).await?;
            }
            let op = Request::Allocate { object, range, generation: view.generation, mtime: now, server_lock };
            calls.push(mount.call_for_io(file, view.layout.target(file.ino, object.stripe), op, server_lock));
        }
        for reply in join_all(calls).await {
            crate::conn::replies::done_reply(reply?)?;
        }
    }
}
