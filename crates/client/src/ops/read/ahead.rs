//! The choice of the bytes fetched ahead of a read.
//!
//! Owns: requests to the streams of the open file and of the file (`prefetch`), and starting the fetches. Does not own:
//! what is fetched and how (`read`).

use super::{fetch, is_wanted_elsewhere, pieces};
use crate::inode::OpenFile;
use crate::mount::Mount;
use crate::objects::read::PAGE;
use crate::policy::readahead::{Limits, Plan, ReadAhead};
use crate::tables::prefetch::joint::StridedRead;
use crate::telemetry::stats::{Count, Way};
use amphi_types::ByteRange;
use amphi_wire::ReadAdvice;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Requests of the present size that a stream is read ahead of (docs/LESSONS.md).
const AHEAD_REQUESTS: u64 = 10;

/// Returns how far a stream that has come to `range` is read ahead. It is not read ahead if its program reads at
/// random. It is not read ahead either if its requests are direct, because hits of prefetched bytes would keep it in
/// the cache without a decision.
fn limits_of(mount: &Mount, open: &OpenFile, range: ByteRange) -> Limits {
    if mount.passes_cache_by(open, Way::Read, range.len()) || open.file.hints.read_advice() == ReadAdvice::Random {
        return Limits { window_max: 0, requests: 0 };
    }
    Limits { window_max: mount.window_max(), requests: AHEAD_REQUESTS }
}

pub(super) fn plan(mount: &Arc<Mount>, open: &OpenFile, range: ByteRange, size: u64) -> Plan {
    if !mount.reads_ahead() {
        return Plan::new();
    }
    let limits = limits_of(mount, open, range);
    let mut state = open.streams.readahead.lock();
    next_ahead(mount, open, &mut state, range, size, limits)
}

/// The bytes to fetch ahead of a read. These bytes follow in the read's own stream, or in the sequence that several
/// open files read together.
fn next_ahead(
    mount: &Mount,
    open: &OpenFile,
    state: &mut ReadAhead,
    range: ByteRange,
    size: u64,
    limits: Limits,
) -> Plan {
    let plan = state.on_read(range, size, limits);
    open.streams.readahead_on.store(state.is_active(), Relaxed);
    let Some(stride) = state.stride_of(range) else { return plan };
    let read = StridedRead { open: std::ptr::from_ref(open).addr() as u64, range, stride };
    match mount.prefetch.joint.on_read(open.file.ino, read, size, limits) {
        Some(joint) => {
            if !joint.is_empty() {
                mount.stats.bytes(Count::ReadAheadJoint, joint.iter().map(ByteRange::len).sum());
            }
            joint
        }
        None => plan,
    }
}

/// A hit advances the stream of the reader.
pub(super) fn read_ahead(mount: &Arc<Mount>, open: &OpenFile, range: ByteRange, size: u64) {
    mount.policy.throughput.note_cached_read(range.len(), None, || mount.clock.now_ns());
    if !mount.reads_ahead() {
        return;
    }
    let limits = limits_of(mount, open, range);
    // Another thread is updating the read-ahead state. Missing one step of a stream costs less than waiting for that
    // thread.
    let plan = match open.streams.readahead.try_lock() {
        Some(mut state) => next_ahead(mount, open, &mut state, range, size, limits),
        None => return,
    };
    if !plan.is_empty() {
        fetch_ahead(mount, open, plan);
    }
}

/// Fetches, in the background, the bytes of the range that are neither cached nor being fetched.
pub(super) fn fetch_ahead(mount: &Arc<Mount>, open: &OpenFile, plan: Plan) {
    let file = &open.file;
    if !file.group.admits(open.member()) {
        return;
    }
    // If other mounts use the file, read-ahead would take locks that they need.
    let wary = !mount.coherence.sharing.is_alone() && is_wanted_elsewhere(mount, file);
    for range in plan {
        let range = range.align_out(PAGE).intersect(&ByteRange::new(0, file.size()));
        if wary && !mount.coherence.locks.permit_reading(file, range) {
            continue;
        }
        for gap in mount.cache.gaps(file, range) {
            for part in file.fills.gaps(gap) {
                mount.stats.bytes(Count::ReadAheadIssued, part.len());
                for (object, piece) in pieces(file, part) {
                    let run = fetch(mount.clone(), file.clone(), object, piece, true, open.extent()).run();
                    mount.spawn(async move {
                        if let Err(e) = run.await {
                            tracing::debug!("read-ahead: {e}");
                        }
                    });
                }
            }
        }
    }
}

/// A program needs the range soon. The range is fetched, as far as one stream may be read ahead. It is not fetched if
/// reads of the file bypass the cache.
pub(crate) fn will_need(mount: &Arc<Mount>, open: &OpenFile, range: ByteRange) {
    let range = ByteRange::at(range.start, range.len().min(mount.window_max())).intersect(&range);
    if !range.is_empty() && !mount.passes_cache_by(open, Way::Read, 1) {
        fetch_ahead(mount, open, Plan::from_iter([range]));
    }
}
