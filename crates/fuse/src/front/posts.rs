//! `Posts`: writes that programs of this machine post without a call (docs/design/preload.md).
//!
//! Owns: the ring of each file that programs post to, the check who may post, and the rule that posted writes are
//! carried out before any request for the file is served. Does not own: the rules of a ring (`amphi_shm`), when a file
//! may be posted to and the steps of a write (the client), which requests wait for which posts (`client_fs/posts`).
//!
//! A ring belongs to a file, so its writes are carried out in the order of its positions. Each write names the handle
//! of an open file, and the program of that open file must have requested a ring here for that file. So a program that
//! forges writes can change only a file that it has open for writing, as it can through a mapping.
//!
//! *Draining* takes the posted writes, joins adjacent ones, and writes them into the cache on the calling thread.
//! Writes that cannot go into the cache at once (the cache is full of dirty bytes, or another call holds the bytes) are
//! left to a task, and every caller that needs the file waits for it. All writes of a file go through one queue, so
//! they keep their order.
//!
//! Invariants: bytes whose write was reported to a program as done are in the ring or in the queue, until they are in
//! the cache or were reported as failed. A program can post only between `admit` and the end of the `Posting`, which
//! ends when the ring was stopped and the queue is empty.
//!
//! Bounds: `FILES_MAX` rings of 4 MiB each; `OWED_MAX` files whose end the kernel may not know.

use super::kernel_view::KernelView;
use crate::calls::Arrival;
use amphi_client::{Buf, Client, Ctx, OpenFile, Pending, PostRights, Posting, UNIT_BYTES};
use amphi_shm::posts::Post;
use amphi_shm::ring::{Reader, Ring, Sink};
use amphi_types::{ByteRange, Errno, Ino, Result};
use parking_lot::Mutex;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::task::{Poll, Waker};

/// Files that programs post to at a time.
const FILES_MAX: usize = 64;
/// Files whose end the kernel may not know; beyond, posts make no file longer.
const OWED_MAX: usize = 4096;
/// Counters of calls that exclude posts, each for all inodes of one hash value.
const BARRIERS: usize = 64;
/// If one post in this many is followed by a read that had to wait for it, posts do not pay.
const READS_PAY: u32 = 4;
/// Reads after which that is decided.
const READS_SEEN: u32 = 16;
/// How often posts to a file may turn out not to pay.
const STRIKES_MAX: u32 = 3;
/// Memory for parts that is kept for each file.
const SPARE_MAX: usize = 4;

/// The right for which a program gets memory.
pub(crate) type Secret = [u8; 16];

/// 16 random bytes.
pub(crate) fn secret() -> std::result::Result<Secret, rustix::io::Errno> {
    let mut bytes = Secret::default();
    match getrandom(&mut bytes[..], GetRandomFlags::empty())? {
        16 => Ok(bytes),
        _ => Err(rustix::io::Errno::AGAIN),
    }
}

/// The files of a mount that programs post to.
pub(crate) struct Posts {
    files: Mutex<BTreeMap<Ino, Arc<Posted>>>,
    any: AtomicBool,
    barriers: [AtomicU32; BARRIERS],
    last_id: AtomicU64,
    owed: Arc<Mutex<BTreeSet<Ino>>>,
    /// The mount ends.
    is_over: AtomicBool,
}

impl Default for Posts {
    fn default() -> Posts {
        Posts {
            files: Mutex::default(),
            any: AtomicBool::new(false),
            barriers: [const { AtomicU32::new(0) }; BARRIERS],
            last_id: AtomicU64::new(0),
            owed: Arc::default(),
            is_over: AtomicBool::new(false),
        }
    }
}

/// A file that programs post to.
pub(crate) struct Posted {
    ino: Ino,
    secret: Secret,
    ring: Ring,
    client: Client,
    view: Arc<KernelView>,
    owed: Arc<Mutex<BTreeSet<Ino>>>,
    work: Mutex<Work>,
}

/// An open file through which programs post.
struct Writer {
    file: Arc<OpenFile>,
    ctx: Ctx,
}

/// Bytes that were taken of the ring.
#[derive(Clone)]
struct Part {
    file: Arc<OpenFile>,
    ctx: Ctx,
    offset: u64,
    bytes: Vec<u8>,
}

impl Part {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

#[derive(Default)]
struct Work {
    reader: Reader,
    writers: BTreeMap<u32, Writer>,
    posting: Option<Posting>,
    /// A program is being admitted.
    is_beginning: bool,
    queue: VecDeque<Part>,
    spare: Vec<Vec<u8>>,
    /// Number of parts that were taken, and of those that were carried out.
    taken: u64,
    done: u64,
    /// A task carries parts out; `starts`: it is about to be started.
    is_busy: bool,
    starts: bool,
    waiting: Vec<Waker>,
    /// Posted writes, and reads that came meanwhile.
    posts: u32,
    reads: u32,
    strikes: u32,
}

/// Receives the posts of a ring.
struct Gather<'a> {
    writers: &'a BTreeMap<u32, Writer>,
    queue: &'a mut VecDeque<Part>,
    spare: &'a mut Vec<Vec<u8>>,
    limit: u64,
    parts: u64,
    posts: u32,
}

impl Sink for Gather<'_> {
    fn place(&mut self, post: &Post) -> Option<&mut [u8]> {
        let writer = self.writers.get(&post.handle)?;
        if post.offset + u64::from(post.len) > self.limit {
            return None;
        }
        let (unit, len) = (UNIT_BYTES as u64, post.len as usize);
        let goes_on = |part: &Part| {
            part.end() == post.offset
                && part.offset / unit == (post.offset + len as u64 - 1) / unit
                && Arc::ptr_eq(&part.file, &writer.file)
        };
        // The first parts may be under way; the parts that this drain has added are not.
        if self.parts == 0 || !self.queue.back().is_some_and(goes_on) {
            let bytes = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(UNIT_BYTES));
            let (file, ctx) = (writer.file.clone(), writer.ctx.clone());
            self.queue.push_back(Part { file, ctx, offset: post.offset, bytes });
            self.parts += 1;
        }
        self.posts += 1;
        let bytes = &mut self.queue.back_mut()?.bytes;
        let at = bytes.len();
        bytes.resize(at + len, 0);
        bytes.get_mut(at..)
    }
}

impl Posted {
    /// The memory, for programs.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.ring.fd()
    }

    /// Works on the state, and starts the task if that has become necessary.
    fn with<T>(self: &Arc<Self>, work_on: impl FnOnce(&mut Work) -> T) -> T {
        let mut work = self.work.lock();
        let result = work_on(&mut work);
        let starts = std::mem::take(&mut work.starts);
        drop(work);
        if starts {
            self.client.spawn(Task { posted: self.clone(), is_over: false }.run());
        }
        result
    }

    fn gather(&self, work: &mut Work) {
        if !self.ring.has_posts(&work.reader) {
            return;
        }
        let Work { reader, writers, queue, spare, posting, .. } = work;
        let limit = posting.as_ref().map_or(0, Posting::limit);
        let mut gather = Gather { writers, queue, spare, limit, parts: 0, posts: 0 };
        self.ring.drain(reader, &mut gather);
        let (parts, posts) = (gather.parts, gather.posts);
        work.taken += parts;
        work.posts += posts;
        work.posting.iter().for_each(|posting| posting.count(posts));
        let queued = work.queue.len() as u64;
        assert_eq!(work.taken - work.done, queued, "{}: {queued} parts of posted writes are queued", self.ino);
    }

    /// Executes the posts that can be executed at once. Returns whether that is everything.
    fn carry_out(&self, work: &mut Work) -> bool {
        while !work.is_busy
            && let Some(part) = work.queue.front()
        {
            let writes =
                |posting: &Posting| posting.try_write(&self.client, &part.ctx, &part.file, part.offset, &part.bytes);
            if work.posting.as_ref().is_some_and(writes) {
                Self::part_is_done(work);
            } else if !self.use_room(work) {
                break;
            }
        }
        work.queue.is_empty()
    }

    /// Uses the room that is set aside for the writes that were posted, and permits no further posts. Returns whether
    /// there was any such room.
    fn use_room(&self, work: &mut Work) -> bool {
        if work.posting.is_none() {
            return false;
        }
        self.ring.set_limit(0);
        self.gather(work);
        work.posting.as_mut().is_some_and(Posting::uncover)
    }

    fn part_is_done(work: &mut Work) {
        let Some(Part { mut bytes, .. }) = work.queue.pop_front() else { return };
        work.done += 1;
        if work.spare.len() < SPARE_MAX {
            bytes.clear();
            work.spare.push(bytes);
        }
    }

    /// Takes and carries out what is posted. Returns the number of the last part if a task has to do the rest.
    fn drain(&self, work: &mut Work) -> Option<u64> {
        self.gather(work);
        if self.carry_out(work) {
            if self.ring.is_stopped() {
                self.end(work);
            }
            return None;
        }
        work.starts |= !std::mem::replace(&mut work.is_busy, true);
        Some(work.taken)
    }

    /// From now on no write can be posted. Writes that were posted before are executed as by `drain`.
    fn stop(&self, work: &mut Work) -> Option<u64> {
        self.ring.set_limit(0);
        self.drain(work)
    }

    /// Ends the posting, if the ring is stopped and everything was carried out.
    fn end(&self, work: &mut Work) {
        assert!(
            work.queue.is_empty() || std::thread::panicking(),
            "{}: posting ends before {} parts are carried out",
            self.ino,
            work.queue.len()
        );
        if let Some(posting) = work.posting.take() {
            if posting.has_grown() {
                self.owed.lock().insert(self.ino);
            }
            drop(posting);
            self.view.posts_end(self.ino);
        }
        (work.posts, work.reads) = (0, 0);
    }

    /// Waits until this many parts were carried out.
    fn settled(self: &Arc<Self>, upto: u64) -> Pending<()> {
        let this = self.clone();
        let run = poll_fn(move |cx| {
            let mut work = this.work.lock();
            if work.done >= upto {
                return Poll::Ready(Ok(()));
            }
            work.waiting.push(cx.waker().clone());
            Poll::Pending
        });
        Posting::settling(&self.client, run)
    }
}

/// The task that carries out what has to wait.
struct Task {
    posted: Arc<Posted>,
    is_over: bool,
}

impl Task {
    async fn run(mut self) {
        while let Some((rights, Part { file, ctx, offset, bytes: data })) = self.next() {
            let range = ByteRange::at(offset, data.len() as u64);
            let mut at = range.start;
            while at < range.end {
                let mut rest = Buf::scratch((range.end - at) as usize);
                rest.copy_from_slice(&data[(at - range.start) as usize..]);
                match rights.write(&self.posted.client, &ctx, &file, at, rest).await {
                    Ok(n @ 1..) => at += n as u64,
                    failed => {
                        let (e, ino) = (failed.err().unwrap_or(Errno::Io), self.posted.ino);
                        tracing::warn!(%ino, ?range, "a write that a program has posted failed: {e}");
                        Posting::failed(&file, ByteRange::new(at, range.end), e);
                        break;
                    }
                }
            }
            // The posting may end with its last part.
            drop(rights);
            self.with(Posted::part_is_done);
        }
    }

    fn with(&self, work_on: impl FnOnce(&mut Work)) {
        let mut work = self.posted.work.lock();
        work_on(&mut work);
        let waiting = std::mem::take(&mut work.waiting);
        drop(work);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The next part; it stays in the queue until it is done. If there is none, the task ends.
    fn next(&mut self) -> Option<(PostRights, Part)> {
        let mut work = self.posted.work.lock();
        if let Some(part) = work.queue.front() {
            let rights = work.posting.as_ref().map_or(PostRights::Sole, Posting::rights);
            return Some((rights, part.clone()));
        }
        (work.is_busy, self.is_over) = (false, true);
        if self.posted.ring.is_stopped() {
            self.posted.end(&mut work);
        }
        None
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // The client has ended: posted writes are no longer carried out.
        self.with(|work| {
            while !work.queue.is_empty() {
                Posted::part_is_done(work);
            }
            work.is_busy = false;
            if self.posted.ring.is_stopped() {
                self.posted.end(work);
            }
        });
    }
}

impl Posts {
    /// Returns whether programs may post to a file.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(SeqCst)
    }

    fn get(&self, ino: Ino) -> Option<Arc<Posted>> {
        if self.any() { self.files.lock().get(&ino).cloned() } else { None }
    }

    fn all(&self) -> Vec<Arc<Posted>> {
        if self.any() { self.files.lock().values().cloned().collect() } else { Vec::new() }
    }

    /// The file whose ring is given for this secret.
    pub(crate) fn find(&self, secret: &Secret) -> Option<Arc<Posted>> {
        self.files.lock().values().find(|posted| posted.secret == *secret).cloned()
    }

    /// Admits programs that have `file` open under `handle`. `wait` waits for the client. Returns the number of the
    /// ring and its secret.
    pub(crate) fn admit(
        &self,
        (client, view): (&Client, &Arc<KernelView>),
        (handle, file, pid): (u64, &Arc<OpenFile>, u32),
        wait: impl FnOnce(Pending<Option<Posting>>) -> Result<Option<Posting>>,
    ) -> Option<(u64, Secret)> {
        let handle = u32::try_from(handle).ok()?;
        let posted = self.posted(client, view, file.ino())?;
        let told = (posted.ring.id(), posted.secret);
        let writer = Writer { file: file.clone(), ctx: Ctx { pid, tid: pid, ..Ctx::default() } };
        {
            let mut work = posted.work.lock();
            if work.strikes >= STRIKES_MAX || work.is_beginning {
                return None;
            }
            if let Some(posting) = &work.posting {
                // A stopped ring is that of a posting which is ending. Each open file is checked: that others may post
                // does not mean that the holder of this one may write.
                if posted.ring.is_stopped() || !posting.admits(file) {
                    return None;
                }
                work.writers.insert(handle, writer);
                return Some(told);
            }
            work.is_beginning = true;
        }
        // From now on the kernel gets no attributes with a timeout.
        view.posts_begin(posted.ino);
        let may_extend = self.owed.lock().len() < OWED_MAX;
        let posting = wait(Posting::begin(client, file, may_extend)).ok().flatten();
        let mut work = posted.work.lock();
        assert!(work.is_beginning && work.posting.is_none(), "{}: posting begins twice", posted.ino);
        work.is_beginning = false;
        let Some(posting) = posting else {
            drop(work);
            view.posts_end(posted.ino);
            return None;
        };
        let limit = posting.limit();
        work.posting = Some(posting);
        // A call that excludes posts counts itself first, and then looks for a posting. So does the end of the mount.
        // Whoever wants the locks of the posting rings, which does nothing before the posting is here.
        let is_over = self.is_over.load(SeqCst) || work.posting.as_ref().is_none_or(Posting::is_over);
        if self.barrier(posted.ino).load(SeqCst) > 0 || limit == 0 || is_over {
            posted.end(&mut work);
            return None;
        }
        work.writers.insert(handle, writer);
        posted.ring.reopen(limit);
        Some(told)
    }

    /// The file of a program that asks, with a ring that can be used.
    fn posted(&self, client: &Client, view: &Arc<KernelView>, ino: Ino) -> Option<Arc<Posted>> {
        let mut files = self.files.lock();
        if self.is_over.load(SeqCst) {
            return None;
        }
        if let Some(posted) = files.get(&ino) {
            posted.with(|work| posted.drain(work));
            if !posted.ring.is_stuck() {
                return Some(posted.clone());
            }
            // Programs find the former ring stopped, and request a new one.
            if posted.with(|work| posted.stop(work)).is_some() {
                return None;
            }
            files.remove(&ino);
        }
        if files.len() >= FILES_MAX {
            let is_idle = |posted: &Arc<Posted>| {
                let work = posted.work.lock();
                work.posting.is_none() && !work.is_beginning && work.queue.is_empty()
            };
            let idle = files.iter().find(|(_, posted)| is_idle(posted)).map(|(ino, _)| *ino)?;
            files.remove(&idle);
        }
        let ring =
            Ring::new(self.last_id.fetch_add(1, SeqCst) + 1).inspect_err(|e| tracing::debug!("no ring: {e}")).ok()?;
        let posted = Arc::new(Posted {
            ino,
            secret: secret().ok()?,
            ring,
            client: client.clone(),
            view: view.clone(),
            owed: self.owed.clone(),
            work: Mutex::default(),
        });
        files.insert(ino, posted.clone());
        self.any.store(true, SeqCst);
        Some(posted)
    }

    fn barrier(&self, ino: Ino) -> &AtomicU32 {
        &self.barriers[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % BARRIERS]
    }

    /// Called when a call is to be served that excludes posts to the file. Until the result is dropped, no posting
    /// begins.
    pub(crate) fn exclude(&self, ino: Ino) -> Arrival<'_> {
        Arrival::counted(self.barrier(ino))
    }

    /// Carries out what is posted to the file. `None`: that is done.
    pub(crate) fn drain(&self, ino: Ino, by_read: bool) -> Option<Pending<()>> {
        let posted = self.get(ino)?;
        let rest = posted.with(|work| {
            let mut rest = posted.drain(work);
            if by_read && work.posting.is_some() {
                work.reads += 1;
                if work.reads >= READS_SEEN {
                    if work.reads * READS_PAY > work.posts {
                        work.strikes += 1;
                        rest = posted.stop(work).or(rest);
                    }
                    (work.posts, work.reads) = (0, 0);
                }
            }
            rest
        });
        rest.map(|upto| posted.settled(upto))
    }

    /// Works as `drain`, and nothing more is posted to the file until a program is admitted again.
    pub(crate) fn stop(&self, ino: Ino) -> Option<Pending<()>> {
        let posted = self.get(ino)?;
        posted.with(|work| posted.stop(work)).map(|upto| posted.settled(upto))
    }

    /// Works as `drain`, for all files.
    pub(crate) fn drain_all(&self) -> Vec<Pending<()>> {
        let drain = |posted: Arc<Posted>| {
            let rest = posted.with(|work| posted.drain(work));
            rest.map(|upto| posted.settled(upto))
        };
        self.all().into_iter().filter_map(drain).collect()
    }

    /// Takes what is posted to the file, as far as nothing has to wait. Returns the highest end of those writes that
    /// have to wait; 0: there are none.
    pub(crate) fn take(&self, ino: Ino) -> u64 {
        let Some(posted) = self.get(ino) else { return 0 };
        posted.with(|work| {
            posted.drain(work);
            work.queue.iter().map(Part::end).max().unwrap_or(0)
        })
    }

    /// Called when the handle is closed for good.
    pub(crate) fn released(&self, handle: u64) {
        let Ok(handle) = u32::try_from(handle) else { return };
        for posted in self.all() {
            let is_over = posted.with(|work| {
                if !work.writers.contains_key(&handle) {
                    return false;
                }
                posted.drain(work);
                work.writers.remove(&handle);
                if work.writers.is_empty() {
                    posted.stop(work);
                }
                work.writers.is_empty() && work.posting.is_none() && !work.is_beginning
            });
            if is_over {
                self.remove(&posted);
            }
        }
    }

    /// Called when an open file of the inode was closed.
    pub(crate) fn closed(&self, ino: Ino) {
        if let Some(posted) = self.get(ino) {
            posted.with(|work| {
                if work.posting.as_ref().is_some_and(Posting::is_outgrown) {
                    posted.stop(work);
                }
            });
        }
    }

    fn remove(&self, posted: &Arc<Posted>) {
        let mut files = self.files.lock();
        if files.get(&posted.ino).is_some_and(|known| Arc::ptr_eq(known, posted)) {
            let work = posted.work.lock();
            if work.writers.is_empty() && work.posting.is_none() && !work.is_beginning {
                drop(work);
                files.remove(&posted.ino);
            }
        }
        self.any.store(!files.is_empty(), SeqCst);
    }

    /// Carries out posted writes for which no request has come, and ends postings that are over.
    pub(crate) fn tick(&self) {
        for posted in self.all() {
            posted.with(|work| match work.posting.as_ref().is_some_and(Posting::is_over) {
                true => posted.stop(work),
                false => posted.drain(work),
            });
        }
    }

    /// Called when the mount is about to end: everything is carried out, and from now on nothing is posted.
    pub(crate) fn end(&self) {
        self.is_over.store(true, SeqCst);
        for posted in self.all() {
            let rest = posted.with(|work| posted.stop(work));
            if let Some(upto) = rest {
                // Failures are those of the file.
                let _ = posted.settled(upto).wait(None);
            }
        }
        self.files.lock().clear();
        self.any.store(false, SeqCst);
    }

    /// Returns whether the kernel may not know the end of the file, because posts have moved it. The kernel has to be
    /// informed now.
    pub(crate) fn owes_end(&self, ino: Ino) -> bool {
        self.owed.lock().remove(&ino)
    }
}
