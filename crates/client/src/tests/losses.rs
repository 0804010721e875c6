//! Bytes that cannot be stored: which callers get that, and what the file has afterwards.

use super::faults::fill_target_1;
use super::sharing::{Cluster, create, in_cluster, open, read, root};
use super::world::World;
use crate::Posting;
use crate::api::{Hints, OpenFlags};
use crate::coherence::{closes, opened_ahead};
use crate::writeback::writeback_errors;
use amphi_env::Buf;
use amphi_types::{ByteRange, Errno, Ino, IoMode, TargetId};
use amphi_wire::XattrMode;

/// Bytes of a stripe unit of the tests.
const STRIPE: usize = 64 << 10;

fn filled(len: usize, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(len);
    buf.fill(byte);
    buf
}

/// Drops everything that is cached, and all files that nobody uses.
fn forget_all(w: &mut World) {
    w.settle();
    let mount = w.client.mount.clone();
    opened_ahead::lose(&mount, None);
    closes::hurry_all(&mount);
    w.settle();
    for _ in 0..64 {
        mount.cache.evict(0).iter().for_each(|file| mount.files.reap(file));
    }
    mount.files.all().iter().for_each(|file| mount.files.reap(file));
}

/// Goal: a caller that syncs all files gets each loss, whatever its reason, and the end of the mount does not report it
/// again (Promise S16). Method: write-back of a closed file is refused because of a limit, and a posted write fails.
#[test]
fn every_loss_is_told_to_a_sync_of_all() {
    let mut w = World::new(21, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    let op = w.client.write(&root(), &file, 0, filled(5000, b'x'), Hints::default());
    assert_eq!(w.run(op), Ok(5000));
    drop(file);
    w.server.refuse_writes = vec![(0, Errno::Quota)];
    let sync = |w: &mut World| {
        let op = w.client.sync_all(&root());
        w.run(op)
    };
    assert_eq!([sync(&mut w), sync(&mut w)], [Err(Errno::Quota), Ok(())]);
    assert_eq!(w.client.mount.files.secret_loss(), None);
    let file = w.create("g", OpenFlags::READ_WRITE);
    Posting::failed(&file, ByteRange::new(0, 10), Errno::NoSpace);
    assert_eq!(w.client.mount.files.secret_loss(), Some(Errno::NoSpace));
    assert_eq!([sync(&mut w), sync(&mut w)], [Err(Errno::NoSpace), Ok(())]);
    assert_eq!(w.client.mount.files.secret_loss(), None);
    drop(file);
    w.check_clean();
}

/// Goal: if a server cannot write what it has accepted, the next program that opens the file gets that, also if the
/// file was closed but cached when the message came, and was forgotten afterwards (Promise S16). Method: the message
/// comes in that state, alone and after a loss that the end of the mount has to report.
#[test]
fn a_refusal_outlives_the_cached_file() {
    for is_lost in [false, true] {
        let mut w = World::new(22, &[]);
        let file = w.create("f", OpenFlags::READ_WRITE);
        let ino = file.ino();
        let op = w.client.write(&root(), &file, 0, filled(5000, b'o'), Hints::default());
        assert_eq!(w.run(op), Ok(5000));
        let op = w.client.fsync(&root(), &file, false);
        assert_eq!(w.run(op), Ok(()));
        if is_lost {
            file.file.failures.note(Errno::NoSpace, ByteRange::new(0, 10));
        }
        drop(file);
        w.settle();
        assert!(w.client.mount.files.get(ino).is_some(), "it is cached");
        writeback_errors::refused(&w.client.mount, TargetId(0), 7, ino);
        w.settle();
        forget_all(&mut w);
        assert!(w.client.mount.files.get(ino).is_none());
        if is_lost {
            writeback_errors::refused(&w.client.mount, TargetId(0), 8, ino);
            w.settle();
        }
        let expected = is_lost.then_some(Errno::Io);
        assert_eq!(w.client.mount.files.secret_loss(), expected, "a refusal alone loses nothing");
        let op = w.client.open(&root(), ino, OpenFlags::READ);
        let again = w.run(op).expect("open");
        for expected in [Err(Errno::Io), Ok(())] {
            let op = w.client.fsync(&root(), &again, false);
            assert_eq!(w.run(op), expected);
        }
        assert_eq!(w.client.mount.files.secret_loss(), None);
        drop(again);
        w.check_clean();
    }
}

/// Goal: a write that gets the error for want of space is the only caller that gets it, however early its bytes were
/// sent (Promise S16). Method: a write of more than may be dirty, without a grant, of which one request is refused
/// while the write still waits to cache the rest.
#[test]
fn a_write_that_was_told_is_the_only_one() {
    const LEN: usize = 8 << 20;
    for seed in 0..8 {
        let mut w = World::new(seed, &[("cache.max_bytes", "16M"), ("cache.dirty_percent", "25")]);
        w.server.grant_blocks = 0;
        let file = w.create("f", OpenFlags::READ_WRITE);
        file.set_io_mode(IoMode::Buffered);
        w.server.refuse_writes = vec![(0, Errno::NoSpace)];
        let op = w.client.write(&root(), &file, 0, filled(LEN, b'n'), Hints::default());
        let written = w.run(op);
        assert!(w.server.refuse_writes.is_empty(), "seed {seed}");
        assert!(written == Err(Errno::NoSpace) || written.is_ok_and(|n| n < LEN), "seed {seed}: {written:?}");
        let op = w.client.fsync(&root(), &file, false);
        assert_eq!(w.run(op), Ok(()), "seed {seed}");
        assert_eq!(w.server.contents(file.ino()).len(), written.unwrap_or(0), "seed {seed}");
        let op = w.client.sync_all(&root());
        assert_eq!(w.run(op), Err(Errno::NoSpace), "seed {seed}: bytes were lost");
        drop(file);
        w.check_clean();
    }
}

/// Goal: a cached write that finds no space returns the length of what was stored from its start, or the error, also if
/// it has to be stable when it returns; what it has stored behind that does not extend the file (Promise S16). Method:
/// one of four pieces is refused, each piece in turn, without a grant; with O_SYNC, as an append, and over existing
/// bytes.
#[test]
fn partly_refused_cached_writes() {
    for case in 0..32u64 {
        let (refused, sync, append, old) =
            (case % 4, case / 4 % 2 == 1, case / 8 % 2 == 1, [0, STRIPE][case as usize / 16]);
        let mut w = World::new(30 + case, &[]);
        let file = w.create("f", OpenFlags { sync, append, ..OpenFlags::READ_WRITE });
        file.set_io_mode(IoMode::Buffered);
        let op = w.client.setxattr(&root(), file.ino(), b"user.amphi.layout", b"striped,size=64K", XattrMode::Set);
        w.run(op).expect("layout");
        if old > 0 {
            let op = w.client.write(&root(), &file, 0, filled(old, b'o'), Hints::default());
            assert_eq!(w.run(op), Ok(old));
            let op = w.client.fsync(&root(), &file, false);
            assert_eq!(w.run(op), Ok(()));
        }
        let start = if append { old } else { 0 };
        let grants = &w.client.mount.writeback.grants;
        (0..4).for_each(|target| grants.unknown(TargetId(target)));
        w.server.grant_blocks = 0;
        let errno = if case % 3 == 0 { Errno::Quota } else { Errno::NoSpace };
        w.server.refuse_writes = vec![(start as u64 + refused * STRIPE as u64, errno)];
        let op = w.client.write(&root(), &file, 0, filled(4 * STRIPE, b'n'), Hints::default());
        let written = w.run(op);
        let good = written.unwrap_or(0);
        assert!(written.is_ok_and(|n| n > 0) || written == Err(errno), "case {case}: {written:?}");
        assert!(good >= refused as usize * STRIPE && good < 4 * STRIPE, "case {case}: {good}");
        let size = (start + good).max(old);
        let op = w.client.getattr(&root(), file.ino());
        assert_eq!(w.run(op).expect("stat").size as usize, size, "case {case}");
        let bytes = w.server.contents(file.ino());
        assert_eq!(bytes.len(), size, "case {case}");
        assert!(bytes[start..start + good].iter().all(|b| *b == b'n'), "case {case}");
        assert!(bytes[..start].iter().all(|b| *b == b'o'), "case {case}");
        let op = w.client.fsync(&root(), &file, false);
        assert_eq!(w.run(op), Ok(()), "case {case}: the write has said it");
        drop(file);
        w.check_clean();
    }
}

/// Goal: what a refused cached write has stored behind its end is cut off in shared mode too, on both mounts, and bytes
/// that the other mount writes behind it stay (Promise S16). Method: a real server with a full target, two mounts, and
/// a cached write over three targets. The other mount does nothing, has read everything, or writes behind the write.
#[test]
fn a_refused_cached_write_in_company_cuts_off_its_own() {
    let (mut cut, mut stayed) = (0, 0);
    for seed in 0..12 {
        in_cluster(500 + seed, async |c: &Cluster| {
            let [a, b] = c.two().await;
            fill_target_1(&b).await;
            let made = create(&a, "f").await;
            a.setxattr(&root(), made.ino(), b"user.amphi.layout", b"striped,size=64K", XattrMode::Set).await.unwrap();
            let (mine, theirs) =
                (open(&a, "f", OpenFlags::READ_WRITE).await, open(&b, "f", OpenFlags::READ_WRITE).await);
            mine.set_io_mode(IoMode::Buffered);
            if seed % 3 == 1 {
                assert_eq!(read(&b, &theirs, 0, 4096).await, b"");
            }
            let far = 8 * STRIPE;
            if seed % 3 == 2 {
                let written = b.write(&root(), &theirs, far as u64, filled(4096, b'o'), Hints::default()).await;
                assert_eq!(written, Ok(4096), "seed {seed}");
            }
            let written = a.write(&root(), &mine, 0, filled(4 * STRIPE, b'n'), Hints::default()).await;
            assert_eq!(written, Ok(STRIPE), "seed {seed}: the second piece finds its target full");
            let size = if seed % 3 == 2 { far + 4096 } else { STRIPE };
            for (client, file) in [(&a, &mine), (&b, &theirs)] {
                assert_eq!(client.getattr(&root(), file.ino()).await.unwrap().size as usize, size, "seed {seed}");
                let bytes = read(client, file, 0, 1 << 20).await;
                assert_eq!(bytes.len(), size, "seed {seed}");
                assert!(bytes[..STRIPE].iter().all(|b| *b == b'n'), "seed {seed}");
                assert!(seed % 3 < 2 || bytes[far..].iter().all(|b| *b == b'o'), "seed {seed}");
            }
            assert_eq!(a.fsync(&root(), &mine, false).await, Ok(()), "seed {seed}");
            *if seed % 3 == 2 { &mut stayed } else { &mut cut } += 1;
        });
    }
    assert_eq!((cut, stayed), (8, 4));
}

/// Goal: the same for a mount that is alone: what its server has is what a later mount sees (Promise S16). Method: a
/// cached write over three targets of which one is full, then a second mount.
#[test]
fn a_refused_cached_write_of_a_lone_mount() {
    for seed in 0..4 {
        in_cluster(520 + seed, async |c: &Cluster| {
            let a = c.mount().await;
            fill_target_1(&a).await;
            let made = create(&a, "f").await;
            a.setxattr(&root(), made.ino(), b"user.amphi.layout", b"striped,size=64K", XattrMode::Set).await.unwrap();
            made.set_io_mode(IoMode::Buffered);
            let written = a.write(&root(), &made, 0, filled(4 * STRIPE, b'n'), Hints::default()).await;
            assert_eq!(written, Ok(STRIPE), "seed {seed}");
            let more = a.write(&root(), &made, STRIPE as u64, filled(STRIPE, b'm'), Hints::default()).await;
            assert_eq!(more, Err(Errno::NoSpace), "seed {seed}");
            let b = c.mount().await;
            let theirs = open(&b, "f", OpenFlags::READ).await;
            for (client, file) in [(&b, &theirs), (&a, &made)] {
                assert_eq!(client.getattr(&root(), made.ino()).await.unwrap().size as usize, STRIPE, "seed {seed}");
                assert_eq!(read(client, file, 0, 1 << 20).await, [b'n'; STRIPE], "seed {seed}");
            }
            assert_eq!(a.fsync(&root(), &made, false).await, Ok(()), "seed {seed}");
        });
    }
}

/// Goal: lost pages of a front end, which reports them itself to the programs that have the file open, are reported to
/// a caller that syncs all files and otherwise by the end of the mount (Promise S16). Method: write-back of pages that
/// goes past the cache is refused, while the file is open, and with the file forgotten afterwards.
#[test]
fn lost_pages_are_on_record() {
    for is_forgotten in [false, true] {
        let mut w = World::new(23, &[]);
        let file = w.create("f", OpenFlags { direct: true, ..OpenFlags::READ_WRITE });
        let op = w.client.write(&root(), &file, 0, filled(8192, b'o'), Hints::default());
        assert_eq!(w.run(op), Ok(8192));
        w.server.refuse_writes = vec![(0, Errno::Io)];
        let hints = Hints { write_back: true, ..Hints::default() };
        let op = w.client.write(&root(), &file, 0, filled(4096, b'n'), hints);
        assert_eq!(w.run(op), Err(Errno::Io));
        let op = w.client.fsync(&root(), &file, false);
        assert_eq!(w.run(op), Ok(()), "the front end says it");
        let ino = file.ino();
        let file = if is_forgotten {
            drop(file);
            forget_all(&mut w);
            assert!(w.client.mount.files.get(ino).is_none());
            None
        } else {
            Some(file)
        };
        assert_eq!(w.client.mount.files.secret_loss(), Some(Errno::Io));
        for expected in [Err(Errno::Io), Ok(())] {
            let op = w.client.sync_all(&root());
            assert_eq!(w.run(op), expected);
        }
        assert_eq!(w.client.mount.files.secret_loss(), None);
        drop(file);
        assert_ne!(ino, Ino::ROOT);
        w.check_clean();
    }
}
