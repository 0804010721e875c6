//! Lock-ahead: locks that a program asks for before it needs them, as it knows its pattern.
//!
//! Owns: asking without waiting, and what becomes of the answers. Does not own: the rules (`dlm`).
//!
//! Invariants: a lock-ahead is granted just as asked or not at all, and takes no lock from anybody. Bound: `AHEAD_MAX` questions
//! under way in a mount, one message each, sent one behind the other without waiting for answers.

use super::{note_whole, pump, spans, wire_mode};
use crate::core::{Core, unexpected};
use crate::files::OpenFile;
use crate::stats::Count;
use amphi_dlm::{Granted, LockId, Mode};
use amphi_types::{ByteRange, Cred, Errno, Result};
use amphi_wire::{Lane, LockExtent, Reply, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Questions that may be under way.
const AHEAD_MAX: u64 = 4096;

/// What a lock-ahead meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// The server is asked; counters tell what it says.
    Asked,
    /// The mount has just this lock already.
    Same,
    /// The mount has another lock that covers the bytes.
    Different,
}

/// Asks for locks of `mode` on `range`, and does not wait.
///
/// Errors: `Inval` for no bytes; `Busy` if too many are under way.
pub(crate) fn ahead(core: &Arc<Core>, open: &OpenFile, mode: Mode, range: ByteRange) -> Result<Ahead> {
    if range.is_empty() {
        return Err(Errno::Inval);
    }
    let file = &open.file;
    let (mut asked, mut same) = (false, true);
    for (object, span) in spans(file, range) {
        let target = file.layout().target(file.ino, object.stripe);
        let found = core.locks.with(target, |cache| match cache.covers(object, mode, span) {
            Some(id) => Ok(cache.extent(id).is_some_and(|(range, group)| range == span && group.is_none())),
            None => Err(cache.asked(object, mode, span).is_none()),
        });
        match found {
            Ok(equal) => same &= equal,
            // Somebody has just asked for it.
            Err(false) => asked = true,
            Err(true) => {
                asked = true;
                if core.locks.ahead.fetch_add(1, SeqCst) >= AHEAD_MAX {
                    core.locks.ahead.fetch_sub(1, SeqCst);
                    return Err(Errno::Busy);
                }
                let request = core.locks.with(target, |cache| cache.ask(object, mode, span));
                core.stats.count(Count::LockAheadAsked);
                let op = Request::LockEnqueue { object, mode: wire_mode(mode), range: span, extent: LockExtent::Ahead };
                let answer = core.send(Lane::Locking, target, &Cred::root(), op, None, 0);
                let (core2, file) = (core.clone(), file.clone());
                core.spawn(async move {
                    let answer = match answer.await {
                        Ok((answer, _)) => {
                            core2.note_contention(&file, answer.contended);
                            answer.result
                        }
                        Err(e) => Err(e),
                    };
                    core2.locks.ahead.fetch_sub(1, SeqCst);
                    core2.locks.with(target, |cache| match answer {
                        Ok(Reply::Locked { lock, range }) => {
                            core2.stats.count(Count::LockAheadGranted);
                            let granted = cache.granted(core2.clock.now_ns(), request, LockId(lock), range);
                            if let Granted::Pinned(lock) = granted {
                                note_whole(cache, &file, object);
                                cache.unpin(lock);
                            }
                        }
                        other => {
                            cache.withdraw(request);
                            match other {
                                Err(Errno::Again) => core2.stats.count(Count::LockAheadRefused),
                                Err(e) => tracing::debug!(ino = %file.ino, "lock-ahead: {e}"),
                                Ok(reply) => drop(unexpected(&reply)),
                            }
                        }
                    });
                    core2.locks.answered.notify();
                    pump(&core2, target);
                });
            }
        }
    }
    Ok(match (asked, same) {
        (true, _) => Ahead::Asked,
        (false, true) => {
            core.stats.count(Count::LockAheadSame);
            Ahead::Same
        }
        (false, false) => {
            core.stats.count(Count::LockAheadDifferent);
            Ahead::Different
        }
    })
}
