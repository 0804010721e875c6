//! Dirty bytes that could not be sent because of the bound of write-back under way.
//!
//! Owns: the order of these bytes. Bytes for which a task waits are sent first, then full chunks in the order in which
//! they became full. Without this order, an `fsync` of few bytes, or the return of a lock, would wait for everything
//! that streams have written into the cache before. On slow storage a session would end because of that. Does not own:
//! the bound, requests (`writeback`).
//!
//! Invariants: an entry is only a hint: when it is processed, the dirty bytes of its range are looked up. While a task
//! waits, no other new bytes take the space. As long as there are entries, requests are under way, or a task is about
//! to send some. Each request that ends sends the next entries. Entries of targets that cannot be reached are set aside
//! while enough waits for these targets, so that they keep no others. All lists are bounded by the dirty share of the
//! cache.

use crate::inode::Inode;
use crate::mount::Mount;
use crate::tables::writeback::backlog::{Left, Ticket};
use crate::writeback::flush;
use amphi_types::{ByteRange, TargetId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// A full chunk could not be sent yet.
pub(crate) fn leave(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange) {
    mount.writeback.backlog.0.lock().full_chunks.push_back(Left { file: file.clone(), range, waits: None });
    // By now all requests that were under way may have ended.
    pump(mount);
}

/// Waits until all bytes of `range` that are dirty now have been sent, before bytes for which no task waits. Returns
/// whether some were held up (`flush::Left::held_up`).
pub(crate) async fn wait_for(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange) -> bool {
    let step = flush::WRITE_MAX;
    let ticket = Arc::<Ticket>::default();
    let (mut due, mut bytes) = (Vec::<Left>::new(), 0);
    for run in mount.cache.dirty_runs(file, range) {
        let mut at = run.start;
        while at < run.end {
            let end = (at / step + 1).saturating_mul(step).min(run.end);
            match due.last_mut() {
                // Scattered runs set out together.
                Some(last) if bytes + (end - at) <= step => {
                    last.range = ByteRange::new(last.range.start, end);
                    bytes += end - at;
                }
                _ => {
                    due.push(Left { file: file.clone(), range: ByteRange::new(at, end), waits: Some(ticket.clone()) });
                    bytes = end - at;
                }
            }
            at = end;
        }
    }
    mount.writeback.backlog.0.lock().waited_for.extend(due);
    pump(mount);
    mount.writeback.landed.until(|| Arc::strong_count(&ticket) == 1).await;
    ticket.0.load(SeqCst)
}

/// These targets cannot be reached, and all others can. If they are others than before, bytes that could not be sent
/// may be sent now.
pub(crate) fn set_away(mount: &Arc<Mount>, away: BTreeSet<TargetId>) {
    if mount.writeback.loads.set_away(away) {
        mount.writeback.backlog.readmit();
        flush::pump(mount);
    }
}

/// Called when a request has ended, or bytes could not be sent: sends what the bound permits.
pub(crate) fn pump(mount: &Arc<Mount>) {
    let mut told = false;
    while let Some(left) = mount.writeback.backlog.next() {
        let behind = flush::send_off(mount, &left.file, left.range);
        if let Some(ticket) = left.waits.as_ref().filter(|_| behind.held_up) {
            ticket.0.store(true, SeqCst);
        }
        if behind.away && !behind.by_bound {
            mount.writeback.backlog.set_aside(left);
            // What was under way to these targets may have ended before the bytes were set aside.
            if !mount.away_is_full() {
                mount.writeback.backlog.readmit();
            }
            continue;
        }
        if behind.by_bound {
            mount.writeback.backlog.put_back(left);
            // All requests under way may have ended before the bytes were put back: then nothing else would send these
            // bytes.
            if mount.flight_is_full() {
                break;
            }
            continue;
        }
        told |= left.waits.is_some();
    }
    if told {
        mount.writeback.landed.notify();
    }
}
