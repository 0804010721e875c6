//! Closes on their way to the servers.
//!
//! Owns: when a close is due, and sending it, many of one target in one message. Does not own: what else happens after
//! the last reference to an open file (`writeback::release`).
//!
//! No program waits for a close. The first close is sent at once. Closes that become due before its answer are sent
//! together, and so are closes that become due at the same time. Closes of files that were opened ahead of a program
//! (`small_files`) are delayed to be sent together: until the next tick [1 s], a change of names, or a revocation by
//! the target.
//!
//! Invariant: a close is in `Known::closing` from before it is passed to this module until it is answered. So a
//! restarted server gets the open of a file before it gets the close. A close whose server cannot be reached is sent
//! when it can.
//!
//! Bound: the number of opens of the files.

use crate::inode::Inode;
use crate::mount::Mount;
use crate::tables::writeback::closes::{Due, Queues};
use crate::telemetry::stats::Count;
use amphi_types::TargetId;
use amphi_wire::{BATCH_PARTS_MAX, Lane, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// If this many closes of one target are delayed, they are sent at once.
const LINGER_MAX: usize = 256;
const _: () = assert!(LINGER_MAX <= BATCH_PARTS_MAX, "one message takes all that are delayed");

/// Sends the closes that nothing delays any more, without waiting for the answers.
pub(crate) fn send_closes(mount: &Arc<Mount>, file: &Arc<Inode>) {
    send(mount, due_closes(file));
    mount.files.reap(file);
}

/// Closes that need not wait any longer; from now on they count as under way.
pub(crate) fn due_closes(file: &Arc<Inode>) -> Vec<Due> {
    let mut known = file.known.lock();
    let known = &mut *known;
    let dirty = file.cached.dirty_bytes.load(SeqCst) > 0;
    let mut due = Vec::new();
    known.closes.retain(|&access| {
        let held_up = access.write && dirty;
        if !held_up {
            // The access time stays known, because the answer to an open that overtakes this close shows the older
            // time.
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

/// Sends closes that were waiting for others with which to share a message.
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

/// Sends the delayed closes of a target.
pub(crate) fn hurry(mount: &Arc<Mount>, target: TargetId) {
    if mount.writeback.closes.lingers.load(SeqCst) {
        let due = mount.writeback.closes.queues.lock().lingering.remove(&target);
        send(mount, due.unwrap_or_default());
    }
}

/// Sends all delayed closes.
pub(crate) fn hurry_all(mount: &Arc<Mount>) {
    if mount.writeback.closes.lingers.swap(false, SeqCst) {
        let due = std::mem::take(&mut mount.writeback.closes.queues.lock().lingering);
        send(mount, due.into_values().flatten().collect());
    }
}

/// Sends the next message to a target after the previous one, if any, was answered.
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
        // An error means that the session is over, so no open is left either.
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
