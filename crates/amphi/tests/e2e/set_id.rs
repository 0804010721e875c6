//! setuid and setgid: cleared when a user without the privilege changes a file's bytes, kept for root, as on Linux.

use crate::harness::{Place, pattern, rerrno};
use crate::two_mounts::Pair;
use rustix::fs::{
    CWD, FallocateFlags, Gid, Mode, OFlags, Uid, chmod, chown, copy_file_range, fallocate, ftruncate, open, stat,
};
use rustix::io::pwrite;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

const OTHER: u32 = 1000;
/// A group of which the other user is a member.
const HIS: u32 = 4242;
/// A group of which he is no member.
const NOT_HIS: u32 = 4343;

/// Runs `what` on a thread that has become the other user for good. System calls themselves: those of the C library are
/// for all threads.
fn as_other<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    let change = || {
        rustix::thread::set_thread_groups(&[Gid::from_raw(HIS)]).expect("setgroups");
        let (uid, gid) = (Uid::from_raw(OTHER), Gid::from_raw(OTHER));
        rustix::thread::set_thread_res_gid(gid, gid, gid).expect("setresgid");
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("setresuid");
        what()
    };
    std::thread::scope(|s| s.spawn(change).join().expect("the other user's thread"))
}

fn mode_of(path: &Path) -> u32 {
    stat(path).expect("stat").st_mode & 0o7777
}

fn writable(path: &Path, flags: OFlags) -> OwnedFd {
    open(path, OFlags::WRONLY | flags, Mode::empty()).expect("open")
}

fn wrote(path: &Path, flags: OFlags, bytes: &[u8]) {
    assert_eq!(pwrite(writable(path, flags), bytes, 5).expect("write"), bytes.len());
}

/// A change of a file's bytes.
type Change = fn(&Path);

const CHANGES: [(&str, Change); 9] = [
    ("a small write", |f| wrote(f, OFlags::empty(), b"x")),
    ("a write in the window", |f| wrote(f, OFlags::empty(), &[1; 50_000])),
    ("a large write", |f| wrote(f, OFlags::empty(), &[1; 3 << 20])),
    ("a direct write", |f| wrote(f, OFlags::DIRECT, &[1; 4096])),
    ("an append", |f| wrote(f, OFlags::APPEND, b"x")),
    ("a truncate", |f| ftruncate(writable(f, OFlags::empty()), 10).expect("truncate")),
    ("an open that truncates", |f| drop(writable(f, OFlags::TRUNC))),
    ("an allocation", |f| fallocate(writable(f, OFlags::empty()), FallocateFlags::empty(), 0, 9000).expect("allocate")),
    ("a copy into it", |f| {
        let from = open(f.with_file_name("source"), OFlags::RDONLY, Mode::empty()).expect("open");
        assert_eq!(
            copy_file_range(&from, Some(&mut 0), writable(f, OFlags::empty()), Some(&mut 0), 100).expect("copy"),
            100
        );
    }),
];

/// Goal: each way to change a file's bytes clears setuid and, if the group may execute, setgid, when another user than
/// root does it, the owner included. Root's changes leave these bits. Setgid without execution, which is no privilege,
/// stays for members of the group. The bytes are changed each time. Method: a table of modes by changes, made by root
/// and by a thread that has given up root.
#[test]
fn changes_by_others_clear_the_bits() {
    let place = Place::new();
    let up = place.up(&[]);
    chmod(place.path(""), Mode::from_raw_mode(0o755)).expect("chmod");
    let (source, file) = (place.mount().join("source"), place.mount().join("f"));
    fs::write(&source, pattern(1, 100)).expect("write");
    // Group, mode before, mode after a change by the other user.
    let table = [
        (HIS, 0o6777, 0o777),
        (NOT_HIS, 0o6777, 0o777),
        (HIS, 0o4666, 0o666),
        (HIS, 0o2676, 0o676),
        (HIS, 0o2666, 0o2666),
        (NOT_HIS, 0o2666, 0o666),
        (NOT_HIS, 0o6676, 0o676),
        (HIS, 0o1666, 0o1666),
    ];
    for (name, change) in CHANGES {
        for (group, before, after) in table {
            for owner in [0, OTHER] {
                let _ = fs::remove_file(&file);
                fs::write(&file, [7; 8000]).expect("write");
                chown(&file, Some(Uid::from_raw(owner)), Some(Gid::from_raw(group))).expect("chown");
                chmod(&file, Mode::from_raw_mode(before)).expect("chmod");
                change(&file);
                assert_eq!(mode_of(&file), before, "{name} by root, {before:o}");
                as_other(|| change(&file));
                assert_eq!(mode_of(&file), after, "{name}, mode {before:o}, group {group}, owner {owner}");
            }
        }
    }
    up.stop();
    place.fsck();
}

/// Returns whether a program that runs the file gets capabilities.
fn gives_capabilities(path: &Path) -> bool {
    match rustix::fs::getxattr(path, CAPABILITY, &mut [0; 64][..]) {
        Ok(len) => len == CAP_SETUID.len(),
        Err(e) => {
            assert_eq!(e, rustix::io::Errno::NODATA);
            false
        }
    }
}

const CAPABILITY: &str = "security.capability";
/// `cap_setuid=ep`, in the kernel's second form.
const CAP_SETUID: [u8; 20] = [1, 0, 0, 2, 1 << 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Goal: Promise S8: capabilities of a file are removed with each change of its bytes, by any user, root and the owner
/// included, and its bytes are changed. A user who may not write the file cannot remove them. Method: the changes, made
/// by root and by another user.
#[test]
fn changes_take_capabilities_away() {
    let place = Place::new();
    let up = place.up(&[]);
    chmod(place.path(""), Mode::from_raw_mode(0o755)).expect("chmod");
    let (source, file) = (place.mount().join("source"), place.mount().join("f"));
    fs::write(&source, pattern(1, 100)).expect("write");
    let give = || {
        rustix::fs::setxattr(&file, CAPABILITY, &CAP_SETUID, rustix::fs::XattrFlags::empty()).expect("setxattr");
        assert!(gives_capabilities(&file));
    };
    for (name, change) in CHANGES {
        let _ = fs::remove_file(&file);
        fs::write(&file, [7; 8000]).expect("write");
        chmod(&file, Mode::from_raw_mode(0o777)).expect("chmod");
        give();
        change(&file);
        assert!(!gives_capabilities(&file), "{name} by root");
        give();
        as_other(|| change(&file));
        assert!(!gives_capabilities(&file), "{name} by another user");
    }
    give();
    chown(&file, Some(Uid::from_raw(OTHER)), None).expect("chown");
    assert!(!gives_capabilities(&file), "a change of the owner");
    give();
    let opened = writable(&file, OFlags::empty());
    pwrite(&opened, b"1", 0).expect("write");
    give();
    pwrite(&opened, b"2", 0).expect("write");
    assert!(!gives_capabilities(&file), "given while it is open");
    give();
    let taken = || rustix::fs::removexattr(&file, CAPABILITY);
    assert_eq!(as_other(|| rerrno(taken())), libc::EPERM);
    chmod(&file, Mode::from_raw_mode(0o755)).expect("chmod");
    assert!(gives_capabilities(&file), "nothing was changed");
    up.stop();
    place.fsck();
}

/// Goal: Promise S1, Promise S8: bits that a write by another user clears are cleared at once, even for programs that
/// only read the mode and for those that run the file. So the kernel caches no such mode. Method: a copy of `id` with
/// setuid, and each change. Then the mode is read, and the program is run after a write.
#[test]
fn cleared_bits_count_at_once() {
    let place = Place::new();
    let up = place.up(&[]);
    chmod(place.path(""), Mode::from_raw_mode(0o755)).expect("chmod");
    let (source, file) = (place.mount().join("source"), place.mount().join("f"));
    fs::write(&source, pattern(1, 100)).expect("write");
    let mode_alone = || {
        let flags = rustix::fs::AtFlags::empty();
        let there = rustix::fs::statx(CWD, &file, flags, rustix::fs::StatxFlags::MODE).expect("statx");
        u32::from(there.stx_mode) & 0o7777
    };
    for (name, change) in CHANGES {
        let _ = fs::remove_file(&file);
        fs::write(&file, [7; 8000]).expect("write");
        chmod(&file, Mode::from_raw_mode(0o6777)).expect("chmod");
        assert_eq!(mode_alone(), 0o6777);
        as_other(|| change(&file));
        assert_eq!(mode_alone(), 0o777, "{name}");
    }
    let id = fs::read("/usr/bin/id").expect("a program");
    fs::write(&file, &id).expect("write");
    chmod(&file, Mode::from_raw_mode(0o4777)).expect("chmod");
    let user = || {
        let output = std::process::Command::new(&file).arg("-u").output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    };
    assert_eq!(as_other(user), "0", "setuid works");
    as_other(|| assert_eq!(pwrite(writable(&file, OFlags::empty()), &id[..100], 0).expect("write"), 100));
    assert_eq!(as_other(user), OTHER.to_string());
    up.stop();
    place.fsck();
}

/// Goal: a new owner or group of a file gets no privilege with it, even from root, but directories keep their setgid. A
/// user cannot set setgid for a group of which he is no member. Other users cannot set these bits at all. Method:
/// `chown` and `chmod` by root and by a thread that has given up root.
#[test]
fn owners_and_modes() {
    let place = Place::new();
    let up = place.up(&[]);
    chmod(place.path(""), Mode::from_raw_mode(0o755)).expect("chmod");
    let (file, dir) = (place.mount().join("f"), place.mount().join("d"));
    fs::write(&file, b"x").expect("write");
    fs::create_dir(&dir).expect("mkdir");
    let bits = |path: &Path, mode| chmod(path, Mode::from_raw_mode(mode));
    let own = |path: &Path, uid: u32, gid: u32| chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    for (before, after) in [(0o6755, 0o755), (0o4644, 0o644), (0o2644, 0o2644)] {
        bits(&file, before).expect("chmod");
        own(&file, 0, HIS).expect("chown");
        assert_eq!(mode_of(&file), after, "{before:o}");
    }
    bits(&dir, 0o6755).expect("chmod");
    own(&dir, OTHER, HIS).expect("chown");
    assert_eq!(mode_of(&dir), 0o6755);
    own(&file, OTHER, NOT_HIS).expect("chown");
    as_other(|| bits(&file, 0o6755).expect("his own"));
    assert_eq!(mode_of(&file), 0o4755, "not in its group");
    as_other(|| own(&file, OTHER, HIS).expect("to a group of his"));
    assert_eq!(mode_of(&file), 0o755, "a change of the group by its owner");
    as_other(|| bits(&file, 0o6755).expect("his own"));
    assert_eq!(mode_of(&file), 0o6755, "in its group");
    own(&file, 0, HIS).expect("chown");
    assert_eq!(as_other(|| rerrno(bits(&file, 0o4777))), libc::EPERM);
    assert_eq!(as_other(|| rerrno(own(&file, OTHER, HIS))), libc::EPERM);
    let there = stat(&file).expect("stat");
    assert_eq!((there.st_uid, there.st_gid, mode_of(&file)), (0, HIS, 0o755));
    // A file made in the directory gets its group, and setgid only from members.
    as_other(|| {
        drop(rustix::fs::openat(CWD, dir.join("in"), OFlags::CREATE | OFlags::RDWR, Mode::from_raw_mode(0o2770)))
    });
    let made = stat(dir.join("in")).expect("made");
    assert_eq!((made.st_gid, made.st_mode & 0o2000), (HIS, 0o2000));
    up.stop();
    place.fsck();
}

/// Goal: a write of any size and kind clears the bits even if another mount has set them since the last write through
/// the same open file, whose writes need not ask each time. Method: two mounts. A user writes through one mount, and
/// root sets the bits through the other, in turn.
#[test]
fn bits_set_by_another_mount_are_cleared() {
    let pair = Pair::new(1, &[], &[]);
    for mount in [&pair.a, &pair.b] {
        chmod(mount.parent().expect("a place"), Mode::from_raw_mode(0o755)).expect("chmod");
        chmod(mount, Mode::from_raw_mode(0o777)).expect("chmod");
    }
    let (here, there) = (pair.a.join("f"), pair.b.join("f"));
    fs::write(&here, b"x").expect("write");
    chmod(&here, Mode::from_raw_mode(0o666)).expect("chmod");
    let opened = as_other(|| writable(&here, OFlags::empty()));
    for (round, len) in [1, 4096, 50_000, 3 << 20, 20 << 20, 1, 4096].into_iter().cycle().take(28).enumerate() {
        let bytes = pattern(round as u64, len);
        let write = |at| as_other(|| assert_eq!(pwrite(&opened, &bytes, at).expect("write"), len));
        write(0);
        write(1);
        chmod(&there, Mode::from_raw_mode(0o6777)).expect("chmod");
        assert_eq!(mode_of(&there), 0o6777);
        write(0);
        assert_eq!((mode_of(&here), mode_of(&there)), (0o777, 0o777), "round {round}, {len} bytes");
    }
    drop(opened);
    pair.stop();
}
