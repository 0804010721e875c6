//! Directories whose names lie in shards: learning of them, and joining what their shards say.
//!
//! Owns: asking for shards, and the attributes of such a directory. Does not own: the table (`tables::coherence`), the
//! operations on names, which go to the shard of the name.
//!
//! A shard is a directory of its own to all of this mount's tables: tokens, names and attributes are cached of shards.
//! Programs and the kernel see only the directory. The permissions and owners of the directory are its own, and each
//! shard has a copy of them. Links and times of changes are joined. The result describes one moment only if all shards
//! are known at the same time. In shared mode, a `stat` during which a sub-directory is renamed from one shard to
//! another may count it twice or not at all.

use crate::api::Ctx;
use crate::coherence::new_directories::Making;
use crate::coherence::{attributes, directories, tokens};
use crate::conn::replies::{inode_reply, unexpected};
use crate::mount::Mount;
use amphi_types::{Attr, Cred, Errno, Ino, Kind, Result, Timespec, TokenKey};
use amphi_wire::{Reply, Request};
use futures_util::future::join_all;
use std::sync::Arc;

/// The shards of a directory, which are asked for if they are not known. `None`: the directory has no shards, so its
/// names lie in itself.
pub(crate) async fn of(mount: &Arc<Mount>, cred: &Cred, dir: Ino) -> Result<Option<Arc<[Ino]>>> {
    if let Some(shards) = mount.coherence.shards.of(dir) {
        return Ok(Some(shards));
    }
    match mount.call(dir.target(), cred, Request::Shards { dir }).await? {
        Reply::Shards(shards) if shards.is_empty() => Ok(None),
        Reply::Shards(shards) => {
            // Names that this mount makes are names of shards from now on.
            mount.coherence.new_directories.removed(dir);
            let shards: Arc<[Ino]> = shards.into();
            mount.coherence.shards.insert(dir, shards.clone());
            Ok(Some(shards))
        }
        other => Err(unexpected(&other)),
    }
}

/// Gives an empty directory this many shards; 0 means one on each target. In sole mode the client then knows which
/// names the shards lack, as with a directory that this mount has made. Returns the attributes of the directory.
pub(crate) async fn give(mount: &Arc<Mount>, cred: &Cred, dir: Ino, count: u16) -> Result<Attr> {
    let mut making = Making::begin(mount);
    let op = Request::SetShards { ino: dir, count };
    let mut told = tokens::call(mount, dir.target(), cred, op, &[TokenKey::Attributes(dir)]).await?;
    let view = inode_reply(told.take()?)?;
    let attr = told.keep_view(view);
    drop(told);
    // The shards exist, whether this mount knows their places or not.
    if let (Some(making), Ok(Some(shards))) = (&mut making, of(mount, cred, dir).await) {
        making.made(&shards);
    }
    Ok(attr)
}

/// Gives a new directory one shard on each target, as the setting of its parent directory says. Returns the directory's
/// attributes, which were `made` before. If that fails, the directory keeps its names on one target: another mount may
/// have made the first name meanwhile, or there may be no room for so many inodes.
pub(crate) async fn give_new(mount: &Arc<Mount>, ctx: &Ctx, made: Attr) -> Attr {
    match give(mount, &ctx.cred, made.ino, 0).await {
        Ok(attr) => attr,
        Err(e) => {
            tracing::debug!(dir = %made.ino, "the new directory gets no shards: {e}");
            made
        }
    }
}

/// Called after a server has refused names of these directories (`Remote`): requests their shards.
///
/// Errors: `Proto` if none of them has shards.
pub(crate) async fn learn(mount: &Arc<Mount>, cred: &Cred, dirs: &[Ino]) -> Result<()> {
    let mut any = false;
    for &dir in dirs {
        any |= of(mount, cred, dir).await?.is_some();
    }
    if any { Ok(()) } else { Err(Errno::Proto) }
}

/// A directory as programs see it, joined from its attributes and those of its shards. The mtime of a shard is 0 unless
/// its names have changed since an mtime was set explicitly.
fn joined(own: Attr, shards: &[Attr]) -> Attr {
    let mut attr = own;
    let changed = shards.iter().map(|shard| shard.mtime).max().filter(|mtime| *mtime > Timespec::default());
    attr.mtime = changed.unwrap_or(own.mtime);
    for shard in shards {
        attr.ctime = attr.ctime.max(shard.ctime);
        attr.nlink = attr.nlink.saturating_add(shard.nlink.saturating_sub(2));
    }
    attr
}

/// The attributes that a program gets for an inode, computed from those that an answer has just shown.
pub(crate) async fn shown(mount: &Arc<Mount>, ctx: &Ctx, attr: Attr) -> Result<Attr> {
    if attr.kind != Kind::Dir || !mount.coherence.shards.has(attr.ino) {
        return Ok(attr);
    }
    let Some(shards) = of(mount, &ctx.cred, attr.ino).await? else { return Ok(attr) };
    let asked = shards.iter().map(|&shard| async move {
        match tokens::attr(mount, shard) {
            Some(attr) => Ok(attr),
            None => attributes::ask(mount, &ctx.cred, shard).await.map(|(_, attr)| attr),
        }
    });
    let told: Result<Vec<Attr>> = join_all(asked).await.into_iter().collect();
    Ok(joined(attr, &told?))
}

/// Works as `shown`, from attributes that are cached under tokens; sends no request.
pub(crate) fn known(mount: &Mount, dir: Ino) -> Option<Attr> {
    let shards = mount.coherence.shards.of(dir)?;
    let own = directories::own(mount, dir).or_else(|| Some(tokens::view(mount, dir)?.attr))?;
    let told: Option<Vec<Attr>> = shards.iter().map(|shard| tokens::attr(mount, *shard)).collect();
    Some(joined(own, &told?))
}
