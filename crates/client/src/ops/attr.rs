//! getattr and setattr, truncate included.
//!
//! Owns: how the server's attributes and what only this client knows come together, and the order of a truncate:
//! range lock, nothing sets out beyond the new end, what is under way lands, the server cuts, the cache is cut.

use super::inode_reply;
use crate::api::Ctx;
use crate::cache::drop::Dirty;
use crate::core::Core;
use crate::files::{File, OpenFile};
use crate::rangelock::Hold;
use crate::stats::Count;
use amphi_types::{Attr, ByteRange, Cred, Errno, Ino, Result, SetAttr, limits};
use amphi_wire::{InodeView, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// What the client knew of a file before it asked.
pub(crate) struct Before(Option<(Arc<File>, u64)>);

/// To be called before an inode is asked for.
pub(crate) fn before(core: &Core, ino: Ino) -> Before {
    Before(core.files.get(ino).map(|file| {
        let epoch = file.epoch.load(SeqCst);
        (file, epoch)
    }))
}

/// The attributes of an answer, with what only this client knows laid over them.
pub(crate) fn settle(core: &Core, view: InodeView, before: &Before) -> Attr {
    match (&before.0, core.files.get(view.attr.ino)) {
        (Some((file, epoch)), _) if file.ino == view.attr.ino => file.adopt(view, *epoch),
        (_, Some(file)) => file.overlay(view.attr),
        (_, None) => view.attr,
    }
}

pub(crate) async fn getattr(core: Arc<Core>, ctx: Ctx, ino: Ino) -> Result<Attr> {
    core.stats.count(Count::GetAttr);
    let known = before(&core, ino);
    let view = inode_reply(core.call(ino.target(), &ctx.cred, Request::GetAttr { ino }).await?)?;
    Ok(settle(&core, view, &known))
}

/// Asks for the inode again after the server knew better: truncated or changed elsewhere.
pub(crate) async fn reload(core: &Arc<Core>, file: &Arc<File>) -> Result<()> {
    let epoch = file.epoch.load(SeqCst);
    let reply = core.call(file.ino.target(), &Cred::root(), Request::GetAttr { ino: file.ino }).await?;
    file.adopt(inode_reply(reply)?, epoch);
    Ok(())
}

/// Reloads in the background, for instance after bytes that failed to be written were forgotten.
pub(crate) fn refresh(core: Arc<Core>, file: Arc<File>) {
    core.clone().spawn(async move {
        if let Err(e) = reload(&core, &file).await {
            tracing::debug!(ino = %file.ino, "attributes after a failed write-back: {e}");
        }
    });
}

pub(crate) async fn setattr(
    core: Arc<Core>,
    ctx: Ctx,
    ino: Ino,
    mut set: SetAttr,
    open: Option<Arc<OpenFile>>,
) -> Result<Attr> {
    core.stats.count(Count::SetAttr);
    if let Some(open) = &open
        && open.flags.write
    {
        set.open_for_write = true;
    }
    if set.size.is_some_and(|size| size > limits::FILE_MAX) {
        return Err(Errno::FileTooBig);
    }
    let file = open.map(|open| open.file.clone()).or_else(|| core.files.get(ino));
    if let (Some(file), Some(_)) = (&file, set.atime) {
        let mut known = file.known.lock();
        (known.accessed, known.accessed_due) = (None, false);
    }
    match (file, set.size) {
        (Some(file), Some(size)) => truncate(&core, &ctx.cred, &file, size, set).await,
        (Some(file), None) => {
            let epoch = file.epoch.load(SeqCst);
            let reply = core.call(ino.target(), &ctx.cred, Request::SetAttr { ino, set }).await?;
            let view = inode_reply(reply)?;
            if set.mtime.is_some() {
                explicit_time(&file, &view);
            }
            Ok(file.adopt(view, epoch))
        }
        (None, _) => {
            let known = before(&core, ino);
            let view = inode_reply(core.call(ino.target(), &ctx.cred, Request::SetAttr { ino, set }).await?)?;
            Ok(settle(&core, view, &known))
        }
    }
}

/// Dirty bytes written before a time was set carry that time when they leave.
fn explicit_time(file: &File, view: &InodeView) {
    file.known.lock().mtime = view.attr.mtime;
}

/// A hold on write-back: nothing sets out from an offset on until it is dropped.
pub(crate) struct Frozen(Arc<File>, Arc<Core>);

impl Frozen {
    /// Holds back what lies from `from` on.
    pub(crate) fn from(core: &Arc<Core>, file: &Arc<File>, from: u64) -> Frozen {
        file.flights.lock().frozen_from = Some(from);
        Frozen(file.clone(), core.clone())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.flights.lock().frozen_from = None;
        self.0.signal.notify();
        self.1.landed.notify();
    }
}

/// Changes the size, and whatever else `set` says.
pub(crate) async fn truncate(core: &Arc<Core>, cred: &Cred, file: &Arc<File>, size: u64, set: SetAttr) -> Result<Attr> {
    let _guard = file.range.acquire(ByteRange::ALL, Hold::Exclusive).await;
    resize(core, cred, file, size, set).await
}

/// As `truncate`, for a caller that holds the range lock on the whole file.
pub(crate) async fn resize(core: &Arc<Core>, cred: &Cred, file: &Arc<File>, size: u64, set: SetAttr) -> Result<Attr> {
    file.mark_epoch();
    let beyond = ByteRange::new(size, u64::MAX);
    let _frozen = Frozen::from(core, file, size);
    // A write that passed its check before the range lock was taken has ended after this.
    core.cache.barrier();
    file.signal.until(|| !file.in_flight(beyond)).await;
    let reply = core.call(file.ino.target(), cred, Request::SetAttr { ino: file.ino, set }).await;
    let view = match reply.and_then(inode_reply) {
        Ok(view) => view,
        Err(e) => {
            file.mark_epoch();
            return Err(e);
        }
    };
    core.cache.forget(file, beyond, Dirty::Discard);
    file.size.store(size, SeqCst);
    explicit_time(file, &view);
    file.mark_epoch();
    let epoch = file.epoch.load(SeqCst);
    let dirty = file.dirty_bytes.load(SeqCst) > 0;
    let attr = file.adopt(view, if dirty { u64::MAX } else { epoch });
    crate::ops::open::send_closes(core, file);
    Ok(attr)
}
