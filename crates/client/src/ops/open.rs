//! create, tmpfile, open.
//!
//! Owns: their steps. Does not own: what follows the last reference (`writeback::release`).

use super::name::{change, new_name};
use super::{attr, front};
use crate::api::{Ctx, OpenFlags};
use crate::coherence::attributes;
use crate::coherence::tokens;
use crate::conn::replies::inode_reply;
use crate::conn::replies::unexpected;
use crate::inode::open_file::{Closer, Created};
use crate::inode::{AskedAt, Inode, OpenFile};
use crate::locks::{self, group_lock};
use crate::mount::Mount;
use crate::policy::readers::Reads;
use crate::prefetch::small_files::{self, kept};
use crate::telemetry::stats::Count;
use crate::writeback::release::release;
use amphi_dlm::TokenKey;
use amphi_types::{Caps, Errno, FileFlags, Ino, Kind, Result, SetAttr};
use amphi_wire::{Access, InodeView, Make, Reply, Request};
use std::sync::Arc;

fn access(flags: OpenFlags) -> Access {
    Access { read: flags.read, write: flags.write }
}

/// Makes the open file from an answer to a request that opened it.
fn opened(mount: &Arc<Mount>, ctx: &Ctx, view: InodeView, flags: OpenFlags, asked_at: AskedAt) -> Arc<OpenFile> {
    let file = mount.files.open(view, access(flags), asked_at);
    Arc::new(mount.open_file(file, flags, ctx, false))
}

pub(crate) async fn create(
    mount: Arc<Mount>,
    ctx: Ctx,
    dir: Ino,
    name: Vec<u8>,
    perm: u16,
    flags: OpenFlags,
) -> Result<Created> {
    mount.stats.count(Count::Create);
    let make = Make::File { open: Some(access(flags)), exclusive: flags.exclusive };
    let name = new_name(name)?;
    let op = |dir, name| Request::Make { dir, name, make: make.clone(), perm: perm & 0o7777, umask: ctx.umask };
    let _making = locks::making(&mount);
    let (mut told, at) = change(&mount, &ctx, dir, &name, op).await?;
    match told.take()? {
        Reply::Made { inode, created, lock } => {
            let file = opened(&mount, &ctx, inode, flags, told.asked_at);
            mount.note_contention(&file.file, told.contended);
            told.keep_name(at, &name, Some(inode.attr.ino));
            if let Some(lock) = lock {
                locks::given(&mount, &file.file, lock);
            }
            let shown = if created {
                told.keep_view(inode);
                inode.attr
            } else {
                attributes::shown(&mount, &ctx.cred, told, inode).await
            };
            if !created {
                check_append_only(&inode, flags)?;
            }
            if !created && flags.truncate {
                cut(&mount, &ctx, &file).await?;
            }
            Ok(Created { attr: file.file.overlay(shown, mount.coherence.sharing.is_alone()), file, created })
        }
        other => Err(unexpected(&other)),
    }
}

pub(crate) async fn tmpfile(mount: Arc<Mount>, ctx: Ctx, dir: Ino, perm: u16, flags: OpenFlags) -> Result<Created> {
    mount.stats.count(Count::Create);
    let op = Request::MakeTmp { dir, perm: perm & 0o7777, umask: ctx.umask, open: access(flags) };
    let mut told = tokens::call(&mount, dir.target(), &ctx.cred, op, &[]).await?;
    match told.take()? {
        Reply::Made { inode, created, .. } => {
            let file = opened(&mount, &ctx, inode, flags, told.asked_at);
            told.keep_view(inode);
            Ok(Created { attr: file.file.overlay(inode.attr, mount.coherence.sharing.is_alone()), file, created })
        }
        other => Err(unexpected(&other)),
    }
}

pub(crate) async fn open(mount: Arc<Mount>, ctx: Ctx, ino: Ino, flags: OpenFlags) -> Result<Arc<OpenFile>> {
    if !flags.write && !flags.truncate {
        small_files::opened(&mount, &ctx.cred, ino);
        if let Some(file) = small_files::arrived(&mount, &ctx, ino, flags).await {
            return Ok(file);
        }
    }
    mount.stats.count(Count::Open);
    let op = Request::Open { ino, access: access(flags), exec: flags.exec };
    // Other mounts drop the attributes of a file that this mount is about to write.
    let keys: &[TokenKey] = if flags.write { &[TokenKey::Attributes(ino)] } else { &[] };
    let question = kept::asks(&mount, &ctx.cred, ino, flags);
    let mut told = tokens::call(&mount, ino.target(), &ctx.cred, op, keys).await?;
    let view = inode_reply(told.take()?)?;
    let file = opened(&mount, &ctx, view, flags, told.asked_at);
    told.keep_view(view);
    drop(told);
    question.into_iter().for_each(kept::Question::opened);
    if view.attr.kind == Kind::Dir && flags.write {
        return Err(Errno::IsDir);
    }
    check_append_only(&view, flags)?;
    if flags.truncate {
        cut(&mount, &ctx, &file).await?;
    }
    Ok(file)
}

/// A file that may only grow (`chattr +a`) can be written only by appending. The open that was just registered ends
/// with the `OpenFile` that this error drops.
///
/// Errors: `Perm`.
fn check_append_only(view: &InodeView, flags: OpenFlags) -> Result<()> {
    let cuts = flags.truncate || (flags.write && !flags.append);
    if view.flags.has(FileFlags::APPEND) && cuts { Err(Errno::Perm) } else { Ok(()) }
}

/// Opens an inode of any kind but a directory, without using it. So the inode exists while the result lives, even if
/// its names are removed.
pub(crate) async fn hold(mount: &Arc<Mount>, ctx: &Ctx, ino: Ino) -> Result<Arc<OpenFile>> {
    let flags = OpenFlags::default();
    let op = Request::Open { ino, access: access(flags), exec: false };
    let mut told = tokens::call(mount, ino.target(), &ctx.cred, op, &[]).await?;
    let view = inode_reply(told.take()?)?;
    let file = opened(mount, ctx, view, flags, told.asked_at);
    told.keep_view(view);
    Ok(file)
}

/// `O_TRUNC`: an open for writing has checked the permission. An open for reading only (`O_RDONLY | O_TRUNC`) needs
/// this check too.
async fn cut(mount: &Arc<Mount>, ctx: &Ctx, file: &Arc<OpenFile>) -> Result<()> {
    let set = SetAttr {
        size: Some(0),
        open_for_write: file.flags.write,
        kill_suidgid: !ctx.cred.may(Caps::FSETID),
        ..SetAttr::default()
    };
    attr::truncate(mount, &ctx.cred, &file.file, 0, 0, set).await?;
    Ok(())
}

impl Closer for Mount {
    fn closed(self: Arc<Self>, open: &OpenFile, reads: Reads, ahead: bool) {
        self.jobs.note_use(&open.ledger.job);
        front::note_readers(&self, open, reads);
        if open.member() != 0 {
            group_lock::closed(&self, &open.file, open.member());
        }
        if !kept::keep(&self, open) {
            release(&self, &open.file, open.access(), ahead);
        }
    }

    fn released(self: Arc<Self>, file: &Arc<Inode>, access: Access, linger: bool) {
        release(&self, file, access, linger);
    }

    fn lost(&self, errno: Errno) {
        // The caller logs it.
        let _ = self.writeback.errors.note(errno, self.clock.now_ns());
    }
}
