//! The write pipeline (PeakFS, TPDS 2024): a large direct write returns when its requests have been sent. So the next
//! write is copied into this process while the disks write this one. Under commit consistency (PeakFS, section III-D) a
//! write returns in this way without a lock, and other mounts may read before its bytes are there.
//!
//! Owns: which writes may return early, how many bytes may be under way, the consequences of a failure. Does not own:
//! sending (`objects::write`), the order of requests on the same bytes (`range_lock`).
//!
//! Invariants: the targets have granted space for all of the write (`grants`), because its caller can get no error any
//! more. No reader can reach the bytes before they are on the target. Until then a mount in sole mode stays in that
//! mode (`Begun`), a mount in shared mode keeps locks on all of the bytes (`Pin`), and the range lock makes readers and
//! writers of this mount wait. For a file of commit consistency only the last of these three applies: other mounts see
//! the bytes once they are on the target. The bytes count as dirty and as a flight of the file. So the size (which
//! other mounts get as that of dirty bytes), fsync, the close, a called-back lock, a truncate and the unmount treat
//! them like cached bytes that are being written back.

use crate::api::Hints;
use crate::coherence::closes;
use crate::coherence::sharing::Begun;
use crate::coherence::tokens;
use crate::conn::pending::Pending;
use crate::inode::range_lock::Guard;
use crate::inode::{FlightId, Inode, OpenFile};
use crate::locks::Pin;
use crate::mount::Mount;
use crate::objects::write::{Sent, WriteKind, learn, send_all};
use crate::policy::decision::Reason;
use crate::tables::writeback::loads::Load;
use crate::telemetry::stats::Count;
use crate::telemetry::tunables::Tunable;
use crate::writeback::flush;
use crate::writeback::grants;
use crate::writeback::writeback_errors;
use amphi_env::Buf;
use amphi_pagecache::scratch_for;
use amphi_types::{ByteRange, Errno, TargetId};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Writes below this size are copied out of larger memory, in bytes. The copy of 256 KiB takes 25 us, and waiting for
/// the disk would take ten times as long.
const COPY_BELOW_BYTES: usize = 1 << 20;

/// The most requests of this size that may be under way to a file that other mounts use too. This number keeps the
/// disks busy. A mount that waits for one of their locks waits for a few requests at most.
const CONTENDED_REQUESTS: u64 = 8;

/// The lock or token that keeps other mounts away from the bytes until they are on the target. Under commit consistency
/// it consists only of the guard.
pub(crate) struct Kept {
    /// In shared mode: write locks on all of the bytes.
    pub(crate) pins: Option<Vec<Pin>>,
    /// For a mount in sole mode.
    pub(crate) begun: Option<Begun>,
    pub(crate) guard: Guard,
}

/// Returns whether a direct write may return before its bytes are on the target. Either other mounts are kept away from
/// the bytes, or the file has commit consistency. It may not return early if the caller asked to wait (`O_SYNC`;
/// `O_DIRECT`, except under commit consistency), if memory is short, if a target may be full, or if a failure is
/// unreported.
pub(crate) fn admits(mount: &Mount, open: &OpenFile, range: ByteRange, reason: Reason, hints: Hints) -> bool {
    may_be_early(mount, open, reason, hints) && mount.writeback.free_space.is_ample(&open.file, range)
}

/// Works as `admits`, without regard to the granted space.
pub(crate) fn may_be_early(mount: &Mount, open: &OpenFile, reason: Reason, hints: Hints) -> bool {
    let flags = open.flags;
    let direct = (flags.direct || hints.direct) && !mount.is_commit(&open.file);
    let strict = direct || hints.stable || flags.sync || flags.dsync || flags.append;
    mount.tunables.get(Tunable::PipelineBytes) > 0
        && !strict
        && reason != Reason::DirectMemory
        && !open.has_error()
        && !mount.life.stopping.load(SeqCst)
}

/// Sends `data` to the targets, and returns the number of bytes when all of it is under way. If its targets have
/// granted too little space, or a truncate is under way, it returns everything to the caller. `request`: bytes of the
/// application's request of which this is all or a part.
pub(crate) async fn write(
    mount: &Arc<Mount>,
    open: &Arc<OpenFile>,
    range: ByteRange,
    data: Buf,
    (reason, request): (Reason, u64),
    mut kept: Kept,
) -> Result<usize, (Buf, Kept)> {
    let file = &open.file;
    assert_eq!(data.len() as u64, range.len(), "{}: a write of {range:?} comes with its bytes", file.ino);
    let data = compact(range, data);
    let memory = data.capacity() as u64;
    let (locked, unfinished) = (kept.pins.is_some(), kept.pins.is_none() && kept.begun.is_none());
    room(mount, open, range, memory, locked && reason == Reason::DirectContention).await;
    file.size.turn();
    flush::flush_and_forget(mount, file, range).await;
    let Some(covered) = grants::cover(mount, file, range) else { return Err((data, kept)) };
    let Some(id) = submit(mount, file, range, memory, (locked, unfinished)) else { return Err((data, kept)) };
    let loaded = Loaded::begin(mount, file, range);
    let len = data.len();
    let (mount2, file) = (mount.clone(), file.clone());
    // The first requests are sent on this thread; the rest of the work is done in the background.
    drop(Pending::start(mount, async move {
        let under_way = file.size.begin_direct();
        let kind = WriteKind::Piped { server_lock: kept.pins.is_none() };
        let sent = send_all(&mount2, &file, range, data, kind, false).await;
        drop((under_way, covered, loaded));
        let failed = sent.error.is_some();
        // The throughput is noted only when the write was answered: until the pipeline is full, the time of the call
        // would show the speed of memory.
        learn(&mount2, reason, request, len as u64, !failed);
        land(&mount2, &file, (id, unfinished), range, memory, sent);
        for pin in kept.pins.iter_mut().flatten() {
            if failed { pin.used_up() } else { pin.used_once() }
        }
        drop(kept);
        closes::send_closes(&mount2, &file);
        Ok(())
    }));
    Ok(len)
}

/// Bytes in much larger memory (that of a front end's largest request) are copied to memory of their own size, because
/// they are kept for a while.
fn compact(range: ByteRange, data: Buf) -> Buf {
    if data.len() >= COPY_BELOW_BYTES || data.capacity() <= 2 * data.len() {
        return data;
    }
    let mut own = scratch_for(range);
    own.copy_from_slice(&data);
    own
}

/// Waits until so little memory of the file, and of write-back, is under way that `memory` more may be. One write is
/// always permitted. `wanted`: other mounts wait for its locks.
async fn room(mount: &Arc<Mount>, open: &OpenFile, range: ByteRange, memory: u64, wanted: bool) {
    let few = if wanted { CONTENDED_REQUESTS * memory } else { u64::MAX };
    let full = |under_way: u64, max: u64| under_way > 0 && under_way + memory > max;
    let is_full = || {
        let flight_max = mount.flight_max();
        let piped = open.file.size.piped_bytes.load(SeqCst);
        full(piped, mount.tunables.get(Tunable::PipelineBytes).min(flight_max).min(few))
            || mount.pipe_is_full(&open.file, range, memory)
    };
    if is_full() {
        mount.stats.count(Count::Throttled);
        open.ledger.job.note_throttled();
        mount.writeback.landed.until(|| !is_full()).await;
    }
}

/// Enters the flight, unless a truncate holds bytes back. The caller holds the range lock. `unfinished`: nothing keeps
/// other mounts away.
fn submit(
    mount: &Mount,
    file: &Inode,
    range: ByteRange,
    memory: u64,
    (locked, unfinished): (bool, bool),
) -> Option<FlightId> {
    let id = {
        let mut flights = file.flights.lock();
        if flights.frozen_from().is_some_and(|from| range.end > from) {
            return None;
        }
        flights.begin_piped(range)
    };
    let len = range.len();
    file.size.piped_bytes.fetch_add(memory, SeqCst);
    file.cached.dirty_bytes.fetch_add(len, SeqCst);
    mount.writeback.piped_bytes.fetch_add(memory, SeqCst);
    mount.stats.bytes(Count::Pipelined, len);
    file.touch(mount.wall());
    if unfinished {
        mount.stats.bytes(Count::Unfinished, len);
        file.size.begin_unfinished(range.end);
    }
    if locked {
        file.size.extend_own(range.end)
    } else {
        file.extend(range.end)
    }
    Some(id)
}

/// The load of a write under way on its targets, until this is dropped.
struct Loaded {
    mount: Arc<Mount>,
    parts: SmallVec<[(TargetId, Load); 4]>,
}

impl Loaded {
    fn begin(mount: &Arc<Mount>, file: &Inode, range: ByteRange) -> Loaded {
        let layout = file.layout();
        let pieces = layout.pieces(file.ino, range);
        let parts = pieces.map(|(object, piece)| (layout.target(file.ino, object.stripe), Load::piped(piece.len())));
        let loaded = Loaded { mount: mount.clone(), parts: parts.collect() };
        loaded.parts.iter().for_each(|(target, load)| mount.writeback.loads.begin(*target, *load));
        loaded
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let loads = &self.mount.writeback.loads;
        self.parts.iter().for_each(|(target, load)| _ = loads.end(*target, *load));
    }
}

/// Called when the requests have been answered.
fn land(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    (id, unfinished): (FlightId, bool),
    range: ByteRange,
    memory: u64,
    sent: Sent,
) {
    // Lost bytes of a file that nobody can reach any more are not reported.
    let missed = |e: &Errno| !matches!(e, Errno::NoEnt | Errno::Stale) || file.open_count() > 0;
    let error = sent.error.filter(missed);
    let (ino, good_to) = (file.ino, sent.good_to);
    assert!(range.start <= good_to && good_to <= range.end, "{ino}: of {range:?} all up to {good_to} has landed");
    let lost = ByteRange::new(good_to, range.end);
    if let Some(e) = error {
        mount.stats.bytes(Count::WriteBackFailed, lost.len());
        // This comes first: a caller that syncs all files counts the failures of each file as reported when it gets the
        // losses noted here.
        if let Some(silent) = mount.writeback.errors.note(e, mount.clock.now_ns()) {
            tracing::warn!(ino = %file.ino, range = ?lost, silent, "a write on its way failed: {e}");
        }
        // None of the bytes is in the cache.
        file.failures.note(e, lost);
    }
    file.size.turn();
    file.size.mark_epoch();
    tokens::outdated(mount, file.ino);
    if unfinished {
        file.size.finished();
    }
    let before = file.cached.dirty_bytes.fetch_sub(range.len(), SeqCst);
    assert!(before >= range.len(), "{ino}: {range:?} has landed of {before} dirty bytes");
    let before = file.size.piped_bytes.fetch_sub(memory, SeqCst);
    assert!(before >= memory, "{ino}: {memory} bytes of memory end of {before}");
    let before = mount.writeback.piped_bytes.fetch_sub(memory, SeqCst);
    assert!(before >= memory, "{memory} bytes of memory end of {before} of all files");
    mount.writeback.landings.fetch_add(1, SeqCst);
    flush::end_flight(file, id);
    if error.is_some() {
        writeback_errors::settle(mount, file, lost);
    }
    flush::pump(mount);
}

/// Waits until the bytes of the file that are in the pipeline when it is called have landed.
pub(crate) async fn drained(file: &Inode) {
    if file.size.piped_bytes.load(SeqCst) > 0 {
        let upto = file.flights.lock().last();
        file.signal.until(|| !file.flights.lock().piped_upto(upto)).await;
    }
}
