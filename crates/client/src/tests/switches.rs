//! The parts of direct I/O that have switches: what each does, and that it has no effect when it is off.

use super::locks::locked;
use super::policy::{io, read, write};
use super::sharing::{create, in_cluster, read as read_in, root, write as write_in};
use super::world::World;
use crate::api::{Ctx, Hints, OpenFlags};
use crate::policy::decision::Reason;
use crate::policy::throughput::Course;
use crate::telemetry::stats::{Count, Way};
use amphi_env::Buf;
use amphi_types::{Errno, Pattern};
use std::sync::atomic::Ordering::SeqCst;

const MIB: u64 = 1 << 20;

fn set(w: &World, name: &str, value: &str) {
    w.client.mount.tunables.set(name, value).expect("a tunable");
}

/// Records requests that used `way` and transferred `mib_s` MiB a second.
fn tell(w: &World, way: Way, course: Course, mib_s: u64) {
    for _ in 0..200 {
        let now_ns = w.clock.0.fetch_add(1_000_000, SeqCst) + 1_000_000;
        w.client.mount.policy.throughput.note(way, course, (mib_s << 20) / 1000, now_ns, true);
    }
}

/// Goal: large requests of files without locality are buffered if that was measured to be faster, for reads and writes.
/// They are direct again if it is not faster any more, if another rule requires it, if files are used again, or if
/// learning is off. Method: given rates and pages.
#[test]
fn large_requests_that_the_cache_carries_sooner() {
    let mut w = World::new(1, &[("readahead.max_bytes", "0")]);
    let ino = w.server.plant("f", &vec![7; 32 << 20], Pattern::Whole);
    let op = w.client.open(&Ctx::root(), ino, OpenFlags::READ_WRITE);
    let file = w.run(op).expect("open");
    for (way, len) in [(Way::Write, 2 * MIB), (Way::Read, 4 * MIB)] {
        tell(&w, way, Course::Cached, 2000);
        tell(&w, way, Course::Direct(len), 1000);
        let goes = |w: &mut World, reason: Reason, why: &str| {
            let before = io(w, way, reason).0;
            match way {
                Way::Write => write(w, &file, 1, 16 * MIB, len as usize, false),
                Way::Read => assert_eq!(read(w, &file, 16 * MIB, len as usize) as u64, len),
            }
            w.settle();
            w.client.mount.cache.forget(&file.file, amphi_types::ByteRange::ALL, amphi_pagecache::Dirty::Keep);
            assert_eq!(io(w, way, reason).0 - before, 1, "{way:?}: {why}");
        };
        let verdict = |lacking: bool| {
            let locality = &file.file.cached.locality;
            if lacking {
                locality.leave(4096, false);
            } else if locality.is_lacking() {
                locality.bring(512);
                locality.use_again(512);
            }
        };
        verdict(false);
        goes(&mut w, Reason::DirectLarge, "its pages are used again for all that is known");
        verdict(true);
        goes(&mut w, Reason::BufferedFaster, "no locality, and the cache is faster");
        set(&w, "hybrid.learn", "off");
        goes(&mut w, Reason::DirectLarge, "learning is off");
        set(&w, "hybrid.learn", "on");
        w.client.mount.policy.group_short.store(true, SeqCst);
        goes(&mut w, Reason::DirectLarge, "memory is short");
        w.client.mount.policy.group_short.store(false, SeqCst);
        goes(&mut w, Reason::BufferedFaster, "and is no more");
        tell(&w, way, Course::Direct(len), 4000);
        tell(&w, way, Course::Direct(len), 4000);
        goes(&mut w, Reason::DirectLarge, "direct is faster now");
        verdict(false);
    }
    drop(file);
    w.check_clean();
}

/// Goal: the throughput of large direct writes is learnt from them, for comparison. Method: enough of them, and the
/// gauge.
#[test]
fn large_writes_are_measured() {
    let mut w = World::new(1, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    for at in (0..80 * MIB).step_by(2 << 20) {
        write(&mut w, &file, 1, at, 2 << 20, false);
        w.clock.0.fetch_add(1_000_000, SeqCst);
    }
    w.settle();
    let known = w.client.mount.gauges().into_iter().any(|(name, _)| name == "learned_direct_write_2048k_mib_s");
    assert!(known && io(&w, Way::Write, Reason::DirectLarge).0 > 0);
    drop(file);
    w.check_clean();
}

/// Goal: with `hybrid.unaligned` off only whole blocks bypass the cache. Other requests are buffered and reported as
/// such, and with `O_DIRECT` they are refused as on Linux. The bytes are right. Method: aligned and unaligned reads and
/// writes, with the switch on and off.
#[test]
fn only_whole_blocks_pass_the_cache_if_told_so() {
    let mut w = World::new(1, &[("hybrid.mode", "direct")]);
    let ino = w.server.plant("f", &vec![7; 4 << 20], Pattern::Whole);
    let op = w.client.open(&Ctx::root(), ino, OpenFlags::READ_WRITE);
    let file = w.run(op).expect("open");
    let count = |w: &World, way| (io(w, way, Reason::DirectUser).0, io(w, way, Reason::BufferedUnaligned).0);
    for (switch, direct, buffered) in [("on", 3, 0), ("off", 4, 2)] {
        set(&w, "hybrid.unaligned", switch);
        for (at, len) in [(0, 8192), (8, 8192), (MIB, 8191)] {
            assert_eq!(read(&mut w, &file, at, len), len);
            write(&mut w, &file, 1, at, len, false);
            w.settle();
        }
        assert_eq!(count(&w, Way::Read), (direct, buffered), "{switch}");
        assert_eq!(count(&w, Way::Write), (direct, buffered), "{switch}");
    }
    let past = Hints { direct: true, ..Hints::default() };
    for (switch, at, len, works) in
        [("off", 8, 4096, false), ("off", 4096, 4095, false), ("off", 4096, 4096, true), ("on", 8, 4095, true)]
    {
        set(&w, "hybrid.unaligned", switch);
        let op = w.client.read(&Ctx::root(), &file, at, len, past);
        let got = w.run(op).map(|bytes| bytes.len());
        assert_eq!(got, if works { Ok(len) } else { Err(Errno::Inval) }, "{switch} {at} {len}");
        let op = w.client.write(&Ctx::root(), &file, at, Buf::zeroed(len), past);
        assert_eq!(w.run(op), if works { Ok(len) } else { Err(Errno::Inval) }, "{switch} {at} {len}");
    }
    drop(file);
    w.check_clean();
}

/// Goal: a direct request to one object is locked by its target, and no lock is requested. The other mount sees the
/// bytes. Method: two mounts make a direct write and a direct read, and the requested locks are counted.
#[test]
fn who_locks_for_direct_requests() {
    in_cluster(7, async |cluster| {
        let [a, b] = cluster.two().await;
        let file = create(&a, "f").await;
        let there = super::sharing::open(&b, "f", OpenFlags::READ_WRITE).await;
        write_in(&b, &there, 0, &[1; 8192]).await;
        // The request for bytes that are known to exist is sent only to the target.
        assert_eq!(a.getattr(&root(), file.ino()).await.map(|attr| attr.size), Ok(8192));
        let past = Hints { direct: true, ..Hints::default() };
        let before = locked(&a, Count::LockEnqueue);
        assert_eq!(a.write(&root(), &file, 0, Buf::copy_of(&[2; 4096]), past).await, Ok(4096));
        let got = a.read(&root(), &file, 4096, 4096, past).await.expect("read");
        assert_eq!(got.to_vec(), [1; 4096]);
        assert_eq!(locked(&a, Count::LockEnqueue), before);
        assert_eq!(read_in(&b, &there, 0, 4096).await, [2; 4096]);
    });
}

/// Goal: if the cache is full of dirty bytes, requests go direct, unless the cache was measured to be faster, waits
/// included. If a memory group is short, they go direct in any case. Method: a small cache with scattered dirty bytes,
/// and given rates.
#[test]
fn a_full_cache_may_be_worth_waiting_for() {
    for (cached, group, reason) in
        [(500, false, Reason::DirectMemory), (2000, false, Reason::BufferedFaster), (2000, true, Reason::DirectMemory)]
    {
        let mut w = World::new(1, &[("cache.max_bytes", "4M")]);
        let file = w.create("f", OpenFlags::READ_WRITE);
        let mount = w.client.mount.clone();
        let mut at = 0;
        while mount.cache.dirty_bytes() < (2 << 20) / 100 * 95 && at < 8 << 20 {
            write(&mut w, &file, 1, at, 16 << 10, false);
            at += 32 << 10;
        }
        tell(&w, Way::Write, Course::Cached, cached);
        tell(&w, Way::Write, Course::Direct(64 << 10), 1000);
        file.file.cached.locality.leave(4096, false);
        mount.policy.group_short.store(group, SeqCst);
        write(&mut w, &file, 1, 16 * MIB, 64 << 10, false);
        assert_eq!(io(&w, Way::Write, reason).0, 1, "{cached} {group}: {} dirty", mount.cache.dirty_bytes());
        mount.policy.group_short.store(false, SeqCst);
        w.settle();
        drop(file);
        w.check_clean();
    }
}
