//! statfs: the sum over all targets.

use crate::api::{Ctx, StatFs};
use crate::core::{Core, unexpected};
use crate::telemetry::stats::Count;
use amphi_types::{Result, TargetId, limits};
use amphi_wire::{Reply, Request};
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) async fn statfs(core: Arc<Core>, ctx: Ctx) -> Result<StatFs> {
    core.stats.count(Count::StatFs);
    let mut sum = StatFs {
        block_size: limits::BLOCK as u32,
        name_max: limits::NAME_MAX as u32,
        cluster: core.cluster.load(Relaxed),
        ..StatFs::default()
    };
    let calls = (0..core.pool()).map(|t| core.call(TargetId(t), &ctx.cred, Request::StatFs));
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
