//! A tree with everything that a tree can have, and a description of a tree that two of them can be compared by.

use rustix::fs::{self as sys, AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Bytes that differ from place to place.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let mut out: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).collect();
    out.truncate(len);
    out
}

/// A file whose bytes at the given offsets are data and which has holes elsewhere.
pub fn sparse(path: &Path, size: u64, data: &[(u64, usize)]) {
    let file = fs::File::create(path).expect("create");
    file.set_len(size).expect("truncate");
    for (at, len) in data {
        file.write_all_at(&bytes(*len, *at), *at).expect("write");
    }
    file.sync_all().expect("sync");
}

/// An access control list in the kernel's form: owner, a named user, group, mask, others.
fn acl() -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, perm, id) in [(1u16, 6u16, none), (2, 4, 1234), (4, 4, none), (0x10, 6, none), (0x20, 0, none)] {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

fn times(path: &Path, mtime: i64, ns: i64) {
    let time = |s| Timespec { tv_sec: s, tv_nsec: ns };
    let times = Timestamps { last_access: time(mtime + 5), last_modification: time(mtime) };
    sys::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("utimens");
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

fn xattr(path: &Path, name: &str, value: &[u8]) {
    sys::lsetxattr(path, name, value, XattrFlags::empty()).expect("setxattr");
}

/// Makes the tree.
pub fn build(root: &Path) {
    let at = |name: &str| root.join(name);
    fs::create_dir_all(at("a/b/c/empty")).expect("mkdir");
    fs::write(at("zero"), b"").expect("write");
    fs::write(at("a/one"), b"1").expect("write");
    fs::write(at("a/large"), bytes((9 << 20) + 77, 1)).expect("write");
    fs::create_dir(at("many")).expect("mkdir");
    for n in 0..200 {
        fs::write(at(&format!("many/{n}")), bytes(n * 37, n as u64)).expect("write");
    }
    let mut deep = at("deep");
    for _ in 0..60 {
        deep.push("d".repeat(50));
    }
    // Longer than a path can be: made step by step.
    let mut fd = sys::openat(CWD, root, sys::OFlags::PATH, Mode::empty()).expect("open");
    for name in deep.strip_prefix(root).expect("below").iter() {
        sys::mkdirat(&fd, name, Mode::RWXU).expect("mkdir");
        fd = sys::openat(&fd, name, sys::OFlags::PATH, Mode::empty()).expect("open");
    }
    sys::openat(&fd, "leaf", sys::OFlags::CREATE | sys::OFlags::WRONLY, Mode::RUSR).expect("create");
    fs::create_dir(at("sparse")).expect("mkdir");
    sparse(&at("sparse/middle"), 100 << 20, &[(20 << 20, 5000), (70 << 20, 1)]);
    sparse(&at("sparse/hole"), 10 << 20, &[]);
    sparse(&at("sparse/end"), (3 << 20) + 1, &[(3 << 20, 1)]);
    sparse(&at("sparse/start"), 5 << 20, &[(0, 1 << 20)]);
    sparse(&at("sparse/huge"), 8 << 40, &[(5 << 40, 8192)]);
    fs::create_dir(at("links")).expect("mkdir");
    fs::hard_link(at("a/one"), at("links/one")).expect("link");
    fs::hard_link(at("a/one"), at("links/other")).expect("link");
    fs::hard_link(at("a/large"), at("links/large")).expect("link");
    symlink("../a/one", at("links/relative")).expect("symlink");
    symlink("/nowhere/at/all", at("links/dangling")).expect("symlink");
    symlink("..", at("links/up")).expect("symlink");
    times(&at("links/dangling"), 1_000_000, 7);
    let odd = root.join(OsStr::from_bytes(b"odd\xff\n\x01 name"));
    fs::create_dir(&odd).expect("mkdir");
    fs::write(odd.join(OsStr::from_bytes(b"\xfe")), b"x").expect("write");
    fs::write(at(&"n".repeat(255)), b"long").expect("write");
    sys::mkfifoat(CWD, at("pipe"), Mode::from_raw_mode(0o640)).expect("mkfifo");
    sys::mknodat(CWD, at("socket"), FileType::Socket, Mode::from_raw_mode(0o600), 0).expect("mknod");
    xattr(&at("a/large"), "user.note", b"of a file");
    xattr(&at("a/b"), "user.note", &bytes(900, 4));
    xattr(&at("zero"), "system.posix_acl_access", &acl());
    xattr(&at("many"), "system.posix_acl_default", &acl());
    mode(&at("many/7"), 0o4755);
    mode(&at("many/8"), 0o2711);
    mode(&at("a/b/c"), 0o1777);
    mode(&at("a/b/c/empty"), 0o555);
    mode(&at("many/9"), 0o400);
    if geteuid().is_root() {
        mode(&at("many/10"), 0);
        fs::write(at("owned"), b"o").expect("write");
        std::os::unix::fs::lchown(at("owned"), Some(1001), Some(1002)).expect("chown");
        mode(&at("owned"), 0o6755);
        std::os::unix::fs::lchown(at("links/up"), Some(1001), Some(1002)).expect("chown");
        // A container may keep even root from making devices.
        let _ = sys::mknodat(CWD, at("null"), FileType::CharacterDevice, Mode::RUSR, sys::makedev(1, 3));
        mode(&odd, 0);
    }
    for (n, name) in ["a/one", "a/large", "zero", "pipe", "many", "a/b/c/empty", "a/b", "a"].iter().enumerate() {
        times(&at(name), 1_234_567_890 - n as i64, 123_456_789);
    }
}

/// The description of a tree: for each path everything that a copy has to keep.
pub fn describe(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut firsts = BTreeMap::new();
    let (base, name) = (root.parent().expect("a folder"), root.file_name().expect("a name"));
    let dir = sys::openat(CWD, base, sys::OFlags::RDONLY, Mode::empty()).expect("open");
    visit(&dir, name, PathBuf::new(), &mut all, &mut firsts);
    // Names of one file: the first of them stands for all.
    for (path, inode) in all.iter().filter_map(|(p, (_, i))| Some((p.clone(), (*i)?))).collect::<Vec<_>>() {
        let first = firsts[&inode].iter().min().cloned().unwrap_or_default();
        all.get_mut(&path).expect("there").0.push_str(&format!(" one with {first:?}"));
    }
    all.into_iter().map(|(path, (text, _))| (path, text)).collect()
}

type Inode = (u64, u64);

fn visit(
    dir: &impl std::os::fd::AsFd,
    name: &OsStr,
    path: PathBuf,
    all: &mut BTreeMap<PathBuf, (String, Option<Inode>)>,
    firsts: &mut BTreeMap<Inode, Vec<PathBuf>>,
) {
    let fd = sys::openat(dir, name, sys::OFlags::PATH | sys::OFlags::NOFOLLOW, Mode::empty()).expect("open");
    let s = sys::fstat(&fd).expect("stat");
    let kind = FileType::from_raw_mode(s.st_mode);
    let own = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd)));
    let mut text = format!("{kind:?} {:o} {}:{} {}.{:09}", s.st_mode, s.st_uid, s.st_gid, s.st_mtime, s.st_mtime_nsec);
    let mut names = vec![0; 65536];
    let len = sys::listxattr(&own, &mut names[..]).unwrap_or(0);
    let mut names: Vec<&[u8]> = names[..len].split(|b| *b == 0).filter(|n| !n.is_empty()).collect();
    names.sort_unstable();
    for name in names {
        let mut value = vec![0; 65536];
        let len = sys::getxattr(&own, CString::new(name).expect("no zero"), &mut value[..]).expect("getxattr");
        text.push_str(&format!(" {}={:x}", String::from_utf8_lossy(name), crc32c::crc32c(&value[..len])));
    }
    match kind {
        FileType::RegularFile => {
            // Only ranges with data are read, so that a file of terabytes is compared as well.
            let file = fs::File::open(&own).expect("open");
            let (mut at, size) = (0, s.st_size as u64);
            text.push_str(&format!(" size {size}"));
            while let Ok(data) = sys::seek(&file, sys::SeekFrom::Data(at)) {
                let end = sys::seek(&file, sys::SeekFrom::Hole(data)).expect("hole").min(size);
                let mut bytes = vec![0; (end - data) as usize];
                file.read_exact_at(&mut bytes, data).expect("read");
                for (n, block) in bytes.chunks(4096).enumerate().filter(|(_, b)| b.iter().any(|b| *b != 0)) {
                    let place = data + n as u64 * 4096;
                    text.push_str(&format!(" {place}:{:x}", crc32c::crc32c(block)));
                }
                at = end;
            }
        }
        FileType::Symlink => {
            let to = sys::readlinkat(dir, name, Vec::new()).expect("readlink");
            text.push_str(&format!(" -> {to:?}"));
        }
        FileType::Directory => {
            let dir = sys::openat(dir, name, sys::OFlags::RDONLY, Mode::empty()).expect("open");
            let names = sys::Dir::read_from(&dir).expect("list");
            for entry in names.map(|e| e.expect("list")) {
                let name = std::ffi::OsString::from_vec(entry.file_name().to_bytes().to_vec());
                if name != "." && name != ".." {
                    visit(&dir, &name, path.join(&name), all, firsts);
                }
            }
        }
        _ => text.push_str(&format!(" device {}", s.st_rdev)),
    }
    let linked = kind != FileType::Directory && s.st_nlink > 1;
    let inode = linked.then_some((s.st_dev, s.st_ino));
    inode.into_iter().for_each(|i| firsts.entry(i).or_default().push(path.clone()));
    all.insert(path, (text, inode));
}

/// Compares two trees in everything but their names.
pub fn assert_same(a: &Path, b: &Path) {
    let (a, b) = (describe(a), describe(b));
    for (path, text) in &a {
        assert_eq!(Some(text), b.get(path), "{path:?}");
    }
    let more: Vec<_> = b.keys().filter(|path| !a.contains_key(*path)).collect();
    assert!(more.is_empty(), "the copy has {more:?} too");
}

/// Names in a folder.
pub fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).expect("list").map(|e| e.expect("list").file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
