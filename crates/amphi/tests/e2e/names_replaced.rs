//! Names that another mount replaces, moves or makes while programs use them in paths.

use crate::harness::{Place, errno};
use crate::two_mounts::Pair;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags, chmod, chown, getxattr, link, listxattr,
    lstat, mkdir, open, openat, readlink, rename, renameat_with, rmdir, setxattr, stat, statvfs, symlink, unlink,
    unlinkat, utimensat,
};
use rustix::io::Errno;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Calls of each kind beside a writer that replaces the name all the time. `AMPHI_STALE_ROUNDS` says another number:
/// 10000 for the proof.
const ROUNDS: usize = 60;

fn rounds() -> usize {
    std::env::var("AMPHI_STALE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(ROUNDS)
}

type Call = fn(&Path) -> Result<(), Errno>;

fn opened(path: &Path, flags: OFlags) -> Result<(), Errno> {
    open(path, flags, Mode::from_raw_mode(0o644)).map(drop)
}

/// Calls on a name that exists all the time: `n` is a program, `l` a symbolic link to it.
const CALLS: &[(&str, Call)] = &[
    ("open", |d| opened(&d.join("n"), OFlags::RDONLY)),
    ("open to write", |d| opened(&d.join("n"), OFlags::RDWR)),
    ("open and cut", |d| opened(&d.join("n"), OFlags::RDWR | OFlags::TRUNC)),
    ("open or create", |d| opened(&d.join("n"), OFlags::RDWR | OFlags::CREATE)),
    ("open through a link", |d| opened(&d.join("l"), OFlags::RDONLY)),
    ("stat", |d| stat(d.join("n")).map(drop)),
    ("stat through a link", |d| stat(d.join("l")).map(drop)),
    ("lstat", |d| lstat(d.join("l")).map(drop)),
    ("readlink", |d| readlink(d.join("l"), Vec::new()).map(drop)),
    ("chmod", |d| chmod(d.join("n"), Mode::from_raw_mode(0o755))),
    ("chown", |d| chown(d.join("n"), Some(rustix::process::getuid()), None)),
    ("truncate", |d| match fs::OpenOptions::new().write(true).open(d.join("n")).and_then(|f| f.set_len(5)) {
        Ok(()) => Ok(()),
        Err(e) => Err(Errno::from_raw_os_error(e.raw_os_error().unwrap_or_default())),
    }),
    ("utimes", |d| {
        let time = Timespec { tv_sec: 5, tv_nsec: 0 };
        utimensat(CWD, d.join("n"), &Timestamps { last_access: time, last_modification: time }, AtFlags::empty())
    }),
    ("getxattr", |d| match getxattr(d.join("n"), "user.x", &mut [0; 8]) {
        Err(Errno::NODATA) => Ok(()),
        other => other.map(drop),
    }),
    ("setxattr", |d| setxattr(d.join("n"), "user.x", b"1", XattrFlags::empty())),
    ("listxattr", |d| listxattr(d.join("n"), &mut [0; 64]).map(drop)),
    ("statfs", |d| statvfs(d.join("n")).map(drop)),
    ("access", |d| rustix::fs::access(d.join("n"), rustix::fs::Access::READ_OK)),
];

/// Replaces `n` and `l` until the test ends it, and counts.
fn replace(dir: &Path, stop: &AtomicBool, done: &AtomicU64) {
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        let (file, link) = (dir.join(format!("t{}", n % 3)), dir.join("t.l"));
        fs::write(&file, b"#!/bin/true\n").expect("write");
        chmod(&file, Mode::from_raw_mode(0o755)).expect("chmod");
        rename(&file, dir.join("n")).expect("rename over the name");
        symlink("n", &link).expect("symlink");
        rename(&link, dir.join("l")).expect("rename over the link");
        n += 1;
        done.store(n, Ordering::Relaxed);
    }
}

fn no_call_is_stale(writer: &Path, reader: &Path) {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    fs::write(writer.join("n"), b"#!/bin/true\n").expect("write");
    symlink("n", writer.join("l")).expect("symlink");
    chmod(writer.join("n"), Mode::from_raw_mode(0o755)).expect("chmod");
    std::thread::scope(|s| {
        s.spawn(|| replace(writer, &stop, &done));
        let look = || {
            for (what, call) in CALLS {
                let (mut failed, before) = (Vec::new(), done.load(Ordering::Relaxed));
                for round in 0..rounds() {
                    if let Err(e) = call(reader) {
                        failed.push((round, e));
                    }
                }
                // The loop waits until the other thread has made another round; otherwise nothing would be tested.
                while done.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
                assert!(failed.is_empty(), "{what}: {} of {} rounds, {:?}", failed.len(), rounds(), failed.first());
            }
            for _ in 0..rounds() / 20 + 1 {
                let out = Command::new(reader.join("n")).output();
                let busy = out.as_ref().is_err_and(|e| e.raw_os_error() == Some(Errno::TXTBSY.raw_os_error()));
                assert!(busy || out.as_ref().is_ok_and(|o| o.status.success()), "exec: {out:?}");
            }
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(look));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Goal: no call on a name that exists all the time fails because the file behind it has just been replaced. Method:
/// one thread writes files and renames them over the name, and links over a link. Another thread repeatedly makes each
/// call, on one mount. (Promise S5)
#[test]
fn never_stale_on_one_mount() {
    let place = Place::new();
    let up = place.up(&[]);
    no_call_is_stale(&place.mount(), &place.mount());
    up.stop();
}

/// Goal and method as above, with the writer on one mount and the reader on another. (Promise S5)
#[test]
fn never_stale_on_two_mounts() {
    let pair = Pair::new(1, &[], &[]);
    no_call_is_stale(&pair.a, &pair.b);
    pair.stop();
}

/// The same with three servers: names, inodes and directories lie apart. (Promise S5)
#[test]
fn never_stale_with_three_servers() {
    let pair = Pair::new(3, &["--targets", "2"], &[]);
    fs::create_dir(pair.a.join("d")).expect("mkdir");
    no_call_is_stale(&pair.a.join("d"), &pair.b.join("d"));
    pair.stop();
}

/// Goal: a name that is replaced all the time is linked, or its file has just lost it, but the call is never stale.
/// Method: link beside a writer that replaces the name. (Promise S5)
#[test]
fn links_of_names_that_are_replaced() {
    let pair = Pair::new(1, &[], &[]);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    fs::write(pair.a.join("n"), b"x").expect("write");
    symlink("n", pair.a.join("l")).expect("symlink");
    std::thread::scope(|s| {
        s.spawn(|| replace(&pair.a, &stop, &done));
        let (mut odd, mut linked) = (Vec::new(), 0);
        for _ in 0..rounds() {
            match link(pair.b.join("n"), pair.b.join("k")) {
                Ok(()) => {
                    unlink(pair.b.join("k")).expect("unlink");
                    linked += 1;
                }
                // Linux links nothing that has lost its name.
                Err(Errno::NOENT) => {}
                Err(e) => odd.push(e),
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(odd.is_empty() && linked > 0, "{linked} links, {odd:?}");
    });
    pair.stop();
}

/// Goal: opening with O_CREAT follows a symbolic link, or opens a pipe, that another mount has just made under that
/// name, as if it had been there before. Method: one mount makes and removes a link and a pipe of the name, and leaves
/// some of them there for a while. Meanwhile the other mount opens the name.
#[test]
fn creating_beside_another_mount_s_links() {
    let pair = Pair::new(1, &[], &[]);
    let stop = AtomicBool::new(false);
    fs::write(pair.a.join("to"), b"x").expect("write");
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                if n % 2 == 0 {
                    let _ = symlink("to", pair.a.join("n"));
                } else {
                    let _ = rustix::fs::mknodat(
                        CWD,
                        pair.a.join("n"),
                        rustix::fs::FileType::Fifo,
                        Mode::from_raw_mode(0o600),
                        0,
                    );
                }
                if n % 7 < 2 {
                    std::thread::sleep(std::time::Duration::from_millis(30));
                }
                let _ = unlink(pair.a.join("n"));
            }
        });
        let mut odd = Vec::new();
        for _ in 0..3 * rounds() {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
            if let Err(e) = open(pair.b.join("n"), flags, Mode::from_raw_mode(0o644)) {
                odd.push(e);
            }
            let _ = unlink(pair.b.join("n"));
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(odd, []);
    });
    pair.stop();
}

/// Goal: a directory that another mount has moved over one that this kernel knows can be named in a rename here, and
/// the result is that of Linux. Method: the kernel looks up both directories, the other mount moves them, and this one
/// renames one onto the other. If the kernel used the old places, the rename would close a cycle.
#[test]
fn directories_moved_by_another_mount() {
    for servers in [1, 3] {
        let pair = Pair::new(servers, &[], &[]);
        let (m0, m1) = (&pair.a, &pair.b);
        for round in 0..5 {
            let top = format!("r{round}");
            fs::create_dir(m0.join(&top)).expect("mkdir");
            let (m0, m1) = (m0.join(&top), m1.join(&top));
            for dir in ["d", "a", "a/d", "a/d/z", "a/b"] {
                mkdir(m0.join(dir), Mode::from_raw_mode(0o755)).expect("mkdir");
            }
            for dir in ["d", "a", "a/d", "a/d/z", "a/b"] {
                stat(m0.join(dir)).expect("stat");
            }
            rename(m1.join("a/d"), m1.join("d")).expect("rename over an empty directory");
            assert_eq!(rename(m0.join("a/b"), m0.join("d")), Err(Errno::NOTEMPTY), "round {round}");
            assert_eq!(errno(fs::metadata(m0.join("a/d"))), 2);
            assert!(fs::metadata(m0.join("d/z")).expect("moved along").is_dir());
            rmdir(m1.join("d/z")).expect("rmdir");
            rename(m0.join("a/b"), m0.join("d")).expect("it is empty now");
            // The former parent is now below, and is reached by a directory that is held open, so that the kernel looks
            // up none of its parents.
            mkdir(m0.join("x"), Mode::from_raw_mode(0o755)).expect("mkdir");
            mkdir(m0.join("x/y"), Mode::from_raw_mode(0o755)).expect("mkdir");
            let y = open(m0.join("x/y"), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("open");
            rename(m1.join("x/y"), m1.join("y")).expect("rename");
            rename(m1.join("x"), m1.join("y/x")).expect("rename");
            openat(&y, "x", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("what is below now");
            assert!(fs::metadata(m0.join("y/x")).expect("stat").is_dir());
        }
        pair.stop();
    }
}

/// Goal: both names of a rename may belong to directories that another mount has moved repeatedly, and an existing name
/// in such a directory is not made again. The results are those of Linux, never ESTALE. Method: the kernel looks up two
/// directories, and the other mount moves both. Then this mount exchanges them, moves one over the other, and makes
/// existing names. (Promise S5)
#[test]
fn both_names_moved_by_another_mount() {
    let pair = Pair::new(1, &[], &[]);
    let (m0, m1) = (&pair.a, &pair.b);
    let exchange = |a: &Path, b: &Path| renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE);
    for round in 0..5 {
        let top = format!("r{round}");
        mkdir(m0.join(&top), Mode::from_raw_mode(0o755)).expect("mkdir");
        let (m0, m1) = (m0.join(&top), m1.join(&top));
        for dir in ["p", "q", "r", "s", "p/d", "r/e"] {
            mkdir(m0.join(dir), Mode::from_raw_mode(0o755)).expect("mkdir");
        }
        fs::write(m0.join("file"), "x").expect("write");
        let (d, e) = (stat(m0.join("p/d")).expect("stat").st_ino, stat(m0.join("r/e")).expect("stat").st_ino);
        let is =
            |path: &str, ino: u64| assert_eq!(stat(m0.join(path)).expect(path).st_ino, ino, "round {round}: {path}");
        rename(m1.join("p/d"), m1.join("q/d")).and_then(|()| rename(m1.join("r/e"), m1.join("s/e"))).expect("rename");
        assert_eq!(exchange(&m0.join("q/d"), &m0.join("s/e")), Ok(()), "round {round}");
        is("q/d", e);
        is("s/e", d);
        for _ in 0..3 {
            rename(m1.join("q/d"), m1.join("p/x"))
                .and_then(|()| rename(m1.join("s/e"), m1.join("r/y")))
                .expect("there");
            assert_eq!(exchange(&m0.join("p/x"), &m0.join("r/y")), Ok(()), "round {round}");
            rename(m1.join("p/x"), m1.join("s/e")).and_then(|()| rename(m1.join("r/y"), m1.join("q/d"))).expect("back");
            assert_eq!(exchange(&m0.join("s/e"), &m0.join("q/d")), Ok(()), "round {round}");
            assert_eq!(exchange(&m0.join("s/e"), &m0.join("q/d")), Ok(()), "round {round}");
        }
        rename(m1.join("q/d"), m1.join("p/z")).expect("rename");
        assert_eq!(mkdir(m0.join("p/z"), Mode::from_raw_mode(0o755)), Err(Errno::EXIST));
        assert_eq!(symlink("t", m0.join("p/z")), Err(Errno::EXIST));
        assert_eq!(link(m0.join("file"), m0.join("p/z")), Err(Errno::EXIST));
        fs::write(m1.join("p/z/f"), "new").expect("write");
        assert_eq!(fs::read_dir(m0.join("p/z")).expect("list").count(), 1);
        fs::remove_file(m1.join("p/z/f")).expect("unlink");
        assert_eq!(fs::read_dir(m0.join("p/z")).expect("list").count(), 0, "what another mount has changed");
        let (z, se) = (stat(m0.join("p/z")).expect("stat").st_ino, stat(m0.join("s/e")).expect("stat").st_ino);
        assert_eq!([z.min(se), z.max(se)], [d.min(e), d.max(e)], "they are the two");
        rename(m1.join("p/z"), m1.join("r/over")).expect("rename");
        assert_eq!(rename(m0.join("s/e"), m0.join("r/over")), Ok(()), "round {round}");
        is("r/over", se);
        assert_eq!(fs::read_dir(m1.join("s")).expect("list").count(), 0);
    }
    pair.stop();
}

/// A call on a tree of this mount, with its name.
type FirstCall = (&'static str, fn(&Path, &Path) -> Result<(), Errno>);

/// The first call for directories below one that another mount has moved. `p` is that directory, and `q` its parent.
const FIRST_CALLS: &[FirstCall] = &[
    ("out", |p, q| rename(p.join("in"), q.join("new"))),
    ("out of its child", |p, q| rename(p.join("in/deep"), q.join("y/deep"))),
    ("onto", |p, _| rename(p.join("in2"), p.join("e"))),
    ("onto, from elsewhere", |p, q| rename(q.join("z"), p.join("e"))),
    ("onto what is not empty", |p, q| match rename(q.join("z"), p.join("in")) {
        Err(Errno::NOTEMPTY) => Ok(()),
        other => other.and(Err(Errno::BADMSG)),
    }),
    ("exchanged", |p, q| renameat_with(CWD, p.join("in"), CWD, q.join("z"), RenameFlags::EXCHANGE)),
    ("not replaced", |p, q| match renameat_with(CWD, q.join("z"), CWD, p.join("e"), RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => Ok(()),
        other => other.and(Err(Errno::BADMSG)),
    }),
    ("a file onto it", |p, q| match rename(q.join("f"), p.join("e")) {
        Err(Errno::ISDIR) => Ok(()),
        other => other.and(Err(Errno::BADMSG)),
    }),
    ("onto a file", |p, q| match rename(p.join("in"), q.join("f")) {
        Err(Errno::NOTDIR) => Ok(()),
        other => other.and(Err(Errno::BADMSG)),
    }),
    ("into itself", |p, _| match rename(p.join("in"), p.join("in/deep/in")) {
        Err(Errno::INVAL) => Ok(()),
        other => other.and(Err(Errno::BADMSG)),
    }),
    ("into its neighbour", |p, _| rename(p.join("in"), p.join("in2/in"))),
    ("removed", |p, _| rmdir(p.join("e"))),
    ("made", |p, _| match mkdir(p.join("in"), Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) => Ok(()),
        other => other.and(Err(Errno::BADMSG)),
    }),
    ("itself", |p, q| rename(p, q.join("back"))),
];

/// Goal: the first call on this mount for directories below one that another mount has moved ends as on a local file
/// system, for each kind of call. The trees are equal afterwards. Method: the kernel looks up a tree, the other mount
/// moves its top or the parent of the top, and then one call is made. (Promise S5)
#[test]
fn directories_below_one_moved_by_another_mount() {
    let pair = Pair::new(1, &[], &[]);
    for (number, (what, call)) in FIRST_CALLS.iter().enumerate() {
        for (turn, (from, to, now)) in [("x/k", "y/k3", "y/k3"), ("x", "y/x2", "y/x2/k")].into_iter().enumerate() {
            let top = format!("{number}-{turn}");
            let (m0, m1) = (pair.a.join(&top), pair.b.join(&top));
            for dir in ["x/k/in/deep", "x/k/in2", "x/k/e", "y", "z"] {
                fs::create_dir_all(m1.join(dir)).expect("mkdir");
            }
            fs::write(m1.join("f"), b"f").expect("write");
            for dir in ["x/k/in/deep", "x/k/in2", "x/k/e", "z"] {
                stat(m0.join(dir)).expect("stat");
            }
            rename(m1.join(from), m1.join(to)).expect("rename");
            assert_eq!(call(&m0.join(now), &m0), Ok(()), "{what}, after {from} was moved");
            let tree = |m: &Path| {
                let (mut todo, mut all) = (vec![m.to_path_buf()], Vec::new());
                while let Some(dir) = todo.pop() {
                    for entry in fs::read_dir(&dir).expect("list").flatten() {
                        let attr = entry.metadata().expect("stat");
                        let path = entry.path().strip_prefix(m).expect("below").to_path_buf();
                        all.push((path, std::os::unix::fs::MetadataExt::ino(&attr)));
                        todo.extend(attr.is_dir().then(|| entry.path()));
                    }
                }
                all.sort();
                all
            };
            assert_eq!(tree(&m0), tree(&m1), "{what}, after {from} was moved");
        }
    }
    pair.stop();
}

/// Goal: an open directory that another mount has removed is empty: names in it are absent, and its attributes can be
/// read and set. Method: each call by the descriptor. (Promise S6)
#[test]
fn nothing_is_in_a_removed_directory() {
    let pair = Pair::new(1, &[], &[]);
    for there in [&pair.a, &pair.b] {
        fs::create_dir(pair.a.join("d")).expect("mkdir");
        fs::write(pair.a.join("f"), b"x").expect("write");
        let d = open(pair.a.join("d"), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("open");
        fs::remove_dir(there.join("d")).expect("rmdir");
        let none = Err(Errno::NOENT);
        assert_eq!(unlinkat(&d, "x", AtFlags::empty()), none);
        assert_eq!(unlinkat(&d, "x", AtFlags::REMOVEDIR), none);
        assert_eq!(openat(&d, "x", OFlags::RDONLY, Mode::empty()).map(drop), none);
        assert_eq!(openat(&d, "x", OFlags::RDWR | OFlags::CREATE, Mode::from_raw_mode(0o644)).map(drop), none);
        assert_eq!(rustix::fs::mkdirat(&d, "x", Mode::from_raw_mode(0o755)), none);
        assert_eq!(rustix::fs::symlinkat("t", &d, "x"), none);
        assert_eq!(rustix::fs::linkat(CWD, pair.a.join("f"), &d, "x", AtFlags::empty()), none);
        assert_eq!(rustix::fs::renameat(CWD, pair.a.join("f"), &d, "x"), none);
        assert_eq!(rustix::fs::renameat(&d, "x", CWD, pair.a.join("g")), none);
        assert_eq!(rustix::fs::statat(&d, "x", AtFlags::empty()).map(drop), none);
        let get = |name: &str| rustix::fs::fgetxattr(&d, name, &mut [0; 8]);
        assert_eq!(get("user.x"), Err(Errno::NODATA));
        assert_eq!(rustix::fs::flistxattr(&d, &mut [0; 64]), Ok(0));
        rustix::fs::fsetxattr(&d, "user.x", b"1", XattrFlags::empty()).expect("setxattr");
        assert_eq!(get("user.x"), Ok(1));
        rustix::fs::fremovexattr(&d, "user.x").expect("removexattr");
        assert_eq!(get("user.x"), Err(Errno::NODATA));
        assert_eq!(rustix::fs::fstat(&d).expect("fstat").st_nlink, 0);
        unlink(pair.a.join("f")).expect("unlink");
    }
    pair.stop();
}
