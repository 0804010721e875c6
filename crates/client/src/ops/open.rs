//! create, tmpfile, open, and what follows the last reference.
//!
//! Invariant: the server hears of a writer's close only after its dirty bytes have been written, since after the last
//! writer's close the owner alone knows the size.

use super::name::new_name;
use super::{attr, inode_reply};
use crate::api::{Created, Ctx, OpenFlags};
use crate::cache::drop::Dirty;
use crate::coherence::locks;
use crate::coherence::tokens::{self, name_keys};
use crate::core::{Core, unexpected};
use crate::inode::{File, Moment, OpenFile};
use crate::prefetch::small_files;
use crate::telemetry::stats::Count;
use crate::writeback::batch;
use crate::writeback::deferred_close::{self, Due};
use amphi_dlm::TokenKey;
use amphi_types::{ByteRange, Caps, Cred, Errno, Ino, Kind, Result, SetAttr};
use amphi_wire::{Access, InodeView, Make, Reply, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

fn access(flags: OpenFlags) -> Access {
    Access { read: flags.read, write: flags.write }
}

/// The open file of an answer that opened it.
fn opened(core: &Arc<Core>, ctx: &Ctx, view: InodeView, flags: OpenFlags, moment: Moment) -> Arc<OpenFile> {
    let file = core.files.open(view, access(flags), moment);
    Arc::new(OpenFile::new(core, file, flags, ctx))
}

pub(crate) async fn create(
    core: Arc<Core>,
    ctx: Ctx,
    dir: Ino,
    name: Vec<u8>,
    perm: u16,
    flags: OpenFlags,
) -> Result<Created> {
    core.stats.count(Count::Create);
    let make = Make::File { open: Some(access(flags)), exclusive: flags.exclusive };
    let name = new_name(name)?;
    let op = Request::Make { dir, name: name.clone(), make, perm: perm & 0o7777 };
    let _making = locks::making(&core);
    let mut told = tokens::call(&core, dir.target(), &ctx.cred, op, &name_keys(dir, &name)).await?;
    match told.take()? {
        Reply::Made { inode, created, lock } => {
            let file = opened(&core, &ctx, inode, flags, told.moment);
            core.note_contention(&file.file, told.contended);
            told.keep_name(dir, &name, Some(inode.attr.ino));
            if let Some(lock) = lock {
                locks::given(&core, &file.file, lock);
            }
            let shown = if created {
                told.keep_view(inode);
                inode.attr
            } else {
                attr::shown(&core, &ctx.cred, told, inode).await
            };
            if !created && flags.truncate {
                cut(&core, &ctx, &file).await?;
            }
            Ok(Created { attr: file.file.overlay(shown, core.company.is_alone()), file, created })
        }
        other => Err(unexpected(&other)),
    }
}

pub(crate) async fn tmpfile(core: Arc<Core>, ctx: Ctx, dir: Ino, perm: u16, flags: OpenFlags) -> Result<Created> {
    core.stats.count(Count::Create);
    let op = Request::MakeTmp { dir, perm: perm & 0o7777, open: access(flags) };
    let mut told = tokens::call(&core, dir.target(), &ctx.cred, op, &[]).await?;
    match told.take()? {
        Reply::Made { inode, created, .. } => {
            let file = opened(&core, &ctx, inode, flags, told.moment);
            told.keep_view(inode);
            Ok(Created { attr: file.file.overlay(inode.attr, core.company.is_alone()), file, created })
        }
        other => Err(unexpected(&other)),
    }
}

pub(crate) async fn open(core: Arc<Core>, ctx: Ctx, ino: Ino, flags: OpenFlags) -> Result<Arc<OpenFile>> {
    if !flags.write {
        small_files::opened(&core, &ctx.cred, ino);
        if let Some(file) = small_files::arrived(&core, &ctx, ino, flags).await {
            return Ok(file);
        }
    }
    core.stats.count(Count::Open);
    let op = Request::Open { ino, access: access(flags), exec: flags.exec };
    // Others drop the attributes of what this mount is about to write.
    let keys: &[TokenKey] = if flags.write { &[TokenKey::Attributes(ino)] } else { &[] };
    let mut told = tokens::call(&core, ino.target(), &ctx.cred, op, keys).await?;
    let view = inode_reply(told.take()?)?;
    let file = opened(&core, &ctx, view, flags, told.moment);
    told.keep_view(view);
    drop(told);
    if view.attr.kind == Kind::Dir && flags.write {
        return Err(Errno::IsDir);
    }
    if flags.truncate && flags.write {
        cut(&core, &ctx, &file).await?;
    }
    Ok(file)
}

/// Opens an inode of any kind but a directory for nothing, so that it stays while the result lives, whatever becomes of
/// its names.
pub(crate) async fn hold(core: &Arc<Core>, ctx: &Ctx, ino: Ino) -> Result<Arc<OpenFile>> {
    let flags = OpenFlags::default();
    let op = Request::Open { ino, access: access(flags), exec: false };
    let mut told = tokens::call(core, ino.target(), &ctx.cred, op, &[]).await?;
    let view = inode_reply(told.take()?)?;
    let file = opened(core, ctx, view, flags, told.moment);
    told.keep_view(view);
    Ok(file)
}

/// `O_TRUNC`: permission was checked by the open.
async fn cut(core: &Arc<Core>, ctx: &Ctx, file: &Arc<OpenFile>) -> Result<()> {
    let set = SetAttr {
        size: Some(0),
        open_for_write: true,
        kill_suidgid: !ctx.cred.may(Caps::FSETID),
        ..SetAttr::default()
    };
    attr::truncate(core, &ctx.cred, &file.file, 0, 0, set).await?;
    Ok(())
}

/// The last reference to an open file is gone. `linger`: its close may wait for others.
pub(crate) fn release(core: &Arc<Core>, file: &Arc<File>, access: Access, linger: bool) {
    core.stats.count(Count::Close);
    {
        let mut known = file.known.lock();
        if let Some(i) = known.opens.iter().position(|a| *a == access) {
            known.opens.swap_remove(i);
        }
        known.closes.push(access);
    }
    batch::released(core, file);
    if file.nameless.load(SeqCst) && file.open_count() == 0 {
        useless(core, file.clone());
    }
    if linger {
        deferred_close::linger(core, due_closes(file));
        core.files.reap(file);
    } else {
        send_closes(core, file);
    }
}

/// The last name of a file has gone: if nobody here has it open, or when it is closed, what is cached of it is of no
/// use any more, and what is still dirty need not be written. The server decides that, because an open of it may be on
/// its way.
pub(crate) fn nameless(core: &Arc<Core>, ino: Ino) {
    let Some(file) = core.files.get(ino) else { return core.files.nameless(ino) };
    file.nameless.store(true, SeqCst);
    if file.open_count() == 0 {
        useless(core, file);
    }
}

/// Nobody here can come to the bytes of a file any more. That its pages leave unused says nothing of locality: nothing
/// else needed their room.
fn useless(core: &Arc<Core>, file: Arc<File>) {
    if file.dirty_bytes.load(SeqCst) == 0 {
        if file.cached_bytes.load(SeqCst) > 0 {
            core.cache.forget(&file, ByteRange::new(0, file.size()), Dirty::Keep);
        }
        core.files.reap(&file);
        return;
    }
    let ino = file.ino;
    let ended = {
        let mut known = file.known.lock();
        if !known.opens.is_empty() {
            return;
        }
        let ended = std::mem::take(&mut known.closes);
        known.closing.extend(&ended);
        ended
    };
    let frozen = attr::Frozen::from(core, &file, 0);
    let core = core.clone();
    core.clone().spawn(async move {
        file.signal.until(|| !file.in_flight(ByteRange::ALL)).await;
        let discard = Request::Discard { ino, opens: ended.len() as u32 };
        let done = core.call(ino.target(), &Cred::root(), discard).await.is_ok();
        if done {
            core.cache.forget(&file, ByteRange::ALL, Dirty::Discard);
        }
        drop(frozen);
        ended.iter().for_each(|access| file.closed(*access));
        if done {
            core.files.reap(&file);
        } else {
            file.known.lock().closes.extend(ended);
            send_closes(&core, &file);
        }
    });
}

/// Sends the closes that nothing holds up any more, without waiting for the answers.
pub(crate) fn send_closes(core: &Arc<Core>, file: &Arc<File>) {
    deferred_close::send(core, due_closes(file));
    core.files.reap(file);
}

/// The closes that nothing holds up any more; they are under way from now on.
pub(crate) fn due_closes(file: &Arc<File>) -> Vec<Due> {
    let mut known = file.known.lock();
    let known = &mut *known;
    let dirty = file.dirty_bytes.load(SeqCst) > 0;
    let mut due = Vec::new();
    known.closes.retain(|&access| {
        let held_up = access.write && dirty;
        if !held_up {
            // It stays known: an open that is answered before this close is shows the time from before.
            let atime = if std::mem::take(&mut known.accessed_due) { known.accessed } else { None };
            due.push(Due { file: file.clone(), access, atime });
        }
        held_up
    });
    known.closing.extend(due.iter().map(|one| one.access));
    if !known.opens.iter().chain(&known.closes).any(|a| a.write) {
        known.spread = false;
    }
    due
}
