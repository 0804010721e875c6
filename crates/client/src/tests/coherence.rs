//! Visibility between concurrent operations, and the effects of abandoned ones.

use super::world::World;
use crate::api::{Ctx, Fallocate, Hints, OpenFlags};
use crate::coherence::tokens;
use crate::locks;
use crate::{OpenFile, Pending, Segments};
use amphi_env::Buf;
use amphi_types::{IoMode, ObjectId, SetAttr};
use amphi_wire::Request;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

fn filled(len: usize, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(len);
    buf.fill(byte);
    buf
}

fn write(w: &World, file: &Arc<OpenFile>, at: u64, len: usize, byte: u8) -> Pending<usize> {
    w.client.write(&Ctx::root(), file, at, filled(len, byte), Hints::default())
}

fn read(w: &World, file: &Arc<OpenFile>, at: u64, len: usize) -> Pending<Segments> {
    w.client.read(&Ctx::root(), file, at, len, Hints::default())
}

fn world(seed: u64) -> World {
    let mut w = World::new(seed, &[("hybrid.large_write_bytes", "96K"), ("hybrid.large_read_bytes", "96K")]);
    w.callbacks = 60;
    w
}

/// Goal: a read or write is one event, whether it is buffered or direct (Promise S2). Method: there are two writers,
/// one buffered and one direct or both of a kind, and two readers, on overlapping ranges that cross units and stripes,
/// in random order. In every part that both writers share, each reader sees either the old bytes or those of one
/// writer. So does a reader afterwards.
#[test]
fn overlapping_requests_are_events() {
    for seed in 0..150 {
        let mut w = world(seed);
        let file = w.create("f", OpenFlags::READ_WRITE);
        let layout = b"striped,size=64K,count=3";
        let op = w.client.setxattr(&Ctx::root(), file.ino(), b"user.amphi.layout", layout, amphi_wire::XattrMode::Set);
        w.run(op).unwrap();
        let op = write(&w, &file, 0, 300_000, b'o');
        w.run(op).unwrap();
        // Sizes below and above the threshold: buffered and direct.
        let sizes = [(70_000u64, 60_000usize), (40_000, 150_000)];
        let pick = |w: &mut World| sizes[w.rand(2) as usize];
        let (a, b) = (pick(&mut w), pick(&mut w));
        let ops = vec![write(&w, &file, a.0, a.1, b'A'), write(&w, &file, b.0, b.1, b'B')];
        let reads = [read(&w, &file, 60_000, 80_000), read(&w, &file, 30_000, 170_000)];
        let mut all: Vec<Pending<Vec<u8>>> = Vec::new();
        let mount = w.client.mount.clone();
        for op in ops {
            all.push(Pending::start(&mount, async move { op.await.map(|_| Vec::new()) }));
        }
        for op in reads {
            all.push(Pending::start(&mount, async move { op.await.map(|s| s.to_vec()) }));
        }
        let seen = w.run_all(all);
        let op = read(&w, &file, 0, 300_000);
        let last = w.run(op).unwrap().to_vec();
        // Bytes that both writers write: one of them as a whole.
        let both = a.0.max(b.0)..(a.0 + a.1 as u64).min(b.0 + b.1 as u64);
        let uniform = |bytes: &[u8], from: u64, what: &str| {
            let part: Vec<u8> = both
                .clone()
                .filter(|k| *k >= from && *k < from + bytes.len() as u64)
                .collect::<Vec<_>>()
                .iter()
                .map(|k| bytes[(k - from) as usize])
                .collect();
            assert!(part.windows(2).all(|p| p[0] == p[1]), "seed {seed}: {what} saw a mixture");
            part.first().copied()
        };
        assert_ne!(uniform(&last, 0, "who came last"), Some(b'o'), "seed {seed}");
        uniform(seen[2].as_ref().unwrap(), 60_000, "reader 1");
        uniform(seen[3].as_ref().unwrap(), 30_000, "reader 2");
        drop((file, mount));
        w.check_clean();
        assert!(w.server.called_back.is_empty(), "every callback was answered");
    }
}

/// Goal: bytes replaced by a hole are not shown again, even with reads of neighbouring bytes meanwhile (Promise S2).
/// Method: a hole is punched in a page while its other bytes are read, and then the whole page is punched. The same is
/// done with zeros and with a direct write.
#[test]
fn holes_beside_readers_stay_holes() {
    for seed in 0..90 {
        let mut w = world(seed);
        let past = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
        let past = w.create("f", past);
        let op = w.client.open(&Ctx::root(), past.ino(), OpenFlags::READ_WRITE);
        let file = w.run(op).unwrap();
        let op = write(&w, &past, 0, 8192, b'o');
        w.run(op).unwrap();
        let (client, hole) = (w.client.clone(), past.clone());
        let change = Pending::start(&w.client.mount.clone(), async move {
            let (ctx, bytes) = (Ctx::root(), Buf::zeroed(2000));
            match seed % 3 {
                0 => client.fallocate(&ctx, &hole, Fallocate::PunchHole, 1000, 2000).await,
                1 => client.fallocate(&ctx, &hole, Fallocate::ZeroRange { keep_size: true }, 1000, 2000).await,
                _ => client.write(&ctx, &hole, 1000, bytes, Hints::default()).await.map(|_| ()),
            }
        });
        let mut all = vec![change];
        for at in [0, 3500] {
            let op = read(&w, &file, at, 500);
            all.push(Pending::start(&w.client.mount.clone(), async move {
                op.await.map(|bytes| assert_eq!(bytes.to_vec(), [b'o'; 500]))
            }));
        }
        w.run_all(all).into_iter().for_each(|done| done.unwrap());
        let op = read(&w, &file, 0, 8192);
        let bytes = w.run(op).unwrap().to_vec();
        let want: Vec<u8> = (0..8192).map(|at| if (1000..3000).contains(&at) { 0 } else { b'o' }).collect();
        assert!(bytes == want, "seed {seed}: old bytes are back");
        drop((file, past));
        w.check_clean();
    }
}

/// Goal: each append is written as a whole at the end of the file, and none overwrites another one (Promise S4).
/// Method: eight appends of different sizes at the same time, some direct and some buffered.
#[test]
fn appends_land_whole() {
    for seed in 0..40 {
        let mut w = world(seed);
        let flags = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
        let file = w.create("f", flags);
        let other = w.client.open(&Ctx::root(), file.ino(), OpenFlags { direct: true, ..flags });
        let other = w.run(other).unwrap();
        let sizes: Vec<usize> = (0..8).map(|_| 1 + w.rand(120_000) as usize).collect();
        let ops = sizes.iter().enumerate();
        let ops = ops.map(|(i, n)| write(&w, if i % 3 == 0 { &other } else { &file }, 0, *n, b'a' + i as u8)).collect();
        w.run_all(ops).into_iter().zip(&sizes).for_each(|(n, want)| assert_eq!(n, Ok(*want)));
        let total = sizes.iter().sum::<usize>();
        let op = read(&w, &file, 0, total + 10);
        let bytes = w.run(op).unwrap().to_vec();
        assert_eq!(bytes.len(), total);
        let mut at = 0;
        while at < total {
            let n = sizes[(bytes[at] - b'a') as usize];
            assert!(bytes[at..at + n].iter().all(|b| *b == bytes[at]), "seed {seed}: whole");
            at += n;
        }
        drop((file, other));
        w.check_clean();
    }
}

/// Goal: an abandoned operation leaves nothing behind and happens as a whole or not at all (Promise S18). Method: start
/// an operation, run a few steps, and drop it. Later everything is closed, unlocked and written, and the file has the
/// old or the new content.
#[test]
fn abandoned_operations_leave_nothing() {
    for seed in 0..120 {
        let mut w = world(seed);
        let file = w.create("f", OpenFlags::READ_WRITE);
        let op = write(&w, &file, 0, 200_000, b'o');
        w.run(op).unwrap();
        let steps = w.rand(12);
        let root = Ctx::root();
        match seed % 5 {
            0 => {
                let op = w.client.open(&root, file.ino(), OpenFlags::READ);
                w.steps(steps);
                drop(op);
            }
            1 => {
                let op = w.client.create(&root, amphi_types::Ino::ROOT, b"g", 0o600, OpenFlags::WRITE);
                w.steps(steps);
                drop(op);
            }
            2 => {
                let op = write(&w, &file, 50_000, 150_000, b'n');
                w.steps(steps);
                drop(op);
            }
            3 => {
                let op = read(&w, &file, 0, 150_000);
                w.steps(steps);
                drop(op);
            }
            _ => {
                let set = SetAttr { size: Some(100_000), ..SetAttr::default() };
                let op = w.client.setattr(&root, file.ino(), set, None);
                w.steps(steps);
                drop(op);
            }
        }
        w.settle();
        let op = read(&w, &file, 0, 300_000);
        let bytes = w.run(op).unwrap().to_vec();
        match seed % 5 {
            2 => {
                let new = bytes[50_000];
                assert!(bytes[50_000..].iter().all(|b| *b == new), "seed {seed}");
            }
            4 => assert!(bytes.len() == 100_000 || bytes.len() == 200_000),
            _ => assert_eq!(bytes.len(), 200_000),
        }
        drop(file);
        w.check_clean();
        assert!(w.server.called_back.is_empty());
    }
}

/// Goal: if a file is truncated by its path while a program opens it, both use the same file, and the bytes that the
/// program writes are counted right. Method: a truncate that the server answers late. All cached data is dropped, and
/// then the file is opened and written.
#[test]
fn a_file_being_cut_is_not_forgotten() {
    let mut w = World::new(3, &[]);
    let root = Ctx::root();
    let file = w.create("f", OpenFlags::READ_WRITE);
    let ino = file.ino();
    let op = write(&w, &file, 0, 5000, b'o');
    w.run(op).unwrap();
    let op = w.client.fsync(&root, &file, false);
    w.run(op).unwrap();
    let known = Arc::downgrade(&file.file);
    drop(file);
    crate::coherence::closes::hurry_all(&w.client.mount);
    w.settle();
    assert!(known.strong_count() > 0, "it has cached bytes");
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    let mut cut = w.client.setattr(&root, ino, set, None);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    while w.server.log.last().is_none_or(|name| name != "SetAttr") && w.waiting_calls() == 0 {
        assert!(std::pin::Pin::new(&mut cut).poll(&mut cx).is_pending());
    }
    let held = w.hold_back();
    let mount = w.client.mount.clone();
    (0..64).for_each(|_| mount.cache.evict(0).iter().for_each(|file| mount.files.reap(file)));
    let op = w.client.open(&root, ino, OpenFlags::READ_WRITE);
    let again = w.run(op).unwrap();
    assert!(known.upgrade().is_some_and(|known| Arc::ptr_eq(&known, &again.file)), "the same file");
    let mut written = write(&w, &again, 0, 3000, b'n');
    for _ in 0..20 {
        assert!(std::pin::Pin::new(&mut written).poll(&mut cx).is_pending(), "it waits for the cut");
        w.step();
    }
    w.give_back(held);
    assert_eq!(w.run(cut).unwrap().size, 0);
    assert_eq!(w.run(written), Ok(3000));
    mount.cache.check();
    let op = read(&w, &again, 0, 5000);
    assert_eq!(w.run(op).unwrap().to_vec(), [b'n'; 3000]);
    drop(again);
    w.check_clean();
    assert_eq!(w.server.contents(ino), [b'n'; 3000]);
}

/// Goal: hits by several threads see whole units while another thread writes them through the cache. Method: threads
/// with `try_read` and `try_write` on one unit. Each read must return uniform bytes.
#[test]
fn hits_by_threads_are_atomic() {
    let mut w = World::new(1, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    let op = write(&w, &file, 0, 8192, 0);
    w.run(op).unwrap();
    let client = w.client.clone();
    std::thread::scope(|scope| {
        for t in 1..3u8 {
            let (client, file) = (client.clone(), file.clone());
            scope.spawn(move || {
                for _ in 0..2000 {
                    let done = client.try_write(&Ctx::root(), &file, 0, &[t; 8192], Hints::default());
                    assert!(done.is_none_or(|n| n == 8192));
                }
            });
        }
        for _ in 0..2 {
            let (client, file) = (client.clone(), file.clone());
            scope.spawn(move || {
                let mut into = [0; 8192];
                for _ in 0..2000 {
                    if client.try_read(&Ctx::root(), &file, 0, &mut into, Hints::default()).is_some() {
                        assert!(into.iter().all(|b| *b == into[0]));
                    }
                }
            });
        }
    });
    drop((file, client));
    w.check_clean();
}

/// Goal: a hit over several units is one event: if it shows a write, it also shows every earlier write of the same
/// thread (Promise S2). Method: one thread writes a number at 0, then at 1 MiB. The other thread reads both in one hit,
/// and sometimes the first thread waits for it.
#[test]
fn hits_over_several_units_are_one_event() {
    const FAR: usize = 1 << 20;
    let mut w = World::new(1, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    file.set_io_mode(IoMode::Buffered);
    let op = write(&w, &file, 0, FAR + 8, 0);
    w.run(op).unwrap();
    let client = w.client.clone();
    let (hits, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut into = vec![0; FAR + 8];
            while !is_over.load(SeqCst) {
                if client.try_read(&Ctx::root(), &file, 0, &mut into, Hints::default()).is_some() {
                    let (near, far) = (number(&into[..8]), number(&into[FAR..]));
                    if far > near {
                        is_over.store(true, SeqCst);
                        panic!("{far} was written behind {near}");
                    }
                    hits.fetch_add(1, SeqCst);
                }
            }
        });
        let put =
            |at: usize, i: u64| client.try_write(&Ctx::root(), &file, at as u64, &i.to_le_bytes(), Hints::default());
        let mut refused = 0;
        for i in 1..20_000u64 {
            refused += [0, FAR].iter().filter(|at| put(**at, i).is_none()).count();
            let before = hits.load(SeqCst);
            while i % 32 == 0 && hits.load(SeqCst) == before && !is_over.load(SeqCst) {
                std::thread::yield_now();
            }
        }
        is_over.store(true, SeqCst);
        assert_eq!(refused, 0, "nobody holds anything");
    });
    drop((file, client));
    w.check_clean();
}

/// Goal: locks continue under the names that a restarted server gives them, and dirty data survives. Method: rename
/// every lock of the server as a restart does, then call one of them back by its new id.
#[test]
fn locks_survive_a_restart_under_new_names() {
    let mut w = World::new(9, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    let op = write(&w, &file, 0, 5000, b'x');
    w.run(op).unwrap();
    w.steps(50);
    let (mount, target) = (w.client.mount.clone(), file.ino().target());
    for round in 1..3u64 {
        let (ids, held) = crate::locks::represent(&mount, target);
        assert_eq!((ids.len(), held.len()), (1, 1));
        let old = std::mem::take(&mut w.server.locks);
        let new: Vec<u64> = (0..ids.len() as u64).map(|i| round * 1000 + i).collect();
        w.server.locks = old.into_values().zip(&new).map(|(lock, id)| (*id, lock)).collect();
        crate::locks::restored(&mount, target, &ids, &new);
    }
    let object = amphi_types::ObjectId { ino: file.ino(), stripe: 0 };
    assert!(w.client.try_write(&Ctx::root(), &file, 0, b"y", Hints::default()).is_some(), "still held");
    crate::locks::callback(&mount, mount.target_of(object), object, 2000);
    w.settle();
    assert!(w.server.locks.is_empty(), "given back by the new name, after the write-back");
    assert_eq!(w.server.contents(file.ino())[..2], *b"yx");
    drop((file, mount));
    w.check_clean();
}

/// Goal: a lock that is returned while it is presented to a restarted server is not held there for ever. Method: the
/// lock is called back and returned by its old id after the presentation; the answer then brings its new id.
#[test]
fn a_lock_returned_while_it_is_presented_is_returned_again() {
    let mut w = World::new(10, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    let op = write(&w, &file, 0, 5000, b'x');
    w.run(op).unwrap();
    w.settle();
    let (mount, target) = (w.client.mount.clone(), file.ino().target());
    let (ids, held) = crate::locks::represent(&mount, target);
    assert_eq!((ids.len(), held.len()), (1, 1));
    let presented: Vec<_> = w.server.locks.values().cloned().collect();
    crate::locks::callback(&mount, target, held[0].object, ids[0].0);
    w.settle();
    assert!(w.server.locks.is_empty(), "given back by the old name");
    w.server.locks = presented.into_iter().map(|lock| (1000, lock)).collect();
    crate::locks::restored(&mount, target, &ids, &[1000]);
    w.settle();
    assert!(w.server.locks.is_empty(), "given back by the new name as well");
    assert_eq!(w.server.contents(file.ino())[..2], *b"xx");
    drop((file, mount));
    w.check_clean();
}

/// Goal: the lock granted in the answer to a create is returned if it was called back before that answer arrived, and a
/// later lock is not mistaken for it. Method: the callback comes before the lock, with and without a create under way.
#[test]
fn a_lock_of_a_new_file_is_asked_back_early() {
    for under_way in [true, false] {
        let mut w = World::new(3, &[]);
        let open = w.create("f", OpenFlags::READ_WRITE);
        w.settle();
        let mount = w.client.mount.clone();
        let object = amphi_types::ObjectId { ino: open.file.ino, stripe: 0 };
        let making = under_way.then(|| crate::locks::making(&mount));
        crate::locks::callback(&mount, mount.target_of(object), object, 77);
        crate::locks::given(&mount, &open.file, 77);
        drop(making);
        let covered = open.file.locks.cover_stripes(1);
        assert_eq!(covered, !under_way, "an early callback counts while a file is being made, and only then");
        // The test ends here: the server of these tests has not granted it.
    }
}

/// Goal: a callback may be repeated at once, or after its lock was returned and a newer one was taken on the same
/// object. It is answered once, and affects neither the newer lock nor the dirty data under it. Method: buffered writes
/// under two locks, one after the other. The server of these tests refuses a second return.
#[test]
fn a_repeated_callback_takes_nothing_newer() {
    for seed in 0..30 {
        let mut w = World::new(seed, &[("hybrid.mode", "buffered")]);
        let file = w.create("f", OpenFlags::READ_WRITE);
        let held = |w: &World| w.server.locks.iter().map(|(id, (object, _))| (*id, *object)).collect::<Vec<_>>();
        let op = write(&w, &file, 0, 1000, b'1');
        w.run(op).unwrap();
        let (first, object) = held(&w)[0];
        let mount = w.client.mount.clone();
        for _ in 0..1 + seed % 3 {
            crate::locks::callback(&mount, mount.target_of(object), object, first);
            w.steps(seed % 4);
        }
        w.settle();
        assert_eq!((held(&w), mount.cache.dirty_bytes()), (vec![], 0), "written and given back");
        let op = write(&w, &file, 0, 1000, b'2');
        w.run(op).unwrap();
        let (now, dirty) = (held(&w), mount.cache.dirty_bytes());
        assert!(now.len() == 1 && now[0] != (first, object) && dirty == 1000);
        let sent = w.server.log.len();
        for _ in 0..1 + seed % 3 {
            crate::locks::callback(&mount, mount.target_of(object), object, first);
            w.steps(seed % 4);
        }
        w.settle();
        assert_eq!((held(&w), mount.cache.dirty_bytes(), w.server.log.len()), (now, dirty, sent), "seed {seed}");
        let op = read(&w, &file, 0, 1000);
        assert!(w.run(op).unwrap().to_vec().iter().all(|b| *b == b'2'));
        drop((file, mount));
        w.check_clean();
    }
}

/// Goal: a push that a server repeats is answered once as long as the answer is on its way, and again when the answer
/// has arrived. A server that repeats everything unanswered with each new connection must not get more and more
/// answers. Method: a glimpse and a revocation, 100 times each, without an answer in between.
#[test]
fn questions_that_are_repeated_are_answered_once() {
    let mut w = World::new(1, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    w.settle();
    let (mount, target) = (w.client.mount.clone(), file.ino().target());
    let glimpse = (u64::from(target.0) << 48) | 7;
    for _ in 0..2 {
        for _ in 0..100 {
            locks::glimpse(&mount, glimpse, ObjectId { ino: file.ino(), stripe: 0 });
            tokens::revoke(&mount, target, 3, 0, Vec::new());
        }
        let sent = w.hold_back();
        let sent_as = |what: fn(&Request) -> bool| sent.iter().filter(|out| what(&out.call.op)).count();
        assert_eq!(sent_as(|op| matches!(op, Request::GlimpseReply { id, .. } if id & 7 == 7)), 1);
        assert_eq!(sent_as(|op| matches!(op, Request::Revoked { ids } if ids == &[3])), 1);
        w.give_back(sent);
        w.settle();
    }
    drop(file);
    w.check_clean();
}
