//! The return of locks to their server.
//!
//! Owns: carrying out the actions of a lock cache (flush, drop, cancel), which of them share a message, and which bytes
//! are still covered by locks that are being returned. Does not own: the stages (`dlm`), which locks are returned
//! (`locks`, `neighbours`).
//!
//! Invariant: dirty bytes under a lock are on the target before they are dropped, and the front end's pages are dropped
//! before the cancel is sent.

use crate::cache::dirty_end;
use crate::coherence::front_pages;
use crate::inode::Inode;
use crate::inode::cluster_locks::stripe_bit;
use crate::mount::Mount;
use crate::telemetry::stats::Count;
use crate::writeback::{batch, flush};
use amphi_dlm::{LockAction, LockId, Mode};
use amphi_pagecache::Dirty;
use amphi_pagecache::push_joined;
use amphi_types::{ByteRange, Cred, Errno, ObjectId, RangeSet, TargetId};
use amphi_wire::{Lane, Request};
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Before a lock on a range up to this length is returned, every stripe in it is checked for cached bytes. For a longer
/// range, only the units in the cache are checked.
const WALK_BYTES: u64 = 64 << 20;
/// Locks that are flushed together are of files with at most this many dirty bytes.
const TOGETHER: usize = 64;
const TOGETHER_BYTES: u64 = 256 << 10;

/// Carries out the actions of the lock cache of `target`.
pub(crate) fn pump(mount: &Arc<Mount>, target: TargetId) {
    let mut going = Vec::new();
    while let Some(action) = next_action(mount, target) {
        match action {
            LockAction::Flush { id, object, ranges } => {
                let file = mount.files.get(object.ino);
                if let Some(file) = &file {
                    file.locks.whole.fetch_and(!stripe_bit(object.stripe), SeqCst);
                }
                going.push(Going { id, file, object, ranges });
            }
            LockAction::Cancel { ids } => {
                let mut names = mount.coherence.locks.names.lock();
                let locks: Vec<u64> = ids.iter().map(|&id| names.take(target, id)).collect();
                drop(names);
                mount.stats.bytes(Count::LockCancel, locks.len() as u64);
                mount.stats.count(Count::LockCancelMessages);
                give_back(mount, target, &ids, locks);
            }
            LockAction::Drop { .. } => {}
        }
    }
    if !going.is_empty() {
        write_back(mount, target, going);
    }
}

/// The next action of the lock cache of `target`. A drop is carried out here, under the cache's lock.
fn next_action(mount: &Arc<Mount>, target: TargetId) -> Option<LockAction> {
    loop {
        let mut caches = mount.coherence.locks.caches.lock();
        match caches.get_mut(&target)?.poll_action()? {
            LockAction::Drop { object, mode, ranges, discard_dirty } => {
                forget(mount, object, &ranges, discard_dirty);
                let file = mount
                    .files
                    .get(object.ino)
                    .filter(|f| (f.pages.any() || f.pages.is_taking()) && !mount.coherence.sharing.is_alone());
                if let Some(file) = file {
                    // If the lock was lost, nothing keeps other mounts away.
                    let kept: &[ByteRange] = if discard_dirty { &[] } else { &ranges };
                    let number = file.pages.taking.lock().goes(target, object, mode, kept);
                    mount.coherence.locks.pages_due.lock().push((target, file, number));
                }
            }
            action => return Some(action),
        }
    }
}

/// A lock that is being returned, with the range that may be dirty under it.
struct Going {
    id: LockId,
    file: Option<Arc<Inode>>,
    object: ObjectId,
    ranges: Vec<ByteRange>,
}

impl Going {
    fn is_small(&self) -> bool {
        self.file.as_ref().is_none_or(|file| file.cached.dirty_bytes.load(SeqCst) <= TOGETHER_BYTES)
    }
}

/// Writes back the dirty bytes of locks that are being returned. Another mount may wait for the first lock, so it is
/// flushed by itself, and so is any lock whose flush takes long. Many of the other locks share one message, and so do
/// their cancels.
fn write_back(mount: &Arc<Mount>, target: TargetId, going: Vec<Going>) {
    // From here on, every write that saw the bit in its file is in the cache.
    mount.cache.barrier();
    let mut going = going.into_iter();
    let first = going.next();
    let (small, large): (Vec<Going>, Vec<Going>) = going.partition(Going::is_small);
    let mut parts: Vec<Vec<Going>> = first.into_iter().chain(large).map(|one| vec![one]).collect();
    let mut small = small.into_iter().peekable();
    while small.peek().is_some() {
        parts.push(small.by_ref().take(TOGETHER).collect());
    }
    for part in parts {
        let mount2 = mount.clone();
        mount.spawn(async move {
            let ranges = |one: &Going| {
                let file = one.file.clone()?;
                let pieces = pieces_of(&mount2, &file, one.object, &one.ranges);
                Some(pieces.into_iter().map(move |piece| (file.clone(), piece)).collect::<Vec<_>>())
            };
            let dirty: Vec<(Arc<Inode>, ByteRange)> = part.iter().filter_map(ranges).flatten().collect();
            if part.len() > 1 {
                batch::start(&mount2, dirty.iter().filter(|(f, _)| f.cached.dirty_bytes.load(SeqCst) > 0).cloned());
            }
            for (file, piece) in dirty {
                flush::flush(&mount2, &file, piece).await;
            }
            mount2.coherence.locks.with(target, |cache| part.iter().for_each(|one| cache.flushed(one.id)));
            pump(&mount2, target);
        });
    }
}

/// Files whose pages the front end has to drop before locks of a target are cancelled, with the numbers of these locks.
pub(super) fn take_due(mount: &Mount, target: TargetId) -> Vec<(Arc<Inode>, Vec<u64>)> {
    let mut due: Vec<(Arc<Inode>, Vec<u64>)> = Vec::new();
    mount.coherence.locks.pages_due.lock().retain(|(of, file, number)| {
        let here = *of == target;
        match due.iter_mut().find(|(f, _)| Arc::ptr_eq(f, file)) {
            _ if !here => {}
            Some((_, numbers)) => numbers.push(*number),
            None => due.push((file.clone(), vec![*number])),
        }
        !here
    });
    due
}

/// Returns whether locks of this mount permit `mode` on all of `range`. Locks that are held and locks that are still
/// being returned both count. Read locks keep other mounts from writing, and write locks also from reading and caching.
pub(crate) fn permit(mount: &Mount, file: &Inode, mode: Mode, range: ByteRange) -> bool {
    let layout = file.layout();
    layout.spans(file.ino, range).into_iter().all(|(object, span)| {
        let target = layout.target(file.ino, object.stripe);
        // This is done under the table's lock, since a lock leaves the table and is noted as being returned in one
        // step.
        mount.coherence.locks.with(target, |cache| {
            let bare = cache.bare(object, mode, span);
            if bare.is_empty() {
                return true;
            }
            let mut going = RangeSet::new();
            let taking = file.pages.taking.lock();
            taking.going.iter().filter(|lock| lock.object == object && lock.mode.covers(mode)).for_each(|lock| {
                going.insert(lock.range);
            });
            bare.into_iter().all(|part| going.gaps(part).is_empty())
        })
    })
}

/// A target no longer knows the locks that were being returned: it has restarted, or the session is over.
pub(super) fn going_is_over(mount: &Mount, target: TargetId) {
    for file in mount.files.all() {
        file.pages.taking.lock().going.retain(|lock| lock.target != target);
    }
}

/// Returns locks, after the pages that they cover were dropped by the front end.
fn give_back(mount: &Arc<Mount>, target: TargetId, ids: &[LockId], locks: Vec<u64>) {
    let answered = {
        let locks = locks.clone();
        move |mount: &Mount| {
            let mut asked_back = mount.coherence.locks.asked_back.lock();
            locks.iter().for_each(|lock| {
                asked_back.remove(&(target, *lock));
            });
        }
    };
    let cancel = Request::LockCancel { locks };
    let due = take_due(mount, target);
    let leaving: Vec<(TargetId, LockId)> = {
        let leaving = mount.coherence.locks.leaving.lock();
        ids.iter().map(|id| (target, *id)).filter(|lock| leaving.contains(lock)).collect()
    };
    if due.is_empty() && leaving.is_empty() {
        answered(mount);
        drop(mount.insist(Lane::Answer, target, cancel));
        return;
    }
    let mount2 = mount.clone();
    mount.spawn(async move {
        join_all(due.iter().map(|(file, locks)| front_pages::take_back(&mount2, file, target, locks))).await;
        answered(&mount2);
        if leaving.is_empty() {
            return drop(mount2.insist(Lane::Answer, target, cancel));
        }
        // A member that leaves a group does not wait long for a server that cannot be reached. The server gets the
        // message nevertheless; a second copy does no harm.
        if mount2.send(Lane::Answer, target, &Cred::root(), cancel.clone(), None, 0).await.is_err() {
            drop(mount2.insist(Lane::Answer, target, cancel));
        }
        mount2.coherence.locks.left(&leaving);
    });
}

/// The bytes of `ranges` that lie in `object` and may be cached.
fn pieces_of(mount: &Mount, file: &Inode, object: ObjectId, ranges: &[ByteRange]) -> Vec<ByteRange> {
    let layout = file.layout();
    let cached = ByteRange::new(0, file.cached.end.load(SeqCst));
    if layout.stripes() == 1 {
        return ranges.iter().map(|r| r.intersect(&cached)).filter(|r| !r.is_empty()).collect();
    }
    let mut found = Vec::new();
    for range in ranges.iter().map(|r| r.intersect(&cached)) {
        // The only cached bytes may be at the far end of a sparse file.
        let parts = if range.len() <= WALK_BYTES { vec![range] } else { mount.cache.units_of(file, range) };
        let pieces = parts.into_iter().flat_map(|part| layout.pieces(file.ino, part));
        pieces.filter(|(o, _)| *o == object).for_each(|(_, piece)| push_joined(&mut found, piece));
    }
    found
}

fn forget(mount: &Arc<Mount>, object: ObjectId, ranges: &[ByteRange], discard_dirty: bool) {
    let Some(file) = mount.files.get(object.ino) else { return };
    file.locks.whole.fetch_and(!stripe_bit(object.stripe), SeqCst);
    let dirty = if discard_dirty { Dirty::Discard } else { Dirty::Keep };
    if discard_dirty {
        // This is done before the bytes become clean: a caller that finds no dirty bytes relies on it.
        let has_dirty = file.cached.dirty_bytes.load(SeqCst) > 0;
        if has_dirty {
            mount.writeback.errors.note(Errno::Io, mount.clock.now_ns());
        }
        // Nobody misses anything of a file that is closed and was written back.
        if has_dirty || file.open_count() > 0 {
            file.failures.note(Errno::Io, if has_dirty { ByteRange::ALL } else { ByteRange::at(0, 0) });
        }
    }
    for part in pieces_of(mount, &file, object, ranges) {
        mount.cache.forget(&file, part, dirty);
    }
    // Fills of bytes that are not cached yet rely on the lock as well.
    ranges.iter().for_each(|r| file.fills.spoil(*r));
    // Other mounts may truncate the file from now on. Bytes under other locks that are still held count; answers to
    // earlier requests do not include what was written under this lock.
    file.size.own_is_at_least(|| dirty_end(&mount.cache, &file));
    file.size.turn();
    if !mount.coherence.sharing.is_alone() {
        file.times_told();
    }
    if discard_dirty {
        file.signal.notify();
    }
    mount.files.reap(&file);
}
