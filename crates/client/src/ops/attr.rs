//! getattr and setattr, truncate included.
//!
//! Owns: the order of the steps of a truncate. A truncate takes the range lock, and in shared mode write locks on
//! everything beyond the new end. After that it sends no more bytes from beyond the new end, and waits for those under
//! way. Then the server cuts the file, and the cache is cut. Does not own: requesting an inode
//! (`coherence::attributes`).

use super::known;
use crate::api::Ctx;
use crate::cache::dirty_end;
use crate::coherence::attributes::{ask, end_now};
use crate::coherence::shards;
use crate::coherence::sharing;
use crate::coherence::tokens;
use crate::conn::replies::inode_reply;
use crate::inode::range_lock::Hold;
use crate::inode::{AskedAt, Inode, OpenFile};
use crate::locks::group_lock;
use crate::locks::{self, Pin};
use crate::mount::Mount;
use crate::ops::write_behind;
use crate::telemetry::stats::Count;
use crate::writeback::flush;
use crate::writeback::release::Frozen;
use amphi_dlm::{Mode, TokenKey};
use amphi_pagecache::Dirty;
use amphi_types::{Attr, ByteRange, Cred, Errno, FileFlags, Ino, Kind, Result, SetAttr, limits};
use amphi_wire::{InodeView, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The set-user-id and set-group-id bits.
const SET_ID: u16 = 0o6000;
/// How often the end of a file is requested while the file is written at its end.
const LEARN_NS: u64 = 1_000_000_000;

pub(crate) async fn getattr(mount: Arc<Mount>, ctx: Ctx, ino: Ino) -> Result<Attr> {
    mount.stats.count(Count::GetAttr);
    let asked = async { shards::shown(&mount, &ctx, ask(&mount, &ctx.cred, ino).await?.1).await };
    match asked.await {
        Err(Errno::Stale) => mount.coherence.unlinked.attr(ino, mount.wall()),
        answer => answer,
    }
}

/// Attributes of the root of the mount, which the first answer names.
pub(crate) async fn of_root(mount: Arc<Mount>, ctx: Ctx) -> Result<Attr> {
    let asked = mount.cluster.root();
    match getattr(mount.clone(), ctx.clone(), asked).await {
        Err(Errno::Stale) if mount.cluster.root() != asked => {
            let root = mount.cluster.root();
            getattr(mount, ctx, root).await
        }
        answer => answer,
    }
}

/// Finds out where the file ends, behind the caller's back, and keeps that if this mount has all of its locks.
pub(crate) fn learn_end(mount: &Arc<Mount>, file: &Arc<Inode>) {
    let now = mount.clock.now_ns();
    let asked = file.locks.end_asked_ns.load(SeqCst);
    let is_due = asked == 0 || now >= asked + LEARN_NS;
    if !is_due || file.locks.end_asked_ns.compare_exchange(asked, now.max(1), SeqCst, SeqCst).is_err() {
        return;
    }
    let (here, file) = (mount.clone(), file.clone());
    mount.spawn(async move {
        let has_all = file.locks.cover_stripes(file.all_stripe_bits());
        let pins =
            if has_all { locks::try_pin_objects(&here, &file, Mode::Write, ByteRange::ALL).await.ok() } else { None };
        if let Err(e) = end_now(&here, &file, pins.is_some()).await {
            tracing::debug!(ino = %file.ino, "the end is not known: {e}");
        }
    });
}

/// The flags that `chattr` has set.
pub(crate) async fn file_flags(mount: Arc<Mount>, ctx: Ctx, ino: Ino) -> Result<FileFlags> {
    ask(&mount, &ctx.cred, ino).await.map(|(view, _)| view.flags)
}

pub(crate) async fn setattr(
    mount: Arc<Mount>,
    ctx: Ctx,
    ino: Ino,
    set: SetAttr,
    open: Option<Arc<OpenFile>>,
) -> Result<Attr> {
    mount.stats.count(Count::SetAttr);
    let done = set_attr(mount.clone(), ctx.clone(), ino, set, open).await;
    let done = async { shards::shown(&mount, &ctx, done?).await };
    match done.await {
        Err(Errno::Stale) => mount.coherence.unlinked.change(ino, &set, mount.wall()),
        answer => answer,
    }
}

async fn set_attr(
    mount: Arc<Mount>,
    ctx: Ctx,
    ino: Ino,
    mut set: SetAttr,
    open: Option<Arc<OpenFile>>,
) -> Result<Attr> {
    if let Some(open) = &open
        && open.flags.write
    {
        set.open_for_write = true;
    }
    if set.size.is_some_and(|size| size > limits::FILE_MAX) {
        return Err(Errno::FileTooBig);
    }
    let member = open.as_ref().map_or(0, |open| open.member());
    let in_use = if open.is_none() { known::use_known(&mount, ino) } else { None };
    let file = open.map(|open| open.file.clone()).or_else(|| in_use.as_ref().map(|in_use| in_use.file().clone()));
    if let (Some(file), Some(_)) = (&file, set.atime) {
        let mut known = file.known.lock();
        (known.accessed, known.accessed_due) = (None, false);
    }
    match (file, set.size) {
        (Some(file), Some(size)) => truncate(&mount, &ctx.cred, &file, member, size, set).await,
        (None, Some(size)) => {
            // The locks of a truncate in shared mode depend on the file's layout. In sole mode, a program may open the
            // file meanwhile: it sees the old size or the new one, and no zeros between them.
            let asked_at = mount.asked_at();
            let (view, _) = ask(&mount, &ctx.cred, ino).await?;
            let file = known::know(&mount, view, asked_at);
            truncate(&mount, &ctx.cred, file.file(), 0, size, set).await
        }
        (file, None) => {
            if let (Some(file), Some(_)) = (&file, set.mtime) {
                // Bytes under way carry the time of their write, which must not be later than this time.
                write_behind::drained(file).await;
            }
            let begun = sharing::begin(&mount);
            let sets_id = set.perm.is_some_and(|perm| perm & SET_ID != 0);
            let pins = match &begun {
                None if set.mtime.is_some() || sets_id => written_back(&mount, &ctx.cred, ino, file.as_ref()).await?,
                _ => Vec::new(),
            };
            let mut told = change(&mount, &ctx.cred, ino, set).await?;
            let view = inode_reply(told.take()?)?;
            if let (Some(file), Some(_)) = (&file, set.mtime) {
                explicit_time(&mount, file, &view);
            }
            let attr = told.keep_view(view);
            let partial =
                view.attr.kind == Kind::File && !mount.coherence.sharing.is_alone() && !told.grants_attributes();
            drop((told, pins, begun));
            // Another mount may have written bytes that are not in the answer.
            if partial { getattr(mount, ctx, ino).await } else { Ok(attr) }
        }
    }
}

/// Before times are set in shared mode, this makes all mounts write back their caches, with the times of their writes.
/// While the locks are pinned, no mount writes anything new. The same is done before anything is set that a write
/// removes: programs post writes under locks only (`ops::posts`), and such a write removes nothing.
pub(crate) async fn written_back(
    mount: &Arc<Mount>,
    cred: &Cred,
    ino: Ino,
    file: Option<&Arc<Inode>>,
) -> Result<Vec<Pin>> {
    if let Some(file) = file {
        return beyond(mount, file, 0).await;
    }
    let asked_at = mount.asked_at();
    let (view, _) = ask(mount, cred, ino).await?;
    if view.attr.kind != Kind::File {
        return Ok(Vec::new());
    }
    let file = known::know(mount, view, asked_at);
    beyond(mount, file.file(), 0).await
}

/// Sends a SetAttr.
pub(crate) async fn change(mount: &Arc<Mount>, cred: &Cred, ino: Ino, set: SetAttr) -> Result<tokens::Told> {
    tokens::call(mount, ino.target(), cred, Request::SetAttr { ino, set }, &[TokenKey::Attributes(ino)]).await
}

/// Dirty bytes written before a time was set carry none when they leave.
fn explicit_time(mount: &Mount, file: &Inode, view: &InodeView) {
    file.time_was_set(view.attr.mtime);
    if !mount.coherence.sharing.is_alone() {
        file.times_told();
    }
}

/// Changes the size, and the other attributes in `set`.
pub(crate) async fn truncate(
    mount: &Arc<Mount>,
    cred: &Cred,
    file: &Arc<Inode>,
    member: u64,
    size: u64,
    set: SetAttr,
) -> Result<Attr> {
    let _cut = file.pages.begin_cut();
    let locks = move |mount: Arc<Mount>, file: Arc<Inode>| async move { beyond(&mount, &file, size).await };
    let all = (ByteRange::ALL, Hold::Exclusive);
    let (_guard, _begun, pins) = group_lock::enter_pinned(mount, file, member, all, locks).await?;
    resize(mount, cred, file, size, set, pins).await
}

/// Write locks on everything from `size` on: no other mount moves the end of the file there until they are dropped.
pub(crate) async fn beyond(mount: &Arc<Mount>, file: &Arc<Inode>, size: u64) -> Result<Vec<Pin>> {
    locks::pin_objects(mount, file, Mode::Write, ByteRange::new(size, u64::MAX)).await
}

/// Works as `truncate`, for a caller that holds the range lock on the whole file and, in shared mode, `beyond`.
pub(crate) async fn resize(
    mount: &Arc<Mount>,
    cred: &Cred,
    file: &Arc<Inode>,
    size: u64,
    set: SetAttr,
    pins: Vec<Pin>,
) -> Result<Attr> {
    file.size.turn();
    tokens::outdated(mount, file.ino);
    let beyond = ByteRange::new(size, u64::MAX);
    // After this, every write that passed its check before the range lock was taken has ended.
    mount.cache.barrier();
    if !pins.is_empty() {
        // Other mounts may request the size as soon as the server has cut the file, before this mount has the answer.
        // The answer to a glimpse must not reach beyond the new end, so the server has to have all bytes beyond it
        // first.
        flush::flush(mount, file, beyond).await;
        file.size.own_ends_by(size);
    }
    let _frozen = Frozen::from(mount, file, size);
    file.signal.until(|| !file.in_flight(beyond)).await;
    let done = async {
        let mut told = change(mount, cred, file.ino, set).await?;
        let view = inode_reply(told.take()?)?;
        Ok((told, view))
    };
    let (told, view) = match done.await {
        Ok(done) => done,
        Err(e) => {
            file.size.own_reaches(dirty_end(&mount.cache, file));
            file.size.turn();
            return Err(e);
        }
    };
    mount.cache.forget(file, beyond, Dirty::Discard);
    file.size.own_ends_by(size);
    file.size.bytes.store(size, SeqCst);
    explicit_time(mount, file, &view);
    file.size.turn();
    // No other change of the file was under way on this mount, so the answer is as good as that to a new request.
    let adopted = file.adopt_change(view, told.asked_at, AskedAt::now(told.asked_at.rule()));
    drop(told);
    drop(pins);
    crate::coherence::closes::send_closes(mount, file);
    Ok(adopted.attr)
}
