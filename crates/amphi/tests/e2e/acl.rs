//! Access control lists and the flags of `chattr`, with the programs that people use: setfacl, getfacl, tar, chattr.

use crate::harness::{Daemon, Place, errno, rerrno, run};
use crate::two_mounts::Pair;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::getuid;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// Users: one whom the lists name, one in a group that they name, and one whom they do not name.
const NAMED: u32 = 1500;
const IN_GROUP: u32 = 1501;
const GROUP: u32 = 2500;
const STRANGER: u32 = 1502;

/// The output of a shell, errors included, and its exit.
fn shell(dir: &Path, user: u32, group: u32, script: &str) -> String {
    let (user, group) = (user.to_string(), group.to_string());
    let out = Command::new("setpriv")
        .args(["--reuid", &user, "--regid", &group, "--clear-groups", "bash", "-c"])
        .arg(format!("cd \"$D\" || exit 9\nexec 2>&1\n{script}"))
        .env("D", dir)
        .env("LC_ALL", "C")
        .output()
        .expect("setpriv (util-linux) runs");
    format!("{}[{}]", String::from_utf8_lossy(&out.stdout), out.status.code().unwrap_or(-1))
}

fn root(dir: &Path, script: &str) -> String {
    shell(dir, 0, 0, script)
}

/// Runs the script as `root`; all of its commands have to succeed.
fn done(dir: &Path, script: &str) -> String {
    let said = root(dir, &format!("set -e\n{script}"));
    said.strip_suffix("[0]").map(str::to_string).unwrap_or_else(|| panic!("{script}: {said}"))
}

/// The commands that set up a shared project, with the output of each. Extents and their flag are affairs of the
/// machine's own file system.
const PROJECT: &[(u32, u32, &str)] = &[
    (0, 0, "mkdir -p proj; chmod 750 proj; setfacl -m u:1500:rwx,g:2500:r-x proj; getfacl -p proj"),
    (0, 0, "setfacl -d -m u:1500:rwx,g:2500:r-x,o::- proj; getfacl -p proj; stat -c %a proj"),
    (0, 0, "umask 077; echo hi > proj/file; mkdir proj/sub; mkfifo proj/pipe; ln -s file proj/link"),
    (0, 0, "for f in file sub pipe; do getfacl -p proj/$f; stat -c %a proj/$f; done; getfacl -p proj/link"),
    (NAMED, NAMED, "cat proj/file; echo more >> proj/file; mkdir proj/mine; ls proj; stat -c '%a %u %g' proj/mine"),
    (IN_GROUP, GROUP, "cat proj/file; ls proj; touch proj/no; echo no >> proj/file"),
    (STRANGER, STRANGER, "ls proj; cat proj/file; getfacl -p proj"),
    (NAMED, NAMED, "setfacl -m u:1502:r proj/file; setfacl -b proj; chmod 777 proj/mine; getfacl -p proj/mine"),
    (0, 0, "chmod 700 proj; getfacl -p proj"),
    (NAMED, NAMED, "ls proj; cat proj/file"),
    (0, 0, "chmod 770 proj; cp -a proj copy; getfacl -p copy copy/file copy/mine"),
    (0, 0, "tar --acls --xattrs -C proj -cf ../t.tar . && mkdir out && tar --acls --xattrs -C out -xpf ../t.tar"),
    (0, 0, "for f in . file sub mine pipe; do getfacl --omit-header -p out/$f; done"),
    (
        0,
        0,
        "setfacl -k proj; umask 022; touch proj/later; getfacl -p proj/later; setfacl -x u:1500 proj; getfacl -p proj",
    ),
    (0, 0, "setfacl -b proj; getfacl -p proj; ls -ld proj | cut -c1-11; getfattr -m - proj 2>&1 || true"),
    (0, 0, "setfacl -m u:1500:rw proj/link; setfacl -d -m u:1500:rw proj/file"),
    (0, 0, "ln proj/file proj/twin; mv proj/file proj/moved; getfacl -p proj/moved proj/twin; rm proj/twin"),
    (0, 0, "chattr +a proj/moved; lsattr -d proj/moved | tr e -; echo app >> proj/moved; echo x > proj/moved"),
    (
        0,
        0,
        "rm -f proj/moved; chmod 600 proj/moved; truncate -s 0 proj/moved; mv proj/moved proj/m; ln proj/moved proj/n",
    ),
    (0, 0, "touch proj/moved; touch -d 2001-01-01 proj/moved; setfattr -n user.a -v 1 proj/moved; cat proj/moved"),
    (0, 0, "chattr -a +i proj/moved; lsattr -d proj/moved | tr e -; echo x >> proj/moved; rm -f proj/moved"),
    (0, 0, "ln proj/moved proj/n; setfacl -m u:7:r proj/moved; touch proj/moved; truncate -s 9 proj/moved"),
    (0, 0, "chattr -i proj/moved; chattr +i proj; touch proj/new; rm -f proj/later; mkdir proj/new; mv proj/later ."),
    (0, 0, "chattr -i +a proj; touch proj/new; rm proj/new; mv proj/later .; rename x y proj/later; ls proj"),
    (0, 0, "chattr -a proj; rm -r proj/mine; ls proj"),
    (NAMED, NAMED, "chattr +i proj/later; chattr +a proj/later; lsattr -d proj/later | tr e -"),
];

/// Goal: a project directory that is shared by access control lists behaves as on the machine's own file system, for
/// root, a named user, a user in a named group and a stranger. So do files and directories with flags. Method: the same
/// commands on both, and their output. (Promise S8)
#[test]
fn a_shared_project_is_as_on_linux() {
    compare_projects(&|_| {});
}

/// Goal and method: as `a_shared_project_is_as_on_linux`, with the names of the project in shards.
#[test]
fn a_shared_project_in_shards_is_as_on_linux() {
    compare_projects(&|mount| {
        let project = mount.join("proj");
        fs::create_dir(&project).expect("mkdir");
        let set = run(&["layout", "set", "--shards", "3", project.to_str().expect("UTF-8")]);
        assert!(set.status.success(), "{set:?}");
    });
}

/// Executes the commands of `PROJECT` on the machine's own file system and on a mount, on which `prepare` may change
/// the project's directory first, and compares the outputs.
fn compare_projects(prepare: &dyn Fn(&Path)) {
    if !getuid().is_root() {
        return;
    }
    let place = Place::new();
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("chmod");
    let own = place.path("own");
    fs::create_dir(&own).expect("mkdir");
    if root(&own, "touch f; setfacl -m u:7:r f && chattr +a f && chattr -a f; rm f") != "[0]" {
        eprintln!("the file system of {} has no lists or flags to compare with", own.display());
        return;
    }
    let up = place.up(&["--targets", "3"]);
    prepare(&place.mount());
    for (user, group, script) in PROJECT {
        let wanted = shell(&own, *user, *group, script);
        assert_eq!(shell(&place.mount(), *user, *group, script), wanted, "{user}: {script}");
    }
    up.stop();
    place.fsck();
}

/// Goal: an access list set on one mount takes effect on the other at once, also for callers whose kernel caches the
/// list, and after the server was killed. Method: a user reads and walks on one mount, while the lists are set and
/// removed on the other mount.
#[test]
fn lists_hold_across_mounts() {
    if !getuid().is_root() {
        return;
    }
    let place = Place::new();
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("chmod");
    let server = place.server(&["--targets", "3"]);
    let mounts = [place.mount_at("a", &[]), place.mount_at("b", &[])];
    let (a, b) = (place.path("a"), place.path("b"));
    done(&a, "for n in 0 1 2 3 4 5; do mkdir -m 700 d$n; echo $n > d$n/f; chmod 600 d$n/f; done");
    let reads = |dir: &Path, n: usize| shell(dir, NAMED, NAMED, &format!("cat d{n}/f"));
    let (granted, refused) =
        (|n: usize| format!("{n}\n[0]"), |n: usize| format!("cat: d{n}/f: Permission denied\n[1]"));
    for n in 0..6 {
        let (own, other) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        for _ in 0..4 {
            assert_eq!(reads(other, n), refused(n));
            done(own, &format!("setfacl -m u:1500:x d{n}; setfacl -m u:1500:r d{n}/f"));
            assert_eq!((reads(other, n), reads(own, n)), (granted(n), granted(n)));
            done(other, &format!("chmod 600 d{n}/f"));
            assert_eq!(reads(own, n), refused(n), "the mask is empty");
            done(own, &format!("chmod 640 d{n}/f"));
            assert_eq!(reads(other, n), granted(n), "the user's entry was kept");
            // Only the directory, whose files the kernel knows by now.
            done(other, &format!("setfacl -x u:1500 d{n}"));
            assert_eq!((reads(own, n), reads(other, n)), (refused(n), refused(n)));
            done(own, &format!("setfacl -b d{n} d{n}/f; chmod 600 d{n}/f"));
        }
    }
    done(&a, "setfacl -m u:1500:rwx d0; setfacl -d -m u:1500:rwX d0; setfacl -m u:1500:r d0/f; chattr +i d1/f");
    server.kill();
    let server = place.server(&["--targets", "3"]);
    for dir in [&a, &b] {
        assert_eq!(reads(dir, 0), granted(0));
        let heir = format!("new-{}", dir.file_name().expect("a name").display());
        done(dir, &format!("umask 077; echo 0 > d0/{heir}"));
        assert_eq!(fs::metadata(b.join("d0").join(&heir)).expect("stat").mode() & 0o777, 0o660, "no umask");
        assert_eq!(shell(&a, NAMED, NAMED, &format!("cat d0/{heir}")), granted(0));
        assert!(root(dir, "echo x > d1/f").contains("Operation not permitted"));
    }
    done(&b, "chattr -i d1/f");
    mounts.into_iter().for_each(Daemon::stop);
    server.stop();
    place.fsck();
}

/// Goal: a mount without lists requests none, and the servers still check them. Method: a file that a list denies to a
/// user whom the mode bits admit, on mounts of both kinds.
#[test]
fn a_mount_without_lists() {
    if !getuid().is_root() {
        return;
    }
    let pair = Pair::new(1, &[], &[]);
    fs::set_permissions(pair.place.path(""), fs::Permissions::from_mode(0o755)).expect("chmod");
    let plain = pair.place.mount_at("plain", &["-o", "noacl"]);
    let dir = pair.place.path("plain");
    // The group gets more rights than the user, who is in it: by the mode bits alone he could read.
    done(&pair.a, "echo x > f; chgrp 2500 f; chmod 640 f; setfacl -m u:1501:- f");
    for mount in [&pair.a, &pair.b, &dir] {
        assert_eq!(shell(mount, IN_GROUP, GROUP, "cat f"), "cat: f: Permission denied\n[1]");
        assert_eq!(shell(mount, NAMED, GROUP, "cat f"), "x\n[0]");
    }
    plain.stop();
    pair.stop();
}

/// Goal: a file that may only grow keeps its bytes, even from a program that has it open to append. Method: holes,
/// zeros and cuts through such a descriptor, on two mounts.
#[test]
fn append_only_files_keep_their_bytes() {
    if !getuid().is_root() {
        return;
    }
    let pair = Pair::new(1, &[], &[]);
    done(&pair.a, "printf 0123456789 > f; chattr +a f");
    for mount in [&pair.a, &pair.b] {
        let file = fs::OpenOptions::new().append(true).open(mount.join("f")).expect("opened to append");
        for flags in [
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        ] {
            assert_eq!(rerrno(fallocate(&file, flags, 0, 4096)), libc::EPERM, "{flags:?}");
        }
        assert_eq!(errno(file.set_len(3)), libc::EPERM);
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 65_536).expect("room");
        (&file).write_all(b"+").expect("it grows");
    }
    assert_eq!(done(&pair.b, "cat f; chattr -a f"), "0123456789++");
    pair.stop();
}
