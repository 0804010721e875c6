//! Large writes past the cache that return when they are on their way.

use super::policy::sent;
use super::sharing::{in_cluster, lookup, open, read, root};
use super::world::World;
use crate::api::{Ctx, Hints, OpenFlags};
use crate::policy::decision::Reason;
use crate::telemetry::stats::{Count, Way};
use crate::{Client, OpenFile};
use amphi_env::{Buf, Env};
use amphi_types::{ByteRange, Errno, Ino, IoMode, SetAttr, TargetId, TimeSet, Timespec};
use amphi_wire::XattrMode;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn filled(len: u64, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(len as usize);
    buf.fill(byte);
    buf
}

fn poll<T>(op: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    Pin::new(op).poll(&mut Context::from_waker(Waker::noop()))
}

/// A write of 2 MiB of `byte` at `at`, as far as it gets without an answer.
fn begin(w: &World, file: &Arc<OpenFile>, at: u64, byte: u8, hints: Hints) -> (crate::Pending<usize>, bool) {
    let mut op = w.client.write(&Ctx::root(), file, at, filled(2 * MIB, byte), hints);
    let done = match poll(&mut op) {
        Poll::Ready(written) => {
            assert_eq!(written, Ok(2 << 20));
            true
        }
        Poll::Pending => false,
    };
    (op, done)
}

/// A file of which the owner knows that it has bytes elsewhere, so that no question is sent first.
fn spread(w: &mut World, flags: OpenFlags) -> Arc<OpenFile> {
    let file = w.create("f", flags);
    let op = w.client.write(&Ctx::root(), &file, 0, filled(8 * MIB, b'0'), Hints::default());
    assert_eq!(w.run(op), Ok(8 << 20));
    w.settle();
    file
}

/// A new file `f` over several objects.
async fn striped(client: &Client) -> Arc<OpenFile> {
    let made = client.create(&root(), Ino::ROOT, b"f", 0o644, OpenFlags::READ_WRITE).await.unwrap();
    let layout = b"striped,size=64K,count=3";
    client.setxattr(&root(), made.attr.ino, b"user.amphi.layout", layout, XattrMode::Set).await.unwrap();
    made.file
}

async fn set(client: &Client, what: &str) {
    client.setxattr(&root(), Ino::ROOT, b"user.amphi.set", what.as_bytes(), XattrMode::Set).await.unwrap();
}

/// Goal: large writes return before they are answered, as many as the bound permits. From then on their bytes, size and
/// time are seen (Promises S1, S3), and `fsync` waits for them. Method: the server gives no answer until all requests
/// were sent.
#[test]
fn a_large_write_returns_early() {
    let mut w = World::new(1, &[("writeback.pipeline_bytes", "4M")]);
    let file = spread(&mut w, OpenFlags::READ_WRITE);
    let requests = sent(&w, "Write");
    let op = w.client.getattr(&Ctx::root(), file.ino());
    let before = w.run(op).unwrap();
    assert!(begin(&w, &file, 8 * MIB, b'a', Hints::default()).1, "nothing is under way");
    assert!(begin(&w, &file, 10 * MIB, b'b', Hints::default()).1, "the bound is reached");
    let (third, done) = begin(&w, &file, 12 * MIB, b'c', Hints::default());
    assert!(!done, "beyond the bound");
    assert_eq!((file.size(), sent(&w, "Write")), (12 * MIB, requests), "known before anything was answered");
    let mount = w.client.mount.clone();
    assert!(file.file.overlay(before, true).mtime > before.mtime);
    assert_eq!(mount.coherence.sharing.begun(), 3, "no other mount is let in until they have landed");
    let mut read = w.client.read(&Ctx::root(), &file, 9 * MIB, 4096, Hints::default());
    assert!(poll(&mut read).is_pending(), "it waits for the bytes");
    assert_eq!(w.run(read).unwrap().to_vec(), [b'a'; 4096]);
    assert_eq!(w.run(third), Ok(2 << 20));
    let fsync = w.client.fsync(&Ctx::root(), &file, false);
    assert_eq!(w.run(fsync), Ok(()));
    let bytes = w.server.contents(file.ino());
    assert_eq!(bytes.len() as u64, 14 * MIB, "fsync has waited");
    for (at, byte) in [(8, b'a'), (10, b'b'), (12, b'c')] {
        assert!(bytes[at << 20..(at + 2) << 20].iter().all(|b| *b == byte));
    }
    assert_eq!(mount.stats.of(Count::Pipelined), (3, 6 * MIB), "the first one of all had not heard of the targets");
    assert_eq!(mount.coherence.sharing.begun(), 0);
    drop(file);
    w.check_clean();
}

/// Goal: a large write that is to be stable when it returns waits until it is, however its file was opened (Promise
/// S10). Method: one write with the flag of `RWF_DSYNC`, and one without it at the same time.
#[test]
fn a_stable_write_waits() {
    let mut w = World::new(2, &[]);
    let file = spread(&mut w, OpenFlags::READ_WRITE);
    assert!(begin(&w, &file, 8 * MIB, b'a', Hints::default()).1);
    let (stable, done) = begin(&w, &file, 10 * MIB, b'b', Hints { stable: true, ..Hints::default() });
    assert!(!done, "it returns when it is stable");
    let syncs = sent(&w, "Sync");
    assert_eq!(w.run(stable), Ok(2 << 20));
    assert!(sent(&w, "Sync") > syncs && w.server.contents(file.ino()).len() as u64 == 12 * MIB);
    drop(file);
    w.check_clean();
}

/// Goal: a caller that waits for written bytes, dirty or under way, does not wait for bytes that are written meanwhile.
/// After its return all earlier bytes are there (Promise S10). Method: a buffered and a direct stream run without end,
/// while `fsync`, `sync`, a close and a change of times of the same file are called.
#[test]
fn a_stream_keeps_nobody_waiting() {
    for what in 0..4u64 {
        for past_cache in [false, true] {
            let mut w = World::new(7 + what, &[("writeback.pipeline_bytes", "64M")]);
            let root = Ctx::root();
            let file = spread(&mut w, OpenFlags::READ_WRITE);
            let open = w.client.open(&root, file.ino(), OpenFlags::READ_WRITE);
            let other = w.run(open).unwrap();
            let mount = w.client.mount.clone();
            file.set_io_mode(IoMode::Buffered);
            let put = |w: &mut World, at: u64, byte: u8| {
                let done = w.client.try_write(&root, &file, at, &[byte; 4096], Hints::default());
                assert_eq!(done, Some(4096));
                crate::writeback::flush::start(&w.client.mount, &file.file, amphi_types::ByteRange::ALL);
            };
            let op = w.client.write(&root, &file, 0, filled(4096, b'1'), Hints::default());
            w.run(op).unwrap();
            crate::writeback::flush::start(&mount, &file.file, amphi_types::ByteRange::ALL);
            let again = w.client.try_write(&root, &file, 0, &[b'2'; 4096], Hints::default());
            assert_eq!(again, Some(4096), "it is under way, and dirty again");
            let mut op = match what {
                0 => w.client.fsync(&root, &other, false),
                1 => w.client.sync_all(&root),
                2 => w.client.flush(&root, &other),
                _ => {
                    let mtime = Some(TimeSet::At(Timespec { sec: 5, nsec: 0 }));
                    let set = SetAttr { mtime, ..SetAttr::default() };
                    let pending = w.client.setattr(&root, file.ino(), set, None);
                    crate::Pending::start(&mount, async move { pending.await.map(drop) })
                }
            };
            let (mut at, mut steps) = (16 * MIB, 0);
            while poll(&mut op).is_pending() {
                // At any time some of these bytes are under way.
                while past_cache && mount.writeback.piped_bytes.load(SeqCst) < 4 * MIB {
                    file.set_io_mode(IoMode::Direct);
                    assert!(begin(&w, &file, at, b's', Hints::default()).1);
                    at += 2 * MIB;
                }
                while !past_cache && mount.writeback.flight_parts.load(SeqCst) < 3 {
                    put(&mut w, at, b's');
                    at += 8192;
                }
                w.step();
                steps += 1;
                assert!(steps < 2000, "{what} {past_cache}: the stream goes on, and so does the wait");
            }
            if what < 2 {
                assert_eq!(w.server.contents(file.ino())[..4096], [b'2'; 4096], "{what} {past_cache}");
            }
            drop((file, other));
            w.check_clean();
        }
    }
}

/// Goal: where a target may be full, a write waits for its answer (Promise S15), from the first one on. Method: a
/// server that reports this for a while, and a file on targets without a report yet.
#[test]
fn a_target_that_may_be_full_is_waited_for() {
    let mut w = World::new(4, &[]);
    w.server.is_tight = true;
    let file = spread(&mut w, OpenFlags::READ_WRITE);
    for tight in [true, false, true] {
        w.server.is_tight = tight;
        let (op, done) = begin(&w, &file, 0, b'a', Hints::default());
        assert!(!done, "what was said last counts");
        assert_eq!(w.run(op), Ok(2 << 20));
        let (op, done) = begin(&w, &file, 0, b'b', Hints::default());
        assert_eq!(done, !tight);
        if !done {
            assert_eq!(w.run(op), Ok(2 << 20));
        }
        w.settle();
        w.server.is_tight = true;
        let op =
            w.client.write(&Ctx::root(), &file, 0, filled(8 * MIB, b'0'), Hints { direct: true, ..Hints::default() });
        assert_eq!(w.run(op), Ok(8 << 20));
    }
    drop(file);
    w.check_clean();
}

/// Blocks that a write of 2 MiB at `at` touches on each target.
fn blocks(file: &OpenFile, at: u64) -> BTreeMap<TargetId, u64> {
    let layout = file.file.layout();
    let mut blocks = BTreeMap::new();
    for (object, piece) in layout.pieces(file.ino(), ByteRange::at(at, 2 * MIB)) {
        let touched = piece.end.div_ceil(4096) - piece.start / 4096;
        *blocks.entry(layout.target(file.ino(), object.stripe)).or_default() += touched;
    }
    blocks
}

/// Goal: a write returns early only if its targets have granted space for all of its blocks in addition to the writes
/// under way, because a later error could not be reported (Promise S15). Method: a server reports ample space on its
/// targets. The server grants no blocks, as many as one write needs, or one block less than a write needs that begins
/// and ends inside of blocks.
#[test]
fn what_has_no_room_set_aside_is_waited_for() {
    let mut w = World::new(9, &[]);
    w.server.grant_blocks = 0;
    let file = spread(&mut w, OpenFlags::READ_WRITE);
    let one = 8 * MIB;
    let of_one = blocks(&file, one);
    let most = *of_one.values().max().unwrap();
    let meets = |at: &u64| blocks(&file, *at).keys().any(|target| of_one.get(target) == Some(&most));
    let other = (10..64).step_by(2).map(|at| at * MIB).find(meets).unwrap();
    assert!(most >= *blocks(&file, other).values().max().unwrap(), "each of them has room alone");
    let (op, done) = begin(&w, &file, one, b'a', Hints::default());
    assert!(!done, "nothing was granted");
    w.server.grant_blocks = most;
    assert_eq!(w.run(op), Ok(2 << 20));
    let (op, done) = begin(&w, &file, other, b'a', Hints::default());
    if !done {
        assert_eq!(w.run(op), Ok(2 << 20));
    }
    w.settle();
    for (first, second) in [(one, other), (other, one)] {
        assert!(begin(&w, &file, first, b'b', Hints::default()).1, "its blocks were granted");
        let (op, done) = begin(&w, &file, second, b'c', Hints::default());
        assert!(!done, "what was granted is on its way");
        assert_eq!(w.run(op), Ok(2 << 20));
        w.settle();
    }
    let aslant = one + 1;
    let most = *blocks(&file, aslant).values().max().unwrap();
    w.server.grant_blocks = most - 1;
    let (op, done) = begin(&w, &file, aslant, b'd', Hints::default());
    if !done {
        assert_eq!(w.run(op), Ok(2 << 20));
    }
    w.settle();
    let (op, done) = begin(&w, &file, aslant, b'd', Hints::default());
    assert!(!done, "a block is missing");
    w.server.grant_blocks = most;
    assert_eq!(w.run(op), Ok(2 << 20));
    assert!(begin(&w, &file, aslant, b'e', Hints::default()).1, "the answer has told of more");
    w.settle();
    assert!(w.server.contents(file.ino())[(8 << 20) + 1..(10 << 20) + 1].iter().all(|b| *b == b'e'));
    drop(file);
    w.check_clean();
}

/// Goal: stricter writes wait for their answer: `O_DIRECT`, `O_SYNC` and appends. The switch turns early returns off.
/// Method: one write of each kind, which must not return without an answer.
#[test]
fn strict_writes_wait() {
    let plain = OpenFlags::READ_WRITE;
    let direct = Hints { direct: true, ..Hints::default() };
    for (flags, hints, bound) in [
        (OpenFlags { direct: true, ..plain }, Hints::default(), "16M"),
        (OpenFlags { sync: true, ..plain }, Hints::default(), "16M"),
        (OpenFlags { dsync: true, ..plain }, Hints::default(), "16M"),
        (OpenFlags { append: true, ..plain }, Hints::default(), "16M"),
        (plain, direct, "16M"),
        (plain, Hints::default(), "0"),
    ] {
        let mut w = World::new(2, &[("writeback.pipeline_bytes", bound)]);
        let file = spread(&mut w, flags);
        let (op, done) = begin(&w, &file, 0, b'a', hints);
        assert!(!done, "{flags:?} {hints:?} {bound}");
        assert_eq!(w.run(op), Ok(2 << 20));
        drop(file);
        w.check_clean();
    }
}

/// Goal: if a write fails after it has returned, `fsync` reports it once (Promise S15). Until then writes wait for
/// their answers, and afterwards the size is the server's again. Method: the server has no space for a while.
#[test]
fn a_failure_is_told_later() {
    let mut w = World::new(3, &[]);
    let file = spread(&mut w, OpenFlags::READ_WRITE);
    let full = |from: u64| vec![(from, Errno::NoSpace); 2];
    w.server.refuse_writes = full(8 * MIB);
    assert!(begin(&w, &file, 8 * MIB, b'a', Hints::default()).1);
    w.settle();
    w.server.refuse_writes = full(8 * MIB);
    let (op, done) = begin(&w, &file, 10 * MIB, b'a', Hints::default());
    assert!(!done, "from now on errors are told at once");
    assert_eq!(w.run(op), Err(Errno::NoSpace));
    w.server.refuse_writes.clear();
    let fsync = w.client.fsync(&Ctx::root(), &file, false);
    assert_eq!(w.run(fsync), Err(Errno::NoSpace));
    let waits = |w: &mut World| {
        let waited = [4 * MIB, 6 * MIB].map(|at| {
            let (op, done) = begin(w, &file, at, b'w', Hints::default());
            assert!(done || w.run(op) == Ok(2 << 20));
            !done
        });
        assert!(waited.contains(&true), "a target that refused a write is waited for once");
        w.settle();
    };
    waits(&mut w);
    w.server.refuse_writes = full(8 * MIB);
    assert!(begin(&w, &file, 8 * MIB, b'a', Hints::default()).1);
    let close = w.client.flush(&Ctx::root(), &file);
    assert_eq!(w.run(close), Err(Errno::NoSpace), "a close waits and says so");
    w.server.refuse_writes.clear();
    let fsync = w.client.fsync(&Ctx::root(), &file, false);
    assert_eq!(w.run(fsync), Ok(()), "once");
    w.settle();
    assert_eq!(file.size(), 8 * MIB, "what never came is not shown");
    waits(&mut w);
    assert!(begin(&w, &file, 8 * MIB, b'b', Hints::default()).1, "early again");
    let fsync = w.client.fsync(&Ctx::root(), &file, false);
    assert_eq!(w.run(fsync), Ok(()));
    assert!(w.server.contents(file.ino())[8 << 20..].iter().all(|b| *b == b'b'));
    drop(file);
    w.check_clean();
}

/// Goal: a time that is set after a write stays (Promise S1). The server gets a close after the bytes, and a truncate
/// cuts the bytes. Method: each of these while a write is on its way, with random orders of answers.
#[test]
fn what_follows_comes_behind() {
    for seed in 0..40 {
        let mut w = World::new(seed, &[]);
        let file = spread(&mut w, OpenFlags::READ_WRITE);
        let ino = file.ino();
        let stat = |w: &mut World| {
            let op = w.client.getattr(&Ctx::root(), ino);
            w.run(op).unwrap()
        };
        assert!(begin(&w, &file, 8 * MIB, b'a', Hints::default()).1);
        let long_ago = Timespec { sec: 1, nsec: 0 };
        let set = SetAttr { mtime: Some(TimeSet::At(long_ago)), ..SetAttr::default() };
        let op = w.client.setattr(&Ctx::root(), ino, set, None);
        w.run(op).unwrap();
        assert_eq!(stat(&mut w).mtime, long_ago);
        w.settle();
        assert_eq!(stat(&mut w).mtime, long_ago, "seed {seed}");
        assert!(begin(&w, &file, 10 * MIB, b'b', Hints::default()).1);
        let set = SetAttr { size: Some(11 * MIB), ..SetAttr::default() };
        let op = w.client.setattr(&Ctx::root(), ino, set, Some(&file));
        w.run(op).unwrap();
        w.settle();
        assert_eq!((stat(&mut w).size, w.server.contents(ino).len() as u64), (11 * MIB, 11 * MIB));
        assert!(begin(&w, &file, 12 * MIB, b'c', Hints::default()).1);
        let writes = sent(&w, "Write");
        drop(file);
        w.settle();
        let closed = w.server.log.iter().rposition(|l| l.starts_with("Close")).expect("a close");
        let written = w.server.log.iter().rposition(|l| l == "Write").expect("a write");
        assert!(sent(&w, "Write") > writes && closed > written, "seed {seed}");
        w.check_clean();
    }
}

/// Goal: a mount that is admitted while writes are on their way sees all of them (Promise S1). Method: large writes
/// return, and then another mount reads. It requests the size first.
#[test]
fn company_sees_what_was_on_its_way() {
    for seed in 0..6 {
        in_cluster(seed, async |c| {
            let a = c.mount().await;
            let file = striped(&a).await;
            let waits = c.start_mount();
            for i in 0..12u64 {
                let buf = filled(200_000, b'a' + i as u8);
                assert_eq!(a.write(&root(), &file, i * 200_000, buf, Hints::default()).await, Ok(200_000));
            }
            let size = lookup(&waits, "f").await.map(|x| x.size);
            assert_eq!(size, Ok(12 * 200_000), "seed {seed}");
            let other = open(&waits, "f", OpenFlags::READ).await;
            let bytes = read(&waits, &other, 0, 3_000_000).await;
            for i in 0..12 {
                assert!(bytes[i * 200_000..(i + 1) * 200_000].iter().all(|b| *b == b'a' + i as u8), "seed {seed}");
            }
            let early = a.mount.stats.of(Count::Pipelined).0;
            assert!(early > 0 && early <= 12, "{early} returned early");
        });
    }
}

/// Goal: with several mounts, the other mount sees a completed large write as if it were on the target: its bytes, size
/// and time. A later write to the same bytes stays (Promises S1, S2). Method: two mounts write large pieces in turn,
/// each over the end of the other's, and read all of it.
#[test]
fn company_waits_for_what_is_on_its_way() {
    for seed in 0..8 {
        in_cluster(seed, async |c| {
            let [a, b] = c.two().await;
            let file = striped(&a).await;
            let other = open(&b, "f", OpenFlags::READ_WRITE).await;
            let sides = [(&a, &file), (&b, &other)];
            let mut model = Vec::new();
            for i in 0..20u64 {
                let (client, file) = sides[(i % 2) as usize];
                let at = (model.len() as u64).saturating_sub(70_000);
                let buf = filled(200_000 + i, b'a' + i as u8);
                model.resize(at as usize + buf.len(), 0);
                model[at as usize..].copy_from_slice(&buf);
                let len = buf.len();
                assert_eq!(client.write(&root(), file, at, buf, Hints::default()).await, Ok(len));
                let (client, file) = sides[(i % 2 == 0) as usize];
                let attr = client.getattr(&root(), file.ino()).await.unwrap();
                assert_eq!(attr.size, model.len() as u64, "seed {seed}, write {i}");
                if i % 3 == 0 {
                    assert!(read(client, file, 0, model.len() + 9).await == model, "seed {seed}, write {i}");
                }
            }
            for (client, file) in sides {
                assert!(read(client, file, 0, model.len() + 9).await == model, "seed {seed}");
                assert!(client.mount.stats.of(Count::Pipelined).0 > 0, "seed {seed}");
            }
        });
    }
}

/// Goal: on a contended file the other mounts see a completed write (Promise S1), its lock is requested before it and
/// returned together with others, before a callback. Method: two mounts write every second record of a file in turn,
/// and read the records of the other one; the records share blocks and lie on several objects.
#[test]
fn records_of_a_contended_file() {
    for (seed, ahead) in [(0, "8"), (1, "8"), (2, "0")] {
        in_cluster(seed, async |c| {
            const LEN: u64 = 47_008;
            let [a, b] = c.two().await;
            let file = striped(&a).await;
            let other = open(&b, "f", OpenFlags::READ_WRITE).await;
            let sides = [(&a, &file), (&b, &other)];
            set(&a, "server.contended_conflicts=1").await;
            for client in [&a, &b] {
                set(client, &format!("locks.ahead={ahead}")).await;
            }
            let mut model = Vec::new();
            for i in 0..80u64 {
                let (client, file) = sides[(i % 2) as usize];
                let buf = filled(LEN, b'0' + (i % 64) as u8);
                model.extend_from_slice(&buf);
                assert_eq!(client.write(&root(), file, i * LEN, buf, Hints::default()).await, Ok(LEN as usize));
                if i % 9 == 0 {
                    let (client, file) = sides[(i % 2 == 0) as usize];
                    let from = model.len().saturating_sub(3 * LEN as usize);
                    let got =
                        client.read(&root(), file, from as u64, 3 * LEN as usize, Hints::default()).await.unwrap();
                    assert!(got.to_vec() == model[from..], "seed {seed}, record {i}");
                }
            }
            let counted = |count| b.mount.stats.of(count).0;
            let went = b.mount.stats.io_of(Way::Write, Reason::DirectContention).0;
            assert!(went > 20, "seed {seed}: {went} records went direct");
            assert!(counted(Count::Pipelined) > 0, "seed {seed}");
            assert_eq!(counted(Count::LockAheadGranted) > 0, ahead != "0", "seed {seed}");
            // A second later the returned locks have been sent; ahead are at most 8 records, a few of them on two
            // objects.
            c.env.sleep(Duration::from_secs(3)).await;
            let held = b.mount.coherence.locks.held();
            assert!(held <= 16, "seed {seed}: {held} locks are still held");
            for (client, file) in sides {
                assert_eq!(client.fsync(&root(), file, false).await, Ok(()));
            }
            for (client, file) in sides {
                assert!(read(client, file, 0, model.len() + 9).await == model, "seed {seed}");
            }
        });
    }
}
