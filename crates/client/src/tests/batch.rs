//! Small files that are written back together: the bytes and the time of each message, the result for each file, and
//! the fact that all other files are unaffected.

use super::world::World;
use crate::OpenFile;
use crate::api::{Ctx, Hints, OpenFlags};
use crate::telemetry::stats::Count;
use crate::writeback::flush;
use amphi_env::Buf;
use amphi_types::{ByteRange, Errno, Ino, SetAttr};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

fn filled(len: usize, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(len);
    buf.fill(byte);
    buf
}

fn write(w: &mut World, file: &Arc<OpenFile>, at: u64, len: usize, byte: u8) {
    let op = w.client.write(&Ctx::root(), file, at, filled(len, byte), Hints::default());
    assert_eq!(w.run(op), Ok(len));
}

fn sent(w: &World, name: &str) -> usize {
    w.server.log.iter().filter(|n| *n == name).count()
}

/// A closed file of `len` dirty bytes.
fn leave_dirty(w: &mut World, name: &str, len: usize) -> Ino {
    let file = w.create(name, OpenFlags::READ_WRITE);
    write(w, &file, 0, len, b'x');
    file.ino()
}

fn sync_all(w: &mut World) {
    let op = w.client.sync_all(&Ctx::root());
    w.run(op).expect("sync");
}

/// Goal: closed small files leave when there is a full batch of them, and not before. Method: files of 100 KiB in the
/// same directory are not small, and 300 files of 3,901 bytes are more than 1 MiB.
#[test]
fn a_full_batch_leaves_at_once() {
    let mut w = World::new(11, &[]);
    let large = leave_dirty(&mut w, "large", 100 << 10);
    for i in 0..268 {
        leave_dirty(&mut w, &format!("f{i}"), 3901);
    }
    w.settle();
    assert_eq!((sent(&w, "WriteBatch"), sent(&w, "Write"), sent(&w, "CloseBatch")), (0, 0, 0), "not yet a full batch");
    for i in 268..290 {
        leave_dirty(&mut w, &format!("f{i}"), 3901);
    }
    w.settle();
    assert_eq!((sent(&w, "WriteBatch"), sent(&w, "Write")), (1, 0));
    assert_eq!(sent(&w, "CloseBatch"), 1, "what landed together is closed together");
    let stats = &w.client.mount.stats;
    assert_eq!(stats.of(Count::BatchFiles).1, 268);
    assert_eq!(stats.of(Count::BatchBytes), (1, 268 * 3901));
    assert!(
        w.client.mount.files.get(large).is_some_and(|f| f.cached.dirty_bytes.load(SeqCst) > 0),
        "the large one waits for its time"
    );
    w.check_clean();
}

/// Goal: old files are sent in one batch, together with files that wait for others; those of other targets are sent in
/// another batch. Method: time passes between files; two directories on different targets.
#[test]
fn old_files_take_others_along() {
    let mut w = World::new(12, &[]);
    let mut dirs = vec![Ino::ROOT];
    for name in 0.. {
        let op = w.client.mkdir(&Ctx::root(), Ino::ROOT, format!("d{name}").as_bytes(), 0o755);
        let dir = w.run(op).unwrap().ino;
        if dir.target() != Ino::ROOT.target() {
            dirs.push(dir);
            break;
        }
    }
    for round in 0..2 {
        for dir in &dirs {
            for i in 0..5 {
                let name = format!("f{round}{i}");
                let op = w.client.create(&Ctx::root(), *dir, name.as_bytes(), 0o644, OpenFlags::READ_WRITE);
                let file = w.run(op).unwrap().file;
                write(&mut w, &file, 10, 1000, b'y');
            }
        }
        w.clock.0.fetch_add(3_000_000_000, SeqCst);
        flush::tick(&w.client.mount);
        w.settle();
        assert_eq!(sent(&w, "WriteBatch"), 2 * round, "after {} s", 3 * (round + 1));
    }
    assert_eq!(w.client.mount.stats.of(Count::BatchFiles), (2, 20), "the young ones came along");
    assert_eq!(sent(&w, "Write"), 0);
    w.check_clean();
}

/// Goal: `fsync` and a lock that is called back send their file alone, at once. Method: there are several dirty files.
/// One of them is synced, and the lock of another is called back. Each of them is a separate request, and the other
/// files stay in the cache.
#[test]
fn who_waits_for_one_file_sends_that_file() {
    let mut w = World::new(13, &[]);
    for i in 0..5 {
        leave_dirty(&mut w, &format!("f{i}"), 2000);
    }
    let file = w.create("synced", OpenFlags::READ_WRITE);
    write(&mut w, &file, 0, 2000, b's');
    let op = w.client.fsync(&Ctx::root(), &file, false);
    w.run(op).unwrap();
    assert_eq!((sent(&w, "Write"), sent(&w, "WriteBatch")), (1, 0));
    write(&mut w, &file, 0, 2000, b't');
    let lock = w.server.locks.iter().find(|(_, (o, _))| o.ino == file.ino()).map(|(id, (o, _))| (*id, *o)).unwrap();
    crate::locks::callback(&w.client.mount, w.client.mount.target_of(lock.1), lock.1, lock.0);
    w.settle();
    assert_eq!((sent(&w, "Write"), sent(&w, "WriteBatch"), sent(&w, "LockCancel")), (2, 0, 1));
    assert_eq!(w.server.contents(file.ino()), [b't'; 2000]);
    drop(file);
    w.check_clean();
}

/// Goal: a failure is reported on the file that it concerns and on no other (Promise S16). Method: one part of a batch
/// is refused, and the result of each file is checked.
#[test]
fn a_refused_part_is_its_files_alone() {
    let mut w = World::new(14, &[]);
    let root = Ctx::root();
    let files: Vec<_> = (0..6).map(|i| w.create(&format!("f{i}"), OpenFlags::READ_WRITE)).collect();
    for (i, file) in files.iter().enumerate() {
        write(&mut w, file, 1000 * i as u64, 3000, b'a' + i as u8);
    }
    // The first part at or behind this offset: of the third file.
    w.server.refuse_writes = vec![(2000, Errno::NoSpace)];
    let op = w.client.sync_all(&root);
    assert_eq!(w.run(op), Err(Errno::NoSpace), "it speaks for all files");
    assert_eq!((sent(&w, "WriteBatch"), sent(&w, "Write")), (1, 0));
    sync_all(&mut w);
    for (i, file) in files.iter().enumerate() {
        let expected = if i == 2 { Err(Errno::NoSpace) } else { Ok(()) };
        assert_eq!(w.client.flush(&root, file).wait(None), expected, "file {i}");
        assert_eq!(w.client.flush(&root, file).wait(None), Ok(()), "once");
    }
    for (i, file) in files.iter().enumerate().filter(|(i, _)| *i != 2) {
        assert_eq!(w.server.contents(file.ino())[1000 * i..], [b'a' + i as u8; 3000]);
    }
    drop(files);
    w.check_clean();
}

/// Goal: a part is sent again, and its bytes are written, in two cases: the server refuses it in a batch, or it was
/// sent before another mount's truncate. The others are not delayed. Method: both kinds in one batch.
#[test]
fn parts_come_again() {
    let mut w = World::new(15, &[]);
    let files: Vec<_> = (0..6).map(|i| w.create(&format!("f{i}"), OpenFlags::READ_WRITE)).collect();
    for file in &files {
        write(&mut w, file, 0, 3000, b'z');
    }
    w.server.alone.insert(files[1].ino());
    w.server.nodes.get_mut(&files[4].ino()).unwrap().view.generation += 1;
    sync_all(&mut w);
    w.settle();
    for file in &files {
        assert_eq!(w.server.contents(file.ino()), [b'z'; 3000]);
        assert_eq!(w.client.flush(&Ctx::root(), file).wait(None), Ok(()));
    }
    assert_eq!((sent(&w, "WriteBatch"), sent(&w, "Write")), (1, 2));
    drop(files);
    w.check_clean();
}

/// Goal: several runs of one file are sent in a batch, but two runs of one block are not, because the server plans all
/// parts at the same time. Method: runs in one block and in different blocks, together with another file.
#[test]
fn runs_of_one_file() {
    let mut w = World::new(16, &[]);
    let (a, b) = (w.create("a", OpenFlags::READ_WRITE), w.create("b", OpenFlags::READ_WRITE));
    for (at, byte) in [(100, b'1'), (600, b'2'), (9000, b'3'), (13_000, b'4')] {
        write(&mut w, &a, at, 200, byte);
    }
    write(&mut w, &b, 0, 500, b'b');
    sync_all(&mut w);
    let bytes = w.server.contents(a.ino());
    for (at, byte) in [(100, b'1'), (600, b'2'), (9000, b'3'), (13_000, b'4')] {
        assert_eq!(bytes[at..at + 200], [byte; 200]);
    }
    assert_eq!(w.client.mount.stats.of(Count::BatchFiles), (1, 4));
    assert_eq!((sent(&w, "WriteBatch"), sent(&w, "Write")), (1, 1));
    drop((a, b));
    w.check_clean();
}

/// Goal: whatever programs do with many small files, reads return the written bytes, and at the end they are on the
/// server. Method: random creates, writes, truncates, renames, unlinks, syncs and pauses; locks are called back, and
/// some parts have to be sent separately. The result is compared with a map of vectors.
#[test]
fn many_small_files_match_a_model() {
    let mut batches = 0;
    for seed in 0..60 {
        let tunables = [("cache.max_bytes", "4M"), ("writeback.flight_bytes", "1M"), ("writeback.small_bytes", "16K")];
        let mut w = World::new(100 + seed, &tunables);
        w.callbacks = 150;
        let root = Ctx::root();
        let mut model: BTreeMap<String, (Ino, Vec<u8>)> = BTreeMap::new();
        let mut open: Vec<(String, Arc<OpenFile>)> = Vec::new();
        for step in 0..250u64 {
            let name = format!("f{}", w.rand(40));
            match w.rand(16) {
                0..6 => {
                    let file = match model.get(&name) {
                        Some((ino, _)) => {
                            let op = w.client.open(&root, *ino, OpenFlags::READ_WRITE);
                            w.run(op).unwrap()
                        }
                        None => w.create(&name, OpenFlags::READ_WRITE),
                    };
                    let (at, len) = (w.rand(20_000), 1 + w.rand(9000) as usize);
                    write(&mut w, &file, at, len, step as u8 | 1);
                    let bytes = &mut model.entry(name.clone()).or_insert((file.ino(), Vec::new())).1;
                    let end = (at as usize + len).max(bytes.len());
                    bytes.resize(end, 0);
                    bytes[at as usize..at as usize + len].fill(step as u8 | 1);
                    if w.rand(3) == 0 {
                        open.push((name, file));
                    }
                }
                6 => {
                    if let Some((ino, bytes)) = model.get_mut(&name) {
                        let size = w.rand(15_000);
                        let op =
                            w.client.setattr(&root, *ino, SetAttr { size: Some(size), ..SetAttr::default() }, None);
                        w.run(op).unwrap();
                        bytes.resize(size as usize, 0);
                    }
                }
                7 => {
                    if model.remove(&name).is_some() {
                        w.unlink(&name);
                        open.retain(|(n, _)| *n != name);
                    }
                }
                8 => {
                    if let Some((_, file)) = open.pop() {
                        let op = w.client.fsync(&root, &file, false);
                        w.run(op).unwrap();
                    }
                }
                9 if w.rand(4) == 0 => sync_all(&mut w),
                10 => {
                    w.clock.0.fetch_add(2_000_000_000, SeqCst);
                    flush::tick(&w.client.mount);
                }
                11 => {
                    if let Some((ino, _)) = model.get(&name) {
                        w.server.alone.insert(*ino);
                    }
                }
                _ => {
                    if let Some((ino, bytes)) = model.get(&name) {
                        let op = w.client.open(&root, *ino, OpenFlags::READ);
                        let file = w.run(op).unwrap();
                        let op = w.client.read(&root, &file, 0, 40_000, Hints::default());
                        assert!(w.run(op).unwrap().to_vec() == *bytes, "seed {seed}, step {step}: {name}");
                    }
                }
            }
            let few = w.rand(20);
            w.steps(few);
        }
        open.clear();
        w.check_clean();
        for (name, (ino, bytes)) in &model {
            assert!(w.server.contents(*ino) == *bytes, "seed {seed}: {name} on the server");
        }
        assert!(w.server.called_back.is_empty(), "every callback was answered");
        batches += sent(&w, "WriteBatch");
    }
    assert!(batches > 200, "{batches} batches");
}

/// Goal: while a truncate is under way, no bytes of its file from beyond the new end enter a batch, and the batch of
/// the others is sent. Method: the test freezes the file itself.
#[test]
fn frozen_files_stay_out() {
    let mut w = World::new(17, &[]);
    let files: Vec<_> = (0..3).map(|i| w.create(&format!("f{i}"), OpenFlags::READ_WRITE)).collect();
    for file in &files {
        write(&mut w, file, 0, 3000, b'q');
    }
    files[1].file.flights.lock().freeze(1000);
    let due: Vec<_> = files.iter().map(|f| (f.file.clone(), ByteRange::ALL)).collect();
    crate::writeback::batch::start(&w.client.mount, due);
    w.settle();
    let lens: Vec<usize> = files.iter().map(|f| w.server.contents(f.ino()).len()).collect();
    assert_eq!((lens, sent(&w, "WriteBatch")), (vec![3000, 1000, 3000], 1));
    files[1].file.flights.lock().thaw(1000);
    drop(files);
    w.check_clean();
}

/// Goal: scattered small runs of a large file are sent together, by object, and each byte arrives. Runs that are long,
/// that share a block with the previous run, or that the server refuses in a batch, are sent separately. A refusal is
/// reported. Method: random runs over many stripes, more than may be under way, are compared with a copy. They are
/// written back by `fsync` and, when they are old, in the background. The requests are counted.
#[test]
fn scattered_runs_leave_together() {
    const END: usize = 60 << 20;
    let mut w = World::new(18, &[]);
    let root = Ctx::root();
    let file = w.create("f", OpenFlags::READ_WRITE);
    let mut model = vec![0u8; END];
    let mut x = 5u64;
    let mut random = |below: usize| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (x >> 33) as usize % below
    };
    let (mut runs, mut alone) = (0, 0);
    for round in 0..3 {
        let mut at = 0;
        while at < END - (1 << 20) {
            let len = match random(60) {
                0 => 13 << 10,
                1..6 => 4096,
                _ => 1 + random(5000),
            };
            let byte = 1 + (runs % 250) as u8;
            if w.client.try_write(&root, &file, at as u64, &vec![byte; len], Hints::default()).is_none() {
                write(&mut w, &file, at as u64, len, byte);
            }
            model[at..at + len].fill(byte);
            let same_block = random(30) == 0 && (at + len) % 4096 < 4000;
            runs += 1;
            alone += usize::from(len > 12 << 10) + usize::from(same_block);
            at = if same_block { at + len + 40 } else { (at + len).next_multiple_of(4096) + 4096 * random(8) + 1 };
        }
        let (batches, singles) = (sent(&w, "WriteBatch"), sent(&w, "Write"));
        if round == 1 {
            w.clock.0.fetch_add(60_000_000_000, SeqCst);
            for _ in 0..200 {
                flush::tick(&w.client.mount);
                w.settle();
            }
            assert_eq!(w.client.mount.cache.dirty_bytes(), 0);
        }
        let op = w.client.fsync(&root, &file, false);
        assert_eq!(w.run(op), Ok(()), "round {round}");
        let (batches, singles) = (sent(&w, "WriteBatch") - batches, sent(&w, "Write") - singles);
        // Some runs are cut by the end of a stripe, or touch bytes that are dirty from the previous round.
        let few = singles <= alone + runs / 50;
        assert!(batches * 20 < runs && few, "{runs} runs: {batches} batches, {singles} alone, of {alone}");
        (runs, alone) = (0, 0);
        w.client.mount.cache.forget(&file.file, ByteRange::ALL, amphi_pagecache::Dirty::Keep);
        let mut got = Vec::new();
        while got.len() < END {
            let op = w.client.read(&root, &file, got.len() as u64, 8 << 20, Hints::default());
            match w.run(op).unwrap().to_vec() {
                part if part.is_empty() => break,
                part => got.extend(part),
            }
        }
        assert!(model[..got.len()] == got[..] && model[got.len()..].iter().all(|b| *b == 0), "round {round}");
    }
    drop(file);
    w.check_clean();
}
