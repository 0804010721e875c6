//! Queues of requests, in the form of io_uring: a program submits many requests, and takes the completions.
//!
//! Owns: which requests are under way, and their completions. Does not own: what a request does (`cluster`, `node`).
//!
//! A queue is used by one thread at a time; there may be many. Over a cluster, requests that the cache serves are
//! complete at once. The others begin on the submitting thread and continue on the client's thread, with or without a
//! waiting thread. The thread that takes the completion copies the bytes. Over a mount the requests go through an
//! io_uring on the kernel's descriptors.
//!
//! Invariant: each request has one completion, also when its client ends before it.

use crate::abi::*;
use crate::cluster::{Cluster, ClusterFile, place};
use crate::failure::{Done, Fail, fail};
use crate::memory::Lent;
use crate::node::{Bytes, NodeFile, Piece, length};
use crate::ways::{File, Fs};
use amphi_client::{Clock, Hints, Pending, Segments, Spin};
use amphi_host::clock::Machine;
use crossbeam_queue::ArrayQueue;
use futures_util::stream::{FuturesUnordered, StreamExt};
use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::Thread;
use std::time::Duration;

/// Requests that a queue may have under way, at most.
const DEPTH_MAX: u32 = 4096;
/// Bytes that a request moves, at most: then it is short.
const REQUEST_MAX: usize = 16 << 20;
/// How long a thread that waits polls before it sleeps, if nobody else needs its core.
const SPIN: Duration = Duration::from_micros(50);

/// A request and the file that it names.
pub(crate) type Asked = (AmphiRequest, Done<File>);

/// A queue.
pub(crate) struct Queue(Mutex<Way>);

enum Way {
    Cluster(ClusterQueue),
    Node(Box<NodeQueue>),
}

impl Queue {
    pub(crate) fn open(fs: &Fs, depth: u32) -> Done<Queue> {
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(Fail::new(libc::EINVAL, format!("a queue has 1 to {DEPTH_MAX} requests")));
        }
        Ok(Queue(Mutex::new(match fs {
            Fs::Cluster(fs) => Way::Cluster(ClusterQueue::new(fs.clone(), depth as usize)),
            Fs::Node(_) => Way::Node(Box::new(NodeQueue::new(depth)?)),
        })))
    }

    fn used<T>(&self, run: impl FnOnce(&mut Way) -> Done<T>) -> Done<T> {
        match self.0.try_lock() {
            Some(mut way) => run(&mut way),
            None => Err(Fail::new(libc::EBUSY, "another thread uses this queue")),
        }
    }

    /// Accepts requests, as many as fit. Returns how many; an error of one is in its completion.
    ///
    /// Errors: `EAGAIN` if none fits.
    pub(crate) fn submit(&self, count: usize, request: impl Fn(usize) -> Asked) -> Done<i64> {
        self.used(|way| {
            let taken = match way {
                Way::Cluster(queue) => queue.submit(count, request),
                Way::Node(queue) => queue.submit(count, request)?,
            };
            if taken == 0 && count > 0 { fail(libc::EAGAIN) } else { Ok(taken as i64) }
        })
    }

    /// Takes completions: waits until there are `min`, or until `timeout_ns` have gone by (negative: for ever). Does
    /// not wait for more completions than there are requests under way.
    pub(crate) fn take(&self, into: &mut [AmphiCompletion], min: usize, timeout_ns: i64) -> Done<i64> {
        let until_ns = u64::try_from(timeout_ns).ok().map(|ns| Machine.now_ns().saturating_add(ns));
        self.used(|way| {
            let ready = match way {
                Way::Cluster(queue) => queue.wait(min.min(into.len()), until_ns),
                Way::Node(queue) => queue.wait(min.min(into.len()), until_ns)?,
            };
            let count = ready.len().min(into.len());
            ready.drain(..count).zip(into).for_each(|(done, place)| *place = done);
            Ok(count as i64)
        })
    }

    /// Waits for all requests under way, and for a thread that uses the queue now.
    pub(crate) fn close(&self) -> Done<()> {
        match &mut *self.0.lock() {
            Way::Cluster(queue) => {
                queue.wait(usize::MAX, None);
                Ok(())
            }
            Way::Node(queue) => queue.wait(usize::MAX, None).map(drop),
        }
    }
}

/// Memory of the program, which leaves it to the library until the completion was taken.
struct Target(Piece);

// SAFETY: the program has given the memory away.
unsafe impl Send for Target {}

enum Answer {
    Count(usize),
    Data(Segments, Target),
    Failed(i32),
}

struct Finished {
    tag: u64,
    answer: Answer,
    /// Memory that a write uses. Nobody sees the completion before it is back, also if the write has failed.
    lent: Option<Lent>,
}

/// The state that the client's thread shares with the thread that takes completions.
struct Shared {
    done: ArrayQueue<Finished>,
    /// The number of completions that wakes the waiting thread; 0: none waits.
    need: AtomicUsize,
    waiter: Mutex<Option<Thread>>,
}

impl Shared {
    fn push(&self, finished: Finished) {
        // It is large enough for all requests that may be under way.
        let _ = self.done.push(finished);
        let need = self.need.load(SeqCst);
        if need != 0
            && self.done.len() >= need
            && self.need.compare_exchange(need, 0, SeqCst, SeqCst).is_ok()
            && let Some(thread) = &*self.waiter.lock()
        {
            thread.unpark();
        }
    }
}

/// A request under way. However it ends, it leaves a completion.
struct Flight {
    shared: Arc<Shared>,
    tag: u64,
    lent: Option<Lent>,
    is_done: bool,
}

impl Flight {
    fn done(mut self, answer: Answer) {
        self.leave(answer);
    }

    fn leave(&mut self, answer: Answer) {
        self.is_done = true;
        self.shared.push(Finished { tag: self.tag, answer, lent: self.lent.take() });
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.is_done {
            self.leave(Answer::Failed(libc::ENOTCONN));
        }
    }
}

enum Running {
    Read(Pending<Segments>, Target),
    Write(Pending<usize>),
    Sync(Pending<()>),
}

async fn finish(flight: Flight, running: Running) {
    let answer = match running {
        Running::Read(read, target) => match read.await {
            Ok(data) => Answer::Data(data, target),
            Err(e) => Answer::Failed(e.raw()),
        },
        Running::Write(write) => write.await.map_or_else(|e| Answer::Failed(e.raw()), Answer::Count),
        Running::Sync(sync) => sync.await.map_or_else(|e| Answer::Failed(e.raw()), |()| Answer::Count(0)),
    };
    flight.done(answer);
}

struct ClusterQueue {
    fs: Arc<Cluster>,
    depth: usize,
    under_way: usize,
    ready: VecDeque<AmphiCompletion>,
    shared: Arc<Shared>,
    spin: Spin,
}

impl ClusterQueue {
    fn new(fs: Arc<Cluster>, depth: usize) -> ClusterQueue {
        let shared = Shared { done: ArrayQueue::new(depth), need: AtomicUsize::new(0), waiter: Mutex::default() };
        let ready = VecDeque::with_capacity(depth);
        ClusterQueue { fs, depth, under_way: 0, ready, shared: Arc::new(shared), spin: Spin::new() }
    }

    fn submit(&mut self, count: usize, request: impl Fn(usize) -> Asked) -> usize {
        let room = self.depth.saturating_sub(self.under_way + self.ready.len());
        let taken = count.min(room);
        let running = FuturesUnordered::new();
        for at in 0..taken {
            let (request, file) = request(at);
            match file.and_then(|file| begin(&self.fs, &request, file)) {
                Ok(Begun::Done(result)) => self.ready.push_back(AmphiCompletion { tag: request.tag, result }),
                Ok(Begun::Running(begun, lent)) => {
                    self.under_way += 1;
                    let flight = Flight { shared: self.shared.clone(), tag: request.tag, lent, is_done: false };
                    running.push(finish(flight, begun));
                }
                Err(failed) => {
                    self.ready.push_back(AmphiCompletion { tag: request.tag, result: -i64::from(failed.errno) });
                }
            }
        }
        if !running.is_empty() {
            // The completions are added together, so that they wake the thread once.
            self.fs.client.spawn(running.for_each(|()| std::future::ready(())));
        }
        taken
    }

    /// Takes the completions that the client's thread has added.
    fn drain(&mut self) {
        while let Some(finished) = self.shared.done.pop() {
            self.under_way -= 1;
            if let Some(lent) = finished.lent {
                lent.wait();
            }
            let result = match finished.answer {
                Answer::Count(count) => count as i64,
                Answer::Data(data, target) => data.copy_to(target.0.slice_mut()) as i64,
                Answer::Failed(errno) => -i64::from(errno),
            };
            self.ready.push_back(AmphiCompletion { tag: finished.tag, result });
        }
    }

    fn wait(&mut self, min: usize, until_ns: Option<u64>) -> &mut VecDeque<AmphiCompletion> {
        loop {
            self.drain();
            let missing = min.saturating_sub(self.ready.len()).min(self.under_way);
            if missing == 0 || until_ns.is_some_and(|until| Machine.now_ns() >= until) {
                self.spin.progress();
                return &mut self.ready;
            }
            if self.shared.done.len() >= missing || self.spin.turn(SPIN) {
                continue;
            }
            *self.shared.waiter.lock() = Some(std::thread::current());
            self.shared.need.store(missing, SeqCst);
            if self.shared.done.len() < missing {
                match until_ns {
                    None => std::thread::park(),
                    Some(until) => {
                        let left = until.saturating_sub(Machine.now_ns());
                        std::thread::park_timeout(Duration::from_nanos(left));
                    }
                }
            }
            self.shared.need.store(0, SeqCst);
        }
    }
}

enum Begun {
    Done(i64),
    /// The memory is what a write uses.
    Running(Running, Option<Lent>),
}

fn begun<T: Send + 'static>(
    mut pending: Pending<T>,
    done: impl FnOnce(T) -> i64,
    running: impl FnOnce(Pending<T>) -> Running,
) -> Done<Begun> {
    match pending.try_take() {
        Some(result) => Ok(Begun::Done(done(result?))),
        None => Ok(Begun::Running(running(pending), None)),
    }
}

/// The direction and memory of a request.
fn moved(request: &AmphiRequest) -> Done<Piece> {
    let len = usize::try_from(request.len).map_err(|_| Fail { errno: libc::EINVAL, why: None })?;
    let piece = Piece { base: request.buffer, len };
    length(&[piece])?;
    Ok(Piece { len: len.min(REQUEST_MAX), ..piece })
}

fn checked(request: &AmphiRequest) -> Done<()> {
    if request.flags == 0 && request.reserved == 0 { Ok(()) } else { fail(libc::EINVAL) }
}

fn begin(fs: &Arc<Cluster>, request: &AmphiRequest, file: File) -> Done<Begun> {
    checked(request)?;
    let file: Arc<ClusterFile> = match file {
        File::Cluster(file) if Arc::ptr_eq(&file.fs, fs) => file,
        _ => return fail(libc::EXDEV),
    };
    let (client, ctx) = (&fs.client, fs.stream());
    match request.op {
        AMPHI_OP_READ => {
            let piece = moved(request)?;
            let (offset, len) = place(request.offset, piece.len)?;
            if let Some(read) = file.try_read(&mut piece.slice_mut()[..len], offset) {
                return Ok(Begun::Done(read as i64));
            }
            let pending = client.read(&ctx, &file.open, offset, len, Hints::default());
            let copy = |data: Segments| data.copy_to(piece.slice_mut()) as i64;
            begun(pending, copy, |pending| Running::Read(pending, Target(piece)))
        }
        AMPHI_OP_WRITE => {
            let piece = moved(request)?;
            let (offset, len) = place(request.offset, piece.len)?;
            let bytes = &piece.slice()[..len];
            if len == 0 {
                return file.write(bytes, request.offset).map(|written| Begun::Done(written as i64));
            }
            if let Some(written) = file.try_write(bytes, offset) {
                return Ok(Begun::Done(written as i64));
            }
            let (data, lent) = file.bytes_of(bytes, offset);
            let mut pending = client.write(&ctx, &file.open, offset, data, fs.write_hints());
            match pending.try_take() {
                Some(written) => {
                    if let Some(lent) = lent {
                        lent.wait();
                    }
                    Ok(Begun::Done(written? as i64))
                }
                None => Ok(Begun::Running(Running::Write(pending), lent)),
            }
        }
        AMPHI_OP_FSYNC | AMPHI_OP_FDATASYNC => {
            let pending = client.fsync(&ctx, &file.open, request.op == AMPHI_OP_FDATASYNC);
            begun(pending, |()| 0, Running::Sync)
        }
        _ => fail(libc::EINVAL),
    }
}

/// A request in the ring.
struct InRing {
    tag: u64,
    file: Arc<NodeFile>,
    /// For a read: the memory, and the offset in the file.
    read: Option<(Target, u64)>,
}

impl InRing {
    /// The kernel's result, except for reads that end early. The kernel shortens reads of a ring at its own end of the
    /// file, and another mount may have written behind that end. A read by call sends a request to the mount.
    fn result(self, told: i32) -> i64 {
        let told = i64::from(told);
        let (Some((Target(piece), offset)), Ok(read)) = (self.read, usize::try_from(told)) else { return told };
        if read >= piece.len {
            return told;
        }
        let rest = Piece { base: piece.base.cast::<u8>().wrapping_add(read).cast(), len: piece.len - read };
        let more = self.file.read(&[rest], offset as i64 + told);
        told + more.map_or(0, |more| more as i64)
    }
}

struct NodeQueue {
    ring: IoUring,
    depth: usize,
    flights: Vec<Option<InRing>>,
    free: Vec<usize>,
    ready: VecDeque<AmphiCompletion>,
}

impl NodeQueue {
    fn new(depth: u32) -> Done<NodeQueue> {
        let ring = IoUring::new(depth).map_err(|e| {
            Fail::new(e.raw_os_error().unwrap_or(libc::EIO), "io_uring is not available (sysctl or seccomp forbid it)")
        })?;
        let depth = depth as usize;
        let flights = std::iter::repeat_with(|| None).take(depth).collect();
        Ok(NodeQueue { ring, depth, flights, free: (0..depth).collect(), ready: VecDeque::with_capacity(depth) })
    }

    fn under_way(&self) -> usize {
        self.depth - self.free.len()
    }

    fn submit(&mut self, count: usize, request: impl Fn(usize) -> Asked) -> Done<usize> {
        let taken = count.min(self.depth.saturating_sub(self.under_way() + self.ready.len()));
        for at in 0..taken {
            let (request, file) = request(at);
            match file.and_then(|file| self.begin(&request, file)) {
                Ok(None) => {}
                Ok(Some(result)) => self.ready.push_back(AmphiCompletion { tag: request.tag, result }),
                Err(failed) => {
                    self.ready.push_back(AmphiCompletion { tag: request.tag, result: -i64::from(failed.errno) });
                }
            }
        }
        // Requests that the kernel does not accept now it accepts with the next call.
        if let Err(e) = self.ring.submit()
            && !matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::EINTR))
        {
            return fail(e.raw_os_error().unwrap_or(libc::EIO));
        }
        Ok(taken)
    }

    fn begin(&mut self, request: &AmphiRequest, file: File) -> Done<Option<i64>> {
        checked(request)?;
        let File::Node(file) = file else { return fail(libc::EXDEV) };
        let fd = types::Fd(file.raw());
        let mut read = None;
        let entry = match request.op {
            AMPHI_OP_READ => {
                let piece = moved(request)?;
                let (offset, len) = place(request.offset, piece.len)?;
                let piece = Piece { len, ..piece };
                if let Some(read) = file.try_read(&[piece], request.offset) {
                    return Ok(Some(read as i64));
                }
                read = Some((Target(piece), offset));
                opcode::Read::new(fd, piece.base.cast(), len as u32).offset(offset).build()
            }
            AMPHI_OP_WRITE => {
                let piece = moved(request)?;
                let (offset, len) = place(request.offset, piece.len)?;
                opcode::Write::new(fd, piece.base.cast(), len as u32).offset(offset).build()
            }
            AMPHI_OP_FSYNC => opcode::Fsync::new(fd).build(),
            AMPHI_OP_FDATASYNC => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            _ => return fail(libc::EINVAL),
        };
        let Some(at) = self.free.pop() else { return fail(libc::EAGAIN) };
        self.flights[at] = Some(InRing { tag: request.tag, file, read });
        // SAFETY: the program does not touch the memory until it has taken the completion, and the descriptor is held.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(at as u64)) };
        if pushed.is_err() {
            self.flights[at] = None;
            self.free.push(at);
            return fail(libc::EAGAIN);
        }
        Ok(None)
    }

    fn drain(&mut self) {
        for entry in self.ring.completion() {
            let at = entry.user_data() as usize;
            if let Some(flight) = self.flights.get_mut(at).and_then(Option::take) {
                self.free.push(at);
                let tag = flight.tag;
                self.ready.push_back(AmphiCompletion { tag, result: flight.result(entry.result()) });
            }
        }
    }

    fn wait(&mut self, min: usize, until_ns: Option<u64>) -> Done<&mut VecDeque<AmphiCompletion>> {
        loop {
            self.drain();
            let missing = min.saturating_sub(self.ready.len()).min(self.under_way());
            if missing == 0 {
                return Ok(&mut self.ready);
            }
            let waited = match until_ns {
                None => self.ring.submitter().submit_and_wait(missing),
                Some(until) => {
                    let left = until.saturating_sub(Machine.now_ns());
                    if left == 0 {
                        return Ok(&mut self.ready);
                    }
                    let left = types::Timespec::from(Duration::from_nanos(left));
                    self.ring.submitter().submit_with_args(missing, &types::SubmitArgs::new().timespec(&left))
                }
            };
            match waited.map_err(|e| e.raw_os_error().unwrap_or(libc::EIO)) {
                Ok(_) | Err(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
                Err(errno) => return fail(errno),
            }
        }
    }
}
