//! Listings that the kernel keeps.

use crate::harness::{Daemon, Place, Random, counter, eventually};
use rustix::fs::{AtFlags, CWD, Dir, OFlags, RawDir, Timespec, Timestamps, utimensat};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

type Names = BTreeSet<String>;

fn list(dir: &Path) -> Names {
    let entries = fs::read_dir(dir).expect("list");
    entries.map(|e| e.expect("entry").file_name().into_string().expect("text")).collect()
}

fn of_dir(dir: &mut Dir) -> Names {
    let entries = dir.map(|e| e.expect("entry").file_name().to_str().expect("text").to_string());
    entries.filter(|name| name != "." && name != "..").collect()
}

/// A server and two mounts.
fn two() -> (Place, Daemon, [Daemon; 2]) {
    let place = Place::new();
    let server = place.server(&["--targets", "2"]);
    let mounts = [place.mount_at("a", &[]), place.mount_at("b", &[])];
    (place, server, mounts)
}

fn end((_place, server, mounts): (Place, Daemon, [Daemon; 2])) {
    mounts.into_iter().for_each(Daemon::stop);
    server.stop();
}

/// Changes one name of `dir` and of `names`, and sometimes sets the modification time back to the previous one.
fn change(random: &mut Random, dir: &Path, names: &mut Names) {
    let before = fs::metadata(dir).expect("stat");
    let fresh = format!("new-{}", random.below(1 << 40));
    let old = names.iter().nth(random.below(names.len() as u64) as usize).cloned();
    match (random.below(4), old) {
        (0, Some(old)) if names.len() > 3 => {
            fs::remove_file(dir.join(&old)).expect("remove");
            names.remove(&old);
        }
        (1, Some(old)) => {
            fs::rename(dir.join(&old), dir.join(&fresh)).expect("rename");
            names.remove(&old);
            names.insert(fresh);
        }
        _ => {
            fs::write(dir.join(&fresh), b"").expect("make");
            names.insert(fresh);
        }
    }
    if random.below(3) == 0 {
        let at = Timespec { tv_sec: before.mtime(), tv_nsec: before.mtime_nsec() };
        let times = Timestamps { last_access: at, last_modification: at };
        utimensat(CWD, dir, &times, AtFlags::empty()).expect("times");
    }
}

/// Goal: a listing of an unchanged directory costs the mount no request, and each listing shows at once the changes of
/// another mount, even if that mount sets the times back. Method: two mounts. The listings of one are counted. Then
/// both change names in turn and the other one lists.
#[test]
fn listings_are_kept_and_true() {
    let all = two();
    let dirs = ["a", "b"].map(|name| all.0.path(name).join("d"));
    fs::create_dir(&dirs[0]).expect("mkdir");
    let mut names: Names = (0..12).map(|n| format!("f{n}")).collect();
    names.iter().for_each(|name| fs::write(dirs[0].join(name), b"").expect("make"));
    let asked = || counter(&all.0.path("b"), "readdir");
    // A mount is not granted the attributes of a directory right after changes by several mounts.
    eventually("the kernel keeps the listing", || {
        let before = asked();
        assert_eq!(list(&dirs[1]), names);
        asked() == before
    });
    let before = asked();
    (0..20).for_each(|_| assert_eq!(list(&dirs[1]), names));
    assert_eq!(asked(), before, "questions for a listing that the kernel has");
    let mut random = Random::new(7);
    for round in 0..300 {
        let who = usize::from(random.below(3) == 0);
        change(&mut random, &dirs[who], &mut names);
        for _ in 0..=random.below(3) {
            assert_eq!(list(&dirs[1 - who]), names, "round {round}");
        }
        assert_eq!(list(&dirs[who]), names, "round {round}, own change");
    }
    end(all);
}

/// Goal: a program that keeps a directory open sees the changes when it restarts the listing, and a listing in progress
/// returns each entry that stays exactly once. Method: `rewinddir` after changes of another mount. In a listing in
/// small pieces, another mount removes the entry that was returned last, and other programs list everything.
#[test]
fn open_directories_follow() {
    let all = two();
    let dirs = ["a", "b"].map(|name| all.0.path(name).join("d"));
    fs::create_dir(&dirs[0]).expect("mkdir");
    let mut names: Names = (0..300).map(|n| format!("file-{n}")).collect();
    names.iter().for_each(|name| fs::write(dirs[0].join(name), b"").expect("make"));
    eventually("the kernel keeps the listing", || {
        let before = counter(&all.0.path("b"), "readdir");
        assert_eq!(list(&dirs[1]), names);
        counter(&all.0.path("b"), "readdir") == before
    });
    let mut held = Dir::new(rustix::fs::open(&dirs[1], OFlags::DIRECTORY, 0.into()).expect("open")).expect("dir");
    assert_eq!(of_dir(&mut held), names);
    for round in 0..40 {
        let fresh = format!("fresh-{round}");
        fs::write(dirs[0].join(&fresh), b"").expect("make");
        names.insert(fresh);
        held.rewind();
        assert_eq!(of_dir(&mut held), names, "round {round}");
    }
    let mut seen = BTreeMap::<String, usize>::new();
    let mut buf = [MaybeUninit::uninit(); 1024];
    let fd = rustix::fs::open(&dirs[1], OFlags::DIRECTORY, 0.into()).expect("open");
    let mut pieces = RawDir::new(fd, &mut buf);
    let mut gone = Names::new();
    let mut shown = 0;
    while let Some(entry) = pieces.next() {
        let name = entry.expect("entry").file_name().to_str().expect("text").to_string();
        *seen.entry(name.clone()).or_default() += 1;
        shown += 1;
        if shown % 20 == 0 && name.starts_with('f') {
            fs::remove_file(dirs[0].join(&name)).expect("remove");
            names.remove(&name);
            gone.insert(name);
            assert_eq!(list(&dirs[1]), names);
        }
    }
    assert!(gone.len() > 5);
    let wrong = names.iter().find(|name| seen.get(*name) != Some(&1));
    assert_eq!(wrong, None, "shown {:?} times", wrong.and_then(|name| seen.get(name)));
    drop(held);
    end(all);
}

/// Goal: a mount in sole mode caches listings as well, and they follow its own changes. A cached listing does not
/// outlive the arrival of another mount, which may set times back, not even in a directory that a program holds open.
/// Method: the requests for listings of one mount are counted, while it changes the directory. Then a second mount
/// changes names.
#[test]
fn a_lone_mount_keeps_them_until_others_come() {
    let place = Place::new();
    let server = place.server(&["--targets", "2"]);
    let first = place.mount_at("a", &[]);
    let dir = place.path("a").join("d");
    fs::create_dir(&dir).expect("mkdir");
    let mut names: Names = (0..12).map(|n| format!("f{n}")).collect();
    names.iter().for_each(|name| fs::write(dir.join(name), b"").expect("make"));
    let asked = || counter(&place.path("a"), "readdir");
    (0..3).for_each(|_| assert_eq!(list(&dir), names));
    let before = asked();
    (0..20).for_each(|_| assert_eq!(list(&dir), names));
    assert_eq!(asked(), before, "questions for a listing that the kernel has");
    let mut random = Random::new(11);
    for round in 0..200 {
        change(&mut random, &dir, &mut names);
        (0..=random.below(3)).for_each(|_| assert_eq!(list(&dir), names, "round {round}"));
    }
    (0..3).for_each(|_| assert_eq!(list(&dir), names));
    let mut held = Dir::new(rustix::fs::open(&dir, OFlags::DIRECTORY, 0.into()).expect("open")).expect("dir");
    assert_eq!(of_dir(&mut held), names);
    let second = place.mount_at("b", &[]);
    let there = place.path("b").join("d");
    for round in 0..100 {
        change(&mut random, &there, &mut names);
        held.rewind();
        assert_eq!(of_dir(&mut held), names, "round {round}, held open");
        assert_eq!(list(&dir), names, "round {round}");
    }
    drop(held);
    [first, second].into_iter().for_each(Daemon::stop);
    server.stop();
}
