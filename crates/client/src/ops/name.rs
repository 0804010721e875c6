//! Operations on names: lookup, mknod, mkdir, symlink, link, unlink, rmdir, rename, readlink.
//!
//! In sole mode names are not cached here, because the front end may cache them for a while. However, the client knows
//! when a name does not exist in a directory that this mount has made (`coherence::new_directories`). In shared mode
//! names are cached under tokens.

use crate::api::Ctx;
use crate::coherence::attributes;
use crate::coherence::new_directories;
use crate::coherence::shards;
use crate::coherence::tokens::{self, Found, Told, name_keys};
use crate::conn::replies::inode_reply;
use crate::conn::replies::unexpected;
use crate::locks;
use crate::mount::Mount;
use crate::prefetch::small_files;
use crate::telemetry::stats::Count;
use crate::writeback::release::nameless;
use amphi_dlm::TokenKey;
use amphi_types::{Advice, Attr, Errno, Ino, Kind, Name, Result, Subdirectories, limits};
use amphi_wire::{Make, RenameMode, Reply, Request};
use std::sync::Arc;

pub(crate) async fn lookup(mount: Arc<Mount>, ctx: Ctx, dir: Ino, name: Vec<u8>) -> Result<Attr> {
    match &name[..] {
        b"." => {
            // The inode was requested by a handle, which is stale when the inode is gone, also for programs that still
            // see its last attributes.
            mount.stats.count(Count::GetAttr);
            let (_, attr) = attributes::ask(&mount, &ctx.cred, dir).await?;
            return shards::shown(&mount, &ctx, attr).await;
        }
        b".." => {
            let parent = parent(&mount, &ctx, dir).await?;
            return super::attr::getattr(mount, ctx, parent).await;
        }
        _ => {}
    }
    let name = Name::new(name)?;
    loop {
        let at = mount.coherence.shards.place(dir, &name);
        match lookup_at(&mount, &ctx, at, name.clone()).await {
            Err(Errno::Remote) if at == dir => shards::learn(&mount, &ctx.cred, &[dir]).await?,
            answer => return shards::shown(&mount, &ctx, answer?).await,
        }
    }
}

/// Works as `lookup`, in the directory or shard in which the name lies. Errors: `Remote` if it lies in a shard.
async fn lookup_at(mount: &Arc<Mount>, ctx: &Ctx, dir: Ino, name: Name) -> Result<Attr> {
    if let Some(found) = tokens::find(mount, &ctx.cred, dir, name.as_bytes()) {
        match found {
            Found::Answer(result) => return result,
            Found::Inode(ino) => match attributes::ask(mount, &ctx.cred, ino).await {
                // The inode has gone meanwhile.
                Err(Errno::NoEnt | Errno::Stale) => {}
                result => return result.map(|(_, attr)| attr),
            },
        }
    }
    if new_directories::lacks(mount, &ctx.cred, dir, &name) {
        return Err(Errno::NoEnt);
    }
    if small_files::name_arrived(mount, dir, &name).await {
        if let Some(attr) = small_files::find(mount, &ctx.cred, dir, name.as_bytes()) {
            return Ok(attr);
        }
        if let Some(Found::Answer(result)) = tokens::find(mount, &ctx.cred, dir, name.as_bytes()) {
            return result;
        }
    }
    mount.stats.count(Count::Lookup);
    let op = Request::Lookup { dir, name: name.clone() };
    let mut tries = 0;
    loop {
        let mut told = tokens::call(mount, dir.target(), &ctx.cred, op.clone(), &[]).await?;
        match told.take().and_then(inode_reply) {
            Ok(view) => {
                told.keep_name(dir, &name, Some(view.attr.ino));
                let (attr, taken) = told.keep_size(view);
                small_files::looked_up(mount, dir, &attr);
                if taken {
                    return Ok(attr);
                }
                tries += 1;
                if tries == attributes::TRIES {
                    match attributes::ask_now(mount, &ctx.cred, attr.ino).await {
                        // The name has been removed, or leads to another file now.
                        Err(Errno::NoEnt | Errno::Stale) => tries = 0,
                        result => return result.map(|(_, attr)| attr),
                    }
                }
            }
            Err(e) => {
                if e == Errno::NoEnt {
                    told.keep_name(dir, &name, None);
                }
                return Err(e);
            }
        }
    }
}

/// Calls with a change of one name in `dir`, which `op` makes of where the name lies. Returns the directory or shard as
/// well.
pub(super) async fn change(
    mount: &Arc<Mount>,
    ctx: &Ctx,
    dir: Ino,
    name: &Name,
    op: impl Fn(Ino, Name) -> Request,
) -> Result<(Told, Ino)> {
    loop {
        let at = mount.coherence.shards.place(dir, name);
        let told = tokens::call(mount, at.target(), &ctx.cred, op(at, name.clone()), &name_keys(at, name)).await?;
        if at != dir || !matches!(told.result, Err(Errno::Remote)) {
            return Ok((told, at));
        }
        drop(told);
        shards::learn(mount, &ctx.cred, &[dir]).await?;
    }
}

/// The directory above `dir`.
pub(crate) async fn parent(mount: &Arc<Mount>, ctx: &Ctx, dir: Ino) -> Result<Ino> {
    let mut dir = dir;
    loop {
        dir = match mount.call(dir.target(), &ctx.cred, Request::Parent { dir }).await? {
            Reply::Ino(parent) => parent,
            other => return Err(unexpected(&other)),
        };
        // The parent of a shard is the directory to which it belongs.
        if !dir.is_shard() {
            return Ok(dir);
        }
    }
}

async fn make(mount: &Arc<Mount>, ctx: &Ctx, dir: Ino, name: Vec<u8>, make: Make, perm: u16) -> Result<(Attr, Advice)> {
    let name = new_name(name)?;
    let op = |dir, name| Request::Make { dir, name, make: make.clone(), perm: perm & 0o7777, umask: ctx.umask };
    let (mut told, at) = change(mount, ctx, dir, &name, op).await?;
    match told.take()? {
        Reply::Made { inode, .. } => {
            told.keep_name(at, &name, Some(inode.attr.ino));
            Ok((told.keep_view(inode), inode.advice))
        }
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

pub(crate) async fn mknod(mount: Arc<Mount>, ctx: Ctx, dir: Ino, name: Vec<u8>, mode: u32, rdev: u32) -> Result<Attr> {
    mount.stats.count(Count::MkNod);
    let perm = (mode & 0o7777) as u16;
    let what = match Kind::from_mode(mode) {
        None if mode & 0o170000 == 0 => Make::File { open: None, exclusive: true },
        Some(Kind::File) => Make::File { open: None, exclusive: true },
        Some(Kind::Dir | Kind::Symlink) | None => return Err(Errno::Inval),
        Some(kind) => Make::Node { kind, rdev },
    };
    Ok(make(&mount, &ctx, dir, name, what, perm).await?.0)
}

pub(crate) async fn mkdir(mount: Arc<Mount>, ctx: Ctx, dir: Ino, name: Vec<u8>, perm: u16) -> Result<Attr> {
    mount.stats.count(Count::MkDir);
    let (made, advice) = make(&mount, &ctx, dir, name, Make::Dir, perm).await?;
    if advice.subdirectories() == Subdirectories::Sharded && mount.cluster.pool() > 1 {
        return Ok(shards::give_new(&mount, &ctx, made).await);
    }
    Ok(made)
}

pub(crate) async fn symlink(mount: Arc<Mount>, ctx: Ctx, dir: Ino, name: Vec<u8>, to: Vec<u8>) -> Result<Attr> {
    mount.stats.count(Count::Symlink);
    if to.is_empty() {
        return Err(Errno::NoEnt);
    }
    if to.len() > limits::SYMLINK_MAX {
        return Err(Errno::NameTooLong);
    }
    Ok(make(&mount, &ctx, dir, name, Make::Symlink(to), 0o777).await?.0)
}

pub(crate) async fn link(mount: Arc<Mount>, ctx: Ctx, ino: Ino, dir: Ino, name: Vec<u8>) -> Result<Attr> {
    mount.stats.count(Count::Link);
    let name = new_name(name)?;
    let op = |dir, name| Request::Link { ino, dir, name };
    let (mut told, at) = change(&mount, &ctx, dir, &name, op).await?;
    let view = inode_reply(told.take()?)?;
    told.keep_name(at, &name, Some(ino));
    Ok(attributes::shown(&mount, &ctx.cred, told, view).await)
}

/// The inode that has lost its last name.
fn removed(reply: Reply) -> Result<Option<Ino>> {
    match reply {
        Reply::Removed { last_name_of } => Ok(last_name_of),
        other => Err(unexpected(&other)),
    }
}

pub(crate) async fn unlink(mount: Arc<Mount>, ctx: Ctx, dir: Ino, name: Vec<u8>) -> Result<()> {
    mount.stats.count(Count::Unlink);
    if name == b"." || name == b".." {
        return Err(Errno::IsDir);
    }
    let name = Name::new(name)?;
    let (mut told, _) = change(&mount, &ctx, dir, &name, |dir, name| Request::Unlink { dir, name }).await?;
    if let Some(ino) = removed(told.take()?)? {
        nameless(&mount, ino);
        locks::nameless(&mount, ino);
    }
    Ok(())
}

pub(crate) async fn rmdir(mount: Arc<Mount>, ctx: Ctx, dir: Ino, name: Vec<u8>) -> Result<()> {
    mount.stats.count(Count::RmDir);
    match &name[..] {
        b"." => return Err(Errno::Inval),
        b".." => return Err(Errno::NotEmpty),
        _ => {}
    }
    let name = Name::new(name)?;
    let (mut told, _) = change(&mount, &ctx, dir, &name, |dir, name| Request::RmDir { dir, name }).await?;
    if let Some(ino) = removed(told.take()?)? {
        mount.coherence.shards.removed(ino);
    }
    Ok(())
}

pub(crate) async fn rename(
    mount: Arc<Mount>,
    ctx: Ctx,
    from: (Ino, Vec<u8>),
    to: (Ino, Vec<u8>),
    mode: RenameMode,
) -> Result<()> {
    mount.stats.count(Count::Rename);
    let dots = |name: &[u8]| name == b"." || name == b"..";
    if dots(&from.1) || dots(&to.1) {
        let is_new = matches!(mode, RenameMode::NoReplace | RenameMode::NewWhiteout);
        return Err(if is_new && dots(&to.1) { Errno::Exist } else { Errno::Busy });
    }
    let (from_name, to_name) = (Name::new(from.1)?, Name::new(to.1)?);
    let told = loop {
        let from_at = mount.coherence.shards.place(from.0, &from_name);
        let to_at = mount.coherence.shards.place(to.0, &to_name);
        // Keys of another target are revoked from all mounts by that target.
        let here = |key: &TokenKey| key.target() == from_at.target();
        let keys = name_keys(from_at, &from_name).into_iter().chain(name_keys(to_at, &to_name));
        let keys: Vec<TokenKey> = keys.filter(here).collect();
        let (from_name, to_name) = (from_name.clone(), to_name.clone());
        let op = Request::Rename { from: from_at, from_name, to: to_at, to_name, mode };
        let mut told = tokens::call(&mount, from_at.target(), &ctx.cred, op, &keys).await?;
        match told.take() {
            Err(Errno::Remote) => {
                drop(told);
                shards::learn(&mount, &ctx.cred, &[from.0, to.0]).await?;
            }
            answer => break answer?,
        }
    };
    if let Some(ino) = removed(told)? {
        mount.coherence.shards.removed(ino);
        nameless(&mount, ino);
        locks::nameless(&mount, ino);
    }
    Ok(())
}

pub(crate) async fn readlink(mount: Arc<Mount>, ctx: Ctx, ino: Ino) -> Result<Vec<u8>> {
    mount.stats.count(Count::ReadLink);
    match mount.call(ino.target(), &ctx.cred, Request::ReadLink { ino }).await? {
        Reply::Bytes(bytes) => Ok(bytes),
        other => Err(unexpected(&other)),
    }
}
