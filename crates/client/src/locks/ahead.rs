//! Lock-ahead: locks that are requested before they are needed, because a program knows its pattern or because the
//! client has detected one.
//!
//! Owns: requesting such locks without waiting for conflicting ones, and processing the answers. Does not own: the
//! rules (`dlm`), which records come next (`pattern`).
//!
//! Invariants: a lock-ahead is granted exactly as requested or not at all, and calls no lock back. Bound: a mount has
//! at most `AHEAD_MAX` requests under way. Each of these requests is one message, and they are sent one after the other
//! without waiting for answers.

use super::{note_whole, pump, spans, wire_mode};
use crate::conn::replies::unexpected;
use crate::inode::OpenFile;
use crate::mount::Mount;
use crate::telemetry::stats::Count;
use crate::telemetry::tunables::Tunable;
use amphi_dlm::{Granted, LockCache, LockId, Mode};
use amphi_types::{ByteRange, Cred, Errno, ObjectId, Result};
use amphi_wire::{Lane, LockExtent, Reply, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Most requests that may be under way.
const AHEAD_MAX: u64 = 4096;

/// The result of a lock-ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// The request was sent, and counters will show its result. If the caller waited for the answer: the server has
    /// refused the lock.
    Asked,
    /// The mount has exactly this lock already.
    Same,
    /// The mount has another lock that covers the bytes.
    Different,
}

/// A write of `range` to a contended file is about to request its locks: requests also those of the records that will
/// follow.
pub(crate) fn follow(mount: &Arc<Mount>, open: &OpenFile, range: ByteRange) {
    let mut records = open.streams.records.lock();
    if records.is_ahead(range) && !is_there(mount, open, range) {
        records.missed();
    }
    let next = records.note(range, mount.tunables.get(Tunable::LocksAhead));
    drop(records);
    // If too many requests are under way, each record requests its own lock later.
    next.iter().all(|record| ahead(mount, open, Mode::Write, *record).is_ok());
}

/// Returns whether write locks on `range` are held or requested.
fn is_there(mount: &Mount, open: &OpenFile, range: ByteRange) -> bool {
    let file = &open.file;
    spans(file, range).into_iter().all(|(object, span)| {
        mount.coherence.locks.with(file.layout().target(file.ino, object.stripe), |cache| {
            cache.covers(object, Mode::Write, span).is_some() || cache.asked(object, Mode::Write, span).is_some()
        })
    })
}

/// Works as `ahead`, and waits for the server's answer, which the server gives without waiting for other mounts.
pub(crate) async fn answered(mount: Arc<Mount>, open: Arc<OpenFile>, mode: Mode, range: ByteRange) -> Result<Ahead> {
    let found = ahead(&mount, &open, mode, range)?;
    if found != Ahead::Asked {
        return Ok(found);
    }
    let file = &open.file;
    let all = |test: &dyn Fn(&LockCache, ObjectId, ByteRange) -> bool| {
        spans(file, range).into_iter().all(|(object, span)| {
            let target = file.layout().target(file.ino, object.stripe);
            mount.coherence.locks.with(target, |cache| test(cache, object, span))
        })
    };
    let is_answered = |cache: &LockCache, object, span| cache.asked(object, mode, span).is_none();
    mount.coherence.locks.answered.until(|| all(&is_answered)).await;
    let is_here = |cache: &LockCache, object, span| cache.covers(object, mode, span).is_some();
    Ok(if all(&is_here) { Ahead::Same } else { Ahead::Asked })
}

/// Requests locks of `mode` on `range`, and does not wait.
///
/// Errors: `Inval` for an empty range; `Busy` if too many requests are under way.
pub(crate) fn ahead(mount: &Arc<Mount>, open: &OpenFile, mode: Mode, range: ByteRange) -> Result<Ahead> {
    if range.is_empty() {
        return Err(Errno::Inval);
    }
    let file = &open.file;
    let (mut asked, mut same) = (false, true);
    for (object, span) in spans(file, range) {
        let target = file.layout().target(file.ino, object.stripe);
        let found = mount.coherence.locks.with(target, |cache| match cache.covers(object, mode, span) {
            Some(id) => Ok(cache.extent(id).is_some_and(|(range, group)| range == span && group.is_none())),
            None => Err(cache.asked(object, mode, span).is_none()),
        });
        match found {
            Ok(equal) => same &= equal,
            // Another call of this mount has just requested the same lock.
            Err(false) => asked = true,
            Err(true) => {
                asked = true;
                if mount.coherence.locks.ahead.fetch_add(1, SeqCst) >= AHEAD_MAX {
                    mount.coherence.locks.ahead.fetch_sub(1, SeqCst);
                    return Err(Errno::Busy);
                }
                let request = mount.coherence.locks.with(target, |cache| cache.ask(object, mode, span));
                mount.stats.count(Count::LockAheadAsked);
                let op = Request::LockEnqueue { object, mode: wire_mode(mode), range: span, extent: LockExtent::Ahead };
                let answer = mount.send(Lane::Locking, target, &Cred::root(), op, None, 0);
                let (mount2, file) = (mount.clone(), file.clone());
                mount.spawn(async move {
                    let answer = match answer.await {
                        Ok((answer, _)) => {
                            mount2.note_contention(&file, answer.contended);
                            answer.result
                        }
                        Err(e) => Err(e),
                    };
                    mount2.coherence.locks.ahead.fetch_sub(1, SeqCst);
                    mount2.coherence.locks.with(target, |cache| match answer {
                        Ok(Reply::Locked { lock, range }) => {
                            mount2.stats.count(Count::LockAheadGranted);
                            let granted = cache.granted(mount2.clock.now_ns(), request, LockId(lock), range);
                            if let Granted::Pinned(lock) = granted {
                                note_whole(cache, &file, object);
                                cache.unpin(lock);
                            }
                        }
                        other => {
                            cache.withdraw(request);
                            match other {
                                Err(Errno::Again) => mount2.stats.count(Count::LockAheadRefused),
                                Err(e) => tracing::debug!(ino = %file.ino, "lock-ahead: {e}"),
                                Ok(reply) => drop(unexpected(&reply)),
                            }
                        }
                    });
                    mount2.coherence.locks.answered.notify();
                    pump(&mount2, target);
                });
            }
        }
    }
    Ok(match (asked, same) {
        (true, _) => Ahead::Asked,
        (false, true) => {
            mount.stats.count(Count::LockAheadSame);
            Ahead::Same
        }
        (false, false) => {
            mount.stats.count(Count::LockAheadDifferent);
            Ahead::Different
        }
    })
}
