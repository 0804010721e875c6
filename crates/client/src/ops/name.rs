//! Operations on names: lookup, mknod, mkdir, symlink, link, unlink, rmdir, rename, readlink.
//!
//! Names are not cached: the server says 0 for how long they may be.

use super::attr::{before, settle};
use super::{done_reply, inode_reply};
use crate::api::Ctx;
use crate::core::{Core, unexpected};
use crate::stats::Count;
use amphi_types::{Attr, Errno, Ino, Kind, Name, Result, limits};
use amphi_wire::{Make, RenameMode, Reply, Request};
use std::sync::Arc;

pub(crate) async fn lookup(core: Arc<Core>, ctx: Ctx, dir: Ino, name: Vec<u8>) -> Result<Attr> {
    match &name[..] {
        b"." => return super::attr::getattr(core, ctx, dir).await,
        b".." => {
            let parent = parent(&core, &ctx, dir).await?;
            return super::attr::getattr(core, ctx, parent).await;
        }
        _ => {}
    }
    core.stats.count(Count::Lookup);
    let name = Name::new(name)?;
    let view = inode_reply(core.call(dir.target(), &ctx.cred, Request::Lookup { dir, name }).await?)?;
    Ok(settle(&core, view, &before(&core, Ino(0))))
}

/// The directory above `dir`.
pub(crate) async fn parent(core: &Arc<Core>, ctx: &Ctx, dir: Ino) -> Result<Ino> {
    match core.call(dir.target(), &ctx.cred, Request::Parent { dir }).await? {
        Reply::Ino(parent) => Ok(parent),
        other => Err(unexpected(&other)),
    }
}

async fn make(core: &Arc<Core>, ctx: &Ctx, dir: Ino, name: Vec<u8>, make: Make, perm: u16) -> Result<Attr> {
    let op = Request::Make { dir, name: new_name(name)?, make, perm: perm & 0o7777 };
    match core.call(dir.target(), &ctx.cred, op).await? {
        Reply::Made { inode, .. } => Ok(settle(core, inode, &before(core, Ino(0)))),
        other => Err(unexpected(&other)),
    }
}

/// A name to be made: `.` and `..` exist always.
pub(crate) fn new_name(name: Vec<u8>) -> Result<Name> {
    if name == b"." || name == b".." {
        return Err(Errno::Exist);
    }
    Name::new(name)
}

pub(crate) async fn mknod(core: Arc<Core>, ctx: Ctx, dir: Ino, name: Vec<u8>, mode: u32, rdev: u32) -> Result<Attr> {
    core.stats.count(Count::MkNod);
    let perm = (mode & 0o7777) as u16;
    let what = match Kind::from_mode(mode) {
        None if mode & 0o170000 == 0 => Make::File { open: None, exclusive: true },
        Some(Kind::File) => Make::File { open: None, exclusive: true },
        Some(Kind::Dir | Kind::Symlink) | None => return Err(Errno::Inval),
        Some(kind) => Make::Node { kind, rdev },
    };
    make(&core, &ctx, dir, name, what, perm).await
}

pub(crate) async fn mkdir(core: Arc<Core>, ctx: Ctx, dir: Ino, name: Vec<u8>, perm: u16) -> Result<Attr> {
    core.stats.count(Count::MkDir);
    make(&core, &ctx, dir, name, Make::Dir, perm).await
}

pub(crate) async fn symlink(core: Arc<Core>, ctx: Ctx, dir: Ino, name: Vec<u8>, to: Vec<u8>) -> Result<Attr> {
    core.stats.count(Count::Symlink);
    if to.is_empty() {
        return Err(Errno::NoEnt);
    }
    if to.len() > limits::SYMLINK_MAX {
        return Err(Errno::NameTooLong);
    }
    make(&core, &ctx, dir, name, Make::Symlink(to), 0o777).await
}

pub(crate) async fn link(core: Arc<Core>, ctx: Ctx, ino: Ino, dir: Ino, name: Vec<u8>) -> Result<Attr> {
    core.stats.count(Count::Link);
    let known = before(&core, ino);
    let op = Request::Link { ino, dir, name: new_name(name)? };
    let view = inode_reply(core.call(dir.target(), &ctx.cred, op).await?)?;
    Ok(settle(&core, view, &known))
}

/// The inode that has lost its last name.
fn removed(reply: Reply) -> Result<Option<Ino>> {
    match reply {
        Reply::Removed { last_name_of } => Ok(last_name_of),
        other => Err(unexpected(&other)),
    }
}

pub(crate) async fn unlink(core: Arc<Core>, ctx: Ctx, dir: Ino, name: Vec<u8>) -> Result<()> {
    core.stats.count(Count::Unlink);
    if name == b"." || name == b".." {
        return Err(Errno::IsDir);
    }
    if let Some(ino) =
        removed(core.call(dir.target(), &ctx.cred, Request::Unlink { dir, name: Name::new(name)? }).await?)?
    {
        super::open::nameless(&core, ino);
    }
    Ok(())
}

pub(crate) async fn rmdir(core: Arc<Core>, ctx: Ctx, dir: Ino, name: Vec<u8>) -> Result<()> {
    core.stats.count(Count::RmDir);
    match &name[..] {
        b"." => return Err(Errno::Inval),
        b".." => return Err(Errno::NotEmpty),
        _ => {}
    }
    removed(core.call(dir.target(), &ctx.cred, Request::RmDir { dir, name: Name::new(name)? }).await?).map(|_| ())
}

pub(crate) async fn rename(
    core: Arc<Core>,
    ctx: Ctx,
    from: (Ino, Vec<u8>),
    to: (Ino, Vec<u8>),
    mode: RenameMode,
) -> Result<()> {
    core.stats.count(Count::Rename);
    let dots = |name: &[u8]| name == b"." || name == b"..";
    if dots(&from.1) || dots(&to.1) {
        return Err(if mode == RenameMode::NoReplace && dots(&to.1) { Errno::Exist } else { Errno::Busy });
    }
    let op = Request::Rename { from: from.0, from_name: Name::new(from.1)?, to: to.0, to_name: Name::new(to.1)?, mode };
    done_reply(core.call(from.0.target(), &ctx.cred, op).await?)
}

pub(crate) async fn readlink(core: Arc<Core>, ctx: Ctx, ino: Ino) -> Result<Vec<u8>> {
    core.stats.count(Count::ReadLink);
    match core.call(ino.target(), &ctx.cred, Request::ReadLink { ino }).await? {
        Reply::Bytes(bytes) => Ok(bytes),
        other => Err(unexpected(&other)),
    }
}
