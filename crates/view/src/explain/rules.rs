//! The rules of `amphi explain`: pure functions from facts to findings.
//!
//! Each has a case that triggers it and one near it that must not (`tests`). The thresholds request enough requests or
//! bytes that a change could be felt.

use super::facts::{FileFacts, Portrait, Row, Side};
use super::said::{Explanation, ways};
use crate::change::Change;
use crate::findings::{Finding, Weight, findings};
use crate::snapshot::Job;
use crate::unit::{bytes, count, seconds, share};
use std::collections::{BTreeMap, BTreeSet};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

type Rule = fn(&FileFacts) -> Option<Finding>;

const RULES: &[Rule] = &[
    contended,
    forced_direct,
    forced_buffered,
    sync_for_each,
    small_and_missed,
    unaligned,
    unaligned_held_back,
    too_large_for_cache,
    memory_short,
    one_server,
    in_pieces,
    written_while_read,
];

fn slow(rule: &'static str, what: String, advice: &str, command: Option<String>) -> Option<Finding> {
    Some(Finding { rule, weight: Weight::Slow, what, advice: Some(advice.to_string()), command })
}

/// The explanation of a file.
pub fn of_file(facts: &FileFacts) -> Explanation {
    let mut head =
        format!("{}: {}, layout {}, mode {}", facts.path, bytes(facts.size as f64), facts.layout, facts.mode);
    if facts.consistency == "commit" {
        head += ", commit consistency (others see a write at the writer's fsync, close or unlock at the latest)";
    }
    if let Some(text) = served_by(&facts.portrait.reads_served_by) {
        head += &format!("; reads are served by {text}");
    }
    let tunable = |name: &str| facts.tunables.get(name).cloned();
    Explanation {
        head,
        ways: ways(&facts.counters, &tunable),
        looks: looks(&facts.portrait),
        findings: RULES.iter().filter_map(|rule| rule(facts)).collect(),
    }
}

/// The explanation of a job of a mount.
pub fn of_job(job: &Job, tunables: &BTreeMap<String, String>) -> Explanation {
    let rows = job.counters.iter().map(|(name, c)| (name.clone(), Row { requests: c.requests, bytes: c.bytes }));
    Explanation {
        head: format!("job {}: {} opens, {} files open", job.job, job.opens, job.open),
        ways: ways(&rows.collect(), &|name| tunables.get(name).cloned()),
        ..Explanation::default()
    }
}

/// The explanation of a mount between two samples.
pub fn of_mount(name: &str, change: &Change<'_>, tunables: &BTreeMap<String, String>) -> Explanation {
    let mut rows = BTreeMap::new();
    for prefix in ["read_", "write_"] {
        for (way, often, much) in change.ways(prefix) {
            let [requests, bytes] = [often, much].map(|rate| (rate * change.seconds()).round() as u64);
            let name = format!("{prefix}{}_{}", way.way, way.reason.replace(' ', "_"));
            rows.insert(name, Row { requests, bytes });
        }
    }
    let mut all = findings(change);
    all.extend([useless_read_ahead, metadata_storm].iter().filter_map(|rule| rule(change)));
    all.sort_by_key(|finding| finding.weight);
    Explanation {
        head: format!("{name}, over {}", seconds(change.seconds())),
        ways: ways(&rows, &|name| tunables.get(name).cloned()),
        looks: Vec::new(),
        findings: all,
    }
}

fn served_by(counter: &str) -> Option<&'static str> {
    Some(match counter {
        "open_kernel_small_file" => "the kernel's cache: the file is small",
        "open_kernel_executable" => "the kernel's cache: it is a program",
        "open_kernel_small_reads" => "the kernel's cache: its reads are small",
        "open_kernel_unknown" => "the kernel's cache, as long as nothing speaks against it",
        "open_kernel_advised" | "open_kernel_user" => "the kernel's cache: that was asked for",
        "open_mount_off" => "the mount: hybrid.kernel_cache is off",
        "open_mount_open" => "the mount: it is open for writing here",
        "open_mount_user" | "open_mount_advised" => "the mount: that was asked for",
        "open_mount_contended" => "the mount: others want it too",
        "open_mount_written" => "the mount: somebody has it open for writing",
        "open_mount_memory" => "the mount: memory is short",
        "open_mount_large" => "the mount: its reads are large",
        "open_mount_look" => "the mount, to see how large its reads are",
        _ => return None,
    })
}

/// The pattern of requests, a line for each existing kind.
fn looks(portrait: &Portrait) -> Vec<String> {
    let line = |name: &str, side: &Side| {
        let most = side.sizes.iter().max_by_key(|(_, n)| *n)?;
        let size = match most.0 {
            below if below <= KIB => "below 1 KiB".to_string(),
            below => format!("of {} to {}", bytes(below as f64 / 2.0), bytes(below as f64)),
        };
        let order = match (side.part(side.follows), side.part(side.goes_back)) {
            (follows, _) if follows >= 80.0 => "one behind the other",
            (_, back) if back >= 30.0 => "to and fro",
            _ => "forwards, with gaps",
        };
        let unaligned = side.part(side.unaligned);
        let aligned = match unaligned {
            0.0 => "all aligned to 4 KiB".to_string(),
            part => format!("{part:.0} % not aligned to 4 KiB"),
        };
        Some(format!("{name}: {:.0} % {size}, {order}, {aligned}", side.part(most.1)))
    };
    let mut all = Vec::new();
    all.extend(line("reads that the cache did not have", &portrait.reads));
    all.extend(line("writes", &portrait.writes));
    if portrait.fsyncs > 0 {
        all.push(format!("synced {} times", count(portrait.fsyncs as f64)));
    }
    if portrait.lock_wait_ns >= 1_000_000 {
        all.push(format!("waited {} for locks", seconds(portrait.lock_wait_ns as f64 / 1e9)));
    }
    all
}

/// Locks of the file go to and fro between mounts.
fn contended(facts: &FileFacts) -> Option<Finding> {
    let (callbacks, wait_s) = (facts.row("lock_callback").requests, facts.portrait.lock_wait_ns as f64 / 1e9);
    let all = facts.sum("read_").requests + facts.sum("write_").requests;
    if callbacks < 32 || share(callbacks as f64, all as f64) < 2.0 || wait_s < 0.05 {
        return None;
    }
    let what = format!(
        "other mounts want the same file: its locks were called back {} times, and calls here have waited {} for them",
        count(callbacks as f64),
        seconds(wait_s)
    );
    let writes = &facts.portrait.writes;
    let advice = match writes.part(writes.unaligned) >= 20.0 || writes.below(256 * KIB) >= 50.0 {
        true => {
            "larger pieces for each process, or collective buffering: `amphi run --mpiio` joins what ranks write; \
             programs that know their ranges can ask for locks ahead or for a group lock (docs/IOCTL.md)"
        }
        false => {
            "a file for each process, or ranges that do not overlap; a group lock if the program orders its writes; \
             commit consistency (amphi layout set --consistency commit) if nobody reads before the writer's fsync or \
             close"
        }
    };
    slow("contended", what, advice, None)
}

/// Direct I/O is requested, and the requests are small.
fn forced_direct(facts: &FileFacts) -> Option<Finding> {
    for (name, side) in [("read", &facts.portrait.reads), ("write", &facts.portrait.writes)] {
        let row = facts.row(&format!("{name}_direct_user"));
        let all = facts.sum(&format!("{name}_"));
        let mean = row.bytes.checked_div(row.requests).unwrap_or(0);
        if row.requests < 200 || mean >= 64 * KIB || row.requests * 2 < all.requests || side.below(128 * KIB) < 50.0 {
            continue;
        }
        let what = format!(
            "{} {name}s of {} go direct because that is asked for; each waits for a server",
            count(row.requests as f64),
            bytes(mean as f64)
        );
        let command = (facts.mode == "direct").then(|| format!("amphi layout set --mode auto {}", quoted(&facts.path)));
        let advice = "let the mount decide: small requests through its cache take microseconds; or larger requests, \
                      or many at a time";
        return slow("forced_direct", what, advice, command);
    }
    None
}

/// Buffered I/O is requested, and the requests are large.
fn forced_buffered(facts: &FileFacts) -> Option<Finding> {
    for name in ["read", "write"] {
        let row = facts.row(&format!("{name}_buffered_user"));
        let mean = row.bytes.checked_div(row.requests).unwrap_or(0);
        if row.bytes < 64 * MIB || mean < MIB {
            continue;
        }
        let what = format!(
            "{} were {} through the cache in requests of {} because that is asked for",
            bytes(row.bytes as f64),
            if name == "read" { "read" } else { "written" },
            bytes(mean as f64)
        );
        let command =
            (facts.mode == "buffered").then(|| format!("amphi layout set --mode auto {}", quoted(&facts.path)));
        return slow(
            "forced_buffered",
            what,
            "let the mount decide: large requests go direct, without a copy",
            command,
        );
    }
    None
}

/// Returns whether nearly each write is followed by a sync of its own.
fn sync_for_each(facts: &FileFacts) -> Option<Finding> {
    let (fsyncs, writes) = (facts.portrait.fsyncs, facts.portrait.writes.requests);
    if fsyncs < 100 || writes > 4 * fsyncs {
        return None;
    }
    let mean = facts.sum("write_").bytes.checked_div(fsyncs).unwrap_or(0);
    let what = format!(
        "{} calls of fsync for {} writes: each waits until {} are on a disk",
        count(fsyncs as f64),
        count(writes as f64),
        bytes(mean as f64)
    );
    let advice = "sync once behind several writes. What a write has returned survives the end of the program without \
                  a sync; only loss of power needs it (SEMANTICS)";
    slow("sync_for_each", what, advice, None)
}

/// Small reads that the cache does not have and that follow no order.
fn small_and_missed(facts: &FileFacts) -> Option<Finding> {
    let (reads, hits) = (&facts.portrait.reads, facts.row("read_cache_hit").requests);
    if reads.requests < 500
        || reads.below(64 * KIB) < 70.0
        || reads.requests < hits
        || reads.part(reads.goes_back) < 30.0
    {
        return None;
    }
    let asked_direct = facts.row("read_direct_user").requests;
    if 2 * asked_direct > reads.requests {
        // The rule `forced_direct` covers this case.
        return None;
    }
    let what = format!(
        "{} small reads to and fro were not in the cache ({:.0} % of all): each asks a server",
        count(reads.requests as f64),
        share(reads.requests as f64, (reads.requests + hits) as f64)
    );
    let advice = "read it once in order first (`cat FILE > /dev/null`, or posix_fadvise WILLNEED) if it fits into the \
                  cache (cache.max_bytes); several readers at a time; larger records";
    slow("small_and_missed", what, advice, None)
}

/// Direct requests of middle size whose edges are not aligned.
fn unaligned(facts: &FileFacts) -> Option<Finding> {
    let (writes, all) = (&facts.portrait.writes, facts.sum("write_direct_"));
    // Contended files are the subject of `contended`.
    let others = facts.row("write_direct_contention");
    let direct = Row { requests: all.requests - others.requests, bytes: all.bytes - others.bytes };
    let mean = direct.bytes.checked_div(direct.requests).unwrap_or(0);
    let is_direct = 2 * direct.requests > writes.requests;
    if direct.requests < 100 || !is_direct || writes.part(writes.unaligned) < 30.0 || mean >= 4 * MIB {
        return None;
    }
    let what = format!(
        "{:.0} % of {} direct writes begin or end inside a block of 4 KiB, which a server has to read and merge",
        writes.part(writes.unaligned),
        count(direct.requests as f64)
    );
    slow("unaligned", what, "records that are multiples of 4 KiB, or a header that is filled up to 4 KiB", None)
}

/// Requests that would go direct do not, for their edges.
fn unaligned_held_back(facts: &FileFacts) -> Option<Finding> {
    let held = [facts.row("read_buffered_unaligned"), facts.row("write_buffered_unaligned")];
    let all: u64 = held.iter().map(|row| row.bytes).sum();
    if all < 64 * MIB {
        return None;
    }
    let what = format!("{} would have gone direct, and did not because hybrid.unaligned is off", bytes(all as f64));
    let command = Some("amphi set hybrid.unaligned=on".to_string());
    slow("unaligned_held_back", what, "let requests whose edges are not aligned go direct", command)
}

/// More of the file is read again than the cache may hold of one file.
fn too_large_for_cache(facts: &FileFacts) -> Option<Finding> {
    let over: u64 = ["read", "write"].iter().map(|n| facts.row(&format!("{n}_direct_overcache")).bytes).sum();
    let hits = facts.row("read_cache_hit").bytes;
    if over < 256 * MIB || hits < over / 4 {
        return None;
    }
    let now = facts.tunables.get("hybrid.overcache_bytes").map_or(String::new(), |value| format!(" (now {value})"));
    let what = format!(
        "{} went past the cache because one file may take only so much of it{now}, while {} were found there",
        bytes(over as f64),
        bytes(hits as f64)
    );
    let twice = facts.size.max(MIB).next_power_of_two() / MIB;
    let command = Some(format!("amphi set hybrid.overcache_bytes={twice}M"));
    slow("too_large_for_cache", what, "allow one file as much as it has, if cache.max_bytes is larger", command)
}

/// Requests go direct for lack of memory.
fn memory_short(facts: &FileFacts) -> Option<Finding> {
    let short: u64 = ["read", "write"].iter().map(|n| facts.row(&format!("{n}_direct_memory")).bytes).sum();
    let all = facts.sum("read_").bytes + facts.sum("write_").bytes;
    if short < 64 * MIB || share(short as f64, all as f64) < 10.0 {
        return None;
    }
    let what = format!(
        "{} ({:.0} %) went past the cache because memory is short, of the mount's or of the calling program's group",
        bytes(short as f64),
        share(short as f64, all as f64)
    );
    slow("memory_short", what, "a larger memory limit of the job, or a smaller cache.dirty_percent", None)
}

/// A large file lies on one of several servers.
fn one_server(facts: &FileFacts) -> Option<Finding> {
    let all: BTreeSet<&String> = facts.targets.values().collect();
    let held: u64 = facts.objects.iter().map(|o| o.bytes).sum();
    let filled = facts.objects.iter().filter(|o| o.bytes > 0);
    let used: BTreeSet<&String> = filled.filter_map(|o| facts.targets.get(&o.target)).collect();
    if all.len() < 2 || used.len() != 1 || held < 64 * MIB {
        return None;
    }
    let name = used.first().map_or(String::new(), |name| name.to_string());
    let what = format!("all {} lie on one of {} servers, {name}", bytes(held as f64), all.len());
    let dir = facts.path.rsplit_once('/').map_or(".", |(dir, _)| if dir.is_empty() { "/" } else { dir });
    let command = Some(format!("amphi layout set --layout growing {}", quoted(dir)));
    slow("one_server", what, "a layout that uses all targets, for new files of the directory; copy this one", command)
}

/// The data of the file is in many pieces on the disks.
fn in_pieces(facts: &FileFacts) -> Option<Finding> {
    let (extents, held) = facts.objects.iter().fold((0, 0), |(extents, held), o| (extents + o.extents, held + o.bytes));
    if extents < 256 || held == 0 || extents * MIB < 4 * held {
        return None;
    }
    let what = format!(
        "{} lie in {} pieces of {} on average",
        bytes(held as f64),
        count(extents as f64),
        bytes(held as f64 / extents as f64)
    );
    let advice = "it was written in small scattered pieces that were synced one by one; a copy (`cp`) lies in few";
    slow("in_pieces", what, advice, None)
}

/// Small reads reach the mount one by one, since the file is open for writing.
fn written_while_read(facts: &FileFacts) -> Option<Finding> {
    let hits = facts.row("read_cache_hit");
    let mean = hits.bytes.checked_div(hits.requests).unwrap_or(0);
    let by = facts.portrait.reads_served_by.as_str();
    if !matches!(by, "open_mount_written" | "open_mount_open") || hits.requests < 50_000 || mean > 16 * KIB {
        return None;
    }
    let what = format!(
        "{} reads of {} come to the mount because the file is open for writing, 20 us each instead of 1 from the kernel",
        count(hits.requests as f64),
        bytes(mean as f64)
    );
    let advice = "close it for writing before it is read, or start the reader with `amphi run`";
    slow("written_while_read", what, advice, None)
}

/// Read-ahead loads bytes that are not read.
fn useless_read_ahead(change: &Change<'_>) -> Option<Finding> {
    let gauge = |name: &str| {
        let (before, after) = (change.before.gauge(name), change.after.gauge(name));
        after.saturating_sub(before) as f64
    };
    let (used, wasted) = (gauge("readahead_used_bytes"), gauge("readahead_wasted_bytes"));
    if wasted < 64.0 * MIB as f64 || wasted < used {
        return None;
    }
    let what = format!("{} were read ahead and dropped unread, {} were used", bytes(wasted), bytes(used));
    let advice = "programs that read to and fro: posix_fadvise RANDOM for their files; or a smaller window";
    slow("useless_read_ahead", what, advice, Some("amphi set readahead.max_bytes=1M".into()))
}

/// The mount does little but request names.
fn metadata_storm(change: &Change<'_>) -> Option<Finding> {
    let names: f64 = ["lookup", "getattr", "open", "create", "unlink"].iter().map(|name| change.often(name)).sum();
    let calls = change.often("server_calls");
    let (reads, writes) = (change.total("read_"), change.total("write_"));
    if names < 2000.0 || names < 4.0 * (reads.0 + writes.0) || calls < 1000.0 {
        return None;
    }
    let what = format!(
        "{} calls on names a second beside {} reads and writes: this is what the time goes to",
        count(names),
        count(reads.0 + writes.0)
    );
    let advice = "fewer, larger files: an archive (tar, squashfs, zarr or HDF5 with large chunks) read in place";
    slow("metadata_storm", what, advice, None)
}

/// Returns a path in the form in which a shell accepts it.
fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,=@%:".contains(c);
    if !path.is_empty() && path.chars().all(plain) {
        return path.to_string();
    }
    format!("'{}'", path.replace('\'', "'\\''"))
}
