//! The lease: if a server was silent for too long, it is queried before anything that it granted is used.
//!
//! Owns: the request to a silent server. Does not own: the time of the last message of each server
//! (`tables::coherence::leases`).

use crate::inode::Inode;
use crate::mount::Mount;
use crate::tables::coherence::leases::targets;
use amphi_types::{ByteRange, Cred, Result, TargetId};
use amphi_wire::Request;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Makes sure that the cached part of a file's inode and of these bytes may be used. Asks servers that were silent for
/// too long.
pub(crate) async fn touch(mount: &Arc<Mount>, file: &Inode, range: ByteRange) -> Result<()> {
    let leases = &mount.coherence.sharing.leases;
    let now = mount.clock.boot_ns();
    if mount.coherence.sharing.is_alone() || now < leases.all_until_ns.load(Relaxed) {
        return Ok(());
    }
    for target in targets(file, range) {
        touch_target(mount, target).await?;
    }
    Ok(())
}

/// Works as `touch`, for the tokens and locks that one target has granted.
pub(crate) async fn touch_target(mount: &Arc<Mount>, target: TargetId) -> Result<()> {
    let leases = &mount.coherence.sharing.leases;
    let now = mount.clock.boot_ns();
    if mount.coherence.sharing.is_alone() || now < leases.all_until_ns.load(Relaxed) {
        return Ok(());
    }
    let Some(lease) = leases.of(target).filter(|lease| !lease.in_touch(now)) else { return Ok(()) };
    // The request `Revoked` changes nothing here, and a server answers it only to sessions that it knows.
    mount.call(target, &Cred::root(), Request::Revoked { ids: Vec::new() }).await?;
    // Everything that the server pushed before this answer has arrived by now.
    leases.surely_heard(&lease, now);
    Ok(())
}
