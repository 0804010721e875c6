//! Extended attributes: the stored ones, the virtual ones of files and directories, and the hidden control attributes.
//!
//! Virtual attributes, which users with permission can read and set: `user.amphi.layout` (`striped,size=1M,count=4`,
//! `growing`, `whole`), `user.amphi.mode` (`auto`, `buffered`, `direct`), `user.amphi.kernel_cache` and
//! `user.amphi.checksums` (`auto`, `on`, `off`); `user.amphi.shards` of directories (a number or `all`, shown as the
//! targets of the shards, or `none`); `user.amphi.counters` and `.counters.json` (read only: requests by
//! reason, locks and messages of a file that is open or cached here), `user.amphi.portrait` (JSON, a summary of its
//! requests), `user.amphi.extents` and `user.amphi.unstable` (read only: where its bytes are and which are not stable,
//! see `extents`); quota attributes (see `quota`). None of them is listed, because a program that copies all attributes
//! of a file must not copy its placement, nor fail on another file system. Hidden attributes, on any inode, for root
//! and the owner of the mount: see `control`.

mod control;
mod extents;
mod hot_files;
mod layout;
pub(crate) mod quota;
mod record;

use super::known;
use crate::api::Ctx;
use crate::coherence::attributes;
use crate::coherence::bare;
use crate::coherence::shards;
use crate::coherence::sharing;
use crate::coherence::tokens;
use crate::conn::replies::unexpected;
use crate::conn::replies::{done_reply, inode_reply};
use crate::inode::Inode;
use crate::mount::Mount;
use crate::ops::attr;
use crate::telemetry::stats::Count;
use crate::writeback::flush;
use amphi_dlm::TokenKey;
use amphi_types::{AskedAdvice, ByteRange, Consistency, Errno, Ino, Kind, Result, limits};
use amphi_wire::{InodeView, Reply, Request, XattrMode};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PREFIX: &[u8] = b"user.amphi.";
const EXTENTS: &[u8] = b"extents";
/// The attribute that gives capabilities to programs that run a file.
const CAPABILITY: &[u8] = b"security.capability";

async fn view(mount: &Arc<Mount>, ctx: &Ctx, ino: Ino) -> Result<InodeView> {
    attributes::ask(mount, &ctx.cred, ino).await.map(|(view, _)| view)
}

/// Bytes of a file that is open here which would not survive a loss of power.
async fn unstable(mount: &Arc<Mount>, ctx: &Ctx, ino: Ino) -> Result<extents::UnstableBytes> {
    let view = view(mount, ctx, ino).await?;
    if view.attr.kind != Kind::File {
        return Err(Errno::NoData);
    }
    extents::UnstableBytes::of(mount, &view).await
}

fn has_layout(view: &InodeView) -> bool {
    matches!(view.attr.kind, Kind::File | Kind::Dir)
}

pub(crate) async fn get(mount: Arc<Mount>, ctx: Ctx, ino: Ino, name: Vec<u8>) -> Result<Vec<u8>> {
    mount.stats.count(Count::Xattr);
    if let Some(own) = name.strip_prefix(PREFIX) {
        return match own {
            b"layout" | b"mode" | b"kernel_cache" | b"checksums" | b"consistency" => {
                let view = view(&mount, &ctx, ino).await?;
                if !has_layout(&view) {
                    return Err(Errno::NoData);
                }
                Ok(match own {
                    b"mode" => layout::mode_text(view.advice.mode()).into(),
                    b"kernel_cache" => layout::kernel_cache_text(view.advice.kernel_cache()).into(),
                    b"checksums" => layout::checksums_text(view.advice.checksums()).into(),
                    b"consistency" => {
                        let all = mount.policy.commit.then_some(Consistency::Commit);
                        layout::consistency_text(all.unwrap_or(view.advice.consistency())).into()
                    }
                    _ => layout::text(&view.layout).into(),
                })
            }
            b"shards" | b"subdirectories" => {
                let view = view(&mount, &ctx, ino).await?;
                if view.attr.kind != Kind::Dir {
                    return Err(Errno::NoData);
                }
                if own == b"subdirectories" {
                    return Ok(layout::subdirectories_text(view.advice.subdirectories()).into());
                }
                let shards = if view.sharded { shards::of(&mount, &ctx.cred, ino).await? } else { None };
                Ok(layout::shards_text(shards.as_deref().unwrap_or_default()).into())
            }
            b"counters" | b"counters.json" => {
                let known = mount.files.get(ino);
                let dirty = known.as_ref().map_or(0, |file| file.cached.dirty_bytes.load(Ordering::Relaxed));
                let servers = match known.as_ref().filter(|file| file.open_count() > 0) {
                    Some(file) => extents::UnstableBytes::of(&mount, &file.view()).await.ok(),
                    None => None,
                };
                let servers = servers.map(|unstable| (unstable.accepted, unstable.unsynced));
                let stats = known.map(|file| file.stats.clone()).or_else(|| mount.files.closed.get(ino));
                let stats = stats.ok_or(Errno::NoData)?;
                let text = if own == b"counters" { stats.text(dirty, servers) } else { stats.json(dirty, servers) };
                Ok(text.into_bytes())
            }
            b"portrait" => {
                let known = mount.files.get(ino).map(|file| file.stats.clone());
                let stats = known.or_else(|| mount.files.closed.get(ino)).ok_or(Errno::NoData)?;
                Ok(stats.portrait_json().into_bytes())
            }
            b"unstable" => unstable(&mount, &ctx, ino).await.map(|unstable| unstable.json().into_bytes()),
            own if own.starts_with(EXTENTS) => {
                let view = view(&mount, &ctx, ino).await?;
                if view.attr.kind != Kind::File {
                    return Err(Errno::NoData);
                }
                let of = std::str::from_utf8(&own[EXTENTS.len()..]).map_err(|_| Errno::NoData)?;
                let of = if of.is_empty() { None } else { Some(of.strip_prefix('.').ok_or(Errno::NoData)?) };
                extents::get(&mount, &view, of).await
            }
            own if quota::is_own(own) => quota::get(&mount, &ctx, ino, own).await,
            own if record::is_block(own) => record::get(&mount, &ctx, own),
            own => control::get(&mount, &ctx, own).await,
        };
    }
    // The kernel requests `security.capability` with each change of owner, and the access control lists of each inode
    // that a caller does not own. Programs request `security.selinux` of each file that they list.
    if (name.starts_with(b"security.") || name.starts_with(b"system.")) && has_none(&mount, ino) {
        return Err(Errno::NoData);
    }
    match mount.call(ino.target(), &ctx.cred, Request::GetXattr { ino, name: name.clone() }).await {
        Ok(Reply::Bytes(value)) => Ok(value),
        Ok(other) => Err(unexpected(&other)),
        Err(Errno::Stale) => mount.coherence.unlinked.xattr(ino, &name),
        Err(e) => Err(e),
    }
}

/// Returns whether an inode is known to have no extended attributes.
fn has_none(mount: &Mount, ino: Ino) -> bool {
    let file = || mount.files.get(ino).filter(|f| f.open_count() > 0 && tokens::is_sure(mount, f));
    bare::is_bare(mount, ino) || tokens::lacks_xattrs(mount, ino) || file().is_some_and(|f| !f.view().xattrs)
}

pub(crate) async fn list(mount: Arc<Mount>, ctx: Ctx, ino: Ino) -> Result<Vec<u8>> {
    mount.stats.count(Count::Xattr);
    if has_none(&mount, ino) {
        return Ok(Vec::new());
    }
    match mount.call(ino.target(), &ctx.cred, Request::ListXattr { ino }).await {
        Ok(Reply::Bytes(names)) => Ok(names),
        Ok(other) => Err(unexpected(&other)),
        Err(Errno::Stale) => mount.coherence.unlinked.xattr_names(ino),
        Err(e) => Err(e),
    }
}

pub(crate) async fn set(
    mount: Arc<Mount>,
    ctx: Ctx,
    ino: Ino,
    name: Vec<u8>,
    value: Vec<u8>,
    mode: XattrMode,
) -> Result<()> {
    mount.stats.count(Count::Xattr);
    if name.len() > limits::XATTR_NAME_MAX {
        return Err(Errno::Range);
    }
    if value.len() > limits::XATTR_VALUE_MAX {
        return Err(Errno::TooBig);
    }
    if let Some(own) = name.strip_prefix(PREFIX) {
        let text = std::str::from_utf8(&value).map_err(|_| Errno::Inval)?.trim_end_matches(['\0', '\n']);
        let op = match own {
            b"layout" => {
                // A file with data keeps its layout: the server has to know the bytes that are written so far.
                if let Some(known) = known::use_known(&mount, ino) {
                    flush::flush(&mount, known.file(), ByteRange::ALL).await;
                }
                let old = view(&mount, &ctx, ino).await?.layout;
                let layout = layout::parse(text, old).map_err(|text| mount.complain(text))?;
                Request::SetLayout { ino, layout: Some(layout), advice: None }
            }
            b"mode" => {
                let mode = layout::mode_of(text).ok_or_else(|| mount.complain(format!("{text:?} is no I/O mode")))?;
                Request::SetLayout { ino, layout: None, advice: Some(AskedAdvice::Mode(mode)) }
            }
            b"kernel_cache" => {
                let asked = layout::kernel_cache_of(text)
                    .ok_or_else(|| mount.complain(format!("{text:?} is none of auto, on, off")))?;
                Request::SetLayout { ino, layout: None, advice: Some(AskedAdvice::KernelCache(asked)) }
            }
            b"checksums" => {
                let asked = layout::checksums_of(text)
                    .ok_or_else(|| mount.complain(format!("{text:?} is none of auto, on, off")))?;
                Request::SetLayout { ino, layout: None, advice: Some(AskedAdvice::Checksums(asked)) }
            }
            b"consistency" => {
                let asked = layout::consistency_of(text)
                    .ok_or_else(|| mount.complain(format!("{text:?} is none of posix, commit")))?;
                Request::SetLayout { ino, layout: None, advice: Some(AskedAdvice::Consistency(asked)) }
            }
            b"shards" => {
                let count = layout::shards_of(text).map_err(|text| mount.complain(text))?;
                return shards::give(&mount, &ctx.cred, ino, count).await.map(drop);
            }
            b"subdirectories" => {
                let asked = layout::subdirectories_of(text)
                    .ok_or_else(|| mount.complain(format!("{text:?} is none of plain, sharded")))?;
                if view(&mount, &ctx, ino).await?.attr.kind != Kind::Dir {
                    return Err(Errno::NotDir);
                }
                Request::SetLayout { ino, layout: None, advice: Some(AskedAdvice::Subdirectories(asked)) }
            }
            own if quota::is_own(own) => return quota::set(&mount, &ctx, ino, own, text).await,
            b"record" => return record::set(&mount, &ctx, text),
            own => return control::set(&mount, &ctx, own, text).await,
        };
        let mut told = change(&mount, &ctx, ino, op).await?;
        let view = inode_reply(told.take()?)?;
        told.keep_view(view);
        return Ok(());
    }
    let gives_capabilities = name == CAPABILITY;
    let note = || {
        if let Some(file) = mount.files.get(ino) {
            file.has_xattrs(gives_capabilities);
        }
    };
    note();
    let op = Request::SetXattr { ino, name: name.clone(), value: value.clone(), mode };
    let begun = if gives_capabilities { sharing::begin(&mount) } else { None };
    let _pins = match gives_capabilities && begun.is_none() {
        true => attr::written_back(&mount, &ctx.cred, ino, mount.files.get(ino).as_ref()).await?,
        false => Vec::new(),
    };
    let mut told = change(&mount, &ctx, ino, op).await?;
    let done = told.take().and_then(|reply| changed_reply(&told, reply));
    // An answer to an earlier request may have arrived meanwhile.
    note();
    match done {
        Err(Errno::Stale) => mount.coherence.unlinked.set_xattr(ino, name, value, mode),
        done => done,
    }
}

pub(crate) async fn remove(mount: Arc<Mount>, ctx: Ctx, ino: Ino, name: Vec<u8>) -> Result<()> {
    mount.stats.count(Count::Xattr);
    if name.starts_with(PREFIX) {
        return Err(Errno::Perm);
    }
    let op = Request::RemoveXattr { ino, name: name.clone() };
    let mut told = change(&mount, &ctx, ino, op).await?;
    match told.take().and_then(|reply| changed_reply(&told, reply)) {
        Err(Errno::Stale) => mount.coherence.unlinked.remove_xattr(ino, &name),
        done => done,
    }
}

/// The answer to a change. A change of an access control list also returns the resulting permissions.
fn changed_reply(told: &tokens::Told, reply: Reply) -> Result<()> {
    match reply {
        Reply::Inode(view) => {
            told.keep_view(view);
            Ok(())
        }
        reply => done_reply(reply),
    }
}

/// Removes the file's capabilities, because its bytes are about to change.
pub(crate) async fn drop_capability(mount: &Arc<Mount>, file: &Inode) -> Result<()> {
    let op = Request::RemoveXattr { ino: file.ino, name: CAPABILITY.to_vec() };
    let mut told = change(mount, &Ctx::root(), file.ino, op).await?;
    match told.take() {
        Ok(_) | Err(Errno::NoData) => {
            file.lose_capability(told.asked_at);
            Ok(())
        }
        Err(e) => Err(e),
    }
}

async fn change(mount: &Arc<Mount>, ctx: &Ctx, ino: Ino, op: Request) -> Result<tokens::Told> {
    tokens::call(mount, ino.target(), &ctx.cred, op, &[TokenKey::Attributes(ino)]).await
}
