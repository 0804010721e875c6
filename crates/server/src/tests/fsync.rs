//! `fsync` while bytes are delayed: its writes, and which mounts get messages about failed writes.

use super::data::bytes;
use super::write_back::{DATA, counter, file, get, place, put};
use super::*;
use amphi_env::sim::{CrashKind, DiskOpKind};

/// Counts the writes and syncs of the server's disks from now on.
fn count_ops(place: &Place) -> Rc<Cell<(u64, u64)>> {
    let ops = Rc::new(Cell::new((0, 0)));
    let seen = ops.clone();
    place.sim.on_disk_op("server", move |op| {
        let (writes, syncs) = seen.get();
        match op.kind {
            DiskOpKind::Write => seen.set((writes + 1, syncs)),
            DiskOpKind::Sync => seen.set((writes, syncs + 1)),
            _ => {}
        }
        None
    });
    ops
}

/// Goal: Promise S10: an `fsync` makes its file stable and costs nothing for other files. The `fsync` of 4 KiB beside a
/// hundred files of unsynced bytes is one write and one sync, and that of a directory writes no data. `sync` still
/// covers all files. Method: writes and syncs of the disk are counted. Then power is lost, and the files have what was
/// synced.
#[test]
fn an_fsync_pays_for_its_own_file() {
    for log_memory in ["on", "off"] {
        let more = [("server.write_back_age_ms", "600000"), ("server.log_memory", log_memory)];
        let place = place(180, 1, &more);
        let run = async {
            let server = place.start().await.unwrap();
            let c = place.client(1).await.unwrap();
            let f = file(&c, "f").await;
            let mut others = Vec::new();
            for n in 0..100 {
                others.push(file(&c, &format!("other{n}")).await);
            }
            c.call(Request::Sync { file: None }).await.unwrap();
            for other in &others {
                put(&c, *other, 1, 0, 8192).await.unwrap();
            }
            put(&c, f, 2, 0, 4096).await.unwrap();
            place.sim.node("client").sleep(Duration::from_secs(5)).await;
            let ops = count_ops(&place);
            put(&c, f, 2, 4096, 8192).await.unwrap();
            c.call(Request::Sync { file: Some(f) }).await.unwrap();
            let in_memory = u64::from(log_memory == "on");
            assert!(ops.get().0 <= 2 - in_memory && ops.get().1 == 1, "{:?} writes and syncs", ops.get());
            c.call(Request::Sync { file: Some(Ino::ROOT) }).await.unwrap();
            c.call(Request::Sync { file: Some(others[1]) }).await.unwrap();
            assert_eq!((counter(&c, "flushes").await, counter(&c, "write_back_logged").await), (0, 3));
            place.sim.clear_disk_hook("server");
            place.sim.crash("server", CrashKind::Power);
            drop(server);
            let server = place.start().await.unwrap();
            let c = place.client(2).await.unwrap();
            assert_eq!(get(&c, f, 10_000).await, bytes(2, 0, 8192).to_vec());
            assert_eq!(get(&c, others[1], 10_000).await, bytes(1, 0, 8192).to_vec());
            assert!(get(&c, others[0], 10_000).await.is_empty(), "nobody synced it");
            // All of them, which are too many to be logged.
            for other in &others {
                put(&c, *other, 3, 0, 8192).await.unwrap();
            }
            c.call(Request::Sync { file: None }).await.unwrap();
            assert!(counter(&c, "flushes").await >= 100);
            place.sim.crash("server", CrashKind::Power);
            drop(server);
            let server = place.start().await.unwrap();
            let c = place.client(3).await.unwrap();
            for other in &others {
                assert_eq!(get(&c, *other, 10_000).await, bytes(3, 0, 8192).to_vec());
            }
            server.stop().await.unwrap();
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: many files that are appended to and synced in turn free space for each other in the log, and each sync keeps
/// its promise. Method: the test makes as many writes as are needed to flush the logged bytes several times. Then power
/// is lost.
#[test]
fn synced_files_make_room_for_each_other() {
    let place = place(181, 1, &[("server.write_back_age_ms", "600000")]);
    let run = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let files = [file(&c, "a").await, file(&c, "b").await, file(&c, "c").await];
        for n in 0..150 {
            let f = files[n % 3];
            let at = n as u64 / 3 * 10_000;
            put(&c, f, 4, at, at + 10_000).await.unwrap();
            c.call(Request::Sync { file: Some(f) }).await.unwrap();
        }
        assert!(counter(&c, "flushes").await > 0 && counter(&c, "write_back_logged").await > 50);
        place.sim.crash("server", CrashKind::Power);
        drop(server);
        let server = place.start().await.unwrap();
        let c = place.client(2).await.unwrap();
        for f in files {
            assert!(get(&c, f, 500_000).await == bytes(4, 0, 500_000).to_vec());
        }
        server.stop().await.unwrap();
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: each mount that wrote bytes which the disk refuses gets one message until it writes again, and no other mount
/// gets one. An `fsync` of the file fails on every mount as long as the bytes are not stable, and an `fsync` of another
/// file does not. No data is lost. Method: two mounts write a file, and a third one writes another file. Writes of data
/// first fail, and then succeed. With one worker, and with the target at another worker than the connections.
#[test]
fn a_failed_flush_is_told_to_each_who_wrote() {
    for workers in [1, 2] {
        let mut place = place(182, 2, &[("server.write_back_age_ms", "20")]);
        place.config.workers = workers;
        let run = async {
            let server = place.start().await.unwrap();
            let (a, b) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
            let c = place.client(3).await.unwrap();
            let (f, g) = (file(&a, "f").await, file(&c, "g").await);
            let failing = Rc::new(Cell::new(true));
            let fails = failing.clone();
            place.sim.on_disk_op("server", move |op| {
                (fails.get() && op.kind == DiskOpKind::Write && op.at >= DATA).then_some(std::io::ErrorKind::Other)
            });
            put(&a, f, 1, 0, 40_000).await.unwrap();
            put(&b, f, 2, 40_000, 80_000).await.unwrap();
            let told = |client: &Client| {
                let pushes = client.held.pushes.borrow();
                pushes.iter().filter(|p| matches!(p, Push::WriteFailed { ino, .. } if *ino == f)).count()
            };
            place.sim.node("client").sleep(Duration::from_secs(3)).await;
            assert_eq!((told(&a), told(&b), told(&c)), (1, 1, 0), "each once, however often it is tried");
            for client in [&a, &b, &c] {
                assert_eq!(client.call(Request::Sync { file: Some(f) }).await, Err(Errno::Io));
            }
            put(&c, g, 3, 0, 4096).await.unwrap();
            c.call(Request::Sync { file: Some(g) }).await.expect("another file");
            put(&b, f, 4, 80_000, 120_000).await.unwrap();
            place.sim.node("client").sleep(Duration::from_secs(3)).await;
            assert_eq!((told(&a), told(&b), told(&c)), (1, 2, 0), "who has written again");
            failing.set(false);
            place.sim.node("client").sleep(Duration::from_secs(3)).await;
            a.call(Request::Sync { file: Some(f) }).await.unwrap();
            let all =
                [bytes(1, 0, 40_000).to_vec(), bytes(2, 40_000, 40_000).to_vec(), bytes(4, 80_000, 40_000).to_vec()];
            assert_eq!(get(&c, f, 130_000).await, all.concat());
            assert_eq!((told(&a), told(&b), told(&c)), (1, 2, 0));
            server.stop().await.unwrap();
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: Promise S16: a mount whose connection broke gets the message about a flush that failed meanwhile. The mount
/// gets the message again with each new connection until it acknowledges it, and not after that. The message about a
/// second file waits for that. A session that has ended gets no message. Method: connections are broken around failing
/// flushes. A mount is unresponsive, and then it answers.
#[test]
fn news_of_a_failed_flush_survive_the_connection() {
    for workers in [1, 2] {
        let mut place = place(184, 2, &[("server.write_back_age_ms", "20")]);
        place.config.workers = workers;
        let run = async {
            let _server = place.start().await.unwrap();
            place.sim.node("far");
            let a = place.client_on("far", 1, "far:1", Role::Mount).await.unwrap();
            let c = place.client(3).await.unwrap();
            let env = place.sim.node("client");
            let pause = async || env.sleep(Duration::from_secs(3)).await;
            let (f, g, h) = (file(&a, "f").await, file(&a, "g").await, file(&a, "h").await);
            place.sim.on_disk_op("server", |op| {
                (op.kind == DiskOpKind::Write && op.at >= DATA).then_some(std::io::ErrorKind::Other)
            });
            let told = |client: &Client, file: Ino| {
                let pushes = client.held.pushes.borrow();
                pushes.iter().filter(|p| matches!(p, Push::WriteFailed { ino, .. } if *ino == file)).count()
            };
            a.held.deaf.set(true);
            put(&a, f, 1, 0, 40_000).await.unwrap();
            put(&a, g, 1, 0, 4000).await.unwrap();
            place.sim.cut("far", "server");
            place.sim.break_connections("far", "server");
            pause().await;
            assert_eq!((told(&a, f) + told(&a, g), counter(&c, "flush_failures_told").await), (0, 2), "it is away");
            for times in 1..4 {
                place.sim.heal("far", "server");
                pause().await;
                // The disk decides which of the two fails first.
                assert_eq!(
                    [told(&a, f), told(&a, g)].iter().filter(|n| **n == times).count(),
                    1,
                    "{times} connections"
                );
                assert_eq!(told(&a, f) + told(&a, g), times, "one of them at a time");
                place.sim.cut("far", "server");
                place.sim.break_connections("far", "server");
            }
            place.sim.heal("far", "server");
            let first = a.held.pushed(|p| matches!(p, Push::WriteFailed { .. }).then(|| p.clone())).await;
            let second = |p: &Push| (p != &first && matches!(p, Push::WriteFailed { .. })).then(|| p.clone());
            a.held.deaf.set(false);
            a.reply(&first).await;
            a.held.pushed(second).await;
            pause().await;
            a.held.pushes.borrow_mut().clear();
            place.sim.break_connections("far", "server");
            pause().await;
            a.stat(f).await.unwrap();
            assert_eq!((told(&a, f), told(&a, g)), (0, 0), "it has acknowledged both");
            // A mount that has gone is not notified.
            put(&a, h, 2, 0, 4000).await.unwrap();
            a.call(Request::Goodbye).await.unwrap();
            pause().await;
            assert_eq!(counter(&c, "flush_failures_told").await, 2);
            place.sim.clear_disk_hook("server");
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: an object reports how many of its bytes are only in memory, and how many are on the disk or in the log without
/// a sync. Bytes of other objects do not count. Method: accepted, large and batched writes of two files, an `fsync` of
/// each, flushes by age.
#[test]
fn an_object_says_what_is_not_stable() {
    let place = place(185, 1, &[("server.write_back_age_ms", "600000"), ("server.sync_interval_ms", "600000")]);
    let run = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let (f, g) = (file(&c, "f").await, file(&c, "g").await);
        let shown = async |ino: Ino| {
            let op = Request::Extents { object: ObjectId { ino, stripe: 0 }, offset: 0, extents_max: 0 };
            match c.call(op).await {
                Ok(Reply::Extents { accepted, unsynced, .. }) => (accepted, unsynced),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((shown(f).await, shown(g).await), ((0, 0), (0, 0)));
        put(&c, f, 1, 0, 8192).await.unwrap();
        put(&c, f, 1, 4096, 12_288).await.unwrap();
        put(&c, g, 1, 0, 100).await.unwrap();
        assert_eq!((shown(f).await, shown(g).await), ((12_288, 0), (100, 0)));
        put(&c, g, 1, 1 << 20, 3 << 20).await.unwrap();
        assert_eq!((shown(f).await, shown(g).await), ((12_288, 0), (100, 2 << 20)));
        c.call(Request::Sync { file: Some(f) }).await.unwrap();
        assert_eq!(shown(f).await, (0, 0), "the log has it, synced");
        assert_eq!(shown(g).await, (100, 0), "so is what was written before");
        put(&c, f, 2, 1 << 20, (1 << 20) + 300_000).await.unwrap();
        assert_eq!((shown(f).await, shown(g).await), ((0, 300_000), (100, 0)));
        c.call(Request::Sync { file: None }).await.unwrap();
        assert_eq!((shown(f).await, shown(g).await), ((0, 0), (0, 0)));
        server.stop().await.unwrap();
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: a program that only overwrites existing data is never refused in a target with 2 MiB of space, however much it
/// overwrites before anything ages. The reason is that space reserved for overwrites is returned in time. Method: a
/// file is filled until 3 MiB are left. Two mounts overwrite 2,000 of its blocks. Then it is synced and compared.
#[test]
fn overwrites_in_a_full_target_are_taken() {
    let place = place(183, 1, &[("server.write_back_age_ms", "600000")]);
    let run = async {
        let server = place.start().await.unwrap();
        let (a, b) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
        let f = file(&a, "f").await;
        let mut model = Vec::new();
        loop {
            let Ok(Reply::StatFs(space)) = a.call(Request::StatFs).await else { panic!("no space") };
            if space.free < 768 + 256 {
                break;
            }
            let at = model.len() as u64;
            put(&a, f, 1, at, at + (1 << 20)).await.unwrap();
            model.extend_from_slice(&bytes(1, at, 1 << 20));
        }
        assert!(model.len() > 8 << 20, "{} bytes", model.len());
        for n in 0..2000u64 {
            let at = (n * 7919 * 4096 + n * 13) % (model.len() as u64 - 5000);
            put([&a, &b][n as usize % 2], f, n as u8, at, at + 4000).await.unwrap_or_else(|e| panic!("write {n}: {e}"));
            model[at as usize..at as usize + 4000].copy_from_slice(&bytes(n as u8, at, 4000));
        }
        assert!(counter(&a, "flushes_for_room").await > 0 && counter(&a, "write_back").await > 1000);
        b.call(Request::Sync { file: Some(f) }).await.unwrap();
        for at in (0..model.len()).step_by(1 << 20) {
            let (object, range) = (ObjectId { ino: f, stripe: 0 }, amphi_types::ByteRange::at(at as u64, 1 << 20));
            let (_, found) =
                b.ask(Request::Read { object, range, server_lock: true, advice: Default::default() }, None).await;
            assert!(found.unwrap()[..] == model[at..at + (1 << 20)], "the mebibyte at {at}");
        }
        server.stop().await.unwrap();
    };
    place.sim.block_on(run).unwrap();
}
