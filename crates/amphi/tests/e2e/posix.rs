//! POSIX semantics of every operation through the mount, with the errno that Linux documents.

use crate::harness::{Place, errno, eventually, pattern, rerrno, run};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, XattrFlags,
    chmod, flock, getxattr, link, listxattr, lstat, mkdir, mknodat, open, openat, readlink, removexattr, rename,
    renameat_with, rmdir, seek, setxattr, stat, statvfs, symlink, unlink, utimensat,
};
use rustix::io::{pread, pwrite, read, write};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const EPERM: i32 = 1;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const EBADF: i32 = 9;
const ENAMETOOLONG: i32 = 36;
const ENOTEMPTY: i32 = 39;
const ENODATA: i32 = 61;
const ERANGE: i32 = 34;
const ENXIO: i32 = 6;

/// Memory with the alignment that O_DIRECT needs.
#[repr(align(4096))]
struct AlignedPage([u8; 4096]);

fn rw() -> Mode {
    Mode::from_raw_mode(0o644)
}

fn all() -> Mode {
    Mode::from_raw_mode(0o777)
}

/// Goal: the errno of each failing operation on names. Method: a table of calls.
#[test]
fn names_and_their_errors() {
    let place = Place::new();
    let up = place.up(&[]);
    let m = place.mount();
    let p = |n: &str| m.join(n);
    mkdir(p("d"), all()).expect("mkdir");
    mkdir(p("d/full"), all()).expect("mkdir");
    fs::write(p("d/full/f"), b"x").expect("write");
    fs::write(p("f"), b"hello").expect("write");
    symlink("f", p("l")).expect("symlink");
    symlink("nowhere", p("dangling")).expect("symlink");
    symlink("loop", p("loop")).expect("symlink");

    assert_eq!(rerrno(mkdir(p("d"), all())), EEXIST);
    assert_eq!(rerrno(mkdir(p("f/x"), all())), ENOTDIR);
    assert_eq!(rerrno(mkdir(p("no/x"), all())), ENOENT);
    assert_eq!(rerrno(mkdir(p(&"n".repeat(256)), all())), ENAMETOOLONG);
    mkdir(p(&"n".repeat(255)), all()).expect("255 bytes are a name");
    assert_eq!(rerrno(rmdir(p("f"))), ENOTDIR);
    assert_eq!(rerrno(rmdir(p("d/full"))), ENOTEMPTY);
    assert_eq!(rerrno(rmdir(p("no"))), ENOENT);
    assert_eq!(rerrno(unlink(p("d"))), EISDIR);
    assert_eq!(rerrno(unlink(p("no"))), ENOENT);
    assert_eq!(rerrno(unlink(p("f/x"))), ENOTDIR);
    assert_eq!(rerrno(open(p("f"), OFlags::CREATE | OFlags::EXCL | OFlags::RDWR, rw())), EEXIST);
    assert_eq!(rerrno(open(p("d"), OFlags::RDWR, rw())), EISDIR);
    assert_eq!(rerrno(open(p("f"), OFlags::DIRECTORY | OFlags::RDONLY, rw())), ENOTDIR);
    assert_eq!(rerrno(open(p("dangling"), OFlags::RDONLY, rw())), ENOENT);
    assert_eq!(rerrno(open(p("loop"), OFlags::RDONLY, rw())), 40);
    assert_eq!(rerrno(open(p("l"), OFlags::NOFOLLOW | OFlags::RDONLY, rw())), 40);
    assert_eq!(rerrno(link(p("d"), p("hard"))), EPERM);
    assert_eq!(rerrno(link(p("no"), p("hard"))), ENOENT);
    assert_eq!(rerrno(link(p("f"), p("d"))), EEXIST);
    assert_eq!(rerrno(readlink(p("f"), Vec::new())), EINVAL);
    assert_eq!(readlink(p("l"), Vec::new()).expect("readlink").as_bytes(), b"f");
    assert_eq!(fs::read(p("l")).expect("through the link"), b"hello");
    assert_eq!(rerrno(rename(p("d"), p("d/full/x"))), EINVAL);
    assert_eq!(rerrno(rename(p("f"), p("d"))), EISDIR);
    assert_eq!(rerrno(rename(p("d"), p("f"))), ENOTDIR);
    assert_eq!(rerrno(rename(p("no"), p("x"))), ENOENT);
    mkdir(p("e"), all()).expect("mkdir");
    assert_eq!(rerrno(rename(p("e"), p("d"))), ENOTEMPTY);
    assert_eq!(rerrno(renameat_with(CWD, p("f"), CWD, p("l"), RenameFlags::NOREPLACE)), EEXIST);
    let long = "x".repeat(4095);
    symlink(&long, p("long")).expect("longest link");
    assert_eq!(readlink(p("long"), Vec::new()).expect("readlink").as_bytes(), long.as_bytes());
    up.stop();
    place.fsck();
}

/// Goal: Promise S5: rename in every flavour, over and between directories (which lie on different targets),
/// with link counts and `..` right afterwards.
#[test]
fn rename_in_every_flavour() {
    let place = Place::new();
    let up = place.up(&["--targets", "4"]);
    let m = place.mount();
    let dirs: Vec<_> = (0..12).map(|i| m.join(format!("dir{i}"))).collect();
    for d in &dirs {
        mkdir(d, all()).expect("mkdir");
    }
    for (i, pair) in dirs.windows(2).enumerate() {
        let (a, b) = (&pair[0], &pair[1]);
        fs::write(a.join("f"), format!("file {i}")).expect("write");
        rename(a.join("f"), b.join("g")).expect("rename between directories");
        assert_eq!(fs::read_to_string(b.join("g")).expect("read"), format!("file {i}"));
        assert_eq!(errno(fs::read(a.join("f"))), ENOENT);
        fs::write(b.join("victim"), b"old").expect("write");
        let held = fs::File::open(b.join("victim")).expect("open");
        rename(b.join("g"), b.join("victim")).expect("replace");
        assert_eq!(held.metadata().expect("stat").nlink(), 0, "the replaced file is unlinked but open");
        let mut old = [0; 8];
        assert_eq!(pread(&held, &mut old, 0).expect("read"), 3);
        assert_eq!(&old[..3], b"old");
        // A directory moves below another one; its parent changes.
        mkdir(a.join("sub"), all()).expect("mkdir");
        fs::write(a.join("sub/deep"), b"deep").expect("write");
        let (na, nb) = (stat(a).expect("stat").st_nlink, stat(b).expect("stat").st_nlink);
        rename(a.join("sub"), b.join("moved")).expect("move a directory");
        assert_eq!(fs::read(b.join("moved/deep")).expect("read"), b"deep");
        assert_eq!(stat(a).expect("stat").st_nlink, na - 1);
        assert_eq!(stat(b).expect("stat").st_nlink, nb + 1);
        assert_eq!(stat(b.join("moved/..")).expect("stat").st_ino, stat(b).expect("stat").st_ino, "..");
        assert_eq!(rerrno(rename(b, b.join("moved/loop"))), EINVAL, "no loops");
        // An empty directory is replaced by a directory.
        mkdir(a.join("empty"), all()).expect("mkdir");
        rename(b.join("moved"), a.join("empty")).expect("replace an empty directory");
        assert_eq!(fs::read(a.join("empty/deep")).expect("read"), b"deep");
        // Exchange of a file and a directory between directories.
        fs::write(b.join("x"), b"x").expect("write");
        renameat_with(CWD, a.join("empty"), CWD, b.join("x"), RenameFlags::EXCHANGE).expect("exchange");
        assert_eq!(fs::read(a.join("empty")).expect("read"), b"x");
        assert_eq!(fs::read(b.join("x/deep")).expect("read"), b"deep");
    }
    let f = m.join("one");
    fs::write(&f, b"1").expect("write");
    link(&f, m.join("two")).expect("link");
    rename(&f, m.join("two")).expect("same inode: nothing happens");
    assert!(f.exists() && m.join("two").exists());
    for d in &dirs[1..4] {
        link(&f, d.join("hard")).expect("link in a directory on another target");
    }
    assert_eq!(stat(&f).expect("stat").st_nlink, 5);
    for d in &dirs[1..4] {
        unlink(d.join("hard")).expect("unlink");
    }
    assert_eq!(stat(&f).expect("stat").st_nlink, 2);
    up.stop();
    place.fsck();
}

/// Goal: Promise S6: a file unlinked while open lives until its last close and then gives its space back.
#[test]
fn unlinked_open_files_live_until_closed() {
    let place = Place::new();
    let up = place.up(&["--targets", "4"]);
    let m = place.mount();
    let free = || statvfs(&m).expect("statvfs").f_bfree;
    let before = free();
    let f = fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(m.join("f")).expect("open");
    let bytes = pattern(1, 9 << 20);
    assert_eq!(write_all(&f, &bytes), bytes.len());
    unlink(m.join("f")).expect("unlink");
    assert_eq!(errno(fs::metadata(m.join("f"))), ENOENT);
    let mut back = vec![0; bytes.len()];
    read_all(&f, &mut back, 0);
    assert!(back == bytes, "readable after unlink");
    assert_eq!(pwrite(&f, b"more", 9 << 20).expect("write"), 4);
    assert_eq!(f.metadata().expect("stat").len(), (9 << 20) + 4);
    assert_eq!(f.metadata().expect("stat").nlink(), 0);
    rustix::fs::fsync(&f).expect("fsync");
    let during = free();
    assert!(during < before, "its space is in use: {during} blocks free, {before} before");
    drop(f);
    eventually("space of the closed file is free again", || free() + 64 >= before);
    let t = open(&m, OFlags::TMPFILE | OFlags::RDWR, rw()).expect("O_TMPFILE");
    assert_eq!(pwrite(&t, b"tmp", 0).expect("write"), 3);
    let proc_path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&t));
    rustix::fs::linkat(CWD, &proc_path, CWD, m.join("named"), AtFlags::SYMLINK_FOLLOW).expect("linkat names it");
    drop(t);
    assert_eq!(fs::read(m.join("named")).expect("read"), b"tmp");
    up.stop();
    place.fsck();
}

fn write_all(f: &fs::File, bytes: &[u8]) -> usize {
    let mut done = 0;
    while done < bytes.len() {
        done += pwrite(f, &bytes[done..], done as u64).expect("write");
    }
    done
}

fn read_all(f: &fs::File, into: &mut [u8], at: u64) {
    let mut done = 0;
    while done < into.len() {
        let n = pread(f, &mut into[done..], at + done as u64).expect("read");
        assert!(n > 0, "ends at {done}");
        done += n;
    }
}

/// Goal: Promise S7: a listing has every entry that exists all the time exactly once, while others are made and
/// removed. seekdir works.
#[test]
fn readdir_under_change() {
    let place = Place::new();
    let up = place.up(&[]);
    let d = place.mount().join("d");
    mkdir(&d, all()).expect("mkdir");
    let lasting: BTreeSet<String> = (0..3000).map(|i| format!("lasting{i}")).collect();
    for n in &lasting {
        fs::write(d.join(n), b"").expect("create");
    }
    let mut seen = Vec::new();
    let mut changes = 0;
    for e in fs::read_dir(&d).expect("list") {
        let name = e.expect("entry").file_name().to_string_lossy().into_owned();
        if changes < 1500 {
            fs::write(d.join(format!("new{changes}")), b"").expect("create");
            if changes >= 2 {
                fs::remove_file(d.join(format!("new{}", changes - 2))).expect("remove");
            }
            changes += 1;
        }
        if lasting.contains(&name) {
            seen.push(name);
        }
    }
    assert_eq!(seen.len(), lasting.len(), "none twice, none missing");
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), lasting);
    fs::remove_dir_all(&d).expect("remove while listing");
    assert_eq!(errno(fs::metadata(&d)), ENOENT);
    up.stop();
    place.fsck();
}

/// Goal: attributes: chmod, chown, times in ns, size, link counts, blocks, kinds; setuid is cleared by writes.
#[test]
fn attributes() {
    let place = Place::new();
    let up = place.up(&[]);
    let m = place.mount();
    let f = m.join("f");
    fs::write(&f, pattern(3, 10_000)).expect("write");
    chmod(&f, Mode::from_raw_mode(0o4711)).expect("chmod");
    assert_eq!(stat(&f).expect("stat").st_mode & 0o7777, 0o4711);
    let times = Timestamps {
        last_access: Timespec { tv_sec: 1, tv_nsec: 123_456_789 },
        last_modification: Timespec { tv_sec: -5, tv_nsec: 999_999_999 },
    };
    utimensat(CWD, &f, &times, AtFlags::empty()).expect("utimensat");
    let s = stat(&f).expect("stat");
    assert_eq!((s.st_atime, s.st_atime_nsec as u64), (1, 123_456_789));
    assert_eq!((s.st_mtime, s.st_mtime_nsec as u64), (-5, 999_999_999));
    assert_eq!((s.st_size, s.st_nlink), (10_000, 1));
    rustix::fs::chown(&f, Some(rustix::fs::Uid::from_raw(1234)), Some(rustix::fs::Gid::from_raw(5678))).expect("chown");
    let s = stat(&f).expect("stat");
    assert_eq!((s.st_uid, s.st_gid), (1234, 5678));
    let before = stat(&f).expect("stat");
    let fd = open(&f, OFlags::WRONLY, rw()).expect("open");
    write(&fd, b"new").expect("write");
    drop(fd);
    let after = stat(&f).expect("stat");
    assert!(after.st_mtime > before.st_mtime, "a write sets mtime");
    assert!((after.st_ctime, after.st_ctime_nsec) >= (before.st_ctime, before.st_ctime_nsec));
    let fd = open(&f, OFlags::WRONLY | OFlags::TRUNC, rw()).expect("open");
    assert_eq!(stat(&f).expect("stat").st_size, 0);
    pwrite(&fd, b"end", 1 << 40).expect("a sparse terabyte");
    assert_eq!(stat(&f).expect("stat").st_size, (1 << 40) + 3);
    rustix::fs::fsync(&fd).expect("fsync");
    assert!(stat(&f).expect("stat").st_blocks < 64, "holes take no storage");
    for (kind, mode) in [(FileType::Fifo, 0o600), (FileType::Socket, 0o600), (FileType::CharacterDevice, 0o600)] {
        let name = m.join(format!("node{}", kind.as_raw_mode()));
        mknodat(CWD, &name, kind, Mode::from_raw_mode(mode), rustix::fs::makedev(1, 3)).expect("mknod");
        assert_eq!(FileType::from_raw_mode(lstat(&name).expect("stat").st_mode), kind);
    }
    let v = statvfs(&m).expect("statvfs");
    assert!(v.f_blocks > 0 && v.f_bfree > 0 && v.f_bfree <= v.f_blocks && v.f_namemax == 255);
    up.stop();
    place.fsck();
}

/// Goal: a time that is set while bytes are being written back stays when they arrive, even a time in the future, and
/// changes no other time. The next write changes the time again. Method: times in the future and the past are set after
/// a write, which is then written back, and another write follows.
#[test]
fn times_set_behind_a_write() {
    let place = Place::new();
    let up = place.up(&["--set", "writeback.age_ms=60000"]);
    let sync = || assert!(run(&["sync", &place.text("mount")]).status.success());
    let begun = std::time::SystemTime::now();
    for (name, at, bytes) in [("ahead", 5_000_000_000, 100), ("behind", 1_000, 100), ("long", 5_000_000_000, 5 << 20)] {
        let path = place.mount().join(name);
        let file = fs::File::create(&path).expect("create");
        file.write_all_at(&pattern(1, bytes), 0).expect("write");
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(at as u64)).expect("utimens");
        for step in ["at once", "written back", "closed"] {
            let s = fs::metadata(&path).expect("stat");
            assert_eq!((s.mtime(), s.mtime_nsec()), (at, 0), "{name}, {step}");
            assert!(s.ctime() < 4_000_000_000, "{name}, {step}: ctime {}", s.ctime());
            sync();
        }
        drop(file);
        fs::File::options().append(true).open(&path).expect("open").write_all(b"more").expect("append");
        for step in ["at once", "written back"] {
            let s = fs::metadata(&path).expect("stat");
            let moved = s.modified().expect("mtime");
            assert!(moved >= begun && s.mtime() < 4_000_000_000, "{name}, after a write, {step}: {moved:?}");
            sync();
        }
    }
    up.stop();
}

/// Goal: reads update access times by the rule of relatime and leave the other times unchanged. A time set by utimensat
/// stays. O_NOATIME and the tunable disable updates. The access time is there after a restart. Method: times set around
/// each read, cached and direct.
#[test]
fn access_times() {
    let place = Place::new();
    let up = place.up(&[]);
    let f = place.mount().join("f");
    fs::write(&f, pattern(4, 100_000)).expect("write");
    let times = |a: i64, m: i64| {
        let at = |s| Timespec { tv_sec: s, tv_nsec: 5 };
        let times = Timestamps { last_access: at(a), last_modification: at(m) };
        utimensat(CWD, &f, &times, AtFlags::empty()).expect("utimensat");
    };
    let now = || {
        let s = stat(&f).expect("stat");
        [(s.st_atime, s.st_atime_nsec), (s.st_mtime, s.st_mtime_nsec), (s.st_ctime, s.st_ctime_nsec)]
    };
    let read_with = |flags| {
        let fd = open(&f, OFlags::RDONLY | flags, rw()).expect("open");
        let mut page = AlignedPage([0; 4096]);
        assert_eq!(pread(&fd, &mut page.0, 0).expect("read"), 4096);
        now()
    };
    for flags in [OFlags::empty(), OFlags::DIRECT] {
        times(1, 2);
        let [_, mtime, ctime] = now();
        let [renewed, m, c] = read_with(flags);
        assert!(renewed > ctime, "it was older than the last change: {renewed:?} {ctime:?}");
        assert_eq!((m, c), (mtime, ctime), "a read changes nothing else");
        assert_eq!(read_with(flags), [renewed, mtime, ctime], "it is younger now");
        assert_eq!(now(), [renewed, mtime, ctime]);
    }
    times(1, 2);
    assert_eq!(read_with(OFlags::from_bits_retain(libc::O_NOATIME as _))[0], (1, 5));
    read_with(OFlags::empty());
    times(7, 8);
    assert_eq!((now()[0], now()[1]), ((7, 5), (8, 5)), "set after the read");
    assert!(run(&["set", "client.atime=none", "--mount", &place.text("mount")]).status.success());
    assert_eq!(read_with(OFlags::empty())[0], (7, 5));
    assert!(run(&["set", "client.atime=relatime", "--mount", &place.text("mount")]).status.success());
    let seen = read_with(OFlags::empty());
    assert!(seen[0].0 > 1_000_000_000);
    up.stop();
    let up = place.up(&[]);
    assert_eq!(now(), seen, "found again");
    up.stop();
    place.fsck();
}

/// Goal: extended attributes with their errors and limits.
#[test]
fn extended_attributes() {
    let place = Place::new();
    let up = place.up(&[]);
    let f = place.mount().join("f");
    fs::write(&f, b"").expect("write");
    setxattr(&f, "user.a", b"1", XattrFlags::empty()).expect("set");
    assert_eq!(rerrno(setxattr(&f, "user.a", b"2", XattrFlags::CREATE)), EEXIST);
    assert_eq!(rerrno(setxattr(&f, "user.b", b"2", XattrFlags::REPLACE)), ENODATA);
    let big = pattern(9, 60_000);
    setxattr(&f, "user.big", &big, XattrFlags::empty()).expect("60,000 bytes");
    let mut buf = vec![0; 65_536];
    let n = getxattr(&f, "user.big", &mut buf[..]).expect("get");
    assert!(buf[..n] == big[..]);
    assert_eq!(rerrno(getxattr(&f, "user.big", &mut buf[..10])), ERANGE);
    assert_eq!(rerrno(getxattr(&f, "user.none", &mut buf[..])), ENODATA);
    let n = listxattr(&f, &mut buf[..]).expect("list");
    let names: BTreeSet<&[u8]> = buf[..n].split(|&b| b == 0).filter(|s| !s.is_empty()).collect();
    assert_eq!(names, BTreeSet::from([&b"user.a"[..], &b"user.big"[..]]), "and nothing that a copy would take along");
    removexattr(&f, "user.a").expect("remove");
    assert_eq!(rerrno(removexattr(&f, "user.a")), ENODATA);
    up.stop();
    let up = place.up(&[]);
    let n = getxattr(&f, "user.big", &mut buf[..]).expect("get after a restart");
    assert!(buf[..n] == big[..]);
    up.stop();
    place.fsck();
}

/// Goal: holes, SEEK_DATA, SEEK_HOLE, reads at the end, O_APPEND, bad descriptors, sizes out of range.
#[test]
fn offsets_holes_and_ends() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("f");
    let f = open(&path, OFlags::RDWR | OFlags::CREATE, rw()).expect("open");
    pwrite(&f, b"tail", 1 << 20).expect("write");
    rustix::fs::fsync(&f).expect("fsync");
    let mut buf = [1u8; 16];
    assert_eq!(pread(&f, &mut buf, 0).expect("read"), 16);
    assert_eq!(buf, [0; 16], "a hole reads as zeros");
    assert_eq!(pread(&f, &mut buf, (1 << 20) + 2).expect("read"), 2);
    assert_eq!(pread(&f, &mut buf, 2 << 20).expect("read"), 0);
    assert_eq!(seek(&f, SeekFrom::Data(0)).expect("data"), 1 << 20);
    assert_eq!(seek(&f, SeekFrom::Hole(0)).expect("hole"), 0);
    assert_eq!(seek(&f, SeekFrom::Hole(1 << 20)).expect("hole at the end"), (1 << 20) + 4);
    assert_eq!(rerrno(seek(&f, SeekFrom::Data((1 << 20) + 4))), ENXIO);
    let ro = open(&path, OFlags::RDONLY, rw()).expect("open");
    assert_eq!(rerrno(pwrite(&ro, b"x", 0)), EBADF);
    let wo = open(&path, OFlags::WRONLY, rw()).expect("open");
    assert_eq!(rerrno(pread(&wo, &mut buf, 0)), EBADF);
    let threads: Vec<_> = (0..4u8)
        .map(|t| {
            let path = path.clone();
            std::thread::spawn(move || {
                let f = open(&path, OFlags::WRONLY | OFlags::APPEND, rw()).expect("open");
                for _ in 0..200 {
                    assert_eq!(write(&f, &[t + 1; 777]).expect("append"), 777);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("thread"));
    let bytes = fs::read(&path).expect("read");
    assert_eq!(bytes.len(), (1 << 20) + 4 + 4 * 200 * 777);
    for record in bytes[(1 << 20) + 4..].chunks(777) {
        assert!(record.iter().all(|b| b == &record[0] && *b > 0), "appended records are whole");
    }
    up.stop();
    place.fsck();
}

/// Goal: Promise S8: permissions hold for other users, with groups, sticky and setgid directories. Method: a
/// child process that gives up root; allow_other is on for root's mounts.
#[test]
fn permissions_of_other_users() {
    let place = Place::new();
    let up = place.up(&[]);
    fs::set_permissions(place.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    let m = place.mount();
    let script = format!(
        r#"cd {m}
fails() {{ if "$@" 2>/dev/null; then echo "must fail: $*" >&2; exit 1; fi; }}
fails cat secret; fails touch closed/x; fails ls closed
cat group >/dev/null; echo more >> group
touch sticky/mine; fails rm sticky/roots; rm sticky/mine
touch setgid/f; test "$(stat -c %g setgid/f)" = 4242; mkdir setgid/d; test -g setgid/d
fails chmod 777 group; fails chown 1 sticky; fails mv sticky/roots sticky/x
fails setfattr -n user.x -v 1 secret
touch own/f; chmod 600 own/f; fails chgrp 9999 own/f; chgrp 4242 own/f
"#,
        m = m.display()
    );
    fs::write(m.join("secret"), b"s").expect("write");
    chmod(m.join("secret"), Mode::from_raw_mode(0o600)).expect("chmod");
    for (d, mode) in [("closed", 0o700), ("sticky", 0o1777), ("setgid", 0o2777), ("own", 0o777)] {
        mkdir(m.join(d), all()).expect("mkdir");
        chmod(m.join(d), Mode::from_raw_mode(mode)).expect("chmod");
    }
    std::os::unix::fs::chown(m.join("setgid"), None, Some(4242)).expect("chgrp");
    chmod(m.join("setgid"), Mode::from_raw_mode(0o2777)).expect("chmod");
    fs::write(m.join("sticky/roots"), b"").expect("write");
    fs::write(m.join("group"), b"g").expect("write");
    std::os::unix::fs::chown(m.join("group"), None, Some(4242)).expect("chgrp");
    chmod(m.join("group"), Mode::from_raw_mode(0o660)).expect("chmod");
    let out = std::process::Command::new("setpriv")
        .args(["--reuid", "1000", "--regid", "1000", "--groups", "4242", "bash", "-euc", &script])
        .output()
        .expect("setpriv (util-linux) runs");
    assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    up.stop();
    place.fsck();
}

/// Goal: flock and fcntl locks work between processes, blocking ones end at a signal. Method: flock(1).
#[test]
fn file_locks() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("f");
    fs::write(&path, b"").expect("write");
    let held = open(&path, OFlags::RDWR, rw()).expect("open");
    flock(&held, FlockOperation::LockExclusive).expect("flock");
    let other = |args: &[&str]| {
        std::process::Command::new("flock")
            .args(args)
            .arg(&path)
            .args(["-c", "true"])
            .status()
            .expect("flock(1)")
            .code()
    };
    assert_eq!(other(&["-n"]), Some(1), "held by us");
    let killed = std::process::Command::new("timeout")
        .args(["--signal=INT", "--kill-after=20", "0.3", "flock"])
        .arg(&path)
        .args(["-c", "true"])
        .status()
        .expect("timeout(1)");
    assert_eq!(killed.code(), Some(124), "a process that waits for a lock ends at its signal");
    flock(&held, FlockOperation::Unlock).expect("unlock");
    assert_eq!(other(&["-n"]), Some(0));
    up.stop();
}

/// Goal: EACCES of execute bits and executables run from the mount. Method: a script and a copied program.
#[test]
fn programs_run_from_the_mount() {
    let place = Place::new();
    let up = place.up(&[]);
    let prog = place.mount().join("prog");
    fs::copy("/bin/true", &prog).expect("copy");
    assert!(std::process::Command::new(&prog).status().expect("runs").success());
    chmod(&prog, Mode::from_raw_mode(0o644)).expect("chmod");
    assert_eq!(errno(std::process::Command::new(&prog).status()), EACCES);
    let at = openat(CWD, place.mount(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("O_PATH");
    let r = openat(&at, Path::new("prog"), OFlags::RDONLY, rw()).expect("openat");
    let mut magic = [0u8; 4];
    assert_eq!(read(&r, &mut magic).expect("read"), 4);
    assert_eq!(&magic, b"\x7fELF");
    up.stop();
}
