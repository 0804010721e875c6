//! Two and three mounts of one server and of three: what one mount's call returned, every other mount sees.

use crate::fsx::{Tester, served_by};
use crate::harness::{Daemon, Place, errno, eventually, is_mounted, pattern, rerrno};
use crate::reasons::{REASONS, count};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags, chmod, fsync, ftruncate,
    getxattr, mknodat, open, removexattr, renameat_with, setxattr, stat, utimensat,
};
use rustix::io::{pread, pwrite};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Barrier;

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENODATA: i32 = 61;
const EIO: i32 = 5;
const ENOTCONN: i32 = 107;

/// A cluster and two mounts of it.
pub struct Pair {
    pub place: Place,
    servers: Vec<Daemon>,
    mounts: Vec<Daemon>,
    pub a: PathBuf,
    pub b: PathBuf,
}

impl Pair {
    pub fn new(servers: usize, server: &[&str], mount: &[&str]) -> Pair {
        let place = Place::new();
        let servers = (0..servers).map(|k| place.member(k, server)).collect();
        let mounts = vec![place.mount_at("a", mount), place.mount_at("b", mount)];
        let (a, b) = (place.path("a"), place.path("b"));
        Pair { place, servers, mounts, a, b }
    }

    /// Unmounts, stops, checks the zones.
    pub fn stop(mut self) {
        for mount in self.mounts.drain(..) {
            mount.stop();
        }
        assert!(!is_mounted(&self.a) && !is_mounted(&self.b));
        let servers = self.servers.len();
        // The master ends last: the others report their ends to it.
        self.servers.drain(..).rev().for_each(Daemon::stop);
        self.place.fsck_members(servers);
    }

    /// Kills all servers and starts them again.
    pub fn restart_servers(&mut self) {
        let servers = self.servers.len();
        self.servers.drain(..).rev().for_each(Daemon::kill);
        self.servers = (0..servers).map(|k| self.place.member(k, &[])).collect();
    }

    /// Kills a server and starts it again.
    pub fn restart_server(&mut self, at: usize) {
        let old = self.servers.remove(at);
        old.kill();
        self.servers.insert(at, self.place.member(at, &[]));
    }

    fn both(&self) -> [(&PathBuf, &PathBuf); 2] {
        [(&self.a, &self.b), (&self.b, &self.a)]
    }
}

/// Each story on one server and on three.
macro_rules! stories {
    ($($story:ident),* $(,)?) => {
        mod one_server {
            $(#[test] fn $story() { super::$story(1) })*
        }
        mod three_servers {
            $(#[test] fn $story() { super::$story(3) })*
        }
    };
}

stories! {
    names_are_seen_at_once,
    attributes_are_seen_at_once,
    data_is_seen_at_once,
    random_operations_on_several_mounts_agree_with_a_byte_vector,
    random_operations_with_common_pages_mapped,
    appends_of_two_mounts_lie_whole,
    writes_over_several_objects_are_one_event,
    one_of_two_exclusive_creates_wins,
    files_unlinked_elsewhere_live_until_closed,
    strided_records_of_two_mounts_all_arrive,
    a_killed_mount_holds_nobody_up,
    a_stopped_mount_is_evicted,
    two_mounts_outlive_kills_of_the_server,
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

/// Goal: Promise S1 across mounts, for names: made, removed, moved, replaced, linked; also a name that was looked up
/// while it was absent. Method: each change on one mount is checked on the other at once, in both directions; the other
/// mount has looked the name up before, so that it has cached it.
fn names_are_seen_at_once(servers: usize) {
    let pair = Pair::new(servers, &["--targets", "4"], &[]);
    for (round, (x, y)) in pair.both().into_iter().cycle().take(8).enumerate() {
        let n = |what: &str| format!("{what}{round}");
        let none = |name: &str| assert_eq!(errno(fs::metadata(y.join(name))), ENOENT, "{name}");
        none(&n("f"));
        none(&n("f"));
        fs::write(x.join(n("f")), b"one").expect("write");
        assert_eq!(fs::read(y.join(n("f"))).expect("seen"), b"one");
        none(&n("d"));
        fs::create_dir(x.join(n("d"))).expect("mkdir");
        assert!(fs::metadata(y.join(n("d"))).expect("seen").is_dir());
        assert_eq!(fs::read_dir(y.join(n("d"))).expect("list").count(), 0);
        fs::write(x.join(n("d")).join("in"), b"deep").expect("write");
        assert_eq!(fs::read(y.join(n("d")).join("in")).expect("seen"), b"deep");
        assert_eq!(fs::read_dir(y.join(n("d"))).expect("list").count(), 1);
        fs::rename(x.join(n("f")), x.join(n("g"))).expect("rename");
        none(&n("f"));
        assert_eq!(fs::read(y.join(n("g"))).expect("moved"), b"one");
        fs::rename(x.join(n("g")), x.join(n("d")).join("g")).expect("rename into the directory");
        none(&n("g"));
        assert_eq!(fs::read(y.join(n("d")).join("g")).expect("moved"), b"one");
        fs::hard_link(x.join(n("d")).join("g"), x.join(n("h"))).expect("link");
        assert_eq!(fs::metadata(y.join(n("h"))).expect("linked").nlink(), 2);
        assert_eq!(fs::metadata(y.join(n("d")).join("g")).expect("linked").nlink(), 2);
        fs::remove_file(x.join(n("d")).join("g")).expect("unlink");
        assert_eq!(fs::metadata(y.join(n("h"))).expect("left").nlink(), 1);
        none(&format!("{}/g", n("d")));
        // After a replacement the name leads to the other inode at once.
        fs::write(x.join(n("new")), b"two").expect("write");
        let before = fs::metadata(y.join(n("h"))).expect("stat").ino();
        fs::rename(x.join(n("new")), x.join(n("h"))).expect("replace");
        let after = fs::metadata(y.join(n("h"))).expect("stat").ino();
        assert!(before != after && fs::read(y.join(n("h"))).expect("read") == b"two");
        fs::write(x.join(n("i")), b"three").expect("write");
        fs::metadata(y.join(n("i"))).expect("stat");
        renameat_with(CWD, x.join(n("h")), CWD, x.join(n("i")), RenameFlags::EXCHANGE).expect("exchange");
        assert_eq!(fs::read(y.join(n("h"))).expect("read"), b"three");
        assert_eq!(fs::read(y.join(n("i"))).expect("read"), b"two");
        std::os::unix::fs::symlink("target", x.join(n("l"))).expect("symlink");
        assert_eq!(fs::read_link(y.join(n("l"))).expect("seen").as_os_str(), "target");
        mknodat(CWD, x.join(n("p")), FileType::Fifo, mode(0o600), 0).expect("mknod");
        assert_eq!(stat(y.join(n("p"))).expect("seen").st_mode & 0o777, 0o600);
        fs::remove_dir_all(x.join(n("d"))).expect("remove the directory");
        none(&n("d"));
        assert_eq!(errno(fs::create_dir(y.join(n("i")))), EEXIST);
        let names = |at: &PathBuf| -> BTreeSet<_> {
            fs::read_dir(at).expect("list").map(|e| e.expect("entry").file_name()).collect()
        };
        assert_eq!(names(x), names(y));
    }
    pair.stop();
}

/// Goal: Promise S1 across mounts, for attributes: permissions, owner, times, extended attributes, sizes. Method: as
/// for names, but the file is also open on the other mount.
fn attributes_are_seen_at_once(servers: usize) {
    let pair = Pair::new(servers, &["--targets", "3"], &[]);
    fs::write(pair.a.join("f"), b"12345").expect("write");
    let held = [&pair.a, &pair.b].map(|m| fs::File::options().read(true).write(true).open(m.join("f")).expect("open"));
    for (round, (x, y)) in pair.both().into_iter().cycle().take(10).enumerate() {
        let (fx, fy) = (x.join("f"), y.join("f"));
        let file = &held[(round + 1) % 2];
        let bits = [0o600, 0o755, 0o4711, 0o644][round % 4];
        stat(&fy).expect("looked before");
        chmod(&fx, mode(bits)).expect("chmod");
        assert_eq!(stat(&fy).expect("stat").st_mode & 0o7777, bits);
        assert_eq!(file.metadata().expect("fstat").mode() & 0o7777, bits);
        std::os::unix::fs::chown(&fx, Some(1000 + round as u32), Some(7)).expect("chown");
        assert_eq!(fs::metadata(&fy).expect("stat").uid(), 1000 + round as u32);
        let at = |sec| Timespec { tv_sec: sec, tv_nsec: 5 };
        let times = Timestamps { last_access: at(10), last_modification: at(1000 + round as i64) };
        utimensat(CWD, &fx, &times, AtFlags::empty()).expect("utimens");
        assert_eq!(fs::metadata(&fy).expect("stat").mtime(), 1000 + round as i64);
        assert_eq!(rerrno(getxattr(&fy, "user.n", &mut [0; 8])), ENODATA);
        setxattr(&fx, "user.n", &[round as u8], XattrFlags::CREATE).expect("setxattr");
        let mut value = [0; 8];
        assert_eq!((getxattr(&fy, "user.n", &mut value), value[0]), (Ok(1), round as u8));
        removexattr(&fx, "user.n").expect("removexattr");
        assert_eq!(rerrno(getxattr(&fy, "user.n", &mut [0; 8])), ENODATA);
        let size = [9_000_000, 3, 70_000, 0][round % 4];
        fs::File::options().write(true).open(&fx).expect("open").set_len(size).expect("truncate");
        assert_eq!((stat(&fy).expect("stat").st_size as u64, file.metadata().expect("fstat").len()), (size, size));
    }
    pair.stop();
}

/// Goal: Promise S1 across mounts, for data: what is written on one mount, small or large, through the cache or past
/// it, is read on the other with nothing synced; sizes and times of a file that is being written show at once; a
/// truncate empties the other's cache. Method: one file, writes of many sizes on either side in turn, read by the other
/// after it has cached the old bytes.
fn data_is_seen_at_once(servers: usize) {
    let pair = Pair::new(servers, &["--targets", "3"], &["--cache", "64M"]);
    let path = "f";
    let open_on =
        |m: &PathBuf, flags| open(m.join(path), OFlags::RDWR | OFlags::CREATE | flags, mode(0o644)).expect("open");
    let plain = [open_on(&pair.a, OFlags::empty()), open_on(&pair.b, OFlags::empty())];
    let mut model = Vec::new();
    for round in 0..60usize {
        let (x, y) = (round % 2, (round + 1) % 2);
        let len = [1, 100, 4096, 5000, 70_000, 1 << 20, (5 << 20) + 13][round % 7];
        let at = [0, 17, 4096, 1 << 20, (4 << 20) - 50][round % 5];
        let mut seen = vec![0; model.len()];
        assert_eq!(read_at(&plain[y], &mut seen, 0), seen.len(), "the other reads all");
        let bytes = pattern(round as u64, len);
        write_at(&plain[x], &bytes, at);
        if model.len() < at + len {
            model.resize(at + len, 0);
        }
        model[at..at + len].copy_from_slice(&bytes);
        let name = [&pair.a, &pair.b][y].join(path);
        assert_eq!(stat(&name).expect("stat").st_size as usize, model.len(), "size in round {round}");
        let mut got = vec![0; model.len() + 10];
        let n = read_at(&plain[y], &mut got, 0);
        assert!(n == model.len() && got[..n] == model, "round {round}: {n} of {} bytes, or others", model.len());
        if round % 9 == 8 {
            let size = model.len() / 3;
            ftruncate(&plain[x], size as u64).expect("truncate");
            model.truncate(size);
            assert_eq!(stat(&name).expect("stat").st_size as usize, size);
            assert_eq!(read_at(&plain[y], &mut got, size as u64 - 1), 1, "nothing behind the new end");
        }
    }
    let mtime = |m: &PathBuf| stat(m.join(path)).map(|s| (s.st_mtime, s.st_mtime_nsec)).expect("stat");
    let before = mtime(&pair.b);
    pwrite(&plain[0], b"later", 0).expect("write");
    assert!(mtime(&pair.b) > before, "the time of a write that is still in the other's cache");
    assert_eq!(mtime(&pair.b), mtime(&pair.a));
    drop(plain);
    pair.stop();
}

fn read_at(fd: &impl std::os::fd::AsFd, buf: &mut [u8], at: u64) -> usize {
    let mut got = 0;
    while got < buf.len() {
        match pread(fd, &mut buf[got..], at + got as u64).expect("read") {
            0 => break,
            n => got += n,
        }
    }
    got
}

fn write_at(fd: &impl std::os::fd::AsFd, bytes: &[u8], at: usize) {
    let mut done = 0;
    while done < bytes.len() {
        done += pwrite(fd, &bytes[done..], (at + done) as u64).expect("write");
    }
}

/// Goal: Promise S1, S3, S4 across mounts. Method: the random-operation tester on two and on three mounts at once
/// against one byte vector.
fn random_operations_on_several_mounts_agree_with_a_byte_vector(servers: usize) {
    let pair = Pair::new(servers, &["--targets", "3"], &["--cache", "8M"]);
    for seed in 0..3 {
        println!("two mounts, seed {seed}");
        let mut tester = Tester::on(&[&pair.a, &pair.b], seed);
        (0..250).for_each(|_| tester.step());
        tester.verify();
    }
    let third = pair.place.mount_at("c", &["--cache", "8M"]);
    let c = pair.place.path("c");
    let mut tester = Tester::on(&[&pair.a, &pair.b, &c], 9);
    (0..250).for_each(|_| tester.step());
    tester.verify();
    drop(tester);
    third.stop();
    pair.stop();
}

/// Goal: Promise S1, S3 across mounts: programs on several mounts that have the same pages of a file mapped shared all
/// the time see each other's synced stores, and whatever else is done to the file. Method: the random-operation tester
/// on two and on three mounts, each of which has the start of the file mapped, stores there and looks at it.
fn random_operations_with_common_pages_mapped(servers: usize) {
    let pair = Pair::new(servers, &["--targets", "3"], &["--cache", "8M"]);
    for seed in 60..63 {
        println!("common pages, seed {seed}");
        let mut tester = Tester::on(&[&pair.a, &pair.b], seed).with_common_maps();
        (0..300).for_each(|_| tester.step());
        tester.verify();
    }
    let third = pair.place.mount_at("c", &["--cache", "8M"]);
    let c = pair.place.path("c");
    let mut tester = Tester::on(&[&pair.a, &pair.b, &c], 69).with_common_maps();
    (0..300).for_each(|_| tester.step());
    tester.verify();
    drop(tester);
    third.stop();
    pair.stop();
}

/// Goal: Promise S1, S3 across mounts, whether the kernel or the mount serves reads. Method: the random-operation
/// tester on two mounts with each setting of `hybrid.kernel_cache`, through open files that read alone as well.
#[test]
fn random_operations_whoever_serves_reads_of_two_mounts() {
    for setting in ["auto", "on", "off"] {
        let set = served_by(setting);
        let mut args = vec!["--cache", "8M"];
        args.extend(set.iter().map(String::as_str));
        let pair = Pair::new(1, &["--targets", "2"], &args);
        println!("two mounts, {setting}");
        let mut tester = Tester::on(&[&pair.a, &pair.b], 40).with_readers();
        (0..250).for_each(|_| tester.step());
        tester.verify();
        drop(tester);
        pair.stop();
    }
}

/// Goal: Promise S1, S3, S4 across mounts that have no cache (sanityn 16c). Method: the random-operation tester on two
/// mounts that are set to direct; no request has gone through a cache.
#[test]
fn random_operations_without_a_cache() {
    let pair = Pair::new(1, &["--targets", "3"], &["--set", "hybrid.mode=direct"]);
    for seed in 20..22 {
        println!("no cache, seed {seed}");
        let mut tester = Tester::on(&[&pair.a, &pair.b], seed).without_maps();
        (0..200).for_each(|_| tester.step());
        tester.verify();
    }
    for mount in [&pair.a, &pair.b] {
        for way in ["read", "write"] {
            // A read that fills a page of the kernel counts as `buffered_default`, though it is not cached here.
            let of_pages = |reason: &str| way == "read" && reason == "buffered_default";
            let kept =
                |reason: &str| !reason.starts_with("direct") && !of_pages(reason) && count(mount, way, reason) > 0;
            assert_eq!(REASONS.into_iter().find(|reason| kept(reason)), None, "{way} on {}", mount.display());
            assert!(count(mount, way, "direct_user") > 50);
        }
    }
    pair.stop();
}

/// Goal: if writes that switched between the modes made a file grow, size and blocks of the file are right on both
/// mounts at once: by name and by open file, before and after it is closed, after truncates, and after a restart
/// (sanity 271ba, 806). Method: large writes, holes and truncates on one mount; the other mount calls `stat` after
/// each.
#[test]
fn sizes_and_blocks_after_switched_writes() {
    const MIB: u64 = 1 << 20;
    let pair = Pair::new(1, &["--targets", "3"], &[]);
    fs::write(pair.a.join("f"), b"").expect("make");
    let held = fs::File::open(pair.b.join("f")).expect("open");
    let check = |size: u64, data: u64, what: &str| {
        for seen in [fs::metadata(pair.a.join("f")), fs::metadata(pair.b.join("f")), held.metadata()] {
            let seen = seen.expect("stat");
            // Extents are whole blocks.
            let blocks = data.next_multiple_of(4096) / 512;
            let known = (seen.len(), (blocks..=blocks + 16).contains(&seen.blocks()));
            assert_eq!(known, (size, true), "{what}: {} blocks, {blocks} of data", seen.blocks());
        }
    };
    let f = fs::File::options().write(true).open(pair.a.join("f")).expect("open");
    let write = |bytes: usize, at: u64| {
        f.write_all_at(&vec![1; bytes], at).expect("write");
        assert_eq!(held.metadata().expect("stat").len(), at + bytes as u64);
        // The first piece of a large request is in the cache, and has no blocks before it is written back.
        f.sync_data().expect("sync");
    };
    write(5 << 20, 0);
    check(5 * MIB, 5 * MIB, "a switched write");
    write((3 << 20) + 5, 20 * MIB);
    check(23 * MIB + 5, 8 * MIB + 5, "one behind a hole");
    f.set_len(21 * MIB).expect("truncate");
    check(21 * MIB, 6 * MIB, "a truncate");
    f.set_len(40 * MIB).expect("truncate");
    check(40 * MIB, 6 * MIB, "a longer one");
    assert!(count(&pair.a, "write", "direct_large") >= 2, "they were switched");
    drop(f);
    check(40 * MIB, 6 * MIB, "closed");
    drop(held);
    pair.stop();
}

/// Goal: Promise S4 across mounts: records appended by two mounts at the same time lie whole, once, each mount's in its
/// order. Method: two threads, records of many lengths.
fn appends_of_two_mounts_lie_whole(servers: usize) {
    const RECORDS: usize = 120;
    let pair = Pair::new(servers, &["--targets", "2"], &[]);
    let len = |i: usize| 8 + (i * 37) % 3000 + if i.is_multiple_of(29) { 200_000 } else { 0 };
    let record = |who: u8, i: usize| {
        let mut r = vec![who; len(i)];
        r[1..5].copy_from_slice(&(i as u32).to_le_bytes());
        r
    };
    let barrier = Barrier::new(2);
    std::thread::scope(|s| {
        for (who, m) in [(1, &pair.a), (2, &pair.b)] {
            let (barrier, record) = (&barrier, &record);
            s.spawn(move || {
                let f =
                    open(m.join("log"), OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND, mode(0o644)).expect("open");
                barrier.wait();
                for i in 0..RECORDS {
                    let r = record(who, i);
                    assert_eq!(rustix::io::write(&f, &r).expect("append"), r.len());
                }
            });
        }
    });
    let bytes = fs::read(pair.b.join("log")).expect("read");
    let (mut at, mut next) = (0, [0usize; 3]);
    while at < bytes.len() {
        let who = bytes[at];
        assert!((1..=2).contains(&who), "no record begins at {at}");
        let i = next[usize::from(who)];
        let want = record(who, i);
        assert!(bytes[at..].starts_with(&want), "record {i} of mount {who} is not whole at {at}");
        next[usize::from(who)] += 1;
        at += want.len();
    }
    assert_eq!(next[1..], [RECORDS, RECORDS]);
    pair.stop();
}

/// Goal: Promise S2 across mounts: writes of several megabytes, over several objects, buffered and direct, are one
/// event each: a reader never sees a mixture. Method: two mounts repeatedly write one range with different bytes while
/// both read it.
fn writes_over_several_objects_are_one_event(servers: usize) {
    const LEN: usize = 3 << 20;
    let pair = Pair::new(servers, &["--targets", "3"], &["--cache", "64M"]);
    setxattr(&pair.a, "user.amphi.layout", b"striped,size=64K,count=3", XattrFlags::empty()).expect("layout");
    fs::write(pair.a.join("f"), vec![7; LEN]).expect("write");
    std::thread::scope(|s| {
        for (who, m) in [(10u8, &pair.a), (20, &pair.b)] {
            s.spawn(move || {
                let f = fs::File::options().read(true).write(true).open(m.join("f")).expect("open");
                let mut got = vec![0; LEN];
                for round in 0..12u8 {
                    // Below and above the size from which writes go direct.
                    let len = if round % 3 == 0 { LEN } else { 700_000 };
                    f.write_all_at(&vec![who + round % 8; len], 0).expect("write");
                    let len = if round % 2 == 0 { 700_000 } else { LEN };
                    f.read_exact_at(&mut got[..len], 0).expect("read");
                    let head = &got[..len.min(700_000)];
                    let other = head.iter().position(|b| *b != head[0]);
                    assert!(
                        other.is_none(),
                        "mount {who}, round {round}: byte {other:?} of the read is of another write"
                    );
                }
            });
        }
    });
    pair.stop();
}

/// Goal: exclusive creation is exclusive across mounts, and the loser sees the winner's file. Method: both mounts make
/// the same names at the same time.
fn one_of_two_exclusive_creates_wins(servers: usize) {
    const NAMES: usize = 150;
    let pair = Pair::new(servers, &["--targets", "2"], &[]);
    fs::create_dir(pair.a.join("d")).expect("mkdir");
    let barrier = Barrier::new(2);
    let won: Vec<Vec<bool>> = std::thread::scope(|s| {
        let tasks = [&pair.a, &pair.b].map(|m| {
            let barrier = &barrier;
            s.spawn(move || {
                let mut won = Vec::new();
                for i in 0..NAMES {
                    if i % 10 == 0 {
                        barrier.wait();
                    }
                    let made = fs::File::options().write(true).create_new(true).open(m.join(format!("d/n{i}")));
                    won.push(made.is_ok());
                    if let Err(e) = made {
                        assert_eq!(e.raw_os_error(), Some(EEXIST));
                        fs::metadata(m.join(format!("d/n{i}"))).expect("the winner's file is there");
                    }
                }
                won
            })
        });
        tasks.map(|t| t.join().expect("no call failed")).into()
    });
    for (i, (a, b)) in won[0].iter().zip(&won[1]).enumerate() {
        assert!(a != b, "n{i} was made {} times", u8::from(*a) + u8::from(*b));
    }
    assert_eq!(fs::read_dir(pair.b.join("d")).expect("list").count(), NAMES);
    pair.stop();
}

/// Goal: Promise S6 across mounts: a file that is open on one mount and unlinked or replaced on the other stays
/// readable and writable there until it is closed; its space is freed then. Method: large file, free space before and
/// after.
fn files_unlinked_elsewhere_live_until_closed(servers: usize) {
    let pair = Pair::new(servers, &["--targets", "2"], &[]);
    let free = |m: &PathBuf| rustix::fs::statvfs(m).expect("statvfs").f_bfree;
    let before = free(&pair.a);
    let bytes = pattern(3, 6 << 20);
    fs::write(pair.a.join("f"), &bytes).expect("write");
    let held = fs::File::options().read(true).write(true).open(pair.b.join("f")).expect("open");
    fs::remove_file(pair.a.join("f")).expect("unlink");
    assert_eq!(errno(fs::metadata(pair.b.join("f"))), ENOENT);
    let mut got = vec![0; bytes.len()];
    held.read_exact_at(&mut got, 0).expect("read");
    assert!(got == bytes, "still there");
    held.write_all_at(b"new bytes", 5).expect("write");
    held.sync_all().expect("fsync");
    held.read_exact_at(&mut got[..14], 0).expect("read");
    assert_eq!(&got[5..14], b"new bytes");
    assert_eq!(held.metadata().expect("fstat").nlink(), 0);
    drop(held);
    eventually("the space is free again", || free(&pair.a) == before);
    pair.stop();
}

/// Goal: records of 47,008 bytes that two mounts write in turn to one file (every page at an edge is shared) all
/// arrive. Method: two threads, one fsync each at the end, compared by a third mount.
fn strided_records_of_two_mounts_all_arrive(servers: usize) {
    const LEN: usize = 47_008;
    const RECORDS: usize = 80;
    let pair = Pair::new(servers, &["--targets", "3"], &["--cache", "16M"]);
    std::thread::scope(|s| {
        for (who, m) in [&pair.a, &pair.b].into_iter().enumerate() {
            s.spawn(move || {
                let f = open(m.join("f"), OFlags::CREATE | OFlags::WRONLY, mode(0o644)).expect("open");
                for i in (who..RECORDS).step_by(2) {
                    write_at(&f, &pattern(i as u64, LEN), i * LEN);
                }
                fsync(&f).expect("fsync");
            });
        }
    });
    let third = pair.place.mount_at("c", &[]);
    let bytes = fs::read(pair.place.path("c").join("f")).expect("read");
    assert_eq!(bytes.len(), RECORDS * LEN);
    for (i, got) in bytes.chunks(LEN).enumerate() {
        assert!(got == pattern(i as u64, LEN), "record {i}");
    }
    third.stop();
    pair.stop();
}

/// Goal: a mount that is killed blocks no other mount: its locks and tokens are released at once, not after the
/// callback deadline, and all data that it had sent to the server is there (Promise S9). Method: dirty data and cached
/// names on one mount, kill -9, the other one writes and renames the same.
fn a_killed_mount_holds_nobody_up(servers: usize) {
    let mut pair = Pair::new(servers, &["--targets", "2"], &[]);
    fs::create_dir(pair.a.join("d")).expect("mkdir");
    let f = fs::File::create(pair.a.join("d/f")).expect("create");
    f.write_all_at(&[1; 100_000], 0).expect("write");
    f.sync_all().expect("fsync");
    f.write_all_at(&[2; 50_000], 0).expect("write, in the cache alone");
    fs::metadata(pair.a.join("d/f")).expect("cached");
    drop(f);
    pair.mounts.remove(0).kill();
    let begin = std::time::Instant::now();
    fs::rename(pair.b.join("d/f"), pair.b.join("d/g")).expect("rename");
    fs::File::options().write(true).open(pair.b.join("d/g")).expect("open").write_all_at(b"mine", 7).expect("write");
    let bytes = fs::read(pair.b.join("d/g")).expect("read");
    // Half of the deadline of callbacks: a bound that a wait for it would break, not a measurement.
    assert!(begin.elapsed().as_secs() < 15, "waited {:?} for a dead mount", begin.elapsed());
    assert_eq!((bytes.len(), &bytes[7..11]), (100_000, &b"mine"[..]));
    assert!(bytes[..7].iter().all(|b| *b == 1 || *b == 2));
    assert_eq!(errno(fs::metadata(&pair.a)), ENOTCONN);
    let _ = rustix::mount::unmount(&pair.a, rustix::mount::UnmountFlags::DETACH);
    pair.stop();
}

/// Goal: a mount that hangs is evicted within its deadline, the others continue; when it continues it shows no old
/// data: its calls on cached objects fail with EIO. Method: SIGSTOP with dirty data for the whole deadline of 30 s,
/// which is longer than the lease of a mount's cached data, SIGCONT.
fn a_stopped_mount_is_evicted(servers: usize) {
    let mut pair = Pair::new(servers, &["--targets", "2"], &[]);
    let f =
        fs::File::options().create(true).truncate(true).read(true).write(true).open(pair.a.join("f")).expect("create");
    f.write_all_at(&[1; 4096], 0).expect("write");
    f.sync_all().expect("fsync");
    f.write_all_at(&[2; 4096], 0).expect("write, in the cache alone");
    let stopped = pair.mounts[0].pause();
    // Waits until the stopped mount is evicted.
    fs::write(pair.b.join("f"), [3; 4096]).expect("write");
    drop(stopped);
    let mut got = [0; 4096];
    eventually("the evicted mount knows it", || match f.read_at(&mut got, 0) {
        Ok(n) => {
            assert!(n == 4096 && got[0] == 3, "byte {} of {n}: stale", got[0]);
            false
        }
        Err(e) => [EIO, ENOTCONN].contains(&e.raw_os_error().unwrap_or(0)),
    });
    drop(f);
    assert!(fs::read(pair.b.join("f")).expect("read") == [3; 4096]);
    pair.mounts.remove(0).kill();
    let _ = rustix::mount::unmount(&pair.a, rustix::mount::UnmountFlags::DETACH);
    pair.stop();
}

/// Goal: Promise S9, S12 with two mounts: servers that are killed under load of both, several times, lose nothing and
/// do nothing twice; locks and names are as before. Method: each mount appends numbered lines to a log of both with
/// fsync and moves a file of its own through directories of both.
fn two_mounts_outlive_kills_of_the_server(servers: usize) {
    let mut pair = Pair::new(servers, &["--targets", "3"], &[]);
    for d in 0..5 {
        fs::create_dir(pair.a.join(format!("d{d}"))).expect("mkdir");
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    let counts: Vec<u64> = std::thread::scope(|s| {
        let stop = &stop;
        let tasks = [(1u64, pair.a.clone()), (2, pair.b.clone())].map(|(who, m)| {
            s.spawn(move || {
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND;
                let log = open(m.join("log"), flags, mode(0o644)).expect("open");
                fs::write(m.join(format!("d0/own{who}")), pattern(who, 9000)).expect("write");
                let mut n = 0u64;
                while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                    let line = [who.to_le_bytes(), n.to_le_bytes()].concat();
                    assert_eq!(rustix::io::write(&log, &line).expect("append"), 16);
                    fsync(&log).expect("fsync");
                    let (from, to) = (format!("d{}/own{who}", n % 5), format!("d{}/own{who}", (n + 1) % 5));
                    fs::rename(m.join(from), m.join(to)).expect("each move happens once");
                    n += 1;
                }
                n
            })
        });
        for round in 0..3usize.max(2 * servers) {
            let size = || fs::metadata(pair.b.join("log")).map_or(0, |f| f.len());
            let before = size();
            eventually("both go on", || size() > before + 400);
            let k = (round + 1) % servers;
            std::mem::replace(&mut pair.servers[k], Daemon::none()).kill();
            pair.servers[k] = pair.place.member(k, &["--targets", "3"]);
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        tasks.map(|t| t.join().expect("no call failed")).into()
    });
    for m in [&pair.a, &pair.b] {
        let log = fs::read(m.join("log")).expect("read");
        let mut next = [0u64; 2];
        for line in log.chunks(16) {
            let number = |at: usize| u64::from_le_bytes(line[at..at + 8].try_into().expect("a whole line"));
            let who = number(0) as usize - 1;
            assert_eq!(number(8), next[who], "lines of mount {who} are in order");
            next[who] += 1;
        }
        assert_eq!(next[..], counts[..]);
        for who in [1, 2] {
            let path = m.join(format!("d{}/own{who}", counts[who as usize - 1] % 5));
            assert!(fs::read(path).expect("where it went last") == pattern(who, 9000));
        }
    }
    pair.stop();
}
