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
    Mode = "hybrid.mode", Words(MODES), 0, 0 => 2, "how requests go that neither open flag nor file attribute decides";
    LargeWrite = "hybrid.large_write_bytes", Bytes, 2 * M, 0 => 2 * G, "writes of at least this size go direct (Lustre's default); with hybrid.learn another size if that is measured to be better, unless this is set";
    LargeRead = "hybrid.large_read_bytes", Bytes, 4 * M, 0 => 2 * G, "reads of at least this size go direct; with hybrid.learn a larger size if that is measured to be better, unless this is set";
    LargeWriteRotating = "hybrid.large_write_bytes_rotating", Bytes, 8 * M, 0 => 2 * G, "the same for writes of files on rotating storage: 8 ms of seeking are 1/5 of such a write";
    LargeReadRotating = "hybrid.large_read_bytes_rotating", Bytes, 32 * M, 0 => 2 * G, "the same for reads of files on rotating storage: read-ahead keeps the disk going up to there";
    Small = "hybrid.small_bytes", Bytes, 32 * K, 0 => 2 * G, "requests below this size are buffered (FAST'24)";
    Unaligned = "hybrid.unaligned", Switch, 1, 0 => 1, "requests of any offset and length may go past the cache; off: with O_DIRECT those that are no multiples of 4096 fail, others are buffered", for_tests;
    Contention = "hybrid.contention", Switch, 1, 0 => 1, "requests in the window go direct on contended files";
    ContendedMs = "hybrid.contended_ms", Milliseconds, 4000, 0 => 60_000, "how long a file counts as contended after a server said so";
    Memory = "hybrid.memory", Switch, 1, 0 => 1, "requests in the window go direct when memory is short";
    CallerMemory = "hybrid.caller_memory", Switch, 1, 0 => 1, "the memory group of the calling process counts as well";
    Overcache = "hybrid.overcache", Switch, 1, 0 => 1, "requests in the window go direct for files with much in the cache";
    OvercacheBytes = "hybrid.overcache_bytes", Bytes, G, M => 1 << 50, "cache bytes per file; 95 % of it counts as much";
    Locality = "hybrid.locality", Switch, 1, 0 => 1, "requests in the window go direct on files that are not read again";
    LocalityPages = "hybrid.locality_pages", Count, 4096, 16 => 1 << 20, "pages of a file over which reuse is measured";
    LocalityProbe = "hybrid.locality_probe", Count, 64, 2 => 65_536, "without locality one request in this many is still buffered", for_tests;
    Learn = "hybrid.learn", Switch, 1, 0 => 1, "requests without locality, also large ones, go the way that was measured to carry more; the large thresholds that were not set follow what is measured, for which a small part of the I/O goes the other way; readers whom the kernel serves are looked at now and then";
    KernelCache = "hybrid.kernel_cache", Words(KERNEL_CACHES), 0, 0 => 2, "whether the kernel serves reads from its page cache of files that nobody has open for writing and that have no setting of their own; auto: unless they are large and known to be read in large pieces";
    CacheBytes = "cache.max_bytes", Bytes, G, 4 * M => 1 << 50, "memory of the page cache", default "a quarter of the memory, at most 3/8 of the memory group's limit";
    PopulateBytes = "cache.populate_bytes", Bytes, 256 * M, 0 => 1 << 50, "memory that is touched before it is needed, so that the first writes of a mount are as fast as later ones; at most a quarter of the cache; what an idle mount does not use goes back; where new memory is measured to cost more than the disk, the cache takes no more than this and what it evicted and had to read again; 0 = none";
    SharedBytes = "cache.shared_bytes", Bytes, 256 * M, 0 => 1 << 50, "memory in which programs under `amphi run` read cached files without a call, beside the page cache; 0 = none";
    DirtyPercent = "cache.dirty_percent", Percent, 50, 1 => 90, "share of the cache that may be dirty before writers wait";
    RunBytes = "writeback.run_bytes", Bytes, M, 64 * K => 64 * M, "contiguous dirty bytes that leave at once", for_tests;
    AgeMs = "writeback.age_ms", Milliseconds, 5000, 10 => 3_600_000, "dirty bytes leave after this time";
    Batch = "writeback.batch", Switch, 1, 0 => 1, "dirty bytes of several small files, or short runs of one file, leave in one request";
    SmallBytes = "writeback.small_bytes", Bytes, 64 * K, 4 * K => M, "files with at most so many dirty bytes leave together", for_tests;
    FlightBytes = "writeback.flight_bytes", Bytes, 64 * M, M => 16 * G, "bytes of write-back under way", for_tests;
    PipelineBytes = "writeback.pipeline_bytes", Bytes, 32 * M, 0 => 16 * G, "memory of direct writes to a file that may be on their way after the calls have returned; 0 = none";
    ReadAheadBytes = "readahead.max_bytes", Bytes, 64 * M, 0 => G, "largest window that is read ahead of a sequential or strided stream; 0 = none";
    DirectAhead = "readahead.direct_bytes", Bytes, 8 * M, 0 => 64 * M, "direct reads of at most this size that follow each other are asked for ahead; 0 = none";
    SmallAhead = "readahead.small_files", Switch, 1, 0 => 1, "open and read the small files of a directory ahead of who opens them one after the other";
    LendNames = "names.lend", Switch, 1, 0 => 1, "in company of other mounts the kernel keeps names under tokens that are asked for often", for_tests;
    NamesRestMs = "names.rest_ms", Milliseconds, 1000, 0 => 3_600_000, "how long a name that was taken back from the kernel is not lent again, at first", for_tests;
    LocksMaxAgeS = "locks.max_age_s", Seconds, 600, 1 => 86_400, "locks of files that were not used for this time go back, with what is cached under them";
    LocksMax = "locks.max", Count, 16_384, 16 => 16_384, "locks held of one target; beyond, those unused for longest go back", for_tests;
    LocksAhead = "locks.ahead", Count, 8, 0 => 64, "records ahead of a writer of a contended file that writes them at equal distances, of which the locks are asked for; 0 = none";
    Jobs = "client.jobs", Switch, 1, 0 => 1, "requests are counted by job: what the environment of the process that opens a file names";
    Atime = "client.atime", Words(ATIMES), 1, 0 => 1, "whether reads renew access times: not at all, or if older than the last change or a day";
    SpinUs = "client.spin_us", Microseconds, 200, 0 => 100_000, "how long a waiting thread polls before it sleeps, if nobody else needs the core";
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

    /// Whether a user has set the tunable, even to the default.
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
