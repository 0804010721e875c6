//! Write-back: dirty bytes leave in large requests, in the background by size and age.
//!
//! Owns: dividing dirty runs by the layout, requests under way and their bound, the consequences of a failure, and
//! slowing down writers. Does not own: dirty state (`cache`), when a lock needs a flush (`locks`), small files that are
//! sent together (`batch`), the order of bytes that wait because of the bound (`backlog`).
//!
//! Bounds: `writeback.flight_bytes` under way, in `FLIGHT_PARTS_MAX` runs (`tables::writeback`). A connection accepts
//! 65,536 waiting calls. With a bound on bytes alone, twice as many small scattered runs could be under way, and those
//! that the connection refuses would be lost. Runs of one object are sent together (`batch`).
//!
//! Requests to targets that cannot be reached have a bound of their own, so that they stop no others
//! (`tables::writeback::loads`).
//!
//! Invariants: a byte is in at most one request under way. Meanwhile the byte stays readable, and a write to it makes
//! it dirty again. Nothing beyond `Flights::frozen_from()` is sent. Write-back takes no range lock and needs no credits
//! of ordinary requests, so a holder of the range lock may wait for it.

use crate::coherence::{attributes, closes, tokens};
use crate::inode::{FlightId, Inode, OpenFile};
use crate::mount::Mount;
use crate::objects::write::{WriteKind, write_piece};
use crate::policy::throughput;
use crate::tables::writeback::loads::Load;
use crate::telemetry::stats::{Count, Way};
use crate::telemetry::tunables::Tunable;
use crate::writeback::backlog;
use crate::writeback::batch::{self, Scattered};
use crate::writeback::writeback_errors;
use amphi_env::Buf;
use amphi_pagecache::Dirty;
use amphi_pagecache::Landing;
use amphi_types::{ByteRange, Errno, ObjectId, Result, TargetId};
use amphi_wire::Cover;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Largest write-back request, bytes.
pub(crate) const WRITE_MAX: u64 = 4 << 20;
const _: () = assert!(WRITE_MAX <= amphi_types::limits::PAYLOAD_MAX as u64, "a request takes a run");

/// The reason why dirty bytes were not sent; bytes that are being written back and were written again do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// The bound of bytes under way was reached.
    pub(crate) by_bound: bool,
    /// The bound of bytes under way to targets that cannot be reached was reached.
    pub(crate) away: bool,
    /// A truncate is under way, or another task is determining which bytes are sent there.
    pub(crate) held_up: bool,
}

/// Sends the dirty bytes of `range`, as far as the bound of bytes under way permits. This function does not wait. Bytes
/// that cannot be sent from their own memory are copied on the calling thread. Returns whether dirty bytes may be left
/// because of the bound.
pub(crate) fn start(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange) -> bool {
    send_off(mount, file, range).has_to_wait()
}

impl Left {
    /// Returns whether the bytes can be sent when others have landed.
    fn has_to_wait(self) -> bool {
        self.by_bound || self.away
    }
}

/// Works as `start`, for all bytes that were not sent because of the bound.
pub(crate) fn send_off(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange) -> Left {
    let mut scattered = Scattered::default();
    let left = send_off_with(mount, file, range, &mut scattered);
    scattered.send(mount);
    left
}

/// Works as `start`. Small runs wait in `scattered` until the caller sends them.
pub(crate) fn start_with(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange, scattered: &mut Scattered) -> bool {
    send_off_with(mount, file, range, scattered).has_to_wait()
}

fn send_off_with(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange, scattered: &mut Scattered) -> Left {
    let mut left = Left::default();
    // Searching for dirty bytes takes time, and writers who wait for space search repeatedly.
    if mount.flight_is_full() {
        return Left { by_bound: true, ..left };
    }
    let layout = file.layout();
    for run in mount.cache.dirty_runs(file, range) {
        for (object, piece) in layout.pieces(file.ino, run) {
            let target = layout.target(file.ino, object.stripe);
            let mut rest = piece;
            while !rest.is_empty() {
                let part = ByteRange::at(rest.start, WRITE_MAX).intersect(&rest);
                if mount.flight_is_full() {
                    return Left { by_bound: true, ..left };
                }
                if mount.is_held_back(target) {
                    left.away = true;
                    break;
                }
                let Some((flight, buf)) = begin_flight(mount, file, object, part) else {
                    // Another task has taken this run, but perhaps not all dirty bytes behind it.
                    match mount.cache.dirty_runs(file, rest).first() {
                        Some(next) if next.start > rest.start => {
                            rest = ByteRange::new(next.start, rest.end);
                            continue;
                        }
                        Some(_) => left.held_up = true,
                        None => {}
                    }
                    break;
                };
                assert!(flight.range.end > rest.start, "{:?} takes nothing of {rest:?}", flight.range);
                rest = ByteRange::new(flight.range.end, rest.end);
                if let Some((flight, buf)) = scattered.add(mount, flight, buf) {
                    submit(mount, flight, buf);
                }
            }
        }
    }
    left
}

/// Bytes of a file on their way to the file's target.
pub(crate) struct Flight {
    pub(crate) file: Arc<Inode>,
    pub(crate) object: ObjectId,
    pub(crate) range: ByteRange,
    target: TargetId,
    /// Whether space is granted for the bytes.
    pub(crate) cover: Cover,
    id: FlightId,
}

/// Takes the dirty bytes at the start of `part` out of the cache, to be sent, unless they are under way or held up.
pub(crate) fn begin_flight(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    object: ObjectId,
    part: ByteRange,
) -> Option<(Flight, Buf)> {
    let (id, part) = {
        let mut flights = file.flights.lock();
        let part = match flights.frozen_from() {
            Some(from) => ByteRange::new(part.start, part.end.min(from)),
            None => part,
        };
        if part.is_empty() || flights.overlap(ByteRange::at(part.start, 1)) {
            return None;
        }
        (flights.begin(part), part)
    };
    let start_ns = mount.clock.now_ns();
    let Some((range, buf, covered)) = mount.cache.take_dirty(file, part) else {
        end_flight(file, id);
        return None;
    };
    assert_eq!(buf.len() as u64, range.len(), "{}: the dirty bytes of {range:?}", file.ino);
    let id = file.flights.lock().narrow(id, range);
    mount.writeback.flight_bytes.fetch_add(range.len(), SeqCst);
    mount.writeback.flight_parts.fetch_add(1, SeqCst);
    let target = file.layout().target(file.ino, object.stripe);
    mount.writeback.loads.begin(target, Load::flight(range.len()));
    mount.stats.bytes(Count::WriteBack, range.len());
    if buf.is_whole() {
        mount.stats.bytes(Count::WriteBackCopied, range.len());
        mount.stats.bytes(Count::WriteBackCopy, mount.clock.now_ns().saturating_sub(start_ns));
    } else {
        mount.stats.bytes(Count::WriteBackLent, range.len());
    }
    let cover = if covered { Cover::Granted } else { Cover::Wanted };
    Some((Flight { file: file.clone(), object, range, target, cover, id }, buf))
}

/// Sends a run that was taken out of the cache in a request of its own.
pub(crate) fn submit(mount: &Arc<Mount>, flight: Flight, buf: Buf) {
    let mount2 = mount.clone();
    mount.spawn(async move {
        let start = flight.range.start;
        let result = write_piece(&mount2, &flight.file, flight.object, start, buf, WriteKind::Back(flight.cover)).await;
        ended(&mount2, &flight, result).await;
    });
}

/// Called when the flight has ended, however it did.
pub(crate) fn end_flight(file: &Inode, id: FlightId) {
    file.flights.lock().end(id);
    file.signal.notify();
}

/// Called when the request has been answered with `result`.
pub(crate) async fn ended(mount: &Arc<Mount>, flight: &Flight, result: Result<()>) {
    match result {
        // The file was cut meanwhile, or is gone.
        Err(Errno::Stale) => match attributes::reload(mount, &flight.file).await {
            Ok(()) => again(mount, flight),
            result => {
                landed(mount, flight, result);
                pump(mount);
            }
        },
        // The request was not sent, because too many calls wait for the connection.
        Err(Errno::Again) => again(mount, flight),
        result => {
            landed(mount, flight, result);
            pump(mount);
        }
    }
    closes::send_closes(mount, &flight.file);
}

/// Called when the bytes are on the disk, or will not be. Further bytes may be sent then: `pump`.
pub(crate) fn landed(mount: &Arc<Mount>, flight: &Flight, result: Result<()>) {
    let failure = match result {
        Ok(()) => None,
        // No program can reach the file any more, so the loss of its bytes is no failure.
        Err(Errno::NoEnt | Errno::Stale) if flight.file.open_count() == 0 => None,
        Err(e) => {
            mount.stats.bytes(Count::WriteBackFailed, flight.range.len());
            match mount.writeback.errors.note(e, mount.clock.now_ns()) {
                Some(silent) => {
                    tracing::warn!(ino = %flight.file.ino, range = ?flight.range, silent, "write-back failed: {e}");
                }
                None => tracing::debug!(ino = %flight.file.ino, range = ?flight.range, "write-back failed: {e}"),
            }
            Some(e)
        }
    };
    let landing = if failure.is_some() { Landing::Failed } else { Landing::Done };
    complete(mount, flight, landing, failure);
}

/// Called when the bytes are dirty again and have to be sent again.
pub(crate) fn again(mount: &Arc<Mount>, flight: &Flight) {
    complete(mount, flight, Landing::Again, None);
    pump(mount);
}

/// A request has ended: bytes that could not be sent before are sent, and waiting tasks are woken.
pub(crate) fn pump(mount: &Arc<Mount>) {
    backlog::pump(mount);
    mount.writeback.landed.notify();
}

fn complete(mount: &Arc<Mount>, flight: &Flight, landing: Landing, failure: Option<Errno>) {
    let file = &flight.file;
    // Attributes that were requested before this are older than what has just been written.
    file.size.mark_epoch();
    tokens::outdated(mount, file.ino);
    let tell = || failure.into_iter().for_each(|e| file.failures.note(e, flight.range));
    mount.cache.landed(file, flight.range, landing, mount.clock.now_ns(), tell);
    if mount.writeback.loads.end(flight.target, Load::flight(flight.range.len())) {
        mount.writeback.backlog.readmit();
    }
    let before = mount.writeback.flight_bytes.fetch_sub(flight.range.len(), SeqCst);
    assert!(before >= flight.range.len(), "{:?} ends with {before} bytes under way", flight.range);
    let before = mount.writeback.flight_parts.fetch_sub(1, SeqCst);
    assert!(before > 0, "{:?} ends with no run under way", flight.range);
    if landing == Landing::Done {
        // Writers wait for space, or soon will, or a program waits for many bytes.
        let waited = mount.dirty_is_high() || mount.writeback.drains.load(SeqCst) > 0;
        mount.policy.throughput.note_write_back(flight.range.len(), mount.clock.now_ns(), waited);
    }
    mount.writeback.landings.fetch_add(1, SeqCst);
    if landing == Landing::Again {
        file.flights.lock().comes_back();
    }
    end_flight(file, flight.id);
    if failure.is_some() {
        writeback_errors::settle(mount, file, flight.range);
    }
}

/// Writes back all bytes of `range` that are dirty or under way when it is called, and waits for them, not for what is
/// written meanwhile. Failures are noted in the file.
///
/// Two rounds are sufficient: bytes that are dirty are sent in the first one; bytes that are under way and were written
/// again are sent in the second one, when the first request has ended.
pub(crate) async fn flush(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange) {
    let mut rounds = 0;
    let mut came_back = file.flights.lock().came_back();
    while rounds < 2 {
        if file.cached.dirty_bytes.load(SeqCst) == 0 {
            return;
        }
        let left = send_off(mount, file, range);
        let held_up = if left.has_to_wait() { backlog::wait_for(mount, file, range).await } else { left.held_up };
        let landings = mount.writeback.landings.load(SeqCst);
        let upto = file.flights.lock().last();
        if file.in_flight_upto(range, upto) {
            file.signal.until(|| !file.in_flight_upto(range, upto)).await;
        } else if held_up && !mount.cache.dirty_runs(file, range).is_empty() {
            // A truncate delays this.
            let frozen = || file.flights.lock().frozen_from().is_none() && mount.flight_is_over();
            let moved = || mount.writeback.landings.load(SeqCst) != landings || frozen();
            mount.writeback.landed.until(moved).await;
        }
        let back = file.flights.lock().came_back();
        if std::mem::replace(&mut came_back, back) != back {
            // Bytes of the file may be dirty again.
            rounds = 0;
        } else if !held_up {
            rounds += 1;
        }
    }
}

/// Flushes and forgets the cached bytes of `range`, over which the caller holds the range lock.
pub(crate) async fn flush_and_forget(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange) {
    while mount.cache.forget(file, range, Dirty::Keep) {
        flush(mount, file, range).await;
    }
}

/// Waits until the cache accepts dirty bytes of `range`, in `room` bytes of memory.
pub(crate) async fn throttle(mount: &Arc<Mount>, open: &OpenFile, range: ByteRange, room: u64) {
    // Without dirty bytes there is nothing to wait for: the rest of the cache is in use by other calls and will be
    // freed.
    let full = || mount.dirty_is_full(&open.file, range) || (!mount.make_room(room) && mount.cache.dirty_bytes() > 0);
    let mut first = true;
    while full() {
        if std::mem::take(&mut first) {
            mount.stats.count(Count::Throttled);
            open.ledger.job.note_throttled();
        }
        let landings = mount.writeback.landings.load(SeqCst);
        if !mount.writeback.backlog.is_waited_for() && mount.flight_has_room() {
            batch::start(mount, dirty_files(mount));
        }
        mount.writeback.landed.until(|| mount.writeback.landings.load(SeqCst) != landings || !full()).await;
    }
}

/// A write found no granted space: bytes that hold grants are written back, and the targets grant the space again if
/// they can.
pub(crate) fn recycle_room(mount: &Arc<Mount>) {
    if !mount.writeback.backlog.is_waited_for() && mount.flight_has_room() {
        batch::start(mount, dirty_files(mount));
    }
}

/// Writes back bytes that have been dirty for too long, and bytes that the bound did not permit to be sent before.
pub(crate) fn tick(mount: &Arc<Mount>) {
    if mount.cache.dirty_bytes() == 0 {
        mount.cache.rest();
        return;
    }
    let age_ns = mount.tunables.get(Tunable::AgeMs) * 1_000_000;
    let before = mount.clock.now_ns().saturating_sub(age_ns);
    let aged = dirty_files(mount)
        .into_iter()
        .flat_map(|(file, _)| mount.cache.aged(&file, before).into_iter().map(move |range| (file.clone(), range)));
    batch::start(mount, aged);
}

/// All files with dirty bytes, in order of inodes, each as a whole.
fn dirty_files(mount: &Mount) -> Vec<(Arc<Inode>, ByteRange)> {
    let dirty = mount.files.all().into_iter().filter(|f| f.cached.dirty_bytes.load(SeqCst) > 0);
    dirty.map(|file| (file, ByteRange::ALL)).collect()
}

/// A chunk became dirty as a whole: it is sent now, or with its neighbours if larger runs are preferred. A chunk that
/// was written back before will probably be written again. So it is not sent until it is old or memory is short.
pub(crate) fn chunk_is_full(mount: &Arc<Mount>, file: &Arc<Inode>, chunk: ByteRange, rewritten: bool) {
    if rewritten && !mount.dirty_is_high() {
        return;
    }
    let run = mount.tunables.get(Tunable::RunBytes);
    let range = if run <= 1 << 20 {
        chunk
    } else if chunk.end % run < chunk.len() {
        ByteRange::new(chunk.end.saturating_sub(run + chunk.len()), chunk.end)
    } else {
        return;
    };
    if mount.writeback.backlog.is_waited_for() || start(mount, file, range) {
        backlog::leave(mount, file, range);
    }
}

/// While this value lives, a program waits for the bytes that were dirty when it began. If there are many, the time
/// that they take shows the rate of write-back. A few bytes would only show how long one request takes.
pub(crate) struct Drain(Option<Arc<Mount>>);

impl Drain {
    pub(crate) fn begin(mount: &Arc<Mount>) -> Drain {
        let much = mount.cache.dirty_bytes() >= throughput::SAMPLE_BYTES[Way::Write as usize];
        Drain(much.then(|| {
            mount.writeback.drains.fetch_add(1, SeqCst);
            mount.clone()
        }))
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        if let Some(mount) = &self.0 {
            mount.writeback.drains.fetch_sub(1, SeqCst);
        }
    }
}

/// Writes back all bytes that are dirty or under way when it is called, and waits for them.
pub(crate) async fn flush_all(mount: &Arc<Mount>) {
    let dirty = dirty_files(mount);
    let sent = || mount.stats.of(Count::WriteBack).1;
    let (bytes, before) = (mount.cache.dirty_bytes(), sent());
    loop {
        let landings = mount.writeback.landings.load(SeqCst);
        let is_left = batch::start(mount, dirty.iter().cloned());
        // If other tasks continue to write, the bound is always reached: the rest of this range is sent before their
        // bytes, below.
        if !is_left || sent().wrapping_sub(before) >= bytes {
            break;
        }
        let moved = || mount.writeback.landings.load(SeqCst) != landings && mount.flight_has_room();
        mount.writeback.landed.until(|| moved() || mount.writeback.flight_bytes.load(SeqCst) == 0).await;
    }
    let all = dirty.into_iter().map(|(file, range)| {
        let mount = mount.clone();
        async move { flush(&mount, &file, range).await }
    });
    futures_util::future::join_all(all.collect::<Vec<_>>()).await;
}

/// Sends the dirty bytes of files on a target. This function does not wait.
pub(crate) fn start_target(mount: &Arc<Mount>, target: TargetId) {
    let mut dirty = dirty_files(mount);
    dirty.retain(|(file, _)| file.layout().stripes_on(file.ino, target).next().is_some());
    batch::start(mount, dirty);
}
