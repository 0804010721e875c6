//! Names of directories that the kernel keeps among several mounts (docs/design/kernel_names.md).

use crate::harness::{Place, Random, counter, errno, eventually, is_mounted, rerrno};
use crate::two_mounts::Pair;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const ENOENT: i32 = 2;

/// Whether the kernel of this machine does what is counted on, told without AmphiFS. Otherwise names are not lent, and
/// the tests hold all the same but for what they count.
fn kernel_can() -> bool {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kernel-names");
    let out = Command::new(script).output().expect("scripts/kernel-names");
    let can = out.status.success();
    if !can {
        println!("nothing is counted: {}", String::from_utf8_lossy(&out.stderr));
    }
    can
}

/// Names that are taken back are lent again at once.
const RESTLESS: [&str; 2] = ["--set", "names.rest_ms=0"];

/// Look-ups that the kernel sends while `work` is done.
fn lookups(mount: &Path, work: impl FnOnce()) -> u64 {
    let before = counter(mount, "lookup_kernel");
    work();
    counter(mount, "lookup_kernel") - before
}

/// Looks at `path` until that costs no look-up, if names are lent at all.
fn warm(mount: &Path, path: &Path) {
    let look = || (0..3).for_each(|_| assert!(fs::metadata(path).is_ok_and(|found| found.is_dir())));
    eventually("the path is lent", || lookups(mount, look) == 0);
}

/// Goal: programs on several mounts that walk over the same directories ask for none of their names, and for that of a
/// file once with each look. Method: a deep path on two mounts, warm; look-ups are counted.
#[test]
fn warm_walks_ask_for_no_directory() {
    let can = kernel_can();
    let pair = Pair::new(1, &["--targets", "3"], &[]);
    let deep: PathBuf = (0..8).map(|n| format!("d{n}")).collect();
    fs::create_dir_all(pair.a.join(&deep)).expect("mkdir");
    fs::write(pair.a.join(&deep).join("f"), b"x").expect("write");
    for mount in [&pair.a, &pair.b, &pair.a] {
        let (dir, file) = (mount.join(&deep), mount.join(&deep).join("f"));
        for _ in 0..10 {
            assert_eq!(fs::read(&file).expect("read"), b"x");
        }
        if !can {
            assert_eq!(counter(mount, "names_lent"), 0);
            continue;
        }
        warm(mount, &dir);
        let asked = lookups(mount, || (0..100).for_each(|_| assert_eq!(fs::read(&file).expect("read"), b"x")));
        // Should one of the walks have met the end of a life, that costs a few.
        assert!((90..=120).contains(&asked), "{asked} look-ups for 100 looks at a file");
        assert!(counter(mount, "names_lent") >= 8 && counter(mount, "names_answered") >= 8);
    }
    pair.stop();
}

/// Goal: a signal that ends the mount is never taken by the threads that walk, which cannot tell it to anybody. Method:
/// what they block, as `/proc` shows it.
#[test]
fn walking_threads_leave_signals_to_others() {
    let can = kernel_can();
    let place = Place::new();
    let server = place.server(&["--targets", "1"]);
    let mut mount = place.mount_at("m", &[]);
    let pid = mount.pid();
    let tasks = || fs::read_dir(format!("/proc/{pid}/task")).expect("a process").flatten();
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).unwrap_or_default();
    let walking = || tasks().map(status).filter(|s| s.contains("fuse names take") || s.contains("fuse names lend"));
    let blocks = |status: &String, signal: i32| {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a mask");
        u64::from_str_radix(mask.trim(), 16).expect("bits") >> (signal - 1) & 1 == 1
    };
    if can {
        eventually("both are there", || walking().count() == 2);
        for status in walking() {
            assert!([1, 2, 15].iter().all(|&signal| blocks(&status, signal)), "{status}");
        }
    }
    mount.stop();
    server.stop();
}

/// A few directories below two, each with one in it that tells which one it is.
struct Model {
    /// What is there, by name.
    dirs: BTreeMap<u64, u64>,
    next: u64,
}

const NAMES: u64 = 12;
/// Changes of names on two mounts. `AMPHI_NAME_CHANGES` says another number: 10000 for the proof.
const CHANGES: u64 = 1000;

fn changes() -> u64 {
    std::env::var("AMPHI_NAME_CHANGES").ok().and_then(|n| n.parse().ok()).unwrap_or(CHANGES)
}

/// Half of the names are in each of the two.
fn name_of(n: u64) -> String {
    format!("{}/n{n}", if n.is_multiple_of(2) { "p" } else { "q" })
}

impl Model {
    fn make(&mut self, at: &Path, n: u64) {
        let dir = at.join(name_of(n));
        fs::create_dir(&dir).expect("mkdir");
        fs::create_dir(dir.join(format!("is-{}", self.next))).expect("mkdir");
        self.dirs.insert(n, self.next);
        self.next += 1;
    }

    fn remove(&mut self, at: &Path, n: u64) {
        let Some(is) = self.dirs.remove(&n) else { return };
        fs::remove_dir(at.join(name_of(n)).join(format!("is-{is}"))).expect("rmdir");
        fs::remove_dir(at.join(name_of(n))).expect("rmdir");
    }

    /// Changes something of two names below `at`.
    fn change(&mut self, random: &mut Random, at: &Path, [n, m]: [u64; 2]) {
        let path = |n| at.join(name_of(n));
        match (self.dirs.get(&n).copied(), self.dirs.get(&m).copied()) {
            (None, _) => self.make(at, n),
            (Some(one), Some(other)) if n != m && random.below(2) == 0 => {
                renameat_with(CWD, path(n), CWD, path(m), RenameFlags::EXCHANGE).expect("exchange");
                self.dirs.extend([(n, other), (m, one)]);
            }
            (Some(one), Some(other)) if n != m => {
                fs::remove_dir(path(m).join(format!("is-{other}"))).expect("rmdir");
                fs::rename(path(n), path(m)).expect("rename over an empty one");
                self.dirs.remove(&n);
                self.dirs.insert(m, one);
            }
            (Some(one), None) => {
                fs::rename(path(n), path(m)).expect("rename");
                self.dirs.remove(&n);
                self.dirs.insert(m, one);
            }
            _ => {
                self.remove(at, n);
                if random.below(2) == 0 {
                    self.make(at, n);
                }
            }
        }
    }

    /// What is there below `at`, of these names.
    fn check(&self, at: &Path, names: &[u64], what: &str) {
        for n in names {
            let dir = at.join(name_of(*n));
            match self.dirs.get(n) {
                Some(is) => {
                    let found = fs::symlink_metadata(dir.join(format!("is-{is}")));
                    assert!(found.is_ok(), "{what}: {} is not {is}: {found:?}", dir.display());
                }
                None => assert_eq!(errno(fs::symlink_metadata(&dir)), ENOENT, "{what}: {}", dir.display()),
            }
        }
    }
}

/// Changes names on one of `mounts`, mostly the first one; before that they are looked at on another one until they may
/// be lent, behind it at once on all.
fn changes_are_seen(mounts: &[&PathBuf], count: u64, seed: u64) {
    let can = kernel_can();
    let mut random = Random::new(seed);
    for dir in ["base", "base/p", "base/q"] {
        fs::create_dir(mounts[0].join(dir)).expect("mkdir");
    }
    let at: Vec<PathBuf> = mounts.iter().map(|mount| mount.join("base")).collect();
    let mut model = Model { dirs: BTreeMap::new(), next: 0 };
    (0..NAMES / 2).for_each(|n| model.make(&at[0], n));
    for change in 0..count {
        let who = if random.below(4) == 0 { random.below(at.len() as u64) as usize } else { 0 };
        let warm = &at[(who + 1 + random.below(at.len() as u64 - 1) as usize) % at.len()];
        let names = [random.below(NAMES), random.below(NAMES)];
        (0..5).for_each(|_| model.check(warm, &names, "before"));
        model.change(&mut random, &at[who], names);
        model.check(warm, &names, &format!("change {change}, a mount that has just looked"));
        at.iter().for_each(|at| model.check(at, &names, &format!("change {change}")));
    }
    let all: Vec<u64> = (0..NAMES).collect();
    at.iter().for_each(|at| model.check(at, &all, "at last"));
    let sum = |name| mounts.iter().map(|mount| counter(mount, name)).sum::<u64>();
    let (lent, taken) = (sum("names_lent"), sum("names_taken_back"));
    println!("{count} changes: {lent} names were lent, {taken} times some were taken back");
    assert!(!can || (lent > count / 4 && taken > count / 20), "{lent} lent, {taken} taken back");
}

/// Goal: Promise S1 for names that the kernel was lent: what another mount has changed, the next call sees. Method:
/// renames, also across directories and over others, exchanges, removals and makings of directories on two mounts.
#[test]
fn changes_elsewhere_are_seen_by_the_next_call() {
    let pair = Pair::new(1, &["--targets", "2"], &RESTLESS);
    changes_are_seen(&[&pair.a, &pair.b], changes(), 7);
    pair.stop();
}

/// Goal and method: the same with three mounts and three servers.
#[test]
fn changes_among_three_mounts_and_servers() {
    let pair = Pair::new(3, &["--targets", "3"], &RESTLESS);
    let third = pair.place.mount_at("c", &RESTLESS);
    let c = pair.place.path("c");
    changes_are_seen(&[&pair.a, &pair.b, &c], changes() / 4, 8);
    third.stop();
    pair.stop();
}

/// Runs `work` on a thread for each mount and number at the same time; fails if they do not end within a minute.
fn together(mounts: &[&PathBuf], threads: usize, work: impl Fn(usize, &Path) + Clone + Send + 'static) {
    let (tell, told) = mpsc::channel();
    let all = mounts.len() * threads;
    for (at, mount) in mounts.iter().enumerate() {
        for n in 0..threads {
            let (tell, work, mount) = (tell.clone(), work.clone(), mount.to_path_buf());
            std::thread::spawn(move || {
                work(at * threads + n, &mount);
                let _ = tell.send(());
            });
        }
    }
    let end = Instant::now() + Duration::from_secs(60);
    for n in 0..all {
        let left = end.saturating_duration_since(Instant::now());
        assert!(told.recv_timeout(left).is_ok(), "only {n} of {all} threads have ended, or one has failed");
    }
}

/// Goal: lending and taking back never wait for a change that waits for them. Method: two mounts rename directories
/// across two others, exchange them, make and remove names in them and walk through them, all at the same time; every
/// call returns, and in the end both mounts show the same.
#[test]
fn renames_of_lent_names_on_both_mounts_end() {
    let pair = Pair::new(1, &["--targets", "2"], &RESTLESS);
    for dir in ["p", "q", "p/x", "p/y", "q/z"] {
        fs::create_dir(pair.a.join(dir)).expect("mkdir");
    }
    together(&[&pair.a, &pair.b], 5, |thread, mount| {
        let mut random = Random::new(thread as u64);
        let dirs = ["p/x", "p/y", "q/x", "q/y", "p/z", "q/z"];
        for round in 0..400 {
            let one = mount.join(dirs[random.below(6) as usize]);
            let other = mount.join(dirs[random.below(6) as usize]);
            let _ = match thread % 5 {
                0 => fs::rename(&one, &other),
                1 => renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).map_err(Into::into),
                2 => fs::create_dir(one.join(format!("{thread}"))),
                3 => fs::remove_dir(other.join(format!("{}", random.below(10)))),
                _ => {
                    (0..20).for_each(|_| drop(fs::symlink_metadata(one.join("nothing"))));
                    Ok(())
                }
            };
            if round % 100 == 0 {
                (0..5).for_each(|_| drop(fs::read_dir(mount.join("p")).map(Iterator::count)));
            }
        }
    });
    let list = |mount: &Path| -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut left = vec![PathBuf::new()];
        while let Some(dir) = left.pop() {
            for entry in fs::read_dir(mount.join(&dir)).expect("list") {
                left.push(dir.join(entry.expect("entry").file_name()));
            }
            found.push(dir);
        }
        found.sort();
        found
    };
    assert_eq!(list(&pair.a), list(&pair.b));
    pair.stop();
}

/// Goal: a mount that is stopped with names lent shows nothing that has been changed since, neither while it is stopped
/// nor when it goes on. Method: SIGSTOP, a rename on the other mount, which waits for the tokens or for the end of the
/// session; then the old name is asked for on the stopped mount, before and behind SIGCONT.
#[test]
fn a_stopped_mount_shows_no_old_name() {
    let place = Place::new();
    let server = place.server(&["--targets", "2"]);
    let (a, mut b) = (place.mount_at("a", &[]), place.mount_at("b", &[]));
    let (at, other) = (place.path("a"), place.path("b"));
    fs::create_dir_all(at.join("d/e")).expect("mkdir");
    fs::metadata(other.join("d/e")).expect("there");
    if kernel_can() {
        warm(&other, &other.join("d/e"));
    }
    let pid = Pid::from_raw(b.pid() as i32).expect("a pid");
    kill_process(pid, Signal::STOP).expect("stop");
    let began = Instant::now();
    fs::rename(at.join("d"), at.join("moved")).expect("rename");
    println!("the rename waited for {:?}", began.elapsed());
    let (tell, told) = mpsc::channel();
    let old = other.join("d/e");
    std::thread::spawn(move || tell.send(fs::metadata(old).map(drop)));
    let early = told.recv_timeout(Duration::from_secs(1));
    assert!(!matches!(early, Ok(Ok(()))), "the old name is still there");
    kill_process(pid, Signal::CONT).expect("continue");
    let late = early.or_else(|_| told.recv_timeout(Duration::from_secs(60))).expect("an answer");
    assert!(late.is_err(), "the old name is there again");
    (0..100).for_each(|_| assert!(fs::metadata(other.join("d/e")).is_err()));
    fs::metadata(at.join("moved/e")).expect("there");
    drop(b);
    let _ = rustix::mount::unmount(&other, rustix::mount::UnmountFlags::DETACH);
    a.stop();
    server.stop();
}

/// A bind mount, which goes when it is dropped.
struct Bind(PathBuf);

impl Bind {
    fn new(from: &Path, to: &Path) -> Bind {
        rustix::mount::mount_bind(from, to).expect("bind mount");
        Bind(to.to_path_buf())
    }
}

impl Drop for Bind {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Goal: what is mounted below a directory whose name was lent stays when names are taken back, also its own. Method: a
/// bind mount in a deep directory, changes around it and of its path by another mount that change nothing of it.
#[test]
fn mounts_below_lent_names_stay() {
    let pair = Pair::new(1, &["--targets", "2"], &RESTLESS);
    let inside = pair.place.path("inside");
    fs::create_dir(&inside).expect("mkdir");
    fs::write(inside.join("f"), b"bound").expect("write");
    fs::create_dir_all(pair.a.join("d/e/m")).expect("mkdir");
    let there = pair.b.join("d/e/m");
    let bind = Bind::new(&inside, &there);
    for round in 0..200 {
        (0..6).for_each(|_| assert_eq!(fs::read(there.join("f")).expect("bound"), b"bound"));
        // Each of these takes names of the path back, or tries to.
        assert_eq!(fs::create_dir(pair.a.join("d")).map_err(|e| e.kind()), Err(ErrorKind::AlreadyExists));
        assert_eq!(fs::create_dir(pair.a.join("d/e")).map_err(|e| e.kind()), Err(ErrorKind::AlreadyExists));
        assert!(rerrno(renameat_with(CWD, pair.a.join("d/none"), CWD, pair.a.join("d/e"), RenameFlags::empty())) != 0);
        fs::create_dir(pair.a.join("d/e/other")).expect("mkdir");
        fs::rename(pair.a.join("d/e/other"), pair.a.join("d/another")).expect("rename");
        fs::remove_dir(pair.a.join("d/another")).expect("rmdir");
        assert_eq!(fs::read(there.join("f")).expect("bound"), b"bound", "round {round}");
    }
    println!("{} names were taken back", counter(&pair.b, "names_taken_back"));
    drop(bind);
    assert!(fs::metadata(there.join("f")).is_err());
    pair.stop();
}

/// Goal: a mount that lends names can be unmounted at any moment, by everybody, and its process ends; one that is
/// killed ends at once. Method: walks on three threads until the unmount, which must succeed as soon as they have
/// ended, or lazily in the midst of them.
#[test]
fn unmounts_and_kills_while_names_are_lent() {
    let place = Place::new();
    let server = place.server(&["--targets", "2"]);
    let a = place.mount_at("a", &[]);
    let deep = "d/e/f/g/h";
    fs::create_dir_all(place.path("a").join(deep)).expect("mkdir");
    for round in 0..12 {
        let other = place.mount_at("b", &RESTLESS);
        let mount = place.path("b");
        let walk = |times: usize| {
            std::thread::scope(|s| {
                (0..3).for_each(|_| drop(s.spawn(|| (0..times).for_each(|_| drop(fs::metadata(mount.join(deep)))))));
            });
        };
        let change = || {
            for n in 0..50 {
                fs::rename(place.path("a").join(deep), place.path("a/d/e/f/g/i")).expect("rename");
                fs::rename(place.path("a/d/e/f/g/i"), place.path("a").join(deep)).expect("rename");
                assert!(n < 50);
            }
        };
        std::thread::scope(|s| {
            let changes = s.spawn(change);
            match round % 3 {
                0 => {
                    walk(200);
                    let out = Command::new("umount").arg(&mount).output().expect("umount");
                    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
                    assert!(!is_mounted(&mount));
                    other.ends_with(0);
                }
                1 => {
                    let walks = s.spawn(|| walk(2000));
                    std::thread::sleep(Duration::from_millis(20 * round));
                    let out = Command::new("umount").arg("-l").arg(&mount).output().expect("umount");
                    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
                    walks.join().expect("walks");
                    other.ends_with(0);
                }
                _ => {
                    let walks = s.spawn(|| walk(2000));
                    std::thread::sleep(Duration::from_millis(20 * round));
                    let began = Instant::now();
                    other.kill();
                    assert!(began.elapsed() < Duration::from_secs(20), "it ended after {:?}", began.elapsed());
                    walks.join().expect("walks");
                    let _ = rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH);
                }
            }
            changes.join().expect("changes");
        });
    }
    a.stop();
    server.stop();
}
