//! Locks of the cluster under which this client caches.
//!
//! Owns: requesting locks, handling callbacks, and restarts of a server. Does not own: how a lock is returned
//! (`returning`), the table of lock caches (`tables::coherence::locks`), the rules (`dlm`).
//!
//! Invariants: every cached byte is covered by a lock that is held. A write into the cache that pins no lock checks a
//! bit of its file (`ClusterLocks::whole`) under the lock of the cache's shard. The bit is cleared before the flush
//! that precedes the lock's return. So this flush finds every such write. Lock order: table of locks, then shard.

pub(crate) mod ahead;
pub(crate) mod coming;
pub(crate) mod group_lock;
mod neighbours;
mod pins;
mod returning;
pub(crate) mod session_end;

use crate::coherence::front_pages;
use crate::inode::Inode;
use crate::inode::cluster_locks::stripe_bit;
use crate::mount::Mount;
use crate::tables::coherence::locks::limits_of;
use crate::telemetry::stats::{Count, FileEvent};
use amphi_dlm::{CallbackPlan, Granted, GroupId, LockCache, LockId, Mode};
use amphi_types::{ByteRange, Cred, Ino, ObjectId, TargetId};
use amphi_wire::{HeldLock, Lane, LockMode, Request};
pub(crate) use pins::{Pin, pin_objects, pin_spans, try_pin_objects};
use returning::take_due;
pub(crate) use returning::{permit, pump};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};

/// How often `LockKept` is sent for called-back locks that calls still use. This is far below the time after which a
/// client that does not answer is evicted.
const KEPT_NS: u64 = 2_000_000_000;
/// How long after a callback `LockKept` also names a lock that is not used any more, because its grant is on its way or
/// the kernel is dropping its pages. A client that takes longer hangs.
const ASKED_BACK_NS: u64 = 25_000_000_000;

/// The position of the target in the id of a glimpse.
const GLIMPSE_TARGET_SHIFT: u32 = 48;

/// A file is being made, as long as this value lives.
pub(crate) struct MakingFile(Arc<Mount>);

/// It has to be called before a request whose answer may contain a lock.
pub(crate) fn making(mount: &Arc<Mount>) -> MakingFile {
    mount.coherence.locks.making.lock().under_way += 1;
    MakingFile(mount.clone())
}

impl Drop for MakingFile {
    fn drop(&mut self) {
        let mut making = self.0.coherence.locks.making.lock();
        making.under_way -= 1;
        if making.under_way == 0 {
            making.early.clear();
        }
    }
}

/// The part of each object that contains bytes of the range, from the first byte to the last.
fn spans(file: &Inode, range: ByteRange) -> BTreeMap<ObjectId, ByteRange> {
    file.layout().spans(file.ino, range)
}

fn wire_mode(mode: Mode) -> LockMode {
    if mode == Mode::Write { LockMode::Write } else { LockMode::Read }
}

/// Informs the lock cache of the last uses without a pin of those files whose locks would be returned next.
fn note_uses(mount: &Mount, cache: &mut LockCache) {
    for (id, object) in cache.oldest() {
        if let Some(file) = mount.files.get(object.ino) {
            cache.used(id, file.locks.used_ns.load(Relaxed));
        }
    }
}

/// Called when a group lock of an object was granted.
pub(crate) fn hold_group(mount: &Arc<Mount>, target: TargetId, object: ObjectId, lock: LockId, group: u64) {
    mount.coherence.locks.with(target, |cache| cache.hold_group(mount.clock.now_ns(), lock, object, GroupId(group)));
}

/// Returns group locks and waits until the servers have confirmed it.
pub(crate) async fn leave_group(mount: &Arc<Mount>, locks: &[(TargetId, LockId)]) {
    for &(target, id) in locks {
        let held = mount.coherence.locks.with(target, |cache| {
            let held = cache.extent(id).is_some();
            if held {
                mount.coherence.locks.leaving.lock().insert((target, id));
                cache.give_back(id);
            }
            held
        });
        if held {
            pump(mount, target);
        }
    }
    let gone = || {
        let leaving = mount.coherence.locks.leaving.lock();
        locks.iter().all(|lock| !leaving.contains(lock))
    };
    mount.coherence.locks.answered.until(gone).await;
}

/// Called when the last name of a file was removed. Its idle locks are returned with the next tick, many together,
/// unless a program has the file open or its dirty bytes are just being discarded. Otherwise mount and server would
/// keep these locks until they reach their maximum age.
pub(crate) fn nameless(mount: &Mount, ino: Ino) {
    let targets: BTreeSet<TargetId> = match mount.files.get(ino) {
        Some(file) if file.open_count() > 0 || file.cached.dirty_bytes.load(SeqCst) > 0 => return,
        Some(file) => {
            let layout = file.layout();
            let stripes = layout.stripes_below(file.size().max(1)).min(u32::from(layout.pool));
            (0..stripes).map(|stripe| layout.target(ino, stripe)).collect()
        }
        // A file that is not in the table is usually small, and has only the lock that was granted when it was made.
        None => BTreeSet::from([ino.target()]),
    };
    mount.coherence.locks.nameless.lock().extend(targets.into_iter().map(|target| (target, ino)));
}

/// A write lock on all of the first object, which came with the answer that made the file.
pub(crate) fn given(mount: &Arc<Mount>, file: &Inode, lock: u64) {
    let (object, target) = (ObjectId { ino: file.ino, stripe: 0 }, file.ino.target());
    let mut making = mount.coherence.locks.making.lock();
    let asked_back = making.early.iter().position(|early| *early == (object, lock));
    mount.coherence.locks.with(target, |cache| {
        let request = cache.ask(object, Mode::Write, ByteRange::ALL);
        if let Granted::Pinned(pinned) = cache.granted(mount.clock.now_ns(), request, LockId(lock), ByteRange::ALL) {
            if asked_back.is_none() {
                note_whole(cache, file, object);
            }
            cache.unpin(pinned);
        }
        if let Some(at) = asked_back {
            making.early.swap_remove(at);
            cache.callback(mount.clock.now_ns(), LockId(lock), object);
        }
    });
    drop(making);
    pump(mount, target);
}

/// Sets the bit of an object if a usable write lock covers all of it. This has to be done under the table's lock. A
/// lock that is being returned is not usable, and its bit is cleared after it was closed for new uses.
fn note_whole(cache: &LockCache, file: &Inode, object: ObjectId) {
    let bit = stripe_bit(object.stripe);
    if file.locks.whole.load(SeqCst) & bit == 0 && cache.covers(object, Mode::Write, ByteRange::ALL).is_some() {
        // Other mounts may have changed the end of the file since this mount last held the lock.
        file.locks.end_kept.store(false, SeqCst);
        file.locks.whole.fetch_or(bit, SeqCst);
    }
}

/// `Push::Glimpse`: answers with the end of what this mount has written to an object, unless an answer is on its way.
pub(crate) fn glimpse(mount: &Arc<Mount>, id: u64, object: ObjectId) {
    if !mount.coherence.locks.glimpsed.lock().insert(id) {
        return;
    }
    // The target that asks.
    let target = TargetId((id >> GLIMPSE_TARGET_SHIFT) as u16);
    let (size, mtime) = match mount.files.get(object.ino) {
        Some(file) => {
            let posted_end = mount.coherence.sharing.take_posts(&file);
            let mtime = if posted_end > 0 { mount.wall() } else { file.own_mtime() };
            (file.size.own_end().max(posted_end), mtime)
        }
        None => Default::default(),
    };
    let op = Request::GlimpseReply { id, size, mtime };
    let sent = mount.send(Lane::Answer, target, &Cred::root(), op, None, 0);
    let mount2 = mount.clone();
    mount.spawn(async move {
        // If sending failed, the server sends the glimpse again.
        let _ = sent.await;
        mount2.coherence.locks.glimpsed.lock().remove(&id);
    });
}

/// The server calls a lock back.
pub(crate) fn callback(mount: &Arc<Mount>, target: TargetId, object: ObjectId, lock: u64) {
    mount.stats.count(Count::LockCallback);
    let file = mount.files.get(object.ino);
    mount.coherence.locks.asked_back.lock().entry((target, lock)).or_insert_with(|| mount.clock.now_ns());
    let id = {
        let mut names = mount.coherence.locks.names.lock();
        if let Some(early) = names.restoring.get_mut(&target) {
            // The lock may be one whose new id is not known yet.
            early.push((object, lock));
            return;
        }
        names.ours(target, lock)
    };
    let mut making = mount.coherence.locks.making.lock();
    let mut walks = mount.coherence.locks.walks.lock();
    mount.coherence.locks.with(target, |cache| {
        let mode = cache.mode(id);
        let plan = cache.callback(mount.clock.now_ns(), id, object);
        if let (CallbackPlan::Started { .. }, Some(mode)) = (plan, mode) {
            neighbours::follow(mount, walks.entry(target).or_default(), cache, object, mode);
        }
        if plan == CallbackPlan::Gone && making.under_way > 0 {
            making.early.push((object, lock));
        }
        if let Some(file) = &file {
            file.stats.count(FileEvent::LockCallback);
            file.locks.called_back_ns.store(mount.clock.now_ns(), SeqCst);
            file.locks.whole.fetch_and(!stripe_bit(object.stripe), SeqCst);
        }
    });
    drop((making, walks));
    pump(mount, target);
    // A posting marks its file before it pins the lock.
    if file.is_some_and(|file| file.locks.are_posted_to()) {
        mount.postings_may_end();
    }
}

/// Advances the time.
pub(crate) fn tick(mount: &Arc<Mount>) {
    let now_ns = mount.clock.now_ns();
    let said = mount.coherence.locks.said_kept_ns.load(SeqCst);
    let limits = limits_of(&mount.tunables);
    *mount.coherence.locks.limits.lock() = limits;
    mount.host.coarse_ns.store(now_ns, Relaxed);
    let say = now_ns >= said + KEPT_NS && !mount.coherence.sharing.is_alone();
    if say {
        mount.coherence.locks.said_kept_ns.store(now_ns, SeqCst);
    }
    let mut asked_back = mount.coherence.locks.asked_back.lock();
    asked_back.retain(|_, since_ns| now_ns < *since_ns + ASKED_BACK_NS);
    let said: Vec<(TargetId, u64)> = if say { asked_back.keys().copied().collect() } else { Vec::new() };
    drop(asked_back);
    for (target, ino) in std::mem::take(&mut *mount.coherence.locks.nameless.lock()) {
        mount.coherence.locks.with(target, |cache| {
            cache.idle_of(ino).into_iter().for_each(|id| cache.give_back(id));
        });
    }
    let mut targets: BTreeSet<TargetId> = mount.coherence.locks.caches.lock().keys().copied().collect();
    targets.extend(said.iter().map(|(target, _)| *target));
    for target in targets {
        let (awaited, aged) = mount.coherence.locks.with(target, |cache| {
            cache.tune(limits);
            note_uses(mount, cache);
            cache.tick(now_ns);
            (if say { cache.awaited() } else { Vec::new() }, cache.take_aged())
        });
        if aged > 0 {
            mount.stats.bytes(Count::LockAged, aged);
        }
        pump(mount, target);
        let mut locks: BTreeSet<u64> = said.iter().filter(|(of, _)| *of == target).map(|(_, lock)| *lock).collect();
        let names = mount.coherence.locks.names.lock();
        locks.extend(awaited.into_iter().map(|id| names.theirs(target, id)));
        drop(names);
        if !locks.is_empty() {
            let locks = locks.into_iter().collect();
            drop(mount.send(Lane::Answer, target, &Cred::root(), Request::LockKept { locks }, None, 0));
        }
    }
}

/// Called when the session is over, so no lock is held any more.
pub(crate) fn lose_all(mount: &Arc<Mount>) {
    let targets: Vec<TargetId> = mount.coherence.locks.caches.lock().keys().copied().collect();
    for file in mount.files.all() {
        file.locks.whole.store(0, SeqCst);
    }
    mount.cache.barrier();
    for target in targets {
        mount.coherence.locks.with(target, LockCache::lose_all);
        returning::going_is_over(mount, target);
        pump(mount, target);
    }
    for file in mount.files.all() {
        group_lock::lost(mount, &file);
    }
    mount.coherence.locks.leaving.lock().clear();
    mount.coherence.locks.answered.notify();
}

/// Locks of `target` that have to be presented to a restarted server.
pub(crate) fn represent(mount: &Mount, target: TargetId) -> (Vec<LockId>, Vec<HeldLock>) {
    let held = mount.coherence.locks.with(target, LockCache::represent);
    returning::going_is_over(mount, target);
    let wire = |l: &amphi_dlm::HeldLock| HeldLock {
        object: l.object,
        mode: wire_mode(l.mode),
        range: l.range,
        group: l.group.map(|group| group.0),
    };
    (held.iter().map(|l| l.id).collect(), held.iter().map(wire).collect())
}

/// A restarted server has granted the presented locks, in the order in which they were presented, under new ids.
pub(crate) fn restored(mount: &Arc<Mount>, target: TargetId, ids: &[LockId], taken: &[u64]) {
    let early = {
        let mut names = mount.coherence.locks.names.lock();
        names.forget(target);
        for (id, new) in ids.iter().zip(taken) {
            names.set(target, *id, *new);
        }
        names.restoring.remove(&target).unwrap_or_default()
    };
    mount.coherence.locks.with(target, |cache| ids.iter().take(taken.len()).for_each(|id| cache.restored(*id)));
    early.into_iter().for_each(|(object, lock)| callback(mount, target, object, lock));
    for id in &ids[taken.len().min(ids.len())..] {
        tracing::warn!(%target, ?id, "a lock was lost with the restart of the server");
        let group = mount.coherence.locks.with(target, |cache| {
            let object = cache.lose(*id);
            // Users may still pin the lock, so its action does not follow at once.
            if let Some((file, object)) = object.and_then(|object| Some((mount.files.get(object.ino)?, object))) {
                file.locks.whole.fetch_and(!stripe_bit(object.stripe), SeqCst);
            }
            cache.extent(*id).and_then(|(_, group)| group)
        });
        if group.is_some() {
            mount
                .files
                .all()
                .iter()
                .filter(|file| file.group.holds(target, *id))
                .for_each(|f| group_lock::lost(mount, f));
            mount.coherence.locks.left(&[(target, *id)]);
        }
    }
    // Locks that were returned to the server before its restart need not be cancelled again.
    let leaving: Vec<_> =
        mount.coherence.locks.leaving.lock().iter().filter(|(of, _)| *of == target).copied().collect();
    let gone: Vec<_> = mount
        .coherence
        .locks
        .with(target, |cache| leaving.into_iter().filter(|(_, id)| cache.extent(*id).is_none()).collect());
    mount.coherence.locks.left(&gone);
    pump(mount, target);
    if taken.len() < ids.len() {
        mount.postings_may_end();
        // If the lock was lost, its pages need not be dropped before a cancel.
        for (file, locks) in take_due(mount, target) {
            let mount2 = mount.clone();
            mount.spawn(async move { front_pages::take_back(&mount2, &file, target, &locks).await });
        }
    }
}

/// Called when `target` has restarted. From now on it may call back locks by ids that only its answer to `represent`
/// contains.
pub(crate) fn restoring(mount: &Mount, target: TargetId) {
    mount.coherence.locks.names.lock().restoring.insert(target, Vec::new());
}

/// Opens of `target` that have to be presented to a restarted server.
pub(crate) fn opens(mount: &Mount, target: TargetId) -> Vec<(Ino, amphi_wire::Access)> {
    let mut opens = Vec::new();
    for file in mount.files.all().into_iter().filter(|f| f.ino.target() == target) {
        file.opens().into_iter().for_each(|access| opens.push((file.ino, access)));
    }
    opens
}
