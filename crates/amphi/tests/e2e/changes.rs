//! Changes that do not alter the size of a file, and opens that truncate it: what `stat` shows afterwards.

use crate::harness::{Place, rerrno};
use crate::two_mounts::Pair;
use rustix::fs::{
    CWD, FallocateFlags, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chmod, copy_file_range, fallocate,
    ftruncate, futimens, open, stat,
};
use rustix::io::pwrite;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

const LEN: u64 = 20_000;
const OTHER: u32 = 1000;

fn opened(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    open(path, flags, Mode::empty())
}

fn changed_at(at: &Stat) -> (i64, u64) {
    (at.st_ctime, at.st_ctime_nsec)
}

/// A call on an open file, which has `LEN` bytes, or none if `empty` is set.
struct Call {
    name: &'static str,
    empty: bool,
    changes: bool,
    call: fn(&OwnedFd, &Path),
}

fn allocates(file: &OwnedFd, flags: FallocateFlags, offset: u64, len: u64) {
    fallocate(file, flags, offset, len).expect("fallocate");
}

fn copies(file: &OwnedFd, from: u64, len: usize) {
    let copied = copy_file_range(file, Some(&mut { from }), file, Some(&mut 10_000), len).expect("copy");
    assert!(copied <= len);
}

const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(KEEP);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE;

const fn on(name: &'static str, changes: bool, call: fn(&OwnedFd, &Path)) -> Call {
    Call { name, empty: false, changes, call }
}

const fn on_empty(name: &'static str, changes: bool, call: fn(&OwnedFd, &Path)) -> Call {
    Call { name, empty: true, changes, call }
}

/// Calls whose effect is the same on ext4 and XFS.
const CALLS: [Call; 20] = [
    on("room that is there", true, |f, _| allocates(f, FallocateFlags::empty(), 0, 4096)),
    on("room that is there, the size kept", true, |f, _| allocates(f, KEEP, 0, 4096)),
    on("room behind the end", true, |f, _| allocates(f, KEEP, LEN, 40 << 20)),
    on("a hole", true, |f, _| allocates(f, PUNCH, 0, 4096)),
    on("a hole in a block", true, |f, _| allocates(f, PUNCH, 10, 100)),
    on("a hole behind the end", true, |f, _| allocates(f, PUNCH, 40 << 20, 4096)),
    on_empty("a hole in nothing", true, |f, _| allocates(f, PUNCH, 0, 4096)),
    on("zeros", true, |f, _| allocates(f, ZERO, 0, 4096)),
    on("zeros, the size kept", true, |f, _| allocates(f, ZERO | KEEP, 0, 4096)),
    on("zeros behind the end, the size kept", true, |f, _| allocates(f, ZERO | KEEP, 40 << 20, 4096)),
    on_empty("zeros in nothing, the size kept", true, |f, _| allocates(f, ZERO | KEEP, 0, 4096)),
    on("a copy", true, |f, _| copies(f, 0, 4096)),
    on("a copy of nothing", false, |f, _| copies(f, 0, 0)),
    on("a copy from the end", false, |f, _| copies(f, LEN, 4096)),
    on("a write of nothing", false, |f, _| assert_eq!(pwrite(f, b"", 0), Ok(0))),
    on("a cut to the size that it has", true, |f, _| ftruncate(f, LEN).expect("cut")),
    on_empty("a cut of nothing", true, |f, _| ftruncate(f, 0).expect("cut")),
    on_empty("an open that cuts nothing", true, |_, path| {
        opened(path, OFlags::WRONLY | OFlags::TRUNC).expect("open");
    }),
    on_empty("an open for reading that cuts nothing", true, |_, path| {
        opened(path, OFlags::RDONLY | OFlags::TRUNC).expect("open");
    }),
    on("a change that is refused", false, |f, _| {
        assert_eq!(rerrno(fallocate(f, FallocateFlags::COLLAPSE_RANGE, 0, 4096)), libc::EOPNOTSUPP);
    }),
];

/// The calls on files below `at`, whose results `seen` shows as well.
fn calls_set_times(at: &Path, seen: &Path) {
    let long_ago = Timespec { tv_sec: 1000, tv_nsec: 0 };
    for Call { name, empty, changes, call } in CALLS {
        let path = at.join(name);
        let bytes = if empty { Vec::new() } else { vec![7; LEN as usize] };
        fs::write(&path, &bytes).expect("write");
        let file = opened(&path, OFlags::RDWR).expect("open");
        futimens(&file, &Timestamps { last_access: long_ago, last_modification: long_ago }).expect("times");
        let before = stat(seen.join(name)).expect("stat");
        assert_eq!(before.st_mtime, 1000);
        call(&file, &path);
        for path in [path, seen.join(name)] {
            let after = stat(&path).expect("stat");
            assert_eq!(after.st_size as u64, bytes.len() as u64, "{name}");
            let modified = after.st_mtime != 1000;
            assert_eq!(modified, changes, "{name}: the modification time at {}", path.display());
            let changed = changed_at(&after) != changed_at(&before);
            assert_eq!(changed, changes, "{name}: the change time at {}", path.display());
        }
        drop(file);
        assert_eq!(stat(seen.join(name)).expect("stat").st_mtime != 1000, changes, "{name}: behind the close");
    }
}

/// Goal: Promise S1: each successful `fallocate` sets the modification and the change time, even without an effect on
/// the data, as on ext4 and XFS. So do truncates and opens with `O_TRUNC`. Calls that change nothing there leave the
/// times. Method: a table of calls, each on a file with old times. They are made on one mount in sole mode and on two
/// mounts, of one server and of three, and checked through both.
#[test]
fn changes_that_move_no_size_set_the_times() {
    let place = Place::new();
    let up = place.up(&[]);
    calls_set_times(&place.mount(), &place.mount());
    up.stop();
    place.fsck();
    for servers in [1, 3] {
        let pair = Pair::new(servers, &["--targets", "2"], &[]);
        calls_set_times(&pair.a, &pair.b);
        pair.stop();
    }
}

/// Runs `what` as another user, on a thread that has given up root for good.
fn as_other<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    let change = || {
        rustix::thread::set_thread_groups(&[]).expect("setgroups");
        let (uid, gid) = (Uid::from_raw(OTHER), Gid::from_raw(OTHER));
        rustix::thread::set_thread_res_gid(gid, gid, gid).expect("setresgid");
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("setresuid");
        what()
    };
    std::thread::scope(|s| s.spawn(change).join().expect("the other user's thread"))
}

/// Goal: Promise S1, Promise S8: an open for reading with O_TRUNC truncates the file for all users, as on Linux, if the
/// caller may write to it. Otherwise it gives EACCES. This holds even while another program has the file open for
/// writing. Method: such opens by root and by another user, of a name that the mount knows and of one that it does not
/// know. Both mounts then read the file.
#[test]
fn opens_for_reading_cut() {
    let pair = Pair::new(1, &[], &[]);
    chmod(pair.place.path(""), Mode::from_raw_mode(0o755)).expect("chmod");
    let cut = OFlags::RDONLY | OFlags::TRUNC;
    for (mode, may) in [(0o666, true), (0o644, false)] {
        for flags in [cut, cut | OFlags::CREATE] {
            let (here, there) = (pair.a.join("f"), pair.b.join("f"));
            let fresh = || {
                fs::write(&there, b"bytes").expect("write");
                chmod(&there, Mode::from_raw_mode(mode)).expect("chmod");
            };
            fresh();
            let writer = opened(&here, OFlags::WRONLY).expect("open");
            let by_other = as_other(|| open(&here, flags, Mode::from_raw_mode(0o600)).map(drop));
            let expected = if may { Ok(()) } else { Err(rustix::io::Errno::ACCESS) };
            assert_eq!(by_other, expected, "{mode:o}");
            let left: &[u8] = if may { b"" } else { b"bytes" };
            assert!(fs::read(&here).expect("read") == left && fs::read(&there).expect("read") == left, "{mode:o}");
            fresh();
            let root = rustix::fs::openat(CWD, &here, flags, Mode::empty()).expect("open");
            assert_eq!(rustix::fs::fstat(&root).expect("stat").st_size, 0);
            assert!(fs::read(&there).expect("read").is_empty());
            drop(writer);
            fs::remove_file(&there).expect("unlink");
            // A name that this mount has not looked up since the change.
            fresh();
            drop(rustix::fs::openat(CWD, &here, flags, Mode::empty()).expect("open"));
            assert!(fs::read(&there).expect("read").is_empty());
            fs::remove_file(&there).expect("unlink");
        }
    }
    pair.stop();
}
