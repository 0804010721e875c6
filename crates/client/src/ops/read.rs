//! read: from the cache, through it, or straight from the targets.
//!
//! Order: valid cached bytes are used first, and then the decision is made about the remaining ones. With `O_DIRECT`,
//! cached bytes of the range are flushed and dropped, and all bytes come from the targets.
//!
//! In shared mode the size may change at any time (`shared`). Bytes that are valid in the cache are inside the file.
//! They are covered by a lock, a truncate by another mount needs that lock, and fills are cut at the size that was
//! requested under it.
//!
//! If a target cannot serve a page, a read that begins in that page fails, and a read that begins before it ends there
//! (`objects::damaged`). For a front end's page cache a read is complete or an error, since the front end would take
//! missing bytes for zeros.

mod ahead;
pub(crate) mod exports;
pub(crate) mod shared;

use crate::api::{Ctx, Hints};
use crate::coherence::attributes;
use crate::coherence::sharing;
use crate::coherence::tokens;
use crate::inode::range_lock::Hold;
use crate::inode::{Inode, OpenFile};
use crate::locks;
use crate::locks::group_lock;
use crate::mount::Mount;
use crate::objects::damaged;
use crate::objects::read::{PAGE, Under, ask_piece, direct, direct_gaps};
use crate::ops::front;
use crate::policy::decision::{Input, Mode, Reason, decide};
use crate::policy::readahead::Plan;
use crate::policy::throughput::Course;
use crate::prefetch::large_reads;
use crate::telemetry::calls::{self, Wait};
use crate::telemetry::stats::{Copied, Count, Way, thread_shard};
use crate::telemetry::tunables::Tunable;
use crate::writeback::flush;
pub(crate) use ahead::will_need;
use ahead::{fetch_ahead, plan, read_ahead};
use amphi_dlm::Mode as LockMode;
use amphi_env::Buf;
use amphi_pagecache::{Loans, Segments, scratch_for};
use amphi_pagecache::{UNIT, push_joined};
use amphi_types::{ByteRange, Errno, ObjectId, Result, limits};
use amphi_wire::LockExtent;
use futures_util::future::join_all;
use std::future::Future;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// How often bytes are fetched into the cache before a read bypasses the cache. The bytes may be evicted or become
/// unusable between fetch and read.
const TRIES: usize = 4;
/// Largest request that fills the cache, in bytes. A server reads this many bytes in one piece. If a stream ends, at
/// most this many bytes were fetched without use.
const FILL_BYTES: u64 = 1 << 20;
/// Largest read after which the following bytes are loaded into the processor's cache (`warm_next`), in bytes. Larger
/// requests would displace each other from a core's cache.
const WARM_BYTES: u64 = 256 << 10;
/// Size of a line of the processor's cache, bytes.
const CACHE_LINE: usize = 64;
/// Reads of at least this many bytes get the cache's memory instead of a copy.
const LEND_MIN_BYTES: u64 = 16 << 10;

pub(crate) fn try_read(
    mount: &Arc<Mount>,
    ctx: &Ctx,
    open: &OpenFile,
    offset: u64,
    into: &mut [u8],
    hints: Hints,
) -> Option<usize> {
    let hit = Hit::begin(mount, open, offset, into.len(), hints)?;
    let len = hit.range.len() as usize;
    if len > 0 && (!mount.cache.read(&open.file, hit.range, &mut into[..len]) || !hit.held(open)) {
        return None;
    }
    hit.note(mount, ctx, open, hints, Copied::Along);
    Some(len)
}

/// A read that the cache may serve on the calling thread.
struct Hit {
    /// The stamp of the range lock: if it has not changed, no write happened meanwhile.
    stamp: u64,
    /// The requested range, up to the end of the file if that is certain.
    range: ByteRange,
    size: u64,
    /// In shared mode, the token under which the size is certain; 0 if there is none.
    token: u64,
    /// If it has not changed, no lock was returned and no mode was switched meanwhile.
    turned: u64,
    /// For several units: if it is unchanged, no write within a unit happened between the reads of two units. One unit
    /// is read in one step, without this check.
    unguarded: Option<u64>,
}

impl Hit {
    #[inline]
    fn begin(mount: &Mount, open: &OpenFile, offset: u64, len: usize, hints: Hints) -> Option<Hit> {
        if !open.flags.read || open.flags.direct || hints.direct || !open.file.group.admits(open.member()) {
            return None;
        }
        let file = &open.file;
        if hints.for_pages {
            // The drop of pages may have passed this page already: a page that is read now has to be dropped once more.
            if file.pages.is_taking() {
                return None;
            }
            file.pages.note_of(
                open.front.emptied_rule.load(SeqCst),
                ByteRange::at(offset, len as u64),
                mount.coherence.sharing.rule(),
            );
        }
        let stamp = file.range.stamp()?;
        let rule = mount.coherence.sharing.rule();
        if hints.for_pages && rule & 1 == 0 && !mount.coherence.locks.permit_reading(file, pages_of(offset, len)) {
            // A page shows zeros behind the end of the file, so the lock has to cover these as well.
            return None;
        }
        let turned = file.size.turned();
        let token = if rule & 1 == 1 {
            if file.size.sure_rule.load(Relaxed) != rule {
                return None;
            }
            0
        } else {
            if !mount.coherence.sharing.leases.in_touch_for(
                mount.clock.boot_ns(),
                file,
                ByteRange::at(offset, len as u64),
            ) {
                return None;
            }
            let token = tokens::sure_until(mount, file);
            if token == 0 {
                // The range is not cut: only bytes that are all in the cache are known to be inside the file.
                let range = ByteRange::at(offset, len as u64);
                let (size, unguarded) = (file.size(), Self::unguarded(file, range));
                return (len > 0).then_some(Hit { stamp, range, size, token, turned, unguarded });
            }
            token
        };
        let size = file.size();
        let range = ByteRange::at(offset.min(size), len as u64).intersect(&ByteRange::new(0, size));
        Some(Hit { stamp, range, size, token, turned, unguarded: Self::unguarded(file, range) })
    }

    #[inline]
    fn unguarded(file: &Inode, range: ByteRange) -> Option<u64> {
        let several = range.start / UNIT < range.end.saturating_sub(1) / UNIT;
        several.then(|| file.range.unguarded())
    }

    #[inline]
    fn held(&self, open: &OpenFile) -> bool {
        let file = &open.file;
        file.range.stamp() == Some(self.stamp)
            && file.size.turned() == self.turned
            && self.unguarded.is_none_or(|before| file.range.unguarded() == before)
            && (self.token == 0 || file.size.token_end_ns.load(SeqCst) == self.token)
    }

    #[inline]
    fn note(&self, mount: &Arc<Mount>, ctx: &Ctx, open: &OpenFile, hints: Hints, copied: Copied) {
        if self.range.is_empty() {
            return;
        }
        note_access(mount, open);
        open.file.locks.note_use(mount.host.coarse_ns.load(Relaxed));
        mount.stats.io(Way::Read, Reason::CacheHit, self.range.len(), copied);
        open.ledger.hit(thread_shard(), self.range.len());
        open.note_piece(Way::Read, ctx.tid, self.range, hints.may_continue);
        if open.streams.readahead_on.load(Relaxed) {
            read_ahead(mount, open, self.range, self.size);
        }
    }
}

/// The pages that contain `len` bytes from `offset` on.
fn pages_of(offset: u64, len: usize) -> ByteRange {
    ByteRange::at(offset, len as u64).align_out(PAGE).intersect(&ByteRange::new(0, limits::FILE_MAX))
}

/// Works as `try_read`, without the copy.
pub(crate) fn try_lend(
    mount: &Arc<Mount>,
    ctx: &Ctx,
    open: &OpenFile,
    offset: u64,
    len: usize,
    hints: Hints,
) -> Option<Loans> {
    let hit = Hit::begin(mount, open, offset, len, hints)?;
    let loans = mount.cache.lend(&open.file, hit.range)?;
    if !hit.held(open) {
        return None;
    }
    hit.note(mount, ctx, open, hints, Copied::Apart);
    mount.stats.moved(Count::Lent, hit.range.len());
    Some(loans)
}

/// See `Client::warm_next`.
pub(crate) fn warm_next(mount: &Mount, open: &OpenFile, offset: u64, len: u64) {
    if len > WARM_BYTES || open.flags.direct {
        return;
    }
    let end = offset.saturating_add(len);
    if open.streams.warmed_to.swap(end, Relaxed) != offset {
        return;
    }
    let next = ByteRange::at(end, len).intersect(&ByteRange::new(0, open.file.size()));
    let Some(loans) = mount.cache.peek(&open.file, next).filter(|_| !next.is_empty()) else { return };
    mount.stats.bytes(Count::Warmed, next.len());
    for loan in loans {
        // Reading one byte of a cache line loads the whole line.
        black_box(loan.chunks(CACHE_LINE).fold(0u8, |sum, line| sum.wrapping_add(line[0])));
    }
}

/// Notes a read that renews the access time. The server gets the time with the close.
#[inline]
fn note_access(mount: &Mount, open: &OpenFile) {
    if open.file.hints.atime_due.load(Relaxed) && !open.flags.no_atime && mount.tunables.on(Tunable::Atime) {
        open.file.note_access(mount.clock.wall());
    }
}

fn count(mount: &Mount, open: &OpenFile, reason: Reason, range: ByteRange) {
    open.file.locks.note_use(mount.host.coarse_ns.load(Relaxed));
    mount.count_io(open, Way::Read, reason, range, Copied::Apart);
}

pub(crate) async fn read(
    mount: Arc<Mount>,
    ctx: Ctx,
    open: Arc<OpenFile>,
    offset: u64,
    len: usize,
    hints: Hints,
) -> Result<Segments> {
    if !open.flags.read {
        return Err(Errno::BadFd);
    }
    if offset > limits::FILE_MAX {
        return Err(Errno::Inval);
    }
    let file = &open.file;
    let asked = ByteRange::at(offset, len as u64);
    if open.flags.direct || hints.direct {
        mount.may_pass_cache(asked)?;
    }
    if hints.for_pages {
        file.pages.note_of(open.front.emptied_rule.load(SeqCst), asked, mount.coherence.sharing.rule());
    }
    if hints.for_pages && !mount.coherence.sharing.is_alone() {
        let mode = front::way_of_pages(&mount, &open, asked.len());
        count(&mount, &open, mode.1, asked);
        return super::pages::read(&mount, &open, asked, mode.0).await;
    }
    let (_guard, _begun) = loop {
        let guard = group_lock::enter(file, open.member(), asked, Hold::Shared).await?;
        if let Some(begun) = sharing::begin(&mount) {
            break (guard, begun);
        }
        if let Some(data) = shared::read(&mount, &ctx, &open, asked, hints).await? {
            return Ok(data);
        }
    };
    let size = attributes::size_now(&mount, file).await?;
    let range = asked.intersect(&ByteRange::new(0, size));
    if range.is_empty() {
        return Ok(Segments::new());
    }
    note_access(&mount, &open);
    if open.flags.direct || hints.direct {
        flush::flush_and_forget(&mount, file, range).await;
        count(&mount, &open, Reason::DirectUser, range);
        return damaged::whole_for_pages(direct(&mount, file, range).await, range, hints);
    }
    if let Some(loans) = lend_large(&mount, file, range) {
        count(&mount, &open, Reason::CacheHit, range);
        open.note_piece(Way::Read, ctx.tid, asked, hints.may_continue);
        read_ahead(&mount, &open, range, size);
        return Ok(loans);
    }
    let mut buf = None;
    let mut gaps = mount.cache.gaps(file, range);
    if gaps.first() != Some(&range) {
        // Valid bytes are taken now, because they may be evicted while the rest is under way.
        let mut b = scratch_for(range);
        gaps = mount.copy_valid(file, range, &mut b);
        if gaps.is_empty() {
            mount.cache.used(file, range);
            count(&mount, &open, Reason::CacheHit, range);
            open.note_piece(Way::Read, ctx.tid, asked, hints.may_continue);
            read_ahead(&mount, &open, range, size);
            return Ok(b.into());
        }
        buf = Some(b);
    }
    let missing: u64 = gaps.iter().map(ByteRange::len).sum();
    let before = open.request_bytes(Way::Read, ctx.tid, asked) - asked.len();
    open.note_piece(Way::Read, ctx.tid, asked, hints.may_continue);
    let kernel_keeps = hints.for_pages && front::keeps_pages(&mount, &open);
    let input = mount.input(&ctx, &open, Way::Read, (asked, before + missing));
    let decision = decide(&Input { kernel_keeps, ..input });
    count(&mount, &open, decision.reason, range);
    let since_ns = mount.clock.now_ns();
    if decision.mode == Mode::Direct {
        let data = match buf {
            None if is_stream(decision.reason) || decision.reason == Reason::DirectKernel => {
                large_reads::read(&mount, &open, range, size, decision.reason == Reason::DirectLarge).await
            }
            None => direct(&mount, file, range).await,
            Some(buf) => direct_gaps(&mount, file, range, buf, &gaps, Under::TargetsLock).await,
        };
        if is_stream(decision.reason) {
            let course = Course::Direct(before + missing);
            let shows = data.is_ok() && mount.prefetch.fills_are_calm();
            mount.policy.throughput.note_read(course, missing, (since_ns, mount.clock.now_ns()), shows);
        }
        return damaged::whole_for_pages(data, range, hints);
    }
    let plan = plan(&mount, &open, range, size);
    let data = buffered(&mount, &open, range, size, plan).await;
    if data.is_ok() {
        mount.policy.throughput.note_cached_read(range.len(), Some(since_ns), || mount.clock.now_ns());
    }
    damaged::whole_for_pages(data, range, hints)
}

/// A range that is all in the cache and so large that bookkeeping costs less than a copy.
fn lend_large(mount: &Mount, file: &Inode, range: ByteRange) -> Option<Segments> {
    let loans = if range.len() < LEND_MIN_BYTES { None } else { mount.cache.lend(file, range) };
    loans.inspect(|_| mount.stats.moved(Count::Lent, range.len())).map(Segments::from)
}

/// Returns whether direct reads with this reason may be requested ahead: no program has requested direct I/O, and
/// memory is not short.
fn is_stream(reason: Reason) -> bool {
    matches!(reason, Reason::DirectLarge | Reason::DirectLocality)
}

/// Reads through the cache. The caller holds the range lock shared.
async fn buffered(mount: &Arc<Mount>, open: &OpenFile, range: ByteRange, size: u64, plan: Plan) -> Result<Segments> {
    let file = &open.file;
    let mut plan = Some(plan);
    for _ in 0..TRIES {
        if let Some(loans) = lend_large(mount, file, range) {
            if let Some(plan) = plan {
                fetch_ahead(mount, open, plan);
            }
            return Ok(loans);
        }
        let mut buf = scratch_for(range);
        let gaps = mount.copy_valid(file, range, &mut buf);
        if gaps.is_empty() {
            mount.cache.used(file, range);
            if let Some(plan) = plan {
                fetch_ahead(mount, open, plan);
            }
            return Ok(buf.into());
        }
        drop(buf);
        let page_out = |r: ByteRange| r.align_out(PAGE).intersect(&ByteRange::new(0, size));
        let mut wanted: Vec<ByteRange> = Vec::new();
        for gap in gaps.iter().map(|g| page_out(*g)) {
            let start = wanted.last().map_or(gap.start, |w| gap.start.max(w.end));
            push_joined(&mut wanted, ByteRange::new(start, gap.end));
        }
        let mut fetches = Vec::new();
        for part in wanted.iter().flat_map(|w| file.fills.gaps(*w)) {
            for (object, piece) in pieces(file, part) {
                fetches.push(fetch(mount.clone(), file.clone(), object, piece, false, open.extent()));
            }
        }
        // These requests come after the read's own, so that the bytes for which the reader waits are sent first.
        let fetched = join_all(fetches.into_iter().map(Fetch::run));
        if let Some(plan) = plan.take() {
            fetch_ahead(mount, open, plan);
        }
        let fetched = filling(mount, fetched).await;
        for result in fetched {
            if let Err(e) = result {
                // Another piece at the start may have arrived; the direct read handles that.
                if e == Errno::NoSpace {
                    return direct(mount, file, range).await;
                }
                return damaged::cached_prefix(mount, file, range).ok_or(e);
            }
        }
        let others = || wanted.iter().any(|w| file.fills.overlap(*w));
        filling(mount, file.signal.until(|| !others())).await;
    }
    // The bytes are evicted again and again: read past the cache, dirty bytes included.
    let mut buf = scratch_for(range);
    let gaps = mount.copy_valid(file, range, &mut buf);
    direct_gaps(mount, file, range, buf, &gaps, Under::TargetsLock).await
}

/// Waits for bytes that come into the cache.
async fn filling<T>(mount: &Mount, fill: impl Future<Output = T>) -> T {
    let since_ns = calls::current().map(|_| mount.clock.now_ns());
    let filled = fill.await;
    if let Some(since_ns) = since_ns {
        calls::note_wait(Wait::Fill, mount.clock.now_ns().saturating_sub(since_ns));
    }
    filled
}

/// Splits `range` into requests of the size of fills.
fn pieces(file: &Inode, range: ByteRange) -> Vec<(ObjectId, ByteRange)> {
    let step = FILL_BYTES;
    let mut list = Vec::new();
    for (object, piece) in file.layout().pieces(file.ino, range) {
        let mut at = piece.start;
        while at < piece.end {
            // Cut at multiples, so that neighbours do not share a unit.
            let end = (at / step + 1).saturating_mul(step).min(piece.end);
            list.push((object, ByteRange::new(at, end)));
            at = end;
        }
    }
    list
}

/// A fill that is entered but not yet sent.
struct Fetch {
    mount: Arc<Mount>,
    file: Arc<Inode>,
    object: ObjectId,
    range: ByteRange,
    ahead: bool,
    extent: LockExtent,
    id: u64,
}

fn fetch(
    mount: Arc<Mount>,
    file: Arc<Inode>,
    object: ObjectId,
    range: ByteRange,
    ahead: bool,
    extent: LockExtent,
) -> Fetch {
    let id = file.fills.begin(range);
    mount.prefetch.fill_bytes.fetch_add(range.len(), SeqCst);
    Fetch { mount, file, object, range, ahead, extent, id }
}

impl Fetch {
    /// Gets the bytes into the cache.
    async fn run(self) -> Result<()> {
        let (mount, file, range) = (&self.mount, &self.file, self.range);
        // In shared mode, two readers would take such a write lock from each other.
        let mode =
            if mount.coherence.sharing.is_alone() && file.has_writers() { LockMode::Write } else { LockMode::Read };
        let pins = locks::pin_spans(mount, file, mode, range, self.extent).await?;
        let done = match ask_piece(mount, file, self.object, range, Under::Lock).await? {
            Ok((bytes, zeros)) => self.put_inside(range, bytes, zeros).await,
            Err(Errno::Io) => {
                // The other pages are not affected.
                for part in damaged::good_parts(mount, file, self.object, range).await {
                    self.put_inside(part.range, part.bytes, part.zeros).await?;
                }
                Err(Errno::Io)
            }
            Err(e) => Err(e),
        };
        drop(pins);
        done
    }

    /// Puts the bytes that are inside the file into the cache, under the pinned lock: those that the target sent, or
    /// those up to the size.
    async fn put_inside(&self, mut range: ByteRange, bytes: Buf, zeros: u64) -> Result<()> {
        if zeros > 0 && !self.mount.coherence.sharing.is_alone() {
            let size = attributes::size_now(&self.mount, &self.file).await?;
            range = range.intersect(&ByteRange::new(0, size));
        }
        self.put(range, &Arc::new(bytes))
    }

    /// Puts bytes into the cache. The caller has pinned the lock.
    fn put(&self, range: ByteRange, bytes: &Arc<Buf>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (mount, file) = (&self.mount, &self.file);
        assert!(self.range.contains(&range), "{}: {range:?} was not requested with {:?}", file.ino, self.range);
        if !mount.make_room(range.len().next_multiple_of(UNIT)) {
            // All units are dirty: this read bypasses the cache.
            return if self.ahead { Ok(()) } else { Err(Errno::NoSpace) };
        }
        mount.stats.bytes(Count::Fill, range.len());
        let copied = mount.cache.fill(file, range, bytes, self.ahead, |part| file.fills.is_true(self.id, part));
        mount.stats.moved(Count::CopiedIn, copied);
        Ok(())
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.file.fill_ends(self.id);
        self.mount.prefetch.fill_bytes.fetch_sub(self.range.len(), SeqCst);
        if self.file.access_count() == 0 {
            self.mount.files.reap(&self.file);
        }
    }
}

/// Returns whether another mount has requested a lock on the file lately, or a server reported it as contended.
pub(crate) fn is_wanted_elsewhere(mount: &Mount, file: &Inode) -> bool {
    let now = mount.clock.now_ns();
    let called = file.locks.called_back_ns.load(Relaxed);
    let lately = mount.tunables.get(Tunable::ContendedMs) * 1_000_000;
    file.locks.contended_until_ns.load(Relaxed) > now || (called > 0 && now < called.saturating_add(lately))
}
