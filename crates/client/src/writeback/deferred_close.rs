//! Closes on their way to the servers.
//!
//! Owns: sending them, many of one target in one message. Does not own: when a file's close is due (`ops::open`).
//!
//! Nobody waits for a close. The first one leaves at once; what becomes due while it is under way leaves together when
//! it is answered, and what becomes due together leaves together. Closes of files that were opened ahead of a reader
//! (`siblings`) wait for company, until the next tick [1 s], a change of names or a revocation by the target at the
//! latest. Invariant: a close is in `Known::closing` from before it comes here until it is answered, so a server that
//! restarts hears of the open before it hears the close; one that cannot be reached, however long, hears it when it
//! can. Bound: the opens of the files.

use crate::core::Core;
use crate::inode::File;
use crate::telemetry::stats::Count;
use crate::telemetry::tunables::Knob;
use amphi_types::{TargetId, Timespec};
use amphi_wire::{Access, BATCH_PARTS_MAX, Lane, Request};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A close that nothing holds up.
pub(crate) struct Due {
    pub(crate) file: Arc<File>,
    pub(crate) access: Access,
    /// Time of the last read, if the server is to hear of it.
    pub(crate) atime: Option<Timespec>,
}

/// Closes that wait for company leave when there are so many of a target.
const LINGER_MAX: usize = 256;

#[derive(Default)]
struct Queues {
    /// What waits for the message of its target that is under way; a target without one has no entry.
    under_way: BTreeMap<TargetId, VecDeque<Due>>,
    /// What waits for company.
    lingering: BTreeMap<TargetId, Vec<Due>>,
}

/// What waits to leave.
#[derive(Default)]
pub(crate) struct Closes {
    queues: Mutex<Queues>,
    /// Whether anything waits for company.
    lingers: AtomicBool,
}

/// Sends closes without waiting for the answers.
pub(crate) fn send(core: &Arc<Core>, due: Vec<Due>) {
    if !core.tunables.on(Knob::CloseBatch) {
        due.into_iter().for_each(|one| leave(core, one.file.ino.target(), vec![one], false));
        return;
    }
    let mut starting = Vec::new();
    {
        let mut queues = core.closes.queues.lock();
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
    starting.into_iter().for_each(|target| next(core, target));
}

/// Sends closes that may wait for others.
pub(crate) fn linger(core: &Arc<Core>, due: Vec<Due>) {
    let mut full = Vec::new();
    if core.tunables.on(Knob::CloseBatch) {
        let mut queues = core.closes.queues.lock();
        for one in due {
            let target = one.file.ino.target();
            let waiting = queues.lingering.entry(target).or_default();
            waiting.push(one);
            if waiting.len() >= LINGER_MAX {
                full.extend(queues.lingering.remove(&target).unwrap_or_default());
            }
        }
        core.closes.lingers.store(!queues.lingering.is_empty(), SeqCst);
    } else {
        full = due;
    }
    send(core, full);
}

/// What waits for company at a target leaves.
pub(crate) fn hurry(core: &Arc<Core>, target: TargetId) {
    if core.closes.lingers.load(SeqCst) {
        let due = core.closes.queues.lock().lingering.remove(&target);
        send(core, due.unwrap_or_default());
    }
}

/// What waits for company leaves.
pub(crate) fn hurry_all(core: &Arc<Core>) {
    if core.closes.lingers.swap(false, SeqCst) {
        let due = std::mem::take(&mut core.closes.queues.lock().lingering);
        send(core, due.into_values().flatten().collect());
    }
}

/// The message of the target that was under way, if any, has been answered.
fn next(core: &Arc<Core>, target: TargetId) {
    let closes: Vec<Due> = {
        let under_way = &mut core.closes.queues.lock().under_way;
        let Some(waiting) = under_way.get_mut(&target) else { return };
        let count = waiting.len().min(BATCH_PARTS_MAX);
        let closes = waiting.drain(..count).collect();
        if count == 0 {
            under_way.remove(&target);
        }
        closes
    };
    if !closes.is_empty() {
        leave(core, target, closes, true);
    }
}

fn leave(core: &Arc<Core>, target: TargetId, closes: Vec<Due>, go_on: bool) {
    let op = match &closes[..] {
        [one] => Request::Close { ino: one.file.ino, access: one.access, atime: one.atime },
        many => {
            core.stats.bytes(Count::CloseBatch, many.len() as u64);
            Request::CloseBatch { closes: many.iter().map(|c| (c.file.ino, c.access, c.atime)).collect() }
        }
    };
    let sent = core.insist(Lane::Normal, target, op);
    let core2 = core.clone();
    core.spawn(async move {
        // An error means that the session is over, hence no open is left either.
        drop(sent.await);
        for one in closes {
            one.file.closed(one.access);
            core2.files.reap(&one.file);
        }
        if go_on {
            next(&core2, target);
        }
    });
}
