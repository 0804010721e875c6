//! statfs: the sums over all targets, or the space that is left in a tree with a limit.

use crate::api::{Ctx, StatFs};
use crate::conn::replies::unexpected;
use crate::mount::Mount;
use crate::ops::xattr::quota::{account, charged_project};
use crate::telemetry::stats::Count;
use amphi_types::{Account, AccountKind, Ino, Result, TargetId, limits};
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

/// Works as `statfs`, for a given inode. In a tree with a limit, the limit is the size of the file system, as on other
/// file systems with such limits.
pub(crate) async fn statfs_at(mount: Arc<Mount>, ctx: Ctx, ino: Ino) -> Result<StatFs> {
    let mut space = statfs(mount.clone(), ctx.clone()).await?;
    // If the tree cannot be determined, the values of the whole file system are shown.
    let Ok(id @ 1..) = charged_project(&mount, &ctx, ino).await else { return Ok(space) };
    let Ok(tree) = account(&mount, &ctx, Account { kind: AccountKind::Project, id }).await else { return Ok(space) };
    let within = |hard: u64, soft: u64, used: u64, all: &mut u64, free: &mut u64| {
        let limit = [hard, soft].into_iter().filter(|limit| *limit != 0).min();
        if let Some(limit) = limit {
            *all = limit.min(*all);
            *free = limit.saturating_sub(used).min(*free);
        }
    };
    let (hard, soft, used) = (tree.limits.hard, tree.limits.soft, tree.used);
    within(hard.blocks, soft.blocks, used.blocks, &mut space.blocks, &mut space.blocks_free);
    within(hard.inodes, soft.inodes, used.inodes, &mut space.inodes, &mut space.inodes_free);
    Ok(space)
}
