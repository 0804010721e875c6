//! Renames that leave a whiteout, and their purpose: a directory of the mount as the upper layer of an overlay.

use crate::harness::{Daemon, Place, rerrno};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

fn leave(from: &Path, to: &Path, more: RenameFlags) -> rustix::io::Result<()> {
    renameat_with(CWD, from, CWD, to, RenameFlags::WHITEOUT | more)
}

/// Returns whether a name is a whiteout; overlays give several names to one.
fn is_whiteout(path: &Path) -> bool {
    let meta = fs::symlink_metadata(path).expect("stat");
    meta.file_type().is_char_device() && meta.rdev() == 0
}

/// Goal: a rename that leaves a whiteout moves the source, replaces the target if that is permitted, and leaves a
/// device 0:0 under the old name, on all mounts and after the server was killed; requests that Linux refuses are
/// refused. Method: two mounts in turn make changes to files and directories, within a directory and across targets.
#[test]
fn renames_leave_whiteouts() {
    let place = Place::new();
    let server = place.server(&["--targets", "3"]);
    let mounts = [place.mount_at("a", &[]), place.mount_at("b", &[])];
    let (a, b) = (place.path("a"), place.path("b"));
    (0..6).for_each(|n| fs::create_dir(a.join(format!("d{n}"))).expect("mkdir"));
    for n in 0..6 {
        let (own, other) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let (from, to) = (format!("d{n}/from"), format!("d{}/to", (n * 5 + 1) % 6));
        fs::write(own.join(&from), format!("bytes {n}")).expect("write");
        assert!(other.join(&from).exists(), "known there");
        leave(&own.join(&from), &own.join(&to), RenameFlags::empty()).expect("rename");
        for mount in [other, own] {
            assert_eq!(fs::read_to_string(mount.join(&to)).expect("read"), format!("bytes {n}"));
            assert!(is_whiteout(&mount.join(&from)), "{from}");
            assert_eq!(fs::symlink_metadata(mount.join(&from)).expect("stat").nlink(), 1);
        }
        // Onto the entry that is there now, which may be a whiteout.
        fs::create_dir(own.join(format!("d{n}/sub"))).expect("mkdir");
        let sub = other.join(format!("d{n}/sub"));
        assert_eq!(rerrno(leave(&sub, &other.join(&from), RenameFlags::NOREPLACE)), libc::EEXIST);
        assert_eq!(rerrno(leave(&sub, &other.join(&from), RenameFlags::empty())), libc::ENOTDIR);
        leave(&sub, &other.join(format!("d{n}/moved")), RenameFlags::NOREPLACE).expect("rename");
        assert!(is_whiteout(&own.join(format!("d{n}/sub"))) && own.join(format!("d{n}/moved")).is_dir());
        leave(&own.join(&to), &own.join(&from), RenameFlags::empty()).expect("rename onto a whiteout");
        assert!(is_whiteout(&other.join(&to)) && other.join(&from).is_file());
    }
    let (one, none) = (a.join("d0/from"), a.join("d0/none"));
    assert_eq!(rerrno(leave(&none, &one, RenameFlags::empty())), libc::ENOENT);
    assert_eq!(rerrno(leave(&one, &a.join("d0/moved"), RenameFlags::EXCHANGE)), libc::EINVAL);
    fs::hard_link(&one, a.join("d0/twin")).expect("link");
    leave(&one, &a.join("d0/twin"), RenameFlags::empty()).expect("two names of one file");
    assert!(one.is_file() && a.join("d0/twin").is_file(), "nothing happens");
    leave(&a.join("d0/twin"), &a.join("d0/last"), RenameFlags::empty()).expect("rename");
    server.kill();
    let server = place.server(&["--targets", "3"]);
    for mount in [&a, &b] {
        assert!(is_whiteout(&mount.join("d0/twin")) && mount.join("d0/last").is_file());
    }
    mounts.into_iter().for_each(Daemon::stop);
    server.stop();
    place.fsck();
}

/// An overlay, unmounted when it is dropped.
struct Overlay(std::path::PathBuf);

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Goal: a directory of the mount may be the upper layer of an overlay, as containers keep their changes: removed names
/// stay removed, directories made again are empty, changed files are copied up with bytes, owner and mode, and all of
/// it is there when the overlay is mounted again. Method: a lower layer on the local disk, and the kernel's overlay,
/// mounted twice.
#[test]
fn a_mount_is_the_upper_layer_of_an_overlay() {
    let knows = fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains("\toverlay\n"));
    if !rustix::process::geteuid().is_root() || !knows {
        // Only root may mount an overlay, and only if the kernel supports it.
        return;
    }
    let place = Place::new();
    let up = place.up(&[]);
    let (mount, low, at) = (place.mount(), place.path("low"), place.path("over"));
    fs::create_dir_all(low.join("d")).expect("mkdir");
    fs::create_dir(&at).expect("mkdir");
    fs::write(low.join("f"), b"low").expect("write");
    fs::write(low.join("d/x"), b"x").expect("write");
    fs::write(low.join("g"), vec![7; 100_000]).expect("write");
    fs::set_permissions(low.join("g"), fs::Permissions::from_mode(0o640)).expect("chmod");
    chown(low.join("g"), Some(12), Some(34)).expect("chown");
    ["up", "work"].iter().for_each(|name| fs::create_dir(mount.join(name)).expect("mkdir"));
    let over = || {
        let dirs = [("lowerdir", low.clone()), ("upperdir", mount.join("up")), ("workdir", mount.join("work"))];
        let options = dirs.map(|(word, dir)| format!("{word}={}", dir.display())).join(",");
        let done = Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(&at).output();
        let done = done.expect("mount");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Overlay(at.clone())
    };
    {
        let _overlay = over();
        fs::remove_file(at.join("f")).expect("remove");
        fs::remove_dir_all(at.join("d")).expect("remove");
        fs::create_dir(at.join("d")).expect("mkdir");
        fs::write(at.join("d/y"), b"y").expect("write");
        let mut bytes = fs::read(at.join("g")).expect("read");
        bytes.extend(b"end");
        fs::write(at.join("g"), bytes).expect("write");
        fs::rename(at.join("g"), at.join("h")).expect("rename");
    }
    assert!(is_whiteout(&mount.join("up/f")) && is_whiteout(&mount.join("up/g")));
    let overlay = over();
    assert!(!at.join("f").exists() && !at.join("g").exists());
    let names: Vec<_> = fs::read_dir(at.join("d")).expect("list").map(|e| e.expect("entry").file_name()).collect();
    assert_eq!(names, ["y"]);
    let meta = fs::metadata(at.join("h")).expect("stat");
    assert_eq!((meta.len(), meta.mode() & 0o7777, meta.uid(), meta.gid()), (100_003, 0o640, 12, 34));
    drop(overlay);
    up.stop();
    place.fsck();
}
