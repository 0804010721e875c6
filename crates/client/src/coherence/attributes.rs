//! Asking for an inode: its attributes, its size, where it ends.
//!
//! Owns: how what the server says and what only this client knows come together. Does not own: when a question is due
//! (`ops`), the answer's tokens (`tokens`).

use crate::coherence::tokens::{self, Told};
use crate::conn::replies::inode_reply;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::telemetry::stats::Count;
use amphi_types::{Attr, ByteRange, Cred, Ino, Kind, Result};
use amphi_wire::{InodeView, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// How often the size is asked for as if nothing of this mount came between question and answer; then its own changes
/// are asked for too.
pub(crate) const TRIES: usize = 4;
/// Asks for an inode. Returns what the server says, and the attributes with what only this client knows.
///
/// `Inode::size` is what the attributes say, unless changes of this mount's own keep coming: then it is left alone, and
/// the size returned was the file's at some moment of the call.
pub(crate) async fn ask(mount: &Arc<Mount>, cred: &Cred, ino: Ino) -> Result<(InodeView, Attr)> {
    match ask_settled(mount, cred, ino).await? {
        Some(answer) => Ok(answer),
        None => ask_now(mount, cred, ino).await,
    }
}

/// As `ask`, but `None` if changes of this mount's own keep coming; otherwise `Inode::size` is what the attributes say.
async fn ask_settled(mount: &Arc<Mount>, cred: &Cred, ino: Ino) -> Result<Option<(InodeView, Attr)>> {
    for _ in 0..TRIES {
        let mut told = tokens::call(mount, ino.target(), cred, Request::GetAttr { ino }, &[]).await?;
        let view = inode_reply(told.take()?)?;
        let (attr, taken) = told.keep_size(view);
        if taken {
            return Ok(Some((view, attr)));
        }
    }
    Ok(None)
}

/// As `ask`, for a file that this mount itself changes all the time: the server asks it for its own changes, as it asks
/// others.
pub(crate) async fn ask_now(mount: &Arc<Mount>, cred: &Cred, ino: Ino) -> Result<(InodeView, Attr)> {
    loop {
        mount.stats.count(Count::GetAttrNow);
        let mut told = tokens::call(mount, ino.target(), cred, Request::GetAttrNow { ino }, &[]).await?;
        let view = inode_reply(told.take()?)?;
        let (mut attr, taken) = told.keep_size(view);
        if taken {
            return Ok((view, attr));
        }
        let rule = told.asked_at.rule();
        if mount.coherence.sharing.rule() != rule {
            // Whether locks tell the server what is here has changed meanwhile.
            continue;
        }
        let alone = rule & 1 == 1;
        // Alone there are no locks by which the server could ask, and nobody else who changes the file.
        let own = mount.files.get(ino).filter(|_| alone).map_or(0, |file| file.own_end());
        attr.size = view.attr.size.max(own);
        return Ok((view, attr));
    }
}

/// The attributes that an answer to something else than a question shows. If changes of this mount's own came in
/// between, so that its size is not taken, they are asked for.
pub(crate) async fn shown(mount: &Arc<Mount>, cred: &Cred, told: Told, view: InodeView) -> Attr {
    let (attr, taken) = told.keep_size(view);
    drop(told);
    if taken || view.attr.kind != Kind::File {
        return attr;
    }
    // What was done is done, whatever becomes of the question.
    ask(mount, cred, view.attr.ino).await.map_or(attr, |(_, fresh)| fresh)
}

/// Asks for the inode again after the server knew better: truncated or changed elsewhere.
pub(crate) async fn reload(mount: &Arc<Mount>, file: &Arc<Inode>) -> Result<()> {
    ask(mount, &Cred::root(), file.ino).await.map(|_| ())
}

/// The size of the file now: of the moment of the call or later. It stays true while the caller holds locks beyond
/// which nobody can change it.
pub(crate) async fn size_now(mount: &Arc<Mount>, file: &Arc<Inode>) -> Result<u64> {
    if tokens::is_sure(mount, file) || knows_end(mount, file) {
        return Ok(file.size());
    }
    ask(mount, &Cred::root(), file.ino).await.map(|(_, attr)| attr.size)
}

/// The end of the file now. `locked`: the caller has pinned write locks on all of every object, so that no other mount
/// changes it; then it stays known as long as this one keeps these locks.
pub(crate) async fn end_now(mount: &Arc<Mount>, file: &Arc<Inode>, locked: bool) -> Result<u64> {
    if knows_end(mount, file) {
        return Ok(file.size());
    }
    let known = match tokens::is_sure(mount, file) {
        true => Some(file.size()),
        false => ask_settled(mount, &Cred::root(), file.ino).await?.map(|(_, attr)| attr.size),
    };
    match known {
        Some(end) => {
            // Members of a group on other mounts move the end, too.
            if locked && file.group.id() == 0 {
                file.locks.end_kept.store(true, SeqCst);
            }
            Ok(end)
        }
        None => ask_now(mount, &Cred::root(), file.ino).await.map(|(_, attr)| attr.size),
    }
}

/// Whether `Inode::size` is the end of the file: alone once it was asked for, with other mounts as long as this one has
/// kept the write locks under which it was asked for.
pub(crate) fn knows_end(mount: &Mount, file: &Inode) -> bool {
    if mount.coherence.sharing.is_alone() {
        return tokens::is_sure(mount, file);
    }
    file.locks.end_kept.load(SeqCst)
        && file.group.id() == 0
        && file.covers_stripes(file.all_stripe_bits())
        && mount.coherence.sharing.leases.in_touch_for(mount.clock.boot_ns(), file, ByteRange::ALL)
}
