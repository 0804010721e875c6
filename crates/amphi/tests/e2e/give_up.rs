//! A server that does not come back: calls wait for it, and fail with EIO after a bound. When it is back everything
//! continues.

use crate::asynchronous::{Queue, Request};
use crate::harness::{Place, errno, eventually, pattern};
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long calls to an unreachable server wait in this test; the default of a mount is a minute.
const BOUND: Duration = Duration::from_secs(2);

fn open(path: &std::path::Path, flags: OFlags) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).custom_flags(flags.bits() as i32);
    options.open(path).expect("open")
}

/// How long the mount lets a call go on after a signal.
const GRACE: Duration = Duration::from_secs(2);

/// Goal: Promise S18: children that end interrupt no call of a program that has no handler for that, however long the
/// call waits. Linux wakes any thread of a program for such a signal while another one starts a process. Method: one
/// thread renames a file, whose server is stopped for longer than a call may go on after a signal; others start
/// processes that end at once.
#[test]
fn children_that_end_interrupt_no_call() {
    let place = Place::new();
    let mut server = place.server(&[]);
    let mount = place.mount_at("m", &[]);
    let root = place.path("m");
    let is_over = AtomicBool::new(false);
    let start_processes = || {
        while !is_over.load(SeqCst) {
            assert!(Command::new("true").status().expect("a process").success());
        }
    };
    for round in 0..2 {
        let (from, to) = (root.join(format!("from{round}")), root.join(format!("to{round}")));
        fs::write(&from, pattern(round, 100)).expect("write");
        is_over.store(false, SeqCst);
        let renamed = std::thread::scope(|scope| {
            let stopped = server.pause();
            (0..3).for_each(|_| drop(scope.spawn(start_processes)));
            let renames = scope.spawn(|| fs::rename(&from, &to));
            let end = Instant::now() + 2 * GRACE;
            eventually("the call ends or has waited", || renames.is_finished() || Instant::now() > end);
            drop(stopped);
            let renamed = renames.join().expect("no panic");
            is_over.store(true, SeqCst);
            renamed
        });
        renamed.expect("nobody has sent a signal that concerns this thread");
        assert!(fs::read(&to).expect("read") == pattern(round, 100));
    }
    mount.stop();
    server.stop();
}

/// Goal: a program that writes while its server is down waits, and gets EIO after the bound and not before, from later
/// calls of every kind too. Acknowledged syncs are there when the server is back. The mount continues without being
/// mounted again, and a file whose bytes could not be written back reports this once: its `fsync` does, so the end of
/// the mount does not. Method: a server is killed while a thread writes records with `fsync`. There are direct,
/// buffered and asynchronous calls, and calls on names. Then the server is started again.
#[test]
fn after_a_bound_calls_fail_until_the_server_is_back() {
    let place = Place::new();
    let server = place.server(&["--targets", "2"]);
    let bound = format!("transport.give_up_s={}", BOUND.as_secs());
    let mount = place.mount_at("m", &["--set", &bound]);
    let root = place.path("m");
    fs::write(root.join("quiet"), pattern(1, 50_000)).expect("write");
    let path = root.join("log");
    let mut log = open(&path, OFlags::APPEND);
    let record = |n: u64| pattern(n, 9_001);
    let (told, hear) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let mut synced = 0;
        loop {
            let begun = Instant::now();
            match log.write_all(&record(synced)).and_then(|()| log.sync_all()) {
                Ok(()) => synced += 1,
                Err(e) => return (synced, e, begun.elapsed()),
            }
            let _ = told.send(synced);
        }
    });
    while hear.recv().expect("the writer goes on") < 20 {}
    server.kill();
    let (synced, error, waited) = writer.join().expect("the writer ends");
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    assert!(waited >= BOUND / 2 && waited < Duration::from_secs(40), "it waited for {waited:?}");
    // A new call fails soon.
    assert_eq!(errno(fs::create_dir(root.join("d"))), libc::EIO);
    assert_eq!(errno(fs::metadata(root.join("never-seen"))), libc::EIO);
    let server = place.server(&["--targets", "2"]);
    eventually("the mount goes on", || fs::create_dir(root.join("d")).is_ok());
    assert!(fs::read(root.join("quiet")).expect("read") == pattern(1, 50_000));
    let found = fs::read(&path).expect("read");
    let expected: Vec<u8> = (0..synced).flat_map(record).collect();
    assert!(found.len() >= expected.len() && found[..expected.len()] == expected, "{} of {synced}", found.len());
    // The failed record is there as a whole, in part or not at all, and no other bytes are.
    let rest = &found[expected.len()..];
    assert!(record(synced).starts_with(rest), "{} bytes behind", rest.len());
    // The file is synced; otherwise its bytes would be written back in the second half, while there is no server.
    fs::File::open(root.join("quiet")).and_then(|quiet| quiet.sync_all()).expect("sync");
    requests_of_open_files(place, server, mount);
}

/// The second half: files that are open already.
fn requests_of_open_files(place: Place, server: crate::harness::Daemon, mount: crate::harness::Daemon) {
    let root = place.path("m");
    let whole = pattern(2, 300_000);
    let (direct, plain) = (open(&root.join("f"), OFlags::DIRECT), open(&root.join("f"), OFlags::empty()));
    direct.write_all_at(&whole, 0).expect("write");
    // The lock is cached, so that the next write needs no server.
    plain.write_all_at(b"soon", 0).expect("buffered");
    plain.sync_all().expect("sync");
    server.kill();
    // The write goes to the cache, so it needs no server; its write-back does.
    plain.write_all_at(b"lost", 0).expect("buffered");
    let begun = Instant::now();
    let (queue, mut into) = (Queue::new(), vec![0; 8192]);
    let results =
        queue.run(&[Request::read(&direct, &mut into, 100_000), Request::write(&direct, &whole[..4096], 200_000)]).1;
    assert_eq!(results, [-i64::from(libc::EIO); 2], "asynchronous requests (sanity 398r, 398s)");
    assert!(begun.elapsed() >= BOUND / 2, "they waited");
    assert_eq!(errno(direct.write_all_at(&whole[..100], 7)), libc::EIO);
    assert_eq!(errno(plain.sync_all()), libc::EIO);
    let server = place.server(&["--targets", "2"]);
    let mut got = vec![0; whole.len()];
    eventually("reads go on", || direct.read_exact_at(&mut got, 0).is_ok());
    assert!(got[4..] == whole[4..], "what was acknowledged past the cache");
    let next = Queue::new();
    next.run_whole(&[Request::read(&direct, &mut into, 100_000)], "the next request");
    assert!(into == whole[100_000..][..8192]);
    plain.write_all_at(b"kept", 0).expect("write");
    plain.sync_all().expect("and sync");
    // The mount is in use when it ends. It has reported all losses, so its end reports none.
    drop(direct);
    mount.stop();
    drop(plain);
    server.stop();
    place.fsck();
}
