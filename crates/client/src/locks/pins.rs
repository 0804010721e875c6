//! Pins: locks in use, taken from the lock cache or requested from the server.
//!
//! Owns: `Pin`, requesting a lock and waiting for it. Does not own: the rules (`dlm`), what happens to called-back
//! locks (`locks`).

use super::{note_uses, note_whole, pump, spans, wire_mode};
use crate::conn::replies::unexpected;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::telemetry::calls::{self, Wait};
use crate::telemetry::stats::Count;
use amphi_dlm::{Granted, Hit, LockId, LockRef, Mode};
use amphi_types::{ByteRange, Cred, Errno, ObjectId, Result, TargetId};
use amphi_wire::{Lane, LockExtent, Reply, Request};
use std::sync::Arc;

/// A lock in use; dropping the pin ends the use.
pub(crate) struct Pin {
    pub(super) mount: Arc<Mount>,
    pub(super) target: TargetId,
    pub(super) lock: LockRef,
    /// The lock was requested for this use, with exactly the range of the use.
    pub(super) own: bool,
    /// Whether the lock is returned at the end of the use.
    pub(super) once: bool,
}

impl Pin {
    /// Called when the use was a direct request and other mounts want the file too. So a lock that was needed only for
    /// this use is returned, together with others, before another mount has to request it.
    pub(crate) fn used_once(&mut self) {
        self.once = self.own;
    }

    /// The lock is returned at the end of the use, because this mount has reported something wrong to others about
    /// bytes written under it.
    pub(crate) fn used_up(&mut self) {
        self.once = true;
    }

    /// Returns whether the server does not know the lock any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.mount.coherence.locks.with(self.target, |cache| cache.is_lost(self.lock.id))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(cache) = self.mount.coherence.locks.caches.lock().get_mut(&self.target) {
            cache.unpin(self.lock);
            if self.once {
                cache.give_back(self.lock.id);
            }
        }
        pump(&self.mount, self.target);
    }
}

/// A caller that already pins other locks must not wait for a slot behind requests that may wait for these locks.
fn lane_of(pins: &[Pin]) -> Lane {
    if pins.is_empty() { Lane::Locking } else { Lane::Normal }
}

/// Pins a lock of `mode` and of this extent on `range` of each object that holds bytes of it, in ascending order of
/// objects.
pub(crate) async fn pin_spans(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    mode: Mode,
    range: ByteRange,
    extent: LockExtent,
) -> Result<Vec<Pin>> {
    let (layout, spans) = (file.layout(), spans(file, range));
    let mut pins = Vec::with_capacity(spans.len());
    for (object, span) in spans {
        pins.push(
            pin(mount, file, layout.target(file.ino, object.stripe), object, mode, span, extent, lane_of(&pins))
                .await?,
        );
    }
    Ok(pins)
}

/// Pins a lock of `mode` on `range` of every object that the file can have, in ascending order.
pub(crate) async fn pin_objects(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    mode: Mode,
    range: ByteRange,
) -> Result<Vec<Pin>> {
    let layout = file.layout();
    let mut pins = Vec::with_capacity(layout.stripes() as usize);
    for stripe in 0..layout.stripes() {
        let object = ObjectId { ino: file.ino, stripe };
        let target = layout.target(file.ino, stripe);
        pins.push(pin(mount, file, target, object, mode, range, LockExtent::Grown, lane_of(&pins)).await?);
    }
    Ok(pins)
}

/// Works as `pin_objects`, but only for locks that are held or free. It calls back no lock and never waits, so a caller
/// that holds other locks may use it.
///
/// Errors: `Again` if another mount holds or requests a part of it, or if a group has the file.
pub(crate) async fn try_pin_objects(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    mode: Mode,
    range: ByteRange,
) -> Result<Vec<Pin>> {
    let layout = file.layout();
    let mut pins = Vec::with_capacity(layout.stripes() as usize);
    for stripe in 0..layout.stripes() {
        let object = ObjectId { ino: file.ino, stripe };
        let target = layout.target(file.ino, stripe);
        let asked = mount.coherence.locks.with(target, |cache| {
            cache.covers(object, mode, range).is_none() && cache.asked(object, mode, range).is_some()
        });
        if asked {
            return Err(Errno::Again);
        }
        pins.push(pin(mount, file, target, object, mode, range, LockExtent::Ahead, Lane::Normal).await?);
        let grouped = pins.last().is_some_and(|pin| {
            mount
                .coherence
                .locks
                .with(target, |cache| cache.extent(pin.lock.id).is_none_or(|(_, group)| group.is_some()))
        });
        if grouped {
            return Err(Errno::Again);
        }
    }
    Ok(pins)
}

#[expect(clippy::too_many_arguments, reason = "the fields of the request, and how it goes")]
async fn pin(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    target: TargetId,
    object: ObjectId,
    mode: Mode,
    range: ByteRange,
    extent: LockExtent,
    lane: Lane,
) -> Result<Pin> {
    let pinned = |lock, own| Pin { mount: mount.clone(), target, lock, own, once: false };
    loop {
        let now = mount.clock.now_ns();
        let asked = mount.coherence.locks.with(target, |cache| match cache.pin(now, object, mode, range) {
            Hit::Hit(lock) => {
                note_whole(cache, file, object);
                let just_as_wide = cache.extent(lock.id).is_some_and(|(held, group)| held == range && group.is_none());
                Err(Some((lock, just_as_wide)))
            }
            Hit::Miss if cache.asked(object, mode, range).is_some() => Err(None),
            Hit::Miss => Ok(cache.ask(object, mode, range)),
        });
        let request = match asked {
            Err(Some((lock, just_as_wide))) => return Ok(pinned(lock, extent == LockExtent::Exact && just_as_wide)),
            Err(None) => {
                let waiting = || mount.coherence.locks.with(target, |cache| cache.asked(object, mode, range).is_none());
                mount.coherence.locks.answered.until(waiting).await;
                continue;
            }
            Ok(request) => request,
        };
        mount.stats.count(Count::LockEnqueue);
        let start_ns = mount.clock.now_ns();
        let op = Request::LockEnqueue { object, mode: wire_mode(mode), range, extent };
        let answer = match mount.send(lane, target, &Cred::root(), op, None, 0).await {
            Ok((answer, _)) => {
                mount.note_contention(file, answer.contended);
                answer.result
            }
            Err(e) => Err(e),
        };
        let waited_ns = mount.clock.now_ns().saturating_sub(start_ns);
        mount.stats.bytes(Count::LockWait, waited_ns);
        file.stats.waited_for_lock(waited_ns);
        calls::note_wait(Wait::Lock, waited_ns);
        let outcome = mount.coherence.locks.with(target, |cache| match answer {
            Ok(Reply::Locked { lock, range: granted }) => {
                if cache.len() >= mount.coherence.locks.limits.lock().max_locks {
                    note_uses(mount, cache);
                }
                match cache.granted(mount.clock.now_ns(), request, LockId(lock), granted) {
                    Granted::Pinned(lock) => {
                        note_whole(cache, file, object);
                        Ok(Some(lock))
                    }
                    Granted::Unwanted => Ok(None),
                }
            }
            Ok(reply) => {
                cache.withdraw(request);
                Err(unexpected(&reply))
            }
            Err(e) => {
                cache.withdraw(request);
                Err(e)
            }
        });
        mount.coherence.locks.answered.notify();
        match outcome? {
            Some(lock) => return Ok(pinned(lock, extent == LockExtent::Exact)),
            None => pump(mount, target),
        }
    }
}
