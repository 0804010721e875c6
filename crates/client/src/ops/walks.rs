//! Look-ups of path walks that the kernel repeats because an inode was removed while it walked.
//!
//! Owns: the look-up of a repeated walk, which holds every inode that it finds, and the create at its end, which waits
//! until the name is free or leads to a file. Does not own: which threads walk again, and which inodes are held for
//! them (`tables::coherence::walks`, which says why).

use super::{name, open};
use crate::api::{Ctx, OpenFlags};
use crate::inode::open_file::Created;
use crate::mount::Mount;
use crate::tables::coherence::walks::Held;
use crate::telemetry::stats::Count;
use amphi_types::{Attr, Errno, Ino, Kind, Result};
use std::sync::Arc;

/// How often a name is looked up whose inode is removed before it is held. Each time another program has replaced the
/// file.
const TRIES: usize = 1000;
/// How often a name is created while others make a link or a pipe of that name and remove it again.
const CREATES: u32 = 100;
/// The longest pause between two of these attempts; the first pause is 2^-5 of it. All together take 3 s.
const PAUSE_NS: u64 = 32_000_000;

/// Looks a name up for a thread that may repeat a walk.
pub(crate) async fn lookup(mount: Arc<Mount>, ctx: Ctx, dir: Ino, name: Vec<u8>) -> Result<Attr> {
    if name == b"." || name == b".." || !mount.coherence.walks.looks_up(ctx.tid) {
        return name::lookup(mount, ctx, dir, name).await;
    }
    mount.stats.count(Count::WalkRepeated);
    for _ in 0..TRIES {
        let attr = name::lookup(mount.clone(), ctx.clone(), dir, name.clone()).await?;
        if attr.kind == Kind::Dir {
            return Ok(attr);
        }
        match open::hold(&mount, &ctx, attr.ino).await {
            Ok(open) => {
                let held = Held { dir, name, ino: attr.ino, _open: open };
                mount.coherence.walks.hold(ctx.tid, held, mount.clock.now_ns());
                return Ok(attr);
            }
            // The name was replaced between the check of the name and the open.
            Err(Errno::Stale | Errno::NoEnt) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::Stale)
}

/// Creates or opens a file for a thread that repeats its walk because there was something else with this name. The file
/// did not exist any more when the kernel looked the name up again. If it exists now, another program makes and removes
/// it all the time, and will remove it once more.
///
/// # Errors
/// `Loop` if it is still there in the end, and those of a create.
pub(crate) async fn create(
    mount: Arc<Mount>,
    ctx: Ctx,
    dir: Ino,
    name: Vec<u8>,
    perm: u16,
    flags: OpenFlags,
) -> Result<Created> {
    for round in 0..CREATES {
        match open::create(mount.clone(), ctx.clone(), dir, name.clone(), perm, flags).await {
            Ok(made) if made.attr.kind != Kind::File => {}
            Err(Errno::Loop) => {}
            result => return result,
        }
        mount.life.pauses.pause(PAUSE_NS >> 5u32.saturating_sub(round)).await;
    }
    Err(Errno::Loop)
}
