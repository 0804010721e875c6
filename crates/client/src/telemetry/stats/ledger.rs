//! The counts of one open file that were not added to the totals yet.
//!
//! Owns: counters that only the users of one open file touch, so that a request neither looks up its file or job nor
//! shares a cache line with other files. Does not own: when they are added: at the close, and whenever the totals are
//! read (`FileStats`).

use super::{ByReason, Portrait, Way};
use crate::policy::decision::Reason;
use crate::telemetry::jobs::Job;
use amphi_types::ByteRange;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Shards of the counters of hits.
const HIT_SHARDS: usize = 4;

/// Cache hits of one open file by some of the threads: two threads on one line would cost more than the hit.
#[derive(Default)]
#[repr(align(128))]
struct Hits {
    requests: AtomicU64,
    bytes: AtomicU64,
}

/// Counters of an open file.
pub(crate) struct Ledger {
    /// The job that makes the requests.
    pub(crate) job: Arc<Job>,
    by_reason: ByReason,
    hits: [Hits; HIT_SHARDS],
    portrait: Portrait,
}

impl Ledger {
    pub(crate) fn new(job: Arc<Job>) -> Ledger {
        Ledger { job, by_reason: ByReason::default(), hits: Default::default(), portrait: Portrait::default() }
    }

    /// Counts one request with this reason.
    pub(crate) fn io(&self, way: Way, reason: Reason, range: ByteRange) {
        self.by_reason.add(way, reason, 1, range.len());
        if reason != Reason::CacheHit {
            self.portrait.note(way, range);
        }
    }

    /// Counts one `fsync`.
    pub(crate) fn fsync(&self) {
        self.portrait.note_fsync();
    }

    /// Counts one read from the cache, by a thread of this shard.
    pub(crate) fn hit(&self, shard: usize, bytes: u64) {
        let hits = &self.hits[shard % HIT_SHARDS];
        hits.requests.fetch_add(1, Relaxed);
        hits.bytes.fetch_add(bytes, Relaxed);
    }

    /// Reads and their bytes that were not added to the totals yet.
    pub(crate) fn reads(&self) -> (u64, u64) {
        let hits = self.hits.iter().map(|h| (h.requests.load(Relaxed), h.bytes.load(Relaxed)));
        hits.fold(self.by_reason.sum(Way::Read), |(requests, bytes), hit| (requests + hit.0, bytes + hit.1))
    }

    /// Moves everything to the counters of the file and of the job.
    pub(super) fn book(&self, file: &ByReason, portrait: &Portrait) {
        for hits in &self.hits {
            let (requests, bytes) = (hits.requests.swap(0, Relaxed), hits.bytes.swap(0, Relaxed));
            self.by_reason.add(Way::Read, Reason::CacheHit, requests, bytes);
        }
        self.by_reason.move_to([file, self.job.by_reason()]);
        self.portrait.move_to(portrait);
    }
}
