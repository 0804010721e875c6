//! Several mounts and several servers: tests that need both.

use crate::harness::{Daemon, Place, eventually, pattern, run};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fsync, open};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const TARGETS: [&str; 2] = ["--targets", "2"];

fn status(args: &[&str]) -> serde_json::Value {
    let out = run(&[&["status", "--json"], args].concat());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let seen: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    let all_up = seen["servers"].as_array().is_some_and(|all| all.iter().all(|s| s["up"] == true));
    assert_eq!(out.status.code(), Some(i32::from(!all_up)), "{said}");
    seen
}

/// Works on a mount until it is stopped: makes, moves and removes files in directories that both mounts use, and
/// appends to a log of both. Returns how often.
fn work(mount: &Path, who: u64, stop: &AtomicBool, done: &AtomicU64) -> u64 {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND;
    let log = open(mount.join("log"), flags, Mode::from_raw_mode(0o644)).expect("open");
    let mut n = 0u64;
    while !stop.load(SeqCst) {
        let dir = |i: u64| mount.join(format!("d{}", i % 11));
        for d in [dir(n), dir(n + 3)] {
            if let Err(e) = fs::create_dir(d) {
                assert_eq!(e.kind(), std::io::ErrorKind::AlreadyExists, "mkdir: {e}");
            }
        }
        fs::write(dir(n).join(format!("new{who}")), pattern(n ^ who << 32, 20_000)).expect("write");
        fs::rename(dir(n).join(format!("new{who}")), dir(n + 3).join(format!("w{who}f{n}"))).expect("rename");
        if n >= 20 {
            fs::remove_file(dir(n - 17).join(format!("w{who}f{}", n - 20))).expect("each file is removed once");
        }
        assert_eq!(rustix::io::write(&log, &[who.to_le_bytes(), n.to_le_bytes()].concat()).expect("append"), 16);
        fsync(&log).expect("fsync");
        n += 1;
        done.fetch_add(1, SeqCst);
    }
    n
}

/// Checks through `mount` that the results of `work` are there.
fn check(mount: &Path, made: &[u64]) {
    let log = fs::read(mount.join("log")).expect("read");
    let mut next = vec![0u64; made.len()];
    for line in log.chunks(16) {
        let number = |at: usize| u64::from_le_bytes(line[at..at + 8].try_into().expect("a whole line"));
        assert_eq!(number(8), next[number(0) as usize], "lines of mount {} are in order", number(0));
        next[number(0) as usize] += 1;
    }
    assert_eq!(next, made);
    for (who, n) in made.iter().enumerate() {
        for i in n.saturating_sub(20)..*n {
            let path = mount.join(format!("d{}/w{who}f{i}", (i + 3) % 11));
            let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert!(bytes == pattern(i ^ (who as u64) << 32, 20_000), "{}", path.display());
        }
    }
}

/// Runs `work` on each mount while `trouble` happens, and compares on each.
fn under_load(mounts: &[PathBuf], trouble: impl FnOnce(&AtomicU64)) {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let made: Vec<u64> = std::thread::scope(|s| {
        let (stop, done) = (&stop, &done);
        let workers: Vec<_> =
            mounts.iter().enumerate().map(|(i, m)| s.spawn(move || work(m, i as u64, stop, done))).collect();
        eventually("the workers get on", || done.load(SeqCst) > 20);
        trouble(done);
        let before = done.load(SeqCst);
        eventually("the workers go on", || done.load(SeqCst) > before + 20);
        stop.store(true, SeqCst);
        workers.into_iter().map(|w| w.join().expect("no call failed")).collect()
    });
    mounts.iter().for_each(|m| check(m, &made));
}

/// Goal: servers with empty targets join while two mounts work, and both use them. Method: a second and a third server
/// join under load, and new directories are on all targets.
#[test]
fn servers_join_two_mounts_that_work() {
    let place = Place::new();
    let mut servers = vec![place.member(0, &TARGETS)];
    let mounts = [place.mount_at("a", &[]), place.mount_at("b", &[])];
    let paths = [place.path("a"), place.path("b")];
    under_load(&paths, |done| {
        for k in [1, 2] {
            let before = done.load(SeqCst);
            servers.push(place.member(k, &TARGETS));
            eventually("the workers get on", || done.load(SeqCst) > before + 20);
        }
    });
    for path in &paths {
        eventually("the mount knows all", || {
            status(&[&path.display().to_string()])["servers"].as_array().map(Vec::len) == Some(3)
        });
    }
    for i in 0..60 {
        let (own, other) = (&paths[i % 2], &paths[(i + 1) % 2]);
        fs::create_dir(own.join(format!("later{i}"))).expect("mkdir");
        fs::write(own.join(format!("later{i}/f")), pattern(i as u64, 9000)).expect("write");
        assert!(fs::read(other.join(format!("later{i}/f"))).expect("read") == pattern(i as u64, 9000));
    }
    let seen = status(&[&place.text("a")]);
    let targets = seen["targets"].as_array().expect("list");
    assert_eq!(targets.iter().filter(|t| t["inodes"].as_u64() > Some(3)).count(), 6, "on every target: {seen}");
    mounts.into_iter().for_each(Daemon::stop);
    servers.into_iter().rev().for_each(Daemon::stop);
    place.fsck_members(3);
}

/// Goal: a live server that does not answer for a while delays the operations on its targets and nothing else, and no
/// change is lost or executed twice when it continues. Method: each server in turn gets SIGSTOP under load of two
/// mounts. Meanwhile files on other servers are written.
#[test]
fn servers_that_hang_are_waited_for() {
    let place = Place::new();
    let mut servers: Vec<Daemon> = (0..3).map(|k| place.member(k, &TARGETS)).collect();
    let mounts = [place.mount_at("a", &[]), place.mount_at("b", &[])];
    let paths = [place.path("a"), place.path("b")];
    under_load(&paths, |done| {
        for k in [1, 2, 0] {
            let stopped = servers[k].pause();
            // Longer than a server counts as up without a sign of life.
            std::thread::sleep(Duration::from_secs(7));
            drop(stopped);
            let before = done.load(SeqCst);
            eventually("the workers get on", || done.load(SeqCst) > before + 20);
        }
    });
    mounts.into_iter().for_each(Daemon::stop);
    servers.into_iter().rev().for_each(Daemon::stop);
    place.fsck_members(3);
}

/// Goal: mounts start and end under load of another one, in order and killed, and no mount waits for them long. Method:
/// a second and a third mount are started, work, and are stopped or killed, while the first one continues.
#[test]
fn mounts_come_and_go_under_load() {
    let place = Place::new();
    let servers: Vec<Daemon> = (0..3).map(|k| place.member(k, &TARGETS)).collect();
    let first = place.mount_at("a", &[]);
    under_load(&[place.path("a")], |done| {
        for round in 0..6 {
            let before = done.load(SeqCst);
            let (other, path) = (place.mount_at("b", &[]), place.path("b"));
            fs::write(path.join(format!("by{round}")), pattern(round, 50_000)).expect("write");
            fs::File::open(path.join(format!("by{round}"))).expect("open").sync_all().expect("fsync");
            assert!(fs::read_dir(&path).expect("list").count() > 2);
            let begin = Instant::now();
            if round % 2 == 0 {
                other.stop();
            } else {
                other.kill();
                let _ = rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH);
            }
            assert!(fs::read(place.path("a").join(format!("by{round}"))).expect("read") == pattern(round, 50_000));
            eventually("the first goes on", || done.load(SeqCst) > before + 20);
            assert!(begin.elapsed() < Duration::from_secs(15), "waited {:?}", begin.elapsed());
        }
    });
    first.stop();
    servers.into_iter().rev().for_each(Daemon::stop);
    place.fsck_members(3);
}

/// Goal: Promise S19, S20, S21 with several servers: locks of applications exclude each other between mounts on every
/// server, survive its restart, and end with a mount that is killed. Method: `flock` on files on all targets by two
/// mounts.
#[test]
fn file_locks_hold_on_every_server() {
    let place = Place::new();
    let mut servers: Vec<Daemon> = (0..3).map(|k| place.member(k, &TARGETS)).collect();
    let a = place.mount_at("a", &[]);
    let b = place.mount_at("b", &[]);
    for i in 0..12 {
        fs::create_dir(place.path("a").join(format!("d{i}"))).expect("mkdir");
        fs::write(place.path("a").join(format!("d{i}/f")), b"x").expect("write");
    }
    let open_all = |name: &str| -> Vec<OwnedFd> {
        let path = |i| place.path(name).join(format!("d{i}/f"));
        (0..12).map(|i| open(path(i), OFlags::RDWR, Mode::empty()).expect("open")).collect()
    };
    let (on_a, on_b) = (open_all("a"), open_all("b"));
    let taken =
        |fds: &[OwnedFd]| fds.iter().filter(|f| flock(f, FlockOperation::NonBlockingLockExclusive).is_ok()).count();
    assert_eq!((taken(&on_a), taken(&on_b)), (12, 0));
    for k in [1, 0, 2] {
        std::mem::replace(&mut servers[k], Daemon::none()).kill();
        servers[k] = place.member(k, &TARGETS);
        assert_eq!(taken(&on_b), 0, "after the restart of server {k}");
    }
    on_a.iter().take(6).for_each(|f| flock(f, FlockOperation::Unlock).expect("unlock"));
    assert_eq!(taken(&on_b), 6);
    let begin = Instant::now();
    a.kill();
    for f in &on_b {
        flock(f, FlockOperation::LockExclusive).expect("it comes at once");
    }
    assert!(begin.elapsed() < Duration::from_secs(15), "waited {:?} for a dead mount", begin.elapsed());
    drop((on_a, on_b));
    let _ = rustix::mount::unmount(place.path("a"), rustix::mount::UnmountFlags::DETACH);
    b.stop();
    servers.into_iter().rev().for_each(Daemon::stop);
    place.fsck_members(3);
}

/// Goal: `amphi up --servers 3` and further mounts are one file system. Method: two more mounts over the addresses that
/// `amphi status` shows.
#[test]
fn up_with_several_servers_takes_more_mounts() {
    let place = Place::new();
    let up = place.up(&["--servers", "3", "--targets", "2", "--zone-size", "256M", "--log-size", "16M"]);
    let seen = status(&[&place.text("mount")]);
    let addrs: Vec<String> = seen["servers"]
        .as_array()
        .expect("list")
        .iter()
        .filter_map(|s| s["addrs"][0].as_str().map(String::from))
        .collect();
    assert_eq!(addrs.len(), 3, "{seen}");
    let mut more = Vec::new();
    for (name, addr) in [("b", &addrs[1]), ("c", &addrs[2])] {
        fs::create_dir(place.path(name)).expect("mkdir");
        more.push(Daemon::start(&["mount", "--cluster", addr, &place.text(name)]));
    }
    let paths = [place.mount(), place.path("b"), place.path("c")];
    under_load(&paths, |_| {});
    more.into_iter().for_each(Daemon::stop);
    up.stop();
    place.fsck();
}
