//! Requests for an inode: its attributes, its size, and where it ends.
//!
//! Owns: the rule that joins the server's answer with the knowledge of this mount alone, which is the end of its own
//! bytes. Does not own: when a request is due (`ops`), the tokens of the answer (`tokens`).

use crate::coherence::tokens::{self, Told};
use crate::conn::replies::inode_reply;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::telemetry::stats::Count;
use amphi_types::{Attr, ByteRange, Cred, Ino, Kind, Result};
use amphi_wire::{InodeView, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The number of times that the size is requested in the hope that this mount makes no change between request and
/// answer. After that the server is asked to include this mount's own changes (`GetAttrNow`).
pub(crate) const TRIES: usize = 4;
/// Requests an inode. Returns the server's answer, and the attributes joined with what only this mount knows.
///
/// Afterwards `Inode::size` is the size in the attributes. There is one exception: if changes of this mount keep
/// coming, `Inode::size` is not touched, and the returned size is one that the file had at a moment of the call.
pub(crate) async fn ask(mount: &Arc<Mount>, cred: &Cred, ino: Ino) -> Result<(InodeView, Attr)> {
    match ask_settled(mount, cred, ino).await? {
        Some(answer) => Ok(answer),
        None => ask_now(mount, cred, ino).await,
    }
}

/// Works as `ask`, but `None` if changes of this mount keep coming. Otherwise `Inode::size` is the size in the
/// attributes.
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

/// Works as `ask`, for a file that this mount itself changes all the time: the server sends a glimpse to this mount as
/// well.
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
            // The caching mode has changed meanwhile. It determines whether the server can learn this mount's bytes
            // from locks.
            continue;
        }
        let alone = rule & 1 == 1;
        // In sole mode there are no locks for which the server could send a glimpse, and no other mount changes the
        // file. In shared mode, unfinished writes that were sent without a lock have no such lock either.
        let own = |file: Arc<Inode>| if alone { file.size.own_end() } else { file.size.unfinished_end() };
        attr.size = view.attr.size.max(mount.files.get(ino).map_or(0, own));
        return Ok((view, attr));
    }
}

/// Returns the attributes in the answer to another request than one for attributes. If this mount changed the file
/// meanwhile, the size in the answer is not used, and the attributes are requested again.
pub(crate) async fn shown(mount: &Arc<Mount>, cred: &Cred, told: Told, view: InodeView) -> Attr {
    let (attr, taken) = told.keep_size(view);
    drop(told);
    if taken || view.attr.kind != Kind::File {
        return attr;
    }
    // The operation itself has succeeded, whether this request for attributes succeeds or not.
    ask(mount, cred, view.attr.ino).await.map_or(attr, |(_, fresh)| fresh)
}

/// Requests the inode again after a server's answer showed that it was truncated or changed elsewhere.
pub(crate) async fn reload(mount: &Arc<Mount>, file: &Arc<Inode>) -> Result<()> {
    ask(mount, &Cred::root(), file.ino).await.map(|_| ())
}

/// The size of the file at the moment of the call or later. The size remains right while the caller holds locks that
/// prevent others from changing it.
pub(crate) async fn size_now(mount: &Arc<Mount>, file: &Arc<Inode>) -> Result<u64> {
    if tokens::is_sure(mount, file) || knows_end(mount, file) {
        return Ok(file.size());
    }
    ask(mount, &Cred::root(), file.ino).await.map(|(_, attr)| attr.size)
}

/// The end of the file now. `locked`: the caller has pinned write locks on all of every object, so no other mount
/// changes the end. The end then stays known as long as this mount keeps these locks.
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
            // Members of a group on other mounts move the end as well.
            if locked && file.group.id() == 0 {
                file.locks.end_kept.store(true, SeqCst);
            }
            Ok(end)
        }
        None => ask_now(mount, &Cred::root(), file.ino).await.map(|(_, attr)| attr.size),
    }
}

/// Returns whether `Inode::size` is the end of the file: in sole mode once it was requested, in shared mode as long as
/// this mount keeps the write locks under which it was requested.
pub(crate) fn knows_end(mount: &Mount, file: &Inode) -> bool {
    if mount.coherence.sharing.is_alone() {
        return tokens::is_sure(mount, file);
    }
    file.locks.end_kept.load(SeqCst)
        && file.group.id() == 0
        && file.locks.cover_stripes(file.all_stripe_bits())
        && mount.coherence.sharing.leases.in_touch_for(mount.clock.boot_ns(), file, ByteRange::ALL)
}
