//! Tunables of a mount: the table.
//!
//! Owns: names, units, bounds, defaults, help. Does not own: the form of rows and patterns (`types::tunable`), what a
//! tunable controls, nor the servers' tunables (`server.*` is sent to them). Reading a tunable is one relaxed load.

use amphi_types::tunable::{Puts, Values};
use amphi_types::{IoMode, KernelCache};

/// Words of `hybrid.mode`.
const MODES: &[&str] = &["auto", "buffered", "direct"];
/// Words of `hybrid.kernel_cache`.
const KERNEL_CACHES: &[&str] = &["auto", "on", "off"];
/// Words of `client.atime`.
const ATIMES: &[&str] = &["none", "relatime"];
const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const G: u64 = 1 << 30;

amphi_types::tunables! {
    Mode = "hybrid.mode", Words(MODES), 0, 0 => 2, "I/O mode of requests for which neither an open flag nor an attribute of the file decides";
    LargeWrite = "hybrid.large_write_bytes", Bytes, 2 * M, 0 => 2 * G, "writes of at least this size use direct I/O. If hybrid.learn is on and this tunable was not set, a measured threshold replaces it. The default is that of Lustre";
    LargeRead = "hybrid.large_read_bytes", Bytes, 4 * M, 0 => 2 * G, "reads of at least this size use direct I/O. If hybrid.learn is on and this tunable was not set, a larger measured threshold may replace it";
    LargeWriteRotating = "hybrid.large_write_bytes_rotating", Bytes, 8 * M, 0 => 2 * G, "as hybrid.large_write_bytes, for files on rotating disks, where a seek of 8 ms is a fifth of such a write";
    LargeReadRotating = "hybrid.large_read_bytes_rotating", Bytes, 32 * M, 0 => 2 * G, "as hybrid.large_read_bytes, for files on rotating disks, which read-ahead keeps busy with smaller reads";
    Small = "hybrid.small_bytes", Bytes, 32 * K, 0 => 2 * G, "requests smaller than this use buffered I/O (autoIO, FAST'24). Requests between this size and the large threshold are in the window: the conditions below decide";
    Unaligned = "hybrid.unaligned", Switch, 1, 0 => 1, "direct I/O at any offset and length. If off, a request with O_DIRECT that is not a multiple of 4096 bytes fails, and other unaligned requests use buffered I/O", for_tests;
    Contention = "hybrid.contention", Switch, 1, 0 => 1, "requests in the window use direct I/O on files for whose locks several mounts compete";
    ContendedMs = "hybrid.contended_ms", Milliseconds, 4000, 0 => 60_000, "how long a file counts as contended after a server has reported it";
    Memory = "hybrid.memory", Switch, 1, 0 => 1, "requests in the window use direct I/O while memory is short";
    CallerMemory = "hybrid.caller_memory", Switch, 1, 0 => 1, "the limit of the calling process's memory cgroup counts as well for hybrid.memory";
    Overcache = "hybrid.overcache", Switch, 1, 0 => 1, "requests in the window use direct I/O on files that already have much data in the cache";
    OvercacheBytes = "hybrid.overcache_bytes", Bytes, G, M => 1 << 50, "cached bytes of one file from which hybrid.overcache applies. The condition ends when less than 95 % of this is cached";
    Locality = "hybrid.locality", Switch, 1, 0 => 1, "requests in the window use direct I/O on files whose data is not used again";
    LocalityPages = "hybrid.locality_pages", Count, 4096, 16 => 1 << 20, "number of pages of a file over which reuse is measured";
    LocalityProbe = "hybrid.locality_probe", Count, 64, 2 => 65_536, "on files without reuse, one request in this many still uses buffered I/O, to notice when reuse begins", for_tests;
    Learn = "hybrid.learn", Switch, 1, 0 => 1, "thresholds adapt: for files without reuse and for large requests, the mount measures which mode is faster and uses it. At most 2 % of the I/O time goes to trying the other mode. A threshold that was set stays as it is";
    KernelCache = "hybrid.kernel_cache", Words(KERNEL_CACHES), 0, 0 => 2, "whether the kernel may serve reads from its own page cache, for files that nobody has open for writing. auto: yes, unless the file is large and expected to be read in large pieces";
    CacheBytes = "cache.max_bytes", Bytes, G, 4 * M => 1 << 50, "size of the page cache of the mount", default "a quarter of the memory, at most 3/8 of the memory group's limit";
    PopulateBytes = "cache.populate_bytes", Bytes, 256 * M, 0 => 1 << 50, "memory that the mount touches in advance, because the first use of new memory can be slow. At most a quarter of the cache, returned when the mount is idle. On machines where new memory costs more than the disk, the cache grows beyond it only for data that had to be read again. 0: none";
    SharedBytes = "cache.shared_bytes", Bytes, 256 * M, 0 => 1 << 50, "size of the memory in which the mount shares cached file data with programs under `amphi run`, in addition to the page cache. 0: none";
    DirtyPercent = "cache.dirty_percent", Percent, 50, 1 => 90, "share of the page cache that may be dirty before writers wait";
    RunBytes = "writeback.run_bytes", Bytes, M, 64 * K => 64 * M, "contiguous dirty bytes that are written to the server at once, without waiting for their age", for_tests;
    AgeMs = "writeback.age_ms", Milliseconds, 5000, 10 => 3_600_000, "dirty data is written to the server when it is this old";
    Batch = "writeback.batch", Switch, 1, 0 => 1, "dirty data of several small files, or several short extents of one file, is sent in one request";
    SmallBytes = "writeback.small_bytes", Bytes, 64 * K, 4 * K => M, "files with at most this many dirty bytes are sent together with others", for_tests;
    FlightBytes = "writeback.flight_bytes", Bytes, 64 * M, M => 16 * G, "most bytes of write-back that may be in flight", for_tests;
    PipelineBytes = "writeback.pipeline_bytes", Bytes, 32 * M, 0 => 16 * G, "bytes of large direct writes to a file that may still be in flight after their calls have returned. 0: a call returns when the server has stored the data";
    ReadAheadBytes = "readahead.max_bytes", Bytes, 64 * M, 0 => G, "largest read-ahead window of a sequential or strided stream. 0: no read-ahead";
    DirectAhead = "readahead.direct_bytes", Bytes, 8 * M, 0 => 64 * M, "read-ahead also serves sequential direct reads of at most this size. 0: none";
    SmallAhead = "readahead.small_files", Switch, 1, 0 => 1, "read the small files of a directory in advance for a program that opens them one after the other";
    LendNames = "names.lend", Switch, 1, 0 => 1, "with several mounts, the kernel may cache names that are looked up often, under tokens that the server revokes", for_tests;
    NamesRestMs = "names.rest_ms", Milliseconds, 1000, 0 => 3_600_000, "how long a name is not cached by the kernel again after its token was revoked; longer for names that are revoked often", for_tests;
    LocksMaxAgeS = "locks.max_age_s", Seconds, 600, 1 => 86_400, "extent locks that were not used for this long are returned to the server, and the data cached under them is dropped";
    LocksMax = "locks.max", Count, 16_384, 16 => 16_384, "most extent locks that the mount holds of one target; the least recently used are returned first", for_tests;
    LocksAhead = "locks.ahead", Count, 8, 0 => 64, "on contended files that a program writes with a fixed stride, the number of future records for which locks are requested in advance. 0: none";
    Jobs = "client.jobs", Switch, 1, 0 => 1, "count requests by job; a job is named by the environment of the process that opens the file";
    Atime = "client.atime", Words(ATIMES), 1, 0 => 1, "whether reads update access times: never, or if the access time is older than the last change or than a day (relatime)";
    SpinUs = "client.spin_us", Microseconds, 200, 0 => 100_000, "how long a waiting thread polls before it sleeps, while no other thread needs the core";
    GiveUpS = "transport.give_up_s", Seconds, 60, 1 => 86_400, "calls to a server that cannot be reached fail after this time";
}

/// The values.
pub(crate) struct Tunables(Values);

impl Tunables {
    pub(crate) fn new() -> Tunables {
        Tunables(Values::new(TABLE))
    }

    pub(crate) fn get(&self, knob: Tunable) -> u64 {
        self.0.get(knob as usize)
    }

    pub(crate) fn on(&self, knob: Tunable) -> bool {
        self.get(knob) != 0
    }

    /// Returns whether a user has set the tunable, even to the default.
    pub(crate) fn is_set(&self, knob: Tunable) -> bool {
        self.0.is_set(knob as usize)
    }

    pub(crate) fn put(&self, knob: Tunable, value: u64) {
        self.0.put(knob as usize, value);
    }

    pub(crate) fn spin_us(&self) -> u64 {
        self.get(Tunable::SpinUs)
    }

    pub(crate) fn mode(&self) -> IoMode {
        match self.get(Tunable::Mode) {
            1 => IoMode::Buffered,
            2 => IoMode::Direct,
            _ => IoMode::Auto,
        }
    }

    pub(crate) fn kernel_cache(&self) -> KernelCache {
        match self.get(Tunable::KernelCache) {
            1 => KernelCache::On,
            2 => KernelCache::Off,
            _ => KernelCache::Auto,
        }
    }

    /// See [`Values::check`].
    pub(crate) fn check(pattern: &str, value: &str) -> Result<Puts, String> {
        Values::check(TABLE, pattern, value)
    }

    /// Stores values that were checked before.
    pub(crate) fn store(&self, puts: &Puts) {
        self.0.store(puts);
    }

    /// See [`Values::set`].
    pub(crate) fn set(&self, pattern: &str, value: &str) -> Result<usize, String> {
        self.0.set(pattern, value)
    }

    /// See [`Values::list`].
    pub(crate) fn list(&self, pattern: &str) -> Vec<(String, String, String)> {
        self.0.list(pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: defaults and bounds of each row make sense, and the words are those that the code knows. Method: all rows.
    #[test]
    fn the_table_makes_sense() {
        for row in TABLE {
            assert!(row.least <= row.default && row.default <= row.most, "{}", row.name);
            for value in [row.default, row.least, row.most] {
                assert_eq!(row.unit.parse(&row.unit.show(value)), Some(value), "{}", row.name);
            }
        }
        let t = Tunables::new();
        for (word, mode) in [("direct", IoMode::Direct), ("buffered", IoMode::Buffered), ("auto", IoMode::Auto)] {
            t.set("hybrid.mode", word).unwrap();
            assert_eq!(t.mode(), mode);
        }
        for (word, value) in [("on", KernelCache::On), ("off", KernelCache::Off), ("auto", KernelCache::Auto)] {
            t.set("hybrid.kernel_cache", word).unwrap();
            assert_eq!((t.kernel_cache(), t.list("hybrid.kernel_cache")[0].1.as_str()), (value, word));
        }
        assert!(t.list("cache.max_bytes")[0].2.contains("default a quarter of the memory"));
    }
}
