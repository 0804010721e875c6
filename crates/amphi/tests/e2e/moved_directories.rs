//! Directories that another mount moves while programs of this one work in them.

use crate::harness::eventually;
use crate::two_mounts::Pair;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, fstat, mkdirat, open, openat, renameat_with, statat, unlinkat,
};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The path by which the kernel has an open directory.
fn path_of(dir: &OwnedFd) -> PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).expect("a path")
}

fn exchange(a: PathBuf, b: PathBuf) {
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).expect("exchange");
}

type Change = fn(&Path);

/// The change by another mount, and the place of `x/k` afterwards.
const CHANGES: &[(&str, Change, &str)] = &[
    ("renamed", |p| fs::rename(p.join("x/k"), p.join("x/k9")).expect("rename"), "x/k9"),
    ("moved", |p| fs::rename(p.join("x/k"), p.join("y/k3")).expect("rename"), "y/k3"),
    (
        "moved to where nobody has looked",
        |p| fs::rename(p.join("x/k"), p.join("far/off/k3")).expect("rename"),
        "far/off/k3",
    ),
    ("exchanged", |p| exchange(p.join("x/k"), p.join("y/e")), "y/e"),
    ("its parent moved", |p| fs::rename(p.join("x"), p.join("y/x2")).expect("rename"), "y/x2/k"),
    (
        "moved into what was below it",
        |p| {
            fs::rename(p.join("x/k/in"), p.join("y/in")).expect("rename");
            fs::rename(p.join("x/k"), p.join("y/in/k")).expect("rename");
        },
        "y/in/k",
    ),
    (
        "there and back",
        |p| {
            for _ in 0..20 {
                fs::rename(p.join("x/k"), p.join("y/k")).expect("there");
                fs::rename(p.join("y/k"), p.join("x/k")).expect("back");
            }
        },
        "x/k",
    ),
];

fn follows_moves(servers: usize) {
    let pair = Pair::new(servers, &[], &[]);
    for (round, (what, change, now)) in CHANGES.iter().enumerate() {
        let (here, there) = (pair.a.join(format!("{round}")), pair.b.join(format!("{round}")));
        for dir in ["x/k/in", "y/e"] {
            fs::create_dir_all(here.join(dir)).expect("mkdir");
        }
        fs::create_dir_all(there.join("far/off")).expect("mkdir");
        let kept = open(here.join("x/k"), DIRECTORY, Mode::empty()).expect("open");
        change(&there);
        let parent = there.join(now).parent().expect("a parent").to_path_buf();
        let above = fs::metadata(&parent).expect("stat").ino();
        // On a machine without a free core, the server may not wait for a mount.
        eventually(what, || path_of(&kept) == here.join(now));
        assert_eq!(statat(&kept, "..", AtFlags::empty()).expect("stat").st_ino, above, "{what}: ..");
        mkdirat(&kept, "../made", Mode::from_raw_mode(0o755)).expect("mkdir");
        assert!(parent.join("made").is_dir(), "{what}: made in its parent");
        fs::write(parent.join("victim"), b"").expect("write");
        unlinkat(&kept, "../victim", AtFlags::empty()).expect("unlink");
        assert!(!parent.join("victim").exists(), "{what}: removed from its parent");
        let up = openat(&kept, "..", DIRECTORY, Mode::empty()).expect("open");
        assert_eq!(
            (fstat(&up).expect("fstat").st_ino, path_of(&up)),
            (above, here.join(now).parent().expect("one").into())
        );
    }
    pair.stop();
}

/// Goal: another mount moves a directory in which a program works, or its parents. Even without a look-up there, the
/// program then has the new parent above it: for look-ups, creations and removals, and in its path. Method: a
/// descriptor on one mount, changes of names on the other, all with `..` and `/proc`. (Promise S1)
#[test]
fn open_directories_follow_moves() {
    follows_moves(1);
}

/// Goal and method: the same with three servers.
#[test]
fn open_directories_follow_moves_of_three_servers() {
    follows_moves(3);
}

/// Goal: a directory that another mount removes or replaces has no path any more, even if a directory of the same name
/// is made again. Method: a descriptor of the directory. `/proc` shows that the directory was removed, as for a local
/// directory. (Promise S6)
#[test]
fn removed_directories_have_no_path() {
    let pair = Pair::new(1, &[], &[]);
    let changes: [(&str, Change); 3] = [
        ("removed", |p| fs::remove_dir(p.join("x/k")).expect("rmdir")),
        ("removed and made anew", |p| {
            fs::remove_dir(p.join("x/k")).expect("rmdir");
            fs::create_dir(p.join("x/k")).expect("mkdir");
        }),
        ("replaced", |p| fs::rename(p.join("y"), p.join("x/k")).expect("rename")),
    ];
    for (round, (what, change)) in changes.into_iter().enumerate() {
        let (here, there) = (pair.a.join(format!("{round}")), pair.b.join(format!("{round}")));
        fs::create_dir_all(here.join("x/k")).expect("mkdir");
        fs::create_dir(there.join("y")).expect("mkdir");
        let kept = open(here.join("x/k"), DIRECTORY, Mode::empty()).expect("open");
        change(&there);
        let gone = PathBuf::from(format!("{} (deleted)", here.join("x/k").display()));
        eventually(what, || path_of(&kept) == gone);
    }
    pair.stop();
}

/// Goal: moves never wait for operations that wait for them, and are followed also where the kernel could not do it at
/// once. Method: programs on both mounts make, move and remove names in two directories between which others are moved
/// to and fro, so that their locks are held nearly all the time. At the end the paths are checked.
#[test]
fn moves_beside_changes_on_both_mounts() {
    let pair = Pair::new(1, &[], &[]);
    let stop = AtomicBool::new(false);
    for dir in ["x/of a", "x/of b", "y"] {
        fs::create_dir_all(pair.a.join(dir)).expect("mkdir");
    }
    let kept = [(&pair.a, "of b"), (&pair.b, "of a")]
        .map(|(m, name)| (name, m, open(m.join("x").join(name), DIRECTORY, Mode::empty()).expect("open")));
    std::thread::scope(|s| {
        for (m, own) in [(&pair.a, "a"), (&pair.b, "b")] {
            let stop = &stop;
            s.spawn(move || {
                while !stop.load(SeqCst) {
                    fs::create_dir(m.join("x").join(own)).expect("mkdir");
                    fs::rename(m.join("x").join(own), m.join("y").join(own)).expect("rename");
                    fs::remove_dir(m.join("y").join(own)).expect("rmdir");
                }
            });
        }
        let movers = [(&pair.a, "of a"), (&pair.b, "of b")].map(|(m, name)| {
            s.spawn(move || {
                for _ in 0..40 {
                    fs::rename(m.join("x").join(name), m.join("y").join(name)).expect("there");
                    fs::rename(m.join("y").join(name), m.join("x").join(name)).expect("back");
                }
                fs::rename(m.join("x").join(name), m.join("y").join(name)).expect("there");
            })
        });
        movers.into_iter().for_each(|mover| mover.join().expect("moves end"));
        stop.store(true, SeqCst);
    });
    for (name, m, dir) in &kept {
        eventually("the path is the new one", || path_of(dir) == m.join("y").join(name));
    }
    pair.stop();
}
