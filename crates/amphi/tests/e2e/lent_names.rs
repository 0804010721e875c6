//! Names that the kernel keeps among several mounts (docs/design/kernel_names.md).

use crate::harness::{Place, Random, counter, errno, eventually, is_mounted, rerrno};
use crate::two_mounts::Pair;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const ENOENT: i32 = 2;

/// Returns whether the kernel of this machine has the required behaviour, tested without AmphiFS. Otherwise names get
/// no timeout, and the tests hold all the same except for their counts.
fn kernel_can() -> bool {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kernel-names");
    let out = Command::new(script).output().expect("scripts/kernel-names");
    let can = out.status.success();
    if !can {
        println!("nothing is counted: {}", String::from_utf8_lossy(&out.stderr));
    }
    can
}

/// Names that are invalidated get a timeout again at once.
const RESTLESS: [&str; 2] = ["--set", "names.rest_ms=0"];

/// Look-ups that the kernel sends while `work` is done.
fn lookups(mount: &Path, work: impl FnOnce()) -> u64 {
    let before = counter(mount, "lookup_kernel");
    work();
    counter(mount, "lookup_kernel") - before
}

/// Looks up `path` until a look-up costs no request, if names get timeouts at all.
fn warm(mount: &Path, path: &Path) {
    let look = || (0..3).for_each(|_| drop(fs::symlink_metadata(path)));
    eventually("the path is lent", || lookups(mount, look) == 0);
}

/// Goal: programs on several mounts that look up the same directories and files, and absent names, send no requests for
/// the names. Method: a deep path on two mounts, warm, with look-ups counted.
#[test]
fn warm_names_are_not_asked_for() {
    let can = kernel_can();
    let pair = Pair::new(1, &["--targets", "3"], &[]);
    let deep: PathBuf = (0..8).map(|n| format!("d{n}")).collect();
    fs::create_dir_all(pair.a.join(&deep)).expect("mkdir");
    fs::write(pair.a.join(&deep).join("f"), b"x").expect("write");
    symlink("f", pair.a.join(&deep).join("l")).expect("symlink");
    for mount in [&pair.a, &pair.b, &pair.a] {
        let at = |name| mount.join(&deep).join(name);
        let look = || {
            assert_eq!(fs::read(at("f")).expect("read"), b"x");
            assert_eq!(fs::read_link(at("l")).expect("readlink"), Path::new("f"));
            assert_eq!(errno(fs::symlink_metadata(at("none"))), ENOENT);
        };
        (0..10).for_each(|_| look());
        if !can {
            assert_eq!(counter(mount, "names_lent"), 0);
            continue;
        }
        ["f", "l", "none"].into_iter().for_each(|name| warm(mount, &at(name)));
        let asked = lookups(mount, || (0..100).for_each(|_| look()));
        // Should one of the walks have met the end of a life, that costs a few.
        assert!(asked <= 20, "{asked} look-ups for 100 looks at three names");
        assert!(counter(mount, "names_lent") >= 11 && counter(mount, "names_answered") >= 11);
    }
    pair.stop();
}

/// Goal: a file that is made under a name which the kernel caches as absent is then known to the kernel by that name,
/// like any other file. Method: names are looked up often, and then files are made under them in each way. The path of
/// the descriptor is compared.
#[test]
fn what_is_made_under_an_absent_name_has_that_name() {
    let can = kernel_can();
    let pair = Pair::new(1, &["--targets", "2"], &RESTLESS);
    fs::create_dir(pair.a.join("d")).expect("mkdir");
    for round in 0..40 {
        let path = pair.b.join(format!("d/n{round}"));
        if can {
            warm(&pair.b, &path);
        }
        let mut options = OpenOptions::new();
        options.write(true).truncate(round % 3 == 1);
        let how = if round % 2 == 0 { options.create(true) } else { options.create_new(true) };
        let file = how.open(&path).expect("create");
        let shown = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("a descriptor");
        assert_eq!(shown, fs::canonicalize(&path).expect("a path"), "round {round}");
        assert!(fs::metadata(pair.a.join(format!("d/n{round}"))).is_ok());
    }
    pair.stop();
}

/// Goal: a signal that ends the mount is never delivered to the threads that walk paths, because these cannot handle
/// it. Method: the set of signals that these threads block, as `/proc` shows it.
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
        eventually("all are there", || walking().count() >= 2);
        for status in walking() {
            assert!([1, 2, 15].iter().all(|&signal| blocks(&status, signal)), "{status}");
        }
    }
    mount.stop();
    server.stop();
}

/// A few directories below two others. Each of them contains one directory whose name identifies it.
struct Model {
    /// The existing directories, by name.
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

    /// Compares the entries below `at` that have these names.
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

/// Changes names on one of `mounts`, mostly the first one. Before each change the names are looked up on another mount
/// until they may have a timeout, and directly after it on all mounts.
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

/// Goal: Promise S1 for names under a timeout: the next call sees the changes of another mount. Method: renames, also
/// across directories and onto existing names, exchanges, removals and creations of directories on two mounts.
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

/// The inode that a name of the model leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thing {
    /// A file of this content, maybe with other names.
    File(u64),
    /// A symbolic link to this path.
    Link(u64),
    Directory,
}

/// Files, symbolic links and empty directories in two directories.
#[derive(Default)]
struct Things {
    there: BTreeMap<u64, Thing>,
    next: u64,
}

impl Things {
    fn make(&mut self, random: &mut Random, at: &Path, n: u64) {
        let (path, is) = (at.join(name_of(n)), self.next);
        self.next += 1;
        let thing = match random.below(6) {
            0 => {
                symlink(format!("{is}"), &path).expect("symlink");
                Thing::Link(is)
            }
            1 => {
                fs::create_dir(&path).expect("mkdir");
                Thing::Directory
            }
            how => {
                let mut options = OpenOptions::new();
                let options = options.write(true);
                let options = if how < 4 { options.create_new(true) } else { options.create(true).truncate(true) };
                let mut file = options.open(&path).expect("create");
                file.write_all(is.to_string().as_bytes()).expect("write");
                Thing::File(is)
            }
        };
        self.there.insert(n, thing);
    }

    fn remove(&mut self, at: &Path, n: u64) {
        match self.there.remove(&n) {
            None => {}
            Some(Thing::Directory) => fs::remove_dir(at.join(name_of(n))).expect("rmdir"),
            Some(_) => fs::remove_file(at.join(name_of(n))).expect("unlink"),
        }
    }

    fn change(&mut self, random: &mut Random, at: &Path, [n, m]: [u64; 2]) {
        let path = |n| at.join(name_of(n));
        match (self.there.get(&n).copied(), self.there.get(&m).copied(), random.below(3)) {
            (None, ..) => self.make(random, at, n),
            (Some(_), _, 0) => {
                self.remove(at, n);
                if random.below(2) == 0 {
                    self.make(random, at, n);
                }
            }
            (Some(Thing::File(is)), None, 1) => {
                fs::hard_link(path(n), path(m)).expect("link");
                self.there.insert(m, Thing::File(is));
            }
            (Some(one), Some(other), 1) if n != m => {
                renameat_with(CWD, path(n), CWD, path(m), RenameFlags::EXCHANGE).expect("exchange");
                self.there.extend([(n, other), (m, one)]);
            }
            (Some(one), other, _) if n != m => {
                if (one == Thing::Directory) != (other == Some(Thing::Directory)) {
                    self.remove(at, m);
                }
                fs::rename(path(n), path(m)).expect("rename");
                // Two names of one file: nothing happens.
                if !matches!((one, other), (Thing::File(is), Some(Thing::File(other))) if is == other) {
                    self.there.remove(&n);
                    self.there.insert(m, one);
                }
            }
            _ => {}
        }
    }

    fn check(&self, at: &Path, names: &[u64], what: &str) {
        for n in names {
            let path = at.join(name_of(*n));
            let what = || format!("{what}: {}", path.display());
            match self.there.get(n) {
                Some(Thing::File(is)) => {
                    assert!(fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()), "{}", what());
                    assert_eq!(fs::read_to_string(&path).expect("read"), is.to_string(), "{}", what());
                }
                Some(Thing::Link(is)) => {
                    assert_eq!(fs::read_link(&path).expect("link"), Path::new(&is.to_string()), "{}", what());
                }
                Some(Thing::Directory) => assert!(fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir())),
                None => {
                    assert_eq!(errno(fs::symlink_metadata(&path)), ENOENT, "{}", what());
                    assert_eq!(errno(fs::File::open(&path)), ENOENT, "{}", what());
                }
            }
        }
    }
}

/// Goal: Promise S1 for names of files, symbolic links and absent names under a timeout: the next call sees the changes
/// of another mount. Method: files are made in both ways, linked, renamed over others, exchanged, removed and replaced
/// by other kinds on two mounts. Each name is looked up often before the change and once after it.
#[test]
fn changes_of_files_elsewhere_are_seen_by_the_next_call() {
    let can = kernel_can();
    let pair = Pair::new(1, &["--targets", "2"], &RESTLESS);
    let mut random = Random::new(11);
    ["p", "q"].into_iter().for_each(|dir| fs::create_dir(pair.a.join(dir)).expect("mkdir"));
    let mut things = Things::default();
    let at = [&pair.a, &pair.b];
    let count = changes();
    for change in 0..count {
        let who = usize::from(random.below(4) == 0);
        let names = [random.below(NAMES), random.below(NAMES)];
        let warm = at[if random.below(8) == 0 { who } else { 1 - who }];
        (0..5).for_each(|_| things.check(warm, &names, "before"));
        things.change(&mut random, at[who], names);
        things.check(warm, &names, &format!("change {change}, a mount that has just looked"));
        at.iter().for_each(|at| things.check(at, &names, &format!("change {change}")));
    }
    let all: Vec<u64> = (0..NAMES).collect();
    at.iter().for_each(|at| things.check(at, &all, "at last"));
    let sum = |name| at.iter().map(|mount| counter(mount, name)).sum::<u64>();
    let (lent, taken) = (sum("names_lent"), sum("names_taken_back"));
    println!("{count} changes: {lent} names were lent, {taken} times some were taken back");
    assert!(!can || (lent > count / 4 && taken > count / 20), "{lent} lent, {taken} taken back");
    pair.stop();
}

/// Runs `work` on a thread for each mount and number at the same time. Fails if they do not end within a minute.
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

/// Goal: giving and ending timeouts never waits for a change that itself waits for that. Method: two mounts rename
/// directories across two others, exchange them, make and remove names in them and walk through them, all at the same
/// time. Every call returns, and in the end both mounts show the same.
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

/// Goal: the invalidation of a name never waits for a change in the same directory that waits for it, even if the
/// kernel has dropped its entry there. Method: two mounts make files in both ways, link, rename and remove them under a
/// few names of one directory, and look these names up in between until they may have a timeout. Every call returns,
/// and in the end both mounts show the same.
#[test]
fn files_of_lent_names_on_both_mounts() {
    let pair = Pair::new(1, &["--targets", "2"], &RESTLESS);
    ["d", "d/s"].into_iter().for_each(|dir| fs::create_dir(pair.a.join(dir)).expect("mkdir"));
    together(&[&pair.a, &pair.b], 6, |thread, mount| {
        let mut random = Random::new(100 + thread as u64);
        for _ in 0..300 {
            let mut any = || mount.join(["d/0", "d/1", "d/2", "d/3", "d/s/0", "d/s/1"][random.below(6) as usize]);
            let (one, other) = (any(), any());
            let _ = match thread % 6 {
                0 => OpenOptions::new().write(true).create(true).truncate(false).open(&one).map(drop),
                1 => OpenOptions::new().write(true).create_new(true).open(&one).map(drop),
                2 => fs::remove_file(&one),
                3 => fs::rename(&one, &other),
                4 => fs::hard_link(&one, &other).or_else(|_| symlink("x", &one)),
                _ => {
                    (0..20).for_each(|_| drop(fs::symlink_metadata(&one)));
                    Ok(())
                }
            };
            (0..3).for_each(|_| drop(fs::symlink_metadata(&other)));
        }
    });
    for name in ["d", "d/s"] {
        let list = |mount: &Path| -> BTreeMap<OsString, Option<u64>> {
            let entries = fs::read_dir(mount.join(name)).expect("list").map(|entry| entry.expect("entry"));
            let number = |path: PathBuf| fs::symlink_metadata(path).ok().map(|found| found.ino());
            entries.map(|entry| (entry.file_name(), number(entry.path()))).collect()
        };
        let (a, b) = (list(&pair.a), list(&pair.b));
        assert!(a == b && a.values().all(Option::is_some), "{name}: {a:?} and {b:?}");
    }
    let sum = |name| counter(&pair.a, name) + counter(&pair.b, name);
    println!("{} names were lent, {} times some were taken back", sum("names_lent"), sum("names_taken_back"));
    pair.stop();
}

/// Returns whether a name is shown as present, or as absent.
fn is_shown(path: &Path, as_there: bool) -> bool {
    match fs::metadata(path) {
        Ok(_) => as_there,
        Err(e) => !as_there && e.raw_os_error() == Some(ENOENT),
    }
}

/// Goal: a mount that is stopped with names under a timeout shows no name that has been changed since, neither while it
/// is stopped nor when it continues. Method: a mount is stopped by SIGSTOP. Changes on the other mount wait for the
/// tokens or for the end of the session. Then the old names are looked up on the stopped mount, before and after
/// SIGCONT.
#[test]
fn a_stopped_mount_shows_no_old_name() {
    let place = Place::new();
    let server = place.server(&["--targets", "2"]);
    let (a, mut b) = (place.mount_at("a", &[]), place.mount_at("b", &[]));
    let (at, other) = (place.path("a"), place.path("b"));
    fs::create_dir_all(at.join("d/e")).expect("mkdir");
    fs::write(at.join("file"), b"x").expect("write");
    // The state that the stopped mount must no longer show: two names, and the absence of a third one.
    let old = ["d/e", "file", "new"].map(|name| (other.join(name), name != "new"));
    for (path, is_there) in &old {
        assert_eq!(fs::metadata(path).is_ok(), *is_there);
        if kernel_can() {
            warm(&other, path);
        }
    }
    let stopped = b.pause();
    let began = Instant::now();
    fs::rename(at.join("d"), at.join("moved")).expect("rename");
    fs::remove_file(at.join("file")).expect("unlink");
    fs::write(at.join("new"), b"x").expect("write");
    println!("the changes waited for {:?}", began.elapsed());
    let (tell, told) = mpsc::channel();
    for (path, was_there) in old.clone() {
        let tell = tell.clone();
        std::thread::spawn(move || tell.send(is_shown(&path, was_there)));
    }
    let mut answers = 0;
    while let Ok(is_old) = told.recv_timeout(Duration::from_secs(1)) {
        assert!(!is_old, "something old is still shown");
        answers += 1;
    }
    drop(stopped);
    for _ in answers..old.len() {
        assert!(!told.recv_timeout(Duration::from_secs(60)).expect("an answer"), "something old is shown again");
    }
    (0..100).for_each(|_| assert!(!old.iter().any(|(path, was_there)| is_shown(path, *was_there))));
    fs::metadata(at.join("moved/e")).expect("there");
    drop(b);
    let _ = rustix::mount::unmount(&other, rustix::mount::UnmountFlags::DETACH);
    a.stop();
    server.stop();
}

/// A bind mount, which is removed when the value is dropped.
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

/// Goal: a file system mounted below a directory whose name has a timeout stays when names are invalidated, also its
/// own. Method: a bind mount in a deep directory; another mount makes changes around it and to its path that do not
/// alter it.
#[test]
fn mounts_below_lent_names_stay() {
    let pair = Pair::new(1, &["--targets", "2"], &RESTLESS);
    let inside = pair.place.path("inside");
    fs::create_dir(&inside).expect("mkdir");
    fs::write(inside.join("f"), b"bound").expect("write");
    fs::create_dir_all(pair.a.join("d/e/m")).expect("mkdir");
    fs::write(pair.a.join("d/e/file"), b"below").expect("write");
    let (there, file) = (pair.b.join("d/e/m"), pair.b.join("d/e/file"));
    let bind = Bind::new(&inside, &there);
    let bound_file = Bind::new(&inside.join("f"), &file);
    for round in 0..200 {
        (0..6).for_each(|_| {
            assert_eq!(fs::read(there.join("f")).expect("bound"), b"bound");
            assert_eq!(fs::read(&file).expect("bound"), b"bound");
        });
        // Each of these calls invalidates names of the path, or tries to.
        assert_eq!(fs::create_dir(pair.a.join("d")).map_err(|e| e.kind()), Err(ErrorKind::AlreadyExists));
        assert_eq!(fs::create_dir(pair.a.join("d/e")).map_err(|e| e.kind()), Err(ErrorKind::AlreadyExists));
        assert!(rerrno(renameat_with(CWD, pair.a.join("d/none"), CWD, pair.a.join("d/e"), RenameFlags::empty())) != 0);
        let make = OpenOptions::new().write(true).create_new(true).open(pair.a.join("d/e/file"));
        assert_eq!(make.map(drop).map_err(|e| e.kind()), Err(ErrorKind::AlreadyExists));
        fs::hard_link(pair.a.join("d/e/file"), pair.a.join("d/e/second")).expect("link");
        fs::remove_file(pair.a.join("d/e/second")).expect("unlink");
        fs::create_dir(pair.a.join("d/e/other")).expect("mkdir");
        fs::rename(pair.a.join("d/e/other"), pair.a.join("d/another")).expect("rename");
        fs::remove_dir(pair.a.join("d/another")).expect("rmdir");
        assert_eq!(fs::read(there.join("f")).expect("bound"), b"bound", "round {round}");
        assert_eq!(fs::read(&file).expect("bound"), b"bound", "round {round}");
    }
    println!("{} names were taken back", counter(&pair.b, "names_taken_back"));
    drop((bind, bound_file));
    assert!(fs::metadata(there.join("f")).is_err());
    assert_eq!(fs::read(&file).expect("read"), b"below");
    pair.stop();
}

/// Goal: a mount whose names have timeouts can be unmounted at any moment, by every user, and its process ends. The
/// kill of a mount takes effect at once. Method: three threads walk paths until the unmount, which must succeed as soon
/// as they have ended; a lazy unmount must succeed while they walk.
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
