//! Each reason of the hybrid decision, triggered by a small workload of ordinary programs and read back with `amphi
//! stats`. The written bytes are compared each time (Promise S3).

use crate::harness::{Daemon, Place, Starting, amphi, eventually, pattern, run};
use crate::memory_group::MemoryGroup;
use rustix::fs::{OFlags, XattrFlags, setxattr};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const KIB64: usize = 64 << 10;
const MIB: usize = 1 << 20;
/// A record of ior-hard: in the window, aligned to nothing.
const RECORD: usize = 47_008;
pub const REASONS: [&str; 12] = [
    "direct_user",
    "direct_large",
    "direct_kernel",
    "direct_contention",
    "direct_memory",
    "direct_overcache",
    "direct_locality",
    "buffered_faster",
    "buffered_user",
    "buffered_small",
    "buffered_default",
    "cache_hit",
];

/// A cluster with its mount in one process.
struct One {
    place: Place,
    up: Daemon,
}

impl One {
    fn new(tunables: &[&str]) -> One {
        One::with(tunables, &[])
    }

    fn with(tunables: &[&str], more: &[&str]) -> One {
        let place = Place::new();
        let mut args = vec!["--targets", "2", "--zone-size", "256M", "--log-size", "16M"];
        tunables.iter().for_each(|t| args.extend(["--set", t]));
        args.extend(more);
        let up = place.up(&args);
        One { place, up }
    }

    fn file(&self) -> std::path::PathBuf {
        self.place.mount().join("f")
    }

    fn open(&self, flags: OFlags) -> File {
        let mut options = File::options();
        options.read(true).write(true).create(true).custom_flags(flags.bits() as i32);
        options.open(self.file()).expect("open")
    }

    /// Reasons with requests in them since the last reset, for writes or reads.
    fn reasons(&self, way: &str) -> Vec<&'static str> {
        REASONS.into_iter().filter(|reason| count(&self.place.mount(), way, reason) > 0).collect()
    }

    fn set(&self, tunable: &str) {
        set(&self.place.mount(), tunable);
    }

    /// Bytes that are on the server and nowhere in the cache.
    fn put(&self, bytes: &[u8]) {
        let f = self.open(OFlags::DIRECT);
        f.write_all_at(bytes, 0).expect("write");
        drop(f);
        self.reset();
    }

    fn reset(&self) {
        assert!(run(&["stats", "--reset", &self.place.text("mount")]).status.success());
    }

    /// Compares the file, past all caches too, and ends in order.
    fn end(self, expected: &[u8]) {
        assert!(fs::read(self.file()).expect("read") == expected, "as programs see it");
        let mut past = vec![0; expected.len()];
        self.open(OFlags::DIRECT).read_exact_at(&mut past, 0).expect("read");
        assert!(past == expected, "past the caches");
        self.up.stop();
        self.place.fsck();
    }
}

fn stats(mount: &Path) -> serde_json::Value {
    let out = run(&["stats", "--json", &mount.display().to_string()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

pub fn count(mount: &Path, way: &str, reason: &str) -> u64 {
    stats(mount)["counters"][format!("{way}_{reason}")]["samples"].as_u64().expect("a counter")
}

fn set(mount: &Path, tunable: &str) {
    setxattr(mount, "user.amphi.set", tunable.as_bytes(), XattrFlags::empty()).expect(tunable);
}

/// Writes `bytes` in requests of `step`.
fn write_in(f: &File, bytes: &[u8], step: usize) {
    for (i, part) in bytes.chunks(step).enumerate() {
        f.write_all_at(part, (i * step) as u64).expect("write");
    }
}

/// Reads all in requests of `step`, and compares.
fn read_in(f: &File, expected: &[u8], step: usize) {
    let mut buf = vec![0; step];
    for (i, part) in expected.chunks(step).enumerate() {
        f.read_exact_at(&mut buf[..part.len()], (i * step) as u64).expect("read");
        assert!(buf[..part.len()] == *part, "bytes from {}", i * step);
    }
}

/// Goal: `direct_user`. Method: `O_DIRECT`, the file's attribute, and the mount's tunable, with small requests that
/// would be buffered otherwise.
#[test]
fn direct_by_request_of_the_user() {
    let one = One::new(&[]);
    let bytes = pattern(1, 40_000);
    write_in(&one.open(OFlags::DIRECT), &bytes, 8192);
    read_in(&one.open(OFlags::DIRECT), &bytes, 4096);
    setxattr(one.file(), "user.amphi.mode", b"direct", XattrFlags::empty()).expect("mode");
    write_in(&one.open(OFlags::empty()), &bytes, 1000);
    read_in(&one.open(OFlags::empty()), &bytes, 777);
    setxattr(one.file(), "user.amphi.mode", b"auto", XattrFlags::empty()).expect("mode");
    one.set("hybrid.mode=direct");
    read_in(&one.open(OFlags::empty()), &bytes, 10_000);
    write_in(&one.open(OFlags::empty()), &bytes, 100);
    assert_eq!((one.reasons("write"), one.reasons("read")), (vec!["direct_user"], vec!["direct_user"]));
    one.end(&bytes);
}

/// Goal: `direct_large`. Method: writes of 2 MiB, reads of 4 MiB.
#[test]
fn direct_because_it_is_large() {
    let one = One::new(&[]);
    let bytes = pattern(2, 16 * MIB);
    write_in(&one.open(OFlags::empty()), &bytes, 2 * MIB);
    assert_eq!(one.reasons("write"), ["direct_large"]);
    read_in(&one.open(OFlags::empty()), &bytes, 4 * MIB);
    assert_eq!(one.reasons("read"), ["direct_large"]);
    one.end(&bytes);
}

/// Goal: `direct_contention`: requests of two mounts that write one file in turn go direct, and are buffered again when
/// only one mount uses the file. Method: interleaved records of ior-hard, until both mounts have gone direct. Then one
/// of them continues by itself.
#[test]
fn direct_because_of_contention() {
    let place = Place::new();
    let server = place.server(&["--targets", "2"]);
    let tunables = ["--set", "hybrid.contended_ms=1000", "--set", "hybrid.locality=off"];
    let (first, second) = (place.mount_at("a", &tunables), place.mount_at("b", &tunables));
    let mounts = [place.path("a"), place.path("b")];
    fs::write(mounts[0].join("f"), b"").expect("make");
    let contended = || mounts.iter().all(|m| count(m, "write", "direct_contention") > 10);
    let (turn, enough) = (Barrier::new(2), AtomicBool::new(false));
    let records: Vec<usize> = std::thread::scope(|s| {
        let writers: Vec<_> = (0..2)
            .map(|who| {
                let (turn, enough, contended, m) = (&turn, &enough, &contended, &mounts[who]);
                s.spawn(move || {
                    let f = File::options().write(true).open(m.join("f")).expect("open");
                    let mut n = 0;
                    // The two mounts write record by record together, so that neither runs ahead with a lock on the
                    // rest of the file.
                    while !enough.load(SeqCst) && n < 2000 {
                        let at = 2 * n + who;
                        f.write_all_at(&pattern(at as u64, RECORD), (at * RECORD) as u64).expect("write");
                        n += 1;
                        if turn.wait().is_leader() && n % 20 == 0 {
                            enough.store(contended(), SeqCst);
                        }
                        turn.wait();
                    }
                    n
                })
            })
            .collect();
        writers.into_iter().map(|w| w.join().expect("a writer")).collect()
    });
    assert!(enough.load(SeqCst), "both mounts go direct");
    for m in &mounts {
        let f = File::open(m.join("f")).expect("open");
        let mut got = vec![0; RECORD];
        for (who, n) in records.iter().enumerate() {
            for i in (0..*n).map(|n| 2 * n + who) {
                f.read_exact_at(&mut got, (i * RECORD) as u64).expect("read");
                assert!(got == pattern(i as u64, RECORD), "record {i}");
            }
        }
    }
    // The server forgets 5 s after the last conflict, the mount a second after the server's last word.
    let alone = File::options().write(true).open(mounts[0].join("f")).expect("open");
    let buffered = count(&mounts[0], "write", "buffered_default");
    eventually("it is buffered again", || {
        alone.write_all_at(&pattern(0, RECORD), 0).expect("write");
        count(&mounts[0], "write", "buffered_default") > buffered
    });
    drop(alone);
    first.stop();
    second.stop();
    server.stop();
    place.fsck();
}

/// Goal: writers that take turns, and readers at the same time, cause no contention (sanityn 32c). Method: in some
/// rounds each mount writes the whole file, one mount after the other. Then both read it at the same time.
#[test]
fn no_contention_without_a_fight() {
    let place = Place::new();
    let server = place.server(&["--targets", "2"]);
    let (first, second) = (place.mount_at("a", &["--cache", "16M"]), place.mount_at("b", &["--cache", "16M"]));
    let mounts = [place.path("a"), place.path("b")];
    let bytes = |round: u64| pattern(round, 2 * MIB);
    for round in 0..6 {
        let f = File::options().write(true).create(true).truncate(false).open(mounts[round as usize % 2].join("f"));
        write_in(&f.expect("open"), &bytes(round), RECORD);
    }
    std::thread::scope(|s| {
        for m in &mounts {
            s.spawn(|| (0..5).for_each(|_| read_in(&File::open(m.join("f")).expect("open"), &bytes(5), 40_000)));
        }
    });
    for m in &mounts {
        let counts = ["read", "write"].map(|way| count(m, way, "direct_contention"));
        assert_eq!(counts, [0, 0], "on {}", m.display());
    }
    first.stop();
    second.stop();
    server.stop();
    place.fsck();
}

/// Goal: `direct_memory` from the memory group of the mount: it begins and ends with the shortage, and the cache fits
/// the group. Method: a cluster within a limited group, that is filled with other memory.
#[test]
fn direct_because_memory_is_short() {
    let Some(group) = MemoryGroup::make(256 << 20) else { return };
    let place = Place::new();
    let mut up = amphi();
    up.args(["up", "--data", &place.text("data"), "--mount", &place.text("mount"), "--targets", "2"]);
    // Tunables of age also set how often the mount checks the memory group.
    up.args(["--zone-size", "256M", "--log-size", "16M", "--set", "writeback.age_ms=100"]);
    let one = One { up: Starting::spawn(group.command(&up)).ready(), place };
    let cache = run(&["get", "cache.max_bytes", "--mount", &one.place.text("mount")]);
    assert!(String::from_utf8_lossy(&cache.stdout).contains("=96M"), "3/8 of the limit: {cache:?}");
    let bytes = pattern(3, 4 * MIB);
    write_in(&one.open(OFlags::empty()), &bytes, KIB64);
    assert_eq!(one.reasons("write"), ["buffered_default"]);
    group.fill(96);
    eventually("the mount sees it", || stats(&one.place.mount())["gauges"]["memory_short"] == 1);
    one.put(&bytes);
    write_in(&one.open(OFlags::empty()), &bytes, KIB64);
    read_in(&one.open(OFlags::empty()), &bytes, KIB64);
    assert_eq!((one.reasons("write"), one.reasons("read")), (vec!["direct_memory"], vec!["direct_memory"]));
    group.empty();
    eventually("the mount sees it", || stats(&one.place.mount())["gauges"]["memory_short"] == 0);
    one.reset();
    write_in(&one.open(OFlags::empty()), &bytes, KIB64);
    assert_eq!(one.reasons("write"), ["buffered_default"]);
    one.end(&bytes);
}

/// Goal: `direct_memory` because of the memory group of the caller, and only because of that. Method: one program
/// within a full memory group, one outside, and the switch.
#[test]
fn direct_because_the_callers_memory_is_short() {
    let Some(group) = MemoryGroup::make(64 << 20) else { return };
    let one = One::new(&["writeback.age_ms=100"]);
    let bytes = pattern(4, 4 * MIB);
    let source = one.place.path("source");
    fs::write(&source, &bytes).expect("write");
    group.fill(96);
    // Many rounds in one process, because the mount checks a process only some time after its first request.
    let mut copy = Command::new("sh");
    let (from, to) = (source.display().to_string(), one.file().display().to_string());
    let read_and_write = format!(
        "exec 3<>{to}; i=0; while [ $i -lt 8 ]; do dd if={from} of={to} bs=64K conv=notrunc 2>/dev/null; i=$((i+1)); done"
    );
    copy.args(["-c", &read_and_write]);
    let done = |mut c: Command| assert!(c.stdin(Stdio::null()).status().expect("sh runs").success());
    let mut outside = Command::new("sh");
    outside.args(["-c", &read_and_write]);
    done(outside);
    assert_eq!(one.reasons("write"), ["buffered_default"], "who is not in the group");
    let tail = |way: &str| format!("dd if=/dev/zero of={to} bs=64K count=1600 seek=64 conv=notrunc 2>/dev/null; {way}");
    let mut long = Command::new("sh");
    long.args(["-c", &tail("true")]);
    done(group.command(&long));
    assert!(count(&one.place.mount(), "write", "direct_memory") > 0, "{:?}", one.reasons("write"));
    assert!(stats(&one.place.mount())["counters"]["caller_look"]["sum"].as_u64().is_some_and(|n| n > 0));
    one.reset();
    one.set("hybrid.caller_memory=off");
    done(group.command(&long));
    done(group.command(&copy));
    assert_eq!(count(&one.place.mount(), "write", "direct_memory"), 0, "switched off");
    let expected = [&bytes[..], &vec![0; 1600 * KIB64]].concat();
    one.end(&expected);
}

/// Goal: `direct_overcache`: no more of a file is cached than its bound. Method: a bound of 1 MiB and a file of 4.
#[test]
fn direct_because_of_over_caching() {
    let one = One::new(&["hybrid.overcache_bytes=1M"]);
    let bytes = pattern(5, 4 * MIB);
    write_in(&one.open(OFlags::empty()), &bytes, KIB64);
    assert_eq!(one.reasons("write"), ["direct_overcache", "buffered_default"]);
    assert_eq!(count(&one.place.mount(), "write", "buffered_default"), 16);
    one.end(&bytes);
}

/// Goal: `direct_locality`: a stream of more bytes than the cache holds goes direct, in reads and in writes. A part
/// that is read repeatedly does not lack locality, even in a file that went direct before. Method: a cache of 8 MiB, 32
/// MiB of file.
#[test]
fn direct_for_lack_of_locality() {
    let one = One::new(&[
        "cache.max_bytes=8M",
        "hybrid.locality_pages=1024",
        "hybrid.locality_probe=8",
        "readahead.max_bytes=0",
        "hybrid.memory=off",
    ]);
    let bytes = pattern(6, 32 * MIB);
    one.put(&bytes);
    let f = one.open(OFlags::empty());
    read_in(&f, &bytes, KIB64);
    assert_eq!(one.reasons("read"), ["direct_locality", "buffered_default"]);
    let direct = count(&one.place.mount(), "read", "direct_locality");
    assert!(direct > 200, "{direct} of 512");
    let hits = || count(&one.place.mount(), "read", "cache_hit");
    eventually("reuse is noticed", || {
        let before = hits();
        read_in(&f, &bytes[..MIB], KIB64);
        hits() - before == 16
    });
    drop(f);
    one.reset();
    let other = File::create(one.place.mount().join("g")).expect("create");
    write_in(&other, &bytes, KIB64);
    let mount = one.place.mount();
    assert!(count(&mount, "write", "direct_locality") > 100, "{:?}", one.reasons("write"));
    assert!(fs::read(mount.join("g")).expect("read") == bytes);
    drop(other);
    one.end(&bytes);
}

/// Goal: `buffered_faster`: reads of a file without locality go direct until the throughput of that way is measured.
/// Then they are tried through the cache, and stay there as long as its throughput is higher. With learning off no read
/// is buffered for this reason. Method: a file of 64 MiB is read repeatedly, in requests of the window, through a cache
/// of 4 MiB, so that no page of it is ever used again.
#[test]
fn buffered_where_the_cache_carries_more() {
    const REQUEST: usize = 256 << 10;
    let tunables = ["cache.max_bytes=4M", "hybrid.locality_pages=512"];
    for learn in [true, false] {
        let one = One::new(&[]);
        tunables.iter().for_each(|t| one.set(t));
        one.set(if learn { "hybrid.learn=on" } else { "hybrid.learn=off" });
        let bytes = pattern(11, 64 * MIB);
        one.put(&bytes);
        let f = one.open(OFlags::empty());
        let mount = one.place.mount();
        let faster = || count(&mount, "read", "buffered_faster");
        read_in(&f, &bytes, REQUEST);
        assert_eq!((faster(), count(&mount, "read", "direct_locality") > 150), (0, true), "{:?}", one.reasons("read"));
        let mut rounds = 1;
        while faster() == 0 && rounds < 8 {
            read_in(&f, &bytes, REQUEST);
            rounds += 1;
        }
        assert_eq!(faster() > 0, learn, "after {rounds} rounds: {:?}", one.reasons("read"));
        drop(f);
        one.end(&bytes);
    }
}

/// Goal: the four reasons to stay in the cache, each from the requests that are its own. Method: small requests,
/// requests in the window, large ones of a file set to buffered, and reads of what was just written.
#[test]
fn buffered_in_all_other_cases() {
    let one = One::new(&[]);
    let bytes = pattern(7, 4 * MIB);
    write_in(&one.open(OFlags::empty()), &bytes, 4096);
    assert_eq!(one.reasons("write"), ["buffered_small"]);
    read_in(&one.open(OFlags::empty()), &bytes, 4096);
    read_in(&one.open(OFlags::empty()), &bytes, 2 * MIB);
    assert_eq!(one.reasons("read"), ["cache_hit"]);
    one.set("readahead.max_bytes=0");
    one.put(&bytes);
    read_in(&one.open(OFlags::empty()), &bytes, 8192);
    assert!(one.reasons("read").contains(&"buffered_small"));
    write_in(&one.open(OFlags::empty()), &bytes, 100_000);
    assert!(one.reasons("write").contains(&"buffered_default"));
    one.put(&bytes);
    read_in(&one.open(OFlags::empty()), &bytes, 512 << 10);
    assert_eq!(one.reasons("read"), ["buffered_default"]);
    setxattr(one.file(), "user.amphi.mode", b"buffered", XattrFlags::empty()).expect("mode");
    one.reset();
    write_in(&one.open(OFlags::empty()), &bytes, 4 * MIB);
    assert_eq!(one.reasons("write"), ["buffered_user"]);
    one.end(&bytes);
}

/// Goal: `AMPHI_IO_MODE` of the process that opens a file: read at the open, also right after an `exec`, below the
/// file's own mode, with a switch. Method: dd with and without it.
#[test]
fn processes_choose_by_their_environment() {
    let one = One::new(&[]);
    let file = one.file().display().to_string();
    let bytes = pattern(8, 64 << 10);
    let source = one.place.path("source");
    fs::write(&source, &bytes).expect("write");
    let dd = |mode: Option<&str>| {
        let mut c = Command::new("dd");
        c.args([&format!("if={}", source.display()), &format!("of={file}"), "bs=4K", "conv=notrunc"]);
        c.stdin(Stdio::null()).stderr(Stdio::null()).env_remove("AMPHI_IO_MODE");
        if let Some(m) = mode {
            c.env("AMPHI_IO_MODE", m);
        }
        one.reset();
        assert!(c.status().expect("dd runs").success());
        one.reasons("write")
    };
    assert_eq!(dd(None), ["buffered_small"]);
    assert_eq!(dd(Some("direct")), ["direct_user"]);
    assert_eq!(dd(Some("buffered")), ["buffered_user"]);
    assert_eq!(dd(Some("nonsense")), ["buffered_small"]);
    one.set("hybrid.mode=direct");
    assert_eq!((dd(None), dd(Some("auto"))), (vec!["direct_user"], vec!["buffered_small"]));
    one.set("hybrid.mode=auto");
    setxattr(one.file(), "user.amphi.mode", b"buffered", XattrFlags::empty()).expect("mode");
    assert_eq!(dd(Some("direct")), ["buffered_user"], "the file counts more");
    setxattr(one.file(), "user.amphi.mode", b"auto", XattrFlags::empty()).expect("mode");
    // The shell opens the file itself, then executes the program that opens it again.
    let script =
        format!("exec 3<{file}; AMPHI_IO_MODE=direct exec dd if={} of={file} bs=4K conv=notrunc", source.display());
    for _ in 0..5 {
        one.reset();
        let mut sh = Command::new("sh");
        sh.args(["-c", &script]).stdin(Stdio::null()).stderr(Stdio::null());
        assert!(sh.status().expect("sh runs").success());
        assert_eq!(one.reasons("write"), ["direct_user"]);
    }
    one.end(&bytes);
}

/// Goal: the requests of a program are counted, by reason, for the job that its environment names, in both forms of
/// output, until a reset. The mount chooses the variables. Method: dd with different environments.
#[test]
fn programs_count_for_the_job_of_their_environment() {
    let bytes = pattern(9, 64 << 10);
    for (args, own) in [(&[][..], "SLURM_JOB_ID"), (&["--job-env", "NONE,BATCH"][..], "BATCH")] {
        let one = One::with(&[], args);
        let (mount, file) = (one.place.text("mount"), one.file().display().to_string());
        let source = one.place.path("source");
        fs::write(&source, &bytes).expect("write");
        let dd = |of: &str, env: &[(&str, &str)]| {
            let mut c = Command::new("dd");
            c.args([&format!("if={}", source.display()), of, "bs=4K", "conv=notrunc"]);
            for name in ["AMPHI_JOB", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"] {
                c.env_remove(name);
            }
            c.envs(env.iter().copied()).stdin(Stdio::null()).stderr(Stdio::null());
            assert!(c.status().expect("dd runs").success());
        };
        dd(&format!("of={file}"), &[(own, "4711")]);
        dd(&format!("of={file}2"), &[("PBS_JOBID", ""), ("X", "4711")]);
        let json = run(&["stats", "--jobs", "--json", &mount]).stdout;
        let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
        let job = |name: &str| {
            let found = json["jobs"].as_array().expect("a list").iter().find(|job| job["job"] == name);
            found.unwrap_or_else(|| panic!("{name} is none of {json}")).clone()
        };
        for name in ["-", "4711"] {
            let counters = job(name)["counters"].clone();
            let want = serde_json::json!({ "write_buffered_small": { "requests": 16, "bytes": 65_536 } });
            assert_eq!((counters, job(name)["opens"].as_u64()), (want, Some(1)), "{name}: {json}");
        }
        let shown = || String::from_utf8(run(&["stats", "--jobs", &mount]).stdout).expect("text");
        let text = shown();
        let lines = "throttled 0\n  write_buffered_small              16 requests 65536 bytes\n";
        assert!(text.contains("job 4711: opens 1, ") && text.ends_with(lines), "{text}");
        assert!(run(&["stats", "--jobs", "--reset", &mount]).status.success());
        eventually("the file is closed", || {
            one.reset();
            shown().is_empty() || shown() == "\n"
        });
        one.end(&bytes);
    }
}

/// Goal: `amphi stats FILE` shows that file's counters and not those of the mount. Method: a file that is closed and
/// not cached, one that is cached, and one that was never opened.
#[test]
fn a_file_shows_its_own_counters() {
    let one = One::new(&[]);
    let bytes = pattern(10, 100_000);
    one.put(&bytes);
    let file = one.file().display().to_string();
    let shown = |args: &[&str]| {
        let out = run(&[&["stats"], args].concat());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("text")
    };
    // The file is closed and nothing of it is cached, but its counters are still there.
    eventually("its counters", || shown(&[&file]).contains("write_direct_user 1 requests 100000 bytes\n"));
    let never = one.place.mount().join("never-opened");
    let (kind, mode) = (rustix::fs::FileType::RegularFile, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, &never, kind, mode, 0).expect("mknod");
    let never = never.display().to_string();
    assert!(shown(&[&never]).starts_with("nothing: neither open nor cached"));
    assert_eq!(shown(&["--json", &never]), "{\"counters\":{}}\n");
    assert!(fs::read(one.file()).expect("read") == bytes);
    let other = one.place.mount().join("other");
    fs::write(&other, &bytes[..1000]).expect("write");
    let text = shown(&[&file]);
    assert!(text.contains("\nserver_calls "), "{text}");
    assert!(text.contains("read_") && !text.contains("write_buffered") && !text.contains("elapsed_time"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&shown(&["--json", &file])).expect("JSON");
    assert!(json["counters"]["server_calls"]["requests"].as_u64() > Some(0), "{json}");
    assert!(shown(&[&other.display().to_string()]).contains("write_buffered_small 1 requests 1000 bytes\n"));
    one.end(&bytes);
}

/// Goal: storage that is configured as rotating raises the large threshold and is shown as rotating. Storage that is
/// configured otherwise does not, whatever the device reports. Method: the same write on two clusters.
#[test]
fn rotating_storage_is_believed() {
    for (word, reason, shown) in [("true", "buffered_default", true), ("false", "direct_large", false)] {
        let one = One::with(&[], &["--rotational", word]);
        let bytes = pattern(9, 8 * MIB);
        write_in(&one.open(OFlags::empty()), &bytes, 4 * MIB);
        let status = run(&["status", &one.place.text("mount")]);
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        assert_eq!(one.reasons("write").contains(&"direct_large"), !shown, "{word}");
        assert!(one.reasons("write").contains(&reason), "{word}: {:?}", one.reasons("write"));
        assert_eq!(status.contains(", rotating"), shown, "{status}");
        one.end(&bytes);
    }
}

/// Goal: one of two servers may be on rotating storage: files that lie on its targets too have the higher threshold,
/// and others do not. Method: a file over all targets, and a file on the master's target alone.
#[test]
fn one_of_two_servers_rotates() {
    let place = Place::new();
    let servers = [place.member(0, &["--targets", "1"]), place.member(1, &["--targets", "1", "--rotational", "true"])];
    let mount = place.mount_at("m", &[]);
    let root = place.path("m");
    let bytes = pattern(10, 4 * MIB);
    let reasons = |name: &str, layout: &[u8]| {
        let path = root.join(name);
        fs::write(&path, b"").expect("make");
        setxattr(&path, "user.amphi.layout", layout, XattrFlags::empty()).expect("layout");
        let f = File::options().write(true).open(&path).expect("open");
        // The first request makes the mount speak to all of the file's servers.
        write_in(&f, &bytes, 4 * MIB);
        assert!(run(&["stats", "--reset", &root.display().to_string()]).status.success());
        write_in(&f, &bytes, 4 * MIB);
        assert!(fs::read(&path).expect("read") == bytes);
        REASONS.into_iter().filter(|r| count(&root, "write", r) > 0).collect::<Vec<_>>()
    };
    assert!(reasons("here", b"whole").contains(&"direct_large"));
    assert_eq!(reasons("wide", b"striped,size=1M,count=2"), ["buffered_default"]);
    assert!(reasons("here-too", b"whole").contains(&"direct_large"), "also when it is known");
    assert_eq!(stats(&root)["gauges"]["rotating_targets"], 1);
    mount.stop();
    servers.into_iter().rev().for_each(Daemon::stop);
    place.fsck_members(2);
}

/// Goal: thresholds, modes and switches that change all the time change no byte (Promise S3), on one mount and between
/// two. Method: two mounts write and read their own and each other's records while a third thread changes all the
/// settings.
#[test]
fn switching_storms_change_no_byte() {
    const SLOTS: usize = 48;
    let place = Place::new();
    let server = place.server(&["--targets", "2"]);
    let (first, second) = (place.mount_at("a", &["--cache", "8M"]), place.mount_at("b", &["--cache", "8M"]));
    let mounts = [place.path("a"), place.path("b")];
    let over = AtomicBool::new(false);
    fs::write(mounts[0].join("f"), vec![0; 2 * SLOTS * RECORD]).expect("write");
    let last: Vec<Vec<u64>> = std::thread::scope(|s| {
        s.spawn(|| {
            let turns = [
                ["hybrid.large_write_bytes=0", "hybrid.large_write_bytes=2M"],
                ["hybrid.small_bytes=1M", "hybrid.small_bytes=4K"],
                ["hybrid.mode=direct", "hybrid.mode=buffered"],
                ["hybrid.large_read_bytes=16K", "hybrid.large_read_bytes=4M"],
                ["hybrid.contention=off", "hybrid.contention=on"],
                ["hybrid.mode=auto", "hybrid.mode=auto"],
                ["cache.max_bytes=4M", "cache.max_bytes=16M"],
                ["server.contended_conflicts=1", "server.contended_conflicts=16"],
                ["server.lock_granularity_bytes=4K", "server.lock_granularity_bytes=1"],
                ["server.lock_growth=off", "server.lock_growth=on"],
                ["server.contention=off", "server.contention=on"],
            ];
            let mut n = 0;
            while !over.load(SeqCst) {
                set(&mounts[n % 2], turns[n / 2 % turns.len()][n / 22 % 2]);
                n += 1;
            }
            assert!(n > 50, "{n} turns");
        });
        let writers: Vec<_> = (0..2)
            .map(|who| {
                let mounts = &mounts;
                s.spawn(move || {
                    let mine = File::options().read(true).write(true).open(mounts[who].join("f")).expect("open");
                    let mut at = vec![0; SLOTS];
                    let mut got = vec![0; RECORD];
                    for round in 1..400u64 {
                        let slot = (round * 31 % SLOTS as u64) as usize;
                        let offset = ((2 * slot + who) * RECORD) as u64;
                        mine.write_all_at(&pattern(round, RECORD), offset).expect("write");
                        at[slot] = round;
                        let look = (round * 17 % SLOTS as u64) as usize;
                        mine.read_exact_at(&mut got, ((2 * look + who) * RECORD) as u64).expect("read");
                        let expected = if at[look] == 0 { vec![0; RECORD] } else { pattern(at[look], RECORD) };
                        assert!(got == expected, "mount {who}, round {round}, slot {look}");
                    }
                    at
                })
            })
            .collect();
        let last = writers.into_iter().map(|w| w.join()).collect::<Vec<_>>();
        over.store(true, SeqCst);
        last.into_iter().map(|w| w.expect("a writer")).collect()
    });
    for m in &mounts {
        let bytes = fs::read(m.join("f")).expect("read");
        for (i, got) in bytes.chunks(RECORD).enumerate() {
            let round = last[i % 2][i / 2];
            let expected = if round == 0 { vec![0; RECORD] } else { pattern(round, RECORD) };
            assert!(got == expected, "record {i} on {}", m.display());
        }
    }
    first.stop();
    second.stop();
    server.stop();
    place.fsck();
}
