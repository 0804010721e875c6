//! fsync and syncfs: write back, then make stable on every target that holds bytes of it.

use super::done_reply;
use crate::api::Ctx;
use crate::coherence::locks;
use crate::coherence::sharing;
use crate::coherence::tokens;
use crate::core::Core;
use crate::inode::{File, OpenFile};
use crate::telemetry::stats::Count;
use crate::writeback::flush::{self, Drain};
use crate::writeback::writeback_errors;
use amphi_dlm::Mode;
use amphi_types::{ByteRange, Cred, Ino, Result, TargetId};
use amphi_wire::{Lane, Request};
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Makes everything that these targets have answered stable.
pub(crate) async fn sync_targets(core: &Arc<Core>, targets: BTreeSet<TargetId>) -> Result<()> {
    let calls = targets.into_iter().map(|t| core.send(Lane::Urgent, t, &Cred::root(), Request::Sync, None, 0));
    for answer in join_all(calls.collect::<Vec<_>>()).await {
        done_reply(answer?.0.result?)?;
    }
    Ok(())
}

/// Makes what was written of the file stable. The size and the way to the data live with the inode and the objects, so
/// a datasync needs the same targets. The size may be out of date in company; what this mount has written lies below
/// it.
pub(crate) async fn sync_file(core: &Arc<Core>, file: &Arc<File>) -> Result<()> {
    sync_stripes(core, file, file.layout().stripes_below(file.size())).await
}

async fn sync_stripes(core: &Arc<Core>, file: &Arc<File>, stripes: u32) -> Result<()> {
    let layout = file.layout();
    let stripes = stripes.min(u32::from(layout.pool));
    let mut targets: BTreeSet<TargetId> = (0..stripes).map(|s| layout.target(file.ino, s)).collect();
    targets.insert(file.ino.target());
    sync_targets(core, targets).await
}

pub(crate) async fn fsync(core: Arc<Core>, _ctx: Ctx, open: Arc<OpenFile>, _datasync: bool) -> Result<()> {
    core.stats.count(Count::Fsync);
    let file = &open.file;
    let drain = Drain::begin(&core);
    flush::flush(&core, file, ByteRange::ALL).await;
    drop(drain);
    let synced = if core.company.is_alone() || tokens::is_sure(&core, file) {
        sync_file(&core, file).await
    } else {
        // Others may have written it: what they have not written back yet counts too, as it would on one machine.
        match locks::pin_objects(&core, file, Mode::Read, ByteRange::ALL).await {
            Ok(pins) => {
                drop(pins);
                sync_stripes(&core, file, file.layout().stripes()).await
            }
            Err(e) => Err(e),
        }
    };
    writeback_errors::tell(&open).await?;
    synced
}

pub(crate) async fn fsync_dir(core: Arc<Core>, _ctx: Ctx, dir: Ino) -> Result<()> {
    core.stats.count(Count::Fsync);
    sync_targets(&core, BTreeSet::from([dir.target()])).await
}

pub(crate) async fn sync_all(core: Arc<Core>, _ctx: Ctx) -> Result<()> {
    core.stats.count(Count::Fsync);
    // What was stored through mappings is in the kernel.
    sharing::drop_open_pages(&core).await;
    let drain = Drain::begin(&core);
    flush::flush_all(&core).await;
    drop(drain);
    let synced = sync_targets(&core, (0..core.pool()).map(TargetId).collect()).await;
    // Also what was lost earlier: whoever asks believes afterwards that all is there.
    core.files.told_to_all();
    core.losses.tell()?;
    synced
}
