//! Tunables of a mount: named numbers that can be read and changed while it runs.
//!
//! Owns: the table (name, unit, bounds, default, help). Does not own: how values and patterns are written
//! (`types::setting`), what a tunable does, nor the server's (`server.*` goes there). Reading one is one relaxed load.

use amphi_types::setting::glob;
use amphi_types::{IoMode, setting};
use std::sync::atomic::{AtomicU64, Ordering};

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Bytes, with suffixes K, M, G, T.
    Bytes,
    /// A plain number (count, percent, milliseconds, microseconds: the name ends with it).
    Number,
    /// `on` or `off`.
    Switch,
    /// `auto`, `buffered` or `direct`.
    Mode,
    /// `relatime` or `none`.
    Atime,
}

/// One row of the table.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) default: u64,
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) help: &'static str,
}

impl Row {
    /// Meaning, unit, default and range in one line.
    fn explain(&self) -> String {
        let default = match self.name {
            // What a mount begins with depends on the machine (`group`).
            "cache.max_bytes" => "a quarter of the memory, at most 3/8 of the memory group's limit".into(),
            _ => show(self.unit, self.default),
        };
        let range = match self.unit {
            Unit::Switch => "on or off".into(),
            Unit::Mode => "auto, buffered or direct".into(),
            Unit::Atime => "relatime or none".into(),
            unit => format!("{}..{}", show(unit, self.min), show(unit, self.max)),
        };
        let unit = match self.name {
            name if name.ends_with("_ms") => "ms, ",
            name if name.ends_with("_us") => "us, ",
            name if name.ends_with("_s") => "s, ",
            name if name.ends_with("_percent") => "percent, ",
            _ if self.unit == Unit::Bytes => "bytes, ",
            _ if self.unit == Unit::Number => "count, ",
            _ => "",
        };
        format!("{} [{unit}default {default}, {range}]", self.help)
    }
}

macro_rules! knobs {
    ($($knob:ident = $name:literal, $unit:ident, $default:expr, $min:expr => $max:expr, $help:literal;)*) => {
        /// Names of the tunables in the code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Knob { $($knob,)* }
        /// The table, in the order of `Knob`.
        pub(crate) const TABLE: &[Row] = &[$(Row {
            name: $name, unit: Unit::$unit, default: $default, min: $min, max: $max, help: $help,
        },)*];
    };
}

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const G: u64 = 1 << 30;

knobs! {
    Mode = "hybrid.mode", Mode, 0, 0 => 2, "how requests go that neither open flag nor file attribute decides";
    LargeWrite = "hybrid.large_write_bytes", Bytes, 2 * M, 0 => 2 * G, "writes of at least this size go direct (Lustre's default)";
    LargeRead = "hybrid.large_read_bytes", Bytes, 4 * M, 0 => 2 * G, "reads of at least this size go direct";
    Rotating = "hybrid.rotating", Switch, 1, 0 => 1, "files on rotating storage have large thresholds of their own";
    LargeWriteRotating = "hybrid.large_write_bytes_rotating", Bytes, 8 * M, 0 => 2 * G, "the same for writes of files on rotating storage: 8 ms of seeking are 1/5 of such a write";
    LargeReadRotating = "hybrid.large_read_bytes_rotating", Bytes, 32 * M, 0 => 2 * G, "the same for reads of files on rotating storage: read-ahead keeps the disk going up to there";
    Small = "hybrid.small_bytes", Bytes, 32 * K, 0 => 2 * G, "requests below this size are buffered (FAST'24)";
    Unaligned = "hybrid.unaligned", Switch, 1, 0 => 1, "requests of any offset and length may go past the cache; off: with O_DIRECT those that are no multiples of 4096 fail, others are buffered";
    Parallel = "hybrid.parallel", Switch, 1, 0 => 1, "all pieces of a direct request are under way at once";
    Pieces = "hybrid.pieces", Switch, 1, 0 => 1, "count consecutive full pieces of one stream as one application request";
    Contention = "hybrid.contention", Switch, 1, 0 => 1, "requests in the window go direct on contended files";
    ContendedMs = "hybrid.contended_ms", Number, 4000, 0 => 60_000, "how long a file counts as contended after a server said so";
    Memory = "hybrid.memory", Switch, 1, 0 => 1, "requests in the window go direct when memory is short";
    MemoryPercent = "hybrid.memory_percent", Number, 95, 1 => 100, "share of the cache or memory group that counts as short";
    CallerMemory = "hybrid.caller_memory", Switch, 1, 0 => 1, "the memory group of the calling process counts as well";
    ProcessMode = "hybrid.process_mode", Switch, 1, 0 => 1, "AMPHI_IO_MODE in the environment of the process that opens a file counts";
    Overcache = "hybrid.overcache", Switch, 1, 0 => 1, "requests in the window go direct for files with much in the cache";
    OvercacheBytes = "hybrid.overcache_bytes", Bytes, G, M => 1 << 50, "cache bytes per file; 95 % of it counts as much";
    Locality = "hybrid.locality", Switch, 1, 0 => 1, "requests in the window go direct on files that are not read again";
    LocalityPages = "hybrid.locality_pages", Number, 4096, 16 => 1 << 20, "pages of a file over which reuse is measured";
    LocalityFraction = "hybrid.locality_fraction", Number, 16, 1 => 4096, "reuse below one page in this many means no locality";
    LocalityProbe = "hybrid.locality_probe", Number, 64, 2 => 65_536, "without locality one request in this many is still buffered";
    LocalityInherit = "hybrid.locality_inherit", Switch, 1, 0 => 1, "new files are taken for what left the cache of the mount lately";
    Learn = "hybrid.learn", Switch, 1, 0 => 1, "requests without locality, also large ones, go the way that was measured to carry more";
    KernelReads = "hybrid.kernel_reads", Switch, 1, 0 => 1, "the kernel serves reads of files that are small, executable or read in small pieces from its page cache, while nobody has them open for writing";
    CacheBytes = "cache.max_bytes", Bytes, G, 4 * M => 1 << 50, "memory of the page cache";
    PopulateBytes = "cache.populate_bytes", Bytes, 256 * M, 0 => 1 << 50, "memory that is touched before it is needed, so that the first writes of a mount are as fast as later ones; at most a quarter of the cache; what an idle mount does not use goes back; 0 = none";
    Adopt = "cache.adopt", Switch, 1, 0 => 1, "a write of just one unit of the cache (64 KiB) leaves its memory there instead of being copied";
    ColdAfter = "cache.cold_bytes", Bytes, 16 * M, 0 => 1 << 50, "a unit that was not written while so many others were lies in no cache of the processor: it is written past them, without fetching it";
    WarmBytes = "cache.warm_bytes", Bytes, 256 * K, 0 => 16 * M, "while a lone program that reads on through a mount has its turn, so much of what it reads next is brought into the processor's cache, if its reads are no larger; 0 = none";
    DirtyPercent = "cache.dirty_percent", Number, 50, 1 => 90, "share of the cache that may be dirty before writers wait";
    RunBytes = "writeback.run_bytes", Bytes, M, 64 * K => 64 * M, "contiguous dirty bytes that leave at once";
    AgeMs = "writeback.age_ms", Number, 5000, 10 => 3_600_000, "dirty bytes leave after this time";
    WriteMax = "writeback.max_bytes", Bytes, 4 * M, 64 * K => 64 * M, "largest write-back request";
    Lend = "writeback.lend", Switch, 1, 0 => 1, "whole dirty units that lie in one piece of memory leave without being copied";
    Batch = "writeback.batch", Switch, 1, 0 => 1, "dirty bytes of several small files, or short runs of one file, leave in one request";
    SmallBytes = "writeback.small_bytes", Bytes, 64 * K, 4 * K => M, "files with at most so many dirty bytes leave together";
    FlightBytes = "writeback.flight_bytes", Bytes, 64 * M, M => 16 * G, "bytes of write-back under way";
    PipelineBytes = "writeback.pipeline_bytes", Bytes, 32 * M, 0 => 16 * G, "memory of direct writes to a file that may be on their way after the calls have returned; 0 = none";
    PipelineContended = "writeback.pipeline_contended", Switch, 1, 0 => 1, "also those that go direct for contention, each under a lock on just its bytes";
    FillBytes = "readahead.fill_bytes", Bytes, M, 64 * K => 64 * M, "largest request that fills the cache";
    ReadAhead = "readahead.enabled", Switch, 1, 0 => 1, "read ahead of sequential and strided streams";
    ReadAheadBytes = "readahead.max_bytes", Bytes, 64 * M, 64 * K => G, "largest read-ahead window of one stream";
    ReadAheadRequests = "readahead.requests", Number, 10, 1 => 1024, "requests of the present size to be ahead of a stream";
    DirectAhead = "readahead.direct_bytes", Bytes, 8 * M, 0 => 64 * M, "direct reads of at most this size that follow each other are asked for ahead; 0 = none";
    SmallAhead = "readahead.small_files", Switch, 1, 0 => 1, "open and read the small files of a directory ahead of who opens them one after the other";
    SmallAheadBytes = "readahead.small_bytes", Bytes, 64 * K, 4 * K => M, "files of at most so many bytes are read so";
    SmallAheadFiles = "readahead.small_max", Number, 256, 1 => 512, "files to be ahead of a reader at most";
    SmallAheadAskBack = "readahead.small_ask_back", Switch, 1, 0 => 1, "locks on them that other mounts keep without having the files open for writing are asked back";
    CloseBatch = "client.close_batch", Switch, 1, 0 => 1, "closes that are due at the same time leave in one request";
    LocksMaxAgeS = "locks.max_age_s", Number, 600, 1 => 86_400, "locks of files that were not used for this time go back, with what is cached under them";
    LocksMax = "locks.max", Number, 16_384, 16 => 16_384, "locks held of one target; beyond, those unused for longest go back";
    LocksByTarget = "locks.by_target", Switch, 1, 0 => 1, "a direct request to one object is locked by its target while it is carried out; off: this mount takes the lock first";
    LocksAhead = "locks.ahead", Number, 8, 0 => 64, "records ahead of a writer of a contended file that writes them at equal distances, of which the locks are asked for; 0 = none";
    BatchCancels = "locks.batch_cancels", Switch, 1, 0 => 1, "locks that nobody waits for go back together, a second later";
    KeepDirectories = "client.keep_directories", Switch, 1, 0 => 1, "attributes of directories that an answer has shown are kept while the mount is alone";
    Jobs = "client.jobs", Switch, 1, 0 => 1, "requests are counted by job: what the environment of the process that opens a file names";
    Atime = "client.atime", Atime, 1, 0 => 1, "whether reads renew access times: not at all, or if older than the last change or a day";
    SpinUs = "client.spin_us", Number, 200, 0 => 100_000, "how long a waiting thread polls before it sleeps, if nobody else needs the core";
    GiveUpS = "transport.give_up_s", Number, 60, 1 => 86_400, "calls to a server that cannot be reached fail after this time";
}

/// Values that fit their tunables.
pub(crate) struct Puts(Vec<(usize, u64)>);

impl Puts {
    /// Whether no tunable was meant.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The values.
pub(crate) struct Tunables {
    values: Vec<AtomicU64>,
}

impl Tunables {
    pub(crate) fn new() -> Tunables {
        Tunables { values: TABLE.iter().map(|r| AtomicU64::new(r.default)).collect() }
    }

    pub(crate) fn get(&self, knob: Knob) -> u64 {
        self.values[knob as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn on(&self, knob: Knob) -> bool {
        self.get(knob) != 0
    }

    pub(crate) fn put(&self, knob: Knob, value: u64) {
        let row = &TABLE[knob as usize];
        self.values[knob as usize].store(value.clamp(row.min, row.max), Ordering::Relaxed);
    }

    pub(crate) fn spin_us(&self) -> u64 {
        self.get(Knob::SpinUs)
    }

    pub(crate) fn mode(&self) -> IoMode {
        match self.get(Knob::Mode) {
            1 => IoMode::Buffered,
            2 => IoMode::Direct,
            _ => IoMode::Auto,
        }
    }

    /// What `value` would be for everything that matches `pattern`; nothing if nothing does.
    ///
    /// Errors: a sentence about the value.
    pub(crate) fn check(pattern: &str, value: &str) -> Result<Puts, String> {
        let mut puts = Vec::new();
        for (i, row) in TABLE.iter().enumerate().filter(|(_, r)| glob(pattern, r.name)) {
            let v = parse(row.unit, value).ok_or_else(|| format!("{}: cannot read the value {value:?}", row.name))?;
            if v < row.min || v > row.max {
                let (lo, hi) = (show(row.unit, row.min), show(row.unit, row.max));
                return Err(format!("{}: {value} is not within {lo} and {hi}", row.name));
            }
            puts.push((i, v));
        }
        Ok(Puts(puts))
    }

    /// Stores what was found fit.
    pub(crate) fn store(&self, puts: &Puts) {
        for &(i, v) in &puts.0 {
            self.values[i].store(v, Ordering::Relaxed);
        }
    }

    /// Sets everything that matches `pattern`; all or nothing.
    ///
    /// Errors: a sentence about the pattern or the value.
    pub(crate) fn set(&self, pattern: &str, value: &str) -> Result<usize, String> {
        let puts = Tunables::check(pattern, value)?;
        if puts.is_empty() {
            return Err(format!("no tunable matches {pattern:?}"));
        }
        self.store(&puts);
        Ok(puts.0.len())
    }

    /// Name, value and explanation of everything that matches `pattern`.
    pub(crate) fn list(&self, pattern: &str) -> Vec<(String, String, String)> {
        TABLE
            .iter()
            .zip(&self.values)
            .filter(|(row, _)| glob(pattern, row.name))
            .map(|(row, v)| (row.name.into(), show(row.unit, v.load(Ordering::Relaxed)), row.explain()))
            .collect()
    }
}

/// Reads a value of `unit`.
pub(crate) fn parse(unit: Unit, text: &str) -> Option<u64> {
    let text = text.trim();
    match unit {
        Unit::Switch => setting::switch(text).map(u64::from),
        Unit::Mode => match text {
            "auto" => Some(0),
            "buffered" => Some(1),
            "direct" => Some(2),
            _ => None,
        },
        Unit::Atime => match text {
            "none" => Some(0),
            "relatime" => Some(1),
            _ => None,
        },
        Unit::Number => text.parse().ok(),
        Unit::Bytes => setting::bytes(text),
    }
}

/// Writes a value of `unit` as `parse` reads it.
pub(crate) fn show(unit: Unit, value: u64) -> String {
    match unit {
        Unit::Switch => setting::on_off(value != 0).into(),
        Unit::Mode => ["auto", "buffered", "direct"][value.min(2) as usize].into(),
        Unit::Atime => if value != 0 { "relatime" } else { "none" }.into(),
        Unit::Number => value.to_string(),
        Unit::Bytes => setting::size(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: values survive being shown and read. Method: every row's default and bounds.
    #[test]
    fn values_round_trip() {
        for row in TABLE {
            for v in [row.default, row.min, row.max] {
                assert_eq!(parse(row.unit, &show(row.unit, v)), Some(v), "{}", row.name);
            }
            assert!(row.min <= row.default && row.default <= row.max, "{}", row.name);
        }
    }

    /// Goal: setting is by pattern, all or nothing, and says what is wrong. Method: good and bad sets.
    #[test]
    fn set_by_pattern() {
        let t = Tunables::new();
        assert_eq!(t.set("hybrid.large_*_bytes", "4M"), Ok(2));
        assert_eq!(t.get(Knob::LargeRead), 4 << 20);
        assert!(t.set("hybrid.larg", "4M").unwrap_err().contains("no tunable matches"));
        assert!(t.set("hybrid.*", "4M").is_err(), "a switch takes no size");
        assert!(t.set("cache.dirty_percent", "91").unwrap_err().contains("not within"));
        assert_eq!(t.list("*.dirty_p?rcent")[0].1, "50");
        assert!(t.list("cache.dirty_percent")[0].2.ends_with("[percent, default 50, 1..90]"), "{:?}", t.list("*"));
        assert!(t.list("cache.max_bytes")[0].2.contains("default a quarter of the memory"));
        t.set("hybrid.mode", "direct").unwrap();
        assert_eq!(t.mode(), IoMode::Direct);
    }
}
