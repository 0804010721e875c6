//! The way of requests, their messages, and their counters.

use super::world::World;
use crate::api::{Ctx, Hints, OpenFlags};
use crate::policy::decision::Reason;
use crate::telemetry::stats::{Count, Way};
use crate::{OpenFile, UNIT_BYTES};
use amphi_env::Buf;
use amphi_types::{Ino, Pattern};
use amphi_wire::{RenameMode, XattrMode};
use std::sync::Arc;

pub(super) fn write(w: &mut World, file: &Arc<OpenFile>, tid: u32, at: u64, len: usize, may_continue: bool) {
    let hints = Hints { may_continue, ..Hints::default() };
    let ctx = Ctx { tid, ..Ctx::root() };
    let bytes = vec![1; len];
    if w.client.try_write(&ctx, file, at, &bytes, hints).is_none() {
        let op = w.client.write(&ctx, file, at, Buf::copy_of(&bytes), hints);
        assert_eq!(w.run(op), Ok(len));
    }
}

pub(super) fn read(w: &mut World, file: &Arc<OpenFile>, at: u64, len: usize) -> usize {
    let (ctx, mut into) = (Ctx::root(), vec![0; len]);
    match w.client.try_read(&ctx, file, at, &mut into, Hints::default()) {
        Some(n) => n,
        None => {
            let op = w.client.read(&ctx, file, at, len, Hints::default());
            w.run(op).unwrap().len()
        }
    }
}

pub(super) fn io(w: &World, way: Way, reason: Reason) -> (u64, u64) {
    w.client.mount.stats.io_of(way, reason)
}

pub(super) fn sent(w: &World, name: &str) -> usize {
    w.server.log.iter().filter(|l| *l == name).count()
}

/// Goal: the memory of a buffered write of exactly one unit stays in the cache, in both kinds of calls, and no other
/// memory does. Lent memory of the former unit is unchanged, and the server gets the last written bytes. Method:
/// addresses of memory, and the counter.
#[test]
fn whole_units_keep_their_memory() {
    let mut w = World::new(1, &[]);
    let (ctx, hints) = (Ctx::root(), Hints::default());
    let file = w.create("f", OpenFlags::READ_WRITE);
    let unit_of = |byte: u8| {
        let mut unit = Buf::scratch(UNIT_BYTES);
        unit.fill(byte);
        unit
    };
    let adopted = |w: &World| w.client.mount.stats.of(Count::Adopted).0;
    let lend = |w: &World, at: u64| w.client.try_lend(&ctx, &file, at, UNIT_BYTES, hints).expect("cached");
    let at = 3 * UNIT_BYTES as u64;
    // This call takes the slow way, since the mount has no lock yet.
    let unit = unit_of(1);
    let first = unit.as_ptr();
    let op = w.client.write(&ctx, &file, at, unit, hints);
    assert_eq!(w.run(op), Ok(UNIT_BYTES));
    assert_eq!(adopted(&w), 1);
    assert_eq!(lend(&w, at)[0].as_ptr(), first);
    // The quick way: an exchange while it has no borrower.
    let mut unit = unit_of(2);
    let second = unit.as_ptr();
    assert_eq!(w.client.try_write_buf(&ctx, &file, at, &mut unit, hints), Some(UNIT_BYTES));
    assert_eq!((unit.as_ptr(), unit.len(), adopted(&w)), (first, UNIT_BYTES, 2));
    let lent = lend(&w, at);
    assert_eq!(lent[0].as_ptr(), second);
    // While it is lent, its memory stays with the reader.
    unit.fill(3);
    assert_eq!(w.client.try_write_buf(&ctx, &file, at, &mut unit, hints), Some(UNIT_BYTES));
    assert_eq!((unit.len(), unit.capacity(), adopted(&w)), (UNIT_BYTES, UNIT_BYTES, 3));
    assert!(unit.as_ptr() != first && unit.as_ptr() != second);
    unit.fill(4);
    assert!(lent[0].iter().all(|&b| b == 2) && lend(&w, at)[0].iter().all(|&b| b == 3));
    // Three cases: the buffer is no unit, its memory is not of exactly that size, or the feature is switched off.
    let refused = |w: &mut World, at: u64, mut buf: Buf| {
        let (memory, n) = (buf.as_ptr(), adopted(w));
        let len = buf.len();
        assert_eq!(w.client.try_write_buf(&ctx, &file, at, &mut buf, hints), Some(len));
        assert_eq!((buf.as_ptr(), adopted(w)), (memory, n));
    };
    refused(&mut w, at + 4096, unit_of(3));
    let mut shorter = unit_of(3);
    shorter.narrow(0..4096);
    refused(&mut w, at, shorter);
    let mut larger = Buf::scratch(2 * UNIT_BYTES);
    larger.fill(3);
    let part = larger.split_to(UNIT_BYTES);
    refused(&mut w, at, larger);
    drop(part);
    let op = w.client.fsync(&ctx, &file, false);
    w.run(op).unwrap();
    let size = at as usize + UNIT_BYTES + 4096;
    let op = w.client.read(&ctx, &file, at, 2 * UNIT_BYTES, Hints { direct: true, ..hints });
    let past = w.run(op).unwrap().to_vec();
    assert!(past.len() == size - at as usize && past.iter().all(|&b| b == 3), "on the server");
    w.client.mount.cache.check();
}

/// Goal: a unit that was not written for long keeps its memory and is written in place, and is exchanged again once it
/// is near. Method: three units in turn, then 16 MiB of other units, and then one of the three units twice.
#[test]
fn cold_units_are_written_in_place() {
    let mut w = World::new(1, &[("hybrid.mode", "buffered"), ("writeback.run_bytes", "64M")]);
    let (ctx, hints) = (Ctx::root(), Hints::default());
    let file = w.create("f", OpenFlags::READ_WRITE);
    let op = w.client.write(&ctx, &file, 0, Buf::zeroed(4 * UNIT_BYTES), hints);
    assert_eq!(w.run(op), Ok(4 * UNIT_BYTES));
    let mut unit = Buf::scratch(UNIT_BYTES);
    let mut kept = |w: &World, index: usize, byte: u8| {
        unit.fill(byte);
        let (memory, at) = (unit.as_ptr(), (index * UNIT_BYTES) as u64);
        assert_eq!(w.client.try_write_buf(&ctx, &file, at, &mut unit, hints), Some(UNIT_BYTES));
        unit.as_ptr() != memory
    };
    assert!((0..3).all(|i| kept(&w, i, 1)), "all of them were just written");
    let others = w.create("others", OpenFlags::READ_WRITE);
    let op = w.client.write(&ctx, &others, 0, Buf::zeroed(17 << 20), hints);
    assert_eq!(w.run(op), Ok(17 << 20));
    assert!(!kept(&w, 0, 2), "16 MiB of others were written meanwhile");
    assert!(kept(&w, 0, 3), "just written");
    assert!(kept(&w, 0, 4));
    let loans = w.client.try_lend(&ctx, &file, 0, 4 * UNIT_BYTES, hints).expect("cached");
    let bytes: Vec<u8> = loans.iter().flat_map(|l| l.iter().copied()).collect();
    for (i, byte) in [4, 1, 1, 0].into_iter().enumerate() {
        assert!(bytes[i * UNIT_BYTES..(i + 1) * UNIT_BYTES].iter().all(|&b| b == byte), "unit {i}");
    }
    w.client.mount.cache.check();
}

/// Goal: chunks that were written in one call, or within a long stream, are sent without a copy, and so are adopted
/// units. The written bytes arrive. Method: a chunk in one call, then a stream of quarters, and a chunk that is
/// adopted. The test checks counters, and the bytes on the server.
#[test]
fn whole_chunks_leave_without_a_copy() {
    const QUARTER: usize = 256 << 10;
    let mut w = World::new(1, &[]);
    let (ctx, hints) = (Ctx::root(), Hints::default());
    let file = w.create("f", OpenFlags::READ_WRITE);
    let byte = |at: usize| (at / QUARTER) as u8 + 1;
    let put = |w: &mut World, at: usize, len: usize| {
        // In more memory than that: it is not kept.
        let mut bytes = Buf::scratch(len + 4096);
        bytes.narrow(0..len);
        bytes.chunks_mut(QUARTER).zip((at..).step_by(QUARTER)).for_each(|(part, at)| part.fill(byte(at)));
        if w.client.try_write(&ctx, &file, at as u64, &bytes, hints).is_none() {
            let op = w.client.write(&ctx, &file, at as u64, bytes, hints);
            assert_eq!(w.run(op), Ok(len));
        }
    };
    put(&mut w, 0, QUARTER);
    put(&mut w, 1 << 20, 1 << 20);
    (2 << 20..7 << 20).step_by(QUARTER).for_each(|at| put(&mut w, at, QUARTER));
    let mut given = Buf::scratch(1 << 20);
    given.chunks_mut(QUARTER).zip((7 << 20..).step_by(QUARTER)).for_each(|(part, at)| part.fill(byte(at)));
    let op = w.client.write(&ctx, &file, 7 << 20, given, hints);
    assert_eq!(w.run(op), Ok(1 << 20));
    assert_eq!(w.client.mount.stats.of(Count::Adopted).1, 1 << 20);
    let op = w.client.fsync(&ctx, &file, false);
    w.run(op).unwrap();
    let of = |count: Count| w.client.mount.stats.of(count).1;
    // The part of the stream behind 4 MiB of the file.
    let lent = (1 + 3 + 1) << 20;
    assert_eq!((of(Count::WriteBack), of(Count::WriteBackLent)), ((7 << 20) + QUARTER as u64, lent));
    let op = w.client.read(&ctx, &file, 0, 8 << 20, Hints { direct: true, ..hints });
    let past = w.run(op).unwrap().to_vec();
    let is_right = |at: usize| past[at] == if (QUARTER..1 << 20).contains(&at) { 0 } else { byte(at) };
    assert!(past.len() == 8 << 20 && (0..8 << 20).all(is_right), "on the server");
    w.client.mount.cache.check();
}

/// Goal: each request is counted under its reason, with its bytes, on the mount and on the file. Method: one request
/// for each reason that sizes, flags and modes give.
#[test]
fn reasons_are_counted() {
    let mut w = World::new(1, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    write(&mut w, &file, 1, 0, 4096, false);
    write(&mut w, &file, 1, 1 << 20, 64 << 10, false);
    write(&mut w, &file, 1, 4 << 20, 2 << 20, false);
    assert_eq!(io(&w, Way::Write, Reason::BufferedSmall), (1, 4096));
    assert_eq!(io(&w, Way::Write, Reason::BufferedDefault), (1, 64 << 10));
    assert_eq!(io(&w, Way::Write, Reason::DirectLarge), (1, 2 << 20));
    assert_eq!(read(&mut w, &file, 0, 4096), 4096);
    assert_eq!(io(&w, Way::Read, Reason::CacheHit), (1, 4096));
    let mode = |w: &mut World, value: &[u8]| {
        let op = w.client.setxattr(&Ctx::root(), file.ino(), b"user.amphi.mode", value, XattrMode::Set);
        w.run(op).unwrap();
    };
    mode(&mut w, b"direct");
    write(&mut w, &file, 1, 0, 100, false);
    assert_eq!(io(&w, Way::Write, Reason::DirectUser), (1, 100));
    mode(&mut w, b"buffered");
    write(&mut w, &file, 1, 0, 2 << 20, false);
    assert_eq!(io(&w, Way::Write, Reason::BufferedUser), (1, 2 << 20));
    mode(&mut w, b"auto");
    w.server.contended = true;
    write(&mut w, &file, 1, 8 << 20, 2 << 20, false);
    w.settle();
    w.server.contended = false;
    write(&mut w, &file, 1, 0, 64 << 10, false);
    assert_eq!(io(&w, Way::Write, Reason::DirectContention), (1, 64 << 10));
    w.clock.0.fetch_add(60_000_000_000, std::sync::atomic::Ordering::SeqCst);
    write(&mut w, &file, 1, 0, 64 << 10, false);
    assert_eq!(io(&w, Way::Write, Reason::BufferedDefault).0, 2, "contention is forgotten");
    assert!(file.counters().contains("write_direct_large 2 requests 4194304 bytes"), "{}", file.counters());
    assert!(file.counters().contains("read_cache_hit 1 requests 4096 bytes"), "{}", file.counters());
    drop(file);
    w.check_clean();
}

/// Goal: consecutive full pieces of one stream count as one request (H2), and other pieces do not. Method: pieces of 1
/// MiB of two streams are mixed. The second and later pieces of each count as large, until a short one ends the
/// request.
#[test]
fn pieces_count_together() {
    let mut w = World::new(1, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    let mib = 1 << 20;
    for i in 0..4u64 {
        write(&mut w, &file, 1, i * mib, mib as usize, true);
        write(&mut w, &file, 2, (100 + i) * mib, mib as usize, i < 3);
    }
    assert_eq!(io(&w, Way::Write, Reason::BufferedDefault), (2, 2 * mib), "the first piece of each");
    assert_eq!(io(&w, Way::Write, Reason::DirectLarge), (6, 6 * mib));
    write(&mut w, &file, 2, 104 * mib, mib as usize, false);
    assert_eq!(io(&w, Way::Write, Reason::BufferedDefault).0, 3, "the request of stream 2 had ended");
    write(&mut w, &file, 1, 7 * mib, mib as usize, false);
    assert_eq!(io(&w, Way::Write, Reason::BufferedDefault).0, 4, "not consecutive");
    drop(file);
    w.check_clean();
}

/// Goal: a small file costs one request (Make), which brings the lock, and a part of a batch of writes and of a batch
/// of closes. Without batches the writes cost one more. Method: make many files, then count. Reads of cached bytes cost
/// no message.
#[test]
fn requests_of_small_files() {
    for (batch, alone, together) in [("on", 0, 1), ("off", 20, 0)] {
        let mut w = World::new(1, &[("writeback.batch", batch)]);
        for i in 0..20 {
            let file = w.create(&format!("f{i}"), OpenFlags::READ_WRITE);
            write(&mut w, &file, 1, 0, 3000, false);
            write(&mut w, &file, 1, 3000, 3000, false);
            read(&mut w, &file, 0, 6000);
        }
        w.check_clean();
        let singles = [("Make", 20), ("LockEnqueue", 0), ("Write", alone), ("Read", 0), ("GetAttr", 0)];
        for (name, n) in singles.into_iter().chain([("WriteBatch", together)]) {
            assert_eq!(sent(&w, name), n, "{name} with batches {batch}");
        }
        // If the writes are sent one by one, the closes do not become due together.
        let closes = (sent(&w, "Close"), sent(&w, "CloseBatch"));
        assert!(closes == (0, 1) || batch == "off" && closes.0 + closes.1 < 10, "{closes:?} with batches {batch}");
    }
}

/// Goal: dirty data of a file without a name is never written, once it is not open any more. Method: write and close a
/// file, then unlink it. The same is done with an open file, which still finds its bytes until it is closed.
#[test]
fn nameless_files_are_not_written() {
    let mut w = World::new(1, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    write(&mut w, &file, 1, 0, 3000, false);
    drop(file);
    w.unlink("f");
    w.check_clean();
    assert_eq!((sent(&w, "Discard"), sent(&w, "Close"), sent(&w, "Write")), (1, 0, 0));
    let file = w.create("g", OpenFlags::READ_WRITE);
    write(&mut w, &file, 2, 0, 3000, false);
    w.unlink("g");
    read(&mut w, &file, 0, 3000);
    drop(file);
    w.check_clean();
    assert_eq!((sent(&w, "Discard"), sent(&w, "Close"), sent(&w, "Write")), (2, 0, 0));
}

/// Goal: the cache holds no data of a file that no program here can reach any more. Method: files that were written
/// back or read are unlinked, replaced by a rename, or unlinked while they are open and then closed.
#[test]
fn the_cache_holds_nothing_of_removed_files() {
    let mut w = World::new(1, &[]);
    let made = |w: &mut World, name: &str| {
        let file = w.create(name, OpenFlags::READ_WRITE);
        write(w, &file, 1, 0, 300_000, false);
        let op = w.client.fsync(&Ctx::root(), &file, false);
        w.run(op).unwrap();
        file
    };
    let cached = |w: &World| w.client.mount.cache.used_bytes();
    drop((made(&mut w, "f"), made(&mut w, "g")));
    w.settle();
    assert!(cached(&w) >= 600_000, "closed files stay in the cache");
    w.unlink("f");
    w.settle();
    let one = cached(&w);
    assert!((300_000..600_000).contains(&one), "{one}");
    drop(made(&mut w, "h"));
    let op = w.client.rename(&Ctx::root(), (Ino::ROOT, b"h"), (Ino::ROOT, b"g"), RenameMode::Replace);
    w.run(op).unwrap();
    w.settle();
    assert_eq!(cached(&w), one, "what had the name is gone, what has it is not");
    let file = made(&mut w, "i");
    w.unlink("i");
    assert_eq!(read(&mut w, &file, 0, 300_000), 300_000);
    assert!(cached(&w) > one, "it is open");
    drop(file);
    w.unlink("g");
    w.settle();
    assert_eq!(cached(&w), 0);
    w.check_clean();
}

/// Goal: memory lent to a read stays unchanged, and later reads see the write. Method: memory of two units is passed,
/// and then both are written.
#[test]
fn loans_do_not_change() {
    let mut w = World::new(1, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    write(&mut w, &file, 7, 0, 128 << 10, false);
    let (ctx, hints) = (Ctx::root(), Hints::default());
    let lend = |w: &World| w.client.try_lend(&ctx, &file, 60 << 10, 8 << 10, hints).expect("in the cache");
    let all = |loans: &crate::Loans| loans.iter().flat_map(|l| l.to_vec()).collect::<Vec<u8>>();
    let before = lend(&w);
    let bytes = all(&before);
    assert_eq!((before.len(), bytes.len()), (2, 8 << 10));
    assert_eq!(w.client.try_write(&ctx, &file, 60 << 10, &[9; 8 << 10], hints), Some(8 << 10));
    assert!(all(&before) == bytes && all(&lend(&w)) == [9; 8 << 10]);
    drop((before, file));
    w.check_clean();
}

/// Goal: a sequential reader finds its bytes in the cache; each byte is fetched once. Method: a file of 16 MiB is read
/// in steps of 128 KiB, and the background tasks run in between.
#[test]
fn read_ahead_is_ahead() {
    let mut w = World::new(1, &[("cache.max_bytes", "256M")]);
    let bytes: Vec<u8> = (0..16 << 20).map(|i: u32| (i / 977) as u8).collect();
    let ino = w.server.plant("f", &bytes, Pattern::Growing);
    let op = w.client.open(&Ctx::root(), ino, OpenFlags::READ);
    let file = w.run(op).unwrap();
    for at in (0..bytes.len()).step_by(128 << 10) {
        assert_eq!(read(&mut w, &file, at as u64, 128 << 10), 128 << 10);
        w.settle();
    }
    let (hits, _) = io(&w, Way::Read, Reason::CacheHit);
    assert!(hits >= 126, "{hits} of 128 reads were hits");
    assert_eq!(w.client.mount.stats.of(Count::Fill).1, 16 << 20, "each byte once");
    assert!(sent(&w, "Read") <= 30, "{} requests", sent(&w, "Read"));
    drop(file);
    w.check_clean();
}

/// Goal: writers of more than the cache holds are throttled, memory stays bounded, nothing is lost. Method: 24 MiB
/// buffered through a cache of 8 MiB, then compare.
#[test]
fn memory_is_bounded() {
    let mut w = World::new(1, &[("cache.max_bytes", "8M"), ("hybrid.mode", "buffered")]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    for at in (0..24u64 << 20).step_by(256 << 10) {
        write(&mut w, &file, 1, at, 256 << 10, false);
        assert!(w.client.mount.cache.used_bytes() <= (8 << 20) + (1 << 20), "{}", w.client.mount.cache.used_bytes());
        assert!(w.client.mount.cache.dirty_bytes() <= 4 << 20);
    }
    let op = w.client.fsync(&Ctx::root(), &file, true);
    w.run(op).unwrap();
    assert_eq!(w.server.contents(file.ino()).len(), 24 << 20);
    for at in (0..24u64 << 20).step_by(1 << 20) {
        assert_eq!(read(&mut w, &file, at, 1 << 20), 1 << 20);
        assert!(w.client.mount.cache.used_bytes() <= 9 << 20);
    }
    drop(file);
    w.check_clean();
}

/// Goal: dirty bytes are written back at once if there are many, and otherwise by age. Large runs are sent in large
/// requests. Method: a run of 1 MiB, then a few bytes and time.
#[test]
fn write_back_by_size_and_age() {
    let mut w = World::new(1, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    for at in (0..1 << 20).step_by(64 << 10) {
        write(&mut w, &file, 1, at, 64 << 10, false);
    }
    w.settle();
    assert_eq!((sent(&w, "Write"), w.client.mount.cache.dirty_bytes()), (1, 0), "one request of 1 MiB");
    write(&mut w, &file, 1, 3 << 20, 100, false);
    crate::writeback::flush::tick(&w.client.mount);
    w.settle();
    assert_eq!(sent(&w, "Write"), 1, "too young");
    w.clock.0.fetch_add(5_100_000_000, std::sync::atomic::Ordering::SeqCst);
    crate::writeback::flush::tick(&w.client.mount);
    w.settle();
    assert_eq!((sent(&w, "Write"), w.client.mount.cache.dirty_bytes()), (2, 0));
    drop(file);
    w.check_clean();
}

/// Goal: requests in the window are direct for a file that is not read again, with probes (H5), also while all reads
/// were prefetched. Method: a file is streamed through a small cache in requests of the window, with and without
/// read-ahead.
#[test]
fn files_without_locality_go_direct() {
    for ahead in ["0", "64M"] {
        let tunables = [
            ("cache.max_bytes", "4M"),
            ("hybrid.locality_pages", "512"),
            ("readahead.max_bytes", ahead),
            ("hybrid.locality_probe", "8"),
            ("hybrid.learn", "off"),
        ];
        let mut w = World::new(1, &tunables);
        let ino = w.server.plant("f", &vec![7; 24 << 20], Pattern::Whole);
        let op = w.client.open(&Ctx::root(), ino, OpenFlags::READ);
        let file = w.run(op).unwrap();
        for at in (0..24u64 << 20).step_by(64 << 10) {
            assert_eq!(read(&mut w, &file, at, 64 << 10), 64 << 10);
        }
        let (direct, _) = io(&w, Way::Read, Reason::DirectLocality);
        let (buffered, _) = io(&w, Way::Read, Reason::BufferedDefault);
        let (hits, _) = io(&w, Way::Read, Reason::CacheHit);
        let cached = if ahead == "64M" { hits } else { buffered };
        assert!(direct > 150 && cached > 60, "ahead {ahead}: {direct} direct, {buffered} buffered, {hits} hits");
        drop(file);
        w.check_clean();
    }
}

/// Goal: a file that is opened again is written in the cache as quickly as before: its lock is still held. Method:
/// write, close, make the mount forget the file, and open it again. The second write after that does not have to wait.
#[test]
fn locks_outlive_files() {
    let mut w = World::new(1, &[]);
    let file = w.create("f", OpenFlags::READ_WRITE);
    let ino = file.ino();
    write(&mut w, &file, 1, 0, 100, false);
    drop(file);
    w.check_clean();
    let op = w.client.open(&Ctx::root(), ino, OpenFlags::READ_WRITE);
    let file = w.run(op).unwrap();
    write(&mut w, &file, 1, 0, 100, false);
    assert_eq!(w.client.try_write(&Ctx::root(), &file, 0, &[1; 100], Hints::default()), Some(100));
    assert_eq!(sent(&w, "LockEnqueue"), 0);
    drop(file);
    w.check_clean();
}

/// Goal: a program that waits for a few bytes does not wait for all bytes that a stream has left in the cache before.
/// The stream's bytes follow later. Method: much more than may be under way, then a small file that is synced. The
/// bytes that were written back until then are counted.
#[test]
fn a_sync_goes_before_what_streams_left_behind() {
    for seed in 0..20 {
        let mut w = World::new(
            seed,
            &[("cache.max_bytes", "1G"), ("writeback.flight_bytes", "2M"), ("hybrid.mode", "buffered")],
        );
        let (stream, small) = (w.create("stream", OpenFlags::READ_WRITE), w.create("small", OpenFlags::READ_WRITE));
        let written_back = |w: &World| w.client.mount.stats.of(Count::WriteBack).1;
        for at in (0..64 << 20).step_by(1 << 20) {
            write(&mut w, &stream, 1, at, 1 << 20, false);
        }
        write(&mut w, &small, 2, 0, 4096, false);
        let before = written_back(&w);
        assert!(before < 32 << 20, "{before} bytes are gone already: nothing is left behind");
        let op = w.client.fsync(&Ctx::root(), &small, false);
        w.run(op).expect("fsync");
        assert!(written_back(&w) - before <= 8 << 20, "{} bytes came first", written_back(&w) - before);
        w.settle();
        assert_eq!(written_back(&w), (64 << 20) + 4096, "all follows by itself");
        assert!(!w.client.mount.writeback.backlog.is_waited_for());
        drop((stream, small));
        w.check_clean();
    }
}
