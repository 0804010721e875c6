//! `Kernel`: a model of the kernel in front of a mount, which keeps pages, attributes and names as they were lent.
//!
//! Owns: what a kernel caches and when it sends requests (Linux 6.18, `fs/fuse`), how late it drops cached data; the
//! decisions of `amphi-fuse` for each answer, in a minimal form (`lend`). Does not own: the timeouts and invalidations,
//! which are the client's own code; who makes calls and which histories are right (`games`).
//!
//! The rules. A `read` requests the attributes when their timeout is over; other size or times drop the pages. A page
//! in the cache is copied, an absent one is read together with some pages after it; the end of the file is checked
//! after that. A mapping sends no request. An invalidation of pages waits for those that are being read. Attributes
//! have a version: each cached answer advances it, and so do writes, truncates and invalidations. The answer to a
//! request from before the last advance is returned to its caller but not cached. No answer is cached during a
//! truncate, except that of the truncate itself. Where another size is cached then the mount repeats the request
//! itself, and pages are invalidated when answers under way have arrived (`amphi-fuse`, `front/sizes.rs`, which has
//! bounds for both). Stores of a program into a mapping are written back late (`stores`). A name is cached for its
//! timeout: from the answer to a request in sole mode, from a walk of the mount's own in shared mode, which can be
//! invalidated. Entries read through an open directory are cached by the time of modification (`listings`). Answers
//! arrive late.
//!
//! Invariant: the kernel runs on a node of its own: it continues to show cached data while the mount is stopped.

pub mod appends;
mod changes;
pub mod directories;
pub mod games;
mod listings;
mod mistakes;
mod names;
mod positions;
mod stores;
mod story;
mod tally;

pub use mistakes::Mistake;
pub use story::Failure;
pub use tally::Tally;

use crate::dice::Dice;
use amphi_client::{Client, Ctx, Hints, KernelPages, LentName, OpenFile, OpenFlags, Rule};
use amphi_env::{Env, SimEnv};
use amphi_types::{Attr, ByteRange, Ino, Kind, Result, Timespec};
use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::StreamExt;
use listings::{Listings, Marks};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stores::Stored;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Most pages that one request reads.
const AHEAD: u64 = 4;
const EXCLUSIVE: u32 = u32::MAX;
/// Answers arrive within this time.
const ARRIVED_NS: u64 = 100_000_000;
/// How often a call that waits for a page or a directory checks it.
const LOOK: Duration = Duration::from_micros(20);

enum Page {
    /// A request for the page is under way.
    Reading,
    There {
        bytes: Vec<u8>,
        /// The time at which the page arrived, if the file ended before the page by then: the bytes are zeros that no
        /// program wrote.
        short_ns: Option<u64>,
        stored: stores::Stored,
    },
}

/// The result of a read of a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown {
    /// The bytes of the page.
    Bytes(Vec<u8>),
    /// Nothing: the file ends before.
    Nothing,
    /// The page contains zeros, because a truncate was executed before the kernel learnt of it.
    Cut,
    /// A store that is not written back yet: other mounts need not see it.
    Unsynced,
}

/// The cached state of a known inode.
#[derive(Default)]
struct Inode {
    /// Answers to questions from before this moment do not count.
    version: u64,
    size: u64,
    mtime: Timespec,
    /// The time until which size and times need not be requested.
    until_ns: u64,
    pages: BTreeMap<u64, Page>,
    /// Changes by this mount under way, and when the last one ended (`amphi-fuse`, `kernel_view`).
    changes: u32,
    changed: u64,
    /// When this mount last truncated it, and how many truncates are under way: no answer is used while one is.
    resized: u64,
    cuts: u32,
    /// When attributes or pages were last taken back.
    taken_back: u64,
    /// Answers with attributes that are on their way.
    telling: u32,
    /// Open files of the inode, and calls that hold it.
    users: u32,
    /// The inode's lock: the number of shared holders; `EXCLUSIVE` for one exclusive holder.
    lock: u32,
    write_back: stores::WriteBack,
    /// The listings of a directory.
    listings: Listings,
}

impl Inode {
    /// Marks the missing page `at`, and some behind it, as being read.
    fn begin_reading(&mut self, at: u64) -> std::ops::Range<u64> {
        let end = (at + AHEAD).min(self.size.div_ceil(PAGE));
        let end = (at..end).find(|n| self.pages.contains_key(n)).unwrap_or(end);
        (at..end).for_each(|n| drop(self.pages.insert(n, Page::Reading)));
        at..end
    }
}

struct Name {
    ino: Ino,
    until_ns: u64,
}

#[derive(Default)]
struct Kept {
    inodes: BTreeMap<Ino, Inode>,
    names: BTreeMap<(Ino, Vec<u8>), Name>,
    /// Names that the mount walks to.
    walking: BTreeSet<(Ino, Vec<u8>)>,
    /// How the mount opens directories.
    marks: BTreeMap<Ino, Marks>,
    /// Counts all that makes answers old.
    moment: u64,
    /// When an inode was forgotten last.
    evicted: u64,
}

/// The object to be invalidated.
enum What {
    Pages(Ino, ByteRange),
    Names(Vec<LentName>),
    Listing(Ino),
}

struct Job {
    what: What,
    done: Box<dyn FnOnce() + Send>,
}

/// The client's interface to the kernel.
struct Door {
    kept: Arc<Mutex<Kept>>,
    jobs: UnboundedSender<Job>,
    mistake: Option<Mistake>,
    count: AtomicU64,
}

impl Door {
    fn send(&self, what: What, done: Box<dyn FnOnce() + Send>) {
        if let Err(e) = self.jobs.unbounded_send(Job { what, done }) {
            (e.into_inner().done)();
        }
    }

    /// Returns whether the object to be invalidated stays, by a planted bug.
    fn forgets(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake) && self.count.fetch_add(1, Relaxed).is_multiple_of(3)
    }
}

impl KernelPages for Door {
    fn drop_pages(&self, ino: Ino, range: ByteRange, done: Box<dyn FnOnce() + Send>) {
        self.send(What::Pages(ino, range), done);
    }

    fn drop_overwritten(&self, ino: Ino, range: ByteRange, done: Box<dyn FnOnce() + Send>) {
        self.drop_pages(ino, range, done);
    }

    fn take_names(&self, names: Vec<LentName>, done: Box<dyn FnOnce() + Send>) {
        self.send(What::Names(names), done);
    }

    fn drop_listings(&self) {
        for (ino, _) in lock(&self.kept).marks.iter().filter(|(_, marks)| marks.are_open()) {
            self.send(What::Listing(*ino), Box::new(|| {}));
        }
    }

    fn drop_attributes(&self, ino: Ino) -> bool {
        if self.forgets(Mistake::DirectoriesStay) {
            return true;
        }
        let kept = &mut *lock(&self.kept);
        kept.moment += 1;
        let moment = kept.moment;
        let Some(inode) = kept.inodes.get_mut(&ino) else { return false };
        if !self.forgets(Mistake::AttributesStay) {
            (inode.version, inode.taken_back, inode.until_ns) = (moment, moment, 0);
        }
        true
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that is open through the kernel.
pub struct Opened {
    file: Arc<OpenFile>,
    /// Whether the kernel serves reads of the file.
    pub serves: bool,
    kernel: Rc<Kernel>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.kernel.release(self.file.ino());
    }
}

/// See the module's head.
pub struct Kernel {
    client: Client,
    env: SimEnv,
    kept: Arc<Mutex<Kept>>,
    mistake: Option<Mistake>,
    dice: RefCell<Dice>,
    /// How late pages are returned, at most, and how late answers arrive, microseconds.
    late_us: (u64, u64),
    tally: Cell<Tally>,
    /// Changes of names under way: they exclude callers that have to send a request for a name.
    renames: Cell<u32>,
    asks: Cell<u32>,
}

impl Kernel {
    /// The kernel in front of `client`; `env` is of a node that is never stopped.
    pub fn new(client: Client, env: SimEnv, dice: Dice, late_us: (u64, u64), mistake: Option<Mistake>) -> Rc<Kernel> {
        let kept = Arc::new(Mutex::default());
        let (jobs, waiting) = unbounded();
        let door = Door { kept: kept.clone(), jobs, mistake, count: AtomicU64::new(0) };
        client.set_pages(Some(Arc::new(door)));
        let kernel = Rc::new(Kernel {
            client,
            env: env.clone(),
            kept,
            mistake,
            dice: RefCell::new(dice),
            late_us,
            tally: Cell::default(),
            renames: Cell::new(0),
            asks: Cell::new(0),
        });
        env.spawn(kernel.clone().serve(waiting));
        kernel
    }

    /// Counts of what the kernel did.
    pub fn tally(&self) -> Tally {
        self.tally.get()
    }

    /// Ends the kernel; nothing is taken back any more.
    pub fn unmounted(&self) {
        self.client.set_pages(None);
    }

    fn count(&self, one: impl Fn(&mut Tally)) {
        let mut tally = self.tally.get();
        one(&mut tally);
        self.tally.set(tally);
    }

    fn now_ns(&self) -> u64 {
        self.env.now().0
    }

    async fn late(&self, most_us: u64) {
        let us = {
            let mut dice = self.dice.borrow_mut();
            // Mostly soon, sometimes as late as may be.
            let most_us = if dice.one_in(8) { most_us } else { most_us / 50 };
            dice.below(most_us + 1)
        };
        self.env.sleep(Duration::from_micros(us)).await;
    }

    async fn serve(self: Rc<Self>, mut jobs: UnboundedReceiver<Job>) {
        while let Some(job) = jobs.next().await {
            let own = self.clone();
            self.env.spawn(async move {
                match job.what {
                    What::Pages(ino, range) => {
                        own.late(own.late_us.0).await;
                        own.invalidate(ino, range).await;
                    }
                    What::Names(names) => own.take_names(&names).await,
                    What::Listing(ino) => {
                        own.late(own.late_us.0).await;
                        own.drop_listing(ino);
                    }
                }
                (job.done)();
            });
        }
    }

    /// Drops pages as an invalidation does: waits for those that are being read.
    async fn invalidate(&self, ino: Ino, range: ByteRange) {
        self.count(|t| t.drops += 1);
        let end_ns = self.now_ns() + ARRIVED_NS;
        while self.mistake != Some(Mistake::DroppedSizes)
            && self.now_ns() < end_ns
            && lock(&self.kept).inodes.get(&ino).is_some_and(|inode| inode.telling > 0)
        {
            self.env.sleep(LOOK).await;
        }
        {
            let kept = &mut *lock(&self.kept);
            kept.moment += 1;
            let Some(inode) = kept.inodes.get_mut(&ino) else { return };
            (inode.version, inode.taken_back, inode.until_ns) = (kept.moment, kept.moment, 0);
        }
        self.drop_pages(ino, range).await;
    }

    /// Drops pages; changed ones are written back first.
    async fn drop_pages(&self, ino: Ino, range: ByteRange) {
        let numbers = range.start / PAGE..range.end.div_ceil(PAGE);
        let reads_stay = self.mistake == Some(Mistake::ReadsStay);
        loop {
            let (is_busy, changed) = {
                let kept = &mut *lock(&self.kept);
                let Some(inode) = kept.inodes.get_mut(&ino) else { return };
                let (mut is_busy, mut changed, mut dropped) = (false, None, 0);
                inode.pages.retain(|number, page| match page {
                    _ if !numbers.contains(number) => true,
                    Page::Reading => {
                        is_busy |= !reads_stay;
                        true
                    }
                    Page::There { stored: Stored::Dirty(_), .. } if self.loses_stores(*number) => false,
                    Page::There { stored: Stored::Dirty(_), .. } => {
                        changed = changed.or(Some(*number));
                        true
                    }
                    Page::There { stored: Stored::Writing, .. } => {
                        is_busy = true;
                        true
                    }
                    Page::There { .. } => {
                        dropped += 1;
                        self.mistake == Some(Mistake::PagesStay) && number % 3 == 0
                    }
                });
                self.count(|t| t.dropped += dropped);
                (is_busy, changed)
            };
            match changed {
                Some(number) => drop(self.write_back(ino, number).await),
                None if is_busy => self.env.sleep(LOOK).await,
                None => return,
            }
        }
    }

    /// Holds an inode. The inode becomes known by its attributes, as by a walk to its name.
    async fn hold(&self, ctx: &Ctx, ino: Ino) -> Result<()> {
        loop {
            if let Some(inode) = lock(&self.kept).inodes.get_mut(&ino) {
                inode.users += 1;
                return Ok(());
            }
            self.size(ctx, ino).await?;
        }
    }

    fn release(&self, ino: Ino) {
        if let Some(inode) = lock(&self.kept).inodes.get_mut(&ino) {
            inode.users -= 1;
        }
    }

    /// Forgets an unused inode, as for want of memory.
    pub fn evict(&self, ino: Ino) {
        let kept = &mut *lock(&self.kept);
        let reading = |inode: &Inode| inode.pages.values().any(|page| matches!(page, Page::Reading));
        if kept.inodes.get(&ino).is_some_and(|i| i.users == 0 && i.changes == 0 && !reading(i)) {
            kept.inodes.remove(&ino);
            kept.names.retain(|_, name| name.ino != ino);
            kept.moment += 1;
            kept.evicted = kept.moment;
        }
    }

    /// The timeout for attributes requested at `asked`: as `amphi-fuse` decides it, with the guards that it holds until
    /// the answer has been written.
    fn lend(&self, rule: Rule, asked: u64, attr: &Attr) -> (Duration, Option<amphi_client::Lending>) {
        let lending = self.client.lend(rule);
        if attr.kind == Kind::Dir {
            // The kernel would take the answer for later than the change that crossed it.
            if self.client.is_alone() && !self.client.lends_directories(rule) {
                return (Duration::ZERO, lending);
            }
            self.shown(attr);
        }
        let life = match &lending {
            Some(lending) => lending.life(),
            None => self.client.lend_attributes(attr),
        };
        let kept = lock(&self.kept);
        let changing = kept.inodes.get(&attr.ino).is_some_and(|i| i.changes > 0 || i.changed > asked);
        (if changing { Duration::ZERO } else { life }, lending)
    }

    fn moment(&self) -> u64 {
        lock(&self.kept).moment
    }

    /// An answer with attributes requested at `asked` is given, and arrives late. Returns false if another size is
    /// cached behind it, so that the mount repeats the request.
    pub(super) async fn tell(&self, asked: u64, attr: &Attr, life: Duration) -> bool {
        let telling = |by: i32| {
            if let Some(inode) = lock(&self.kept).inodes.get_mut(&attr.ino) {
                inode.telling = inode.telling.saturating_add_signed(by);
            }
        };
        telling(1);
        self.late(self.late_us.1).await;
        let is_kept = self.told(asked, attr, life).await;
        telling(-1);
        let kept = lock(&self.kept);
        let Some(inode) = kept.inodes.get(&attr.ino) else { return true };
        // The time of a directory that the kernel uses does not matter: its listing has gone.
        is_kept
            || attr.kind == Kind::Dir
            || match self.mistake {
                Some(Mistake::DroppedSizes) => true,
                Some(Mistake::CrossingAnswers) => inode.taken_back <= asked,
                _ => inode.size == attr.size,
            }
    }

    /// An answer has arrived that shows attributes requested at `asked`. It is cached unless an event has made it old;
    /// returns whether it was cached.
    async fn told(&self, asked: u64, attr: &Attr, life: Duration) -> bool {
        let drops = {
            let now = self.now_ns();
            let kept = &mut *lock(&self.kept);
            let is_new = !kept.inodes.contains_key(&attr.ino);
            let inode = kept.inodes.entry(attr.ino).or_default();
            let is_old = inode.version > asked && self.mistake != Some(Mistake::LateAnswers);
            if is_old || inode.cuts > 0 {
                return false;
            }
            let drops = !is_new && (inode.size != attr.size || inode.mtime != attr.mtime);
            kept.moment += 1;
            (inode.version, inode.size, inode.mtime) = (kept.moment, attr.size, attr.mtime);
            // An answer for an inode that may have been known meanwhile counts as old (`fuse_get_evict_ctr`).
            let is_late = is_new && kept.evicted > asked;
            inode.until_ns = if life.is_zero() || is_late { 0 } else { now + life.as_nanos() as u64 };
            drops
        };
        if drops {
            self.drop_pages(attr.ino, ByteRange::ALL).await;
        }
        true
    }

    /// The size that the kernel shows.
    ///
    /// Errors: those of `getattr`.
    pub async fn size(&self, ctx: &Ctx, ino: Ino) -> Result<u64> {
        let fresh = {
            let kept = lock(&self.kept);
            kept.inodes.get(&ino).filter(|i| i.until_ns > self.now_ns()).map(|i| i.size)
        };
        if let Some(size) = fresh {
            self.count(|t| t.attributes += 1);
            return Ok(size);
        }
        self.ask_size(ctx, ino).await
    }

    /// Works as `size`, but always with a request, even if none is needed.
    pub(super) async fn ask_size(&self, ctx: &Ctx, ino: Ino) -> Result<u64> {
        loop {
            let (asked, rule) = (self.moment(), self.client.rule());
            let mut attr = self.client.getattr(ctx, ino).await?;
            self.confuse(&mut attr);
            self.tells_directory(&attr).await;
            let (life, lending) = self.lend(rule, asked, &attr);
            let is_kept = self.tell(asked, &attr, life).await;
            drop(lending);
            if is_kept {
                return Ok(attr.size);
            }
        }
    }

    /// Returns whether the page `at` is inside the file as far as the kernel knows, without a request: for mappings and
    /// the like.
    pub fn reaches(&self, ino: Ino, at: u64) -> bool {
        lock(&self.kept).inodes.get(&ino).is_none_or(|inode| at * PAGE < inode.size)
    }

    /// Opens a file.
    ///
    /// Errors: those of `open`.
    pub async fn open(self: &Rc<Self>, ctx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        self.hold(ctx, ino).await?;
        let file = match self.client.open(ctx, ino, flags).await {
            Ok(file) => file,
            Err(e) => {
                self.release(ino);
                return Err(e);
            }
        };
        let front = self.client.front_cache(ctx, &file);
        self.late(self.late_us.1).await;
        if front.keeps {
            self.count(|t| t.kept_opens += 1);
        } else {
            self.drop_pages(ino, ByteRange::ALL).await;
        }
        Ok(Opened { file, serves: front.serves, kernel: self.clone() })
    }

    /// Reads the page `at`: by a `read`, or through a mapping.
    ///
    /// Errors: those of `read` and `getattr`.
    pub async fn read_page(&self, ctx: &Ctx, open: &Opened, at: u64, mapped: bool) -> Result<Shown> {
        let (ino, began_ns, began) = (open.file.ino(), self.now_ns(), self.moment());
        if !mapped {
            self.size(ctx, ino).await?;
        }
        loop {
            let fetch = {
                let kept = &mut *lock(&self.kept);
                let Some(inode) = kept.inodes.get_mut(&ino) else { return Ok(Shown::Nothing) };
                let moment = kept.moment;
                if at * PAGE >= inode.size {
                    // Between the request for the size and its use came the answer to a truncate.
                    return Ok(if inode.resized > began { Shown::Cut } else { Shown::Nothing });
                }
                match inode.pages.get(&at) {
                    Some(Page::There { short_ns: Some(at_ns), .. })
                        if mapped || inode.changes > 0 || *at_ns >= began_ns =>
                    {
                        return Ok(Shown::Cut);
                    }
                    Some(Page::There { stored: Stored::Dirty(_) | Stored::Writing, .. }) => return Ok(Shown::Unsynced),
                    Some(Page::There { bytes, .. }) => {
                        self.count(|t| t.hits += 1);
                        let end = PAGE.min(inode.size - at * PAGE) as usize;
                        return Ok(Shown::Bytes(bytes[..end].to_vec()));
                    }
                    Some(Page::Reading) => None,
                    None => Some((inode.begin_reading(at), moment)),
                }
            };
            match fetch {
                Some((pages, asked)) => self.fill(ctx, open, pages, asked).await?,
                None => self.env.sleep(LOOK).await,
            }
        }
    }

    /// Reads pages that are marked as being read.
    async fn fill(&self, ctx: &Ctx, open: &Opened, pages: std::ops::Range<u64>, asked: u64) -> Result<()> {
        self.count(|t| t.reads += 1);
        let (offset, len) = (pages.start * PAGE, ((pages.end - pages.start) * PAGE) as usize);
        let hints = Hints { for_pages: true, ..Hints::default() };
        let mut bytes = vec![0; len];
        let read = match self.client.try_read(ctx, &open.file, offset, &mut bytes, hints) {
            Some(n) => {
                bytes.truncate(n);
                Ok(bytes)
            }
            None => self.client.read(ctx, &open.file, offset, len, hints).await.map(|segments| segments.to_vec()),
        };
        if read.is_ok() {
            self.client.kept_by_front(&open.file, offset, len);
        }
        self.late(self.late_us.1).await;
        let now = self.now_ns();
        let kept = &mut *lock(&self.kept);
        let Some(inode) = kept.inodes.get_mut(&open.file.ino()) else { return read.map(drop) };
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(e) => {
                pages.for_each(|n| drop(inode.pages.remove(&n)));
                return Err(e);
            }
        };
        let end = offset + bytes.len() as u64;
        if bytes.len() < len && end < inode.size && inode.version <= asked {
            kept.moment += 1;
            (inode.size, inode.version) = (end, kept.moment);
        }
        for (n, number) in pages.enumerate() {
            let from = (n as u64 * PAGE) as usize;
            let mut page = bytes.get(from..).map_or(Vec::new(), |rest| rest[..rest.len().min(PAGE as usize)].to_vec());
            let short_ns = (page.len() < PAGE as usize).then_some(now);
            page.resize(PAGE as usize, 0);
            inode.pages.insert(number, Page::There { bytes: page, short_ns, stored: Stored::Clean });
        }
        Ok(())
    }

    /// Reads as the mount serves it.
    ///
    /// Errors: those of `read`.
    pub async fn read_past(&self, ctx: &Ctx, open: &Opened, offset: u64, len: u64) -> Result<Vec<u8>> {
        self.count(|t| t.passed += 1);
        self.write_back_range(open.file.ino(), ByteRange::at(offset, len)).await?;
        let read = self.client.read(ctx, &open.file, offset, len as usize, Hints::default()).await;
        self.late(self.late_us.1).await;
        read.map(|segments| segments.to_vec())
    }
}
