//! fsync and syncfs: write back, then make stable on every target that holds bytes of it.

use super::done_reply;
use crate::api::Ctx;
use crate::core::Core;
use crate::files::{File, OpenFile};
use crate::stats::Count;
use crate::writeback;
use amphi_types::{ByteRange, Cred, Ino, Result, TargetId};
use amphi_wire::{Lane, Request};
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Makes everything that these targets have answered stable.
async fn sync_targets(core: &Arc<Core>, targets: BTreeSet<TargetId>) -> Result<()> {
    let calls = targets.into_iter().map(|t| core.send(Lane::Urgent, t, &Cred::root(), Request::Sync, None, 0));
    for answer in join_all(calls.collect::<Vec<_>>()).await {
        done_reply(answer?.0.result?)?;
    }
    Ok(())
}

/// Makes what was written of the file stable. The size and the way to the data live with the inode and the objects,
/// so a datasync needs the same targets.
pub(crate) async fn sync_file(core: &Arc<Core>, file: &Arc<File>) -> Result<()> {
    let layout = file.layout();
    let stripes = layout.stripes_below(file.size()).min(u32::from(layout.pool));
    let mut targets: BTreeSet<TargetId> = (0..stripes).map(|s| layout.target(file.ino, s)).collect();
    targets.insert(file.ino.target());
    sync_targets(core, targets).await
}

pub(crate) async fn fsync(core: Arc<Core>, _ctx: Ctx, open: Arc<OpenFile>, _datasync: bool) -> Result<()> {
    core.stats.count(Count::Fsync);
    writeback::flush(&core, &open.file, ByteRange::ALL).await;
    let synced = sync_file(&core, &open.file).await;
    open.take_error()?;
    synced
}

pub(crate) async fn fsync_dir(core: Arc<Core>, _ctx: Ctx, dir: Ino) -> Result<()> {
    core.stats.count(Count::Fsync);
    sync_targets(&core, BTreeSet::from([dir.target()])).await
}

pub(crate) async fn sync_all(core: Arc<Core>, _ctx: Ctx) -> Result<()> {
    core.stats.count(Count::Fsync);
    writeback::flush_all(&core).await;
    sync_targets(&core, (0..core.pool()).map(TargetId).collect()).await
}
