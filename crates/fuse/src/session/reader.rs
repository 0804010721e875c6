//! A reader thread: reads requests from its own device descriptor, handles them, and answers.
//!
//! Owns: the loop of such a thread. Does not own: the memory that requests arrive in (`receive`), how many threads
//! there are (`pool`).
//!
//! Invariants: a thread answers on the descriptor from which it read the request, because the kernel looks for the
//! request there. A panic of a handler gives EIO for its own request and has no other effect. Interrupts and forgets
//! never wait behind a handler.

use super::Shared;
use super::polling::Polling;
use super::pool::{Idle, Next, Parked, Pool};
use super::receive::Receive;
use crate::clock::monotonic_ns;
use crate::dispatch::{Lent, forget, handle};
use crate::interrupt::Slot;
use crate::kernel::flags::bits;
use crate::kernel::opcode::Opcode;
use crate::kernel::structs::{InHeader, ReadIn, WriteIn};
use crate::mount;
use crate::node::Top;
use crate::reply::ReplyTo;
use crate::request::Caller;
use crate::request::{BeforeBlocking, Operation, parse};
use crate::signals::Signals;
use amphi_client::{Apart, CallKind, Served, Wide, has_waited};
use amphi_types::{Errno, Ino};
use rustix::fs::OFlags;
use rustix::io::Errno as Raw;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zerocopy::FromBytes;

/// This many requests in a row from one thread, with no other request served, show that this caller is the only one at
/// the moment.
const LONE_REQUESTS: u32 = 8;

/// Starts the first reader, on the mounted device itself, and the watch.
pub(super) fn start_first(shared: &Arc<Shared>) -> io::Result<()> {
    shared.pool.thread_starts();
    start(shared, Some(shared.device.clone()))?;
    shared.pool.watch_starts();
    let for_watch = shared.clone();
    let watch = move || {
        let pool = for_watch.pool.clone();
        pool.watch(|| start_or_warn(&for_watch));
        // Dropped before the end of the watch is visible.
        drop(for_watch);
        pool.watch_ended();
    };
    let spawned = std::thread::Builder::new().name("amphi-fuse-watch".into()).spawn(watch);
    spawned.map(drop).inspect_err(|_| shared.pool.watch_ended())
}

/// Starts a reader that the pool has counted.
fn start_or_warn(shared: &Arc<Shared>) {
    if let Err(e) = start(shared, None) {
        tracing::warn!(error = %e, "no further reader thread; interrupts may wait");
    }
}

fn start(shared: &Arc<Shared>, device: Option<Arc<OwnedFd>>) -> io::Result<()> {
    let (for_thread, wide) = (shared.clone(), Wide::here());
    let spawned = std::thread::Builder::new().name("amphi-fuse".into()).spawn(move || {
        wide.begin();
        let pool = for_thread.pool.clone();
        let mut count = Counted { shared: Some(for_thread.clone()), pool, reading: true };
        let shared = for_thread;
        // If the device cannot be cloned, several threads share a descriptor.
        let device = device
            .or_else(|| mount::clone_device(&shared.device, OFlags::empty()).map(Arc::new).ok())
            .unwrap_or_else(|| shared.device.clone());
        let ready = mount::clone_device(&shared.device, OFlags::NONBLOCK).map(Arc::new).ok();
        let slot = shared.in_hand.add_slot();
        let (receive, listing) = (Receive::new(shared.config.request_bytes(), shared.ahead.clone()), Vec::new());
        let (last_tid, same_tid, polling) = (0, 0, Polling::new());
        let apart = Apart::new();
        Reader {
            shared: shared.clone(),
            device,
            ready,
            slot: slot.clone(),
            receive,
            listing,
            last_tid,
            same_tid,
            polling,
            apart,
        }
        .run(&mut count);
        shared.in_hand.remove_slot(&slot);
    });
    match spawned {
        // The thread is detached, and the pool counts it until its last statement.
        Ok(_) => Ok(()),
        Err(e) => {
            shared.pool.thread_ended(true);
            Err(e)
        }
    }
}

/// Removes the thread from the pool's count, however the thread ends.
struct Counted {
    /// Dropped before the end of the thread is visible.
    shared: Option<Arc<Shared>>,
    pool: Arc<Pool>,
    reading: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared = None;
        self.pool.thread_ended(self.reading);
    }
}

/// Passes `Caller::will_block` on to the pool.
struct Hook<'a> {
    shared: &'a Arc<Shared>,
    uid: u32,
    /// The handler has called `will_block`.
    blocked: Cell<bool>,
}

impl BeforeBlocking for Hook<'_> {
    fn before_blocking(&self) {
        let again = self.blocked.replace(true);
        if self.shared.pool.will_block((!again).then_some(self.uid)) == Next::SpawnThenWork {
            start_or_warn(self.shared);
        }
    }

    fn is_alone(&self) -> bool {
        self.shared.pool.is_calm()
    }
}

struct Reader {
    shared: Arc<Shared>,
    /// Reads from this descriptor sleep until there is a request.
    device: Arc<OwnedFd>,
    /// Reads from this descriptor never sleep. It is `None` if it could not be opened.
    ready: Option<Arc<OwnedFd>>,
    slot: Arc<Slot>,
    receive: Receive,
    listing: Vec<u8>,
    /// Thread id of the caller whose request was handled last.
    last_tid: u32,
    /// Number of requests of this caller in a row before the last one.
    same_tid: u32,
    polling: Polling,
    apart: Apart,
}

/// A request in the receive buffer.
struct Received {
    device: Arc<OwnedFd>,
    len: usize,
    /// The request was read without a wait.
    at_once: bool,
}

impl Reader {
    fn run(mut self, count: &mut Counted) {
        loop {
            let received = match self.next_request() {
                Ok(Some(received)) => received,
                Ok(None) => {
                    count.reading = false;
                    return;
                }
                // A signal arrived, or the request was interrupted before it was read.
                Err(Raw::INTR | Raw::AGAIN | Raw::NOENT) => continue,
                Err(e) => {
                    if e != Raw::NODEV {
                        // An unmount by force looks the same as an abort by the administrator.
                        tracing::warn!(error = %e, "the connection to the kernel was cut; the mount ends");
                        self.shared.died.store(true, Ordering::Release);
                    }
                    break;
                }
            };
            let Received { mut device, len, at_once } = received;
            let Some(Peeked { opcode, unique, tid, uid, of_pages }) = peek(self.receive.request()) else { continue };
            if self.handle_without_reply(opcode) {
                continue;
            }
            // Other requests may be waiting for the file system's own threads.
            if self.shared.fs.is_own_thread(tid) {
                self.work(&device);
                continue;
            }
            // A RELEASE waits for nothing, and no program waits for its answer. So a RELEASE needs no other reader
            // thread and is no sign of load.
            if [Opcode::Release, Opcode::Releasedir].iter().any(|&o| o as u32 == opcode) {
                self.work(&device);
                continue;
            }
            // If the same caller calls again at once, one thread serves it best. So only requests of other callers
            // count as a queue. The kernel's own requests (thread id 0), such as the RELEASE behind a close, do not
            // count as a caller's.
            let queued = at_once && tid != self.last_tid && tid != 0;
            if tid != 0 {
                self.same_tid = if tid == self.last_tid { self.same_tid.saturating_add(1) } else { 0 };
                self.last_tid = tid;
            }
            // Requests that may end waits of others (the unlock of a group, a close) do not count against the share.
            let ends_waits = [Opcode::Flush, Opcode::Ioctl].iter().any(|&o| o as u32 == opcode);
            let share = (!of_pages && !ends_waits).then_some(uid);
            match self.shared.pool.request_read(len, queued, of_pages, share) {
                Next::Work => {}
                Next::SpawnThenWork => start_or_warn(&self.shared),
                Next::Park => {
                    let bytes = self.receive.detach();
                    match self.shared.pool.park(Parked { device, unique, bytes, urgent: of_pages, share }) {
                        None => {
                            // Another thread may have read the interrupt of the request before the request was in the
                            // backlog.
                            if self.shared.in_hand.take_early(unique) && !self.interrupt_parked(unique) {
                                self.shared.in_hand.interrupt(unique);
                            }
                            continue;
                        }
                        Some(parked) => {
                            self.receive.attach(parked.bytes);
                            device = parked.device;
                        }
                    }
                }
            }
            count.reading = false;
            self.work(&device);
            while let Some(parked) = self.shared.pool.work_done() {
                self.receive.attach(parked.bytes);
                self.work(&parked.device);
            }
            count.reading = true;
        }
        // The mount has ended, so no program needs the handlers that are still blocked.
        self.shared.pool.end();
        self.shared.in_hand.fire_all();
    }

    /// The next request; `None` when the pool wants the thread to end.
    fn next_request(&mut self) -> Result<Option<Received>, Raw> {
        let keeps_units = self.shared.fs.keeps_units();
        loop {
            if let Some(ready) = &self.ready {
                match self.receive.read(ready, keeps_units) {
                    Ok(len) => return Ok(Some(Received { device: ready.clone(), len, at_once: true })),
                    Err(Raw::AGAIN) => {}
                    Err(e) => return Err(e),
                }
            }
            match self.shared.pool.device_empty() {
                Idle::Read => {}
                Idle::Woken => continue,
                Idle::Leave => return Ok(None),
            }
            if let Some(polled) = self.poll_device(keeps_units) {
                return polled.map(Some);
            }
            let len = self.receive.read(&*self.device, keeps_units)?;
            return Ok(Some(Received { device: self.device.clone(), len, at_once: false }));
        }
    }

    /// Polls for the configured time, if that is likely to find a request. `None` means that nothing came, or that
    /// another thread polls.
    fn poll_device(&mut self, keeps_units: bool) -> Option<Result<Received, Raw>> {
        let budget = self.shared.config.spin;
        let ready = self.ready.as_ref().filter(|_| !budget.is_zero())?;
        if !self.polling.begins() || self.shared.polling.swap(true, Ordering::Acquire) {
            return None;
        }
        let mut found = None;
        while found.is_none() && self.polling.goes_on(budget) {
            found = match self.receive.read(ready, keeps_units) {
                Err(Raw::AGAIN) => None,
                Err(e) => Some(Err(e)),
                Ok(len) => Some(Ok(Received { device: ready.clone(), len, at_once: false })),
            };
        }
        self.polling.ends(found.is_some());
        self.shared.polling.store(false, Ordering::Release);
        found
    }

    /// Handles interrupts and forgets, at once and without a reply.
    fn handle_without_reply(&mut self, opcode: u32) -> bool {
        if ![Opcode::Interrupt, Opcode::Forget, Opcode::BatchForget].iter().any(|&o| o as u32 == opcode) {
            return false;
        }
        match parse(self.receive.request()) {
            Ok(request) => match request.op {
                Operation::Interrupt { target } if self.interrupt_parked(target) => {}
                Operation::Interrupt { target } => {
                    self.shared.in_hand.interrupt(target);
                    // The request may have been put into the backlog meanwhile, by a thread that saw no interrupt yet.
                    self.interrupt_parked(target);
                }
                _ => {
                    let done = catch_unwind(AssertUnwindSafe(|| forget(&*self.shared.fs, &request)));
                    if done.is_err() {
                        tracing::error!("forgetting an inode panicked");
                    }
                }
            },
            Err(e) => tracing::warn!(unique = e.unique, "malformed request without reply"),
        }
        true
    }

    /// If request `unique` is in the backlog, answers it with EINTR. Returns whether it has answered. If no signal
    /// concerns the caller, the request stays in the backlog.
    fn interrupt_parked(&self, unique: u64) -> bool {
        let tid = self.shared.pool.parked_by(unique);
        if tid.is_none_or(|tid| Signals::of(tid) == Signals::Nothing) {
            return false;
        }
        let parked = self.shared.pool.unpark(unique);
        parked.iter().for_each(|p| ReplyTo::new(p.device.as_fd(), unique, 0).error(Errno::Intr));
        parked.is_some()
    }

    /// Handles the request in the receive buffer and answers it on `device`.
    fn work(&mut self, device: &Arc<OwnedFd>) {
        let Ok((header, _)) = InHeader::read_from_prefix(self.receive.request()) else { return };
        let begin_ns = monotonic_ns();
        let to = ReplyTo::new(device.as_fd(), header.unique, begin_ns).of(kind_of(header.opcode));
        let interrupt = self.shared.in_hand.enter(&self.slot, header.unique);
        let hook = Hook { shared: &self.shared, uid: header.uid, blocked: Cell::new(false) };
        let caller = Caller {
            uid: header.uid,
            gid: header.gid,
            tid: header.pid,
            node: Top(self.shared.fs.root()).named(Ino(header.nodeid)),
            create_group: None,
            umask: 0,
            interrupt: &interrupt,
            before_blocking: Some(&hook),
            deferral: None,
        };
        let answered = AtomicBool::new(false);
        let late = (device, &self.shared.in_hand.late);
        let (receive, unit) = self.receive.memory();
        let lent = Lent { receive, unit, listing: &mut self.listing, answered: &answered, late };
        let fs = &*self.shared.fs;
        let read = catch_unwind(AssertUnwindSafe(|| handle(fs, caller, lent, &to))).unwrap_or_else(|_| {
            tracing::error!(opcode = header.opcode, "the handler of a request panicked");
            if !answered.load(Ordering::Relaxed) {
                to.error(Errno::Io);
            }
            None
        });
        let took_ns = monotonic_ns() - begin_ns;
        if let Some(recorded) = to.take_recorded() {
            fs.recorded(*recorded);
        }
        self.polling.served(took_ns);
        let waited = has_waited();
        self.apart.served(waited, Duration::from_nanos(took_ns));
        // A request that is given away is counted when it is answered.
        if let (Some((kind, _)), Some(times), false) = (to.timed(), fs.call_times(), to.is_given_away()) {
            times.add(kind, if waited { Served::Waited } else { Served::AtOnce }, took_ns);
        }
        self.shared.in_hand.leave(&self.slot);
        if hook.blocked.get() {
            self.shared.pool.unblocked(header.uid);
        }
        let is_lone = || self.same_tid >= LONE_REQUESTS && self.shared.pool.works_alone();
        let follows = |how: crate::calls::ReadHow| {
            if how.into_page_cache || is_lone() {
                fs.read_answered(&how);
            }
            fs.read_followed(&how);
        };
        if let Some(how) = read
            && catch_unwind(AssertUnwindSafe(|| follows(how))).is_err()
        {
            tracing::error!("what follows a read panicked");
        }
    }
}

/// The kind under which the time of a call is counted. A call for a lock waits for other programs, so it says nothing.
fn kind_of(opcode: u32) -> Option<CallKind> {
    Some(match Opcode::from_raw(opcode)? {
        Opcode::Open | Opcode::Opendir => CallKind::Open,
        Opcode::Create | Opcode::Tmpfile | Opcode::Mknod | Opcode::Mkdir | Opcode::Symlink | Opcode::Link => {
            CallKind::Create
        }
        Opcode::Read => CallKind::Read,
        Opcode::Write => CallKind::Write,
        Opcode::Getattr | Opcode::Statx => CallKind::Stat,
        Opcode::Lookup => CallKind::Lookup,
        Opcode::Setattr => CallKind::SetAttr,
        Opcode::Readdir | Opcode::Readdirplus => CallKind::List,
        Opcode::Fsync | Opcode::Fsyncdir | Opcode::Syncfs => CallKind::Fsync,
        Opcode::Flush => CallKind::Close,
        Opcode::Unlink | Opcode::Rmdir => CallKind::Remove,
        Opcode::Rename | Opcode::Rename2 => CallKind::Rename,
        _ => return None,
    })
}

/// The data of a request that a reader needs before it is parsed.
struct Peeked {
    opcode: u32,
    unique: u64,
    /// Thread id of the caller.
    tid: u32,
    /// User of the caller.
    uid: u32,
    /// The kernel fills or writes back pages of its own cache.
    of_pages: bool,
}

fn peek(bytes: &[u8]) -> Option<Peeked> {
    let (header, rest) = InHeader::read_from_prefix(bytes).ok()?;
    let opcode = header.opcode;
    let fills = |(read, _): (ReadIn, &[u8])| read.read_flags & bits::READ_LOCKOWNER == 0;
    let writes_back = |(write, _): (WriteIn, &[u8])| write.write_flags & bits::WRITE_CACHE != 0;
    let of_pages = (opcode == Opcode::Read as u32 && ReadIn::read_from_prefix(rest).is_ok_and(fills))
        || (opcode == Opcode::Write as u32 && WriteIn::read_from_prefix(rest).is_ok_and(writes_back));
    Some(Peeked { opcode, unique: header.unique, tid: header.pid, uid: header.uid, of_pages })
}
