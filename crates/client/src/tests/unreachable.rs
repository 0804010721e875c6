//! A server that cannot be reached: what goes on meanwhile.

use super::cluster::{self, Cluster, create, dir_on, in_cluster, root, write};
use super::world::World;
use crate::api::{Hints, OpenFlags};
use crate::conn::queue::Outgoing;
use crate::telemetry::stats::Count;
use crate::writeback::backlog;
use crate::{Client, OpenFile, Pending};
use amphi_env::{Buf, Env};
use amphi_types::{Ino, IoMode, Result, TargetId};
use amphi_wire::XattrMode;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Waker};

const MIB: usize = 1 << 20;
/// A piece of a file that does not fill a chunk of the cache, so that write-back does not begin by itself.
const PIECE: usize = 960 << 10;

/// Starts an operation; its result is there when it has ended.
fn begin<T: Send + 'static>(c: &Cluster, op: Pending<T>) -> Rc<RefCell<Option<Result<T>>>> {
    let done = Rc::default();
    let told: Rc<RefCell<Option<Result<T>>>> = Rc::clone(&done);
    c.env.spawn(async move {
        let result = op.await;
        *told.borrow_mut() = Some(result);
    });
    done
}

/// A file on `target` whose writes go into the cache, after its first byte is stored.
async fn cached_file(client: &Client, target: u16, name: &str) -> Arc<OpenFile> {
    let dir = dir_on(client, target).await;
    client.setxattr(&root(), dir, b"user.amphi.layout", b"whole", XattrMode::Set).await.expect("layout");
    let file = create(client, dir, name).await;
    file.set_io_mode(IoMode::Buffered);
    write(client, &file, 0, b"0").await;
    assert_eq!(client.fsync(&root(), &file, false).await, Ok(()));
    file
}

/// Goal: while a server is down, writes, write-back and `fsync` of files on other servers go on, however much is dirty
/// or waited for on the one that is down, and dirty bytes stay bounded (Promise S12). When the server is back all bytes
/// arrive. Method: nearly as much as may be dirty is written to one server before or after its connection is cut, and
/// an `fsync` waits for it, while a file on the other server is written and synced several times.
#[test]
fn a_server_that_is_down_stops_only_its_own_bytes() {
    for seed in 0..4 {
        in_cluster(700 + seed, 2, async |c| {
            let a = c.mount().await;
            let (far, near) = (cached_file(&a, 1, "far").await, cached_file(&a, 0, "near").await);
            let loads = &a.mount.writeback.loads;
            let cut = async || {
                c.sim.cut("m1", "s1");
                c.sim.break_connections("m1", "s1");
                while !loads.any_away() {
                    c.env.sleep(std::time::Duration::from_millis(1)).await;
                }
            };
            let pieces = if seed % 2 == 0 { 4 } else { 2 };
            if seed % 2 == 1 {
                cut().await;
            }
            for at in 0..pieces {
                write(&a, &far, (at * MIB) as u64, &vec![1 + at as u8; PIECE]).await;
            }
            if seed % 2 == 0 {
                cut().await;
            }
            let synced = begin(c, a.fsync(&root(), &far, false));
            let more = begin(c, a.write(&root(), &far, (4 * MIB) as u64, Buf::zeroed(PIECE), Hints::default()));
            c.sleep(1).await;
            for round in 0..6u8 {
                write(&a, &near, u64::from(round) * MIB as u64, &vec![round; MIB]).await;
                assert_eq!(a.fsync(&root(), &near, false).await, Ok(()), "seed {seed}");
            }
            let left = far.file.cached.dirty_bytes.load(SeqCst);
            assert_eq!(left, (pieces * PIECE) as u64, "seed {seed}: nothing has been given up");
            assert!(synced.borrow().is_none() && more.borrow().is_none(), "seed {seed}: they wait for their server");
            assert_eq!(a.mount.stats.of(Count::WriteBackFailed).0, 0, "seed {seed}");
            c.sim.heal("m1", "s1");
            while synced.borrow().is_none() || more.borrow().is_none() {
                c.sleep(1).await;
            }
            assert_eq!((*synced.borrow(), *more.borrow()), (Some(Ok(())), Some(Ok(PIECE))), "seed {seed}");
            assert_eq!(a.fsync(&root(), &far, false).await, Ok(()), "seed {seed}");
            assert!(!loads.any_away() && a.mount.writeback.flight_bytes.load(SeqCst) == 0, "seed {seed}");
            a.mount.cache.forget(&far.file, amphi_types::ByteRange::ALL, amphi_pagecache::Dirty::Keep);
            let bytes = cluster::read(&a, &far, 5 * MIB).await;
            for at in 0..pieces {
                assert!(bytes[at * MIB..][..PIECE].iter().all(|b| *b == 1 + at as u8), "seed {seed}: piece {at}");
            }
        });
    }
}

/// Runs an operation while the requests to `away` get no answer. Returns `None` if it waits for them.
fn run_without<T: Send + 'static>(
    w: &mut World,
    away: TargetId,
    held: &mut Vec<Outgoing>,
    op: &mut Pending<T>,
) -> Option<Result<T>> {
    for _ in 0..20_000 {
        if let Poll::Ready(result) = Pin::new(&mut *op).poll(&mut Context::from_waker(Waker::noop())) {
            return Some(result);
        }
        let (kept, others) = w.hold_back().into_iter().partition(|out| out.call.target == away);
        held.extend::<Vec<_>>(kept);
        w.give_back(others);
        w.step();
    }
    None
}

/// Goal: direct writes that return before their bytes have arrived go on to other servers while one is down, and the
/// memory of those that wait for it is bounded (Promise S12). Method: the requests to one target get no answer; it is
/// written until a write waits, before and after it is known that the target cannot be reached.
#[test]
fn early_returns_go_on_beside_a_target_that_is_away() {
    const LEN: usize = 2 * MIB;
    let mut w = World::new(41, &[]);
    let file_on = |w: &mut World, target: TargetId| {
        let dir = (0..).find_map(|n| {
            let op = w.client.mkdir(&root(), Ino::ROOT, format!("d{target}{n}").as_bytes(), 0o755);
            Some(w.run(op).expect("mkdir").ino).filter(|dir| dir.target() == target)
        });
        let dir = dir.expect("a directory");
        let op = w.client.create(&root(), dir, b"f", 0o644, OpenFlags::READ_WRITE);
        let file = w.run(op).expect("create").file;
        let op = w.client.setxattr(&root(), file.ino(), b"user.amphi.layout", b"whole", XattrMode::Set);
        w.run(op).expect("layout");
        let op = w.client.write(&root(), &file, 0, Buf::zeroed(LEN), Hints::default());
        assert_eq!(w.run(op), Ok(LEN));
        w.settle();
        file
    };
    let (x, y) = (TargetId(1), TargetId(2));
    let (far, near) = (file_on(&mut w, x), file_on(&mut w, y));
    let (mut held, mut at) = (Vec::new(), 0);
    let mut put = |w: &mut World, held: &mut Vec<Outgoing>, file: &Arc<OpenFile>| {
        at += LEN as u64;
        let mut op = w.client.write(&root(), file, at, Buf::zeroed(LEN), Hints::default());
        let done = run_without(w, x, held, &mut op);
        (op, done)
    };
    let mut early = 0;
    let waiting = loop {
        match put(&mut w, &mut held, &far) {
            (_, Some(done)) => assert_eq!(done, Ok(LEN)),
            (waiting, None) => break waiting,
        }
        early += 1;
    };
    assert!(early > 1, "writes return early");
    let (blocked, done) = put(&mut w, &mut held, &near);
    assert_eq!(done, None, "nobody knows yet that the target is away");
    backlog::set_away(&w.client.mount, BTreeSet::from([x]));
    let mut blocked = blocked;
    assert_eq!(run_without(&mut w, x, &mut held, &mut blocked), Some(Ok(LEN)));
    for _ in 0..8 {
        assert_eq!(put(&mut w, &mut held, &near).1, Some(Ok(LEN)));
    }
    let (more, done) = put(&mut w, &mut held, &far);
    assert_eq!(done, None, "its own bound is reached");
    backlog::set_away(&w.client.mount, BTreeSet::new());
    w.give_back(held);
    assert_eq!(w.run_all(vec![waiting, more]), [Ok(LEN), Ok(LEN)]);
    for file in [&far, &near] {
        let op = w.client.fsync(&root(), file, false);
        assert_eq!(w.run(op), Ok(()));
    }
    drop((far, near));
    w.check_clean();
}
