//! fsync and syncfs: both write back, and then make everything stable on each target that has bytes of the file or
//! mount.

use crate::api::Ctx;
use crate::coherence::front_pages;
use crate::coherence::shards;
use crate::coherence::tokens;
use crate::conn::replies::done_reply;
use crate::inode::{Inode, OpenFile};
use crate::locks;
use crate::mount::Mount;
use crate::telemetry::stats::Count;
use crate::writeback::flush::{self, Drain};
use amphi_dlm::Mode;
use amphi_types::{ByteRange, Cred, Errno, Ino, Result, TargetId};
use amphi_wire::{Lane, Request};
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Makes everything that these targets have answered stable. With `file`, only the data of that file is made stable,
/// but all metadata.
pub(crate) async fn sync_targets(mount: &Arc<Mount>, targets: BTreeSet<TargetId>, file: Option<Ino>) -> Result<()> {
    let sync = |t| mount.send(Lane::Urgent, t, &Cred::root(), Request::Sync { file }, None, 0);
    let calls = targets.into_iter().map(sync);
    for answer in join_all(calls.collect::<Vec<_>>()).await {
        done_reply(answer?.0.result?)?;
    }
    Ok(())
}

/// Makes what was written of the file stable. The size and the map of the data are stored with the inode and the
/// objects, so a datasync needs the same targets. In shared mode the size may be outdated, but all bytes that this
/// mount has written are below it.
pub(crate) async fn sync_file(mount: &Arc<Mount>, file: &Arc<Inode>) -> Result<()> {
    sync_stripes(mount, file, file.layout().stripes_below(file.size())).await
}

async fn sync_stripes(mount: &Arc<Mount>, file: &Arc<Inode>, stripes: u32) -> Result<()> {
    let layout = file.layout();
    let stripes = stripes.min(u32::from(layout.pool));
    let mut targets: BTreeSet<TargetId> = (0..stripes).map(|s| layout.target(file.ino, s)).collect();
    targets.insert(file.ino.target());
    sync_targets(mount, targets, Some(file.ino)).await
}

pub(crate) async fn fsync(mount: Arc<Mount>, _ctx: Ctx, open: Arc<OpenFile>, _datasync: bool) -> Result<()> {
    mount.stats.count(Count::Fsync);
    open.ledger.fsync();
    let file = &open.file;
    let drain = Drain::begin(&mount);
    flush::flush(&mount, file, ByteRange::ALL).await;
    drop(drain);
    let synced = if mount.coherence.sharing.is_alone() || tokens::is_sure(&mount, file) {
        sync_file(&mount, file).await
    } else {
        // Other mounts may have written the file: bytes that they have not written back yet count too, as they would on
        // one machine.
        match locks::pin_objects(&mount, file, Mode::Read, ByteRange::ALL).await {
            Ok(pins) => {
                drop(pins);
                sync_stripes(&mount, file, file.layout().stripes()).await
            }
            Err(e) => Err(e),
        }
    };
    // Other mounts can read the bytes that were stored here, and may change them from now on.
    front_pages::drop_left(&mount, file).await;
    open.tell_failures().await?;
    synced
}

pub(crate) async fn fsync_dir(mount: Arc<Mount>, ctx: Ctx, dir: Ino) -> Result<()> {
    mount.stats.count(Count::Fsync);
    match sync_targets(&mount, BTreeSet::from([dir.target()]), Some(dir)).await {
        Err(Errno::Remote) => {
            let shards = shards::of(&mount, &ctx.cred, dir).await?.ok_or(Errno::Stale)?;
            let targets = shards.iter().map(|shard| shard.target()).chain([dir.target()]).collect();
            sync_targets(&mount, targets, None).await
        }
        done => done,
    }
}

pub(crate) async fn sync_all(mount: Arc<Mount>, _ctx: Ctx) -> Result<()> {
    mount.stats.count(Count::Fsync);
    let synced = store_all(mount.clone()).await;
    // Earlier losses are reported too, because the caller relies on all bytes being there afterwards.
    mount.files.told_to_all();
    mount.writeback.errors.tell()?;
    synced
}

/// Writes everything back and makes it stable, also what was stored through mappings and is still in the kernel. Lost
/// bytes are not reported here.
///
/// Errors: that of a target which could not be asked to make everything stable.
pub(crate) async fn store_all(mount: Arc<Mount>) -> Result<()> {
    front_pages::drop_open_pages(&mount).await;
    let drain = Drain::begin(&mount);
    flush::flush_all(&mount).await;
    drop(drain);
    sync_targets(&mount, (0..mount.cluster.pool()).map(TargetId).collect(), None).await
}
