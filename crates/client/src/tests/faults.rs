//! Failures of write-back and of direct writes.

use super::cluster::dir_on;
use super::sharing::{Cluster, create, in_cluster, open, read, root, write};
use super::world::World;
use crate::Client;
use crate::api::{Ctx, Hints, OpenFlags};
use crate::tables::writeback::FLIGHT_PARTS_MAX;
use crate::telemetry::stats::Count;
use amphi_env::sim::DiskOpKind;
use amphi_env::{Buf, Env};
use amphi_pagecache::Landing;
use amphi_types::Errno;
use amphi_wire::XattrMode;
use std::sync::atomic::Ordering::SeqCst;

/// The place where data begins on the disk of a server of `Cluster`: after 2 MiB of superblock and log, and 8 MiB of
/// metadata.
const DATA: u64 = 10 << 20;

fn filled(len: usize, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(len);
    buf.fill(byte);
    buf
}

/// Goal: a failed write-back is reported once on each open file that was open then, and the file shows the server's
/// state from then on (Promise S16). Method: the server refuses one write. There are two handles, a reader, and a
/// handle that is opened later.
#[test]
fn write_back_errors_are_told_once_per_handle() {
    let mut w = World::new(3, &[]);
    let root = Ctx::root();
    let file = w.create("f", OpenFlags::READ_WRITE);
    let op = w.client.open(&root, file.ino(), OpenFlags::READ_WRITE);
    let second = w.run(op).unwrap();
    let op = w.client.open(&root, file.ino(), OpenFlags::READ);
    let reader = w.run(op).unwrap();
    let op = w.client.write(&root, &file, 0, filled(5000, b'x'), Hints::default());
    w.run(op).unwrap();
    w.server.refuse_writes = vec![(0, Errno::NoSpace)];
    crate::writeback::flush::start(&w.client.mount, &file.file, amphi_types::ByteRange::ALL);
    w.settle();
    let op = w.client.read(&root, &second, 0, 5000, Hints::default());
    assert_eq!(w.run(op).unwrap().to_vec(), b"", "nothing is shown that others do not see");
    let op = w.client.getattr(&root, file.ino());
    assert_eq!(w.run(op).unwrap().size, 0, "the server never got them");
    assert_eq!(w.client.flush(&root, &reader).wait(None), Ok(()), "who only reads takes no error from others");
    let op = w.client.fsync(&root, &file, false);
    assert_eq!(w.run(op), Err(Errno::NoSpace));
    let op = w.client.fsync(&root, &file, false);
    assert_eq!(w.run(op), Ok(()), "once");
    let op = w.client.flush(&root, &second);
    assert_eq!(w.run(op), Err(Errno::NoSpace), "and once on the other handle");
    assert_eq!(w.client.flush(&root, &second).wait(None), Ok(()));
    let op = w.client.fsync(&root, &reader, false);
    assert_eq!(w.run(op), Err(Errno::NoSpace), "a reader that syncs is told as well");
    let op = w.client.open(&root, file.ino(), OpenFlags::READ_WRITE);
    let late = w.run(op).unwrap();
    let op = w.client.fsync(&root, &late, false);
    assert_eq!(w.run(op), Ok(()), "who opens when somebody was told hears nothing");
    assert_eq!(w.client.mount.files.secret_loss(), None);
    drop((file, second, reader, late));
    w.check_clean();
}

/// Goal: an unreported loss is reported once to the next program that syncs, even if the file was closed and forgotten
/// in between (Promise S16). Until then the end of the mount reports it. Method: a file is closed before its write-back
/// fails, while the mount knows the file and when it does not, and then opened again. The same is done with a removed
/// file.
#[test]
fn a_loss_of_a_closed_file_is_told_to_the_next() {
    for (known, removed) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut w = World::new(11, &[]);
        let root = Ctx::root();
        let file = w.create("f", OpenFlags::READ_WRITE);
        let ino = file.ino();
        let op = w.client.write(&root, &file, 0, filled(5000, b'o'), Hints::default());
        w.run(op).unwrap();
        let op = w.client.fsync(&root, &file, false);
        w.run(op).unwrap();
        let keeper = if known {
            let op = w.client.open(&root, ino, OpenFlags::READ);
            Some(w.run(op).unwrap())
        } else {
            None
        };
        let op = w.client.write(&root, &file, 0, filled(9000, b'n'), Hints::default());
        w.run(op).unwrap();
        assert_eq!(w.client.flush(&root, &file).wait(None), Ok(()));
        w.server.refuse_writes = vec![(0, Errno::NoSpace)];
        drop(file);
        let mount = w.client.mount.clone();
        let known_file = mount.files.get(ino).expect("it is dirty");
        crate::writeback::flush::start(&mount, &known_file, amphi_types::ByteRange::ALL);
        drop(known_file);
        w.settle();
        mount.files.all().iter().for_each(|f| mount.files.reap(f));
        assert_eq!(mount.files.get(ino).is_some(), known);
        assert_eq!(mount.files.secret_loss(), Some(Errno::NoSpace));
        if removed {
            drop(keeper);
            w.unlink("f");
            w.settle();
            assert_eq!(mount.files.secret_loss(), None, "nobody misses it");
        } else {
            let op = w.client.open(&root, ino, OpenFlags::READ);
            let again = w.run(op).unwrap();
            let op = w.client.read(&root, &again, 0, 9000, Hints::default());
            assert!(w.run(op).unwrap().to_vec() == [b'o'; 5000], "what the server has");
            let op = w.client.fsync(&root, &again, false);
            assert_eq!(w.run(op), Err(Errno::NoSpace));
            let op = w.client.fsync(&root, &again, false);
            assert_eq!(w.run(op), Ok(()));
            let op = w.client.open(&root, ino, OpenFlags::READ_WRITE);
            let late = w.run(op).unwrap();
            let op = w.client.fsync(&root, &late, false);
            assert_eq!((w.run(op), mount.files.secret_loss()), (Ok(()), None));
            drop((again, late, keeper));
        }
        w.check_clean();
    }
}

/// Goal: two mounts show the same bytes after one of them has lost some, and so does every program that gets the error
/// (Promise S16). Method: the disk of a real server refuses data between a write and the end of its write-back. The
/// write is over an old file or behind its end, and is too large to be answered from the server's memory.
#[test]
fn mounts_agree_after_a_loss() {
    for seed in 0..8 {
        in_cluster(seed, async |c: &Cluster| {
            let [a, b] = c.two().await;
            let dir = dir_on(&a, 1).await;
            let flags = OpenFlags::READ_WRITE;
            let file = a.create(&root(), dir, b"f", 0o644, flags).await.expect("create").file;
            write(&a, &file, 0, &[b'o'; 10_000]).await;
            assert_eq!(a.fsync(&root(), &file, false).await, Ok(()));
            c.sim.on_disk_op("server", |op| {
                (op.kind == DiskOpKind::Write && op.at >= DATA).then_some(std::io::ErrorKind::Other)
            });
            write(&a, &file, 5000, &[b'n'; 80_000]).await;
            assert_eq!(a.flush(&root(), &file).await, Ok(()));
            let ino = file.ino();
            if seed % 2 == 0 {
                drop(file);
            }
            c.until("the loss", || a.mount.stats.of(Count::WriteBackFailed).0 > 0).await;
            c.sim.clear_disk_hook("server");
            let theirs = b.open(&root(), ino, OpenFlags::READ).await.expect("open");
            let mine = a.open(&root(), ino, flags).await.expect("open");
            let told = a.fsync(&root(), &mine, false).await;
            assert_eq!(told, Err(Errno::Io), "seed {seed}");
            let seen = [read(&a, &mine, 0, 300_000).await, read(&b, &theirs, 0, 300_000).await];
            let sizes = [&a, &b].map(|m| m.getattr(&root(), ino));
            let [one, two] = sizes;
            let sizes = (one.await.unwrap().size, two.await.unwrap().size);
            assert!(
                seen[0] == seen[1] && seen[0] == [b'o'; 10_000],
                "seed {seed}: {} and {}",
                seen[0].len(),
                seen[1].len()
            );
            assert_eq!(sizes, (10_000, 10_000), "seed {seed}");
            assert_eq!(a.fsync(&root(), &mine, false).await, Ok(()), "seed {seed}: once");
        });
    }
}

/// Goal: Promise S16: a mount whose connection broke while the server could not flush accepted data reports this once
/// to each open file, however often the connection breaks around the message. A mount that wrote nothing reports
/// nothing. Method: direct writes to a server whose data writes fail while the mount is disconnected. Then connections
/// break again.
#[test]
fn a_refused_flush_is_told_behind_a_broken_connection() {
    for breaks in 0..4 {
        in_cluster(40 + breaks, async |c: &Cluster| {
            let [a, b] = c.two().await;
            let direct = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
            let file = a.create(&root(), amphi_types::Ino::ROOT, b"f", 0o644, direct).await.expect("create").file;
            let other = open(&b, "f", OpenFlags::READ_WRITE).await;
            c.sim.on_disk_op("server", |op| {
                (op.kind == DiskOpKind::Write && op.at >= DATA).then_some(std::io::ErrorKind::Other)
            });
            let written = a.write(&root(), &file, 0, filled(5000, b'x'), Hints::default()).await;
            assert_eq!(written, Ok(5000), "it was accepted");
            c.sim.cut("mount1", "server");
            c.sim.break_connections("mount1", "server");
            c.env.sleep(std::time::Duration::from_secs(12)).await;
            let refused = || a.mount.stats.of(Count::WriteRefused).0;
            assert_eq!(refused(), 0, "it is away");
            c.sim.heal("mount1", "server");
            c.until("the news", || refused() > 0).await;
            for pause_us in [0, 50, 1000].iter().take(breaks as usize) {
                c.sim.break_connections("mount1", "server");
                c.env.sleep(std::time::Duration::from_micros(*pause_us)).await;
            }
            c.sim.clear_disk_hook("server");
            c.env.sleep(std::time::Duration::from_secs(12)).await;
            assert_eq!(a.fsync(&root(), &file, false).await, Err(Errno::Io));
            assert_eq!((a.fsync(&root(), &file, false).await, refused()), (Ok(()), 1), "once");
            assert_eq!(b.fsync(&root(), &other, false).await, Ok(()));
            assert_eq!(read(&b, &other, 0, 6000).await, [b'x'; 5000], "nothing was lost");
        });
    }
}

/// Goal: each call that waits until there are no dirty bytes gets a failure of their write-back. Method: one call
/// returns at the very moment at which the failure becomes known.
#[test]
fn who_waits_for_dirty_bytes_is_told() {
    let mut w = World::new(4, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    let op = w.client.write(&Ctx::root(), &file, 0, filled(100_000, b'x'), Hints::default());
    w.run(op).unwrap();
    let (cache, range) = (&w.client.mount.cache, amphi_types::ByteRange::new(0, 100_000));
    let (taken, ..) = cache.take_dirty(&file.file, range).expect("dirty bytes");
    assert_eq!(taken, range);
    let mut told = None;
    cache.landed(&file.file, range, Landing::Failed, 0, || {
        assert_eq!(file.file.cached.dirty_bytes.load(SeqCst), 100_000, "who waits for them hears of it");
        file.file.failures.note(Errno::Io, range);
        told = Some(file.take_error());
    });
    assert_eq!(told, Some(Err(Errno::Io)));
    assert_eq!(cache.gaps(&file.file, range), [range], "forgotten");
    drop(file);
    w.check_clean();
}

/// Goal: bytes written again while their write-back failed are not lost. Method: dirty again between start and failure.
#[test]
fn writing_again_survives_a_failed_write_back() {
    let mut w = World::new(4, &[]);
    let root = Ctx::root();
    let file = w.create("f", OpenFlags::READ_WRITE);
    let op = w.client.write(&root, &file, 0, filled(5000, b'x'), Hints::default());
    w.run(op).unwrap();
    w.server.refuse_writes = vec![(0, Errno::Io)];
    crate::writeback::flush::start(&w.client.mount, &file.file, amphi_types::ByteRange::ALL);
    assert_eq!(w.client.try_write(&root, &file, 1000, &[b'y'; 100], Hints::default()), Some(100));
    w.settle();
    assert_eq!(w.client.flush(&root, &file).wait(None), Err(Errno::Io));
    let op = w.client.fsync(&root, &file, false);
    w.run(op).unwrap();
    let bytes = w.server.contents(file.ino());
    assert_eq!((bytes.len(), &bytes[1000..1100]), (1100, &[b'y'; 100][..]));
    drop(file);
    w.check_clean();
}

/// Goal: a direct write of which a part failed returns the contiguous length from its start, or the error, and an
/// extension by failed pieces is cut off (Promise S17). Method: one of four pieces is refused, each piece in turn.
#[test]
fn partly_failed_direct_writes() {
    for refused in 0..4u64 {
        for old in [0usize, 300_000] {
            let mut w = World::new(5 + refused, &[]);
            let root = Ctx::root();
            let flags = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
            let file = w.create("f", flags);
            let op = w.client.setxattr(&root, file.ino(), b"user.amphi.layout", b"striped,size=64K", XattrMode::Set);
            w.run(op).unwrap();
            if old > 0 {
                let op = w.client.write(&root, &file, 0, filled(old, b'o'), Hints::default());
                assert_eq!(w.run(op), Ok(old));
            }
            // Answers arrive in random order; the refusal counts for the first write at or behind the offset, so the
            // last piece is refused exactly, others at least behind the offset.
            w.server.refuse_writes = vec![(refused * 65536, Errno::NoSpace)];
            let op = w.client.write(&root, &file, 0, filled(4 * 65536, b'n'), Hints::default());
            let result = w.run(op);
            let op = w.client.getattr(&root, file.ino());
            let size = w.run(op).unwrap().size;
            let good = match result {
                Ok(n) => n,
                Err(e) => {
                    assert_eq!(e, Errno::NoSpace);
                    0
                }
            };
            assert!(good as u64 >= refused * 65536 && good < 4 * 65536, "{good}");
            assert_eq!(size as usize, good.max(old));
            assert_eq!(w.server.contents(file.ino()).len(), size as usize);
            assert!(w.server.contents(file.ino())[..good].iter().all(|b| *b == b'n'));
            drop(file);
            w.check_clean();
        }
    }
}

/// Goal: a partly failed direct write cuts off only its own bytes. A completed write behind it stays, whenever it
/// happens (Promise S17). Method: both writes run at the same time with messages in random order, and one piece of four
/// is refused. The other write is buffered or direct. The test compares size and bytes at the end. In enough rounds
/// something has to be cut off, with and without the other write.
#[test]
fn a_failed_write_cuts_off_nothing_of_others() {
    const FAR: usize = 8 * 65536;
    let (mut stayed, mut cut) = (0, 0);
    for seed in 0..200 {
        let mut w = World::new(seed, &[("writeback.pipeline_bytes", "0")]);
        let root = Ctx::root();
        let flags = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
        let file = w.create("f", flags);
        let op = w.client.setxattr(&root, file.ino(), b"user.amphi.layout", b"striped,size=64K", XattrMode::Set);
        w.run(op).unwrap();
        let op = w.client.open(&root, file.ino(), if seed % 2 == 0 { flags } else { OpenFlags::READ_WRITE });
        let other = w.run(op).unwrap();
        let old = w.server.contents(file.ino()).len();
        assert_eq!(old, 0);
        w.server.refuse_writes = vec![(0, Errno::NoSpace)];
        let early = w.rand(60);
        let first = w.client.write(&root, &file, 0, filled(4 * 65536, b'n'), Hints::default());
        w.steps(early);
        let second = w.client.write(&root, &other, FAR as u64, filled(4096, b'o'), Hints::default());
        let results = w.run_all(vec![first, second]);
        let op = w.client.fsync(&root, &other, false);
        let synced = w.run(op);
        let op = w.client.getattr(&root, file.ino());
        let size = w.run(op).unwrap().size as usize;
        let bytes = w.server.contents(file.ino());
        assert_eq!(bytes.len(), size, "seed {seed}");
        if results[1] == Ok(4096) && synced.is_ok() {
            assert_eq!(size, FAR + 4096, "seed {seed}");
            assert!(bytes[FAR..].iter().all(|b| *b == b'o'), "seed {seed}");
            stayed += usize::from(results[0] != Ok(4 * 65536));
        } else {
            let good = results[0].unwrap_or(0);
            assert_eq!(size, good, "seed {seed}");
            cut += usize::from(good < 4 * 65536);
        }
        assert!(bytes[..results[0].unwrap_or(0)].iter().all(|b| *b == b'n'), "seed {seed}");
        drop((file, other));
        w.check_clean();
    }
    assert!(stayed > 50, "{stayed} stayed, {cut} cut");
}

/// Fills target 1 of a cluster to the last block of a direct write.
pub(super) async fn fill_target_1(client: &Client) {
    let dir = dir_on(client, 1).await;
    client.setxattr(&root(), dir, b"user.amphi.layout", b"whole", XattrMode::Set).await.expect("layout");
    let flags = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
    let file = client.create(&root(), dir, b"filler", 0o644, flags).await.expect("create").file;
    let mut at = 0;
    for len in [1 << 20, 65536, 4096] {
        while client.write(&root(), &file, at, filled(len, b'f'), Hints::default()).await.is_ok() {
            at += len as u64;
        }
    }
}

/// Goal: the extension by a partly failed direct write is cut off in shared mode as well, whichever mount has read or
/// written the file before. Bytes that another mount writes behind it stay, whenever it writes them (Promise S17).
/// Method: a real server with a full target, two mounts, and a write over three targets. The other mount does nothing,
/// has read everything, or writes behind the failed write at any moment. Size and bytes on both.
#[test]
fn a_failed_write_in_company_cuts_off_its_own() {
    let (mut cut, mut stayed) = (0, 0);
    for seed in 0..24 {
        in_cluster(seed, async |c: &Cluster| {
            let [a, b] = c.two().await;
            fill_target_1(&b).await;
            let made = create(&a, "f").await;
            a.setxattr(&root(), made.ino(), b"user.amphi.layout", b"striped,size=64K", XattrMode::Set).await.unwrap();
            let past = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
            let (mine, theirs) = (open(&a, "f", past).await, open(&b, "f", OpenFlags::READ_WRITE).await);
            if seed % 3 == 1 {
                assert_eq!(read(&b, &theirs, 0, 4096).await, b"");
            }
            let write_far = async {
                if seed % 3 != 2 {
                    return false;
                }
                c.env.sleep(std::time::Duration::from_micros(seed * 150)).await;
                let far = b.write(&root(), &theirs, 8 * 65536, filled(4096, b'o'), Hints::default()).await;
                assert_eq!(far, Ok(4096));
                true
            };
            let write = a.write(&root(), &mine, 0, filled(4 * 65536, b'n'), Hints::default());
            let (written, is_far) = futures_util::join!(write, write_far);
            assert_eq!(written, Ok(65536), "seed {seed}: the second piece finds its target full");
            let size = if is_far { 8 * 65536 + 4096 } else { 65536 };
            for (client, file) in [(&a, &mine), (&b, &theirs)] {
                assert_eq!(client.getattr(&root(), file.ino()).await.unwrap().size, size, "seed {seed}");
                let bytes = read(client, file, 0, 1 << 20).await;
                assert_eq!(bytes.len() as u64, size, "seed {seed}");
                assert!(bytes[..65536].iter().all(|b| *b == b'n'), "seed {seed}");
                assert!(!is_far || bytes[8 * 65536..].iter().all(|b| *b == b'o'), "seed {seed}");
            }
            *if is_far { &mut stayed } else { &mut cut } += 1;
        });
    }
    assert_eq!((cut, stayed), (16, 8));
}

/// Goal: writes to a file that nobody can reach any more are dropped in silence. Method: unlink and close before the
/// write-back.
#[test]
fn write_back_of_a_removed_file() {
    let mut w = World::new(6, &[]);
    let root = Ctx::root();
    let file = w.create("f", OpenFlags::READ_WRITE);
    let ino = file.ino();
    let op = w.client.write(&root, &file, 0, filled(5000, b'x'), Hints::default());
    w.run(op).unwrap();
    drop(file);
    let op = w.client.unlink(&root, amphi_types::Ino::ROOT, b"f");
    w.run(op).unwrap();
    w.server.nodes.remove(&ino);
    w.check_clean();
}

/// Goal: scattered small runs are sent in no more requests at a time than a connection accepts, and all of them arrive.
/// Runs that a full connection refuses are sent again. Method: every other 512 bytes of a file are written, more runs
/// than may be under way, and then `fsync` is called. The same is done with a refusal.
#[test]
fn scattered_runs_are_written_back_in_bounded_numbers() {
    const RUNS: usize = FLIGHT_PARTS_MAX * 5 / 2;
    let mut w = World::new(6, &[("writeback.batch", "off")]);
    let root = Ctx::root();
    let file = w.create("f", OpenFlags::READ_WRITE);
    for run in 0..RUNS as u64 {
        if w.client.try_write(&root, &file, run * 1024, &[7; 512], Hints::default()).is_none() {
            let op = w.client.write(&root, &file, run * 1024, filled(512, 7), Hints::default());
            assert_eq!(w.run(op), Ok(512));
        }
    }
    w.server.refuse_writes = vec![(0, Errno::Again), (1024, Errno::Again)];
    let mount = w.client.mount.clone();
    let left = crate::writeback::flush::start(&mount, &file.file, amphi_types::ByteRange::ALL);
    assert_eq!((left, mount.writeback.flight_parts.load(SeqCst)), (true, FLIGHT_PARTS_MAX));
    let op = w.client.fsync(&root, &file, false);
    assert_eq!(w.run(op), Ok(()));
    assert_eq!((mount.writeback.flight_parts.load(SeqCst), mount.cache.dirty_bytes()), (0, 0));
    mount.cache.forget(&file.file, amphi_types::ByteRange::ALL, amphi_pagecache::Dirty::Keep);
    let op = w.client.read(&root, &file, 0, RUNS * 1024, Hints::default());
    let bytes = w.run(op).unwrap().to_vec();
    let expected = |at: usize| if at % 1024 < 512 { 7 } else { 0 };
    assert!(bytes.len() == RUNS * 1024 - 512 && bytes.iter().enumerate().all(|(at, b)| *b == expected(at)));
    drop(file);
    w.check_clean();
}

/// Goal: if the file system below the zones is full, writers get ENOSPC, no written data is lost, `statfs` shows it,
/// and the space can be freed and filled again. Operations on names and overwrites continue meanwhile (Promise S15).
/// Method: the node of a real server has little space. Direct writes continue until one is refused, twice, with a
/// removal in between. Then there is no space at all.
#[test]
fn a_full_file_system_below_is_no_space() {
    const ROOM: u64 = 48 << 20;
    const STEP: usize = 1 << 20;
    for seed in 0..3 {
        in_cluster(seed, async |c: &Cluster| {
            let a = c.mount().await;
            let dir = dir_on(&a, 1).await;
            a.setxattr(&root(), dir, b"user.amphi.layout", b"whole", XattrMode::Set).await.expect("layout");
            let past = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
            let before = a.statfs(&root()).await.expect("statfs");
            c.set_room(Some(ROOM));
            let free = async || {
                let s = a.statfs(&root()).await.expect("statfs");
                s.blocks_free * u64::from(s.block_size)
            };
            let shown = free().await;
            assert!(shown <= ROOM && shown < before.blocks_free * u64::from(before.block_size), "{shown}");
            let mut sizes = Vec::new();
            for (name, byte) in [(&b"one"[..], 1u8), (b"two", 2)] {
                let file = a.create(&root(), dir, name, 0o644, past).await.expect("create").file;
                let mut at = 0;
                let refused = loop {
                    match a.write(&root(), &file, at, filled(STEP, byte), Hints::default()).await {
                        Ok(n) => at += n as u64,
                        Err(e) => break e,
                    }
                };
                assert_eq!(refused, Errno::NoSpace, "seed {seed}");
                assert!(free().await < 2 << 20, "seed {seed}: {} shown as free", free().await);
                assert_eq!(a.fsync(&root(), &file, false).await, Ok(()), "what was written is safe");
                assert_eq!(
                    a.write(&root(), &file, 0, filled(STEP, byte), Hints::default()).await,
                    Ok(STEP),
                    "in place"
                );
                for from in (0..at).step_by(STEP) {
                    assert!(read(&a, &file, from, STEP).await == vec![byte; STEP], "seed {seed}: at {from}");
                }
                sizes.push(at);
                let flags = OpenFlags::READ_WRITE;
                a.create(&root(), dir, &[name, b".empty"].concat(), 0o644, flags).await.expect("names go on");
                drop(file);
                if byte == 1 {
                    a.unlink(&root(), dir, name).await.expect("unlink");
                    a.sync_all(&root()).await.expect("sync");
                    c.until("its space is free", || a.mount.files.all().iter().all(|f| f.open_count() == 0)).await;
                    c.env.sleep(std::time::Duration::from_secs(10)).await;
                }
            }
            assert!(sizes[0] >= 8 << 20 && sizes[0] <= ROOM, "seed {seed}: {sizes:?}");
            assert!(sizes[1] + (2 << 20) >= sizes[0], "seed {seed}: what was freed is used again: {sizes:?}");
            c.set_room(Some(0));
            let file = a.create(&root(), dir, b"three", 0o644, OpenFlags::READ_WRITE).await.expect("create").file;
            // This is more than the space that the overwrites have left, because blocks with checksums are written to
            // new places.
            let written = a.write(&root(), &file, 0, filled(8 << 20, 3), Hints::default()).await.map(drop);
            let told = written.and(a.fsync(&root(), &file, false).await);
            assert_eq!(told, Err(Errno::NoSpace), "seed {seed}");
            let _ = a.flush(&root(), &file).await;
            a.unlink(&root(), dir, b"two").await.expect("unlink");
            let _ = a.sync_all(&root()).await;
            c.env.sleep(std::time::Duration::from_secs(10)).await;
            write(&a, &file, 0, &[3; 200_000]).await;
            assert_eq!(a.fsync(&root(), &file, false).await, Ok(()), "seed {seed}");
        });
    }
}

/// Goal: Promise S16 for data that a server has accepted into memory: if its disk refuses the data, each open file of
/// each mount that wrote it gets the error once, by `fsync` or when it is closed. Files and mounts that did not write
/// it get no error, and all bytes are there. Method: two mounts make small direct writes, and a third one has the file
/// open. Writes of data fail on the server for a while.
#[test]
fn a_refused_flush_is_told_to_each_open_file() {
    in_cluster(31, async |c: &Cluster| {
        let [a, b] = c.two().await;
        let other = c.mount().await;
        let direct = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
        let dir = dir_on(&a, 0).await;
        let by_a = a.create(&root(), dir, b"f", 0o644, direct).await.expect("create").file;
        let ino = by_a.ino();
        let [second, by_b, reader] = [&a, &b, &other].map(async |m| m.open(&root(), ino, direct).await.expect("open"));
        let (second, by_b, reader) = (second.await, by_b.await, reader.await);
        let calm = a.create(&root(), dir, b"calm", 0o644, direct).await.expect("create").file;
        c.sim.on_disk_op("server", |op| {
            let data = op.kind == DiskOpKind::Write && op.at >= DATA;
            data.then_some(std::io::ErrorKind::Other)
        });
        write(&a, &by_a, 0, &[1; 40_000]).await;
        write(&b, &by_b, 40_000, &[2; 40_000]).await;
        let refused = |m: &Client| m.mount.stats.of(Count::WriteRefused).0;
        c.until("both are told", || refused(&a) == 1 && refused(&b) == 1).await;
        c.env.sleep(std::time::Duration::from_secs(10)).await;
        assert_eq!((refused(&a), refused(&b), refused(&other)), (1, 1, 0));
        assert_eq!(a.flush(&root(), &by_a).await, Err(Errno::Io), "close of who wrote");
        assert_eq!(a.flush(&root(), &by_a).await, Ok(()), "once");
        assert_eq!(b.fsync(&root(), &by_b, false).await, Err(Errno::Io));
        assert_eq!(other.flush(&root(), &reader).await, Ok(()));
        write(&a, &calm, 0, &[3; 4096]).await;
        assert_eq!(a.fsync(&root(), &calm, false).await, Ok(()), "another file");
        c.sim.clear_disk_hook("server");
        c.env.sleep(std::time::Duration::from_secs(10)).await;
        assert_eq!(a.fsync(&root(), &by_a, false).await, Ok(()), "it was told, and all is on the disk");
        assert_eq!(a.fsync(&root(), &second, false).await, Err(Errno::Io), "it was not");
        assert_eq!(a.fsync(&root(), &second, false).await, Ok(()));
        let found = read(&other, &reader, 0, 100_000).await;
        assert!(found == [vec![1; 40_000], vec![2; 40_000]].concat());
        let late = b.open(&root(), ino, direct).await.expect("open");
        assert_eq!(b.fsync(&root(), &late, false).await, Ok(()), "somebody was told");
    });
}
