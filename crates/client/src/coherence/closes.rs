//! Closes on their way to the servers.
//!
//! Owns: when a close is due, and sending it, many of one target in one message. Does not own: what else ends with the
//! last reference to an open file (`writeback::release`).
//!
//! Nobody waits for a close. The first one leaves at once; what becomes due while it is under way leaves together when
//! it is answered, and what becomes due together leaves together. Closes of files that were opened ahead of a reader
//! (`small_files`) wait for company, until the next tick [1 s], a change of names or a revocation by the target at the
//! latest. Invariant: a close is in `Known::closing` from before it comes here until it is answered, so a server that
//! restarts hears of the open before it hears the close; one that cannot be reached, however long, hears it when it
//! can. Bound: the opens of the files.

use crate::inode::Inode;
use crate::mount::Mount;
use crate::tables::writeback::closes::{Due, Queues};
use crate::telemetry::stats::Count;
use amphi_types::TargetId;
use amphi_wire::{BATCH_PARTS_MAX, Lane, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Closes that wait for company leave when there are so many of a target.
const LINGER_MAX: usize = 256;

/// Sends the closes that nothing holds up any more, without waiting for the answers.
pub(crate) fn send_closes(mount: &Arc<Mount>, file: &Arc<Inode>) {
    send(mount, due_closes(file));
    mount.files.reap(file);
}

/// The closes that nothing holds up any more; they are under way from now on.
pub(crate) fn due_closes(file: &Arc<Inode>) -> Vec<Due> {
    let mut known = file.known.lock();
    let known = &mut *known;
    let dirty = file.cached.dirty_bytes.load(SeqCst) > 0;
    let mut due = Vec::new();
    known.closes.retain(|&access| {
        let held_up = access.write && dirty;
        if !held_up {
            // It stays known: an open that is answered before this close is shows the time from before.
            let atime = if std::mem::take(&mut known.accessed_due) { known.accessed } else { None };
            due.push(Due { file: file.clone(), access, atime });
        }
        held_up
    });
    known.closing.extend(due.iter().map(|one| one.access));
    if !known.opens.iter().chain(&known.closes).any(|a| a.write) {
        known.spread = false;
    }
    due
}

/// Sends closes without waiting for the answers.
pub(crate) fn send(mount: &Arc<Mount>, due: Vec<Due>) {
    let mut starting = Vec::new();
    {
        let mut queues = mount.writeback.closes.queues.lock();
        let Queues { under_way, lingering } = &mut *queues;
        for one in due {
            let target = one.file.ino.target();
            let waiting = under_way.entry(target).or_insert_with(|| {
                starting.push(target);
                lingering.remove(&target).unwrap_or_default().into()
            });
            waiting.push_back(one);
        }
    }
    starting.into_iter().for_each(|target| next(mount, target));
}

/// Sends closes that may wait for others.
pub(crate) fn linger(mount: &Arc<Mount>, due: Vec<Due>) {
    let mut full = Vec::new();
    {
        let mut queues = mount.writeback.closes.queues.lock();
        for one in due {
            let target = one.file.ino.target();
            let waiting = queues.lingering.entry(target).or_default();
            waiting.push(one);
            if waiting.len() >= LINGER_MAX {
                full.extend(queues.lingering.remove(&target).unwrap_or_default());
            }
        }
        mount.writeback.closes.lingers.store(!queues.lingering.is_empty(), SeqCst);
    }
    send(mount, full);
}

/// What waits for company at a target leaves.
pub(crate) fn hurry(mount: &Arc<Mount>, target: TargetId) {
    if mount.writeback.closes.lingers.load(SeqCst) {
        let due = mount.writeback.closes.queues.lock().lingering.remove(&target);
        send(mount, due.unwrap_or_default());
    }
}

/// What waits for company leaves.
pub(crate) fn hurry_all(mount: &Arc<Mount>) {
    if mount.writeback.closes.lingers.swap(false, SeqCst) {
        let due = std::mem::take(&mut mount.writeback.closes.queues.lock().lingering);
        send(mount, due.into_values().flatten().collect());
    }
}

/// The message of the target that was under way, if any, has been answered.
fn next(mount: &Arc<Mount>, target: TargetId) {
    let closes: Vec<Due> = {
        let under_way = &mut mount.writeback.closes.queues.lock().under_way;
        let Some(waiting) = under_way.get_mut(&target) else { return };
        let count = waiting.len().min(BATCH_PARTS_MAX);
        let closes = waiting.drain(..count).collect();
        if count == 0 {
            under_way.remove(&target);
        }
        closes
    };
    if !closes.is_empty() {
        leave(mount, target, closes, true);
    }
}

fn leave(mount: &Arc<Mount>, target: TargetId, closes: Vec<Due>, pump: bool) {
    let op = match &closes[..] {
        [one] => Request::Close { ino: one.file.ino, access: one.access, atime: one.atime },
        many => {
            mount.stats.bytes(Count::CloseBatch, many.len() as u64);
            Request::CloseBatch { closes: many.iter().map(|c| (c.file.ino, c.access, c.atime)).collect() }
        }
    };
    let sent = mount.insist(Lane::Normal, target, op);
    let mount2 = mount.clone();
    mount.spawn(async move {
        // An error means that the session is over, hence no open is left either.
        drop(sent.await);
        for one in closes {
            one.file.closed(one.access);
            mount2.files.reap(&one.file);
        }
        if pump {
            next(&mount2, target);
        }
    });
}
