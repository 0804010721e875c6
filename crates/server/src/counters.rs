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

/// Distributions of a worker's requests for file data, as `brw_stats` of Lustre has them.
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
    space = "request_space", "Punch, allocate and seek.";
    sync = "request_sync", "Requests of this kind.";
    lock = "request_lock", "Enqueues, cancels, answers to glimpses and revocations.";
    file_lock = "request_file_lock", "Requests about locks of applications.";
    other = "request_other", "Everything else.";
    read_bytes = "read_bytes", "Payload bytes read.";
    read_delayed_bytes = "read_write_back_bytes", "Of them, those that were in memory and not on the disk.";
    write_bytes = "write_bytes", "Payload bytes written.";
    batch_parts = "write_batch_parts", "Small writes that came together with others.";
    ahead_parts = "read_batch_parts", "Small files asked for ahead of their readers.";
    ahead_refused = "read_batch_refused", "Of them: not had, mostly because others would have to be waited for.";
    write_copied = "write_copied_bytes", "Payload bytes that had to be copied to be aligned.";
    edge_reads = "edge_reads", "Blocks read to complete the edges of unaligned writes.";
    edge_reads_kept = "edge_reads_kept", "Old blocks at the edges of writes that the read cache had.";
    data_reads = "data_disk_reads", "Disk reads of file data.";
    cache_hits = "read_cache_hits", "Reads of file data that were served from memory that the server keeps.";
    cache_hit_bytes = "read_cache_hit_bytes", "Bytes of them.";
    cache_misses = "read_cache_misses", "Reads that needed the disk, and brought what lies around them into that memory.";
    cache_waits = "read_cache_waits", "Reads that waited for others to bring what they need.";
    cache_ahead_bytes = "read_cache_ahead_bytes", "Bytes that were read and kept though nobody had asked for them.";
    cache_flushed_bytes = "read_cache_flushed_bytes", "Bytes that were kept when they were flushed.";
    read_through_large = "read_through_large", "Reads that went by that memory as they are large.";
    read_through_alone = "read_through_alone", "Likewise, as the mount is alone and keeps what it reads.";
    read_through_first = "read_through_first", "Likewise, as nobody had read beside them.";
    read_through_once = "read_through_once", "Likewise, as its program reads it once.";
    checksum_errors = "checksum_errors", "Blocks that did not read as their checksum says; each time one was asked for.";
    checksum_retries = "checksum_retries", "Blocks that read wrong once and right when they were read again.";
    scrubbed_bytes = "scrub_bytes", "Bytes of file data that were read to be verified.";
    scrub_passes = "scrub_passes", "How often all of a target was.";
    scrub_adopted = "scrub_adopted_blocks", "Blocks without checksum that got one then.";
    data_writes = "data_disk_writes", "Disk writes of file data.";
    write_ns = "time_write_ns", "Time of writes from their arrival to their answer; those that run together count each.";
    write_wait_ns = "time_write_wait_ns", "Of it: waiting for locks, for log space and for other requests on the same bytes; planning.";
    write_edges_ns = "time_write_edges_ns", "Of it: completing the blocks at the edges, bringing the bytes to block boundaries.";
    write_disk_ns = "time_write_disk_ns", "Of it: the disk's time for the bytes.";
    write_log_ns = "time_write_log_ns", "Of it: the record, until it is on the disk.";
    accepted = "write_back", "Writes that were answered from memory.";
    accepted_bytes = "write_back_bytes", "Bytes of them.";
    through_large = "write_through_large", "Writes that went to the disk first as they are large.";
    through_full = "write_through_full", "Likewise, as the memory fills.";
    through_extents = "write_through_extents", "Likewise, as a record could not name more.";
    through_room = "write_through_room", "Likewise, as the target has little room.";
    through_busy = "write_through_busy", "Likewise, as the worker was busy and the disk is fast.";
    through_together = "write_through_together", "Likewise, as they came with others and share their request.";
    flushes = "flushes", "Units of 1 MiB of which accepted bytes were written.";
    flushes_whole = "flushes_whole", "Those that were accepted as a whole.";
    flush_runs = "flush_runs", "Runs of bytes that they had.";
    flush_bytes = "flush_bytes", "Bytes written for them, whole blocks.";
    logged = "write_back_logged", "Accepted writes, or parts of them, whose bytes a sync put into the log instead.";
    logged_bytes = "write_back_logged_bytes", "Bytes of them.";
    flushes_moved = "flushes_moved", "Those that the disk did not take where they belonged, and took elsewhere.";
    flushes_for_room = "flushes_for_room", "Times that everything was flushed because little room was left.";
    writes_full = "writes_full", "Writes that found no room and were written with blocks that are kept back for overwrites.";
    flush_failures = "flush_failures", "Units that could not be written and were kept.";
    flush_failures_told = "flush_failures_told", "Mounts that were told so of a file that they had written.";
    resends = "resends_answered", "Resent requests answered from their slot.";
    forwarded = "forwarded", "Requests of connections here for targets of other workers.";
    commits = "transactions", "Transactions logged.";
    two_phase = "two_phase", "Operations over several targets.";
    conflicts = "two_phase_conflicts", "Plans that met a change and were made again.";
    directories_shown = "directories_shown", "Answers to changes of names that brought the attributes of the directory.";
    callbacks = "lock_callbacks", "Lock callbacks sent.";
    revocations = "token_revocations", "Token revocations sent.";
    again = "callbacks_again", "Lock callbacks, revocations and such questions sent again, as they were not answered for long.";
    glimpses = "glimpses", "Questions to clients that write a file.";
    file_lock_waits = "file_lock_waits", "Requests for locks of applications that were told to wait.";
    file_lock_news = "file_lock_news", "Requests for locks of applications that were told to ask again.";
    file_lock_closings = "file_lock_closings", "Questions to mounts whether a file that somebody could not lock is being closed.";
    directories_changed = "directories_changed", "Messages to mounts that another one has moved or removed a directory.";
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
    /// Method: by hand.
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
