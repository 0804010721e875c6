//! Dirty bytes that the bound of write-back under way has left behind.
//!
//! Owns: their order. What somebody waits for sets out first, then full chunks in the order in which they became full.
//! Without that an `fsync` of few bytes, or a lock that is asked back, would wait for all that streams have written
//! into the cache before; on slow storage a session would end for it. Does not own: the bound, requests (`writeback`).
//!
//! Invariants: an entry is only a hint: what is dirty there is looked up when its turn comes. While somebody waits
//! nothing else that is new takes the room. As long as there are entries requests are under way, or somebody is about
//! to begin them: each that lands goes on here. Both lists are bounded by the dirty share of the cache.

use crate::inode::Inode;
use crate::mount::Mount;
use crate::tables::writeback::backlog::{Left, Ticket};
use crate::writeback::flush;
use amphi_types::ByteRange;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// A full chunk was left behind.
pub(crate) fn leave(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange) {
    mount.writeback.backlog.0.lock().full_chunks.push_back(Left { file: file.clone(), range, waits: None });
    // All that was under way may have landed meanwhile.
    pump(mount);
}

/// Waits until all bytes of `range` that are dirty now have set out, before what nobody waits for. Returns whether some
/// were held up (`flush::Left::held_up`).
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

/// A request has landed, or something was left: sets out what there is room for.
pub(crate) fn pump(mount: &Arc<Mount>) {
    let mut told = false;
    while let Some(left) = mount.writeback.backlog.next() {
        let behind = flush::send_off(mount, &left.file, left.range);
        if let Some(ticket) = left.waits.as_ref().filter(|_| behind.held_up) {
            ticket.0.store(true, SeqCst);
        }
        if behind.by_bound {
            mount.writeback.backlog.put_back(left);
            // What was under way may have landed before it was put back: then nobody else goes on.
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
