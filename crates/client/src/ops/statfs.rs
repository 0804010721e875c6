//! statfs: the sum over all targets.

use crate::api::{Ctx, StatFs};
use crate::conn::replies::unexpected;
use crate::mount::Mount;
use crate::telemetry::stats::Count;
use amphi_types::{Result, TargetId, limits};
use amphi_wire::{Reply, Request};
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) async fn statfs(mount: Arc<Mount>, ctx: Ctx) -> Result<StatFs> {
    mount.stats.count(Count::StatFs);
    let mut sum = StatFs {
        block_size: limits::BLOCK as u32,
        name_max: limits::NAME_MAX as u32,
        cluster: mount.cluster.id.load(Relaxed),
        ..StatFs::default()
    };
    let calls = (0..mount.cluster.pool()).map(|t| mount.call(TargetId(t), &ctx.cred, Request::StatFs));
    for reply in join_all(calls.collect::<Vec<_>>()).await {
        match reply? {
            Reply::StatFs(space) => {
                sum.blocks += space.blocks;
                sum.blocks_free += space.free;
                sum.inodes += space.inodes + space.inodes_free;
                sum.inodes_free += space.inodes_free;
            }
            other => return Err(unexpected(&other)),
        }
    }
    Ok(sum)
}
