//! A thread of the ring: waits for a request, handles it, replies and waits for the next in one go.
//!
//! Invariants: a handler that panics costs its request an EIO and nothing else; a request that is answered late keeps its thread, which
//! then does not count as a handler at work.

use super::entry::Entry;
use super::{Ring, Since, ensure_waiting};
use crate::Caller;
use crate::dispatch::{Answered, Lent, handle};
use crate::interrupt::Slot;
use crate::kernel::structs::InHeader;
use crate::later::{Late, Owed};
use crate::reply::{ReplyTo, Staged};
use crate::request::BeforeBlocking;
use crate::session::Shared;
use amphi_types::Errno;
use rustix::io::Errno as Raw;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::cell::{OnceCell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};

/// The request in hand.
struct Hook<'a> {
    ring: &'a Ring,
    tid: u32,
    unique: u64,
}

impl BeforeBlocking for Hook<'_> {
    /// Another entry waits already: nobody need be woken to take the next request.
    fn before_blocking(&self) {
        self.ring.watch.waits(self.tid, self.unique);
    }

    fn is_alone(&self) -> bool {
        self.ring.is_alone()
    }
}

/// Serves requests until the mount ends.
pub(super) fn run(shared: &Arc<Shared>, ring: &Arc<Ring>, mut entry: Entry, since: Since) {
    let queue = entry.queue();
    stay_on(queue);
    let slot = shared.in_hand.add_slot();
    let mut server = Server { shared, ring, slot: &slot, listing: Vec::new(), staged: RefCell::default() };
    let mut pushed = entry.register(&shared.device);
    if since == Since::Later && pushed.is_ok() {
        pushed = entry.submit();
        ring.queues[queue].short.store(ring.later.fetch_add(1, SeqCst) + 1, SeqCst);
        ring.watch.is_short();
    }
    let ended = loop {
        if let Err(e) = pushed.and_then(|()| entry.wait()) {
            break e;
        }
        let reply = server.request(&mut entry);
        ring.queues[queue].waiting.fetch_add(1, SeqCst);
        pushed = entry.commit(&shared.device, &server.staged.borrow());
        // What the reply lends the kernel is held until it has the reply, not until the next request.
        let short = ring.queues[queue].short.load(SeqCst);
        if pushed.is_ok() && (short != 0 || reply.is_some()) {
            pushed = entry.submit();
            if short != 0 && !entry.has_come() {
                // Unless there is an even newer entry by now.
                let _ = ring.queues[queue].short.compare_exchange(short, 0, SeqCst, SeqCst);
            }
        }
        drop(reply);
    };
    ring.queues[queue].waiting.fetch_sub(1, SeqCst);
    shared.in_hand.remove_slot(&slot);
    let over = [Raw::NOTCONN, Raw::CONNABORTED, Raw::NODEV, Raw::CANCELED];
    if over.iter().any(|r| ended.raw_os_error() == Some(r.raw_os_error())) {
        ring.ended.store(true, SeqCst);
        ring.watch.end();
    } else {
        tracing::warn!(error = %ended, "the kernel refused a reply");
        ensure_waiting(shared, ring, queue);
    }
}

/// Binds this thread to the core whose callers it serves; best effort.
pub(super) fn stay_on(core: usize) {
    if core < CpuSet::MAX_CPU {
        let mut one = CpuSet::new();
        one.set(core);
        let _ = sched_setaffinity(None, &one);
    }
}

struct Server<'a> {
    shared: &'a Arc<Shared>,
    ring: &'a Arc<Ring>,
    slot: &'a Arc<Slot>,
    listing: Vec<u8>,
    staged: RefCell<Staged>,
}

impl<'a> Server<'a> {
    /// Handles the request that has come to `entry`; afterwards `staged` is its reply. What it returns is to be dropped when the kernel has that.
    fn request(&mut self, entry: &mut Entry) -> Option<Answered<'a>> {
        self.ring.begin(entry.queue());
        ensure_waiting(self.shared, self.ring, entry.queue());
        let (header, is_whole) = entry.put_together();
        let owed = OnceCell::new();
        let told = if self.ring.is_nudge(header.pid) {
            self.staged.get_mut().set(-Errno::Intr.raw(), &[]);
            None
        } else if is_whole {
            self.work(entry, &header, &owed)
        } else {
            self.staged.get_mut().set(-Errno::Io.raw(), &[]);
            None
        };
        self.ring.busy.fetch_sub(1, SeqCst);
        if let Some(owed) = owed.into_inner() {
            self.ring.watch.waits(header.pid, header.unique);
            *self.staged.get_mut() = owed.wait();
        }
        told
    }

    fn work(&mut self, entry: &mut Entry, header: &InHeader, owed: &OnceCell<Arc<Owed>>) -> Option<Answered<'a>> {
        let interrupt = self.shared.in_hand.enter(self.slot, header.unique);
        let hook = Hook { ring: self.ring, tid: header.pid, unique: header.unique };
        let caller = Caller {
            uid: header.uid,
            gid: header.gid,
            tid: header.pid,
            create_group: None,
            interrupt: &interrupt,
            before_blocking: Some(&hook),
        };
        let answered = AtomicBool::new(false);
        let lent = Lent {
            receive: entry.memory(),
            unit: None,
            listing: &mut self.listing,
            answered: &answered,
            late: (Late::Thread(owed), &self.shared.in_hand.late),
            stays: true,
        };
        let (fs, to) = (&*self.shared.fs, ReplyTo::Staged(&self.staged));
        let told = catch_unwind(AssertUnwindSafe(|| handle(fs, caller, lent, &to))).unwrap_or_else(|_| {
            tracing::error!(opcode = header.opcode, "the handler of a request panicked");
            if !answered.load(Relaxed) {
                to.error(Errno::Io);
            }
            None
        });
        self.shared.in_hand.leave(self.slot);
        told
    }
}
