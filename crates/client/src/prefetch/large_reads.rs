//! Sequential direct reads: the next ones are requested before the program makes them.
//!
//! Owns: recognising such a stream of an open file, the bytes of its next reads and how long they count. Does not own:
//! which reads go direct (`decision`), streams through the cache (`readahead`).
//!
//! While the previous read of a stream is still under way, the next read is requested, or as many reads as make
//! `AHEAD_BYTES`. So disks, sockets and the program's copy work at the same time. The reader gets the bytes in the
//! buffers in which they arrived, and they are dropped with them, so the memory is used again while it is still in the
//! processor's cache. Reads need not end where a request ahead ends: a call that a front end cannot send as a whole
//! arrives in large pieces and a small one, and requests ahead continue in large pieces. Large reads are requested
//! ahead only as long as that was measured to pay (`throughput`).
//!
//! Invariants: bytes are kept only in sole mode, and are valid only as long as cached bytes would be. Events that make
//! a fill unusable make these bytes unusable too (`Inode::spoil`), and a switch of mode drops them. The bytes are used
//! only where the cache has none. The sum of all of them is bounded like read-ahead, and unused ones are dropped after
//! `KEPT_NS`.

use crate::inode::direct_stream::{Ahead, AheadOwner, Data};
use crate::inode::{Inode, OpenFile};
use crate::mount::Mount;
use crate::objects::read::direct;
use crate::telemetry::stats::Count;
use crate::telemetry::tunables::Tunable;
use amphi_env::buf;
use amphi_pagecache::Segments;
use amphi_types::{ByteRange, Result};
use futures_channel::oneshot;
use futures_util::future::join;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Weak};

/// A stream is requested this many bytes ahead, or one read. This is enough to keep a disk busy, and memory that is
/// used again and again stays in the processor's cache.
const AHEAD_BYTES: u64 = 4 << 20;
/// Reads below the large threshold are requested ahead only while all requests under way, ahead or not, have fewer
/// bytes than this. If many streams read at once, they keep the disks busy for each other.
const BUSY_BYTES: u64 = 8 << 20;
/// How long bytes are kept if no reader comes, in nanoseconds.
const KEPT_NS: u64 = 2_000_000_000;
/// Most reads that must follow each other before anything is requested, after that was useless.
const CAUTION_MAX: u32 = 64;
/// After this many consecutive reads that are shorter than the requests, the requests become as short.
const SHORTER_MAX: u32 = 4;

/// A direct read of `range`, of which nothing is cached, and the request for the next one. The caller holds the range
/// lock shared and has entered the operation as one that keeps the mount in sole mode. `large`: it is above the large
/// threshold.
pub(crate) async fn read(
    mount: &Arc<Mount>,
    open: &Arc<OpenFile>,
    range: ByteRange,
    size: u64,
    large: bool,
) -> Result<Segments> {
    if !large {
        return next(mount, open, range, size, Asking::IfIdle).await;
    }
    let since_ns = mount.clock.now_ns();
    let new_bytes = buf::new_bytes();
    let pays = !mount.tunables.on(Tunable::Learn) || mount.policy.throughput.ahead_pays(range.len());
    let data = next(mount, open, range, size, if pays { Asking::Always } else { Asking::Never }).await;
    // Memory that is used for the first time costs what no read costs later.
    let shows = data.is_ok() && mount.prefetch.fills_are_calm() && buf::new_bytes() == new_bytes;
    mount.policy.throughput.note_large_read(pays, range.len(), (since_ns, mount.clock.now_ns()), shows);
    data
}

/// Whether the next reads are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    /// Requested unless other requests keep the disks busy: reads below the large threshold.
    IfIdle,
    /// Large reads.
    Always,
    /// Large reads that were measured to come sooner without.
    Never,
}

async fn next(
    mount: &Arc<Mount>,
    open: &Arc<OpenFile>,
    range: ByteRange,
    size: u64,
    asking: Asking,
) -> Result<Segments> {
    let _waiting = Waiting::begin(mount, range.len());
    let taken = advance(mount, open, range, size, asking);
    let Some(last) = taken.last() else { return direct(mount, &open.file, range).await };
    let asked = ByteRange::new(range.start, last.range.end.min(range.end));
    let rest = ByteRange::new(asked.end, range.end);
    if rest.is_empty() {
        return match collect(mount, open, taken, asked).await {
            Some(data) => Ok(data),
            None => direct(mount, &open.file, range).await,
        };
    }
    let (data, rest) = join(collect(mount, open, taken, asked), direct(mount, &open.file, rest)).await;
    match (data, rest) {
        (Some(mut data), rest) => {
            // Only the contiguous bytes from the start of the range count.
            data.append(rest.unwrap_or_default());
            Ok(data)
        }
        (None, _) => direct(mount, &open.file, range).await,
    }
}

/// Collects the bytes of `range` from the requests ahead. Bytes of the last request beyond the range are kept for the
/// next read. Returns `None` if some of the bytes are not valid.
async fn collect(mount: &Arc<Mount>, open: &OpenFile, taken: Taken, range: ByteRange) -> Option<Segments> {
    let mut data = Segments::new();
    for mut ahead in taken {
        let part = ahead.range.intersect(&range);
        let mut bytes = ahead.wait().await?;
        if !counts(&ahead, mount, part) {
            return None;
        }
        let first = bytes.split_to(part.len() as usize);
        if !bytes.is_empty() {
            keep(&mut ahead, mount, part.end, bytes);
            give_back(open, ahead);
        }
        data.append(first);
    }
    mount.stats.bytes(Count::DirectAheadUsed, range.len());
    Some(data)
}

/// The rest of a request, for the read that follows.
fn give_back(open: &OpenFile, ahead: Ahead) {
    let mut stream = open.streams.direct.lock();
    let goes_on = stream.last_end == ahead.range.start
        && stream.ahead.front().is_none_or(|next| next.range.start == ahead.range.end);
    let useless = if goes_on {
        stream.ahead.push_front(ahead);
        None
    } else {
        Some(ahead)
    };
    drop(stream);
    drop(useless);
}

/// A read that waits.
pub(crate) struct Waiting(Arc<Mount>, u64);

impl Waiting {
    pub(crate) fn begin(mount: &Arc<Mount>, bytes: u64) -> Waiting {
        mount.prefetch.direct_streams.waited_for.fetch_add(bytes, Relaxed);
        Waiting(mount.clone(), bytes)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.prefetch.direct_streams.waited_for.fetch_sub(self.1, Relaxed);
    }
}

/// Requests ahead whose ranges follow each other.
type Taken = SmallVec<[Ahead; 2]>;

/// Advances the stream to `range`. Returns the bytes for its beginning that are there or under way, and requests the
/// next reads.
fn advance(mount: &Arc<Mount>, open: &Arc<OpenFile>, range: ByteRange, size: u64, asking: Asking) -> Taken {
    let mut stream = open.streams.direct.lock();
    // Bytes that were served by the cache or fetched by a probe in the meantime were requested without need, but the
    // stream continues.
    let mut passed = VecDeque::new();
    if stream.ahead.iter().any(|a| a.range.start == range.start) {
        while let Some(a) = stream.ahead.pop_front_if(|a| a.range.start < range.start) {
            stream.last_end = a.range.end;
            passed.push_back(a);
        }
    }
    let fits = stream.ahead.front().is_some_and(|a| a.range.start == range.start);
    let useless = if fits { VecDeque::new() } else { std::mem::take(&mut stream.ahead) };
    if !useless.is_empty() {
        stream.caution = (2 * stream.caution + 1).min(CAUTION_MAX);
    } else if fits {
        stream.caution /= 2;
    }
    let mut taken = Taken::new();
    while let Some(a) = stream.ahead.pop_front_if(|a| a.range.start < range.end) {
        taken.push(a);
    }
    let goes_on = stream.last_end == range.start && range.start > 0;
    stream.matches = if goes_on { stream.matches + 1 } else { 0 };
    stream.shorter = if goes_on && range.len() < stream.step { stream.shorter + 1 } else { 0 };
    if stream.shorter == 0 || stream.shorter > SHORTER_MAX {
        (stream.step, stream.shorter) = (range.len(), 0);
    }
    stream.last_end = range.end;
    // With each read that follows the previous one, one more read is requested ahead.
    let sure = u64::from(stream.matches.saturating_sub(stream.caution)).saturating_mul(stream.step);
    let to = range.end.saturating_add(sure.min(AHEAD_BYTES.max(stream.step))).min(size);
    let mut at = stream.ahead.back().or(taken.last()).map_or(range.end, |a| a.range.end).max(range.end);
    while at < to {
        let next = ByteRange::at(at, stream.step).intersect(&ByteRange::new(0, size));
        if !is_wanted(mount, next, asking) {
            break;
        }
        stream.ahead.push_back(ask(mount, &open.file, next));
        at = next.end;
    }
    let keeps = !stream.ahead.is_empty() || !taken.is_empty();
    let begins = keeps && !std::mem::replace(&mut stream.listed, true);
    drop(stream);
    drop((useless, passed));
    if begins {
        mount.prefetch.direct_streams.open.lock().push(Arc::downgrade(open));
    }
    taken
}

/// Returns whether a read may be requested ahead.
pub(crate) fn is_wanted(mount: &Mount, next: ByteRange, asking: Asking) -> bool {
    let streams = &mount.prefetch.direct_streams;
    let busy = || streams.bytes.load(Relaxed) + streams.waited_for.load(Relaxed);
    let max = mount.tunables.get(Tunable::DirectAhead).min(mount.window_max());
    mount.reads_ahead()
        && !next.is_empty()
        && next.len() <= max
        && match asking {
            Asking::IfIdle => busy() + next.len() <= BUSY_BYTES,
            Asking::Always => true,
            Asking::Never => false,
        }
        && !mount.policy.group_short.load(Relaxed)
}

fn ask(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange) -> Ahead {
    let (sender, data) = oneshot::channel();
    let (rule, id) = (mount.coherence.sharing.rule(), file.fills.begin_held(range));
    mount.prefetch.fill_bytes.fetch_add(range.len(), SeqCst);
    mount.prefetch.direct_streams.bytes.fetch_add(range.len(), SeqCst);
    mount.stats.bytes(Count::ReadAheadIssued, range.len());
    let (asker, asked) = (mount.clone(), file.clone());
    mount.spawn(async move {
        // The reader may not need the bytes any more.
        let _ = sender.send(direct(&asker, &asked, range).await);
    });
    let owner: Weak<Mount> = Arc::downgrade(mount);
    Ahead::new(owner, file.clone(), range, (id, rule), mount.clock.now_ns(), Data::Coming(data))
}

impl AheadOwner for Mount {
    fn ended(&self, file: &Arc<Inode>, bytes: u64) {
        self.prefetch.fill_bytes.fetch_sub(bytes, SeqCst);
        self.prefetch.direct_streams.bytes.fetch_sub(bytes, SeqCst);
        if file.access_count() == 0 {
            self.files.reap(file);
        }
    }
}

/// Keeps `bytes`, which belong at `start`.
fn keep(ahead: &mut Ahead, mount: &Mount, start: u64, bytes: Segments) {
    assert!(ahead.range.start <= start && start <= ahead.range.end, "{start} is outside {:?}", ahead.range);
    let gone = start - ahead.range.start;
    mount.prefetch.fill_bytes.fetch_sub(gone, SeqCst);
    mount.prefetch.direct_streams.bytes.fetch_sub(gone, SeqCst);
    ahead.range.start = start;
    ahead.data = Data::Here(bytes);
}

/// Returns whether the bytes of `part` are still those that a read would return.
fn counts(ahead: &Ahead, mount: &Mount, part: ByteRange) -> bool {
    let sharing = &mount.coherence.sharing;
    sharing.is_alone() && sharing.rule() == ahead.rule && !sharing.is_lost() && ahead.file.fills.is_true(ahead.id, part)
}

/// Drops bytes that no reader has taken.
pub(crate) fn tick(mount: &Mount) {
    let now_ns = mount.clock.now_ns();
    let mut gone = Vec::new();
    mount.prefetch.direct_streams.open.lock().retain(|open| {
        let Some(open) = open.upgrade() else { return false };
        let mut stream = open.streams.direct.lock();
        let is_old = stream.ahead.front().is_some_and(|a| now_ns.saturating_sub(a.since_ns) > KEPT_NS);
        let old = if is_old { std::mem::take(&mut stream.ahead) } else { VecDeque::new() };
        let keep = !stream.ahead.is_empty();
        stream.listed = keep;
        drop(stream);
        // The last reference closes the file, which may not happen under the lock.
        gone.push((old, open));
        keep
    });
}
