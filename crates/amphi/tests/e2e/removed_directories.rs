//! Directories that are removed while a program has them open.

use crate::harness::{counter, eventually, rerrno};
use crate::two_mounts::Pair;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, fchmod, fstat, fsync, linkat, mkdirat, mknodat, open, openat, renameat,
    statat, symlinkat, unlinkat,
};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

const ENOENT: i32 = 2;
const DIR_MODE: Mode = Mode::from_raw_mode(0o755);
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

/// Calls on a name in a directory, by its descriptor; the file is linked or renamed into it.
type Call = (&'static str, fn(&OwnedFd, &Path) -> rustix::io::Result<()>);

const CALLS: &[Call] = &[
    ("mkdir", |d, _| mkdirat(d, "x", DIR_MODE)),
    ("symlink", |d, _| symlinkat("target", d, "x")),
    ("mknod", |d, _| mknodat(d, "x", FileType::Fifo, FILE_MODE, 0)),
    ("link", |d, file| linkat(CWD, file, d, "x", AtFlags::empty())),
    ("rename", |d, file| renameat(CWD, file, d, "x")),
    ("create", |d, _| openat(d, "x", OFlags::CREATE | OFlags::WRONLY, FILE_MODE).map(drop)),
    ("create exclusively", |d, _| openat(d, "x", OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, FILE_MODE).map(drop)),
    ("open", |d, _| openat(d, "x", OFlags::RDONLY, Mode::empty()).map(drop)),
    ("stat", |d, _| statat(d, "x", AtFlags::empty()).map(drop)),
    ("unlink", |d, _| unlinkat(d, "x", AtFlags::empty())),
    ("rmdir", |d, _| unlinkat(d, "x", AtFlags::REMOVEDIR)),
];

/// Goal: a directory that another mount has removed or replaced contains no names, and none can be made in it. This
/// holds already for the first call that reaches the directory: each call returns ENOENT. Method: each call on a
/// directory of its own that is held open. (Promise S6)
#[test]
fn calls_in_a_removed_directory() {
    let pair = Pair::new(1, &[], &[]);
    for replace in [false, true] {
        for (name, call) in CALLS {
            let (path, file) = (pair.a.join("d"), pair.a.join("file"));
            fs::create_dir(&path).and_then(|()| fs::write(&file, "x")).expect("a directory and a file");
            assert_eq!(fs::read_dir(&path).expect("list").count(), 0);
            let d = open(&path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("open");
            if replace {
                fs::create_dir(pair.b.join("new")).expect("mkdir");
                renameat(CWD, pair.b.join("new"), CWD, pair.b.join("d")).expect("rename over it");
            } else {
                fs::remove_dir(pair.b.join("d")).expect("rmdir");
            }
            assert_eq!(rerrno(call(&d, &file)), ENOENT, "{name}, replaced: {replace}");
            drop(d);
            fs::remove_file(&file).expect("unlink");
            if replace {
                fs::create_dir(path.join("x")).and_then(|()| fs::remove_dir_all(&path)).expect("the new one");
            }
        }
    }
    pair.stop();
}

/// Goal: a directory that was removed, or replaced by a rename, stays the same inode for programs that have it open,
/// without links or names, and new names cannot be made in it. A new directory of the same name is another inode.
/// Method: it is removed by the mount that has it open and by the other one, and all calls are made on its descriptor.
/// (Promise S6)
#[test]
fn removed_while_open() {
    let pair = Pair::new(1, &[], &[]);
    for (here, there) in [(&pair.a, &pair.a), (&pair.a, &pair.b)] {
        for replace in [false, true] {
            let (path, other) = (here.join("d"), there.join("new"));
            fs::create_dir(&path).expect("mkdir");
            let d = open(&path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("open");
            fchmod(&d, Mode::from_raw_mode(0o750)).expect("chmod");
            let before = fstat(&d).expect("fstat");
            if replace {
                fs::create_dir(&other).expect("mkdir");
                renameat(CWD, &other, CWD, there.join("d")).expect("rename over it");
            } else {
                fs::remove_dir(there.join("d")).expect("rmdir");
            }
            let after = fstat(&d).expect("fstat of what was removed");
            assert_eq!(after.st_nlink, 0);
            assert_eq!((after.st_ino, after.st_mode, after.st_uid), (before.st_ino, before.st_mode, before.st_uid));
            fchmod(&d, Mode::from_raw_mode(0o700)).expect("chmod");
            assert_eq!(fstat(&d).expect("fstat").st_mode & 0o777, 0o700);
            fsync(&d).expect("fsync");
            assert_eq!(Dir::read_from(&d).expect("open it again").count(), 0, "nothing is in it");
            assert_eq!(rerrno(mkdirat(&d, "x", DIR_MODE)), ENOENT, "nothing can be made in it");
            assert_eq!(rerrno(openat(&d, "x", OFlags::RDONLY, Mode::empty())), ENOENT);
            drop(d);
            if replace {
                let new = fs::metadata(&path).expect("the new one");
                assert_ne!(std::os::unix::fs::MetadataExt::ino(&new), before.st_ino);
                unlinkat(CWD, &path, AtFlags::REMOVEDIR).expect("rmdir");
            }
            assert!(!path.exists());
        }
    }
    pair.stop();
}

/// Goal: a directory that is kept open lists nothing when another mount has emptied and removed it, however often its
/// kernel has listed it before. Method: both mounts make names in it, so that neither holds its attributes and learns
/// of the end. Then it is listed until the kernel answers by itself, emptied and removed on the other mount, and listed
/// again through the same descriptor. (Promise S6)
#[test]
fn a_kept_listing_ends_with_its_directory() {
    let pair = Pair::new(1, &[], &[]);
    let list = |dir: &mut Dir| {
        dir.rewind();
        let names = dir.map(|e| e.expect("entry").file_name().to_bytes().to_vec());
        let mut names: Vec<_> = names.filter(|name| !name.starts_with(b".")).collect();
        names.sort();
        names
    };
    for there in ["rmdir", "replaced"] {
        fs::create_dir(pair.a.join("d")).expect("mkdir");
        fs::metadata(pair.b.join("d")).expect("stat");
        let kept = open(pair.b.join("d"), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("open");
        let mut kept = Dir::new(kept).expect("its listing");
        assert_eq!(list(&mut kept), [b""; 0]);
        fs::write(pair.a.join("d/of a"), b"").expect("make");
        fs::write(pair.b.join("d/of b"), b"").expect("make");
        fs::write(pair.a.join("d/of a too"), b"").expect("make");
        eventually("the kernel keeps the listing", || {
            let before = counter(&pair.b, "readdir");
            assert_eq!(list(&mut kept), [&b"of a"[..], b"of a too", b"of b"]);
            counter(&pair.b, "readdir") == before
        });
        for name in ["of a", "of a too", "of b"] {
            fs::remove_file(pair.a.join("d").join(name)).expect("unlink");
        }
        if there == "rmdir" {
            fs::remove_dir(pair.a.join("d")).expect("rmdir");
        } else {
            fs::create_dir(pair.a.join("new")).expect("mkdir");
            fs::rename(pair.a.join("new"), pair.a.join("d")).expect("rename over it");
        }
        (0..3).for_each(|_| assert_eq!(list(&mut kept), [b""; 0], "{there}"));
        let _ = fs::remove_dir(pair.a.join("d"));
    }
    pair.stop();
}
