//! Cross-file batching: dirty bytes of many small files are sent in one request to their target, and so are the small
//! runs that are scattered over one object of a large file.
//!
//! Owns: the list of small files that no program writes any more, for each target, and the bounds at which they are
//! sent; making a batch, sending it, and processing the result of each part. Does not own: dirty ranges (`cache`), how
//! one request of write-back affects its file (`writeback`).
//!
//! A file has few dirty bytes if they are at most `writeback.small_bytes`. Only dirty bytes of its first stripe, which
//! is on the target of the inode, are sent in this way. When the last writer closes such a file it enters the list of
//! its target. The list is sent when the next file does not fit into a batch with it, or when any of its files has
//! become old.
//!
//! Invariants: those of `writeback`, for each part separately. A part is a request under way of its file from before
//! its bytes are taken until its answer was processed, and an error concerns only its file. If a caller waits for one
//! file (`fsync`, a callback), that file is sent by itself. It waits for a batch only if its bytes are in one already;
//! the server lets no part of a batch wait for anything but disks. Bounds: a batch has at most 1 MiB and 512 parts, and
//! so has a list. Bytes under way are bounded like all write-back.

use crate::coherence::closes;
use crate::conn::replies::unexpected;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::objects::write::spread;
use crate::telemetry::stats::Count;
use crate::telemetry::tunables::Tunable;
use crate::writeback::flush::{self, Flight};
use amphi_env::Buf;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Cred, Errno, Ino, ObjectId, Result, TargetId};
use amphi_wire::{BATCH_BYTES_MAX, BATCH_PARTS_MAX, BatchPart, Lane, Reply, Request};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Longer runs are sent in requests of their own. From 16 KiB on the copies into a batch cost as much as it saves
/// (docs/LESSONS.md, Scattered and unaligned writes).
const SCATTERED_MAX_BYTES: usize = 12 << 10;
const _: () = assert!(SCATTERED_MAX_BYTES <= BATCH_BYTES_MAX, "a batch takes a run");

fn is_small(mount: &Mount, file: &Inode) -> bool {
    let dirty = file.cached.dirty_bytes.load(SeqCst);
    dirty > 0 && dirty <= mount.tunables.get(Tunable::SmallBytes) && mount.tunables.on(Tunable::Batch)
}

/// An open of the file has been released: if it was the last one that could write, the file waits for others with which
/// to share a request.
pub(crate) fn released(mount: &Arc<Mount>, file: &Arc<Inode>) {
    if !is_small(mount, file) || file.has_writers() {
        return;
    }
    if let Some(full) = mount.writeback.small_files.add(file, file.cached.dirty_bytes.load(SeqCst)) {
        send(mount, full.into_values().map(|(file, _)| (file, vec![ByteRange::ALL])));
    }
}

/// Sends the dirty bytes of these files, small files together and with the others on the lists of their targets, as far
/// as the bound of bytes under way permits. This function does not wait. Returns whether dirty bytes may be left
/// because of the bound.
pub(crate) fn start(mount: &Arc<Mount>, due: impl IntoIterator<Item = (Arc<Inode>, ByteRange)>) -> bool {
    let (mut left, mut scattered) = (false, Scattered::default());
    let mut small: BTreeMap<Ino, (Arc<Inode>, Vec<ByteRange>)> = BTreeMap::new();
    for (file, range) in due {
        if is_small(mount, &file) {
            small.entry(file.ino).or_insert_with(|| (file, Vec::new())).1.push(range);
        } else {
            left |= flush::start_with(mount, &file, range, &mut scattered);
        }
    }
    scattered.send(mount);
    let mut targets: Vec<TargetId> = small.keys().map(|ino| ino.target()).collect();
    targets.dedup();
    for target in targets {
        for (ino, (file, _)) in mount.writeback.small_files.take(target) {
            small.entry(ino).or_insert_with(|| (file, Vec::new())).1 = vec![ByteRange::ALL];
        }
    }
    left | send(mount, small.into_values())
}

/// Sends these files' dirty bytes in as many batches as it takes; ascending inodes. Returns under the same condition as
/// `start`.
fn send(mount: &Arc<Mount>, files: impl Iterator<Item = (Arc<Inode>, Vec<ByteRange>)>) -> bool {
    let (mut batch, mut left) = (Batch::default(), false);
    for (file, ranges) in files {
        for range in ranges {
            left |= begin_flight(mount, &file, range, &mut batch);
        }
    }
    batch.send(mount);
    left
}

/// Adds the dirty bytes of `range` to the batch, or sends them separately if they do not fit into any batch.
fn begin_flight(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange, batch: &mut Batch) -> bool {
    let is_full = || mount.flight_is_full() || mount.is_held_back(file.ino.target());
    if is_full() {
        return true;
    }
    let mut left = false;
    for run in mount.cache.dirty_runs(file, range) {
        for (object, piece) in file.layout().pieces(file.ino, run) {
            if object.stripe > 0 || piece.len() > BATCH_BYTES_MAX as u64 || batch.shares_block(file, piece) {
                left |= flush::start(mount, file, piece);
                continue;
            }
            if is_full() {
                return true;
            }
            if !batch.has_room(file, piece) {
                batch.send(mount);
            }
            if let Some((flight, buf)) = flush::begin_flight(mount, file, object, piece) {
                batch.bytes += buf.len();
                batch.parts.push((flight, buf));
            }
        }
    }
    left
}

/// Parts to be sent, ascending in (inode, offset), all of one target.
#[derive(Default)]
struct Batch {
    parts: Vec<(Flight, Buf)>,
    bytes: usize,
}

impl Batch {
    fn last(&self) -> Option<&Flight> {
        self.parts.last().map(|(flight, _)| flight)
    }

    /// Returns whether the piece shares a block with the part before it. The server plans parts of one object at the
    /// same time.
    fn shares_block(&self, file: &Inode, piece: ByteRange) -> bool {
        let end = |f: &Flight| f.range.align_out(BLOCK).end;
        self.last().is_some_and(|f| f.file.ino == file.ino && end(f) > piece.start / BLOCK * BLOCK)
    }

    fn has_room(&self, file: &Inode, piece: ByteRange) -> bool {
        let same_target = self.last().is_none_or(|f| f.file.ino.target() == file.ino.target());
        same_target && self.parts.len() < BATCH_PARTS_MAX && self.bytes + piece.len() as usize <= BATCH_BYTES_MAX
    }

    /// Sends the batch and begins a new one.
    fn send(&mut self, mount: &Arc<Mount>) {
        let Batch { mut parts, bytes } = std::mem::take(self);
        assert!(bytes <= BATCH_BYTES_MAX, "a batch of {bytes} bytes, at most {BATCH_BYTES_MAX}");
        assert!(parts.len() <= BATCH_PARTS_MAX, "a batch of {} parts, at most {BATCH_PARTS_MAX}", parts.len());
        if parts.len() > 1 {
            let mount2 = mount.clone();
            mount.spawn(async move { fly(mount2, parts, bytes).await });
        } else if let Some((flight, buf)) = parts.pop() {
            flush::submit(mount, flight, buf);
        }
    }
}

/// Small runs of large files that are about to be sent, by object.
#[derive(Default)]
pub(crate) struct Scattered(BTreeMap<ObjectId, Batch>);

impl Scattered {
    /// Adds a run that was taken out of the cache. Returns runs that have to be sent separately. These are large runs,
    /// which gain nothing from a batch, and runs that begin in the block in which the previous one ends, or before it.
    pub(crate) fn add(&mut self, mount: &Arc<Mount>, flight: Flight, buf: Buf) -> Option<(Flight, Buf)> {
        let (file, piece) = (&flight.file, flight.range);
        if buf.len() > SCATTERED_MAX_BYTES || !mount.tunables.on(Tunable::Batch) {
            return Some((flight, buf));
        }
        let batch = self.0.entry(flight.object).or_default();
        if batch.shares_block(file, piece) {
            return Some((flight, buf));
        }
        if !batch.has_room(file, piece) {
            batch.send(mount);
        }
        batch.bytes += buf.len();
        batch.parts.push((flight, buf));
        None
    }

    /// Sends all that wait.
    pub(crate) fn send(self, mount: &Arc<Mount>) {
        self.0.into_values().for_each(|mut batch| batch.send(mount));
    }
}

async fn fly(mount: Arc<Mount>, parts: Vec<(Flight, Buf)>, bytes: usize) {
    mount.stats.count(Count::BatchRequests);
    mount.stats.bytes(Count::BatchFiles, parts.len() as u64);
    mount.stats.bytes(Count::BatchBytes, bytes as u64);
    mount.stats.bytes(Count::WriteBackCopied, bytes as u64);
    let mut payload = Buf::scratch(bytes);
    let (mut flights, mut at) = (Vec::with_capacity(parts.len()), 0);
    for (flight, buf) in parts {
        payload[at..at + buf.len()].copy_from_slice(&buf);
        at += buf.len();
        flights.push(flight);
    }
    assert_eq!(at, bytes, "the parts of a batch fill its payload");
    let results = write(&mount, &flights, payload).await;
    let mut due = Vec::new();
    for (at, flight) in flights.into_iter().enumerate() {
        let result = match &results {
            Ok(results) => results.get(at).copied().unwrap_or(Err(Errno::Proto)),
            Err(e) => Err(*e),
        };
        match result {
            // The following steps take some time, and the other parts do not wait for them.
            Err(Errno::Stale) => {
                let mount2 = mount.clone();
                mount.spawn(async move { flush::ended(&mount2, &flight, Err(Errno::Stale)).await });
            }
            // The server requires that this part is sent separately.
            Err(Errno::Again) if results.is_ok() => {
                flush::again(&mount, &flight);
                flush::start(&mount, &flight.file, flight.range);
            }
            // The batch was not sent, because too many calls wait for the connection.
            Err(Errno::Again) => flush::again(&mount, &flight),
            result => {
                flush::landed(&mount, &flight, result);
                due.extend(closes::due_closes(&flight.file));
                mount.files.reap(&flight.file);
            }
        }
    }
    // This comes after all parts: whatever is sent now finds space for a whole batch.
    flush::pump(&mount);
    closes::send(&mount, due);
}

/// Writes all parts and waits until they are on the disk. Returns the result of each part.
async fn write(mount: &Arc<Mount>, flights: &[Flight], payload: Buf) -> Result<Vec<Result<()>>> {
    if let Some(f) = flights.first().filter(|f| f.object.stripe > 0) {
        spread(mount, &f.file).await?;
    }
    assert!(!flights.is_empty(), "a batch without parts");
    let part = |f: &Flight| {
        let known = f.file.known.lock();
        let (generation, mtime) = (known.view.generation, known.write_time());
        let checksums = known.view.advice.checksums();
        BatchPart {
            object: f.object,
            offset: f.range.start,
            len: f.range.len() as u32,
            generation,
            mtime,
            checksums,
            cover: f.cover,
        }
    };
    let parts: Vec<BatchPart> = flights.iter().map(part).collect();
    let target = flights.first().map_or(TargetId(0), |f| f.file.layout().target(f.file.ino, f.object.stripe));
    let (bytes, op) = (payload.len() as u64, Request::WriteBatch { parts });
    let sent = mount.send(Lane::Urgent, target, &Cred::root(), op, Some(payload), 0).await;
    mount.writeback.grants.answered(target, &sent);
    let (answer, _) = sent?;
    let contended = answer.contended_places().filter_map(|at| flights.get(at));
    contended.for_each(|flight| mount.note_contention(&flight.file, true));
    match answer.result? {
        Reply::WrittenBatch(results) => {
            mount.writeback.free_space.ended(target, results.iter(), bytes);
            Ok(results)
        }
        other => Err(unexpected(&other)),
    }
}
