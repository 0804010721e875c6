//! Counters of the cache of one rank; the program that prints them adds them up over the ranks.

/// The names of the counters, in the order of [`Stats::values`].
pub const NAMES: [&str; 27] = [
    "calls_read",
    "calls_write",
    "bytes_read",
    "bytes_written",
    "hits",
    "remote",
    "fills",
    "evictions",
    "uncached",
    "stream_bytes",
    "lock_waits",
    "fs_reads",
    "fs_read_bytes",
    "fs_writes",
    "fs_write_bytes",
    "fs_writes_aligned",
    "fs_syncs",
    "fs_direct",
    "asked",
    "idle_pages",
    "once_pages",
    "yields",
    "migrations",
    "prefetched",
    "copies",
    "recalls",
    "relieved",
];

/// Counters of one rank and one open file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Read calls of the program.
    pub calls_read: u64,
    /// Write calls of the program.
    pub calls_write: u64,
    /// Bytes that these returned.
    pub bytes_read: u64,
    /// Bytes that these took.
    pub bytes_written: u64,
    /// References to a page that was cached and, for reads, valid where it was read.
    pub hits: u64,
    /// The references among them that went to a page of another rank.
    pub remote: u64,
    /// Pages, or parts of them, that were read from the file.
    pub fills: u64,
    /// Pages that had to make room.
    pub evictions: u64,
    /// References to pages for which there was no room.
    pub uncached: u64,
    /// Bytes of long requests that went past the cache.
    pub stream_bytes: u64,
    /// Page locks for which a rank had to wait.
    pub lock_waits: u64,
    /// Read requests to the file system.
    pub fs_reads: u64,
    /// The bytes of these reads.
    pub fs_read_bytes: u64,
    /// Write requests to the file system.
    pub fs_writes: u64,
    /// The bytes of these writes.
    pub fs_write_bytes: u64,
    /// The writes among these that begin on a page boundary, and end on one or at the end of the file.
    pub fs_writes_aligned: u64,
    /// Sync requests to the file system.
    pub fs_syncs: u64,
    /// Requests to the file system that went past the caches of the system.
    pub fs_direct: u64,
    /// The number of messages to other nodes.
    pub asked: u64,
    /// Pages that were written because they were idle for a while.
    pub idle_pages: u64,
    /// Whole pages that bypassed the cache because the rank only wrote such pages, each once.
    pub once_pages: u64,
    /// How often the group lock was released for a program outside the job.
    pub yields: u64,
    /// Pages that moved from another node to this rank's node.
    pub migrations: u64,
    /// Pages that were read before a request for them.
    pub prefetched: u64,
    /// Pages of other nodes of which this rank's node got a copy.
    pub copies: u64,
    /// Copies that this rank made other nodes give up, to write the page.
    pub recalls: u64,
    /// The pages that this node gave away because it did much more work for others than the node that asked.
    pub relieved: u64,
}

impl Stats {
    /// The counters in the order of [`NAMES`].
    pub fn values(&self) -> [u64; NAMES.len()] {
        [
            self.calls_read,
            self.calls_write,
            self.bytes_read,
            self.bytes_written,
            self.hits,
            self.remote,
            self.fills,
            self.evictions,
            self.uncached,
            self.stream_bytes,
            self.lock_waits,
            self.fs_reads,
            self.fs_read_bytes,
            self.fs_writes,
            self.fs_write_bytes,
            self.fs_writes_aligned,
            self.fs_syncs,
            self.fs_direct,
            self.asked,
            self.idle_pages,
            self.once_pages,
            self.yields,
            self.migrations,
            self.prefetched,
            self.copies,
            self.recalls,
            self.relieved,
        ]
    }
}
