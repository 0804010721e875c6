//! When each rule of the hybrid decision speaks, and when it stops to.

use super::policy::{io, read, sent, write};
use super::world::World;
use crate::OpenFile;
use crate::api::{Ctx, Fallocate, Hints, OpenFlags};
use crate::conn::pending::Interrupt;
use crate::policy::decision::Reason;
use crate::policy::throughput::Course;
use crate::telemetry::stats::{Count, Way};
use crate::telemetry::tunables::Tunable;
use amphi_env::Buf;
use amphi_pagecache::Dirty;
use amphi_types::{ByteRange, IoMode, Pattern, TargetId};
use amphi_wire::XattrMode;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};

const KIB64: usize = 64 << 10;

fn reads(w: &World, reason: Reason) -> u64 {
    io(w, Way::Read, reason).0
}

fn writes(w: &World, reason: Reason) -> u64 {
    io(w, Way::Write, reason).0
}

fn set(w: &World, name: &str, value: &str) {
    w.client.mount.tunables.set(name, value).expect("a tunable");
}

fn wait_ms(w: &World, ms: u64) {
    w.clock.0.fetch_add(ms * 1_000_000, SeqCst);
}

fn open(w: &mut World, ino: amphi_types::Ino) -> Arc<OpenFile> {
    let op = w.client.open(&Ctx::root(), ino, OpenFlags::READ_WRITE);
    w.run(op).expect("open")
}

/// Reads a range in requests of 64 KiB.
fn scan(w: &mut World, file: &Arc<OpenFile>, range: std::ops::Range<u64>) {
    for at in range.step_by(KIB64) {
        assert_eq!(read(w, file, at, KIB64), KIB64);
    }
}

/// Goal: a server's report of contention is used for its full time, whatever the kind of reply, and direct replies
/// renew it. Meanwhile the locality of the file does not change and no probe is used up. Method: a server that reports
/// it for a while, and time.
#[test]
fn contention_is_latched() {
    let mut w = World::new(1, &[("hybrid.contended_ms", "4000"), ("readahead.max_bytes", "0")]);
    let ino = w.server.plant("f", &vec![7; 8 << 20], Pattern::Whole);
    let file = open(&mut w, ino);
    write(&mut w, &file, 1, 0, KIB64, false);
    assert_eq!(writes(&w, Reason::BufferedDefault), 1);
    w.server.contended = true;
    read(&mut w, &file, 1 << 20, KIB64);
    assert_eq!(reads(&w, Reason::BufferedDefault), 1, "nobody had said so yet");
    for at in 0..5 {
        wait_ms(&w, 3000);
        write(&mut w, &file, 1, at * KIB64 as u64, KIB64, false);
        w.settle();
        assert_eq!(writes(&w, Reason::DirectContention), at + 1, "every reply says so again");
    }
    wait_ms(&w, 3000);
    read(&mut w, &file, 2 << 20, KIB64);
    assert_eq!(reads(&w, Reason::DirectContention), 1, "reads as well");
    w.server.contended = false;
    wait_ms(&w, 3990);
    write(&mut w, &file, 1, 0, KIB64, false);
    assert_eq!(writes(&w, Reason::DirectContention), 6);
    wait_ms(&w, 20);
    write(&mut w, &file, 1, 0, KIB64, false);
    assert_eq!((writes(&w, Reason::DirectContention), writes(&w, Reason::BufferedDefault)), (6, 2));
    // Small requests and large ones do not ask; the switch and a time of 0 turn it off.
    w.server.contended = true;
    write(&mut w, &file, 1, 4 << 20, 2 << 20, false);
    write(&mut w, &file, 1, 7 << 20, 4096, false);
    assert_eq!((writes(&w, Reason::DirectLarge), writes(&w, Reason::BufferedSmall)), (1, 1));
    set(&w, "hybrid.contention", "off");
    write(&mut w, &file, 1, 0, KIB64, false);
    assert_eq!(writes(&w, Reason::BufferedDefault), 3);
    drop(file);
    w.check_clean();
}

/// Goal: a report of contention in any reply about locks or data is used for its file, of a batch for each part.
/// Method: a server reports contention with only one kind of reply, and this kind is caused on a file of its own.
#[test]
fn contention_is_told_by_replies_of_every_kind() {
    let ctx = Ctx::root();
    let kinds = ["Make", "LockEnqueue", "Read", "Write", "Punch", "Allocate", "GroupLock", "WriteBatch", "ReadBatch"];
    for kind in kinds {
        let mut w = World::new(1, &[]);
        (w.server.contended, w.server.contended_only) = (true, Some(kind));
        let small = |i: usize| format!("s{i:04}");
        let planted: Vec<_> = (0..100).map(|i| w.server.plant(&small(i), &[7; 3000], Pattern::Whole)).collect();
        let ino = w.server.plant("f", &vec![7; 1 << 20], Pattern::Whole);
        let file = open(&mut w, ino);
        let mut held = Vec::new();
        let told = match kind {
            "Make" => {
                held.push(w.create("g", OpenFlags::READ_WRITE));
                held[0].ino()
            }
            "LockEnqueue" | "Read" => {
                read(&mut w, &file, 0, 4096);
                ino
            }
            "Write" => {
                write(&mut w, &file, 1, 0, 4096, false);
                let op = w.client.fsync(&ctx, &file, true);
                w.run(op).expect(kind);
                ino
            }
            "Punch" | "Allocate" => {
                let mode = if kind == "Punch" { Fallocate::PunchHole } else { Fallocate::KeepSize };
                let op = w.client.fallocate(&ctx, &file, mode, 0, 4096);
                w.run(op).expect(kind);
                ino
            }
            "GroupLock" => {
                let op = w.client.group_lock(&file, 7, true, Arc::new(Interrupt::new()));
                w.run(op).expect(kind);
                ino
            }
            "WriteBatch" => {
                for name in ["x", "y"] {
                    let file = w.create(name, OpenFlags::READ_WRITE);
                    write(&mut w, &file, 1, 0, 1000, false);
                    held.push(file);
                }
                let due: Vec<_> = held.iter().map(|open| (open.file.clone(), ByteRange::ALL)).collect();
                assert!(!crate::writeback::batch::start(&w.client.mount, due));
                w.settle();
                held[1].ino()
            }
            _ => {
                let op = w.client.readdir(&ctx, amphi_types::Ino::ROOT, 0, 1000, false);
                w.run(op).expect("readdir");
                for (i, &ino) in planted.iter().take(8).enumerate() {
                    let op = w.client.lookup(&ctx, amphi_types::Ino::ROOT, small(i).as_bytes());
                    w.run(op).expect("it is there");
                    let op = w.client.open(&ctx, ino, OpenFlags::READ);
                    held.push(w.run(op).expect("open"));
                    w.settle();
                }
                planted[7]
            }
        };
        assert!(w.server.log.iter().any(|name| name == kind), "{kind} was not caused: {:?}", w.server.log);
        let until = |ino| w.client.mount.files.get(ino).map_or(0, |file| file.locks.contended_until_ns.load(SeqCst));
        assert!(until(told) > 0, "{kind} said so");
        assert_eq!(until(ino) > 0, told == ino, "{kind}: of its files alone");
        drop((file, held));
        w.check_clean();
    }
}

/// Goal: memory matters only in the window: a cache full of dirty bytes, the mount's group, and the caller's group,
/// each with its switch. The bytes of all requests are right. Method: each kind of memory is made short in turn.
#[test]
fn memory_that_is_short() {
    let mut w = World::new(1, &[("cache.max_bytes", "4M")]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    let mount = w.client.mount.clone();
    // 95 % of the half of the cache that may be dirty.
    let mut at = 0;
    while mount.cache.dirty_bytes() < (2 << 20) / 100 * 95 && at < 8 << 20 {
        write(&mut w, &file, 1, at, 16 << 10, false);
        // The writes do not form one run, so write-back does not begin at once.
        at += 32 << 10;
    }
    write(&mut w, &file, 1, 16 << 20, KIB64, false);
    assert_eq!(writes(&w, Reason::DirectMemory), 1, "{} dirty", mount.cache.dirty_bytes());
    write(&mut w, &file, 1, 17 << 20, 16 << 10, false);
    set(&w, "hybrid.memory", "off");
    write(&mut w, &file, 1, 16 << 20, KIB64, false);
    assert_eq!((writes(&w, Reason::DirectMemory), writes(&w, Reason::BufferedDefault)), (1, 1));
    set(&w, "hybrid.memory", "on");
    let op = w.client.fsync(&Ctx::root(), &file, true);
    w.run(op).unwrap();
    mount.policy.group_short.store(true, SeqCst);
    write(&mut w, &file, 1, 16 << 20, KIB64, false);
    write(&mut w, &file, 1, 0, 4096, false);
    mount.policy.group_short.store(false, SeqCst);
    write(&mut w, &file, 1, 16 << 20, KIB64, false);
    assert_eq!((writes(&w, Reason::DirectMemory), writes(&w, Reason::BufferedDefault)), (2, 2));
    drop(file);
    w.check_clean();
}

/// Goal: requests of a program whose memory group is short go direct, and those of another program do not. No file is
/// read on the path of a request. Method: two callers, a group that fills, a sample as the I/O half takes it.
#[test]
fn callers_that_are_short_of_memory() {
    let (full, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let files = {
        let (full, asked) = (full.clone(), asked.clone());
        move |path: &str| {
            asked.fetch_add(1, SeqCst);
            match path {
                "/proc/41/cgroup" => Some("0::/job\n".to_string()),
                "/proc/42/cgroup" => Some("0::/\n".to_string()),
                "/sys/fs/cgroup/job/memory.max" => Some("1000\n".into()),
                "/sys/fs/cgroup/job/memory.current" => Some(if full.load(SeqCst) { "960\n" } else { "10\n" }.into()),
                _ => None,
            }
        }
    };
    let mut w = World::reading(1, &[], Arc::new(files));
    let file = w.create("f", OpenFlags::READ_WRITE);
    let mount = w.client.mount.clone();
    let write_as = |w: &mut World, pid: u32, at: u64| {
        let ctx = Ctx { pid, ..Ctx::root() };
        if w.client.try_write(&ctx, &file, at, &[5; KIB64], Hints::default()).is_none() {
            let op = w.client.write(&ctx, &file, at, Buf::zeroed(KIB64), Hints::default());
            assert_eq!(w.run(op), Ok(KIB64));
        }
    };
    let before = asked.load(SeqCst);
    let round = |w: &mut World| (40..43).for_each(|pid| write_as(w, pid, u64::from(pid) << 20));
    round(&mut w);
    assert_eq!((asked.load(SeqCst), writes(&w, Reason::BufferedDefault)), (before, 3));
    full.store(true, SeqCst);
    crate::io::look_at_memory(&mount);
    assert_eq!(mount.stats.of(Count::CallerLook), (1, 3));
    round(&mut w);
    assert_eq!((writes(&w, Reason::DirectMemory), writes(&w, Reason::BufferedDefault)), (1, 5));
    assert!(mount.gauges().contains(&("callers_short".to_string(), 1)));
    set(&w, "hybrid.caller_memory", "off");
    round(&mut w);
    assert_eq!(writes(&w, Reason::DirectMemory), 1, "switched off");
    set(&w, "hybrid.caller_memory", "on");
    full.store(false, SeqCst);
    crate::io::look_at_memory(&mount);
    round(&mut w);
    assert_eq!(writes(&w, Reason::DirectMemory), 1, "there is room again");
    drop(file);
    w.check_clean();
}

/// Goal: if memory is short only until the mount has returned buffers that it kept, no decision changes. A lasting
/// shortage changes decisions until it ends. Method: a group that is full for this many samples.
#[test]
fn own_memory_is_given_back_first() {
    let full_for = Arc::new(AtomicU64::new(0));
    let files = {
        let full_for = full_for.clone();
        move |path: &str| match path {
            "/proc/self/cgroup" => Some("0::/job\n".to_string()),
            "/sys/fs/cgroup/job/memory.max" => Some("1000\n".into()),
            "/sys/fs/cgroup/job/memory.current" => {
                let full = full_for.try_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok();
                Some(if full { "960\n" } else { "10\n" }.into())
            }
            _ => None,
        }
    };
    let w = World::reading(1, &[("hybrid.caller_memory", "off")], Arc::new(files));
    let mount = w.client.mount.clone();
    for (looks, is_short) in [(0, false), (1, false), (2, true), (1, false), (0, false)] {
        full_for.store(looks, SeqCst);
        crate::io::look_at_memory(&mount);
        assert_eq!(mount.gauges().contains(&("memory_short".to_string(), 1)), is_short, "{looks}");
    }
}

/// Goal: requests of a file that has much in the cache go direct until it has less, and requests of other files do not.
/// Method: fill the cache up to the bound, then write the same bytes direct, which removes them from the cache.
#[test]
fn over_caching_is_per_file() {
    let mut w = World::new(1, &[("hybrid.overcache_bytes", "1M")]);
    let (file, other) = (w.create("f", OpenFlags::READ_WRITE), w.create("g", OpenFlags::READ_WRITE));
    // 15 units are below 95 % of 1 MiB, 16 are above.
    for at in 0..16u64 {
        write(&mut w, &file, 1, at * KIB64 as u64, KIB64, false);
    }
    assert_eq!((writes(&w, Reason::BufferedDefault), writes(&w, Reason::DirectOvercache)), (16, 0));
    write(&mut w, &file, 1, 0, KIB64, false);
    assert_eq!(writes(&w, Reason::DirectOvercache), 1);
    assert_eq!(file.file.cached.bytes.load(SeqCst), 15 * KIB64 as u64, "it took its bytes out of the cache");
    write(&mut w, &other, 1, 0, KIB64, false);
    write(&mut w, &file, 1, 0, KIB64, false);
    assert_eq!((writes(&w, Reason::BufferedDefault), writes(&w, Reason::DirectOvercache)), (18, 1));
    set(&w, "hybrid.overcache", "off");
    write(&mut w, &file, 1, 4 << 20, KIB64, false);
    assert_eq!(writes(&w, Reason::DirectOvercache), 1);
    drop((file, other));
    w.check_clean();
}

/// A mount that is small enough for quick verdicts: a cache of 4 MiB, a window of 2 MiB, one probe in 8.
const QUICK: [(&str, &str); 4] = [
    ("cache.max_bytes", "4M"),
    ("hybrid.locality_pages", "512"),
    ("hybrid.locality_probe", "8"),
    ("readahead.max_bytes", "0"),
];

/// Goal: a stream over more than the cache shows no locality, with one probe in 8 requests. If reuse resumes it is
/// noticed, although nothing is evicted by then. Contention in between uses up no probe. Method: a stream, then a small
/// part over and over.
#[test]
fn reuse_that_comes_back_is_noticed() {
    let mut w = World::new(1, &QUICK);
    let ino = w.server.plant("f", &vec![7; 32 << 20], Pattern::Whole);
    let file = open(&mut w, ino);
    scan(&mut w, &file, 0..16 << 20);
    let (direct, buffered) = (reads(&w, Reason::DirectLocality), reads(&w, Reason::BufferedDefault));
    assert!(direct > 100, "{direct} direct, {buffered} buffered");
    scan(&mut w, &file, 16 << 20..24 << 20);
    let more = (reads(&w, Reason::DirectLocality) - direct, reads(&w, Reason::BufferedDefault) - buffered);
    assert_eq!(more, (112, 16), "one in eight");
    w.server.contended = true;
    scan(&mut w, &file, 24 << 20..25 << 20);
    assert_eq!(reads(&w, Reason::DirectContention), 15, "all but the first, which brought the news");
    w.server.contended = false;
    wait_ms(&w, 60_000);
    let before = reads(&w, Reason::DirectLocality);
    let mut rounds = 0;
    while file.file.cached.locality.is_lacking() {
        scan(&mut w, &file, 30 << 20..31 << 20);
        rounds += 1;
        assert!(rounds < 20, "reuse is never noticed");
    }
    assert!(reads(&w, Reason::DirectLocality) - before < 200, "{rounds} rounds");
    scan(&mut w, &file, 30 << 20..31 << 20);
    let (hits, direct) = (reads(&w, Reason::CacheHit), reads(&w, Reason::DirectLocality));
    scan(&mut w, &file, 30 << 20..31 << 20);
    assert_eq!((reads(&w, Reason::CacheHit) - hits, reads(&w, Reason::DirectLocality) - direct), (16, 0));
    drop(file);
    w.check_clean();
}

/// Goal: files whose bytes are used again stay in the cache, however many of their bytes are evicted. These files are
/// read twice, or written and then read. The switch turns the rule off. Method: streams over six times the cache.
#[test]
fn working_sets_keep_their_cache() {
    let mut w = World::new(1, &QUICK);
    let ino = w.server.plant("f", &vec![7; 24 << 20], Pattern::Whole);
    let file = open(&mut w, ino);
    for at in (0..24u64 << 20).step_by(512 << 10) {
        scan(&mut w, &file, at..at + (512 << 10));
        scan(&mut w, &file, at..at + (512 << 10));
    }
    let (direct, buffered) = (reads(&w, Reason::DirectLocality), reads(&w, Reason::BufferedDefault));
    assert!(direct == 0 && (384..400).contains(&buffered), "{direct} direct, {buffered} buffered");
    let made = w.create("g", OpenFlags::READ_WRITE);
    for at in (0..24u64 << 20).step_by(KIB64) {
        write(&mut w, &made, 1, at, KIB64, false);
        w.settle();
        assert_eq!(read(&mut w, &made, at, KIB64), KIB64);
    }
    assert_eq!(writes(&w, Reason::DirectLocality), 0);
    set(&w, "hybrid.locality", "off");
    let ino = w.server.plant("h", &vec![7; 24 << 20], Pattern::Whole);
    let other = open(&mut w, ino);
    scan(&mut w, &other, 0..24 << 20);
    assert_eq!(reads(&w, Reason::DirectLocality), 0);
    drop((file, made, other));
    w.check_clean();
}

/// Goal: files with a target on rotating storage have thresholds of their own, and others do not. The switch and later
/// reports of a server take effect. Method: one of four targets rotates, with files on one target and on all.
#[test]
fn rotating_storage_raises_the_threshold() {
    let mut w = World::new(1, &[]);
    let all: Vec<TargetId> = (0..4).map(TargetId).collect();
    let mount = w.client.mount.clone();
    let whole = w.server.plant("whole", &vec![7; 16 << 20], Pattern::Whole);
    let wide = w.server.plant("wide", &vec![7; 16 << 20], Pattern::Growing);
    let (whole, wide) = (open(&mut w, whole), open(&mut w, wide));
    let elsewhere = all[(usize::from(whole.ino().target().0) + 1) % 4];
    mount.policy.rotational.learn(&all, &[elsewhere]);
    let four = |w: &mut World, file: &Arc<OpenFile>| write(w, file, 1, 0, 4 << 20, false);
    four(&mut w, &whole);
    assert_eq!(writes(&w, Reason::DirectLarge), 1, "its target does not rotate");
    four(&mut w, &wide);
    assert_eq!((writes(&w, Reason::DirectLarge), writes(&w, Reason::BufferedDefault)), (1, 1));
    write(&mut w, &wide, 1, 0, 8 << 20, false);
    assert_eq!(writes(&w, Reason::DirectLarge), 2, "large for a disk as well");
    let read_some = |w: &mut World| {
        let op = w.client.read(&Ctx::root(), &wide, 0, 8 << 20, Hints::default());
        assert_eq!(w.run(op).map(|d| d.len()), Ok(8 << 20));
    };
    read_some(&mut w);
    assert_eq!((reads(&w, Reason::DirectLarge), reads(&w, Reason::BufferedDefault)), (0, 1));
    mount.policy.rotational.learn(&[elsewhere], &[]);
    four(&mut w, &wide);
    assert_eq!((writes(&w, Reason::DirectLarge), mount.policy.rotational.len()), (3, 0));
    drop((whole, wide));
    w.check_clean();
}

/// Goal: the mode in the opener's environment applies to that open file alone, below the file's own mode and above the
/// mount's. Method: three opens of one file by different processes, while the modes of file and mount are changed.
#[test]
fn processes_ask_for_a_mode() {
    let mut w = World::new(1, &[]);
    let plain = w.create("f", OpenFlags::READ_WRITE);
    let open_as = |w: &mut World, io_mode| {
        let op = w.client.open(&Ctx { io_mode, ..Ctx::root() }, plain.ino(), OpenFlags::READ_WRITE);
        w.run(op).expect("open")
    };
    let direct = open_as(&mut w, Some(IoMode::Direct));
    let auto = open_as(&mut w, Some(IoMode::Auto));
    let reason = |w: &mut World, file: &Arc<OpenFile>| {
        let before: Vec<u64> = Reason::ALL.iter().map(|r| writes(w, *r)).collect();
        write(w, file, 1, 0, 100, false);
        *Reason::ALL.iter().zip(before).find(|(r, n)| writes(w, **r) > *n).expect("counted").0
    };
    let all = |w: &mut World| [&plain, &direct, &auto].map(|file| reason(w, file));
    use Reason::{BufferedSmall, BufferedUser, DirectUser};
    assert_eq!(all(&mut w), [BufferedSmall, DirectUser, BufferedSmall]);
    set(&w, "hybrid.mode", "buffered");
    assert_eq!(all(&mut w), [BufferedUser, DirectUser, BufferedSmall], "auto of a process means it");
    set(&w, "hybrid.mode", "direct");
    let op = w.client.setxattr(&Ctx::root(), plain.ino(), b"user.amphi.mode", b"buffered", XattrMode::Set);
    w.run(op).unwrap();
    assert_eq!(all(&mut w), [BufferedUser; 3], "the file's mode counts more");
    let op = w.client.setxattr(&Ctx::root(), plain.ino(), b"user.amphi.mode", b"auto", XattrMode::Set);
    w.run(op).unwrap();
    assert_eq!(all(&mut w), [DirectUser, DirectUser, BufferedSmall]);
    drop((plain, direct, auto));
    w.check_clean();
}

/// Goal: switching between buffered and direct costs no additional messages: a direct request of 8 bytes is one
/// message, and a cached read none. 8 requests below the threshold count as 8 that did not switch, and 8 at the
/// threshold as 8 that did (sanity 119j, 119k, 127g). Method: thresholds set while the file is open, messages and
/// counters.
#[test]
fn switching_costs_one_message() {
    let mut w = World::new(1, &[("hybrid.small_bytes", "0"), ("readahead.max_bytes", "0")]);
    let ino = w.server.plant("f", &vec![7; 4 << 20], Pattern::Whole);
    let file = open(&mut w, ino);
    let messages = |w: &World| sent(w, "Write") + sent(w, "Read") + sent(w, "LockEnqueue");
    set(&w, "hybrid.large_*_bytes", "8");
    let before = messages(&w);
    write(&mut w, &file, 1, 0, 8, false);
    w.settle();
    assert_eq!((messages(&w) - before, writes(&w, Reason::DirectLarge)), (1, 1));
    assert_eq!(read(&mut w, &file, 0, 8), 8);
    assert_eq!((messages(&w) - before, reads(&w, Reason::DirectLarge)), (2, 1));
    set(&w, "hybrid.large_*_bytes", "1M");
    read(&mut w, &file, 0, KIB64);
    set(&w, "hybrid.large_*_bytes", "8");
    let before = messages(&w);
    assert_eq!(read(&mut w, &file, 0, 8), 8);
    assert_eq!((messages(&w) - before, io(&w, Way::Read, Reason::CacheHit)), (0, (1, 8)));
    w.client.mount.stats.reset(0);
    set(&w, "hybrid.large_*_bytes", "1M");
    for (len, at) in (0..16).map(|i| if i < 8 { (512 << 10, i << 19) } else { (1 << 20, i << 20) }) {
        write(&mut w, &file, 1, at, len, false);
    }
    assert_eq!(io(&w, Way::Write, Reason::BufferedDefault), (8, 4 << 20));
    assert_eq!(io(&w, Way::Write, Reason::DirectLarge), (8, 8 << 20));
    w.client.mount.stats.reset(0);
    set(&w, "hybrid.mode", "buffered");
    write(&mut w, &file, 1, 0, 1 << 20, false);
    let counted = Reason::ALL.iter().filter(|r| writes(&w, **r) > 0).count();
    assert_eq!((counted, writes(&w, Reason::BufferedUser)), (1, 1), "switched off");
    drop(file);
    w.check_clean();
}

/// Goal: a direct request removes the file's bytes from the cache and takes no lock. Dirty data in its range reaches
/// the server before it (sanity 277, 398a). Method: a dirty range, a direct write and a direct read over part of it.
#[test]
fn direct_requests_leave_nothing_cached() {
    let mut w = World::new(1, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    for at in 0..4u64 {
        write(&mut w, &file, 1, at * KIB64 as u64, KIB64, false);
    }
    let locks = sent(&w, "LockEnqueue");
    let hints = Hints { direct: true, ..Hints::default() };
    let op = w.client.write(&Ctx::root(), &file, 100, Buf::zeroed(KIB64), hints);
    assert_eq!(w.run(op), Ok(KIB64));
    let cached = |w: &World, at| w.client.mount.cache.gaps(&file.file, amphi_types::ByteRange::at(at, 1)).is_empty();
    assert!(cached(&w, 99) && !cached(&w, 100) && !cached(&w, 99 + KIB64 as u64) && cached(&w, 100 + KIB64 as u64));
    let op = w.client.read(&Ctx::root(), &file, 0, 4 * KIB64, hints);
    let mut expected = vec![1; 4 * KIB64];
    expected[100..100 + KIB64].fill(0);
    assert!(w.run(op).expect("read").to_vec() == expected);
    assert_eq!(file.file.cached.bytes.load(SeqCst), 0);
    assert_eq!(sent(&w, "LockEnqueue"), locks);
    assert_eq!((w.client.mount.cache.dirty_bytes(), w.client.mount.tunables.get(Tunable::Mode)), (0, 0));
    drop(file);
    w.check_clean();
}

/// Goal: all pieces of a direct request are on their way at once, in either direction (Lustre's sanity 398g). Method: a
/// request over four objects. The test counts the messages that were sent before the first answer.
#[test]
fn direct_pieces_are_sent_at_once() {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Waker};
    let mut w = World::new(1, &[("writeback.pipeline_bytes", "0")]);
    let ino = w.server.plant("f", &vec![7; 8 << 20], Pattern::Striped);
    let file = open(&mut w, ino);
    // The owner is informed once that the file has bytes on other targets.
    write(&mut w, &file, 1, 0, 4 << 20, false);
    w.settle();
    let idle = w.waiting_calls();
    let mut cx = Context::from_waker(Waker::noop());
    let mut op = w.client.write(&Ctx::root(), &file, 0, Buf::zeroed(4 << 20), Hints::default());
    assert!(Pin::new(&mut op).poll(&mut cx).is_pending());
    assert_eq!(w.waiting_calls() - idle, 4);
    assert_eq!(w.run(op), Ok(4 << 20));
    w.settle();
    let idle = w.waiting_calls();
    let hints = Hints { direct: true, ..Hints::default() };
    let mut op = w.client.read(&Ctx::root(), &file, 0, 4 << 20, hints);
    assert!(Pin::new(&mut op).poll(&mut cx).is_pending());
    assert_eq!(w.waiting_calls() - idle, 4);
    assert_eq!(w.run(op).map(|d| d.len()), Ok(4 << 20));
    drop(file);
    w.check_clean();
}

/// Makes the mount measure `mib_s` for reads that go this way.
fn tell(w: &World, course: Course, mib_s: u64) {
    for _ in 0..200 {
        wait_ms(w, 1);
        let now = w.client.mount.clock.now_ns();
        w.client.mount.policy.throughput.note(Way::Read, course, (mib_s << 20) / 1000, now, true);
    }
}

/// Goal: if direct requests were measured to be faster by more than the reuse saves, a file goes direct although a
/// quarter of its pages is used again. It does not if they are slower, if nothing is measured, or if learning is off.
/// Method: given rates and pages.
#[test]
fn reuse_has_to_pay() {
    for (cached, direct, learn, way) in [
        (700, 1000, "on", Reason::DirectLocality),
        (800, 1000, "on", Reason::BufferedDefault),
        (700, 0, "on", Reason::BufferedDefault),
        (700, 1000, "off", Reason::BufferedDefault),
    ] {
        let mut w = World::new(1, &[("readahead.max_bytes", "0"), ("hybrid.learn", learn)]);
        let ino = w.server.plant("f", &vec![7; 1 << 20], Pattern::Whole);
        let file = open(&mut w, ino);
        tell(&w, Course::Cached, cached);
        tell(&w, Course::Direct(KIB64 as u64), direct);
        file.file.cached.locality.leave(3 * 1024, false);
        file.file.cached.locality.leave(1024, true);
        scan(&mut w, &file, 0..KIB64 as u64);
        assert_eq!(reads(&w, way), 1, "{cached} {direct} {learn}");
        drop(file);
        w.check_clean();
    }
}

/// Goal: without locality the way with the higher measured throughput is used, and reported as such. Each rule has its
/// own switch. A new file begins with the mount's average over all files, unless that is switched off. Method: rates
/// that the test sets after a stream.
#[test]
fn what_was_measured_decides_without_locality() {
    let mut w = World::new(1, &QUICK);
    let ino = w.server.plant("f", &vec![7; 32 << 20], Pattern::Whole);
    let file = open(&mut w, ino);
    // Evictions are counted without a request.
    set(&w, "hybrid.locality", "off");
    scan(&mut w, &file, 0..24 << 20);
    set(&w, "hybrid.locality", "on");
    let part = |w: &mut World| {
        let before = (reads(w, Reason::DirectLocality), reads(w, Reason::BufferedFaster));
        scan(w, &file, 24 << 20..25 << 20);
        w.client.mount.cache.forget(&file.file, ByteRange::ALL, Dirty::Keep);
        (reads(w, Reason::DirectLocality) - before.0, reads(w, Reason::BufferedFaster) - before.1)
    };
    assert_eq!(part(&mut w), (14, 0), "nothing is measured");
    tell(&w, Course::Direct(KIB64 as u64), 500);
    tell(&w, Course::Cached, 1000);
    let (direct, faster) = part(&mut w);
    assert_eq!((direct, faster > 10), (0, true), "{direct} {faster}");
    assert!(w.client.mount.gauges().contains(&("learned_cached_read_mib_s".into(), 1000)));
    set(&w, "hybrid.learn", "off");
    assert_eq!(part(&mut w).1, 0);
    set(&w, "hybrid.learn", "on");
    tell(&w, Course::Direct(KIB64 as u64), 2000);
    assert_eq!(part(&mut w).1, 0, "direct is faster now");
    drop(file);
    let ino = w.server.plant("new", &vec![7; 1 << 20], Pattern::Whole);
    let before = reads(&w, Reason::DirectLocality);
    let new = open(&mut w, ino);
    scan(&mut w, &new, 0..KIB64 as u64);
    assert_eq!(reads(&w, Reason::DirectLocality) - before, 1, "a new file begins with the verdict on the mount");
    drop(new);
    w.check_clean();
}

/// Goal: the throughput of write-back is learnt while a program waits for many bytes, even if no writer waits for
/// space. It is not learnt from data that is written back without a waiting program, or from a few bytes. Method: a
/// large file and small ones, in a cache with space for all of them, synced or not.
#[test]
fn a_program_that_waits_shows_what_write_back_carries() {
    for (each, count, sync, learns) in
        [(64 << 20, 1, true, true), (64 << 20, 1, false, false), (1 << 20, 64, true, false)]
    {
        let mut w = World::new(1, &[("cache.max_bytes", "4G")]);
        let file = w.create("f", OpenFlags::READ_WRITE);
        for part in 0..count {
            for at in (part * each..(part + 1) * each).step_by(1 << 20) {
                write(&mut w, &file, 1, at, 1 << 20, false);
            }
            if sync {
                let op = w.client.fsync(&Ctx::root(), &file, false);
                w.run(op).expect("fsync");
            } else {
                w.settle();
            }
        }
        let known = w.client.mount.gauges().iter().any(|(name, _)| name == "learned_cached_write_mib_s");
        assert_eq!(known, learns, "{count} of {each} bytes, {sync}");
        assert_eq!(w.client.mount.writeback.drains.load(SeqCst), 0);
        drop(file);
        w.check_clean();
    }
}
