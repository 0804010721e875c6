//! The number of messages and locks of requests, by size and way, as exact counts.

use super::policy::{io, read, sent, write};
use super::sharing::{self, in_cluster, root};
use super::world::World;
use crate::OpenFile;
use crate::api::{Ctx, Fallocate, Hints, OpenFlags, Whence, WriteTo};
use crate::policy::decision::Reason;
use crate::telemetry::stats::{Count, FileEvent, Way};
use amphi_env::Buf;
use amphi_pagecache::Dirty;
use amphi_types::{ByteRange, Errno, Ino, Pattern, SetAttr};
use amphi_wire::XattrMode;
use std::sync::Arc;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

fn open(w: &mut World, ino: Ino) -> Arc<OpenFile> {
    let op = w.client.open(&Ctx::root(), ino, OpenFlags::READ_WRITE);
    w.run(op).expect("open")
}

fn set(w: &World, name: &str, value: &str) {
    w.client.mount.tunables.set(name, value).expect("a tunable");
}

/// The requests of a way by reason. Reasons without requests are left out.
fn counted(w: &World, way: Way) -> Vec<(Reason, u64)> {
    let all = Reason::ALL.iter().map(|reason| (*reason, io(w, way, *reason).0));
    all.filter(|(_, n)| *n > 0).collect()
}

/// Goal: 8 reads below the threshold count as 8 that did not switch, and 8 at the threshold as 8 that did, each of them
/// with one message. With switching turned off, no read counts as switched (sanity 119k for reads). Method: a file of
/// one object that nobody has read, with both kinds of read-ahead off.
#[test]
fn as_many_reads_switch_as_were_made() {
    let tunables = [("readahead.max_bytes", "0"), ("readahead.direct_bytes", "0"), ("hybrid.large_read_bytes", "1M")];
    let mut w = World::new(1, &tunables);
    let ino = w.server.plant("f", &vec![7; 24 * MIB], Pattern::Whole);
    let file = open(&mut w, ino);
    for i in 0..8 {
        assert_eq!(read(&mut w, &file, (i * MIB) as u64, MIB / 2), MIB / 2);
    }
    assert_eq!(counted(&w, Way::Read), [(Reason::BufferedDefault, 8)]);
    let before = sent(&w, "Read");
    for i in 8..16 {
        assert_eq!(read(&mut w, &file, (i * MIB) as u64, MIB), MIB);
    }
    assert_eq!(counted(&w, Way::Read), [(Reason::DirectLarge, 8), (Reason::BufferedDefault, 8)]);
    assert_eq!(io(&w, Way::Read, Reason::DirectLarge), (8, 8 << 20));
    assert_eq!((sent(&w, "Read") - before, sent(&w, "LockEnqueue")), (8, 1), "one message each, no lock");
    w.client.mount.stats.reset(0);
    set(&w, "hybrid.mode", "buffered");
    assert_eq!(read(&mut w, &file, 16 << 20, MIB), MIB);
    assert_eq!(counted(&w, Way::Read), [(Reason::BufferedUser, 1)], "switched off");
    drop(file);
    w.check_clean();
}

/// Goal: small buffered reads with read-ahead cost a small part of the messages of small direct reads, and none when
/// they are repeated (sanity 248a measures the time: four times as fast). Method: 4 MiB are read in pages, buffered and
/// direct, and messages and hits are counted.
#[test]
fn cached_small_reads_share_messages() {
    let mut w = World::new(1, &[]);
    let ino = w.server.plant("f", &vec![7; 4 * MIB], Pattern::Whole);
    let file = open(&mut w, ino);
    let pass = |w: &mut World| {
        let (messages, hits) = (sent(w, "Read"), io(w, Way::Read, Reason::CacheHit).0);
        for at in (0..4 * MIB).step_by(PAGE) {
            assert_eq!(read(w, &file, at as u64, PAGE), PAGE);
            w.steps(4);
        }
        w.settle();
        (sent(w, "Read") - messages, io(w, Way::Read, Reason::CacheHit).0 - hits)
    };
    let (ahead, hits) = pass(&mut w);
    assert!(ahead <= 1024 / 64 && hits >= 1000, "{ahead} messages, {hits} hits of 1024 reads");
    assert_eq!(pass(&mut w), (0, 1024), "all of it is cached");
    set(&w, "hybrid.mode", "direct");
    w.client.mount.cache.forget(&file.file, ByteRange::ALL, Dirty::Keep);
    assert_eq!(pass(&mut w), (1024, 0), "each read by itself");
    drop(file);
    w.check_clean();
}

/// Goal: a request of up to the largest payload is one message for each object, whatever its size: direct writes and
/// reads, write-back up to its bound, and fills up to theirs (sanity 231a). Method: sizes from 4 KiB to 64 MiB on a
/// file of one object, with the messages counted.
#[test]
fn a_request_is_one_message() {
    let tunables = [("readahead.max_bytes", "0"), ("readahead.direct_bytes", "0"), ("writeback.pipeline_bytes", "0")];
    let mut w = World::new(1, &tunables);
    let ino = w.server.plant("f", &vec![7; 64 * MIB], Pattern::Whole);
    let file = open(&mut w, ino);
    let direct = Hints { direct: true, ..Hints::default() };
    for len in [PAGE, 64 << 10, MIB, 4 * MIB, 64 * MIB] {
        let before = (sent(&w, "Write"), sent(&w, "Read"));
        let op = w.client.write(&Ctx::root(), &file, 0, Buf::zeroed(len), direct);
        assert_eq!(w.run(op), Ok(len));
        let op = w.client.read(&Ctx::root(), &file, 0, len, direct);
        assert_eq!(w.run(op).map(|data| data.len()), Ok(len));
        assert_eq!((sent(&w, "Write") - before.0, sent(&w, "Read") - before.1), (1, 1), "direct, {len} bytes");
    }
    set(&w, "hybrid.mode", "buffered");
    // The sizes are the largest one that write-back sends at once by default, and smaller ones.
    set(&w, "writeback.run_bytes", "64M");
    for len in [PAGE, 64 << 10, MIB, 4 * MIB] {
        let before = (sent(&w, "Write"), sent(&w, "WriteBatch"));
        write(&mut w, &file, 1, 0, len, false);
        let op = w.client.fsync(&Ctx::root(), &file, false);
        w.run(op).expect("fsync");
        assert_eq!(
            (sent(&w, "Write") - before.0, sent(&w, "WriteBatch") - before.1),
            (1, 0),
            "write-back, {len} bytes"
        );
    }
    for (at, len) in [(8 * MIB, PAGE), (9 * MIB, 64 << 10), (10 * MIB, MIB)] {
        let before = sent(&w, "Read");
        assert_eq!(read(&mut w, &file, at as u64, len), len);
        assert_eq!(sent(&w, "Read") - before, 1, "a fill, {len} bytes");
    }
    drop(file);
    w.check_clean();
}

/// Goal: a direct write or read at a known offset takes no lock. A direct append takes one, on the object that contains
/// the end, and keeps it for the next appends (sanity 398a). Method: there are two mounts, so that locks matter, and
/// one object that the other mount made. The requested locks are counted, and the final bytes of the file are compared.
#[test]
fn a_direct_append_takes_one_lock() {
    in_cluster(231, async |c| {
        let [a, b] = c.two().await;
        let made = sharing::create(&b, "f").await;
        let whole = b.setxattr(&root(), made.ino(), b"user.amphi.layout", b"whole", XattrMode::Set);
        whole.await.expect("layout");
        drop(made);
        let direct = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
        let past = sharing::open(&a, "f", direct).await;
        let end = sharing::open(&a, "f", OpenFlags { append: true, ..direct }).await;
        let asked = || a.mount.stats.of(Count::LockEnqueue).1;
        sharing::write(&a, &past, 0, &[1; 5000]).await;
        sharing::write(&a, &past, 9000, &[2; 1000]).await;
        assert_eq!(sharing::read(&a, &past, 4999, 2).await, [1, 0]);
        assert_eq!((asked(), a.mount.coherence.locks.held()), (0, 0), "the target locks by itself");
        sharing::write(&a, &end, 0, &[3; 3000]).await;
        assert_eq!((asked(), a.mount.coherence.locks.held()), (1, 1));
        for _ in 0..4 {
            sharing::write(&a, &end, 0, &[4; 500]).await;
        }
        assert_eq!(asked(), 1, "nobody has asked for it back");
        let seen = sharing::open(&b, "f", OpenFlags::READ).await;
        let expected = [vec![1; 5000], vec![0; 4000], vec![2; 1000], vec![3; 3000], vec![4; 2000]].concat();
        assert!(sharing::read(&b, &seen, 0, 20_000).await == expected);
    });
}

/// Goal: a program that looks for data and holes in turn causes one request to each object for many of them, and its
/// results follow every change of the file. Method: 400 runs of one block. All pairs of data and hole are requested and
/// counted. Then a write, a hole and a truncate follow, and after each of them all pairs must be right.
#[test]
fn data_and_holes_are_asked_for_once() {
    let mut w = World::new(1, &[]);
    w.server.runs_max = 1000;
    let file = w.create("f", OpenFlags::READ_WRITE);
    let (root, page) = (Ctx::root(), PAGE as u64);
    let mut data: Vec<u64> = (0..400).map(|i| 2 * i * page).collect();
    for at in &data {
        write(&mut w, &file, 0, *at, 100, false);
    }
    let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    let mut size = 1000 * page;
    let op = w.client.setattr(&root, file.ino(), set(size), Some(&file));
    w.run(op).expect("a hole behind");
    let look = |w: &mut World, at, whence| {
        let op = w.client.lseek(&Ctx::root(), &file, at, whence);
        w.run(op).ok()
    };
    let walk = |w: &mut World, data: &[u64], size: u64| {
        let (mut at, mut found) = (0, Vec::new());
        while let Some(next) = look(w, at, Whence::Data) {
            at = look(w, next, Whence::Hole).expect("a hole");
            assert_eq!(at, (next + page).min(size), "a block is data as a whole");
            found.push(next);
        }
        assert_eq!(found, data);
    };
    walk(&mut w, &data, size);
    let asked = sent(&w, "DataMap");
    assert!(asked <= 2, "{asked} messages for 800 looks");
    walk(&mut w, &data, size);
    assert_eq!(sent(&w, "DataMap"), asked, "nothing has changed");
    write(&mut w, &file, 0, 801 * page, 1, false);
    data.push(801 * page);
    walk(&mut w, &data, size);
    let op = w.client.fallocate(&root, &file, Fallocate::PunchHole, 10 * page, 5 * page);
    w.run(op).expect("punch");
    data.retain(|at| !(10 * page..15 * page).contains(at));
    walk(&mut w, &data, size);
    size = 300 * page + 50;
    let op = w.client.setattr(&root, file.ino(), set(size), Some(&file));
    w.run(op).expect("cut");
    data.retain(|at| *at < size);
    walk(&mut w, &data, size);
    assert!(sent(&w, "DataMap") <= asked + 6, "once behind each change");
    drop(file);
    w.check_clean();
}

/// Goal: a mount that appends to a file without other users requests its end once, and then sends nothing as long as it
/// keeps the locks. Appends and truncates of another mount in between are seen. Method: two mounts, of which one makes
/// buffered appends. Messages about the file are counted. Then both append and truncate in turn.
#[test]
fn appends_ask_for_the_end_once() {
    in_cluster(232, async |c| {
        let [a, b] = c.two().await;
        let flags = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
        let made = sharing::create(&a, "f").await;
        drop(made);
        let (one, other) = (sharing::open(&a, "f", flags).await, sharing::open(&b, "f", flags).await);
        one.set_io_mode(amphi_types::IoMode::Buffered);
        let mut expected = Vec::new();
        let mut append = async |client, file, byte| {
            sharing::write(client, file, 0, &[byte; 77]).await;
            expected.extend([byte; 77]);
        };
        append(&b, &other, 1).await;
        append(&a, &one, 2).await;
        let messages = || one.file.stats.count_of(FileEvent::Call);
        let before = messages();
        for byte in 3..100 {
            append(&a, &one, byte).await;
        }
        assert_eq!(messages(), before, "nobody was asked");
        let found =
            a.try_write(&root(), &one, 99 * 77, &[0; 1], Hints { to: WriteTo::OffsetAtEnd, ..Hints::default() });
        assert_eq!(found, Some(1), "the end is known");
        let missed =
            a.try_write(&root(), &one, 99 * 77, &[0; 1], Hints { to: WriteTo::OffsetAtEnd, ..Hints::default() });
        assert_eq!(missed, None, "it was there");
        let cut = SetAttr { size: Some(99 * 77), ..SetAttr::default() };
        b.setattr(&root(), other.ino(), cut, None).await.expect("cut");
        for byte in 100..120 {
            append(&b, &other, byte).await;
            append(&a, &one, byte).await;
            append(&a, &one, byte).await;
        }
        assert!(sharing::read(&b, &other, 0, 20_000).await == expected);
        assert!(sharing::read(&a, &one, 0, 20_000).await == expected);
    });
}

/// Goal: where data and holes are is what all mounts have made of the file. Method: one mount looks for data and holes.
/// In between, the other one writes into a hole, punches, extends and cuts.
#[test]
fn data_of_other_mounts_is_found() {
    in_cluster(233, async |c| {
        let [a, b] = c.two().await;
        let made = sharing::create(&a, "f").await;
        let page = PAGE as u64;
        for i in 0..20 {
            sharing::write(&a, &made, 2 * i * page, &[1; 10]).await;
        }
        let there = sharing::open(&b, "f", OpenFlags::READ_WRITE).await;
        let look = async |at, whence| a.lseek(&root(), &made, at, whence).await;
        for _ in 0..3 {
            assert_eq!(look(page, Whence::Data).await, Ok(2 * page));
            assert_eq!(look(2 * page, Whence::Hole).await, Ok(3 * page));
            assert_eq!(look(38 * page, Whence::Hole).await, Ok(38 * page + 10), "the end");
        }
        sharing::write(&b, &there, 3 * page, &[2; 10]).await;
        assert_eq!(look(2 * page, Whence::Hole).await, Ok(5 * page));
        b.fallocate(&root(), &there, Fallocate::PunchHole, 4 * page, page).await.expect("punch");
        assert_eq!(look(2 * page, Whence::Hole).await, Ok(4 * page));
        sharing::write(&b, &there, 50 * page, &[2; 10]).await;
        assert_eq!(look(39 * page, Whence::Data).await, Ok(50 * page));
        let cut = SetAttr { size: Some(10 * page), ..SetAttr::default() };
        b.setattr(&root(), there.ino(), cut, None).await.expect("cut");
        assert_eq!(look(9 * page, Whence::Data).await, Err(Errno::NxIo));
        assert_eq!(look(10 * page, Whence::Hole).await, Err(Errno::NxIo));
    });
}
