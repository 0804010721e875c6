//! `Counters`: the counters of a worker, and their names.

use amphi_wire::Request;
use std::cell::Cell;

macro_rules! counters {
    ($($field:ident = $name:literal, $doc:literal;)*) => {
        /// Counts of one worker; read out and summed over workers by `Request::Counters`.
        #[derive(Default)]
        pub struct Counters {
            $(#[doc = $doc] pub $field: Cell<u64>,)*
            /// Distributions.
            pub histograms: Histograms,
        }
        impl Counters {
            /// Names and values, in the order of the table; `reset` starts again from zero.
            pub fn read(&self, reset: bool) -> Vec<(String, u64)> {
                let mut all =
                    vec![$(($name.to_string(), if reset { self.$field.take() } else { self.$field.get() }),)*];
                self.histograms.read(reset, &mut all);
                all
            }
        }
    };
}

/// Buckets of a histogram: up to 2^39, some 10 minutes in ns or 512 GiB.
const BUCKETS: usize = 40;

/// The distribution of values by powers of two: bucket `k` counts values above 2^(k-1) and up to 2^k.
pub struct Histogram([Cell<u64>; BUCKETS]);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram([const { Cell::new(0) }; BUCKETS])
    }
}

impl Histogram {
    /// Counts a value.
    #[inline]
    pub fn note(&self, value: u64) {
        let bucket = (u64::BITS - value.saturating_sub(1).leading_zeros()) as usize;
        add(&self.0[bucket.min(BUCKETS - 1)], 1);
    }

    /// Adds a row `NAME_to_BOUND` for each bucket that has counted something.
    fn read(&self, name: &str, reset: bool, rows: &mut Vec<(String, u64)>) {
        for (k, bucket) in self.0.iter().enumerate() {
            let n = if reset { bucket.take() } else { bucket.get() };
            if n > 0 {
                rows.push((format!("{name}_to_{}", 1u64 << k), n));
            }
        }
    }
}

/// Distributions of reads or of writes.
#[derive(Default)]
pub struct Sizes {
    /// Payload bytes of each request.
    pub request_bytes: Histogram,
    /// Number of disk requests that one request or one flush needed: the fragments of its range.
    pub disk_pieces: Histogram,
    /// Bytes of each disk request of file data.
    pub disk_bytes: Histogram,
    /// Time of the disk for all pieces of a request, us.
    pub disk_us: Histogram,
}

impl Sizes {
    /// Counts a request and the lengths of the disk requests that it needs, if any.
    pub fn note(&self, request_bytes: u64, pieces: impl ExactSizeIterator<Item = usize>) {
        self.request_bytes.note(request_bytes);
        self.note_disk(pieces);
    }

    /// Counts the lengths of disk requests that belong together.
    pub fn note_disk(&self, pieces: impl ExactSizeIterator<Item = usize>) {
        self.disk_pieces.note(pieces.len() as u64);
        pieces.for_each(|len| self.disk_bytes.note(len as u64));
    }
}

/// Distributions of a worker's requests for file data, like those of `brw_stats` in Lustre.
#[derive(Default)]
pub struct Histograms {
    /// Distributions of reads.
    pub read: Sizes,
    /// Distributions of writes.
    pub write: Sizes,
}

impl Histograms {
    fn read(&self, reset: bool, rows: &mut Vec<(String, u64)>) {
        for (way, sizes) in [("read", &self.read), ("write", &self.write)] {
            sizes.request_bytes.read(&format!("histogram_request_bytes_{way}"), reset, rows);
            sizes.disk_pieces.read(&format!("histogram_disk_pieces_{way}"), reset, rows);
            sizes.disk_bytes.read(&format!("histogram_disk_bytes_{way}"), reset, rows);
            sizes.disk_us.read(&format!("histogram_disk_us_{way}"), reset, rows);
        }
    }
}

counters! {
    lookup = "request_lookup", "Requests of this kind.";
    getattr = "request_getattr", "Requests of this kind.";
    setattr = "request_setattr", "Requests of this kind.";
    make = "request_make", "Requests of this kind, with and without a name.";
    link = "request_link", "Requests of this kind.";
    unlink = "request_unlink", "Requests of this kind.";
    rmdir = "request_rmdir", "Requests of this kind.";
    rename = "request_rename", "Requests of this kind.";
    readdir = "request_readdir", "Requests of this kind.";
    open = "request_open", "Requests of this kind.";
    close = "request_close", "Requests of this kind.";
    xattr = "request_xattr", "Requests that read or change extended attributes.";
    read = "request_read", "Requests of this kind.";
    write = "request_write", "Requests of this kind.";
    write_batch = "request_write_batch", "Requests of this kind.";
    read_batch = "request_read_batch", "Requests of this kind.";
    space = "request_space", "Requests to punch holes, to allocate, and to seek data or holes.";
    sync = "request_sync", "Requests of this kind.";
    lock = "request_lock", "Lock enqueues and cancels, and answers to glimpses and revocations.";
    file_lock = "request_file_lock", "Requests about locks of applications (fcntl, flock).";
    other = "request_other", "All other requests.";
    read_bytes = "read_bytes", "Payload bytes read.";
    read_delayed_bytes = "read_write_back_bytes", "Payload bytes of reads that came from write-back memory.";
    write_bytes = "write_bytes", "Payload bytes written.";
    batch_parts = "write_batch_parts", "Small writes that came in a request with others.";
    ahead_parts = "read_batch_parts", "Small files that mounts asked for before their programs did.";
    ahead_refused = "read_batch_refused", "Such files that were not sent, mostly because a conflicting lock was held.";
    write_copied = "write_copied_bytes", "Payload bytes of writes that were copied to be aligned for the disk.";
    edge_reads = "edge_reads", "Blocks read to complete the edges of unaligned writes.";
    edge_reads_kept = "edge_reads_kept", "Blocks at the edges of unaligned writes that the read cache had.";
    data_reads = "data_disk_reads", "Disk reads of file data.";
    cache_hits = "read_cache_hits", "Reads of file data that the read cache served.";
    cache_hit_bytes = "read_cache_hit_bytes", "Bytes that the read cache served.";
    cache_misses = "read_cache_misses", "Reads that needed the disk and brought their surroundings into the read cache.";
    cache_waits = "read_cache_waits", "Reads that waited until another read had brought the same data into the read cache.";
    cache_ahead_bytes = "read_cache_ahead_bytes", "Bytes that were read into the read cache though no request asked for them.";
    cache_flushed_bytes = "read_cache_flushed_bytes", "Bytes that stayed in the read cache when write-back wrote them to the disk.";
    read_through_large = "read_through_large", "Reads that bypassed the read cache because they were large.";
    read_through_alone = "read_through_alone", "Reads that bypassed the read cache because only one mount is connected, which caches by itself.";
    read_through_first = "read_through_first", "Reads that bypassed the read cache because no other read had been near them.";
    read_through_once = "read_through_once", "Reads that bypassed the read cache because their program reads the file once.";
    checksum_errors = "checksum_errors", "Times that a requested block did not match its checksum.";
    checksum_retries = "checksum_retries", "Blocks that did not match their checksum and did when they were read again.";
    scrubbed_bytes = "scrub_bytes", "Bytes of file data that the scrubber read to verify them.";
    scrub_passes = "scrub_passes", "Passes of the scrubber over all data of a target.";
    scrub_adopted = "scrub_adopted_blocks", "Blocks without checksum that got one from the scrubber.";
    data_writes = "data_disk_writes", "Disk writes of file data.";
    write_ns = "time_write_ns", "Time of writes from arrival to answer; times of concurrent writes add up.";
    write_wait_ns = "time_write_wait_ns", "Part of the time of writes: locks, log space, other requests on the same bytes, and planning.";
    write_edges_ns = "time_write_edges_ns", "Part of the time of writes: reads of blocks at the edges, and copies to block boundaries.";
    write_disk_ns = "time_write_disk_ns", "Part of the time of writes: the disk.";
    write_log_ns = "time_write_log_ns", "Part of the time of writes: the log record, until it is stable.";
    accepted = "write_back", "Writes that were acknowledged from write-back memory.";
    accepted_bytes = "write_back_bytes", "Bytes of writes that were acknowledged from write-back memory.";
    through_large = "write_through_large", "Writes that went to the disk before the acknowledgement because they were large.";
    through_full = "write_through_full", "Writes that went to the disk before the acknowledgement because write-back memory was nearly full.";
    through_extents = "write_through_extents", "Writes that went to the disk before the acknowledgement because a log record could not name more extents.";
    through_room = "write_through_room", "Writes that went to the disk before the acknowledgement because the target had little free space.";
    through_busy = "write_through_busy", "Writes that went to the disk before the acknowledgement because the worker was busy and the disk fast.";
    through_together = "write_through_together", "Writes that went to the disk before the acknowledgement together with others of their request.";
    flushes = "flushes", "Units of 1 MiB from which write-back memory was written to the disk.";
    flushes_whole = "flushes_whole", "Units that were written as a whole.";
    flush_runs = "flush_runs", "Contiguous runs of bytes in the units that were written.";
    flush_bytes = "flush_bytes", "Bytes that write-back wrote to the disk, in whole blocks.";
    logged = "write_back_logged", "Acknowledged writes, or parts of them, whose bytes a sync put into the log.";
    logged_bytes = "write_back_logged_bytes", "Bytes of acknowledged writes that a sync put into the log.";
    flushes_moved = "flushes_moved", "Units whose place on the disk could not be written, and that were written to another place.";
    flushes_for_room = "flushes_for_room", "Times that all write-back memory was written to the disk because little space was left.";
    writes_full = "writes_full", "Writes that found no free space and used the blocks that are reserved for overwrites.";
    flush_failures = "flush_failures", "Units that could not be written and stay in memory.";
    flush_failures_told = "flush_failures_told", "Mounts that were told that data which they had written to a file could not be written to the disk.";
    resends = "resends_answered", "Resent requests answered from their slot.";
    forwarded = "forwarded", "Requests that were passed to the worker of their target.";
    commits = "transactions", "Transactions logged.";
    two_phase = "two_phase", "Operations over several targets.";
    conflicts = "two_phase_conflicts", "Operations that were planned anew because what they were planned on had changed.";
    directories_shown = "directories_shown", "Answers to changes of names that brought the attributes of the directory.";
    callbacks = "lock_callbacks", "Lock callbacks sent.";
    revocations = "token_revocations", "Token revocations sent.";
    again = "callbacks_again", "Lock callbacks, revocations and glimpses that were sent again because no answer came for long.";
    glimpses = "glimpses", "Questions to clients for the size of a file that they are writing.";
    file_lock_waits = "file_lock_waits", "Requests for locks of applications that were told to wait.";
    file_lock_news = "file_lock_news", "Requests for locks of applications that were told to ask again.";
    file_lock_closings = "file_lock_closings", "Questions to mounts whether a file is being closed whose lock another program wants.";
    directories_changed = "directories_changed", "Messages to mounts that another mount has moved or removed a directory.";
    file_locks_lost = "file_locks_lost", "Locks of applications that a restart lost.";
    evictions = "evictions", "Sessions evicted.";
    freed_blocks = "freed_blocks", "Blocks given back for reuse.";
}

/// Adds `n` to a count.
pub fn add(count: &Cell<u64>, n: u64) {
    count.set(count.get().wrapping_add(n));
}

impl Counters {
    /// Counts a request.
    pub fn request(&self, op: &Request) {
        let count = match op {
            Request::Lookup { .. } | Request::Parent { .. } | Request::Shards { .. } => &self.lookup,
            Request::GetAttr { .. } | Request::GetAttrNow { .. } | Request::ReadLink { .. } => &self.getattr,
            Request::SetAttr { .. } => &self.setattr,
            Request::Make { .. } | Request::MakeTmp { .. } => &self.make,
            Request::Link { .. } => &self.link,
            Request::Unlink { .. } => &self.unlink,
            Request::RmDir { .. } => &self.rmdir,
            Request::Rename { .. } => &self.rename,
            Request::ReadDir { .. } => &self.readdir,
            Request::Open { .. } => &self.open,
            Request::Close { .. } | Request::CloseBatch { .. } | Request::Discard { .. } => &self.close,
            Request::GetXattr { .. }
            | Request::ListXattr { .. }
            | Request::SetXattr { .. }
            | Request::RemoveXattr { .. } => &self.xattr,
            Request::Read { .. } | Request::PagesRead { .. } => &self.read,
            Request::Write { .. } | Request::PagesWrite { .. } => &self.write,
            Request::WriteBatch { .. } => &self.write_batch,
            Request::ReadBatch { .. } => &self.read_batch,
            Request::Punch { .. } | Request::Allocate { .. } | Request::DataMap { .. } | Request::Extents { .. } => {
                &self.space
            }
            Request::Sync { .. } => &self.sync,
            Request::LockEnqueue { .. }
            | Request::GroupLock { .. }
            | Request::GroupWanted { .. }
            | Request::Grant { .. }
            | Request::LockCancel { .. }
            | Request::LockKept { .. }
            | Request::PagesLeft { .. }
            | Request::PagesTaken { .. }
            | Request::GlimpseReply { .. }
            | Request::Revoked { .. } => &self.lock,
            Request::FileLockSet { .. }
            | Request::FileLockCancel { .. }
            | Request::FileLockUnlock { .. }
            | Request::FileLockTest { .. }
            | Request::FileLockClosed { .. }
            | Request::RepresentFileLocks { .. } => &self.file_lock,
            _ => &self.other,
        };
        add(count, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: values are counted in the bucket whose bound is the next power of two, and a reset empties all buckets.
    /// Method: some values whose buckets are known.
    #[test]
    fn powers_of_two() {
        let counters = Counters::default();
        let sizes = &counters.histograms.write;
        sizes.note(4096, [4096, 1].into_iter());
        sizes.note(4097, [].into_iter());
        sizes.disk_us.note(u64::MAX);
        let rows = |reset| {
            let all = counters.read(reset);
            let rows = all.into_iter().filter_map(|(name, n)| Some((name.strip_prefix("histogram_")?.to_string(), n)));
            rows.collect::<Vec<_>>()
        };
        let want = [
            ("request_bytes_write_to_4096", 1),
            ("request_bytes_write_to_8192", 1),
            ("disk_pieces_write_to_1", 1),
            ("disk_pieces_write_to_2", 1),
            ("disk_bytes_write_to_1", 1),
            ("disk_bytes_write_to_4096", 1),
            ("disk_us_write_to_549755813888", 1),
        ];
        assert_eq!(rows(true), want.map(|(name, n)| (name.to_string(), n)));
        assert_eq!(rows(false), []);
    }
}
