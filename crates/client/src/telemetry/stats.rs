//! Counters of a mount; those of a file, an open file and a job are its parts.
//!
//! Owns: counting by way and reason, in shards so that threads do not share a cache line, and the two forms of output:
//! in the style of Lustre's llite stats, and JSON. Does not own: what the reasons mean (`decision`), the table of jobs
//! (`jobs`).
//!
//! A sample costs five relaxed additions on a line that the thread's shard owns: about 10 ns of a 300 ns hit. So that
//! the bytes that hits and cached writes copy cost nothing more, each of them is one sample in a row of its own, which
//! the prints add both to the row of its reason and to that of the copies (`Copied`).

mod by_reason;
mod closed;
mod file;
mod ledger;
mod portrait;

pub(crate) use by_reason::ByReason;
pub(crate) use closed::ClosedFiles;
pub(crate) use file::{FileEvent, FileStats, FileSums, row_json};
pub(crate) use ledger::Ledger;
pub(crate) use portrait::Portrait;

use super::call_times::CallTimes;
use crate::policy::decision::Reason;
pub(crate) use crate::policy::decision::Way;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// How the copy of a request's bytes between its caller and the cache is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    /// The copy is counted together with the request: all of its bytes were copied once.
    Along,
    /// The copy, if there is one, is counted where it is made.
    Apart,
}

macro_rules! counters {
    ($($name:ident = $text:literal, $unit:literal;)*) => {
        /// The counters in addition to those of reads and writes by reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Count { $($name,)* }
        const NAMES: &[(&str, &str)] = &[$(($text, $unit),)*];
    };
}

counters! {
    Lookup = "lookup", "reqs";
    LookupCached = "lookup_cached", "reqs";
    LookupAbsent = "lookup_absent", "reqs";
    WalkRepeated = "lookup_repeated", "reqs";
    LookupKernel = "lookup_kernel", "reqs";
    NamesAnswered = "names_answered", "reqs";
    NamesLent = "names_lent", "reqs";
    NamesTaken = "names_taken_back", "names";
    NamesNoToken = "names_refused_token", "reqs";
    NamesShortLife = "names_refused_life", "reqs";
    NamesContended = "names_refused_contended", "reqs";
    NamesFull = "names_refused_full", "reqs";
    GetAttr = "getattr", "reqs";
    GetAttrCached = "getattr_cached", "reqs";
    GetAttrNow = "getattr_now", "reqs";
    GetAttrOwn = "getattr_own", "reqs";
    SetAttr = "setattr", "reqs";
    Create = "create", "reqs";
    Open = "open", "reqs";
    OpenKernelSmallFile = "open_kernel_small_file", "reqs";
    OpenKernelExecutable = "open_kernel_executable", "reqs";
    OpenKernelSmallReads = "open_kernel_small_reads", "reqs";
    OpenKernelUnknown = "open_kernel_unknown", "reqs";
    OpenKernelAdvised = "open_kernel_advised", "reqs";
    OpenKernelUser = "open_kernel_user", "reqs";
    OpenMountOff = "open_mount_off", "reqs";
    OpenMountOpen = "open_mount_open", "reqs";
    OpenMountUser = "open_mount_user", "reqs";
    OpenMountContended = "open_mount_contended", "reqs";
    OpenMountWritten = "open_mount_written", "reqs";
    OpenMountMemory = "open_mount_memory", "reqs";
    OpenMountAdvised = "open_mount_advised", "reqs";
    OpenMountLook = "open_mount_look", "reqs";
    OpenMountLarge = "open_mount_large", "reqs";
    Close = "close", "reqs";
    WriteRefused = "write_refused", "reqs";
    MkNod = "mknod", "reqs";
    MkDir = "mkdir", "reqs";
    Symlink = "symlink", "reqs";
    Link = "link", "reqs";
    Unlink = "unlink", "reqs";
    RmDir = "rmdir", "reqs";
    Rename = "rename", "reqs";
    ReadLink = "readlink", "reqs";
    ReadDir = "readdir", "reqs";
    StatFs = "statfs", "reqs";
    Xattr = "xattr", "reqs";
    Fsync = "fsync", "reqs";
    Seek = "seek", "reqs";
    Fallocate = "fallocate", "reqs";
    CopyRange = "copy_range", "bytes";
    Fill = "cache_fill", "bytes";
    CopiedIn = "cache_copied_in", "bytes";
    CopiedOut = "cache_copied_out", "bytes";
    Lent = "cache_lent", "bytes";
    Warmed = "cache_warmed", "bytes";
    Shown = "cache_shown", "bytes";
    PostedSole = "posted_sole", "posts";
    PostedShared = "posted_shared", "posts";
    ReadAheadIssued = "readahead_issued", "bytes";
    ReadAheadJoint = "readahead_joint", "bytes";
    DirectAheadUsed = "readahead_direct_used", "bytes";
    SmallAheadAsked = "readahead_small_asked", "files";
    SmallAheadGot = "readahead_small_got", "files";
    SmallAheadLater = "readahead_small_later", "files";
    SmallAheadUsed = "readahead_small_used", "reqs";
    SmallAheadWasted = "readahead_small_wasted", "reqs";
    OpenKept = "open_kept", "reqs";
    WriteBack = "writeback", "bytes";
    WriteBackFailed = "writeback_failed", "bytes";
    Adopted = "write_adopted", "bytes";
    Pipelined = "write_pipelined", "bytes";
    Unfinished = "write_commit", "bytes";
    BatchRequests = "batch_requests", "reqs";
    BatchFiles = "batch_files", "files";
    BatchBytes = "batch_bytes", "bytes";
    CloseBatch = "close_batch", "files";
    WriteBackCopy = "writeback_copy", "ns";
    WriteBackCopied = "writeback_copied", "bytes";
    WriteBackLent = "writeback_lent", "bytes";
    WriteCall = "write_call", "ns";
    LockWait = "lock_wait", "ns";
    Throttled = "write_throttled", "reqs";
    CallerLook = "caller_look", "callers";
    LockEnqueue = "lock_enqueue", "reqs";
    LockCallback = "lock_callback", "reqs";
    LockCancel = "lock_cancel", "locks";
    LockCancelMessages = "lock_cancel_messages", "reqs";
    LockAged = "lock_aged", "locks";
    LockNeighbours = "lock_neighbours", "locks";
    ContendedTold = "contended_told", "reqs";
    LockAheadAsked = "lock_ahead_asked", "reqs";
    LockAheadGranted = "lock_ahead_granted", "reqs";
    LockAheadRefused = "lock_ahead_refused", "reqs";
    LockAheadSame = "lock_ahead_same", "reqs";
    LockAheadDifferent = "lock_ahead_different", "reqs";
    GroupLock = "group_lock", "reqs";
    GroupWait = "group_wait", "reqs";
    PagesLeft = "pages_left", "reqs";
    TokenRevoke = "token_revoke", "reqs";
    JobForgotten = "jobs_forgotten", "jobs";
    JobRefused = "jobs_refused", "opens";
    Calls = "server_calls", "reqs";
    PayloadPassed = "payload_passed", "bytes";
    PayloadInline = "payload_inline", "bytes";
}

const REASONS: usize = Reason::ALL.len();
/// Rows that are shown: the counters above, then reads, then writes by reason.
const TOTAL: usize = NAMES.len() + 2 * REASONS;
/// After them come the rows of reads and writes by reason once more, for requests whose copies are counted along.
const ROWS: usize = TOTAL + 2 * REASONS;
const SHARDS: usize = 8;

#[derive(Default)]
struct Tally {
    samples: AtomicU64,
    sum: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
    sum_squares: AtomicU64,
}

#[repr(align(128))]
struct Shard([Tally; ROWS]);

/// Counters of a mount.
pub(crate) struct Stats {
    /// How long calls took.
    pub(crate) calls: Arc<CallTimes>,
    shards: Vec<Shard>,
    start_ns: AtomicU64,
}

thread_local! {
    static SHARD: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Relaxed) % SHARDS
    };
}

/// The shard of the calling thread.
pub(crate) fn thread_shard() -> usize {
    SHARD.with(|s| *s)
}

fn io_index(way: Way, reason: Reason) -> usize {
    NAMES.len() + if way == Way::Write { REASONS } else { 0 } + reason as usize
}

/// For requests whose copies are counted along.
fn copied_index(way: Way, reason: Reason) -> usize {
    io_index(way, reason) + 2 * REASONS
}

fn name_of(index: usize) -> (String, &'static str) {
    match index.checked_sub(NAMES.len()) {
        None => (NAMES[index].0.into(), NAMES[index].1),
        Some(i) => {
            let way = if i < REASONS { "read" } else { "write" };
            (format!("{way}_{}", Reason::ALL[i % REASONS].name()), "bytes")
        }
    }
}

/// One counter, summed over its shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sum {
    samples: u64,
    sum: u64,
    min: u64,
    max: u64,
    sum_squares: u64,
}

impl Sum {
    const NONE: Sum = Sum { samples: 0, sum: 0, min: u64::MAX, max: 0, sum_squares: 0 };

    fn and(self, other: Sum) -> Sum {
        Sum {
            samples: self.samples + other.samples,
            sum: self.sum.wrapping_add(other.sum),
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            sum_squares: self.sum_squares.wrapping_add(other.sum_squares),
        }
    }
}

impl Stats {
    pub(crate) fn new(now_ns: u64) -> Stats {
        let shard = || Shard(std::array::from_fn(|_| Tally::default()));
        let calls = CallTimes::new().into();
        let stats = Stats { calls, shards: (0..SHARDS).map(|_| shard()).collect(), start_ns: AtomicU64::new(0) };
        stats.reset(now_ns);
        stats
    }

    fn add(&self, index: usize, value: u64) {
        let t = &self.shards[thread_shard()].0[index];
        t.samples.fetch_add(1, Relaxed);
        t.sum.fetch_add(value, Relaxed);
        t.sum_squares.fetch_add(value.wrapping_mul(value), Relaxed);
        if value < t.min.load(Relaxed) {
            t.min.fetch_min(value, Relaxed);
        }
        if value > t.max.load(Relaxed) {
            t.max.fetch_max(value, Relaxed);
        }
    }

    /// Counts one request of `bytes` with this reason.
    pub(crate) fn io(&self, way: Way, reason: Reason, bytes: u64, copied: Copied) {
        self.add(if copied == Copied::Along { copied_index(way, reason) } else { io_index(way, reason) }, bytes);
    }

    /// Bytes that were copied, or lent, where that is not counted along with a request.
    pub(crate) fn moved(&self, what: Count, bytes: u64) {
        if bytes > 0 {
            self.add(what as usize, bytes);
        }
    }

    /// Counts one event.
    pub(crate) fn count(&self, what: Count) {
        self.add(what as usize, 1);
    }

    /// Counts one event over `bytes`, or another amount, depending on the counter.
    pub(crate) fn bytes(&self, what: Count, bytes: u64) {
        self.add(what as usize, bytes);
    }

    /// Starts again from zero.
    pub(crate) fn reset(&self, now_ns: u64) {
        self.start_ns.store(now_ns, Relaxed);
        self.calls.reset();
        for t in self.shards.iter().flat_map(|s| &s.0) {
            for f in [&t.samples, &t.sum, &t.max, &t.sum_squares] {
                f.store(0, Relaxed);
            }
            t.min.store(u64::MAX, Relaxed);
        }
    }

    fn row(&self, index: usize) -> Sum {
        let one = |t: &Tally| Sum {
            samples: t.samples.load(Relaxed),
            sum: t.sum.load(Relaxed),
            min: t.min.load(Relaxed),
            max: t.max.load(Relaxed),
            sum_squares: t.sum_squares.load(Relaxed),
        };
        self.shards.iter().map(|s| one(&s.0[index])).fold(Sum::NONE, Sum::and)
    }

    /// A row as it is shown.
    fn sum(&self, index: usize) -> Sum {
        let along = |way| Reason::ALL.iter().map(move |reason| copied_index(way, *reason));
        let own = self.row(index);
        match index {
            i if i >= NAMES.len() => own.and(self.row(i + 2 * REASONS)),
            i if i == Count::CopiedOut as usize => along(Way::Read).fold(own, |s, i| s.and(self.row(i))),
            i if i == Count::CopiedIn as usize => along(Way::Write).fold(own, |s, i| s.and(self.row(i))),
            _ => own,
        }
    }

    /// Requests and bytes with this reason.
    #[cfg(test)]
    pub(crate) fn io_of(&self, way: Way, reason: Reason) -> (u64, u64) {
        let s = self.sum(io_index(way, reason));
        (s.samples, s.sum)
    }

    /// Samples and sum of an event.
    pub(crate) fn of(&self, what: Count) -> (u64, u64) {
        let s = self.sum(what as usize);
        (s.samples, s.sum)
    }

    /// The counters as text in the style of Lustre's llite stats: counters that are zero are left out, and gauges come
    /// last.
    pub(crate) fn text(&self, now_ns: u64, gauges: &[(String, u64)]) -> String {
        let start = self.start_ns.load(Relaxed);
        let mut out = String::new();
        let secs = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
        for (name, ns) in
            [("snapshot_time", now_ns), ("start_time", start), ("elapsed_time", now_ns.saturating_sub(start))]
        {
            let _ = writeln!(out, "{name:<35} {} secs.nsecs", secs(ns));
        }
        for i in 0..TOTAL {
            let (s, (name, unit)) = (self.sum(i), name_of(i));
            if s.samples > 0 && unit == "reqs" {
                let _ = writeln!(out, "{name:<35} {} samples [{unit}]", s.samples);
            } else if s.samples > 0 {
                let Sum { samples, sum, min, max, sum_squares } = s;
                let _ = writeln!(out, "{name:<35} {samples} samples [{unit}] {min} {max} {sum} {sum_squares}");
            }
        }
        for (name, value) in gauges {
            let _ = writeln!(out, "{name:<35} {value}");
        }
        out
    }

    /// The counters as JSON: every counter, zero or not.
    pub(crate) fn json(&self, now_ns: u64, gauges: &[(String, u64)]) -> String {
        let elapsed = now_ns.saturating_sub(self.start_ns.load(Relaxed));
        let mut out = format!("{{\"elapsed_ns\":{elapsed},\"counters\":{{");
        for i in 0..TOTAL {
            let (s, (name, unit)) = (self.sum(i), name_of(i));
            let min = if s.samples == 0 { 0 } else { s.min };
            let comma = if i > 0 { "," } else { "" };
            let _ = write!(
                out,
                "{comma}\"{name}\":{{\"samples\":{},\"unit\":\"{unit}\",\"min\":{min},\"max\":{},\"sum\":{}}}",
                s.samples, s.max, s.sum
            );
        }
        out.push_str("},\"gauges\":{");
        for (i, (name, value)) in gauges.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let _ = write!(out, "{comma}\"{name}\":{value}");
        }
        let _ = write!(out, "}},\"calls\":{}}}", self.calls.json());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: both forms of output show the values that were counted, and a reset sets them to zero. Method: a few
    /// samples, then the text and JSON.
    #[test]
    fn prints_follow_the_counts() {
        let s = Stats::new(5);
        s.io(Way::Write, Reason::DirectLarge, 2 << 20, Copied::Apart);
        s.io(Way::Write, Reason::DirectLarge, 4 << 20, Copied::Apart);
        s.count(Count::Lookup);
        let text = s.text(1_500_000_005, &[("cache_bytes".to_string(), 7)]);
        assert!(text.contains("elapsed_time                        1.500000000 secs.nsecs"), "{text}");
        assert!(
            text.contains("write_direct_large                  2 samples [bytes] 2097152 4194304 6291456 "),
            "{text}"
        );
        assert!(text.contains("lookup                              1 samples [reqs]\n"), "{text}");
        assert!(!text.contains("getattr"), "zero counters are left out");
        let json = s.json(9, &[("cache_bytes".to_string(), 7)]);
        assert!(json.contains("\"write_direct_large\":{\"samples\":2,\"unit\":\"bytes\",\"min\":2097152"), "{json}");
        assert!(json.ends_with("\"gauges\":{\"cache_bytes\":7},\"calls\":{}}"), "{json}");
        s.reset(9);
        assert_eq!(s.io_of(Way::Write, Reason::DirectLarge), (0, 0));
        assert_eq!(s.of(Count::Lookup), (0, 0));
    }

    /// Goal: requests whose copies are counted along appear once under their reason and once among the copies, and
    /// others only under their reason. Method: both kinds of reads and writes, and a copy without a request.
    #[test]
    fn copies_are_counted_along() {
        let s = Stats::new(0);
        s.io(Way::Read, Reason::CacheHit, 100, Copied::Along);
        s.io(Way::Read, Reason::CacheHit, 70, Copied::Apart);
        s.io(Way::Write, Reason::BufferedSmall, 9, Copied::Along);
        s.io(Way::Write, Reason::BufferedDefault, 5, Copied::Along);
        s.io(Way::Write, Reason::DirectLarge, 7000, Copied::Apart);
        s.moved(Count::CopiedOut, 3);
        s.moved(Count::CopiedIn, 0);
        assert_eq!(s.io_of(Way::Read, Reason::CacheHit), (2, 170));
        assert_eq!(s.io_of(Way::Write, Reason::BufferedSmall), (1, 9));
        assert_eq!(s.io_of(Way::Write, Reason::DirectLarge), (1, 7000));
        assert_eq!((s.of(Count::CopiedOut), s.of(Count::CopiedIn)), ((2, 103), (2, 14)));
        let text = s.text(0, &[]);
        assert!(text.contains("read_cache_hit                      2 samples [bytes] 70 100 170 14900\n"), "{text}");
        assert!(text.contains("cache_copied_in                     2 samples [bytes] 5 9 14 106\n"), "{text}");
        s.reset(0);
        assert_eq!((s.of(Count::CopiedOut), s.io_of(Way::Read, Reason::CacheHit)), ((0, 0), (0, 0)));
    }
}
